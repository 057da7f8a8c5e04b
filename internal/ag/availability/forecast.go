package availability

import (
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// long is longer than anything that a decision waits for.
const long = 24 * time.Hour

// maxSteps bounds the decisions of one forecast.
const maxSteps = 20

// forecast returns what the death of a member would lead to.
func (f Facts) forecast(dead ag.ReplicaID) Failure {
	v := f.View
	leader := v.Record.Epoch.Leader
	switch {
	case !f.answers(dead):
		return Failure{Member: dead, Outcome: Gone, Because: "it does not answer"}
	case v.Untrusted != "": // Quorum is false then
		return Failure{Member: dead, Outcome: Stops, Because: v.Untrusted + "; a person must decide who leads"}
	case !v.Quorum:
		return Failure{Member: dead, Outcome: Stops, Because: "no majority of the quorum answers"}
	case dead == leader || !f.answers(leader) || v.Record.Epoch.Phase != ag.PhaseLead:
		return f.forecastTakeover(dead)
	}
	if votes, of := f.votesLeft(leader, dead); !f.majority(votes, of) {
		return Failure{Member: dead, Outcome: Stops, Because: fmt.Sprintf("without %s %d of %d votes would be left, which is no majority", dead, votes, of)}
	}
	return f.judge(dead, f.settle(f.leading(leader, dead)))
}

// judge returns the outcome for a primary that has done all it can after the death of a member.
func (f Facts) judge(dead ag.ReplicaID, v ag.View) Failure {
	out := Failure{Member: dead, Outcome: Survived, Primary: v.Self}
	if _, why := v.CommitsWait(); why != "" {
		out.Outcome, out.Because = Blocked, fmt.Sprintf("%s would lead, and %s", v.Self, why)
	}
	if v.Role() != ag.RolePrimary || !ag.Decide(v).Open {
		out.Outcome, out.Primary, out.Because = Stops, "", fmt.Sprintf("%s would not take writes: %s", v.Self, ag.Decide(v).Because)
	}
	return out
}

// votesLeft returns how many votes the members that x reaches have without a dead member, its own included, and how
// many there are.
func (f Facts) votesLeft(x, dead ag.ReplicaID) (votes, of int) {
	g := f.View.Group
	of = g.Voting()
	if f.Voters != nil {
		of = len(f.Voters)
	}
	for _, r := range g.Replicas {
		counted := g.Votes(r) && (f.Voters == nil || slices.Contains(f.Voters, r.EtcdID))
		if counted && r.ID != dead && f.Members[r.ID].NoVote == "" && (r.ID == x || f.connected(x, r.ID, dead)) {
			votes++
		}
	}
	return votes, of
}

// majority reports whether the votes keep the quorum. An external quorum does not depend on members of the group.
func (f Facts) majority(votes, of int) bool { return f.View.Group.External > 0 || votes > of/2 }

// connected reports whether two members reach each other once a third is dead. Each must see the other, by its own
// report, and not only through the dead one.
func (f Facts) connected(x, y, dead ag.ReplicaID) bool {
	if x == dead || y == dead || !f.answers(x) || !f.answers(y) {
		return false
	}
	sees := func(a, b ag.ReplicaID) bool {
		if a == f.View.Self {
			return slices.Contains(f.View.Reach, b)
		}
		s := f.Members[a].Sees
		return s == nil || slices.Contains(s, b)
	}
	for _, p := range f.Members[dead].Relays {
		if p == [2]ag.ReplicaID{x, y} || p == [2]ag.ReplicaID{y, x} {
			return false
		}
	}
	return sees(x, y) && sees(y, x)
}

// reach returns the members that x reaches without a dead one.
func (f Facts) reach(x, dead ag.ReplicaID) (out []ag.ReplicaID) {
	for _, r := range f.View.Group.Replicas {
		if r.ID != x && f.connected(x, r.ID, dead) {
			out = append(out, r.ID)
		}
	}
	return out
}

// base returns the view of a member x after the death of another one, with what x has reported about itself.
func (f Facts) base(x, dead ag.ReplicaID) ag.View {
	m := f.Members[x]
	votes, of := f.votesLeft(x, dead)
	v := f.View
	return ag.View{
		Self: x, Group: v.Group, Profile: v.Profile, Quorum: f.majority(votes, of), Record: v.Record, Silence: long, Since: long, Superseded: long,
		Reach: f.reach(x, dead), Sealed: long, Lease: ag.Lease{Epoch: v.Record.Epoch.Epoch, Valid: true},
		Local: ag.Local{Data: m.Data, Server: m.Server, Copy: m.Copy, Position: m.Position, Quarantine: m.Quarantine},
	}
}

// leading returns the view of the present primary after the death of another member.
func (f Facts) leading(leader, dead ag.ReplicaID) ag.View {
	v := f.base(leader, dead)
	e := v.Record.Epoch.Epoch
	v.Local.Server, v.Local.Armed, v.Local.Opened, v.Local.Sync = ag.ServerWritable, e, e, f.Members[leader].Sync
	v.Local.Sync.Proven, v.Local.Sync.Barrier = true, 0
	for _, r := range v.Group.Replicas {
		if r.ID != leader && r.HasData() {
			open := r.ID != dead && slices.Contains(f.Members[leader].Streams, r.ID)
			v.Streams = append(v.Streams, f.stream(r.ID, open))
		}
	}
	return v
}

func (f Facts) stream(id ag.ReplicaID, open bool) ag.Stream {
	m := f.Members[id]
	if !open {
		return ag.Stream{Member: id, Copy: m.Copy, Silent: long}
	}
	copied := m.Copy
	if in, ok := f.View.Record.State.InV(id); ok {
		copied = in.Copy
	}
	return ag.Stream{Member: id, Copy: copied, Open: true, Close: true, Flush: ^ag.LSN(0)}
}

// settle lets a primary carry out its decisions until nothing is left to do.
func (f Facts) settle(v ag.View) ag.View {
	for range maxSteps {
		p := ag.Decide(v)
		changed := false
		if p.Commit != nil && p.Commit.State != nil {
			v.Record.State, changed = *p.Commit.State, true
		}
		for _, a := range p.Actions {
			if set, ok := a.(ag.SetSync); ok {
				v.Local.Sync, changed = ag.Sync{P: set.Sync.P, N: set.Sync.N}, true
			}
			if _, ok := a.(ag.ProveSync); ok {
				v.Local.Sync.Proven, changed = true, true
			}
			if _, ok := a.(ag.Fence); ok {
				v.Local.Server = ag.ServerDown
			}
		}
		if !changed {
			return v
		}
	}
	return v
}

// forecastTakeover returns what the members that are left would do without the primary, and without a dead member.
func (f Facts) forecastTakeover(dead ag.ReplicaID) Failure {
	var candidates []ag.ReplicaID
	for _, r := range f.View.Group.Replicas {
		if r.ID != dead && r.HasData() && f.answers(r.ID) {
			candidates = append(candidates, r.ID)
		}
	}
	slices.SortStableFunc(candidates, func(x, y ag.ReplicaID) int { // an ill one leaves the leadership to others
		return len(f.Members[x].Ill) - len(f.Members[y].Ill)
	})
	for _, x := range candidates {
		if y, ok := f.takesOver(x, dead); ok {
			return f.judge(dead, f.settle(y))
		}
	}
	return Failure{Member: dead, Outcome: Stops, Because: f.hinders(dead)}
}

// takesOver returns the view of the new primary after x has claimed the leadership; ok is false if x does not.
func (f Facts) takesOver(x, dead ag.ReplicaID) (lead ag.View, ok bool) {
	v := f.base(x, dead)
	if v.Record.Epoch.Phase == ag.PhaseLead {
		p := ag.Decide(v)
		if p.Commit == nil || p.Commit.Epoch == nil {
			return v, false
		}
		v.Record.Epoch = *p.Commit.Epoch
	}
	v.Record.Epoch.Leader, v.Lease.Epoch = x, v.Record.Epoch.Epoch
	if v.Record.Epoch.Phase == ag.PhaseSeal {
		if v, ok = f.choose(v); !ok {
			return v, false
		}
	}
	chosen := f.base(v.Record.Epoch.Leader, dead)
	chosen.Record, chosen.Seals, chosen.Lease.Epoch = v.Record, v.Seals, v.Record.Epoch.Epoch
	sync := chosen.FirstSync()
	l := &chosen.Local
	l.Server, l.Armed, l.EndOfRec, l.Sync = ag.ServerWritable, v.Record.Epoch.Epoch, v.Record.Epoch.From.LSN+1, ag.Sync{P: sync.P, N: sync.N}
	l.Position = ag.Position{Timeline: v.Record.Epoch.TLI, LSN: l.EndOfRec}
	p := ag.Decide(chosen)
	if p.Commit == nil || p.Commit.State == nil || p.Commit.Epoch == nil {
		return chosen, false
	}
	chosen.Record.Epoch, chosen.Record.State = *p.Commit.Epoch, *p.Commit.State
	for _, r := range chosen.Group.Replicas {
		if r.ID != chosen.Self && r.HasData() {
			chosen.Streams = append(chosen.Streams, f.stream(r.ID, slices.Contains(chosen.Reach, r.ID) && f.follows(r)))
		}
	}
	return chosen, true
}

// follows reports whether a member would stream from a new primary and acknowledge. One that reaches the present
// primary and does not acknowledge to it, because its walreceiver hangs, would not.
func (f Facts) follows(r ag.Replica) bool {
	m, leader := f.Members[r.ID], f.View.Record.Epoch.Leader
	if f.connected(leader, r.ID, "") && !slices.Contains(f.Members[leader].Streams, r.ID) {
		return false
	}
	return !r.Suspended && m.Data == ag.DataPresent && m.Server == ag.ServerRecovery && m.Quarantine == ""
}

// choose gathers the seals of the members that a candidate reaches, and returns its view after it has chosen a copy.
func (f Facts) choose(v ag.View) (ag.View, bool) {
	for _, id := range append([]ag.ReplicaID{v.Self}, v.Reach...) {
		r, _ := v.Group.Replica(id)
		if m := f.Members[id]; r.HasData() && m.Data == ag.DataPresent && m.Quarantine == "" {
			v.Seals = append(v.Seals, ag.SealReport{
				Member: id, Copy: m.Copy, Epoch: v.Record.Epoch.Epoch, Position: m.Position, Promotable: m.Server == ag.ServerRecovery,
			})
		}
	}
	for range maxSteps {
		p := ag.Decide(v)
		if p.Commit != nil && p.Commit.Epoch != nil && p.Commit.Epoch.Phase == ag.PhasePromote {
			v.Record.Epoch = *p.Commit.Epoch
			return v, true
		}
		if p.Rule != ag.RuleFetch {
			return v, false
		}
		v.Local.SourceEp = v.Record.Epoch.Epoch // it receives the end of the longest log
		for _, s := range v.Seals {
			if s.Position.Compare(v.Local.Position) > 0 {
				v.Local.Position = s.Position
			}
		}
	}
	return v, false
}

// hinders returns what keeps the members that are left from taking over, in the order in which it can be mended.
func (f Facts) hinders(dead ag.ReplicaID) string {
	v := f.View
	st := v.Record.State
	var there, able []ag.ReplicaID
	for _, m := range st.V {
		if f.answers(m.ID) && m.ID != dead {
			there = append(there, m.ID)
		}
		if mayLead(v.Group, m.ID) {
			able = append(able, m.ID)
		}
	}
	votes, of := f.mostVotes(dead)
	switch {
	case v.Group.Maintenance != nil:
		return "it is switched off for maintenance " + v.Group.Maintenance.String()
	case st.K == 0:
		return "no secondary is synchronized"
	case !v.Group.Survives(dead):
		return "the primary has the vote that decides, and two nodes cannot tell a dead primary from a cut link; add a witness or a third replica"
	case len(able) == 0:
		return "no synchronized secondary may take over by itself (FAILOVER_MODE = MANUAL, suspended, or under maintenance)"
	case !f.majority(votes, of) && len(f.mute()) > 0:
		return fmt.Sprintf("without the primary %d of %d votes would be left, which is no majority; mend what keeps %s from voting", votes, of, oneOf(f.mute()))
	case !f.majority(votes, of):
		return fmt.Sprintf("without the primary %d of %d votes would be left, which is no majority; start the members that do not answer", votes, of)
	case len(there) < st.SealsNeeded():
		return fmt.Sprintf("%d of the synchronized secondaries would have to answer, and %d do; start those that do not", st.SealsNeeded(), len(there))
	case !slices.ContainsFunc(there, func(id ag.ReplicaID) bool { return mayLead(v.Group, id) }):
		return "no synchronized secondary that answers may take over by itself (FAILOVER_MODE = MANUAL, suspended, or under maintenance)"
	}
	why := ""
	for _, m := range there {
		sees := f.base(m, dead)
		checks := sees.WhyClaim()
		i := slices.IndexFunc(checks, func(c ag.Check) bool { return !c.Holds })
		if i < 0 {
			return fmt.Sprintf("%s would claim the leadership, and too few sound copies are left to choose from", m)
		}
		c := checks[i]
		why = fmt.Sprintf("%s would not take over: of \"%s\" it sees: %s", m, c.Condition, c.Seen)
	}
	if why != "" {
		return why
	}
	return "no copy could be chosen among the synchronized secondaries that answer"
}

// mostVotes returns the most votes that members which reach each other have without a dead one.
func (f Facts) mostVotes(dead ag.ReplicaID) (votes, of int) {
	_, of = f.votesLeft(dead, dead)
	for _, r := range f.View.Group.Replicas {
		if n, _ := f.votesLeft(r.ID, dead); r.ID != dead && f.answers(r.ID) {
			votes = max(votes, n)
		}
	}
	return votes, of
}

// mayLead reports whether a member's agent may claim the leadership of its own accord.
func mayLead(g ag.Group, id ag.ReplicaID) bool {
	r, ok := g.Replica(id)
	return ok && r.MayTakeOver()
}
