package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// TestMain lets boottime follow time.Now, which is the bubble's clock inside a bubble and the real one outside.
func TestMain(m *testing.M) {
	boottime.SetForTest(func() time.Duration { return time.Duration(time.Now().UnixNano()) })
	os.Exit(m.Run())
}

// lab is a world whose nodes run real agents.
type lab struct {
	*testing.T
	*agenttest.World
	ids    []ag.ReplicaID
	dirs   map[ag.ReplicaID]string
	agents map[ag.ReplicaID]*agent.Agent
	ends   map[ag.ReplicaID]func()
	born   int
	lossy  bool // an operator has accepted the loss of commits
	probes map[ag.ReplicaID]*probes
	wrap   func(*agent.Config) // changes the configuration of the agents that start next
	ended  sync.Map            // of ag.ReplicaID: the error with which its agent ended by itself
}

// group is three synchronous, automatic replicas.
func group(ids ...ag.ReplicaID) ag.Group {
	g := ag.Group{ID: "g", Name: "g", SessionTimeout: 10 * time.Second, Profile: "default"}
	for _, id := range ids {
		g.Replicas = append(g.Replicas, ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true})
	}
	return g
}

// inBubble runs a test on a formed group of a, b and c, led by a.
func inBubble(t *testing.T, test func(l *lab)) {
	t.Helper()
	inBubbleUnformed(t, func(l *lab) {
		for _, id := range l.ids {
			l.start(id)
		}
		l.formed("a", 30*time.Second)
		time.Sleep(250 * time.Millisecond) // until heartbeats reach those as well that started after the first attempt
		test(l)
	})
}

func inBubbleUnformed(t *testing.T, test func(l *lab)) {
	t.Helper()
	inBubbleOf(t, group("a", "b", "c"), test)
}

// inBubbleOf runs a test on a group whose first member, a, leads. Nothing runs yet.
func inBubbleOf(t *testing.T, g ag.Group, test func(l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{
			T: t, World: agenttest.NewWorld(g, "a"), dirs: map[ag.ReplicaID]string{}, agents: map[ag.ReplicaID]*agent.Agent{},
			ends: map[ag.ReplicaID]func(){}, probes: map[ag.ReplicaID]*probes{},
		}
		for _, r := range g.Replicas {
			l.ids, l.dirs[r.ID], l.probes[r.ID] = append(l.ids, r.ID), t.TempDir(), &probes{}
		}
		if err := marks.Open(l.dirs["a"]).SetCopy(marks.Copy{Copy: "copy-a", Epoch: 1, Seq: 1}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, id := range l.ids {
				l.stop(id)
			}
		}()
		test(l)
		l.sound()
	})
}

// logger writes to the test's log, with the bubble's time.
func (l *lab) logger(id ag.ReplicaID) *slog.Logger {
	return slog.New(slog.NewTextHandler(l.Output(), &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			a.Value = slog.StringValue(a.Value.Time().Format("04:05.000"))
		}
		return a
	}})).With("node", id)
}

func (l *lab) start(id ag.ReplicaID) *agent.Agent {
	l.Helper()
	n := l.Node(id)
	l.born++
	c := agent.Config{
		Self: id, Incarnation: fmt.Sprintf("%s-%d", id, l.born), Place: "of " + string(id), Marks: marks.Open(l.dirs[id]), Store: n.Store,
		Instance: n.Instance(), Keeper: n.Keeper(), Upstream: n.Upstream(), Downstream: n.Downstream(), Peers: n.Peers(),
		Sessions: n.Sessions(), Seeder: n.Seeder(), Logger: l.logger(id), Probes: l.probes[id],
		Suspend: func(context.Context) error { l.suspend(id, true); return nil },
		Copying: func() json.RawMessage { return json.RawMessage(`"to ` + id + `"`) },
	}
	if l.wrap != nil {
		l.wrap(&c)
	}
	a, err := agent.New(c)
	if err != nil {
		l.Fatal(err)
	}
	l.agents[id] = a
	n.Store.Kill(false)
	l.Attach(id, a)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.Run(ctx); err != nil {
			l.Logf("%s ended: %v", id, err)
			l.ended.Store(id, err)
		}
	}()
	l.ends[id] = func() {
		cancel()
		<-done
		n.Detached()
	}
	return a
}

