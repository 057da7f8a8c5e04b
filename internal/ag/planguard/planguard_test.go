package planguard

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// leader returns the view of a, which leads epoch 5 of three replicas.
func leader() ag.View {
	v := ag.View{Self: "a", Quorum: true, Reach: []ag.ReplicaID{"a", "b", "c"}}
	v.Record.Epoch = ag.EpochRecord{Epoch: 5, Phase: ag.PhaseLead, Leader: "a", TLI: 3, MaxTLI: 3}
	v.Record.State = ag.State{
		Epoch: 5, Leader: "a", Copy: "ca", V: []ag.Member{{ID: "b", Copy: "cb"}, {ID: "c", Copy: "cc"}}, K: 1, Seq: 7,
		Setting: ag.Setting{P: []ag.ReplicaID{"b", "c"}, N: 1},
	}
	v.Record.Revs = ag.Revisions{Epoch: 11, State: 12, Lead: 13}
	v.Lease = ag.Lease{Epoch: 5, Valid: true}
	v.Local = ag.Local{
		Data: ag.DataPresent, Server: ag.ServerWritable, Copy: "ca", Armed: 5,
		Sync: ag.Sync{P: []ag.ReplicaID{"b", "c"}, N: 1, Proven: true, Barrier: 100},
	}
	v.Streams = []ag.Stream{{Member: "b", Copy: "cb", Open: true, Flush: 200}, {Member: "c", Copy: "cc", Open: true, Flush: 50}}
	return v
}

// in returns the view of a while its epoch is in another phase.
func in(p ag.Phase) ag.View {
	v := leader()
	v.Record.Epoch.Phase, v.Record.State.Epoch, v.Record.State.Leader = p, 4, "b"
	v.Local.Server, v.Local.Armed = ag.ServerRecovery, 0
	v.Record.State.V, v.Record.State.Copy = []ag.Member{{ID: "a", Copy: "ca"}, {ID: "c", Copy: "cc"}}, "cb"
	if p == ag.PhaseSeal {
		v.Record.Epoch.TLI = 0
	}
	v.Seals = []ag.SealReport{{Member: "a", Copy: "ca", Epoch: 5}, {Member: "c", Copy: "cc", Epoch: 5}}
	return v
}

// secondary returns the view of b, which follows a.
func secondary() ag.View {
	v := leader()
	v.Self, v.Streams, v.Lease = "b", nil, ag.Lease{}
	v.Local = ag.Local{Data: ag.DataPresent, Server: ag.ServerRecovery, Copy: "cb"}
	return v
}

func commit(v ag.View, edit func(c *ag.Commit, e *ag.EpochRecord, st *ag.State)) ag.Plan {
	e, st := v.Record.Epoch, v.Record.State.Clone()
	c := &ag.Commit{Guard: v.Record.Revs, Epoch: &e, State: &st}
	edit(c, &e, &st)
	return ag.Plan{Commit: c}
}

// state is a plan that only writes /state.
func state(v ag.View, edit func(st *ag.State)) ag.Plan {
	return commit(v, func(c *ag.Commit, _ *ag.EpochRecord, st *ag.State) {
		c.Epoch = nil
		st.Seq++
		edit(st)
	})
}

// epoch is a plan that only writes /epoch.
func epoch(v ag.View, edit func(c *ag.Commit, e *ag.EpochRecord)) ag.Plan {
	return commit(v, func(c *ag.Commit, e *ag.EpochRecord, _ *ag.State) {
		c.State = nil
		edit(c, e)
	})
}

func do(a ...ag.Action) ag.Plan { return ag.Plan{Actions: a} }

func but(v ag.View, edit func(v *ag.View)) ag.View {
	edit(&v)
	return v
}

func claimed(c *ag.Commit, e *ag.EpochRecord) {
	*e = ag.EpochRecord{Epoch: e.Epoch + 1, Phase: ag.PhaseSeal, Leader: "b", MaxTLI: e.MaxTLI}
}

func chosen(_ *ag.Commit, e *ag.EpochRecord) {
	e.Phase, e.Leader, e.Copy, e.TLI, e.MaxTLI = ag.PhasePromote, "c", "cc", 4, 4
}

var writable = but(in(ag.PhasePromote), func(v *ag.View) { v.Local.Server, v.Local.Armed = ag.ServerWritable, 5 })

// forced is the view of a leader that deposed c by a forced failover.
var forced = but(leader(), func(v *ag.View) {
	v.Record.Epoch.Outgoing = ag.Outgoing{Leader: "c", Epoch: 4, Wait: 6 * time.Second}
})

// fresh is the view of a leader that has recorded nothing of what its members hold.
var fresh = but(leader(), func(v *ag.View) { v.Record.State.K = 0 })

