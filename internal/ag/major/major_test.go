package major

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

var (
	began   = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	errKill = errors.New("killed")
)

// world is a node and its group, of which each call of the procedure can be the last one of a process: before its
// effect or after it.
type world struct {
	saved   Upgrade
	group   ag.Group
	record  ag.Record
	clean   bool
	stopped bool
	makes   error

	oldWhole bool   // the old cluster can be started
	newDir   bool   // there is a directory of the new one
	newWhole bool   // and it is complete
	fixed    string // why the node's file cannot be changed
	config   string // the system identifier of the cluster that the node's file names
	dropped  bool

	late    *Passage // a transaction that is under way when its process dies
	calls   int
	killAt  int  // the call that is the last one; 0: none
	after   bool // it has its effect
	lateNow bool // the transaction under way is made after the next look
	steps   []string
}

func newWorld() *world {
	w := &world{clean: true, oldWhole: true, config: "15"}
	w.group = ag.Group{SystemID: "15", Replicas: []ag.Replica{{ID: "n1", Major: 15}, {ID: "n2", Major: 15}}}
	w.record = ag.Record{
		Epoch: ag.EpochRecord{Epoch: 4, Phase: ag.PhaseLead, Leader: "n1", TLI: 5, MaxTLI: 7},
		State: ag.State{Epoch: 4, Leader: "n1", Copy: "old", V: []ag.Member{{ID: "n2", Copy: "two"}}, K: 1, Seq: 40},
	}
	w.saved = Upgrade{
		Phase: Asked, Self: "n1", Mode: Copy, Epoch: 4, Asked: began, Until: began.Add(time.Hour), Maintenance: true,
		From: Cluster{Major: 15, SystemID: "15", Copy: "old"}, To: Cluster{Major: 16},
	}
	w.group.Maintenance = &ag.Maintenance{Until: w.saved.Until, Reason: w.saved.Reason()}
	return w
}

// call is the effect of one call, which may be the last of its process.
func (w *world) call(what string, effect func() error) error {
	w.calls++
	w.steps = append(w.steps, what)
	if w.killAt == w.calls {
		if w.after {
			_ = effect()
		}
		panic(errKill)
	}
	return effect()
}

func (w *world) Save(u Upgrade) error {
	return w.call("save "+string(u.Phase), func() error { w.saved = u; return nil })
}

func (w *world) Facts(context.Context, Upgrade) (f Facts, err error) {
	err = w.call("facts", func() error {
		f = Facts{Group: w.group, Record: w.record, Now: began.Add(time.Minute), Clean: w.clean, Stopped: w.stopped, Fixed: w.fixed}
		return nil
	})
	if w.lateNow && w.late != nil {
		w.make(*w.late)
		w.late = nil
	}
	return f, err
}

func (w *world) Make(_ context.Context, u Upgrade) (Upgrade, error) {
	err := w.call("make", func() error {
		w.newDir, w.newWhole = true, w.makes == nil
		w.oldWhole = w.oldWhole && u.Mode != Link // until Remove
		return w.makes
	})
	u.To.SystemID, u.To.Copy, u.To.End, u.To.Timelines = "16", "new", ag.Position{Timeline: 1, LSN: 100}, []ag.TimelineEntry{{TLI: 1}}
	return u, err
}

func (w *world) make(p Passage) {
	w.group, w.record = p.Group, ag.Record{Epoch: p.Epoch, State: p.State, Revs: ag.Revisions{Epoch: w.record.Revs.Epoch + 1}}
}

func (w *world) Pass(_ context.Context, f Facts, p Passage) error {
	if w.killAt == w.calls+1 && !w.after {
		w.late = &p // its process dies, and the transaction is still under way
	}
	return w.call("pass", func() error {
		if f.Record.Revs != w.record.Revs || f.Group.SystemID != w.group.SystemID || f.Record.Epoch.Epoch != w.record.Epoch.Epoch {
			return errors.New("conflict")
		}
		w.make(p)
		return nil
	})
}

func (w *world) Void(_ context.Context, u Upgrade) error {
	return w.call("void", func() error { w.late = nil; u.EndMaintenance(&w.group); return nil })
}

func (w *world) Adopt(u Upgrade) error {
	return w.call("adopt", func() error { w.config = u.To.SystemID; return nil })
}

func (w *world) Remove(u Upgrade) error {
	return w.call("remove", func() error { w.newDir, w.newWhole, w.oldWhole = false, false, true; return nil })
}

func (w *world) Drop(_ context.Context, u Upgrade) error {
	return w.call("drop", func() error { w.dropped = true; return nil })
}

// run goes on with the procedure as a process does, which may be killed.
func (w *world) run(t *testing.T) (u Upgrade, err error) {
	defer func() {
		if died := recover(); died != nil {
			err = errKill
		}
	}()
	return Run(t.Context(), w, w.saved)
}

