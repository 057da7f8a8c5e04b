package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

func (l *lab) seal(id ag.ReplicaID, e ag.Epoch) (ag.SealReport, error) {
	return l.agents[id].Seal(context.Background(), agent.SealRequest{Epoch: e, Candidate: "c"})
}

func TestPromiseHoldsAndSurvives(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		e := l.epoch()
		r, err := l.seal("b", e+3)
		s := l.Node("b").State()
		if err != nil || r.Member != "b" || r.Epoch != e+3 || r.Position != s.Position || r.Copy != s.Copy || !r.Promotable {
			t.Fatalf("%+v, %v", r, err)
		}
		obeys := func() {
			t.Helper()
			if r, err := l.seal("b", e+2); err == nil {
				t.Errorf("a lower epoch was promised after: %+v", r)
			}
			if again, err := l.seal("b", e+3); err != nil || again.Position != r.Position {
				t.Errorf("asked again: %+v, %v", again, err)
			}
			l.write("a") // c acknowledges
			time.Sleep(3 * time.Second)
			if s := l.Node("b").State(); s.Source != "" || s.Receiving || s.Position != r.Position {
				t.Errorf("WAL of epoch %d was taken after the promise of %d: %+v", e, e+3, s)
			}
		}
		obeys()
		l.stop("b")
		l.start("b")
		time.Sleep(time.Second)
		obeys()
	})
}

// An epoch is promised to one candidate, also beyond a restart: a stolen witness can have two replicas claim it.
func TestEpochIsPromisedToOneCandidate(t *testing.T) {
	inBubble(t, func(l *lab) {
		e := l.epoch() + 3
		for range 2 {
			if _, err := l.agents["b"].Seal(context.Background(), agent.SealRequest{Epoch: e, Candidate: "c"}); err != nil {
				t.Fatal(err)
			}
			if _, err := l.agents["b"].Seal(context.Background(), agent.SealRequest{Epoch: e, Candidate: "a"}); err == nil || !strings.Contains(err.Error(), "already promised to c") {
				t.Errorf("another candidate: %v", err)
			}
			l.stop("b")
			l.start("b")
			time.Sleep(time.Second)
		}
		if _, err := l.agents["b"].Seal(context.Background(), agent.SealRequest{Epoch: e + 1, Candidate: "a"}); err != nil {
			t.Errorf("a later epoch: %v", err)
		}
	})
}

// A member that follows the leader of an epoch gives its seal of that epoch to nobody: a candidate of it is one of
// another story, and would end the stream on which the leader's commits are acknowledged.
func TestFollowerSealsNoSecondLeader(t *testing.T) {
	inBubble(t, func(l *lab) {
		e := l.epoch()
		l.wait("b is fed", 10*time.Second, func() bool { return l.counted("b") })
		for range 2 {
			if _, err := l.agents["b"].Seal(context.Background(), agent.SealRequest{Epoch: e, Candidate: "c"}); err == nil || !strings.Contains(err.Error(), "already promised to a") {
				t.Errorf("a second leader of the epoch: %v", err)
			}
			if s := l.agents["b"].View().Local; s.Source != "a" || s.SourceEp != e {
				t.Errorf("b is fed by %s in epoch %d", s.Source, s.SourceEp)
			}
			l.stop("b")
			l.start("b")
			l.wait("b is fed again", 30*time.Second, func() bool {
				return l.counted("b") && l.agents["b"].View() != nil && l.agents["b"].View().Local.Source == "a"
			})
		}
	})
}

func TestSealWaitsForTheWalreceiver(t *testing.T) {
	inBubble(t, func(l *lab) {
		e := l.epoch()
		l.Node("b").Linger(true)
		if r, err := l.seal("b", e+1); err == nil {
			t.Errorf("sealed with a living walreceiver: %+v", r)
		}
		l.Node("b").Linger(false)
		if _, err := l.seal("b", e+1); err != nil {
			t.Error(err)
		}
	})
}

// TestSealDoesNotWaitForReplay: a primary that dies while it writes leaves the beginning of a record, which is never
// replayed.
func TestSealDoesNotWaitForReplay(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("b").Torn(true)
		begin := time.Now()
		r, err := l.seal("b", l.epoch()+1)
		if took := time.Since(begin); err != nil || r.Position != l.Node("b").State().Position || took > 10*time.Millisecond {
			t.Errorf("%+v after %v, %v", r, took, err)
		}
	})
}

