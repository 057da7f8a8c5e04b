package continuitybench

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/bench/listenerbench"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/session"
)

const ms = time.Millisecond

// seen returns a client whose requests were answered at these times, each sent 1 ms before, and its transactions.
func seen(p place, answers []time.Duration, transactions ...transaction) *client {
	v := &visitor{place: p}
	for _, at := range answers {
		v.asked(request{at - ms, at, true})
	}
	for _, x := range transactions {
		v.transacted(x)
		if x.outcome != session.OK {
			v.failed(x.done, x.state, x.dropped)
		}
	}
	return &client{v}
}

// TestADeathIsJudgedByWhatClientsSaw holds which transactions count as open at a death, which COMMITs as in doubt, and
// that clients of the dead node's listener are left out.
func TestADeathIsJudgedByWhatClientsSaw(t *testing.T) {
	t.Parallel()
	own, other := place{node: "n1", own: true}, place{node: "n2", tls: true}
	l := &load{tpcb: []*client{
		seen(other, []time.Duration{10 * ms, 20 * ms, 850 * ms, 900 * ms}, transaction{opened: 10 * ms, committing: 850 * ms, done: 900 * ms}),
		seen(other, []time.Duration{15 * ms, 910 * ms}, transaction{opened: 10 * ms, committing: 21 * ms, done: 910 * ms}),
		seen(other, []time.Duration{15 * ms}, transaction{opened: 10 * ms, committing: 16 * ms, done: 800 * ms, outcome: session.Unknown, state: "08007", dropped: true}),
		seen(other, []time.Duration{15 * ms}, transaction{opened: 10 * ms, done: 800 * ms, outcome: session.Fail, state: "40001"}),
		seen(other, []time.Duration{15 * ms}, transaction{opened: 0, done: 800 * ms, outcome: session.Fail, state: "40001"}), // it had not begun
		seen(other, []time.Duration{15 * ms}, transaction{opened: 5 * ms, committing: 8 * ms, done: 10 * ms}),                // it had ended
		seen(own, []time.Duration{15 * ms}, transaction{opened: 10 * ms, done: 30 * ms, outcome: session.Fail, state: "reset", dropped: true}),
	}}
	r := Run{Arm: ArmNode}
	r.see(l, window{5 * ms, 1000 * ms})
	if r.Open != 4 || r.Succeeded != 2 || r.OpenBy["08007"] != 1 || r.OpenBy["40001"] != 1 {
		t.Errorf("%d open, %d succeeded, %v", r.Open, r.Succeeded, r.OpenBy)
	}
	if r.Doubtful["COMMIT"] != 1 || r.Doubtful["08007"] != 1 || len(r.Doubtful) != 2 {
		t.Errorf("in doubt: %v", r.Doubtful)
	}
	if k := r.Kept["other listener, TLS"]; k.Sessions != 6 || k.Kept != 5 || len(r.Kept) != 1 {
		t.Errorf("kept: %v", r.Kept)
	}
	if r.LostConnections != 1 || r.LostBy["08007"] != 1 || r.Errors["40001"] != 2 || r.failed() != 3 {
		t.Errorf("lost %d %v, errors %v", r.LostConnections, r.LostBy, r.Errors)
	}
	r = Run{Arm: ArmServer}
	if r.see(l, window{5 * ms, 1000 * ms}); r.Open != 5 || r.LostConnections != 2 {
		t.Errorf("with all listeners: %d open, %d lost", r.Open, r.LostConnections)
	}
}

// TestPlacesAreHalved holds that half of the clients come by another node's listener, and half of each by TLS.
func TestPlacesAreHalved(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	for _, p := range placesOf(32, "n1", []string{"n2", "n3"}) {
		count[p.way()]++
		count[p.node]++
		if p.own != (p.node == "n1") {
			t.Errorf("%+v", p)
		}
	}
	for _, way := range []string{"own listener, plain", "own listener, TLS", "other listener, plain", "other listener, TLS", "n2", "n3"} {
		if count[way] != 8 {
			t.Errorf("%d of %s", count[way], way)
		}
	}
}

