package agent_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
)

// TestSwarm lets seeded faults loose on a group under writes, then heals everything: no acknowledged commit may be
// missing, and the group must be whole again.
func TestSwarm(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(l *lab) { l.swarm(rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func (l *lab) swarm(r *rand.Rand) {
	back := map[ag.ReplicaID]func() bool{}
	for i := range 25 {
		id := l.ids[r.IntN(len(l.ids))]
		n := l.Node(id)
		switch r.IntN(16) {
		case 0, 1:
			l.Isolate(id, true)
		case 2, 3:
			l.Isolate(id, false)
		case 4:
			n.Crash()
		case 5:
			if l.ends[id] != nil {
				l.stop(id)
			}
		case 6, 7:
			if l.ends[id] == nil {
				l.start(id)
			}
		case 8:
			n.Store.Inject([]string{"commit", "renew", "read"}[r.IntN(3)], agenttest.Fault{LoseReply: true}, agenttest.Fault{Late: 800 * time.Millisecond})
		case 9:
			l.Record.SetOp(ag.Op{ID: fmt.Sprint(i), Kind: ag.OpPlanned, To: id, Epoch: l.epoch()})
		case 10:
			n.Hang(r.IntN(2) == 0)
		case 11:
			n.StuckReaders(r.IntN(2) == 0)
		case 12, 13, 14:
			if back[id] == nil {
				back[id] = l.saved(id)
			} else if back[id]() {
				l.start(id)
			}
		case 15:
			n.SlowReplay(time.Duration(r.IntN(12)) * time.Second)
		}
		for range r.IntN(20) {
			_ = l.WriteWithin(l.ids[r.IntN(len(l.ids))], time.Duration(1+r.IntN(300))*time.Millisecond)
			time.Sleep(time.Duration(r.IntN(700)) * time.Millisecond)
		}
	}
	for _, id := range l.ids {
		l.Node(id).Hang(false)
		l.Node(id).SlowReplay(0)
		l.Isolate(id, false)
		if l.ends[id] == nil {
			l.start(id)
		}
	}
	next := l.leader(2 * time.Minute)
	l.wait("the group is whole", 5*time.Minute, func() bool {
		s := l.Record.Snapshot().Record.State
		return len(s.V) == 2 && s.K >= 1 && l.leads(next) || l.moved(&next)
	})
	l.wait("all are alike", time.Minute, func() bool {
		for _, id := range l.ids {
			if l.Node(id).State().Position != l.Node(next).State().Position {
				return false
			}
		}
		return true
	})
	l.write(next)
	for _, id := range l.ids {
		l.wait("clients are served where they may be", time.Minute, func() bool { return l.undisturbed(id, next) })
	}
}

// saved returns a function that puts a node back to what it is now, and reports whether it has. It does so only if the
// node has reported since that its copy was further: of the last seconds nobody knows that. The copy that led last
// stays: it may be the only one.
func (l *lab) saved(id ag.ReplicaID) (back func() bool) {
	was, restore := l.Node(id).State(), l.save(id)
	done := false
	return func() bool {
		now := l.Record.Snapshot()
		st := now.Statuses[id]
		done = done || st.Copy == was.Copy && st.Position.Timeline == was.Position.Timeline && st.Position.LSN > was.Position.LSN
		if done = done && now.Record.State.Leader != id; done {
			restore()
		}
		return done
	}
}

// undisturbed reports whether nothing of a failover is left at a node: no client waits there, and a secondary serves
// readers.
func (l *lab) undisturbed(id, leader ag.ReplicaID) bool {
	waits := map[string]bool{}
	for _, e := range l.Node(id).State().Events {
		if what, on, ok := strings.Cut(e, " "); ok && (what == "drain" || what == "hold") {
			waits[what] = on == "true"
		}
	}
	own, told := l.readable(id)
	return !waits["drain"] && !waits["hold"] && (id == leader || own && told)
}

// moved follows a change of leadership during the convergence; it never ends a wait.
func (l *lab) moved(next *ag.ReplicaID) bool {
	*next = l.Record.Snapshot().Record.Epoch.Leader
	return false
}