// finish runs the procedure again and again, as a service manager does.
func (w *world) finish(t *testing.T) {
	t.Helper()
	for range 5 {
		u, err := w.run(t)
		if err == nil {
			if u.Phase != w.saved.Phase {
				t.Fatalf("it says %s and has saved %s", u.Phase, w.saved.Phase)
			}
			return
		}
		if !errors.Is(err, errKill) {
			t.Fatal(err)
		}
	}
	t.Fatal("it does not end")
}

// check holds that the node starts on the cluster that the group has, and that this cluster is whole.
func (w *world) check(t *testing.T) {
	t.Helper()
	leads := w.record.Epoch.Leader == "n1"
	switch {
	case leads && w.config != w.group.SystemID:
		t.Errorf("the group has cluster %s, and its primary starts %s (%v)", w.group.SystemID, w.config, w.steps)
	case w.config == "15" && !w.oldWhole:
		t.Errorf("the old cluster is to be started, and cannot be (%v)", w.steps)
	case w.config == "15" && w.newDir && !w.saved.Back:
		t.Errorf("the new cluster was left behind (%v)", w.steps)
	case w.config == "16" && !w.newWhole:
		t.Errorf("the new cluster is to be started, and is not complete (%v)", w.steps)
	case w.config == "16" && w.saved.Phase != Done, w.config == "15" && w.saved.Phase != GivenUp && !w.saved.Back:
		t.Errorf("cluster %s, and the phase is %s (%v)", w.config, w.saved.Phase, w.steps)
	case w.group.Maintenance != nil:
		t.Errorf("the group is still under maintenance (%v)", w.steps)
	}
}

// TestKilledAtEveryCall ends the procedure before and after each of its calls, in every kind of world, and holds that
// the group has the old cluster or the new one, whole, with its primary on the same.
func TestKilledAtEveryCall(t *testing.T) {
	worlds := map[string]func(*world){
		"all is well":                 func(*world) {},
		"by link":                     func(w *world) { w.saved.Mode = Link },
		"pg_upgrade refuses":          func(w *world) { w.makes = errors.New("no") },
		"pg_upgrade fails by link":    func(w *world) { w.saved.Mode, w.makes = Link, errors.New("no") },
		"the server was killed":       func(w *world) { w.clean = false },
		"its file cannot be changed":  func(w *world) { w.fixed = "read-only" },
		"an administrator gives up":   func(w *world) { w.stopped = true },
		"its time is over":            func(w *world) { w.saved.Until = began },
		"another replica leads":       func(w *world) { w.record.Epoch.Epoch, w.record.Epoch.Leader = 5, "n2" },
		"another epoch of its own":    func(w *world) { w.record.Epoch.Epoch = 5 },
		"a takeover has begun":        func(w *world) { w.record.Epoch.Epoch, w.record.Epoch.Phase = 5, ag.PhaseSeal },
		"a late transaction is made":  func(w *world) { w.lateNow = true },
		"given up after it was asked": func(w *world) { w.lateNow, w.stopped = true, false },
	}
	for name, change := range worlds {
		t.Run(name, func(t *testing.T) {
			n := newWorld()
			change(n)
			n.finish(t)
			n.check(t)
			for at := 1; at <= n.calls; at++ {
				for _, after := range []bool{false, true} {
					w := newWorld()
					change(w)
					w.killAt, w.after = at, after
					if _, err := w.run(t); !errors.Is(err, errKill) {
						t.Fatalf("call %d: %v", at, err)
					}
					w.lateNow = w.lateNow || name == "given up after it was asked"
					if name == "given up after it was asked" {
						w.stopped = true
					}
					w.finish(t)
					w.check(t)
				}
			}
		})
	}
}

// TestTakeoverMeanwhile has another replica lead before any call: the node goes on with the old cluster then, unless
// the group had passed.
func TestTakeoverMeanwhile(t *testing.T) {
	whole := newWorld()
	whole.finish(t)
	for at := 1; at <= whole.calls; at++ {
		w := newWorld()
		w.killAt = at
		_, _ = w.run(t)
		if w.group.SystemID == "16" {
			continue
		}
		w.record.Epoch, w.late = ag.EpochRecord{Epoch: 5, Phase: ag.PhaseLead, Leader: "n2"}, nil
		w.record.Revs.Epoch++
		w.finish(t)
		if w.config != "15" || !w.oldWhole || w.newDir || w.saved.Phase != GivenUp || w.group.SystemID != "15" {
			t.Errorf("killed at call %d: %+v", at, w)
		}
	}
}