// rounds are those of a cost: 1 % by the own listener, 2 % with REPLAY.
func rounds(n int) map[string][]float64 {
	out := map[string][]float64{}
	for arm, tps := range map[string]float64{"own, OFF": 100, "own, SESSION": 99, "relayed, OFF": 50, "relayed, SESSION": 50, "relayed, REPLAY": 49} {
		out[arm] = slices.Repeat([]float64{tps}, n)
	}
	return out
}

// TestACostIsFirstMeasured holds that a comparison of too few rounds, and the memory of sessions whose measurement has
// not ended, are not called measured.
func TestACostIsFirstMeasured(t *testing.T) {
	t.Parallel()
	s := &Samples{Missing: map[string]string{"cost": "no memory"}, Cost: &listenerbench.Cost{TPS: rounds(1), Idle: map[string]float64{"own, OFF": 1000, "own, SESSION": 1000}}}
	s.judge("")
	for _, f := range s.Figures {
		switch f.Name {
		case "continuity-cost-own", "continuity-cost-relayed", "continuity-cost-replay":
			if !strings.Contains(f.NotRun, "6 blocks") {
				t.Errorf("one round: %+v", f)
			}
		case "continuity-idle-bytes":
			if f.NotRun != "no memory" {
				t.Errorf("%+v", f)
			}
		}
	}
}

// TestEveryFigureHasAGoal holds that the figures are those of goals.json, measured or not.
func TestEveryFigureHasAGoal(t *testing.T) {
	t.Parallel()
	run := func(a Arm) Run {
		return Run{
			Arm: a, Run: 1, HoldMS: []float64{100, 200, 1500}, Kept: map[string]keptOf{"own listener, TLS": {4, 3}}, Open: 4, Succeeded: 3, Judged: true,
			OpenBy: map[string]int{"08007": 1}, Doubtful: map[string]int{"COMMIT": 3, "08007": 1}, Unresolved: 1, Before: outlook{{"n2", 3, "KEPT", "its state is not known yet"}},
		}
	}
	s := &Samples{Missing: map[string]string{}, Runs: []Run{run(ArmPlanned), run(ArmNode), run(ArmServer)}, Cost: &listenerbench.Cost{
		Sessions: 2, TPS: rounds(method.MinBlocks),
		Idle: map[string]float64{"own, OFF": 1000, "own, SESSION": 3000},
	}}
	s.judge("not asked for")
	want := map[string]float64{
		"continuity-planned-hold-p50": 0.2, "continuity-planned-hold-max": 1.5, "continuity-node-kept": 75, "continuity-server-succeeded": 75,
		"continuity-doubt-unresolved": 25, "continuity-wrong": 0, "continuity-cost-own": 1, "continuity-cost-replay": 2, "continuity-idle-bytes": 2000,
	}
	for _, f := range s.Figures {
		if v, ok := want[f.Name]; ok && (f.NotRun != "" || f.Measured < v-1e-9 || f.Measured > v+1e-9) {
			t.Errorf("%+v, want %v", f, v)
		}
		delete(want, f.Name)
	}
	if len(want) > 0 {
		t.Errorf("no figures %v", want)
	}
	var out strings.Builder
	if err := s.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"its state is not known yet 3", "own listener, TLS:", "COMMITs in doubt, by their answer: COMMIT 3, 08007 1", "continuity-cost-with"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("nothing of %q in\n%s", part, out.String())
		}
	}
	if strings.Contains(out.String(), "no figure was recorded") {
		t.Error(out.String())
	}
	none := &Samples{Missing: map[string]string{"cost": "no pgbench"}}
	none.judge("not asked for")
	for _, f := range none.Figures {
		if f.NotRun == "" || strings.HasPrefix(f.Name, "continuity-cost") && f.NotRun != "no pgbench" {
			t.Errorf("%+v", f)
		}
	}
	all, err := goals.Goals()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all {
		if g.Bench == "continuity" && !slices.ContainsFunc(s.Figures, func(f goals.Figure) bool { return f.Name == g.Name }) {
			t.Errorf("%s is never measured", g.Name)
		}
	}
}

