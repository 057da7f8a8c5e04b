package status

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/listener"
)

// TestStatus holds what the primary says of the group and of each member.
func TestStatus(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listener.sessions = make([]listener.SessionInfo, 3)
	b.noVote = "its disk is full"
	s := b.Status()
	if s.Group != "DemoAG" || s.Node != "a" || s.Epoch != 7 || s.Phase != ag.PhaseLead || !s.Quorum || s.Primary != "a" || !s.WriteOpen || s.SyncCount != 1 ||
		s.Rule != ag.RuleLead || s.Because != "all is well" || s.WaitsFor != "1 of b" || s.Authority != "pin" || s.Rotation != nil || !strings.HasSuffix(s.AnswersUntil, " left") {
		t.Errorf("the group: %+v", s)
	}
	if len(s.Links) != 1 || len(s.Relays) != 1 || s.Relays[0] != (api.Relay{From: "c", To: "b", Since: time.Unix(9, 0)}) {
		t.Errorf("links %+v, relays %+v", s.Links, s.Relays)
	}
	r := map[ag.ReplicaID]api.Replica{}
	for _, x := range s.Replicas {
		r[x.Name] = x
	}
	if p := r["a"].Local; r["a"].Role != ag.RolePrimary || r["a"].Sync != ag.Synchronized || r["a"].NoVote != b.noVote || p == nil || p.Keeper != 11 || p.Postgres != 12 || p.Sessions != 3 {
		t.Errorf("a: %+v, %+v", r["a"], p)
	}
	b.agent.snap.Statuses["b"] = agent.Status{Data: ag.DataPartial, Server: ag.ServerRecovery, Position: ag.Position{Timeline: 1, LSN: 1}}
	for _, x := range b.Status().Replicas {
		if x.Name == "b" && x.LagBytes != nil {
			t.Errorf("a partial copy is %d bytes behind", *x.LagBytes)
		}
	}
	if x := r["b"]; x.Role != ag.RoleSecondary || x.Sync != ag.Synchronized || x.Connected != "CONNECTED" || x.LagBytes == nil || *x.LagBytes != 100 || x.Local != nil {
		t.Errorf("b: %+v", x)
	}
	if x := r["c"]; x.Role != ag.RoleResolving || x.Connected != "DISCONNECTED" || x.Because != "does not answer" || x.Sync != ag.NotSynchronizing {
		t.Errorf("c: %+v", x)
	}
	if s.PrimarySince != nil {
		t.Errorf("the primary does not say since when it leads, and does since %v", s.PrimarySince)
	}
	led := time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	b.status("a", func(s *agent.Status) { s.Leads = led })
	if s := b.Status(); s.PrimarySince == nil || !s.PrimarySince.Equal(led) {
		t.Errorf("it leads since %v", s.PrimarySince)
	}
	b.status("a", func(s *agent.Status) { s.Epoch = 6 })
	if s := b.Status(); s.PrimarySince != nil {
		t.Errorf("in an earlier epoch it led since %v", s.PrimarySince)
	}
	if x := r["w"]; x.Sync != "" || x.LagBytes != nil {
		t.Errorf("w: %+v", x)
	}
}

// TestLagByTheStream holds that the primary tells by its streams what a member lacks: the member's own report may be
// some seconds old. Another node has that report only.
func TestLagByTheStream(t *testing.T) {
	lag := func(b *bed) int64 {
		for _, x := range b.Status().Replicas {
			if x.Name == "b" && x.LagBytes != nil {
				return *x.LagBytes
			}
		}
		return -1
	}
	b := newBed(t)
	head := b.agent.view.Local.Position.LSN
	for _, tt := range []struct {
		stream ag.Stream
		want   int64
	}{
		{ag.Stream{Member: "b", Open: true, Flush: head - 7}, 7},
		{ag.Stream{Member: "b", Open: true, Flush: head}, 0},
		{ag.Stream{Member: "b", Flush: head}, 100},
		{ag.Stream{Member: "c", Open: true, Flush: head}, 100},
	} {
		b.agent.view.Streams = []ag.Stream{tt.stream}
		if got := lag(b); got != tt.want {
			t.Errorf("%+v: %d bytes behind, want %d", tt.stream, got, tt.want)
		}
	}
}

