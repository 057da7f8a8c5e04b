package observe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

func TestDecisionsAreShownOnceAndInOrder(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	n2 := &fakeAgent{status: group(), decisions: []api.Decision{
		{At: at(-5), Rule: ag.RuleFollow, Because: "long ago"},
		{At: at(10), Rule: ag.RuleClaim, Because: "n1 has been silent for 6.5s", Epoch: 1},
		{At: at(30), Rule: ag.RuleLead, Because: "promoted", Epoch: 2},
	}}
	n3 := &fakeAgent{status: group(), decisions: []api.Decision{{At: at(20), Rule: ag.RuleHoldSealed, Epoch: 2}, {At: at(40), Rule: ag.RuleStandBy}}}
	l := &fakeLab{names: []string{"n1", "n2", "n3"}, agents: map[string]*fakeAgent{"n2": n2, "n3": n3}}
	w := &Watcher{lab: l, screen: &Screen{out: &out, started: start}, seen: map[string][]decision{}}

	keys, news := make([]string, 3), make([][]decision, 3)
	for i, n := range l.names {
		keys[i], news[i] = w.look(t.Context(), n, "", start)
	}
	w.show(l.names, news)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{"00:00.010 n2 claims epoch 2: n1 has been silent for 6.5s", "n3 epoch 2: takes no more WAL", "n2 epoch 2 LEAD: promoted"}
	if len(lines) != len(want) {
		t.Fatalf("printed %q", lines)
	}
	for i := range want {
		if !strings.Contains(lines[i], want[i]) {
			t.Errorf("line %d is %q, want %q in it", i, lines[i], want[i])
		}
	}
	if got := w.Rules("n2"); got[ag.RuleLead] != 1 || got[ag.RuleFollow] != 0 {
		t.Errorf("rules seen on n2: %v", got)
	}
	if key, again := w.look(t.Context(), "n2", keys[1], start); key != keys[1] || again != nil || n2.asked != 1 {
		t.Error("an agent that decided nothing new was asked for its decisions again")
	}
}

func TestRejoinSaysHowAndWhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if r := RejoinOf(dir, map[ag.Rule]int{ag.RuleFollow: 1}, time.Second); r.How != "followed" || r.Forked != "" {
		t.Errorf("%+v", r)
	}
	for _, name := range []string{"20260101T000000.000Z", "20260102T000000.000Z"} {
		if err := os.MkdirAll(filepath.Join(dir, "forked", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r := RejoinOf(dir, map[ag.Rule]int{ag.RuleRewind: 1}, 3100*time.Millisecond)
	if r.How != "rewound" || !strings.HasSuffix(r.Forked, "20260102T000000.000Z") || !strings.Contains(r.String(), "SYNCHRONIZED after 3.1 s") {
		t.Errorf("%+v: %s", r, r)
	}
	if r := RejoinOf(dir, map[ag.Rule]int{ag.RuleRewind: 1, ag.RuleReseed: 1}, time.Second); r.How != "reseeded" {
		t.Errorf("a rewind that failed and was followed by a copy is %s", r.How)
	}
}
