package planguard

import (
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// Check returns an error if a plan would break a rule of safety; nil if it would not.
func Check(v ag.View, p ag.Plan) error {
	for _, broken := range []string{
		unfounded(&v, p), opened(&v, p), guarded(&v, p), raised(&v, p), promoted(&v, p), led(&v, p), recorded(&v, p), acted(&v, p),
	} {
		if broken != "" {
			return fmt.Errorf("rule %s in epoch %d, %s by %s: %s", p.Rule, v.Record.Epoch.Epoch, v.Record.Epoch.Phase, v.Record.Epoch.Leader, broken)
		}
	}
	return nil
}

func holds(v *ag.View, p ag.Phase) bool {
	return v.Record.Epoch.Leader == v.Self && v.Record.Epoch.Phase == p
}

// serves reports whether this node leads with a server that has the right to be writable.
func serves(v *ag.View) bool {
	e := v.Record.Epoch.Epoch
	return holds(v, ag.PhaseLead) && v.Local.Server == ag.ServerWritable && v.Local.Armed == e && v.Lease.Valid && v.Lease.Epoch == e
}

// unfounded: without a record of this turn nothing is written, and nothing is begun that needs one (S8).
func unfounded(v *ag.View, p ag.Plan) string {
	if v.Quorum {
		return ""
	}
	if p.Commit != nil {
		return "the record is written without having been read"
	}
	for _, a := range p.Actions {
		switch a.(type) {
		case ag.Fence, ag.EndStreams, ag.Start:
		default:
			return fmt.Sprintf("%T without a majority of the quorum", a)
		}
	}
	return ""
}

// opened: clients are let in only by a leader within its lease (S3, S6).
func opened(v *ag.View, p ag.Plan) string {
	if p.Open && !superseded(v) {
		return fmt.Sprintf("opens while %s may still answer", v.Record.Epoch.Outgoing.Leader)
	}
	if p.Open && !serves(v) {
		return fmt.Sprintf("opens with a server that is %s, armed for %d, under a lease of epoch %d (valid: %t)", v.Local.Server, v.Local.Armed, v.Lease.Epoch, v.Lease.Valid)
	}
	return ""
}

// superseded reports whether the leader that a forced failover deposed can answer nobody any more (S3), or an operator
// accepted that it does.
func superseded(v *ag.View) bool {
	o, l := v.Record.Epoch.Outgoing, v.Record.Lead
	if l.Epoch == v.Record.Epoch.Epoch && l.Holder == v.Self && l.Settled {
		return true
	}
	lease := float64(o.Answer.Lease) * (1 + ag.Rho) / (1 - ag.Rho)
	return o.Leader == "" || o.Now || v.Since >= o.Wait || len(o.Answer.Voters) > 0 && float64(v.Superseded) > lease
}

// guarded: a key of the record is written only if nobody has changed it since it was read (S2, S9).
func guarded(v *ag.View, p ag.Plan) string {
	c := p.Commit
	switch {
	case c == nil:
	case c.Guard.Epoch != v.Record.Revs.Epoch:
		return "the record is written without /epoch being compared"
	case c.State != nil && c.Guard.State != v.Record.Revs.State:
		return "/state is written without being compared"
	case c.Epoch != nil && c.Epoch.Epoch > v.Record.Epoch.Epoch && c.Epoch.Phase == ag.PhaseSeal && c.Guard != v.Record.Revs:
		return "the epoch is claimed without all three keys being compared"
	}
	return ""
}

// raised: an epoch grows by one, its phases follow each other, and no timeline id is used twice (S2).
func raised(v *ag.View, p ag.Plan) string {
	if p.Commit == nil || p.Commit.Epoch == nil {
		return ""
	}
	old, e := v.Record.Epoch, *p.Commit.Epoch
	again := holds(v, ag.PhasePromote) && e.Phase == ag.PhasePromote && e.Leader == v.Self
	switch {
	case e.MaxTLI < old.MaxTLI:
		return fmt.Sprintf("the highest timeline id goes from %d to %d", old.MaxTLI, e.MaxTLI)
	case e.Phase == ag.PhasePromote && (e.TLI <= old.MaxTLI || e.TLI != e.MaxTLI):
		return fmt.Sprintf("timeline id %d is given a second time: the highest was %d", e.TLI, old.MaxTLI)
	case e.Epoch == old.Epoch && old.Leader != v.Self:
		return fmt.Sprintf("the epoch of %s is continued", old.Leader)
	case e.Epoch == old.Epoch && (old.Phase == ag.PhaseSeal && e.Phase == ag.PhasePromote || old.Phase == ag.PhasePromote && e.Phase == ag.PhaseLead):
		return ""
	case e.Epoch == old.Epoch+1 && e.Leader == v.Self && (e.Phase == ag.PhaseSeal || again || e.Phase == ag.PhasePromote && e.Forced):
		return ""
	}
	return fmt.Sprintf("epoch %d, %s, follows epoch %d, %s", e.Epoch, e.Phase, old.Epoch, old.Phase)
}

// promoted: a copy is chosen with enough seals of this epoch, and its own among them (S1).
func promoted(v *ag.View, p ag.Plan) string {
	if p.Commit == nil || p.Commit.Epoch == nil || p.Commit.Epoch.Phase != ag.PhasePromote || p.Commit.Epoch.Epoch != v.Record.Epoch.Epoch {
		return ""
	}
	e, st := *p.Commit.Epoch, v.Record.State
	ofV, own, last := 0, false, false
	for _, s := range v.Seals {
		if s.Epoch != e.Epoch {
			continue
		}
		if m, in := st.InV(s.Member); in && m.Copy == s.Copy {
			ofV++
		}
		own = own || s.Member == e.Leader && s.Copy == e.Copy
		last = last || s.Member == st.Leader && s.Copy == st.Copy
	}
	switch {
	case !own:
		return fmt.Sprintf("%s is chosen without a seal of its copy", e.Leader)
	case !last && (st.K < 1 || ofV < len(st.V)-st.K+1):
		return fmt.Sprintf("%s is chosen with %d seals of V = %v, k = %d", e.Leader, ofV, st.V, st.K)
	}
	return ""
}

// led: the rights are taken by a server that is writable under the keeper's deadline for this epoch (S3).
func led(v *ag.View, p ag.Plan) string {
	if p.Commit == nil || p.Commit.Epoch == nil || p.Commit.Epoch.Phase != ag.PhaseLead {
		return ""
	}
	e, st := v.Record.Epoch.Epoch, p.Commit.State
	switch {
	case v.Local.Server != ag.ServerWritable || v.Local.Armed != e || !v.Lease.Valid || v.Lease.Epoch != e:
		return fmt.Sprintf("leads with a server that is %s, armed for %d", v.Local.Server, v.Local.Armed)
	case st == nil || st.Epoch != e || st.Leader != v.Self || st.Copy != v.Local.Copy:
		return "leads without saying in /state with what"
	case !st.Holds(v.Local.Sync):
		return fmt.Sprintf("leads with (V %v, k %d), and commits wait for %d of %v", st.V, st.K, v.Local.Sync.N, v.Local.Sync.P)
	}
	return wellFormed(v, *st)
}

// recorded: each /state that a leader writes is true of the commits acknowledged before, and of those that PostgreSQL
// acknowledges now (S9).
func recorded(v *ag.View, p ag.Plan) string {
	if p.Commit == nil || p.Commit.State == nil || p.Commit.Epoch != nil {
		return ""
	}
	old, st := v.Record.State, *p.Commit.State
	switch {
	case !serves(v):
		return "/state is written by a node that does not lead"
	case st.Epoch != old.Epoch || st.Leader != old.Leader || st.Copy != old.Copy || st.Basis != old.Basis || st.Seq != old.Seq+1:
		return "/state changes what only the beginning of an epoch says"
	case !st.Holds(v.Local.Sync):
		return fmt.Sprintf("(V %v, k %d) is recorded, and commits wait for %d of %v", st.V, st.K, v.Local.Sync.N, v.Local.Sync.P)
	case st.K > weakened(old, st) && !published(v, st):
		return fmt.Sprintf("(V %v, k %d) follows (V %v, k %d) without proof", st.V, st.K, old.V, old.K)
	}
	return wellFormed(v, st)
}

// weakened returns the largest k that is true with the new V of everything of which the old (V, k) is true.
func weakened(old, next ag.State) int {
	k := old.K
	for _, m := range old.V {
		if !slices.Contains(next.V, m) {
			k--
		}
	}
	return max(0, k)
}

// published reports whether the proven setting and what the members have flushed make a state true.
func published(v *ag.View, st ag.State) bool {
	have := 0
	for _, s := range v.Streams {
		if s.Open && s.Flush >= v.Local.Sync.Barrier && slices.Contains(st.V, ag.Member{ID: s.Member, Copy: s.Copy}) {
			have++
		}
	}
	return v.Local.Sync.Proven && have >= st.K
}

func wellFormed(v *ag.View, st ag.State) string {
	for i, m := range st.V {
		if m.ID == v.Self || slices.ContainsFunc(st.V[:i], func(x ag.Member) bool { return x.ID == m.ID }) {
			return fmt.Sprintf("V counts %s twice, or the leader itself: %v", m.ID, st.V)
		}
	}
	if st.K < 0 || st.K > len(st.V) {
		return fmt.Sprintf("k is %d with V = %v", st.K, st.V)
	}
	return ""
}

// acted: no action is begun without the right to it.
func acted(v *ag.View, p ag.Plan) string {
	for i, a := range p.Actions {
		if broken := action(v, a); broken != "" {
			return broken
		}
		if _, fences := a.(ag.Fence); fences && (i > 0 || p.Commit != nil || p.Open) {
			return "something comes before the fence"
		}
	}
	return ""
}

func action(v *ag.View, a ag.Action) string {
	e, st := v.Record.Epoch, v.Record.State
	switch a := a.(type) { //nolint:gochecksumtype // the others need no right
	case ag.Promote:
		if !holds(v, ag.PhasePromote) || a.Epoch != e.Epoch || a.TLI != e.TLI || e.Copy != "" && e.Copy != v.Local.Copy {
			return fmt.Sprintf("copy %s is promoted to timeline %d, and the record chose copy %s of %s for timeline %d", v.Local.Copy, a.TLI, e.Copy, e.Leader, e.TLI)
		}
	case ag.SetSync:
		if !holds(v, ag.PhaseLead) || !st.Holds(a.Sync) || !st.Setting.Same(a.Sync.Setting()) {
			return fmt.Sprintf("commits shall wait for %d of %v, and the record announces %d of %v with (V %v, k %d)", a.Sync.N, a.Sync.P, st.Setting.N, st.Setting.P, st.V, st.K)
		}
	case ag.ProveSync, ag.HandOver, ag.Prepare:
		if !serves(v) {
			return fmt.Sprintf("%T by a node that does not lead", a)
		}
	case ag.AskSeals:
		if !holds(v, ag.PhaseSeal) || a.Epoch != e.Epoch {
			return fmt.Sprintf("seals of epoch %d are asked for", a.Epoch)
		}
	case ag.Follow:
		if a.Epoch != e.Epoch || a.Leader == v.Self || a.Leader != e.Leader && !holds(v, ag.PhaseSeal) {
			return fmt.Sprintf("%s is followed in epoch %d", a.Leader, a.Epoch)
		}
	case ag.Rewind:
		return repaired(v, a.Source)
	case ag.Seed:
		return repaired(v, a.Source)
	case ag.Start, ag.Stop:
		if v.Local.Server == ag.ServerWritable {
			return fmt.Sprintf("%T of a server that is writable", a)
		}
	}
	return ""
}

// repaired: a copy that the record counts is not changed while it exists (S5).
func repaired(v *ag.View, source ag.ReplicaID) string {
	m, in := v.Record.State.InV(v.Self)
	switch {
	case source == v.Self || source != v.Record.Epoch.Leader || v.Record.Epoch.Phase != ag.PhaseLead:
		return fmt.Sprintf("the copy is repaired from %s, which does not lead", source)
	case v.Local.Server == ag.ServerWritable:
		return "a writable copy is repaired"
	case v.Local.Data == ag.DataPresent && in && (v.Local.Copy == "" || m.Copy == v.Local.Copy):
		return fmt.Sprintf("copy %s is repaired, and V counts it: %v", v.Local.Copy, v.Record.State.V)
	}
	return ""
}