// stop ends an agent in order.
func (l *lab) stop(id ag.ReplicaID) {
	if end := l.ends[id]; end != nil {
		delete(l.ends, id)
		end()
	}
}

// kill ends an agent and its server as a power cut does.
func (l *lab) kill(id ag.ReplicaID) {
	l.Node(id).Kill()
	l.stop(id)
}

// wait waits until cond holds.
func (l *lab) wait(what string, budget time.Duration, cond func() bool) {
	l.Helper()
	for end := time.Now().Add(budget); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r := l.Record.Snapshot().Record
			l.Fatalf("not within %v: %s; record %+v", budget, what, r)
		}
	}
}

// formed waits until id leads and every other replica with a link to it is counted and no more than the target is
// waited for.
func (l *lab) formed(id ag.ReplicaID, budget time.Duration) {
	l.Helper()
	l.wait(string(id)+" leads and both others are synchronized", budget, func() bool {
		r := l.Record.Snapshot().Record
		return r.Epoch.Leader == id && r.Epoch.Phase == ag.PhaseLead && len(r.State.V) == 2 && r.State.K >= 1 && l.leads(id)
	})
}

// leads reports whether a node's agent lets writes through.
func (l *lab) leads(id ag.ReplicaID) bool {
	p := l.agents[id].Plan()
	return p != nil && p.Open && l.agents[id].Gate() > boottime.Now()
}

// leader waits for a node other than not to let writes through.
func (l *lab) leader(budget time.Duration, not ...ag.ReplicaID) (id ag.ReplicaID) {
	l.Helper()
	l.wait(fmt.Sprintf("somebody leads, not %v", not), budget, func() bool {
		for _, x := range l.ids {
			if !slices.Contains(not, x) && l.leads(x) {
				id = x
				return true
			}
		}
		return false
	})
	return id
}

func (l *lab) write(id ag.ReplicaID) {
	l.Helper()
	if err := l.WriteWithin(id, 5*time.Second); err != nil {
		l.Fatalf("write on %s: %v", id, err)
	}
}

// sound checks what must be true of every history: records only go forward, timelines belong to one epoch, and no
// acknowledged commit is missing on the one who leads.
func (l *lab) sound() {
	l.Helper()
	past := l.Record.Past()
	tlis := map[ag.Timeline]ag.Epoch{}
	for i, r := range past {
		if i > 0 && r.Epoch.Epoch < past[i-1].Epoch.Epoch {
			l.Errorf("epoch went back from %d to %d", past[i-1].Epoch.Epoch, r.Epoch.Epoch)
		}
		if e, used := tlis[r.Epoch.TLI]; r.Epoch.TLI != 0 && used && e != r.Epoch.Epoch {
			l.Errorf("timeline %d belongs to epochs %d and %d", r.Epoch.TLI, e, r.Epoch.Epoch)
		}
		tlis[r.Epoch.TLI] = r.Epoch.Epoch
	}
	if s := l.Stale(); len(s) > 0 {
		l.Error(s)
	}
	r := l.Record.Snapshot().Record
	if r.Epoch.Phase == ag.PhaseLead && !l.lossy {
		if lost := l.Lost(r.Epoch.Leader); len(lost) > 0 {
			l.Errorf("%s leads epoch %d without the acknowledged commits %v", r.Epoch.Leader, r.Epoch.Epoch, lost)
		}
	}
}

func (l *lab) epoch() ag.Epoch { return l.Record.Snapshot().Record.Epoch.Epoch }

// counted reports whether the record counts the replica as synchronized.
func (l *lab) counted(id ag.ReplicaID) bool {
	_, in := l.Record.Snapshot().Record.State.InV(id)
	return in
}
