package ag

import "slices"

// Intent is the access that a client requests when it connects.
type Intent string

// The two intents.
const (
	ReadWrite Intent = "READ_WRITE"
	ReadOnly  Intent = "READ_ONLY"
)

// Target is a replica as the listener sees it.
type Target struct {
	ID       ReplicaID `json:"id"`
	Local    bool      `json:"local"`    // its PostgreSQL is on this node: reached by the private socket, else through the endpoint
	Healthy  bool      `json:"healthy"`  // known to accept sessions of its role
	Readable bool      `json:"readable"` // a secondary that takes read-only sessions
}

// Routes is an immutable snapshot of where sessions may go. The agent publishes a new one with each change. The data
// plane reads it from an atomic pointer and never waits for the control plane.
type Routes struct {
	Epoch     Epoch         `json:"epoch"`
	Self      ReplicaID     `json:"self"`
	Primary   ReplicaID     `json:"primary"`             // empty while no primary accepts sessions
	WriteOpen bool          `json:"write_open"`          // the primary's gate is open (S6)
	Promoting bool          `json:"promoting,omitempty"` // this node was chosen to lead and has not opened yet: its server takes no session
	Targets   []Target      `json:"targets"`
	ReadList  [][]ReplicaID `json:"read_list"` // ordered sets; round robin within a set; the primary only where it is listed
	// Lossless is the epoch since which nothing that was acknowledged was lost: no later one was forced. A node knows
	// it of the epochs that it has seen one by one.
	Lossless Epoch `json:"lossless,omitempty"`
	// Timelines are those of the primary of this epoch, oldest first, its own last; nil: they are not known. The last
	// maxRouteTimelines are enough.
	Timelines []TimelineEntry `json:"timelines,omitempty"`
}

// maxRouteTimelines bounds the timelines of routes: as many failovers may lie between a question and its answer.
const maxRouteTimelines = 16

// LeadTimelines returns the timelines of the primary that leads by the record; nil if none does.
func (r Record) LeadTimelines() []TimelineEntry {
	t := r.State.Timelines
	if r.Epoch.Phase != PhaseLead || r.State.Epoch != r.Epoch.Epoch || len(t) == 0 || t[len(t)-1].TLI != r.Epoch.TLI {
		return nil
	}
	return slices.Clone(t[max(0, len(t)-maxRouteTimelines):])
}

// LosslessSince returns the Lossless of routes of that epoch, which follow others; nil: they are the first.
func LosslessSince(before *Routes, e EpochRecord) Epoch {
	if before == nil || e.Forced || e.Epoch != before.Epoch && e.Epoch != before.Epoch+1 {
		return e.Epoch
	}
	return before.Lossless
}

// Target returns the target with that id.
func (r *Routes) Target(id ReplicaID) (Target, bool) {
	for _, t := range r.Targets {
		if t.ID == id {
			return t, true
		}
	}
	return Target{}, false
}

// ReadList returns where read-only sessions go while that replica is the primary: its READ_ONLY_ROUTING_LIST, or by
// default all other replicas in turn and then the primary. The list NONE switches routing off: readers go to the
// primary. A primary with ALLOW_CONNECTIONS = READ_WRITE takes none.
func (g Group) ReadList(primary ReplicaID) [][]ReplicaID {
	p, _ := g.Replica(primary)
	var others []ReplicaID
	for _, r := range g.Replicas {
		if r.ID != primary && r.HasData() && r.Part() {
			others = append(others, r.ID)
		}
	}
	list := [][]ReplicaID{others, {primary}}
	switch {
	case p.Options.RoutingNone:
		list = [][]ReplicaID{{primary}}
	case len(p.Options.RoutingList) > 0:
		list = p.Options.RoutingList
	}
	if p.Options.PrimaryAllow != PrimaryAllowReadWrite {
		return list
	}
	var without [][]ReplicaID
	for _, set := range list {
		var kept []ReplicaID
		for _, id := range set {
			if id != primary {
				kept = append(kept, id)
			}
		}
		without = append(without, kept)
	}
	return without
}

// Pick chooses the target for a session of that intent. n is a counter the caller advances per session, for round
// robin. fellBack reports that a read-only session was sent to the primary, which only the list can ask for. ok is
// false while nothing can serve the intent: the caller waits, bounded. Replicas that were passed over are not chosen
// for a reader.
func (r *Routes) Pick(intent Intent, n uint64, passed ...ReplicaID) (t Target, fellBack, ok bool) {
	if r == nil {
		return Target{}, false, false
	}
	if intent == ReadWrite {
		return r.primary()
	}
	for _, set := range r.ReadList {
		var usable []Target
		for _, id := range set {
			t, found := r.Target(id)
			switch {
			case slices.Contains(passed, id):
			case id == r.Primary && found:
				if _, _, open := r.primary(); open {
					usable = append(usable, t)
				}
			case found && t.Healthy && t.Readable:
				usable = append(usable, t)
			}
		}
		if len(usable) > 0 {
			t := usable[n%uint64(len(usable))]
			return t, t.ID == r.Primary, true
		}
	}
	return Target{}, false, false
}

// TakesReaders reports whether the list in force names a replica at all, so that readers may wait for one.
func (r *Routes) TakesReaders() bool {
	if r == nil {
		return true
	}
	for _, set := range r.ReadList {
		if len(set) > 0 {
			return true
		}
	}
	return false
}

// Entry returns the first entry of the list in force that names the replica, counted from 1; 0 if none does.
func (r *Routes) Entry(id ReplicaID) int {
	return 1 + slices.IndexFunc(r.ReadList, func(set []ReplicaID) bool { return slices.Contains(set, id) })
}

// Listed reports whether the replica is in the list in force.
func (r *Routes) Listed(id ReplicaID) bool { return r.Entry(id) > 0 }

func (r *Routes) primary() (Target, bool, bool) {
	t, found := r.Target(r.Primary)
	return t, false, found && t.Healthy && r.WriteOpen
}
