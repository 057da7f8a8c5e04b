package agent_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// makeRoom has a node's agent end with its server left running.
func (l *lab) makeRoom(id ag.ReplicaID) {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := l.agents[id].Restart(ctx, agent.RestartOptions{}); err != nil {
		l.Fatal(err)
	}
	synctest.Wait() // until it has ended: an order to end before that would stop its server
	if _, over := l.ended.LoadAndDelete(id); !over {
		l.Errorf("%s has not made room", id)
	}
	l.stop(id)
}

// restart has a node's agent make room, and starts its successor after a while.
func (l *lab) restart(id ag.ReplicaID, after time.Duration) {
	l.Helper()
	l.makeRoom(id)
	time.Sleep(after)
	l.start(id)
}

func TestRestartOfThePrimarysAgent(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		was, starts := l.Record.Snapshot().Record.Epoch, l.Node("a").State().Starts
		at := time.Now()
		l.restart("a", 300*time.Millisecond)
		l.wait("a is open", 10*time.Second, func() bool { return l.leads("a") && l.Node("a").State().Routes.WriteOpen })
		if took := time.Since(at); took > 2*time.Second {
			t.Errorf("took %v", took)
		}
		l.write("a")
		l.formed("a", time.Minute)
		now, s := l.Record.Snapshot().Record, l.Node("a").State()
		if !reflect.DeepEqual(now.Epoch, was) || s.Starts != starts || len(s.Fences) != 0 || !s.Running {
			t.Errorf("%+v after %+v, %+v", now.Epoch, was, s)
		}
		l.wait("the restart is over", 10*time.Second, func() bool { return !l.Record.Snapshot().Record.Lead.Restarting })
		if inc := l.Record.Snapshot().Record.Lead.Incarnation; inc == "a-1" {
			t.Errorf("still held by %s", inc)
		}
		l.Isolate("a", true) // it is as any other primary
		l.write(l.leader(15*time.Second, "a"))
	})
}

// An agent that has made room lets no answer leave any more, although its lease has not run out: its successor may
// have lost what would be said.
func TestNoAnswerAfterMakingRoom(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		old := l.agents["a"]
		if old.Gate() <= 1 {
			t.Fatal("the gate of the primary is shut")
		}
		l.makeRoom("a")
		if until := old.LeaseUntil(); until <= boottime.Now() {
			t.Fatalf("the lease ran out at %v, so that nothing is tested", until)
		}
		if g := old.Gate(); g != 1 {
			t.Errorf("answers may leave until %v", g)
		}
		l.start("a")
		l.wait("a is open", 10*time.Second, func() bool { return l.leads("a") && l.agents["a"].Gate() > 1 })
		if g := old.Gate(); g != 1 {
			t.Errorf("answers may leave until %v beside the successor", g)
		}
	})
}

// A successor that comes too late finds a fenced server, and another primary.
func TestRestartThatTakesTooLong(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		was := l.epoch()
		l.makeRoom("a")
		if s := l.Node("a").State(); !s.Running {
			t.Error("the server did not go on")
		}
		time.Sleep(3100 * time.Millisecond)
		if s := l.Node("a").State(); s.Running {
			t.Error("nobody came, and the server still runs")
		}
		next := l.leader(15*time.Second, "a")
		l.write(next)
		l.start("a")
		l.formed(next, time.Minute)
		if l.epoch() == was {
			t.Error("no new epoch")
		}
	})
}

// A successor takes nothing over that the record gave to another member meanwhile, nor anything that was not announced.
func TestRestartFindsAnotherLeader(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.makeRoom("a")
		l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpForced, To: "b", Epoch: l.epoch()})
		l.wait("b was chosen", 2*time.Second, func() bool { return l.Record.Snapshot().Record.Epoch.Leader == "b" })
		l.start("a")
		l.wait("a is fenced", 2*time.Second, func() bool { return len(l.Node("a").State().Fences) > 0 })
		l.write(l.leader(15*time.Second, "a"))
	})
}

func TestRestartIsRefusedOrUndone(t *testing.T) {
	for name, spoil := range map[string]func(l *lab){
		"transactions run":   func(l *lab) { l.Node("a").Busy(1) },
		"the keeper refuses": func(l *lab) { l.Node("a").Fail("detach", errors.New("no")) },
		"the record is not told": func(l *lab) {
			l.Node("a").Store.Inject("renew", slices.Repeat([]agenttest.Fault{{Err: agenttest.ErrUnreachable}}, 20)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.write("a")
				was := l.epoch()
				spoil(l)
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				err := l.agents["a"].Restart(ctx, agent.RestartOptions{Drain: time.Second})
				if err == nil {
					t.Fatal("it restarted")
				}
				l.Node("a").Busy(0)
				l.Node("a").Fail("detach", nil)
				l.wait("a serves", 20*time.Second, func() bool {
					return l.leads("a") && l.Node("a").State().Routes.WriteOpen && l.agents["a"].Gate() > 1
				})
				l.write("a")
				time.Sleep(10 * time.Second)
				if s := l.Node("a").State(); l.epoch() != was || len(s.Fences) != 0 {
					t.Errorf("epoch %d after %d, %+v", l.epoch(), was, s)
				}
			})
		})
	}
}

