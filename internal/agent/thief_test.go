package agent_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// inBubbleWithWitness runs a test on a formed group of the replicas a, which leads, and b, and the witness w.
func inBubbleWithWitness(t *testing.T, test func(l *lab)) {
	t.Helper()
	g := group("a", "b", "w")
	g.Replicas[2].AvailabilityMode, g.Replicas[2].FailoverMode = ag.ConfigurationOnly, ag.Manual
	inBubbleOf(t, g, func(l *lab) {
		for _, r := range g.Replicas {
			l.wrap = func(c *agent.Config) {
				if !r.HasData() {
					c.Instance, c.Keeper, c.Upstream, c.Downstream, c.Seeder, c.Probes, c.Suspend = nil, nil, nil, nil, nil, nil, nil
				}
			}
			l.start(r.ID)
		}
		l.wait("b is synchronized", time.Minute, func() bool { return l.leads("a") && l.counted("b") })
		l.listen()
		test(l)
	})
}

// answers reports whether a node's server may answer clients as a primary.
func (l *lab) answers(id ag.ReplicaID) bool {
	return l.Node(id).State().Armed != 0 && l.agents[id].Gate() > boottime.Now()
}

// The thief of a witness breaks the rules of the quorum's log: it makes a majority with the primary, and another one
// with the secondary, and neither knows of what the other changes. The primary's renewals succeed and count for nobody.
// As long as the replicas reach each other, no row is lost, and they never both answer. Both lead while they do not
// reach each other, and no longer.
func TestStolenWitnessTellsTwoStories(t *testing.T) {
	for name, cut := range map[string]bool{"to replicas that reach each other": false, "to replicas that do not": true} {
		t.Run(name, func(t *testing.T) {
			inBubbleWithWitness(t, func(l *lab) {
				l.forked(cut)
				l.wait("b leads", 30*time.Second, func() bool { l.oneAnswers(cut); return l.leads("b") })
				for end := boottime.Now() + 20*time.Second; boottime.Now() < end; time.Sleep(50 * time.Millisecond) {
					l.oneAnswers(cut)
				}
				if cut && !l.answers("a") {
					t.Fatal("a answers nobody")
				}
				l.Cut("a", "b", false)
				if !l.goesOn() {
					return
				}
				l.Record.Rejoin()
				l.wait("a follows b", 2*time.Minute, func() bool { return l.counted("a") })
				l.write("b")
			})
		})
	}
}

// bothLead waits until a and b, which do not reach each other, lead one epoch by two stories of the store.
func (l *lab) bothLead() {
	l.forked(true)
	l.wait("b leads", 30*time.Second, func() bool { return l.leads("b") })
	l.Node("a").Crash()
	l.wait("both lead one epoch", 30*time.Second, func() bool {
		a, b := l.agents["a"].View().Record.Epoch, l.agents["b"].View().Record.Epoch
		return a.Epoch == b.Epoch && a.Leader == "a" && b.Leader == "b" && l.answers("a") && l.answers("b")
	})
}

// The two stories are of one epoch: each replica was told that it leads it. They give it up when they reach each other.
// Commits of a in its story may be on its copy alone: a does not follow b by itself, and says why.
func TestStolenWitnessTellsTwoLeadersOfAnEpoch(t *testing.T) {
	inBubbleWithWitness(t, func(l *lab) {
		l.bothLead()
		copied := l.Node("a").State().Copy
		l.Cut("a", "b", false)
		if !l.goesOn() {
			return
		}
		l.Record.Rejoin()
		time.Sleep(time.Minute)
		if v := l.agents["a"].View(); !strings.Contains(v.Untrusted, "two leaders of epoch") || l.Node("a").State().Copy != copied || l.answers("a") {
			t.Errorf("a replaces its copy, or does not say why it does not follow: %q, copy %s, was %s", v.Untrusted, l.Node("a").State().Copy, copied)
		}
	})
}

