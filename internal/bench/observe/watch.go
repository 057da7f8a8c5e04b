package observe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

// PollEvery is the interval between two requests to an agent. Decisions between them are not lost: each has its own
// time.
const PollEvery = 100 * time.Millisecond

// Watcher shows what the agents decide while the group changes.
type Watcher struct {
	lab    Lab
	screen *Screen
	quit   context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	seen map[string][]decision // the decisions that were shown, by node
}

// decision is one decision of a node.
type decision struct {
	api.Decision
	node string
}

// Watch shows the decisions of the agents from now until Stop is called.
func Watch(ctx context.Context, l Lab, s *Screen) *Watcher {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{lab: l, screen: s, quit: cancel, seen: map[string][]decision{}}
	since := map[string]time.Time{}
	for _, n := range l.Nodes() {
		since[n] = time.Now()
	}
	w.wg.Go(func() { w.run(ctx, since) })
	return w
}

// Stop ends the watching and returns when it has ended.
func (w *Watcher) Stop() {
	w.quit()
	w.wg.Wait()
}

// run asks all nodes at the same time, and shows new decisions in the order in which they were made.
func (w *Watcher) run(ctx context.Context, since map[string]time.Time) {
	t := time.NewTicker(PollEvery)
	defer t.Stop()
	last := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		nodes := w.lab.Nodes()
		keys, news := make([]string, len(nodes)), make([][]decision, len(nodes))
		var asking sync.WaitGroup
		for i, n := range nodes {
			asking.Go(func() { keys[i], news[i] = w.look(ctx, n, last[n], since[n]) })
		}
		asking.Wait()
		for i, n := range nodes {
			last[n] = keys[i]
			if k := len(news[i]); k > 0 {
				since[n] = news[i][k-1].At
			}
		}
		w.show(nodes, news)
	}
}

// change returns the parts of a status that change with every decision.
func change(s api.Status) string { return fmt.Sprint(s.Epoch, s.Phase, s.Rule, s.WriteOpen) }

// look returns the decisions of the node after since, if its status differs from last.
func (w *Watcher) look(ctx context.Context, node, last string, since time.Time) (key string, news []decision) {
	st, err := Status(ctx, w.lab, node)
	if err != nil {
		return last, nil
	}
	key = change(st)
	if key == last {
		return last, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	all, err := w.lab.Agent(node).Decisions(ctx)
	if err != nil {
		return last, nil
	}
	for _, d := range all {
		if d.At.After(since) {
			news = append(news, decision{d, node})
		}
	}
	return key, news
}

func (w *Watcher) show(nodes []string, news [][]decision) {
	w.mu.Lock()
	for i, n := range nodes {
		w.seen[n] = append(w.seen[n], news[i]...)
	}
	w.mu.Unlock()
	all := slices.Concat(news...)
	slices.SortStableFunc(all, func(a, b decision) int { return a.At.Compare(b.At) })
	for _, d := range all {
		if text := d.tell(); text != "" {
			w.screen.At(d.At, "%s %s", d.node, text)
		}
	}
}

// Rules returns the rules that fired on the node while it was watched.
func (w *Watcher) Rules(node string) map[ag.Rule]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := map[ag.Rule]int{}
	for _, d := range w.seen[node] {
		m[d.Rule]++
	}
	return m
}

// told explains decisions to a person who watches a failover. Routine decisions are not in it.
var told = map[ag.Rule]string{
	ag.RuleClaim:        "claims epoch NEXT: WHY",
	ag.RuleRetake:       "claims epoch NEXT again: WHY",
	ag.RuleOutbid:       "claims epoch NEXT: WHY",
	ag.RuleSeal:         "epoch NOW SEAL: asks the others to stop taking the old primary's WAL",
	ag.RuleHoldSealed:   "epoch NOW: takes no more WAL of the old primary",
	ag.RuleChoose:       "epoch NOW PROMOTE: WHY",
	ag.RulePromote:      "epoch NOW: promotes its server, WHY",
	ag.RuleLead:         "epoch NOW LEAD: WHY",
	ag.RuleRelease:      "releases the leadership: WHY",
	ag.RuleHandOver:     "hands over: WHY",
	ag.RuleFenceDeposed: "fences its server: WHY",
	ag.RuleFenceExpired: "fences its server: WHY",
	ag.RuleFenceForeign: "fences its server: WHY",
	ag.RuleRewind:       "rewinds: WHY",
	ag.RuleSeed:         "is copied anew: WHY",
	ag.RuleReseed:       "is copied anew: WHY",
	ag.RuleAwaitDrop:    "waits: WHY",
	ag.RuleFollow:       "follows: WHY",
}

func (d decision) tell() string {
	return strings.NewReplacer("NOW", fmt.Sprint(d.Epoch), "NEXT", fmt.Sprint(d.Epoch+1), "WHY", d.Because).Replace(told[d.Rule])
}

// Rejoin describes how the old primary came back.
type Rejoin struct {
	How     string  `json:"how"`              // rewound, reseeded, or followed
	Forked  string  `json:"forked,omitempty"` // the directory with its diverged WAL
	Seconds float64 `json:"seconds"`          // from its start to SYNCHRONIZED
}

// String returns the description in words.
func (r Rejoin) String() string {
	how := map[string]string{"rewound": "rewound", "reseeded": "copied anew", "followed": "followed without a repair (it had nothing that the others lack)"}[r.How]
	if r.Forked != "" {
		how += ", diverged tail kept in " + r.Forked
	}
	return fmt.Sprintf("%s; SYNCHRONIZED after %.1f s", how, r.Seconds)
}

// RejoinOf returns how the old primary came back.
func RejoinOf(dir string, fired map[ag.Rule]int, took time.Duration) Rejoin {
	r := Rejoin{How: "followed", Seconds: took.Seconds()}
	switch {
	case fired[ag.RuleSeed]+fired[ag.RuleReseed] > 0:
		r.How = "reseeded"
	case fired[ag.RuleRewind] > 0:
		r.How = "rewound"
	}
	entries, err := os.ReadDir(filepath.Join(dir, "forked"))
	if err == nil && len(entries) > 0 {
		r.Forked = filepath.Join(dir, "forked", entries[len(entries)-1].Name())
	}
	return r
}