// A restart that is asked for again at once, after one that failed, is answered: a caller without a deadline, such as
// the one for the quorum's member, would wait for ever.
func TestRestartAskedForAgainAtOnce(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Busy(1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.agents["a"].Restart(ctx, agent.RestartOptions{Drain: time.Second}); err == nil {
			t.Fatal("it restarted")
		}
		for l.agents["a"].View().Busy != "" { // it is over when the loop has taken its end over
			time.Sleep(time.Millisecond)
		}
		l.Node("a").Busy(0)
		if err := l.agents["a"].Restart(ctx, agent.RestartOptions{}); err == nil || !strings.Contains(err.Error(), "failed a moment ago") {
			t.Errorf("asked again at once: %v", err)
		}
		time.Sleep(time.Second)
		l.restart("a", 300*time.Millisecond)
		l.wait("a is open", 10*time.Second, func() bool { return l.leads("a") && l.Node("a").State().Routes.WriteOpen })
		l.write("a")
	})
}

// A secondary's server does not notice.
func TestRestartOfASecondarysAgent(t *testing.T) {
	inBubble(t, func(l *lab) {
		starts := l.Node("b").State().Starts
		l.restart("b", time.Second)
		l.wait("b streams", 10*time.Second, func() bool { return l.Node("b").State().Receiving })
		l.write("a")
		l.formed("a", time.Minute)
		if s := l.Node("b").State(); s.Starts != starts || s.Seeds != 1 || s.Rewinds != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Nobody reads or records anything on a setting that the new agent has not proven.
func TestRestartProvesTheSettingFirst(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.makeRoom("a")
		seq := l.Record.Snapshot().Record.State.Seq
		l.Cut("a", "b", true)
		l.Cut("a", "c", true)
		l.start("a")
		l.Node("a").Fail("probe-commit", errors.New("no answer"))
		for _, streaming := range []bool{false, true} {
			l.Cut("a", "b", !streaming)
			time.Sleep(5 * time.Second)
			s := l.Node("a").State()
			if s.Routes != nil && s.Routes.WriteOpen || l.Record.Snapshot().Record.State.Seq != seq {
				t.Errorf("open, or recorded, with nothing proven; b streams: %t", streaming)
			}
		}
		l.Node("a").Fail("probe-commit", nil)
		l.wait("a is open", 10*time.Second, func() bool { return l.leads("a") })
		l.write("a")
	})
}

// The setting of a server that is taken over need not keep the record true: it is rewritten before anything else
// happens.
func TestRestartRewritesTheSetting(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		was := l.epoch()
		l.makeRoom("a")
		l.Node("a").SetSyncByHand(nil, 0)
		l.start("a")
		l.wait("a is open", 10*time.Second, func() bool { return l.leads("a") && l.Node("a").State().Routes.WriteOpen })
		l.write("a")
		if s := l.Node("a").State(); l.epoch() != was || len(s.Fences) != 0 {
			t.Errorf("epoch %d after %d, %+v", l.epoch(), was, s)
		}
	})
}

// TestRestartOfTheServer holds that a secondary's server is restarted once, that the leadership stays, and that a
// primary's is refused.
func TestRestartOfTheServer(t *testing.T) {
	inBubble(t, func(l *lab) {
		was, starts := l.Record.Snapshot().Record.Epoch, l.Node("b").State().Starts
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.agents["a"].RestartServer(ctx); err == nil {
			t.Error("the primary's server was restarted")
		}
		if err := l.agents["b"].RestartServer(ctx); err != nil {
			t.Fatal(err)
		}
		l.write("a")
		l.wait("b runs again", time.Minute, func() bool { s := l.Node("b").State(); return s.Running && s.Starts == starts+1 })
		l.formed("a", time.Minute)
		if now := l.Record.Snapshot().Record.Epoch; !reflect.DeepEqual(now, was) {
			t.Errorf("%+v after %+v", now, was)
		}
	})
}

// A restart waits for nothing else that is under way, such as the checkpoint of a planned failover: the keeper fences
// if the successor does not come soon. The successor prepares the failover anew.
func TestRestartDuringThePreparationOfAFailover(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Stall("checkpoint", true)
		l.Record.SetOp(ag.Op{ID: "1", Kind: ag.OpPlanned, To: "c", Epoch: l.epoch()})
		time.Sleep(time.Second)
		l.restart("a", time.Second)
		l.Node("a").Stall("checkpoint", false)
		l.wait("c leads", 15*time.Second, func() bool { return l.leads("c") })
		if s := l.Node("a").State(); len(s.Fences) != 0 {
			t.Errorf("%+v", s)
		}
		l.write("c")
	})
}