// TestExplainWithoutAQuorum holds that the forecast is of a group without a primary where no majority answers: the
// record may still name this node as the leader.
func TestExplainWithoutAQuorum(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if e, ok := b.Explain().(decisions.Explanation); !ok || e.NoPrimary != "" {
		t.Errorf("with a quorum: %q", e.NoPrimary)
	}
	b.agent.view.Quorum, b.agent.shut = false, true // its lease has ended
	if e, ok := b.Explain().(decisions.Explanation); !ok || !strings.Contains(e.NoPrimary, "no majority") {
		t.Errorf("without: %q", e.NoPrimary)
	}
}

// TestOwnWordsWithoutAQuorum holds that a node which cannot reach the store shows itself as it is, not as it last wrote
// there.
func TestOwnWordsWithoutAQuorum(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.status("a", func(s *agent.Status) {
		s.Space, s.Because = []agent.Space{{Place: "data", Free: 900, Total: 1000}}, "all is well"
	})
	b.agent.view.Quorum = false
	b.agent.own = &agent.Status{Role: ag.RolePrimary, Epoch: 7, Because: "no quorum", Wellness: agent.Wellness{
		Ill: "the data directory is full", Quarantine: "a write was lost", Space: []agent.Space{{Place: "data", Free: 1, Total: 1000}},
	}}
	if r := b.Status().Replicas[0]; r.Ill != b.agent.own.Ill || r.Quarantine != b.agent.own.Quarantine || r.Because != "no quorum" {
		t.Errorf("it shows itself as %+v", r)
	}
	if f := b.Measured(); len(f.Space) != 1 || f.Space[0].Free != 1 {
		t.Errorf("the room is %+v", f.Space)
	}
}

// TestStatusBeforeTheFirstTurn: a node that has just begun tells the group as it last saw it, and takes nothing for
// well.
func TestStatusBeforeTheFirstTurn(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.agent.view, b.agent.snap, b.agent.plan, b.clients.routes, b.listener = nil, nil, nil, nil, nil
	b.keeper.err = errTest
	b.Config.Node.Quorum = &config.Quorum{Endpoints: []string{"q:2379"}}
	s := b.Status()
	if s.Group != "DemoAG" || len(s.Replicas) != 4 || s.Quorum || s.Primary != "" || s.WriteOpen || s.FailoverReady == "ready" || s.AnswersUntil != "" || len(s.QuorumEndpoints) != 1 {
		t.Errorf("%+v", s)
	}
	if p := s.Replicas[0].Local; s.Replicas[0].Role != ag.RoleResolving || p == nil || p.Keeper != 0 || p.Sessions != 0 {
		t.Errorf("%+v, %+v", s.Replicas[0], p)
	}
}

// TestListenerProblems holds that files of the listener that cannot be used, and addresses that cannot be served, are
// among the problems.
func TestListenerProblems(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.clients.refused, b.clients.down = []string{"nobody is admitted: rules cannot be read"}, []string{"no address of the listener is up: no device is in its subnet"}
	found := 0
	for _, p := range b.Availability().Problems {
		if (p.Finding == b.clients.refused[0] || p.Finding == b.clients.down[0]) && p.Target == "a" && p.Run != "" {
			found++
		}
	}
	if found != 2 {
		t.Errorf("the problems are %+v", b.Availability().Problems)
	}
}

// TestStatusOfAWitness: a witness has no links, server or keeper to tell of.
func TestStatusOfAWitness(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.witness()
	s := b.Status()
	if s.Links != nil || s.Primary != "a" || !s.WriteOpen || s.Replicas[3].Local == nil || s.Replicas[3].Local.Keeper != 0 || s.Replicas[3].LagBytes != nil {
		t.Errorf("%+v", s)
	}
}

