package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
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

// A node that was chosen, and put back to an older state since, does not have the copy that was chosen. It is not
// promoted while that is not known, nor afterwards.
func TestRestoredCopyIsNotPromoted(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.choose()
		l.kill("b")
		b := l.Node("b")
		b.Stall("promote", false)
		was := l.said("b")
		b.Fail("holds", errors.New("the disk does not answer"))
		l.start("b")
		time.Sleep(10 * time.Second)
		if s := b.State(); s.Running && !s.Recovery {
			t.Error("promoted before it is known how far its copy was")
		}
		b.Fail("holds", nil)
		l.wait("b has another copy", time.Minute, func() bool { return b.State().Copy != was })
		time.Sleep(10 * time.Second)
		if s := b.State(); s.Running && !s.Recovery {
			t.Error("promoted with another copy than was chosen")
		}
		l.start("a")
		l.write(l.leader(time.Minute, "b"))
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
		l.Node("a").Fail("start", errors.New("a server takes longer to start than the files take to tell"))
		l.start("a")
		l.wait("a has another copy", time.Minute, func() bool { return l.Node("a").State().Copy != was })
		l.Node("a").Fail("start", nil)
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

// A copy that gets another identity while it streams streams under that from then on: a candidate could not seal the
// one that the primary counts.
func TestRenamedCopyStreamsUnderItsName(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.stop("c")
		was := l.said("c")
		c := l.Node("c")
		c.Fail("holds", errors.New("the disk is slow"))
		l.start("c")
		l.wait("c streams", time.Minute, func() bool { return c.State().Receiving })
		c.Fail("holds", nil)
		l.wait("c has another copy", time.Minute, func() bool { return c.State().Copy != was })
		l.wait("the record counts that", time.Minute, func() bool {
			m, in := l.Record.Snapshot().Record.State.InV("c")
			return in && m.Copy == c.State().Copy
		})
	})
}

// A copy that is found to be older gets another identity, in the data directory first. A full disk or a crash before
// the marks have it does not make it one that nobody knows.
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

// The file system of a copy goes away under a living agent, and an older one comes back. The copy lacks commits that it
// had acknowledged, so it does not count in a seal.
func TestDiskThatComesBackOlder(t *testing.T) {
	for name, id := range map[string]ag.CopyID{"the same copy": "", "another copy": "copy-x"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.Cut("a", "b", true)
				l.write("a")                // c alone has it
				time.Sleep(7 * time.Second) // c has reported since, and a still counts b
				l.kill("a")
				l.Node("c").TakeDisk()
				time.Sleep(2 * time.Second)
				l.Node("c").GiveDisk(1, id)
				l.Cut("a", "b", false)
				for range 200 {
					if time.Sleep(100 * time.Millisecond); l.leads("b") || l.leads("c") {
						l.Fatalf("a replica leads without %v", append(l.Lost("b"), l.Lost("c")...))
					}
				}
				l.start("a")
				l.write(l.leader(time.Minute, "b", "c"))
			})
		})
	}
}

// save returns what puts a whole node, whose agent and server it ends, back to what it is now: the data directory and
// the marks beside it.
func (l *lab) save(id ag.ReplicaID) (restore func()) {
	l.Helper()
	synctest.Wait() // no file is being replaced
	marks, data := filepath.Join(l.TempDir(), "marks"), l.Node(id).Save()
	if err := os.CopyFS(marks, os.DirFS(l.dirs[id])); err != nil {
		l.Fatal(err)
	}
	return func() {
		l.kill(id)
		data()
		if err := errors.Join(os.RemoveAll(l.dirs[id]), os.CopyFS(l.dirs[id], os.DirFS(marks))); err != nil {
			l.Fatal(err)
		}
	}
}

// An administrator puts a node back to one state of it twice, as from a snapshot of the machine. The first time its
// copy becomes another one. The second time it has the name again that the record counts, and is the older copy all the
// same.
func TestRestoredTwice(t *testing.T) {
	inBubble(t, func(l *lab) {
		c := l.Node("c")
		l.Cut("a", "b", true)
		was, restore := c.State().Copy, l.save("c")
		l.write("a")                // c alone has it
		time.Sleep(7 * time.Second) // c has reported since, and a still counts b
		l.kill("a")
		l.kill("b")
		for range 3 {
			restore()
			l.start("c")
			l.wait("c has another copy", time.Minute, func() bool { return c.State().Copy != was })
			time.Sleep(10 * time.Second)
		}
		l.start("b")
		for range 200 {
			if time.Sleep(100 * time.Millisecond); l.leads("b") || l.leads("c") {
				l.Fatalf("a replica leads without %v", append(l.Lost("b"), l.Lost("c")...))
			}
		}
		l.start("a")
		l.write(l.leader(time.Minute, "b", "c"))
	})
}

// A primary that is put back to one state twice does not lead again as if nothing had been lost.
func TestPrimaryRestoredTwice(t *testing.T) {
	inBubble(t, func(l *lab) {
		was, restore := l.Node("a").State().Copy, l.save("a")
		l.write("a")
		time.Sleep(7 * time.Second)
		for _, id := range l.ids {
			l.kill(id)
		}
		for range 2 {
			restore()
			l.start("a")
			l.wait("a has another copy", time.Minute, func() bool { return l.Node("a").State().Copy != was })
			time.Sleep(20 * time.Second)
			if l.leads("a") {
				t.Fatalf("it leads without %v", l.Lost("a"))
			}
		}
		l.start("b")
		l.start("c")
		l.write(l.leader(time.Minute, "a"))
	})
}

// A node that is put back, and then comes back as it was before that, holds everything, and counts.
func TestRestoredByMistake(t *testing.T) {
	inBubble(t, func(l *lab) {
		c := l.Node("c")
		l.Cut("a", "b", true)
		was, older := c.State().Copy, l.save("c")
		l.write("a") // c alone has it
		time.Sleep(7 * time.Second)
		l.kill("a")
		l.kill("b")
		newest := l.save("c")
		older()
		l.start("c")
		l.wait("c has another copy", time.Minute, func() bool { return c.State().Copy != was })
		time.Sleep(10 * time.Second)
		newest()
		l.start("c")
		l.start("b")
		l.write(l.leader(time.Minute, "a"))
	})
}
