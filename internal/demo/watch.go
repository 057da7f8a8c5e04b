package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/api"
)

// pollEvery is how often each agent is asked; what it decided in between it tells with its own times.
const pollEvery = 100 * time.Millisecond

// watcher shows what the agents decide while the group changes.
type watcher struct {
	lab    Lab
	screen *Screen
	quit   context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	seen map[string][]decision // by node, all that was shown
}

// decision is what coterie explain shows, without the view.
type decision struct {
	At      time.Time `json:"at"`
	Rule    ag.Rule   `json:"rule"`
	Because string    `json:"because"`
	Epoch   ag.Epoch  `json:"epoch"`
	node    string
}

// watch shows decisions from now until stop is called.
func watch(ctx context.Context, l Lab, s *Screen) *watcher {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{lab: l, screen: s, quit: cancel, seen: map[string][]decision{}}
	since := map[string]time.Time{}
	for _, n := range l.Nodes() {
		since[n] = time.Now()
	}
	w.wg.Go(func() { w.run(ctx, since) })
	return w
}

func (w *watcher) stop() {
	w.quit()
	w.wg.Wait()
}

// run asks all nodes at the same time and shows what is new in the order in which it was decided.
func (w *watcher) run(ctx context.Context, since map[string]time.Time) {
	t := time.NewTicker(pollEvery)
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

// change is what of a status says that something was decided.
func change(s api.Status) string { return fmt.Sprint(s.Epoch, s.Phase, s.Rule, s.WriteOpen) }

// look returns what the node decided after since, if its status is another than last.
func (w *watcher) look(ctx context.Context, node, last string, since time.Time) (key string, news []decision) {
	st, err := status(ctx, w.lab, node)
	if err != nil {
		return last, nil
	}
	key = change(st)
	if key == last {
		return last, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	raw, err := w.lab.Agent(node).Decisions(ctx)
	if err != nil {
		return last, nil
	}
	var all []decision
	if err := json.Unmarshal(raw, &all); err != nil {
		return last, nil
	}
	for _, d := range all {
		if d.At.After(since) {
			d.node = node
			news = append(news, d)
		}
	}
	return key, news
}

func (w *watcher) show(nodes []string, news [][]decision) {
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

// rules returns the rules that fired on the node while it was watched.
func (w *watcher) rules(node string) map[ag.Rule]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := map[ag.Rule]int{}
	for _, d := range w.seen[node] {
		m[d.Rule]++
	}
	return m
}

// tell says what a decision means to somebody who watches a failover; nothing for the everyday ones.
func (d decision) tell() string {
	switch d.Rule {
	case ag.RuleClaim:
		return fmt.Sprintf("claims epoch %d: %s", d.Epoch+1, d.Because)
	case ag.RuleRetake, ag.RuleOutbid:
		return fmt.Sprintf("claims epoch %d (%s): %s", d.Epoch+1, d.Rule, d.Because)
	case ag.RuleSeal:
		return fmt.Sprintf("epoch %d SEAL: asks the others to stop taking the old primary's WAL", d.Epoch)
	case ag.RuleHoldSealed:
		return fmt.Sprintf("epoch %d: takes no more WAL of the old primary", d.Epoch)
	case ag.RuleChoose:
		return fmt.Sprintf("epoch %d PROMOTE: %s", d.Epoch, d.Because)
	case ag.RulePromote:
		return fmt.Sprintf("epoch %d: promotes its server, %s", d.Epoch, d.Because)
	case ag.RuleLead:
		return fmt.Sprintf("epoch %d LEAD: %s", d.Epoch, d.Because)
	case ag.RuleRelease:
		return "releases the leadership: " + d.Because
	case ag.RuleHandOver:
		return "hands over: " + d.Because
	case ag.RuleFenceDeposed, ag.RuleFenceExpired, ag.RuleFenceForeign:
		return "fences its server: " + d.Because
	case ag.RuleRewind:
		return "rewinds: " + d.Because
	case ag.RuleSeed, ag.RuleReseed:
		return "is copied anew: " + d.Because
	case ag.RuleAwaitDrop:
		return "waits: " + d.Because
	case ag.RuleFollow:
		return "follows: " + d.Because
	}
	return ""
}
