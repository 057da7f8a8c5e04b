package major

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// filled is a world in which green is filled: each call can be the last one of its agent.
type filled struct {
	*world
	facts    GreenFacts
	waits    int
	switches []error // what the next switches end with; the last one is repeated
	slots    bool    // blue keeps WAL for green
	defines  error
	runs     bool // green's server runs
}

func newFilled() *filled {
	w := &filled{world: newWorld(), facts: GreenFacts{Leads: true, Now: began.Add(time.Minute)}}
	w.group.Maintenance = nil
	w.saved.Phase, w.saved.Mode, w.saved.Maintenance = Copying, Green, false
	return w
}

func (w *filled) GreenFacts(context.Context, Upgrade) (f GreenFacts, err error) {
	err = w.call("look", func() error {
		f = w.facts
		f.Runs = w.runs
		f.Leads = f.Leads && w.record.Epoch.Epoch == 4 && w.group.SystemID == "15"
		return nil
	})
	return f, err
}

func (w *filled) Empty(_ context.Context, u Upgrade) (Upgrade, error) {
	err := w.call("empty", func() error { w.newDir, w.runs = true, true; return nil })
	u.To.SystemID = "16"
	return u, err
}

func (w *filled) Define(_ context.Context, u Upgrade) (Upgrade, error) {
	u.Print = "p"
	return u, w.call("define", func() error { return w.defines })
}

func (w *filled) Subscribe(context.Context, Upgrade) error {
	return w.call("subscribe", func() error { w.slots, w.facts.Tables = true, 2; return nil })
}

func (w *filled) Wait(context.Context, Upgrade, GreenFacts) error {
	return w.call("wait", func() error { w.waits++; w.facts.Tables = max(0, w.facts.Tables-1); return nil })
}

func (w *filled) MakeReady(context.Context, Upgrade) error {
	return w.call("ready", func() error { return nil })
}

// Switch does as the adapter: everything is on green and both servers have ended before the state says Made.
func (w *filled) Switch(ctx context.Context, u Upgrade) (Upgrade, error) {
	if len(w.switches) > 0 {
		err := w.switches[0]
		if len(w.switches) > 1 {
			w.switches = w.switches[1:]
		}
		if err != nil {
			u.Tries, u.Why = u.Tries+1, err.Error()
			return u, w.call("switch", func() error { return nil })
		}
	}
	if err := w.call("finish", func() error { w.slots, w.runs, w.newWhole = false, false, true; return nil }); err != nil {
		return u, err
	}
	u.To.Copy, u.Phase = "new", Made
	if err := w.Save(u); err != nil {
		return u, err
	}
	return Run(ctx, w, u)
}

func (w *filled) Discard(Upgrade) error {
	return w.call("discard", func() error { w.newDir, w.newWhole, w.runs = false, false, false; return nil })
}

// Remove is what an agent does that begins: the server of green ended with the one before.
func (w *filled) Remove(u Upgrade) error { w.runs = false; return w.world.Remove(u) }

// fill runs the procedure as the agent does that began it, and then as those do that follow.
func (w *filled) fill(t *testing.T) {
	t.Helper()
	func() {
		defer func() { _ = recover() }()
		if _, err := RunGreen(t.Context(), w, w.saved); err != nil {
			t.Fatal(err)
		}
	}()
	w.runs = false
	for range 5 {
		func() {
			defer func() { _ = recover() }()
			if _, err := Run(t.Context(), w, w.saved); err != nil {
				t.Fatal(err)
			}
		}()
	}
}

// TestGreenKilledAtEveryCall ends the agent before and after each call: the group has one of the two clusters, whole,
// and its primary starts the same.
func TestGreenKilledAtEveryCall(t *testing.T) {
	worlds := map[string]func(*filled){
		"all is well":               func(*filled) {},
		"definitions are refused":   func(w *filled) { w.defines = errors.New("no") },
		"transactions do not end":   func(w *filled) { w.switches = []error{errors.New("busy")} },
		"it passes at the third":    func(w *filled) { w.switches = []error{errors.New("busy"), errors.New("busy"), nil} },
		"an administrator gives up": func(w *filled) { w.facts.Stopped = true },
		"another replica leads":     func(w *filled) { w.record.Epoch.Epoch, w.record.Epoch.Leader = 5, "n2" },
		"blue has changed":          func(w *filled) { w.clean = false },
		"a late transaction":        func(w *filled) { w.lateNow = true },
	}
	for name, change := range worlds {
		t.Run(name, func(t *testing.T) {
			n := newFilled()
			change(n)
			n.fill(t)
			n.check(t)
			if passes := name == "all is well" || name == "it passes at the third" || name == "a late transaction"; passes != (n.config == "16") {
				t.Fatalf("it ended with cluster %s: %s (%v)", n.config, n.saved.Why, n.steps)
			}
			for at := 1; at <= n.calls; at++ {
				for _, after := range []bool{false, true} {
					w := newFilled()
					change(w)
					w.killAt, w.after = at, after
					w.fill(t)
					w.check(t)
				}
			}
		})
	}
}

// TestGreenGivesUp holds why it is given up, and that it is not given up for less.
func TestGreenGivesUp(t *testing.T) {
	u := newFilled().saved
	u.Stage, u.Until = Subscribed, began.Add(time.Hour)
	well := GreenFacts{Leads: true, Runs: true, Now: began}
	for name, c := range map[string]struct {
		change func(*Upgrade, *GreenFacts)
		step   GreenStep
		why    string
	}{
		"rows are to come":      {func(_ *Upgrade, f *GreenFacts) { f.Tables = 1 }, GreenWait, ""},
		"WAL is to come":        {func(_ *Upgrade, f *GreenFacts) { f.Lag = 1 << 30 }, GreenWait, ""},
		"rows are there":        {func(*Upgrade, *GreenFacts) {}, GreenReady, ""},
		"everything is there":   {func(u *Upgrade, _ *GreenFacts) { u.Stage = Ready }, GreenSwitch, ""},
		"behind again":          {func(u *Upgrade, f *GreenFacts) { u.Stage, f.Lag = Ready, 1<<30 }, GreenWait, ""},
		"a failover":            {func(_ *Upgrade, f *GreenFacts) { f.Leads = false }, GreenAbandon, "another leadership"},
		"green is killed":       {func(_ *Upgrade, f *GreenFacts) { f.Runs = false }, GreenAbandon, "has ended"},
		"definitions change":    {func(_ *Upgrade, f *GreenFacts) { f.Changed = "the definitions" }, GreenAbandon, "the definitions"},
		"a row is not accepted": {func(_ *Upgrade, f *GreenFacts) { f.Failed = "duplicate key" }, GreenAbandon, "duplicate key"},
		"its time is over":      {func(_ *Upgrade, f *GreenFacts) { f.Now = began.Add(2 * time.Hour) }, GreenAbandon, "time was over"},
		"too many tries":        {func(u *Upgrade, _ *GreenFacts) { u.Stage, u.Tries, u.Why = Ready, maxTries, "busy" }, GreenAbandon, "busy"},
	} {
		v, f := u, well
		c.change(&v, &f)
		if step, why := v.NextGreen(f); step != c.step || !strings.Contains(why, c.why) {
			t.Errorf("%s: %s, %q", name, step, why)
		}
	}
}
