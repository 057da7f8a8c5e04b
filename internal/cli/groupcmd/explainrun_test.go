package groupcmd

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
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
		{"whole", []decisions.Decision{claim, lead, opened(at("n2", 1000, ag.RuleServe, 4))}, "800ms from the first step of n2 (claim) until it led, 900ms until it took writes (by n2's clock)"},
		{"not open yet", []decisions.Decision{claim, lead}, "800ms from the first step of n2 (claim) until it led (by n2's clock)"},
		{"opened in a later epoch", []decisions.Decision{claim, lead, opened(at("n2", 1000, ag.RuleServe, 5))}, "800ms from the first step of n2 (claim) until it led (by n2's clock)"},
		{"forced", []decisions.Decision{at("n2", 500, ag.RuleForce, 3), lead}, "400ms from the first step of n2 (force) until it led (by n2's clock)"},
		{"the first step of two", []decisions.Decision{claim, at("n2", 500, ag.RulePromote, 4), lead}, "800ms from the first step of n2 (claim) until it led (by n2's clock)"},
		{"led again after a fence", []decisions.Decision{at("n2", 0, ag.RuleFenceExpired, 3), at("n2", 500, ag.RuleRetake, 3), lead}, "900ms from the first step of n2 (fence-expired) until it led (by n2's clock)"},
		{"steps of another epoch", []decisions.Decision{at("n2", 0, ag.RuleClaim, 1), lead}, ""},
		{"steps of another clock", []decisions.Decision{at("n3", 100, ag.RuleClaim, 3), lead}, ""},
		{"it never led", []decisions.Decision{claim}, ""},
	} {
		from := ag.ReplicaID("n1")
		if strings.HasPrefix(tt.name, "led again") {
			from = "n2"
		}
		if got := took(decisions.Change{From: from, To: "n2", Before: 3, Epoch: 4, Decision: tt.ds}); got != tt.want {
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

// TestMissing holds that the cause of a member's silence is told without the words of the libraries.
func TestMissing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"call decisions on n3: dial 127.0.0.1:5022: dial tcp 127.0.0.1:5022: connect: connection refused": "n3 did not answer, so what it decided is not in this: connection refused",
		"call decisions on n3: context deadline exceeded":                                                 "n3 did not answer, so what it decided is not in this: no answer in time",
		"it is down": "n3 did not answer, so what it decided is not in this: it is down",
		"call decisions on n3: db3 is not a member of this group": "n3 does not tell this node, so what it decided is not in this: db3 is not a member of this group",
	} {
		var b strings.Builder
		err := printExplanation(&b, &decisions.Explanation{Node: "n1", Missing: map[ag.ReplicaID]string{"n3": text}}, detail{})
		if err != nil || !strings.Contains(b.String(), want+"\n") {
			t.Errorf("%s: %s", text, b.String())
		}
	}
}

func TestForecast(t *testing.T) {
	t.Parallel()
	yes, no := ag.Check{Condition: "sees a majority", Holds: true}, ag.Check{Condition: "is in V", Seen: "V is n1"}
	living := ag.Check{Condition: "the leader is silent", Seen: "0s"}
	var b strings.Builder
	printForecast(&b, &decisions.Explanation{NotReady: "no majority"})
	if b.Len() > 0 {
		t.Errorf("of nothing: %q", b.String())
	}
	now := []decisions.Forecast{
		{Node: "n1", Leads: true, Checks: []ag.Check{yes}},
		{Node: "n4", Leads: true, Checks: []ag.Check{yes, {Condition: "its lease holds", Seen: "it ran out"}}},
		{Node: "n2", Checks: []ag.Check{yes, yes, living}},
		{Node: "n3", Checks: []ag.Check{no, yes, living}},
	}
	printForecast(&b, &decisions.Explanation{Now: now})
	want := `
If the primary failed now:
  n1 leads
  n4 leads, but not for long: its lease has ended (it ran out)
  n2 would take over
  n3 would not take over: this is not so: is in V (V is n1)
`
	if b.String() != want {
		t.Errorf("%s\nwant %s", b.String(), want)
	}
	b.Reset()
	printForecast(&b, &decisions.Explanation{Now: []decisions.Forecast{now[2], {Node: "n5", Checks: now[2].Checks}}}) // one of them will
	if want := "\nIf the primary failed now:\n  n2 could take over\n  n5 could take over\n"; b.String() != want {
		t.Errorf("%s\nwant %s", b.String(), want)
	}
	b.Reset()
	printForecast(&b, &decisions.Explanation{Now: now[2:], NotReady: "1 of 3 votes would be left"})
	want = `
If the primary failed now:
  automatic failover is not ready: 1 of 3 votes would be left
  n2 itself could take over
  n3 would not take over: this is not so: is in V (V is n1)
`
	if b.String() != want {
		t.Errorf("%s\nwant %s", b.String(), want)
	}
}