func leads(_ *ag.Commit, e *ag.EpochRecord, st *ag.State) {
	e.Phase = ag.PhaseLead
	*st = ag.State{Epoch: 5, Leader: "a", Copy: "ca", V: []ag.Member{{ID: "b", Copy: "cb"}, {ID: "c", Copy: "cc"}}, K: 1, Seq: st.Seq + 1}
}

// Plans that are in order, and each of them with one thing wrong.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		v      ag.View
		p      ag.Plan
		broken string // part of the error; "": the plan is in order
	}{
		"serve":                          {leader(), ag.Plan{Open: true}, ""},
		"open without a lease":           {but(leader(), func(v *ag.View) { v.Lease.Valid = false }), ag.Plan{Open: true}, "opens with"},
		"open unarmed":                   {but(leader(), func(v *ag.View) { v.Local.Armed = 4 }), ag.Plan{Open: true}, "opens with"},
		"open as a secondary":            {secondary(), ag.Plan{Open: true}, "opens with"},
		"open beside another":            {but(forced, func(v *ag.View) { v.Since = time.Second }), ag.Plan{Open: true}, "may still answer"},
		"open after another's silence":   {but(forced, func(v *ag.View) { v.Since = 6 * time.Second }), ag.Plan{Open: true}, ""},
		"open where it was settled":      {but(forced, func(v *ag.View) { v.Record.Lead = ag.Lead{Epoch: 5, Holder: "a", Settled: true} }), ag.Plan{Open: true}, ""},
		"open as settled by another":     {but(forced, func(v *ag.View) { v.Record.Lead = ag.Lead{Epoch: 4, Holder: "b", Settled: true} }), ag.Plan{Open: true}, "may still answer"},
		"start without quorum":           {but(secondary(), func(v *ag.View) { v.Quorum, v.Local.Server = false, ag.ServerDown }), do(ag.Start{}), ""},
		"commit without quorum":          {but(secondary(), func(v *ag.View) { v.Quorum = false }), epoch(secondary(), claimed), "without having been read"},
		"rewind without quorum":          {but(secondary(), func(v *ag.View) { v.Quorum = false }), do(ag.Rewind{Source: "a"}), "without a majority"},
		"claim":                          {secondary(), epoch(secondary(), claimed), ""},
		"claim without /state":           {secondary(), epoch(secondary(), func(c *ag.Commit, e *ag.EpochRecord) { claimed(c, e); c.Guard.State = -1 }), "all three keys"},
		"claim of an older epoch":        {secondary(), epoch(secondary(), func(c *ag.Commit, e *ag.EpochRecord) { claimed(c, e); c.Guard.Epoch-- }), "/epoch being compared"},
		"claim that skips an epoch":      {secondary(), epoch(secondary(), func(c *ag.Commit, e *ag.EpochRecord) { claimed(c, e); e.Epoch++ }), "follows epoch 5"},
		"claim that forgets timelines":   {secondary(), epoch(secondary(), func(c *ag.Commit, e *ag.EpochRecord) { claimed(c, e); e.MaxTLI-- }), "timeline id goes"},
		"claim that leads at once":       {secondary(), epoch(secondary(), func(c *ag.Commit, e *ag.EpochRecord) { claimed(c, e); e.Phase = ag.PhaseLead }), "follows epoch 5"},
		"another leader's epoch":         {secondary(), epoch(secondary(), func(_ *ag.Commit, e *ag.EpochRecord) { e.Phase = ag.PhaseSeal }), "the epoch of a is continued"},
		"choose":                         {in(ag.PhaseSeal), epoch(in(ag.PhaseSeal), chosen), ""},
		"choose with a seal too few":     {but(in(ag.PhaseSeal), func(v *ag.View) { v.Seals = v.Seals[1:] }), epoch(in(ag.PhaseSeal), chosen), "with 1 seals"},
		"choose with an old seal":        {but(in(ag.PhaseSeal), func(v *ag.View) { v.Seals[0].Epoch = 4 }), epoch(in(ag.PhaseSeal), chosen), "with 1 seals"},
		"choose with another copy":       {but(in(ag.PhaseSeal), func(v *ag.View) { v.Seals[0].Copy = "x" }), epoch(in(ag.PhaseSeal), chosen), "with 1 seals"},
		"choose a copy that is unsealed": {in(ag.PhaseSeal), epoch(in(ag.PhaseSeal), func(c *ag.Commit, e *ag.EpochRecord) { chosen(c, e); e.Copy = "x" }), "without a seal"},
		"choose an old timeline id":      {in(ag.PhaseSeal), epoch(in(ag.PhaseSeal), func(c *ag.Commit, e *ag.EpochRecord) { chosen(c, e); e.TLI, e.MaxTLI = 3, 3 }), "a second time"},
		"promote":                        {in(ag.PhasePromote), do(ag.Promote{Epoch: 5, TLI: 3}), ""},
		"promote before it was chosen":   {in(ag.PhaseSeal), do(ag.Promote{Epoch: 5, TLI: 3}), "is promoted"},
		"promote another copy":           {but(in(ag.PhasePromote), func(v *ag.View) { v.Record.Epoch.Copy = "x" }), do(ag.Promote{Epoch: 5, TLI: 3}), "is promoted"},
		"promote to another timeline":    {in(ag.PhasePromote), do(ag.Promote{Epoch: 5, TLI: 4}), "is promoted"},
		"lead":                           {writable, commit(writable, leads), ""},
		"lead in recovery":               {in(ag.PhasePromote), commit(in(ag.PhasePromote), leads), "leads with a server"},
		"lead with a weaker setting": {
			but(writable, func(v *ag.View) { v.Local.Sync.N = 0 }), commit(writable, leads), "commits wait for 0",
		},
		"lead and count itself": {
			writable, commit(writable, func(c *ag.Commit, e *ag.EpochRecord, st *ag.State) {
				leads(c, e, st)
				st.V = append(st.V, ag.Member{ID: "a", Copy: "ca"})
			}), "or the leader itself",
		},
		"shed":                        {leader(), state(leader(), func(st *ag.State) { st.V, st.K = st.V[:1], 0 }), ""},
		"publish":                     {fresh, state(fresh, func(st *ag.State) { st.K = 1 }), ""},
		"publish unflushed":           {but(fresh, func(v *ag.View) { v.Local.Sync.Barrier = 300 }), state(fresh, func(st *ag.State) { st.K = 1 }), "without proof"},
		"publish unproven":            {but(fresh, func(v *ag.View) { v.Local.Sync.Proven = false }), state(fresh, func(st *ag.State) { st.K = 1 }), "without proof"},
		"publish another copy":        {fresh, state(fresh, func(st *ag.State) { st.V[0].Copy, st.K = "x", 1 }), "without proof"},
		"record more than is kept":    {leader(), state(leader(), func(st *ag.State) { st.K = 2 }), "is recorded, and commits wait"},
		"record by a secondary":       {secondary(), state(leader(), func(*ag.State) {}), "does not lead"},
		"record without comparing it": {leader(), commit(leader(), func(c *ag.Commit, _ *ag.EpochRecord, st *ag.State) { c.Epoch = nil; st.Seq++; c.Guard.State = -1 }), "/state is written without"},
		"record with another basis":   {leader(), state(leader(), func(st *ag.State) { st.Basis.LSN++ }), "only the beginning"},
		"set what is announced":       {leader(), do(ag.SetSync{Sync: ag.Sync{P: []ag.ReplicaID{"c", "b"}, N: 1}}), ""},
		"set what is not announced":   {leader(), do(ag.SetSync{Sync: ag.Sync{P: []ag.ReplicaID{"b"}, N: 1}}), "the record announces"},
		"rewind what is not counted":  {but(secondary(), func(v *ag.View) { v.Local.Copy = "x" }), do(ag.Rewind{Source: "a"}), ""},
		"rewind what is counted":      {secondary(), do(ag.Rewind{Source: "a"}), "V counts it"},
		"seed what is counted":        {secondary(), do(ag.Seed{Source: "a"}), "V counts it"},
		"seed what is lost":           {but(secondary(), func(v *ag.View) { v.Local.Data = ag.DataEmpty }), do(ag.Seed{Source: "a"}), ""},
		"seed from a follower":        {but(secondary(), func(v *ag.View) { v.Local.Data = ag.DataEmpty }), do(ag.Seed{Source: "c"}), "does not lead"},
		"stop a primary":              {leader(), do(ag.Stop{}), "that is writable"},
		"follow":                      {secondary(), do(ag.Follow{Leader: "a", Epoch: 5}), ""},
		"follow an older epoch":       {secondary(), do(ag.Follow{Leader: "a", Epoch: 4}), "is followed"},
		"follow another member":       {secondary(), do(ag.Follow{Leader: "c", Epoch: 5}), "is followed"},
		"fence":                       {leader(), do(ag.Fence{}), ""},
		"fence last":                  {leader(), do(ag.Hold{}, ag.Fence{}), "before the fence"},
		"hand over without the lease": {but(leader(), func(v *ag.View) { v.Lease.Valid = false }), do(ag.HandOver{}), "does not lead"},
		"ask for another's seals":     {secondary(), do(ag.AskSeals{Epoch: 5}), "are asked for"},
	} {
		err := Check(c.v, c.p)
		if (err == nil) != (c.broken == "") || err != nil && !strings.Contains(err.Error(), c.broken) {
			t.Errorf("%s: %v, want %q", name, err, c.broken)
		}
	}
}

// A decision passes its own check.
func TestDecisionIsInOrder(t *testing.T) {
	v := leader()
	v.Profile, v.Silence = ag.Profiles["default"], time.Second
	if p := ag.Decide(v); Check(v, p) != nil {
		t.Errorf("%+v: %v", p, Check(v, p))
	}
}
