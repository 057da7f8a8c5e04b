package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
)

// An agent in a copy of the node directory never takes the place of one that lives, and the living one never notices
// it.
func TestACloneDoesNotTakeTheNameOver(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		for _, id := range []ag.ReplicaID{"a", "b"} {
			living := l.agents[id]
			if err := l.clone(id, "elsewhere", 2*time.Minute); err == nil || !strings.Contains(err.Error(), "elsewhere, and reports") || !strings.Contains(err.Error(), "coterie join") {
				t.Errorf("the clone of %s ended: %v", id, err)
			}
			if l.agents[id] != living || !l.Node(id).State().Running {
				t.Errorf("%s does not run", id)
			}
		}
		if p := l.leader(time.Second); p != "a" {
			t.Errorf("%s leads", p)
		}
		l.write("a")
	})
}

// A node that was moved with its disk comes back without an operator once the old one is silent, and one that is
// restarted where it was does at once.
func TestAMovedNodeComesBack(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.kill("c")
		began := time.Now()
		if err := l.clone("c", "elsewhere", 20*time.Second); err != nil {
			t.Errorf("the moved node ended: %v", err)
		}
		if s := l.Record.Snapshot().Statuses["c"]; s.Place != "elsewhere" {
			t.Errorf("it did not come in: %+v", s)
		}
		l.Logf("looked for %v", time.Since(began))
		if err := l.clone("c", "elsewhere", 1500*time.Millisecond); err != nil {
			t.Errorf("the restarted node ended: %v", err)
		}
		if s := l.Record.Snapshot().Statuses["c"]; s.Incarnation != "clone of c, elsewhere, 1.5s" {
			t.Errorf("a restart in place waits: %+v", s)
		}
	})
}

// A moved node refuses what it is asked for while it waits for a sign of life of the old one: it has decided nothing
// yet.
func TestAMovedNodeIsAskedTooEarly(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.kill("c")
		l.wrap = func(c *agent.Config) { c.Place = "elsewhere" }
		l.start("c")
		time.Sleep(time.Second)
		if err := l.agents["c"].RestartServer(l.Context()); err == nil || !strings.Contains(err.Error(), "has just begun") {
			t.Errorf("asked too early: %v", err)
		}
		l.wait("its server is restarted", time.Minute, func() bool { return l.agents["c"].RestartServer(l.Context()) == nil })
		l.formed("a", time.Minute)
	})
}

// clone runs an agent under a name, in another place, for a while, and returns how it ended. It has data where the
// node's own agent does not run.
func (l *lab) clone(id ag.ReplicaID, place string, d time.Duration) error {
	l.Helper()
	n := l.Node(id)
	n.Store.Kill(false)
	c := agent.Config{
		Self: id, Incarnation: fmt.Sprintf("clone of %s, %s, %v", id, place, d), Place: place, Marks: marks.Open(l.TempDir()), Store: n.Store,
		Peers: n.Peers(), Sessions: n.Sessions(), Logger: l.logger(id),
	}
	if l.ends[id] == nil {
		c.Marks, c.Instance, c.Keeper, c.Upstream, c.Downstream, c.Seeder = marks.Open(l.dirs[id]), n.Instance(), n.Keeper(), n.Upstream(), n.Downstream(), n.Seeder()
		defer n.Detached()
	}
	a, err := agent.New(c)
	if err != nil {
		l.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return a.Run(ctx)
}

// TestReadsNothingAsksWhomItRemembers holds that an agent which has read nothing since it began looks for the members
// that it remembers: one that was removed while it was down never reads anything, and hears only from them why.
func TestReadsNothingAsksWhomItRemembers(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.kill("c")
		l.wrap = func(c *agent.Config) {
			g := l.Record.Snapshot().Group
			c.Remembered = func() *ag.Group { return &g }
		}
		l.Node("c").Store.Cut(true)
		c := l.start("c")
		l.wait("c reaches a and b", time.Minute, func() bool { return c.View() != nil && slices.Equal(c.View().Reach, []ag.ReplicaID{"a", "b"}) })
		if c.Snapshot() != nil {
			t.Error("c has read the record")
		}
		l.Node("c").Store.Cut(false)
		l.formed("a", time.Minute)
	})
}