// TestExplainTellsEachDeath holds that what each death would lead to is told beside what the replicas would do.
func TestExplainTellsEachDeath(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	e := decisions.Explanation{Node: "n1", Asked: []ag.ReplicaID{"n1"}, Now: []decisions.Forecast{{Node: "n1", Leads: true}, {Node: "n2"}}, Failures: []availability.Failure{
		{Member: "n1", Outcome: availability.Survived, Primary: "n2"}, {Member: "n2", Outcome: availability.Blocked, Primary: "n1", Because: "n1 would lead, and commits wait for 1 of n2"},
	}}
	a.On("Explain", func(any) (any, error) { return e, nil })
	r := clitest.Run(t, Explain(), a.Layout.Dir)
	want := `If the primary failed now:
  n1 leads
  n2 would take over

DEATH OF   OUTCOME    THEN
n1         SURVIVED   n2 would lead, and commits would be acknowledged
n2         BLOCKED    n1 would lead, and commits wait for 1 of n2
`
	if r.Err != nil || !strings.Contains(r.Out, want) {
		t.Errorf("%v\n%s\nwant\n%s", r.Err, r.Out, want)
	}
}

// TestEveryConditionHasItsContrary holds that explain has a sentence for each condition that does not hold.
func TestEveryConditionHasItsContrary(t *testing.T) {
	t.Parallel()
	v := ag.View{Self: "n1"}
	if got := contrary(v.WhyClaim()[0]); got != "no majority of the quorum answers it" {
		t.Error(got)
	}
	for _, c := range append(v.WhyClaim(), v.WhyLead()...) {
		if contraries[c.Condition] == "" {
			t.Errorf("no sentence for: not %q", c.Condition)
		}
	}
}

// TestForecastAfterTheDeath holds that a primary which has failed is told as that, with whether another takes over.
func TestForecastAfterTheDeath(t *testing.T) {
	t.Parallel()
	for notReady, want := range map[string]string{
		"it is switched off for maintenance": "No primary leads now: the primary n1 does not answer.\n  nobody takes over without a person: it is switched off for maintenance\n  n2 itself could take over\n",
		"n2 takes over now":                  "No primary leads now: the primary n1 does not answer. n2 takes over now.\n  n2 itself could take over\n",
	} {
		var b strings.Builder
		printForecast(&b, &decisions.Explanation{Now: []decisions.Forecast{{Node: "n2"}}, NotReady: notReady, NoPrimary: "the primary n1 does not answer"})
		if got := strings.TrimPrefix(b.String(), "\n"); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestForecastOfARemovedNode holds that a node that was removed forecasts nothing.
func TestForecastOfARemovedNode(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	printForecast(&b, &decisions.Explanation{NotReady: "x", NoPrimary: "this node is no member of the group any more"})
	if got := b.String(); got != "\nWhat happens next is not known here: this node is no member of the group any more. Run coterie explain on another member.\n" {
		t.Error(got)
	}
}

// TestExplain checks the command: an epoch that nobody remembers, JSON without decisions that were not asked for, and a
// stopped node, which is read from its disk.
func TestExplain(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	e := decisions.Explanation{Node: "n2", Asked: []ag.ReplicaID{"n2"}, Changes: []decisions.Change{{From: "n1", To: "n2", Before: 3, Epoch: 4}, {From: "n2", To: "n2", Before: 4, Epoch: 6, Reason: "its lease ended"}}}
	e.Decisions = []decisions.Decision{at("n2", 100, ag.RuleClaim, 3), at("n2", 900, ag.RuleLead, 4)}
	a.On("Explain", func(any) (any, error) { return e, nil })
	clitest.Run(t, Explain(), a.Layout.Dir, "--epoch", "5").Refused(t, 2, "no member remembers a change of leadership to epoch 5; known are: 4, 6")
	r := clitest.Run(t, Explain(), a.Layout.Dir, "--json")
	var got decisions.Explanation
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil || got.Last == nil || got.Last.Epoch != 4 || len(got.Decisions) != 0 {
		t.Errorf("%v: %s", err, r.Out)
	}
	r = clitest.Run(t, Explain(), a.Layout.Dir, "--all")
	if r.Err != nil || !strings.Contains(r.Out, "Failover: n1 -> n2, epoch 3 -> 4") || !strings.Contains(r.Out, "Every decision that is remembered:") ||
		!strings.Contains(r.Out, "n2 has taken its own leadership again since (1×), at last in epoch 6: its lease ended\n") {
		t.Errorf("%v\n%s", r.Err, r.Out)
	}
	e.Changes = append(e.Changes, decisions.Change{From: "n2", To: "n3", Before: 6, Epoch: 7})
	if r = clitest.Run(t, Explain(), a.Layout.Dir, "--epoch", "4"); r.Err != nil || strings.Contains(r.Out, "again since") {
		t.Errorf("%v\n%s", r.Err, r.Out)
	}
	e.Changes = nil
	clitest.Run(t, Explain(), a.Layout.Dir, "--epoch", "4").Refused(t, 2, "known are: none")
	e.Missing = map[ag.ReplicaID]string{"n1": "it is down"}
	clitest.Run(t, Explain(), a.Layout.Dir, "--epoch", "4").Refused(t, 3, "no member that answers remembers a change of leadership to epoch 4")
}

func TestExplainOfAStoppedNode(t *testing.T) {
	t.Parallel()
	l := clitest.NewNode(t)
	if err := os.WriteFile(filepath.Join(l.Dir, "coterie.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
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