// TestTheFileCannotBeChanged holds that the group does not pass to a cluster that this node's file could not name: it
// would have no primary.
func TestTheFileCannotBeChanged(t *testing.T) {
	for _, phase := range []Phase{Asked, Made} {
		w := newWorld()
		w.saved.Phase, w.fixed = phase, "read-only"
		w.saved.To.SystemID, w.newDir, w.newWhole = "16", phase == Made, phase == Made
		w.finish(t)
		if w.check(t); w.group.SystemID != "15" || w.saved.Phase != GivenUp || w.saved.Why != w.fixed {
			t.Errorf("%s: the group has cluster %s: %+v", phase, w.group.SystemID, w.saved)
		}
	}
	w := newWorld()
	w.group.SystemID, w.fixed = "16", "read-only"
	w.saved = Upgrade{Phase: Following, Self: "n2", From: Cluster{Major: 15, SystemID: "15"}, To: Cluster{Major: 15}}
	if w.finish(t); w.dropped {
		t.Error("a copy was dropped for one that could not be used")
	}
}

// TestPassage holds what the group is after the transaction.
func TestPassage(t *testing.T) {
	w := newWorld()
	u := w.saved
	u.To.SystemID, u.To.Copy, u.To.End, u.To.Timelines = "16", "new", ag.Position{Timeline: 1, LSN: 100}, []ag.TimelineEntry{{TLI: 1}}
	p := u.Passage(Facts{Group: w.group, Record: w.record})
	if e := p.Epoch; e.Epoch != 5 || e.Phase != ag.PhasePromote || e.TLI != 8 || e.MaxTLI != 8 || e.Copy != "new" || e.From != u.To.End || e.Leader != "n1" {
		t.Errorf("epoch %+v", e)
	}
	if s := p.State; s.Seq != 41 || s.K != 0 || len(s.V) != 0 || s.Copy != "new" || s.Leader != "n1" || len(s.Timelines) != 1 {
		t.Errorf("state %+v", s)
	}
	if g := p.Group; g.SystemID != "16" || g.Replicas[0].Major != 16 || g.Replicas[1].Major != 15 || g.Maintenance != nil {
		t.Errorf("group %+v", g)
	}
	if w.group.Replicas[0].Major != 15 {
		t.Error("the configuration that was read was changed")
	}
	w.group.Maintenance = &ag.Maintenance{Reason: "new switches"}
	if p := u.Passage(Facts{Group: w.group, Record: w.record}); p.Group.Maintenance == nil {
		t.Error("somebody else's maintenance was ended")
	}
}

// TestBack goes back to the old cluster, whatever is killed, and refuses where its files were given away.
func TestBack(t *testing.T) {
	back := func() *world {
		w := newWorld()
		w.finish(t)
		w.record.Epoch.Phase, w.record.State.Epoch = ag.PhaseLead, 5
		w.calls, w.steps = 0, nil
		var err error
		if w.saved, err = w.saved.Reverse(5, began, began.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := back()
	w.finish(t)
	if w.config != "15" || w.group.SystemID != "15" || w.record.Epoch.Copy != "old" || w.record.Epoch.Epoch != 6 || !w.newDir {
		t.Errorf("%+v", w)
	}
	for at := 1; at <= w.calls; at++ {
		for _, after := range []bool{false, true} {
			k := back()
			k.killAt, k.after = at, after
			_, _ = k.run(t)
			k.finish(t)
			if k.config != "15" || k.group.SystemID != "15" {
				t.Errorf("killed at call %d: %+v", at, k)
			}
		}
	}
	for _, u := range []Upgrade{{}, {Phase: Asked}, {Phase: Done, Mode: Link}, {Phase: Done, Mode: Copy, Back: true}} {
		if _, err := u.Reverse(5, began, began); err == nil {
			t.Errorf("%+v was taken back", u)
		}
	}
}

// TestFollowing has another replica drop its copy only once the primary runs the new version.
func TestFollowing(t *testing.T) {
	for _, c := range []struct {
		name   string
		system string
		leader ag.ReplicaID
		major  int
		step   Step
	}{
		{"the group has the new cluster", "16", "n1", 16, Drop},
		{"the group has the old one", "15", "n1", 15, GiveUp},
		{"the primary runs another version", "16", "n1", 17, GiveUp},
		{"it leads itself", "16", "n2", 16, GiveUp},
		{"the primary is no member", "16", "n9", 16, GiveUp},
	} {
		u := Upgrade{Phase: Following, Self: "n2", From: Cluster{Major: 15, SystemID: "15"}, To: Cluster{Major: 16}}
		g := ag.Group{SystemID: c.system, Replicas: []ag.Replica{{ID: "n1", Major: c.major}, {ID: "n2", Major: 16}}}
		step, why := u.Next(Facts{Group: g, Record: ag.Record{Epoch: ag.EpochRecord{Leader: c.leader}}})
		if step != c.step || (step == GiveUp) != (why != "") {
			t.Errorf("%s: %s %s", c.name, step, why)
		}
	}
	w := newWorld()
	w.group.SystemID = "16"
	w.group.Replicas[1].Major = 16
	w.record.Epoch.Leader = "n2"
	w.saved = Upgrade{Phase: Following, Self: "n1", From: Cluster{SystemID: "15"}, To: Cluster{Major: 16}}
	w.finish(t)
	if !w.dropped || w.saved.Phase != Done {
		t.Error(fmt.Sprint(w))
	}
}