// TestStaleWords holds that what a primary said before it died, hung or was deposed is not repeated as present.
func TestStaleWords(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b *bed){
		"it does not answer":         func(b *bed) { b.agent.view.Reach = []ag.ReplicaID{"w"} },
		"it said so of another time": func(b *bed) { b.status("b", func(s *agent.Status) { s.Epoch = 6 }) },
		"another leads":              func(b *bed) { b.agent.view.Record.Epoch.Leader = "c" },
		"it has said nothing yet":    func(b *bed) { b.status("b", func(s *agent.Status) { s.Role = "" }) },
	} {
		b := newBed(t)
		b.agent.view.Record.Epoch.Leader, b.agent.view.Local.Server = "b", ag.ServerRecovery
		b.clients.routes = &ag.Routes{Primary: "b", WriteOpen: true}
		b.status("b", func(s *agent.Status) { s.Role = ag.RolePrimary })
		if s := b.Status(); s.Replicas[1].Role != ag.RolePrimary || !s.WriteOpen {
			t.Fatalf("%s: before, %+v", name, s.Replicas[1])
		}
		change(b)
		s := b.Status()
		if s.Replicas[1].Role != ag.RoleResolving || name == "it does not answer" && s.WriteOpen {
			t.Errorf("%s: %+v, write open %v", name, s.Replicas[1], s.WriteOpen)
		}
	}
}

// TestNothingIsReceivedFromNoPrimary holds that no member is shown as synchronized while the leader of the record
// answers and is no primary, as one that has lost the quorum and is fenced.
func TestNothingIsReceivedFromNoPrimary(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if r := b.Status().Replicas; r[0].Sync != ag.Synchronized || r[1].Sync != ag.Synchronized {
		t.Fatalf("before: %s, %s", r[0].Sync, r[1].Sync)
	}
	b.agent.view.Quorum, b.agent.view.Local.Server = false, ag.ServerRecovery
	if r := b.Status().Replicas; r[0].Role == ag.RolePrimary || r[0].Sync != ag.NotSynchronizing || r[1].Sync != ag.NotSynchronizing {
		t.Errorf("its own screen: %+v, %+v", r[0], r[1])
	}
	b = newBed(t) // seen from a secondary, to which both have reported before
	v := b.agent.view
	v.Record.Epoch.Leader, v.Local.Server, v.Profile.Observer = "b", ag.ServerRecovery, 6*time.Second
	b.status("b", func(s *agent.Status) { s.Role = ag.RolePrimary })
	b.status("a", func(s *agent.Status) { s.Role, s.Stream = ag.RoleSecondary, true })
	v.Quorum, v.Silence = false, 6*time.Second
	if r := b.Status().Replicas; r[0].Sync != ag.NotSynchronizing || r[1].Role != ag.RoleResolving || r[1].Sync != ag.NotSynchronizing {
		t.Errorf("a secondary's screen: %+v, %+v", r[0], r[1])
	}
}

// status changes what a member has published.
func (b *bed) status(id ag.ReplicaID, change func(*agent.Status)) {
	st := b.agent.snap.Statuses[id]
	change(&st)
	b.agent.snap.Statuses[id] = st
}

