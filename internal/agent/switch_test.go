package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
)

// passes makes the transaction by which the group passes to another copy of a node, as the fakes have it: the same one
// in a new epoch that is to promote it.
func (l *lab) passes(id ag.ReplicaID) error {
	r := l.Record.Snapshot().Record
	e, st := r.Epoch, r.State.Clone()
	e.Epoch, e.Phase, e.Copy, e.From = e.Epoch+1, ag.PhasePromote, st.Copy, l.Node(id).State().Position
	e.MaxTLI++
	e.TLI = e.MaxTLI
	st.V, st.K = []ag.Member{}, 0
	st.Seq++
	return l.Node(id).Store.Commit(context.Background(), ag.Commit{Guard: ag.Revisions{Epoch: r.Revs.Epoch, State: r.Revs.State, Lead: -1}, Epoch: &e, State: &st})
}

func (l *lab) switches(id ag.ReplicaID, c agent.ClusterSwitch) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return l.agents[id].SwitchCluster(ctx, c)
}

// The group passes to another cluster of the primary's node: the gate is shut and the server stopped before it does,
// and the loop decides nothing until this node has the other cluster as well.
func TestSwitchOfTheCluster(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		was := l.epoch()
		err := l.switches("a", agent.ClusterSwitch{
			Quiet: func(context.Context, ag.LSN) error {
				if g := l.agents["a"].Gate(); g != 1 {
					t.Errorf("the gate is open until %v while the other cluster gets the last of it", g)
				}
				return nil
			},
			Pass: func() (bool, error) {
				if l.Node("a").State().Running {
					t.Error("the server runs while the group passes")
				}
				if err := l.passes("a"); err != nil {
					return false, err
				}
				time.Sleep(500 * time.Millisecond) // until the files name the other cluster
				if s := l.Node("a").State(); s.Running || l.epoch() != was+1 {
					t.Errorf("the loop has acted: epoch %d, %+v", l.epoch(), s)
				}
				return true, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		l.wait("a leads the next epoch", 10*time.Second, func() bool { return l.leads("a") && l.epoch() == was+1 && l.Node("a").State().Routes.WriteOpen })
		l.write("a")
		if s := l.Node("a").State(); len(s.Fences) > 0 {
			t.Errorf("fenced: %v", s.Fences)
		}
		l.formed("a", time.Minute)
	})
}

// A switch that does not pass leaves the primary leading in the same epoch, with its server restarted only if that had
// been stopped.
func TestSwitchThatIsGivenUp(t *testing.T) {
	no := errors.New("no")
	for name, c := range map[string]struct {
		is    agent.ClusterSwitch
		busy  int
		stops bool
	}{
		"transactions do not end":        {is: agent.ClusterSwitch{RestartOptions: agent.RestartOptions{Drain: time.Second}}, busy: 1},
		"the other has not got all":      {is: agent.ClusterSwitch{Quiet: func(context.Context, ag.LSN) error { return no }}},
		"it has not passed":              {is: agent.ClusterSwitch{Pass: func() (bool, error) { return false, nil }}, stops: true},
		"the server ends not in order":   {is: agent.ClusterSwitch{Pass: func() (bool, error) { t.Error("it passes"); return false, nil }}, stops: true},
		"another writes while it drains": {is: agent.ClusterSwitch{Quiet: func(ctx context.Context, _ ag.LSN) error { <-ctx.Done(); return ctx.Err() }}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.write("a")
				was, starts := l.epoch(), l.Node("a").State().Starts
				if c.is.Quiet == nil {
					c.is.Quiet = func(context.Context, ag.LSN) error { return nil }
				}
				if name == "the server ends not in order" {
					l.Node("a").Before("stop", l.Node("a").Crash)
				}
				l.Node("a").Busy(c.busy)
				if err := l.switches("a", c.is); err == nil {
					t.Fatal("it has passed")
				}
				l.Node("a").Busy(0)
				l.wait("a is open again", 20*time.Second, func() bool { return l.WriteWithin("a", time.Second) == nil && l.Node("a").State().Routes.WriteOpen })
				if s := l.Node("a").State(); l.epoch() != was || (s.Starts != starts) != c.stops || len(s.Fences) > 0 {
					t.Errorf("epoch %d after %d, %d starts after %d, fences %v", l.epoch(), was, s.Starts, starts, s.Fences)
				}
			})
		})
	}
}