// Two recoveries on two members found two quorums in one epoch, and each leader's renewals succeed. When they reach
// each other, both end, and stay so: each may have acknowledged what the other does not have. Each says why.
func TestTwoFoundersOfAnEpoch(t *testing.T) {
	inBubbleWithWitness(t, func(l *lab) {
		l.bothLead()
		l.Record.Name(7, 8)
		time.Sleep(5 * time.Second)
		if !l.answers("a") || !l.answers("b") {
			t.Fatal("they do not both lead while they know nothing of each other")
		}
		l.Cut("a", "b", false)
		l.wait("neither answers", 10*time.Second, func() bool { return !l.answers("a") && !l.answers("b") })
		for end := boottime.Now() + time.Minute; boottime.Now() < end; time.Sleep(50 * time.Millisecond) {
			if l.answers("a") || l.answers("b") {
				t.Fatal("one goes on without an operator's word")
			}
		}
		for _, id := range []ag.ReplicaID{"a", "b"} {
			if v := l.agents[id].View(); !strings.Contains(v.Untrusted, "in another quorum of the group") {
				t.Errorf("%s does not say why it ended: %q", id, v.Untrusted)
			}
		}
	})
}

// forked has the primary a and the witness know nothing of what the store of b holds from now on.
func (l *lab) forked(cut bool) {
	l.Record.SetGroup(func(g *ag.Group) { g.Options.FailureDetection = ag.DetectStrict }) // the witness acknowledges what both send
	time.Sleep(5 * time.Second)
	l.write("a")
	l.Cut("a", "b", cut)
	l.Record.Fork("a", "w")
}

// oneAnswers fails if two replicas that are not cut from each other answer.
func (l *lab) oneAnswers(cut bool) {
	l.Helper()
	if !cut && l.answers("a") && l.answers("b") {
		l.Fatalf("a answers until %v and b until %v, at %v", l.agents["a"].Gate(), l.agents["b"].Gate(), boottime.Now())
	}
}

// goesOn holds that two replicas that reach each other never both answer, from a moment on; and that b goes on. It
// returns false if the store that is left has gone back for the one that leads: then an operator decides.
func (l *lab) goesOn() bool {
	l.Helper()
	l.wait("one of them answers nobody", 5*time.Second, func() bool { return !l.answers("a") || !l.answers("b") })
	for end := boottime.Now() + 30*time.Second; boottime.Now() < end; time.Sleep(50 * time.Millisecond) {
		l.oneAnswers(false)
	}
	if l.agents["a"].View().Record.Epoch.Epoch > l.epoch() {
		return false
	}
	l.wait("b leads", 30*time.Second, func() bool { return l.leads("b") && l.answers("b") })
	l.write("b")
	return true
}

// boasts has a member answer pings with a record that nobody has.
type boasts struct {
	agent.Peers
	of   ag.ReplicaID
	said marks.Seen
}

// Ping implements agent.Peers.
func (p boasts) Ping(ctx context.Context, r ag.Replica) (marks.Seen, error) {
	if r.ID == p.of {
		return p.said, nil
	}
	return p.Peers.Ping(ctx, r)
}

// A stolen witness that claims to have seen a late record keeps the store from being believed until it is removed, and
// no longer. It ends no leadership.
func TestBoastsOfAStolenWitness(t *testing.T) {
	said := marks.Seen{Epoch: math.MaxUint64, Seq: math.MaxUint64}
	inBubbleWithWitness(t, func(l *lab) {
		l.stop("b")
		l.wrap = func(c *agent.Config) { c.Peers = boasts{c.Peers, "w", said} }
		l.start("b")
		l.wait("b does not believe the store", time.Minute, func() bool { v := l.agents["b"].View(); return v != nil && v.Untrusted != "" })
		time.Sleep(20 * time.Second)
		l.write("a")
		l.Record.SetGroup(func(g *ag.Group) { g.Replicas = g.Replicas[:2] })
		l.wait("b believes it again", 10*time.Second, func() bool { return l.agents["b"].View().Quorum })
	})
}