// TestSyncState holds the synchronization state of a member by its stream, the record and what it does.
func TestSyncState(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(s *agent.Status, v *ag.View)
		want   ag.SyncState
	}{
		"counted, with a stream":     {nil, ag.Synchronized},
		"counted, without a stream":  {func(s *agent.Status, _ *ag.View) { s.Stream = false }, ag.NotSynchronizing},
		"not counted":                {func(_ *agent.Status, v *ag.View) { v.Record.State.V = nil }, ag.Synchronizing},
		"counted, nobody waits":      {func(_ *agent.Status, v *ag.View) { v.Record.State.K = 0 }, ag.Synchronizing},
		"a copy is made":             {func(s *agent.Status, _ *ag.View) { s.Busy = "seed" }, ag.Initializing},
		"it is rewound":              {func(s *agent.Status, _ *ag.View) { s.Busy = "rewind" }, ag.Reverting},
		"neither the one nor other":  {func(s *agent.Status, _ *ag.View) { s.Role = ag.RoleResolving }, ag.NotSynchronizing},
		"a primary of another epoch": {func(s *agent.Status, _ *ag.View) { s.Role = ag.RolePrimary }, ag.NotSynchronizing},
	} {
		b := newBed(t)
		if tt.change != nil {
			b.status("b", func(s *agent.Status) { tt.change(s, b.agent.view) })
		}
		if got := b.Status().Replicas[1].Sync; got != tt.want || b.Seeding() != (got == ag.Initializing) {
			t.Errorf("%s: %s, want %s; a copy is under way: %t", name, got, tt.want, b.Seeding())
		}
	}
}

// TestSeedingMakesNoStatus holds that looking whether a copy is under way asks nobody and keeps nothing: every node
// does that every two seconds.
func TestSeedingMakesNoStatus(t *testing.T) {
	b := newBed(t)
	if n := testing.AllocsPerRun(100, func() { b.Seeding() }); n > 1 {
		t.Errorf("%v allocations", n)
	}
	b.agent.view.Busy = "seed"
	if !b.Seeding() {
		t.Error("this node's own copy is not seen")
	}
	b.agent.view, b.agent.snap = nil, nil
	if b.Seeding() {
		t.Error("a copy before the first turn")
	}
}

// TestRotationOf holds how a rotation is shown.
func TestRotationOf(t *testing.T) {
	t.Parallel()
	g := newBed(t).agent.view.Group
	if RotationOf(g) != nil {
		t.Error("a rotation where there is none")
	}
	g.Rotation = &ag.Rotation{Pin: "p", Phase: ag.RotationTrust, Hold: true, Done: []ag.ReplicaID{"a", "w"}}
	if r := RotationOf(g); r.Pin != "p" || !r.Held || len(r.WaitsFor) != 2 || r.WaitsFor[0] != "b" {
		t.Errorf("%+v", r)
	}
}

// TestLineage holds that a promotion has its leader, reason and time as long as a decision remembers them.
func TestLineage(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.agent.view.Record.State.Timelines = []ag.TimelineEntry{{TLI: 1, Epoch: 1}, {TLI: 2, Parent: 1, Switch: 100, Epoch: 3}, {TLI: 5, Parent: 2, Switch: 300, Epoch: 7}}
	decided := func(phase ag.Phase, second int) decisions.Decision {
		d := decisions.Decision{At: time.Unix(int64(second), 0)}
		d.View.Record.Epoch = ag.EpochRecord{Epoch: 7, Phase: phase, Leader: "a", Reason: "planned failover from b"}
		return d
	}
	b.agent.decisions = []decisions.Decision{decided(ag.PhasePromote, 1), decided(ag.PhaseLead, 2), decided(ag.PhaseLead, 3)}
	want := []api.Change{
		{Timeline: 1},
		{Timeline: 2, Parent: 1, Switch: 100},
		{Timeline: 5, Parent: 2, Switch: 300, Leader: "a", Reason: "planned failover from b", At: time.Unix(2, 0)},
	}
	if got := b.Lineage().Changes; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	b.agent.decisions = b.agent.decisions[1:] // of a node that started when that epoch had long begun
	if got := b.Lineage().Changes[2]; got.Leader != "a" || !got.At.IsZero() {
		t.Errorf("the start of this node is no promotion: %+v", got)
	}
	b.agent.view.Record.Epoch = ag.EpochRecord{Epoch: 7, Phase: ag.PhaseLead, Leader: "a", Reason: "planned failover from b"}
	b.agent.snap.Statuses["a"] = agent.Status{Epoch: 7, Leads: time.Unix(1, 0)}
	if got := b.Lineage().Changes[2]; got.Leader != "a" || !got.At.Equal(time.Unix(1, 0)) {
		t.Errorf("as the primary reports it: %+v", got)
	}
	b.agent.view = nil
	if got := b.Lineage(); len(got.Changes) != 0 {
		t.Errorf("before the first turn: %+v", got)
	}
}

