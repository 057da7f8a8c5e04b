package agent_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// behind has a die when b, which only a person may promote, has a commit that was acknowledged and c has not.
func (l *lab) behind() {
	l.Helper()
	l.Record.SetGroup(func(g *ag.Group) {
		g.Replicas = slices.Clone(g.Replicas)
		g.Replicas[1].FailoverMode = ag.Manual
	})
	l.Cut("a", "c", true)
	l.write("a")
	if b, c := l.Node("b").State().Position, l.Node("c").State().Position; b.Compare(c) <= 0 {
		l.Fatalf("b is at %s, c at %s", b, c)
	}
	l.kill("a")
	l.Cut("a", "c", false)
}

// fetching waits until c waits for b's log.
func (l *lab) fetching() {
	l.Helper()
	l.wait("c wants the end of b's log", 30*time.Second, func() bool {
		p := l.agents["c"].Plan()
		return p != nil && p.Rule == ag.RuleFetch
	})
}

// undecided asserts that no member is chosen for a while.
func (l *lab) undecided(during time.Duration) {
	l.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if e := l.Record.Snapshot().Record.Epoch; e.Phase != ag.PhaseSeal {
			l.Fatalf("%s of epoch %d by %s, while b's log is not to be had", e.Phase, e.Epoch, e.Leader)
		}
	}
}

func TestTailIsFetchedFromAManualReplica(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.behind()
		if next := l.leader(30*time.Second, "a"); next != "c" {
			t.Fatalf("%s leads, and only a person may promote it", next)
		}
		if l.agents["c"].Transitions()[ag.RuleFetch] == 0 {
			t.Error("c leads without having fetched anything")
		}
		l.write("c")
		l.start("a")
		l.formed("c", time.Minute)
		l.write("c")
		if to := l.Node("b").State().Feeds; to != "" {
			t.Errorf("b's log is still open for %s", to)
		}
	})
}

// The log is had of a server that is started for it; its source and the candidate may die at any time, and nothing is
// decided without it.
func TestTailIsWaitedFor(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.behind()
		l.deadServer("b")
		l.fetching()
		l.undecided(10 * time.Second)

		l.kill("b")
		l.undecided(10 * time.Second)
		l.kill("c")
		l.start("c")
		l.undecided(10 * time.Second)
		l.start("b")
		l.fetching()
		l.stop("c")
		l.start("c")
		l.fetching()
		l.Node("b").Fail("start", nil)
		if next := l.leader(time.Minute, "a", "b"); next != "c" {
			t.Fatalf("%s leads", next)
		}
		l.write("c")
		l.start("a")
		l.formed("c", 2*time.Minute)
		l.write("c")
	})
}

// deadServer ends a node's server, which does not start again until its start no longer fails.
func (l *lab) deadServer(id ag.ReplicaID) {
	l.Node(id).Fail("start", errors.New("no memory"))
	l.Node(id).Crash()
}

// An operator who has lost the source for good accepts the loss, and the candidate that waited leads.
func TestTailThatIsLostIsForced(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.behind()
		l.deadServer("b")
		l.wait("c is a candidate", 30*time.Second, func() bool {
			e := l.Record.Snapshot().Record.Epoch
			return e.Phase == ag.PhaseSeal && e.Leader == "c"
		})
		l.kill("b")
		l.undecided(10 * time.Second)
		l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpForced, To: "c", Epoch: l.epoch()})
		l.wait("c leads", 30*time.Second, func() bool {
			e := l.Record.Snapshot().Record.Epoch
			return e.Phase == ag.PhaseLead && e.Leader == "c" && e.Forced
		})
		l.lossy = true
	})
}