// The server of a primary restarts in place: in the same epoch, once, and what was written stays. A server that does
// not end in order is started again, too. While transactions run it is not touched.
func TestRestartOfThePrimarysServer(t *testing.T) {
	for name, c := range map[string]struct {
		o     agent.RestartOptions
		busy  int
		crash bool
		says  bool // an error is returned
		stops bool
	}{
		"nothing runs":                 {stops: true},
		"transactions do not end":      {o: agent.RestartOptions{Drain: time.Second}, busy: 1, says: true},
		"the server ends not in order": {crash: true, says: true, stops: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.write("a")
				was, starts := l.epoch(), l.Node("a").State().Starts
				if c.crash {
					l.Node("a").Before("stop", l.Node("a").Crash)
				}
				l.Node("a").Busy(c.busy)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				if err := l.agents["a"].RestartPrimary(ctx, c.o); (err != nil) != c.says {
					t.Error(err)
				}
				l.Node("a").Busy(0)
				l.wait("a is open again", 20*time.Second, func() bool { return l.WriteWithin("a", time.Second) == nil && l.Node("a").State().Routes.WriteOpen })
				if s := l.Node("a").State(); l.epoch() != was || (s.Starts == starts+1) != c.stops || len(s.Fences) > 0 {
					t.Errorf("epoch %d after %d, %d starts after %d, fences %v", l.epoch(), was, s.Starts, starts, s.Fences)
				}
				if err := l.agents["b"].RestartPrimary(ctx, c.o); err == nil {
					t.Error("a secondary restarts as a primary")
				}
				l.formed("a", time.Minute)
			})
		})
	}
}

// The checkpoint before the restart may take minutes. Meanwhile the primary does what it does at other times: a member
// that has died is no longer counted, and nobody waits for the restart. When nobody asks for it any more, it is not
// carried out.
func TestCheckpointBeforeARestartHoldsNothingUp(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		starts := l.Node("a").State().Starts
		l.Node("a").Stall("checkpoint", true)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		asked := make(chan error, 1)
		go func() { asked <- l.agents["a"].RestartPrimary(ctx, agent.RestartOptions{}) }()
		l.wait("it says what it prepares", 10*time.Second, func() bool { return l.agents["a"].Own().Progress == "preparing: checkpoint" })
		l.kill("c")
		l.wait("c is not counted", 30*time.Second, func() bool { return !l.counted("c") })
		l.write("a")
		l.start("c")
		l.formed("a", time.Minute)
		cancel()
		if err := <-asked; err == nil {
			t.Error("no error of a restart that was given up")
		}
		l.wait("it says that it prepares nothing any more", time.Minute, func() bool { return l.agents["a"].Own().Progress == "" })
		l.Node("a").Stall("checkpoint", false)
		time.Sleep(5 * time.Second)
		l.write("a")
		if s := l.Node("a").State(); s.Starts != starts {
			t.Errorf("the server was restarted: %d starts after %d", s.Starts, starts)
		}
	})
}

// A server that does not come back after a restart in place is not waited for until the budget of the whole is over,
// while its node holds the lease: another one leads.
func TestServerThatDoesNotComeBackFromARestart(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Stall("start-primary", true)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		asked := make(chan error, 1)
		go func() { asked <- l.agents["a"].RestartPrimary(ctx, agent.RestartOptions{}) }()
		l.wait("another one leads", 2*time.Minute, func() bool { return l.leads("b") || l.leads("c") })
		if err := <-asked; err == nil || ctx.Err() != nil {
			t.Errorf("who asked is told %v", err)
		}
		l.Node("a").Stall("start-primary", false)
		l.wait("a comes back", time.Minute, func() bool { return l.counted("a") })
	})
}

// Only a node that leads can switch.
func TestSwitchOfASecondary(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		if err := l.switches("b", agent.ClusterSwitch{}); err == nil {
			t.Error("a secondary has switched")
		}
	})
}