// TestRemovedWhileDown holds that a node which has read nothing since its start shows who answers it, and that it is no
// member where those say so: it must not send anybody to recover the group.
func TestRemovedWhileDown(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.agent.snap, b.agent.view.Group, b.agent.view.Record, b.agent.view.Quorum = nil, ag.Group{}, ag.Record{}, false
	if st := b.Status(); len(st.Replicas) != 4 || st.Replicas[1].Connected != "CONNECTED" || st.Replicas[2].Connected != "DISCONNECTED" {
		t.Errorf("b answers, and c does not: %+v", st.Replicas)
	}
	b.agent.view.Reach, b.disowned = nil, true
	st := b.Status()
	r := st.Availability
	if st.Uptime <= 0 {
		t.Error("the status does not say how long the agent has run, by which its restart is found")
	}
	if !r.Removed || len(r.Problems) != 1 || strings.Contains(r.Next, "recover") {
		t.Errorf("the others say that it is no member: %+v", r)
	}
}

// TestRoleOfAWitness holds that a witness is told as one, whether it answers or not: it looks for no primary.
func TestRoleOfAWitness(t *testing.T) {
	t.Parallel()
	for self, reach := range map[ag.ReplicaID][]ag.ReplicaID{"a": {"b", "w"}, "b": {"a"}} {
		b := newBed(t)
		b.agent.view.Self, b.agent.view.Reach = self, reach
		for _, r := range b.Status().Replicas {
			if (r.Role == api.RoleWitness) != (r.Name == "w") {
				t.Errorf("%s reaches %v: %s is %s", self, reach, r.Name, r.Role)
			}
		}
	}
}

// TestOperationWithoutWhoCarriesItOut holds that no failover is told to be under way which nobody carries out.
func TestOperationWithoutWhoCarriesItOut(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, tt := range []struct {
		op    ag.Op
		self  ag.ReplicaID
		reach []ag.ReplicaID
		want  string
	}{
		{ag.Op{ID: "1", Kind: ag.OpPlanned, To: "b", Epoch: 7}, "a", nil, "planned to b"},
		{ag.Op{ID: "1", Kind: ag.OpPlanned, To: "b", Epoch: 7}, "b", []ag.ReplicaID{"a"}, "planned to b"},
		{ag.Op{ID: "1", Kind: ag.OpPlanned, To: "b", Epoch: 7}, "b", []ag.ReplicaID{"c"}, ""},
		{ag.Op{ID: "1", Kind: ag.OpForced, To: "b", Epoch: 7}, "b", nil, "forced to b"},
		{ag.Op{ID: "1", Kind: ag.OpForced, To: "b", Epoch: 7}, "c", []ag.ReplicaID{"a"}, ""},
		{ag.Op{ID: "1", Kind: ag.OpPlanned, To: "b", Epoch: 6}, "a", nil, ""},
	} {
		b.agent.view.Op, b.agent.view.Self, b.agent.view.Reach = tt.op, tt.self, tt.reach
		if got := b.Status().Operation; got != tt.want {
			t.Errorf("%+v seen by %s, which reaches %v: %q, want %q", tt.op, tt.self, tt.reach, got, tt.want)
		}
	}
}

// TestWaitsFor holds how the status, JSON included, says what commits wait for.
func TestWaitsFor(t *testing.T) {
	t.Parallel()
	for want, members := range map[string][]ag.ReplicaID{"no secondary": nil, "1 of n2": {"n2"}, "1 of n2, n3": {"n2", "n3"}} {
		if got := waitsFor(1, members); got != want {
			t.Errorf("%v: %q, want %q", members, got, want)
		}
	}
}