// TestLongReplayEndsNoServer holds that a failover comes to its end where both copies that may lead have a record to
// replay that takes longer than any lease. A server with a deadline would be killed for it, and begin again, for good.
func TestLongReplayEndsNoServer(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("b").SlowReplay(3 * time.Minute)
		l.Node("c").SlowReplay(3 * time.Minute)
		before := l.epoch()
		l.kill("a")
		next := l.leader(4*time.Minute, "a")
		if now := l.epoch(); now > before+20 {
			t.Errorf("epoch %d after %d: each takes a timeline id", now, before)
		}
		l.write(next)
		for _, id := range []ag.ReplicaID{"b", "c"} {
			if f := l.Node(id).State().Fences; len(f) > 0 {
				t.Errorf("%s: %v", id, f)
			}
		}
		l.start("a")
		l.formed(next, time.Minute)
	})
}

func TestSealOfAMemberWhoseServerIsDown(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Node("b").Fail("start", errors.New("no"))
		l.Node("b").Crash()
		r, err := l.seal("b", l.epoch()+1)
		if err != nil || r.Position != l.Node("b").State().Position {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestSealFencesAnOlderPrimary(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Node("a").Before("fence", func() {
			if g := l.agents["a"].Gate(); g > boottime.Now() {
				t.Error("the gate is open while the fence is under way")
			}
		})
		r, err := l.seal("a", l.epoch()+1)
		if err != nil {
			t.Fatal(err)
		}
		if s := l.Node("a").State(); len(s.Fences) != 1 || s.Running && !s.Recovery || r.Position != s.Position {
			t.Errorf("%+v", s)
		}
	})
}

// A candidate asks a member that refuses again and again, with growing pauses, and is given its seal soon after the
// member can answer.
func TestRefusedSealIsAskedAgainAfterAPause(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Record.SetGroup(func(g *ag.Group) { g.Replicas[2].FailoverMode = ag.Manual }) // it does not claim itself
		time.Sleep(time.Second)
		l.Node("c").Fail("seal", errors.New("it is not ready"))
		l.kill("a")
		l.wait("b is a candidate", time.Minute, func() bool {
			r := l.Record.Snapshot().Record.Epoch
			return r.Phase == ag.PhaseSeal && r.Leader == "b"
		})
		before := l.Calls("seal c")
		time.Sleep(time.Minute)
		if n := l.Calls("seal c") - before; n < 30 || n > 70 {
			t.Errorf("c was asked %d times in a minute", n)
		}
		l.Node("c").Fail("seal", nil)
		l.leader(3*time.Second, "a")
	})
}

func TestWitnessSealsNothing(t *testing.T) {
	l := &lab{T: t}
	a, err := agent.New(agent.Config{Self: "w", Marks: marks.Open(t.TempDir()), Store: none{}, Peers: none{}, Sessions: none{}, Logger: l.logger("w")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Seal(t.Context(), agent.SealRequest{Epoch: 1}); err == nil {
		t.Error("a witness sealed")
	}
	if g := a.Gate(); g != 0 {
		t.Errorf("gate %v", g)
	}
}

// TestRemovedWitnessHasNoServer holds that a witness lives on when it was removed: the configuration does not say any
// more that it holds no data, so the plan is that of a replica without a copy.
func TestRemovedWitnessHasNoServer(t *testing.T) {
	l := &lab{T: t}
	a, err := agent.New(agent.Config{Self: "w", Marks: marks.Open(t.TempDir()), Store: none{}, Peers: none{}, Sessions: none{}, Logger: l.logger("w")})
	if err != nil {
		t.Fatal(err)
	}
	for _, act := range []ag.Action{ag.Seed{Source: "a"}, ag.Rewind{Source: "a"}, ag.Start{}, ag.Stop{}, ag.Hold{}, ag.Fence{}} {
		a.Act(t.Context(), act)
	}
}

// none stands for ports that are not used.
type none struct {
	agent.Store
	agent.Peers
	agent.Sessions
}
