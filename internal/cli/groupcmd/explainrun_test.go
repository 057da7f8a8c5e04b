package groupcmd

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// at is a decision of a node, ms milliseconds after noon of its clock.
func at(node ag.ReplicaID, ms int, rule ag.Rule, epoch ag.Epoch) decisions.Decision {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.Local)
	return decisions.Decision{Node: node, Seq: uint64(ms), At: noon.Add(time.Duration(ms) * time.Millisecond), Rule: rule, Because: "a reason", Epoch: epoch, View: ag.View{Self: node}}
}

func opened(d decisions.Decision) decisions.Decision {
	d.Open = true
	return d
}

func TestTook(t *testing.T) {
	t.Parallel()
	claim, lead := at("n2", 100, ag.RuleClaim, 3), at("n2", 900, ag.RuleLead, 4)
	for _, tt := range []struct {
		name string
		ds   []decisions.Decision
		want string
	}{
		{"whole", []decisions.Decision{claim, lead, opened(at("n2", 1000, ag.RuleServe, 4))}, "800ms from its first step until n2 led, 900ms until it took writes (by n2's clock)"},
		{"not open yet", []decisions.Decision{claim, lead}, "800ms from its first step until n2 led (by n2's clock)"},
		{"opened in a later epoch", []decisions.Decision{claim, lead, opened(at("n2", 1000, ag.RuleServe, 5))}, "800ms from its first step until n2 led (by n2's clock)"},
		{"forced", []decisions.Decision{at("n2", 500, ag.RuleForce, 3), lead}, "400ms from its first step until n2 led (by n2's clock)"},
		{"the first step of two", []decisions.Decision{claim, at("n2", 500, ag.RulePromote, 4), lead}, "800ms from its first step until n2 led (by n2's clock)"},
		{"steps of another epoch", []decisions.Decision{at("n2", 0, ag.RuleClaim, 1), lead}, ""},
		{"steps of another clock", []decisions.Decision{at("n3", 100, ag.RuleClaim, 3), lead}, ""},
		{"it never led", []decisions.Decision{claim}, ""},
	} {
		if got := took(decisions.Change{From: "n1", To: "n2", Before: 3, Epoch: 4, Decision: tt.ds}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestPrintChange(t *testing.T) {
	t.Parallel()
	release := at("n1", 50, ag.RuleRelease, 3)
	for _, tt := range []struct {
		c    decisions.Change
		want []string
		not  string
	}{
		{decisions.Change{From: "n1", To: "n2", Reason: "silent for 6s"}, []string{"Failover: n1 -> n2, epoch 3 -> 4\n", "why      silent for 6s"}, "took"},
		{decisions.Change{From: "n1", To: "n2", Reason: "planned by an operator"}, []string{"Planned failover: n1 -> n2"}, "FORCED"},
		{decisions.Change{From: "n1", To: "n2", Reason: "planned", Forced: true}, []string{"FORCED failover: n1 -> n2"}, "Planned"},
		{decisions.Change{From: "n1", To: "n1", Reason: "its server ended"}, []string{"Restart of the primary: n1 -> n1"}, "Failover"},
		{decisions.Change{From: "n1", To: "n2", Decision: []decisions.Decision{release}}, []string{"  n1       12:00:00.050 gave up the leadership, so that others need not wait for silence: a reason\n"}, "took"},
		{decisions.Change{From: "n3", To: "n2", Decision: []decisions.Decision{release}}, []string{"Failover: n3 -> n2"}, "gave up"}, // not the old primary
	} {
		tt.c.Before, tt.c.Epoch = 3, 4
		var b strings.Builder
		printChange(&b, tt.c, detail{})
		for _, want := range tt.want {
			if !strings.Contains(b.String(), want) || strings.Contains(b.String(), tt.not) {
				t.Errorf("%+v: nothing of %q, or something of %q in\n%s", tt.c, want, tt.not, b.String())
			}
		}
	}
}

func TestSaw(t *testing.T) {
	t.Parallel()
	v := ag.View{Self: "n2", Quorum: true, Silence: 6543 * time.Millisecond, Reach: []ag.ReplicaID{"n3"}, Seals: []ag.SealReport{{Member: "n3"}}}
	v.Local.Server = ag.ServerRecovery
	v.Record.Epoch.Leader = "n1"
	v.Record.State.V, v.Record.State.K = []ag.Member{{ID: "n1"}, {ID: "n3"}}, 1
	want := "server RECOVERY at 0:0/0; leader's last sign 6.54s ago; counted [n1 n3] k=1; answering [n3]; n3 sealed at 0:0/0"
	if got := saw(v); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	v.Record.Epoch.Leader, v.Quorum = "n2", false // a leader waits for no sign of itself
	if got := saw(v); strings.Contains(got, "last sign") || !strings.Contains(got, "no quorum") {
		t.Error(got)
	}
}

func TestForecast(t *testing.T) {
	t.Parallel()
	yes, no := ag.Check{Condition: "sees a majority", Holds: true}, ag.Check{Condition: "is in V", Seen: "V is n1"}
	living := ag.Check{Condition: "the leader is silent", Seen: "0s"}
	var b strings.Builder
	printForecast(&b, nil)
	if b.Len() > 0 {
		t.Errorf("of nothing: %q", b.String())
	}
	printForecast(&b, []decisions.Forecast{
		{Node: "n1", Leads: true, Checks: []ag.Check{yes}},
		{Node: "n4", Leads: true, Checks: []ag.Check{yes, no}},
		{Node: "n2", Checks: []ag.Check{yes, yes, living}},
		{Node: "n3", Checks: []ag.Check{no, yes, living}},
	})
	want := `
If the primary failed now:
  n1 leads
  n4 leads, but not for long: not so: is in V (V is n1)
  n2 would take over
  n3 would not take over, for want of: is in V (V is n1)
`
	if b.String() != want {
		t.Errorf("%s\nwant %s", b.String(), want)
	}
}

// TestExplain checks the command: an epoch that nobody remembers, JSON without decisions that were not asked for, and a
// stopped node, which is read from its disk.
func TestExplain(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	e := decisions.Explanation{Node: "n2", Asked: []ag.ReplicaID{"n2"}, Changes: []decisions.Change{{From: "n1", To: "n2", Before: 3, Epoch: 4}, {From: "n2", To: "n2", Before: 4, Epoch: 6}}}
	e.Decisions = []decisions.Decision{at("n2", 100, ag.RuleClaim, 3), at("n2", 900, ag.RuleLead, 4)}
	a.On("Explain", func(any) (any, error) { return e, nil })
	clitest.Run(t, Explain(), a.Layout.Dir, "--epoch", "5").Refused(t, 3, "nobody remembers a change of leadership to epoch 5; known are: 4, 6")
	r := clitest.Run(t, Explain(), a.Layout.Dir, "--json")
	var got decisions.Explanation
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil || got.Last == nil || got.Last.Epoch != 4 || len(got.Decisions) != 0 {
		t.Errorf("%v: %s", err, r.Out)
	}
	r = clitest.Run(t, Explain(), a.Layout.Dir, "--all")
	if r.Err != nil || !strings.Contains(r.Out, "Failover: n1 -> n2, epoch 3 -> 4") || !strings.Contains(r.Out, "Every decision that is remembered:") {
		t.Errorf("%v\n%s", r.Err, r.Out)
	}
	e.Changes = nil
	clitest.Run(t, Explain(), a.Layout.Dir, "--epoch", "4").Refused(t, 3, "known are: none")
}

func TestExplainOfAStoppedNode(t *testing.T) {
	t.Parallel()
	l := clitest.NewNode(t)
	clitest.Run(t, Explain(), l.Dir).Refused(t, 3, "no agent runs "+l.Dir)
	log := decisions.NewLog()
	if err := errors.Join(log.Open(l.State()), log.Write(at("n2", 100, ag.RuleClaim, 3)), log.Write(at("n2", 900, ag.RuleLead, 4))); err != nil {
		t.Fatal(err)
	}
	r := clitest.Run(t, Explain(), l.Dir, "--all")
	if r.Err != nil || !strings.Contains(r.Said, "this is what it left on disk, without the other members") || !strings.Contains(r.Out, "became the primary: a reason") {
		t.Errorf("%v, said %q\n%s", r.Err, r.Said, r.Out)
	}
}
