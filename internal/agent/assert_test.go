package agent_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// violated waits until an agent has ended with a violated assertion that says so.
func (l *lab) violated(id ag.ReplicaID, what string) {
	l.Helper()
	l.wait(string(id)+" ends", 20*time.Second, func() bool { _, over := l.ended.Load(id); return over })
	end, _ := l.ended.Load(id)
	if err, ok := end.(error); !ok || !assert.Violated(err) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "report this") {
		l.Errorf("%s ended with %v, want %q", id, end, what)
	}
	if s := l.Node(id).State(); s.Running {
		l.Errorf("%s left its server running", id)
	}
}

// lostWAL is a server that reports an end of WAL before the end of its recovery, once it is told to.
type lostWAL struct {
	agent.Instance
	lies *atomic.Bool
}

func (i lostWAL) FlushLSN(ctx context.Context) (ag.LSN, error) {
	if i.lies.Load() {
		return 1, nil
	}
	return i.Instance.FlushLSN(ctx)
}

// A violated assertion on the primary ends the epoch: its server is fenced, the leadership is released, and another
// replica leads without waiting for silence.
func TestAssertionEndsTheEpoch(t *testing.T) {
	inBubbleUnformed(t, func(l *lab) {
		lies := map[ag.ReplicaID]*atomic.Bool{"a": {}, "b": {}, "c": {}}
		l.wrap = func(c *agent.Config) { c.Instance = lostWAL{c.Instance, lies[c.Self]} }
		for _, id := range l.ids {
			l.start(id)
		}
		l.formed("a", 30*time.Second)
		l.Node("a").Crash()
		first := l.leader(15*time.Second, "a")
		l.formed(first, time.Minute)
		l.write(first)
		lies[first].Store(true)
		l.Cut(first, "a", true) // so that the setting changes, and is proven
		l.violated(first, "lies before the end of recovery")
		at := boottime.Now()
		l.Cut(first, "a", false)
		next := l.leader(15*time.Second, first)
		if took := boottime.Now() - at; took > 3*time.Second {
			t.Errorf("%s leads after %v: the leadership was not released", next, took)
		}
		l.write(next)
	})
}

// A state that cannot be, met by a client's goroutine at the gate, shuts the gate at once and ends the epoch.
func TestAssertionAtTheGate(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		a := l.agents["a"]
		a.SetOpened(99)
		if g := a.Gate(); g != 1 {
			t.Errorf("the gate is open until %v", g)
		}
		l.violated("a", "clients are answered in epoch 99")
		l.write(l.leader(15*time.Second, "a"))
	})
}

// stubborn is an upstream that does not let its source go.
type stubborn struct{ agent.Upstream }

func (stubborn) Seal(context.Context) error { return nil }

// makeStubborn starts b anew with such an upstream.
func (l *lab) makeStubborn() {
	l.Helper()
	l.write("a")
	l.stop("b")
	l.wrap = func(c *agent.Config) { c.Upstream = stubborn{c.Upstream} }
	l.start("b")
	l.wrap = nil
}

// A member that would take WAL after its seal gives no seal, and ends.
func TestAssertionInASeal(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.makeStubborn()
		l.wait("b streams", time.Minute, func() bool { return l.Node("b").State().Receiving })
		_, err := l.agents["b"].Seal(context.Background(), agent.SealRequest{Epoch: 99, Candidate: "c"})
		if !assert.Violated(err) {
			t.Errorf("sealed: %v", err)
		}
		l.violated("b", "is taken after the seal of epoch 99")
	})
}

// The seal that a candidate gives itself is no exception.
func TestAssertionInACandidatesOwnSeal(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.makeStubborn()
		l.Record.SetGroup(func(g *ag.Group) { g.Replicas[2].FailoverMode = ag.Manual })
		l.formed("a", time.Minute)
		l.wait("b streams", time.Minute, func() bool { return l.Node("b").State().Receiving })
		l.kill("a")
		l.violated("b", "is taken after the seal of epoch")
	})
}

// An assertion of the worker is one of the loop, and so is the end of an action that never began.
func TestAssertionOfTheWorker(t *testing.T) {
	for name, do := range map[string]func(){
		"in an action": func() {
			agent.RunJob(func(context.Context) (func(), error) { assert.That(1 > 2, "1 is above 2"); return nil, nil })
		},
		"never began": agent.EndJob,
	} {
		if err := assert.Guard(func() error { do(); return nil }); !assert.Violated(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
