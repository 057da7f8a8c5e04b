package ag

import (
	"errors"
	"fmt"
	"slices"
)

// The limits of a group's size.
const (
	MaxReplicas = 9               // the primary and eight secondaries
	MaxMembers  = MaxReplicas + 1 // and a witness
	MaxVoters   = 5
)

// RefusalReason is why a member cannot be added to the group, in the words of the protocol between nodes.
type RefusalReason string

// The reasons for which Enlist refuses a member.
const (
	RefusedFull    RefusalReason = "refused"          // the group has MaxMembers members, or MaxReplicas with data
	RefusedName    RefusalReason = "name_taken"       // the name or the endpoint belongs to another member
	RefusedVersion RefusalReason = "version_mismatch" // the group runs another PostgreSQL major version
)

// EnlistError is the error of Enlist. Its message tells the joining administrator what to do.
type EnlistError struct {
	Reason  RefusalReason
	Message string
}

// Error returns the message.
func (e *EnlistError) Error() string { return e.Message }

// Enlist adds a member to the group's configuration and assigns the votes anew. It takes the name, the addresses, the
// key pin, the PostgreSQL major version and the kind (a witness is CONFIGURATION_ONLY) from r. Enlist itself chooses
// the settings of a new member. A replica of a draft stays detached and suspended until CREATE and JOIN make it one of
// the group's.
//
// One that joins by the name of an awaited member, and is of its kind, takes its place and its settings.
//
// A member whose name and key pin the group has already is not changed, so that a request can be repeated after its
// answer got lost. Every refusal is an *EnlistError, and leaves the group as it was. The caller checks that the name is
// well formed.
func (g *Group) Enlist(r Replica) error {
	if old, ok := g.Replica(r.ID); ok {
		if old.KeyPin == r.KeyPin {
			return nil
		}
		return &EnlistError{RefusedName, fmt.Sprintf("the group already has a member %s; join under another --name", r.ID)}
	}
	if len(g.Replicas) >= MaxMembers {
		return &EnlistError{RefusedFull, "the group has its primary, eight secondaries and a witness; remove a member first"}
	}
	if r.HasData() && g.copies() >= MaxReplicas {
		return &EnlistError{RefusedFull, "the group has its primary and eight secondaries; only a witness can join, or remove a replica first"}
	}
	for _, other := range g.Replicas {
		if other.HasData() && r.HasData() && other.Major != r.Major {
			return &EnlistError{RefusedVersion, fmt.Sprintf("this node has PostgreSQL %d and the group has %d; install PostgreSQL %d and join again",
				r.Major, other.Major, other.Major)}
		}
		if other.Endpoint == r.Endpoint {
			return &EnlistError{RefusedName, fmt.Sprintf("%s is the endpoint of %s already; give this node another --endpoint", r.Endpoint, other.ID)}
		}
	}
	m := g.newMember(r)
	if i := g.awaited(r.ID); i >= 0 {
		was := g.Awaited[i]
		if was.HasData() != r.HasData() {
			return &EnlistError{RefusedName, fmt.Sprintf("%s is to be replaced by a %s, and this node is a %s; join under another --name, or run coterie member remove %s first", r.ID, kindOf(was), kindOf(r), r.ID)}
		}
		m = g.inPlaceOf(was, m)
		g.Awaited = slices.Delete(slices.Clone(g.Awaited), i, i+1)
	}
	g.Replicas = append(g.Replicas, m)
	if g.Rotation != nil { // a member that had the name may have completed the phase; this one has not
		next := *g.Rotation
		next.Done = slices.DeleteFunc(slices.Clone(next.Done), func(id ReplicaID) bool { return id == r.ID })
		g.Rotation = &next
	}
	g.AssignVotes()
	return nil
}

// kindOf returns what a member is, as people say it.
func kindOf(r Replica) string {
	if r.HasData() {
		return "replica"
	}
	return "witness"
}

// copies counts the members that have data.
func (g *Group) copies() (n int) {
	for _, r := range g.Replicas {
		if r.HasData() {
			n++
		}
	}
	return n
}

// Await takes a member out of the configuration, and keeps its name and settings for the node that replaces it. The
// votes are not assigned anew.
func (g *Group) Await(id ReplicaID) {
	r, ok := g.Replica(id)
	if !ok {
		return
	}
	g.Replicas = slices.DeleteFunc(slices.Clone(g.Replicas), func(o Replica) bool { return o.ID == id })
	g.Forget(id)
	r.KeyPin, r.EtcdID, r.Voter, r.Suspended, r.SuspendedBy, r.Options.Maintenance = "", 0, false, false, "", nil
	g.Awaited = append(g.Awaited, r)
	g.Awaited = g.Awaited[max(0, len(g.Awaited)-MaxMembers):]
}

// Forget ends the wait for a node that replaces a member. It reports whether there was one.
func (g *Group) Forget(id ReplicaID) bool {
	i := g.awaited(id)
	if i >= 0 {
		g.Awaited = slices.Delete(slices.Clone(g.Awaited), i, i+1)
	}
	return i >= 0
}