// TestWrongAnswersAreTold holds that a refuted answer is in the text.
func TestWrongAnswersAreTold(t *testing.T) {
	t.Parallel()
	s := &Samples{Missing: map[string]string{}, Runs: []Run{{Arm: ArmNode, Run: 7, Wrong: 1, Verdict: ledger.Verdict{Acknowledged: 5, Lost: 1}}}}
	s.judge("")
	var out strings.Builder
	if err := s.Print(&out); err != nil || s.Wrong() != 1 || !strings.Contains(out.String(), "run 7: WRONG: acknowledged 5   lost 1") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestAnswersAreRightOnceTheyAreJudged holds that the figure of wrong answers is not measured before a ledger was read.
func TestAnswersAreRightOnceTheyAreJudged(t *testing.T) {
	t.Parallel()
	for judged, want := range map[bool]string{false: "an error ended it", true: ""} {
		s := &Samples{Missing: map[string]string{}, Runs: []Run{{Arm: ArmPlanned}, {Arm: ArmPlanned, Judged: judged}}}
		s.judge("an error ended it")
		for _, f := range s.Figures {
			if f.Name == "continuity-wrong" && f.NotRun != want {
				t.Errorf("judged %t: %+v", judged, f)
			}
		}
	}
}

// TestStatementsThatWereExecutedTwice holds that a transaction is refuted whose statements before the ledger's row were
// executed twice: its row is there once, and the four sums are equal.
func TestStatementsThatWereExecutedTwice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		r    Run
		want int64
	}{
		"as it must be":         {Run{Sums: [4]int64{7, 7, 7, 7}, Rows: [2]int64{3, 3}}, 0},
		"all before the ledger": {Run{Sums: [4]int64{9, 9, 9, 9}, Rows: [2]int64{4, 3}}, 1},
		"one of them":           {Run{Sums: [4]int64{7, 7, 7, 9}, Rows: [2]int64{3, 3}}, 1},
		"all":                   {Run{Sums: [4]int64{9, 9, 9, 9}, Rows: [2]int64{4, 4}, Verdict: ledger.Verdict{Duplicates: 1}}, 1},
	} {
		if got := c.r.refuted(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestACommitWithoutAnAnswerIsUnresolved holds that a COMMIT is not resolved by a time that is up or a connection that
// ends.
func TestACommitWithoutAnAnswerIsUnresolved(t *testing.T) {
	t.Parallel()
	in := func(o session.Outcome, state string) *client {
		return seen(place{node: "n2"}, []time.Duration{15 * ms}, transaction{opened: 10 * ms, committing: 16 * ms, done: 800 * ms, outcome: o, state: state})
	}
	l := &load{tpcb: []*client{
		in(session.OK, "00000"), in(session.Fail, "40001"), in(session.Unknown, "08007"), in(session.Unknown, "timeout"), in(session.Unknown, "eof"),
	}}
	r := Run{Arm: ArmServer}
	r.see(l, window{5 * ms, 1000 * ms})
	if r.Open != 5 || r.Unresolved != 3 {
		t.Errorf("%d of %d are unresolved: %v", r.Unresolved, r.Open, r.Doubtful)
	}
	s := &Samples{Missing: map[string]string{}, Runs: []Run{r}}
	s.judge("")
	for _, f := range s.Figures {
		if f.Name == "continuity-doubt-unresolved" && f.Measured != 60 {
			t.Errorf("%+v", f)
		}
	}
}

// TestAPlannedFailoverTurnsThePlaces holds that after a planned failover the clients of the new primary's listener are
// those of the own one.
func TestAPlannedFailoverTurnsThePlaces(t *testing.T) {
	t.Parallel()
	l := &load{tpcb: []*client{
		seen(place{node: "n1", own: true}, []time.Duration{10 * ms}),
		seen(place{node: "n2"}, []time.Duration{10 * ms}, transaction{opened: 5 * ms, done: 20 * ms, outcome: session.Unknown, state: "08007", dropped: true}),
	}}
	for from, want := range map[string]keptOf{"n1": {1, 1}, "n2": {1, 0}} {
		r := Run{Arm: ArmPlanned, From: from}
		r.see(l, window{0, 100 * ms})
		if k := r.Kept["own listener, plain"]; k != want {
			t.Errorf("from %s: %v", from, r.Kept)
		}
	}
}
