package agent_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// choose has b chosen after the death of a, with nobody else that may lead, and returns while its promotion hangs.
func (l *lab) choose() {
	l.Helper()
	l.Record.SetGroup(func(g *ag.Group) {
		g.Replicas[2].AvailabilityMode, g.Replicas[2].FailoverMode = ag.AsynchronousCommit, ag.Manual
	})
	l.wait("only b is waited for", time.Minute, func() bool { return l.counted("b") && !l.counted("c") })
	l.write("a")
	l.Node("b").Stall("promote", true)
	l.kill("a")
	l.wait("the promotion is under way", time.Minute, func() bool {
		e := l.Record.Snapshot().Record.Epoch
		return e.Leader == "b" && e.Phase == ag.PhasePromote && l.Node("b").State().Armed == e.Epoch
	})
}

// said makes a node that is down one whose copy was further when it last reported.
func (l *lab) said(id ag.ReplicaID) ag.CopyID {
	l.Helper()
	n := l.Node(id)
	was := n.State()
	at := was.Position
	at.LSN += 0x300
	n.Store.Kill(false)
	if err := n.Store.PutStatus(l.Context(), id, agent.Status{Copy: was.Copy, Position: at}); err != nil {
		l.Fatal(err)
	}
	return was.Copy
}

// A chosen replica whose agent is stopped in order has released the epoch, which it renews no more. It is promoted in
// another one when it comes back, since no other member may be.
func TestChosenReplicaIsStoppedInOrder(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.choose()
		l.stop("b")
		l.Node("b").Stall("promote", false)
		l.start("b")
		if next := l.leader(20*time.Second, "a"); next != "b" {
			t.Errorf("%s leads", next)
		}
		l.write("b")
	})
}

// The last primary of a group without another copy was put back to an older state. Its copy is another one, and leads
// only if an operator accepts that.
func TestRestoredPrimaryIsForced(t *testing.T) {
	inBubbleOf(t, group("a", "b"), func(l *lab) {
		l.start("a")
		l.start("b")
		l.wait("b counts", time.Minute, func() bool { return l.counted("b") && l.leads("a") })
		l.kill("b")
		l.wait("a leads alone", time.Minute, func() bool { return !l.counted("b") && l.leads("a") })
		l.write("a")
		l.kill("a")
		was := l.said("a")
		l.start("a")
		l.wait("a has another copy", time.Minute, func() bool { return l.Node("a").State().Copy != was })
		time.Sleep(10 * time.Second)
		if l.leads("a") {
			t.Error("it leads as if nothing had been lost")
		}
		l.lossy = true
		l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpForced, To: "a", Epoch: l.epoch()})
		l.leader(30*time.Second, "b")
		l.write("a")
	})
}

// A copy that is found to be older gets another identity, in the data directory first. A full disk or a crash before the
// marks have it does not make it one that nobody knows.
func TestRenamingOfACopyIsCutShort(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.stop("c")
		was := l.said("c")
		full := filepath.Join(l.dirs["c"], "copy.json"+durable.Suffix)
		l.Node("c").Before("write-copy", func() {
			if err := os.Mkdir(full, 0o700); err != nil {
				t.Error(err)
			}
		})
		l.start("c")
		another := func() bool {
			m, in := l.Record.Snapshot().Record.State.InV("c")
			return in && m.Copy != was
		}
		l.wait("c counts with its new identity", time.Minute, another)
		l.stop("c")
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		l.start("c")
		l.formed("a", time.Minute)
		if !another() {
			t.Error("c counts as what it was before")
		}
	})
}