// Awaiting returns the settings of a member that is to be replaced.
func (g Group) Awaiting(id ReplicaID) (Replica, bool) {
	i := g.awaited(id)
	if i < 0 {
		return Replica{}, false
	}
	return g.Awaited[i], true
}

func (g Group) awaited(id ReplicaID) int {
	return slices.IndexFunc(g.Awaited, func(r Replica) bool { return r.ID == id })
}

// inPlaceOf returns a new member with the settings of the one that it replaces, but for the addresses among them.
func (g Group) inPlaceOf(was, m Replica) Replica {
	m.AvailabilityMode, m.FailoverMode, m.Allow, m.Options = was.AvailabilityMode, was.FailoverMode, was.Allow, was.Options
	m.Options.EndpointURL, m.Options.ReadOnlyURL, m.Options.ReadWriteURL = "", "", ""
	if !g.Draft && m.HasData() {
		m.Join, m.Suspended = was.Join, was.Join != ""
	}
	return m
}

// newMember returns the configuration with which a member begins.
func (g *Group) newMember(r Replica) Replica {
	m := Replica{ID: r.ID, Endpoint: r.Endpoint, Listener: r.Listener, ReadOnly: r.ReadOnly, HTTP: r.HTTP, KeyPin: r.KeyPin}
	if !r.HasData() {
		m.AvailabilityMode, m.FailoverMode = ConfigurationOnly, Manual
		return m
	}
	m.AvailabilityMode, m.FailoverMode, m.Allow, m.Major = SynchronousCommit, Automatic, AllowReadOnly, r.Major
	if g.Draft {
		m.Join, m.Suspended = Detached, true
	}
	return m
}

// AssignVotes decides which members vote. All of them do if their number is odd; otherwise all but one, and at most
// MaxVoters (docs/internals/safety.md, "Quorum store"). Members that vote already keep their vote, then witnesses come,
// then replicas in the order of the configuration.
func (g *Group) AssignVotes() {
	want := min(len(g.Replicas), MaxVoters)
	if want%2 == 0 {
		want--
	}
	order := make([]int, 0, len(g.Replicas))
	for _, next := range []func(Replica) bool{
		func(r Replica) bool { return g.Votes(r) },
		func(r Replica) bool { return !g.Votes(r) && !r.HasData() },
		func(r Replica) bool { return !g.Votes(r) && r.HasData() },
	} {
		for i, r := range g.Replicas {
			if next(r) {
				order = append(order, i)
			}
		}
	}
	for rank, i := range order {
		g.Replicas[i].Voter = rank < want
	}
}

// VotesAfter returns the member that gets a vote once the member id is gone and has none now; ok is false if none does.
func (g Group) VotesAfter(id ReplicaID) (heir Replica, ok bool) {
	next := g
	next.Replicas = slices.DeleteFunc(slices.Clone(g.Replicas), func(r Replica) bool { return r.ID == id })
	next.AssignVotes()
	for _, r := range next.Replicas {
		if r.Voter && !g.Votes(r) {
			return r, true
		}
	}
	return Replica{}, false
}

// SynchronousBeside returns how many replicas, beside one, are configured for synchronous commit. Suspended ones count.
func (g Group) SynchronousBeside(id ReplicaID) int {
	n := 0
	for _, r := range g.Replicas {
		if r.ID != id && r.AvailabilityMode == SynchronousCommit {
			n++
		}
	}
	return n
}

// MemberStep is what a member tells of its own part in the group. A witness, which cannot sign the configuration, has a
// replica write it. The replica accepts nothing else from it.
type MemberStep struct {
	EtcdID   uint64        `json:"etcd_id,omitempty"`   // it votes in the embedded store, with this member id
	CameBack bool          `json:"came_back,omitempty"` // the quorum was founded anew without it: votes are assigned again
	Pin      string        `json:"pin,omitempty"`       // of the authority of the rotation whose phase it has completed
	Phase    RotationPhase `json:"phase,omitempty"`
}

// Apply writes the step of the member with that name into the configuration. Every error leaves the group as it was.
func (s MemberStep) Apply(g *Group, id ReplicaID) error {
	at := -1
	for i, r := range g.Replicas {
		switch {
		case r.ID == id:
			at = i
		case s.EtcdID != 0 && r.EtcdID == s.EtcdID:
			return fmt.Errorf("%x is the member of %s in the quorum, and not that of %s", s.EtcdID, r.ID, id)
		}
	}
	switch {
	case at < 0:
		return fmt.Errorf("%s is no member of the group", id)
	case s.EtcdID != 0 && (g.External > 0 || !g.Replicas[at].Voter):
		return errors.New("the group has no place in the quorum for " + string(id))
	}
	if s.EtcdID != 0 {
		g.Replicas[at].EtcdID = s.EtcdID
	}
	if s.CameBack {
		g.AssignVotes()
	}
	if s.Phase != "" {
		g.RotationStep(id, s.Pin, s.Phase)
	}
	return nil
}