// An agent that could not report for so long that a newcomer took it for dead makes way once it sees that.
func TestADisplacedAgentEnds(t *testing.T) {
	inBubble(t, func(l *lab) {
		if err := l.Node("a").Store.PutStatus(l.Context(), "a", agent.Status{Incarnation: "a clone's"}); err != nil {
			t.Fatal(err)
		}
		l.wait("a is fenced", 10*time.Second, func() bool { return !l.Node("a").State().Running })
		next := l.leader(30*time.Second, "a")
		l.write(next)
		l.stop("a")
		l.start("a") // the copy that is started again wins the name back
		l.formed(next, time.Minute)
	})
}

// A whole node that was put back to an older state has the copy id and the promise of then, but not what it
// acknowledged since.
func TestARestoredCopyIsAnotherCopy(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.stop("c")
		was := l.Node("c").State()
		said := was.Position
		said.LSN += 0x300
		if err := l.Node("a").Store.PutStatus(l.Context(), "c", agent.Status{Copy: was.Copy, Position: said}); err != nil {
			t.Fatal(err)
		}
		l.start("c")
		l.wait("c has another copy id", time.Minute, func() bool { return l.Node("c").State().Copy != was.Copy })
		l.formed("a", time.Minute)
		if s := l.Node("c").State(); s.Seeds != was.Seeds {
			t.Errorf("a beginning of the history was copied anew: %+v", s)
		}
		l.wait("the record no longer counts the copy that is no more", time.Minute, func() bool {
			m, _ := l.Record.Snapshot().Record.State.InV("c")
			return m.Copy != was.Copy
		})
	})
}

// A node that cannot read the record does not know how far its copy was when it last reported. It gives no seal, since
// the copy may be an older one, until it can.
func TestNoSealBeforeTheCopyIsChecked(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		e := l.epoch()
		l.stop("b")
		l.Node("b").Store.Cut(true)
		l.start("b")
		time.Sleep(5 * time.Second)
		if r, err := l.seal("b", e+1); err == nil || !strings.Contains(err.Error(), "has not yet checked") {
			t.Errorf("%+v, %v", r, err)
		}
		l.Node("b").Store.Cut(false)
		l.wait("b gives a seal", time.Minute, func() bool {
			_, err := l.seal("b", e+1)
			return err == nil
		})
	})
}

// A copy reported what it had received, which ended inside a record. After a crash it ends before that record, and has
// lost nothing: it stays the same copy, and is sealed.
func TestTornTailIsNoOlderCopy(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.kill("a")
		l.stop("b")
		was := l.Node("b").State()
		l.Node("b").Begin(0x80)
		said := was.Position
		said.LSN += 0x40
		if err := l.Node("c").Store.PutStatus(l.Context(), "b", agent.Status{Copy: was.Copy, Position: said}); err != nil {
			t.Fatal(err)
		}
		l.start("b")
		l.leader(time.Minute, "a")
		if s := l.Node("b").State(); s.Copy != was.Copy {
			t.Errorf("b's copy %s became %s although nothing was lost", was.Copy, s.Copy)
		}
	})
}

// A living agent reports well before a newcomer stops waiting for it, whenever events happen to wake it.
func TestALivingAgentReportsInTime(t *testing.T) {
	inBubble(t, func(l *lab) {
		beat := func() uint64 { return l.Record.Snapshot().Statuses["b"].Beat }
		time.Sleep(10 * time.Second)
		for range 5 {
			was := beat()
			l.wait("a report", 10*time.Second, func() bool { return beat() != was })
			was = beat()
			time.Sleep(4900 * time.Millisecond)
			l.agents["b"].Wake()
			time.Sleep(1600 * time.Millisecond)
			if beat() == was {
				t.Error("b has reported nothing for 6.5 s")
			}
		}
	})
}
