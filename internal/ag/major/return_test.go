package major

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// open is an upgrade that is done, and whose old cluster follows.
func open() (Upgrade, ReturnFacts) {
	u := Upgrade{
		Phase: Done, Mode: Green, Self: "a", From: Cluster{Major: 15, SystemID: "15", Copy: "blue"}, To: Cluster{Major: 16, SystemID: "16", Copy: "green"},
		Return: &Return{Within: time.Hour, Open: true, Epoch: 5, Until: began.Add(time.Hour), Most: 100 << 20},
	}
	f := ReturnFacts{Serves: true, Now: began, Runs: true, Free: 1 << 40}
	f.Record.Epoch = ag.EpochRecord{Epoch: 5, Leader: "a", Phase: ag.PhaseLead}
	f.Record.State = ag.State{Epoch: 5, Leader: "a", Copy: "green"}
	return u, f
}

// TestNextReturn holds when an old cluster follows, when the group may pass back to it, and what ends that by name.
func TestNextReturn(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*Upgrade, *ReturnFacts)
		want ReturnStep
		says string
	}{
		{"it follows", func(*Upgrade, *ReturnFacts) {}, ReturnWait, ""},
		{"it is asked for", func(u *Upgrade, _ *ReturnFacts) { u.Return.Asked = true }, ReturnSwitch, ""},
		{"it is asked for, and far behind", func(u *Upgrade, f *ReturnFacts) { u.Return.Asked, f.Lag = true, maxLag+1 }, ReturnWait, ""},
		{"it is asked for, and definitions have changed", func(u *Upgrade, f *ReturnFacts) { u.Return.Asked, f.Changed = true, "changed" }, ReturnEnd, "does not get"},
		{"it is asked for while this node does not serve", func(u *Upgrade, f *ReturnFacts) { u.Return.Asked, f.Serves = true, false }, ReturnWait, ""},
		{"its server does not run", func(_ *Upgrade, f *ReturnFacts) { f.Runs = false }, ReturnFollow, ""},
		{"its server ends again and again", func(_ *Upgrade, f *ReturnFacts) { f.Runs, f.Starts = false, maxStarts }, ReturnEnd, "has ended 5 times"},
		{"its time is over", func(_ *Upgrade, f *ReturnFacts) { f.Now = began.Add(time.Hour) }, ReturnEnd, "time is over"},
		{"its time is over while it is taken", func(u *Upgrade, f *ReturnFacts) { u.Return.Asked, f.Now = true, began.Add(time.Hour) }, ReturnSwitch, ""},
		{"too much WAL is kept for it", func(_ *Upgrade, f *ReturnFacts) { f.Kept = 100<<20 + 1 }, ReturnEnd, "too far behind"},
		{"too much WAL, and its server does not run", func(_ *Upgrade, f *ReturnFacts) { f.Kept, f.Runs = 100<<20+1, false }, ReturnEnd, "too far behind"},
		{"the disk runs full", func(_ *Upgrade, f *ReturnFacts) { f.Free = ReturnRoom - 1 }, ReturnEnd, "free on the disk"},
		{"the room is not known", func(_ *Upgrade, f *ReturnFacts) { f.Free = -1 }, ReturnWait, ""},
		{"the replication fails", func(_ *Upgrade, f *ReturnFacts) { f.Failed = "a replication slot is gone" }, ReturnEnd, "slot is gone"},
		{"an administrator ends it", func(u *Upgrade, _ *ReturnFacts) { u.Return.Ended = true }, ReturnEnd, "administrator"},
		{"another node leads", func(_ *Upgrade, f *ReturnFacts) { f.Record.Epoch.Leader, f.Record.Epoch.Epoch = "b", 6 }, ReturnEnd, "another leadership"},
		{"another node tries to", func(_ *Upgrade, f *ReturnFacts) {
			f.Record.Epoch = ag.EpochRecord{Epoch: 6, Leader: "b", Phase: ag.PhaseSeal}
		}, ReturnEnd, "another leadership"},
		{"this node leads again, and another one may have between", func(_ *Upgrade, f *ReturnFacts) { f.Record.Epoch.Epoch = 7 }, ReturnEnd, "another leadership"},
		{"this node leads again, and no other has between", func(_ *Upgrade, f *ReturnFacts) { f.Record.Epoch.Epoch = 6 }, ReturnAgain, ""},
		{"this node is about to lead again", func(_ *Upgrade, f *ReturnFacts) {
			f.Record.Epoch.Epoch, f.Record.Epoch.Phase = 6, ag.PhasePromote
		}, ReturnWait, ""},
		{"another copy leads on this node", func(_ *Upgrade, f *ReturnFacts) { f.Record.State.Copy = "made anew" }, ReturnEnd, "made anew"},
		{"the record is not known", func(_ *Upgrade, f *ReturnFacts) { f.Record = ag.Record{} }, ReturnWait, ""},
		{"it has ended", func(u *Upgrade, _ *ReturnFacts) { u.Return.Open = false }, ReturnRest, ""},
		{"the upgrade is not done", func(u *Upgrade, _ *ReturnFacts) { u.Phase = Passed }, ReturnRest, ""},
		{"there was none", func(u *Upgrade, _ *ReturnFacts) { u.Return = nil }, ReturnRest, ""},
	} {
		u, f := open()
		tt.edit(&u, &f)
		if step, why := u.NextReturn(f); step != tt.want || !strings.Contains(why, tt.says) || (why == "") != (step != ReturnEnd) {
			t.Errorf("%s: %s (%s), not %s", tt.name, step, why, tt.want)
		}
	}
}

// TestReturnWhole: the group passes back only while the cluster that it leaves ends where the other one had everything.
func TestReturnWhole(t *testing.T) {
	u, f := open()
	w, err := u.ReturnWhole(began)
	if err != nil || !w.Back || !w.Whole || w.From.Copy != "green" || w.To.Copy != "blue" || w.Epoch != 5 || w.Phase != Made || w.Return != nil {
		t.Fatalf("%+v, %v", w, err)
	}
	facts := Facts{Record: f.Record, Group: ag.Group{SystemID: "16"}, Now: began, Clean: true}
	if step, why := w.Next(facts); step != Pass {
		t.Errorf("%s (%s)", step, why)
	}
	facts.Clean = false
	if step, why := w.Next(facts); step != GiveUp || !strings.Contains(why, "has changed since") {
		t.Errorf("a cluster that has gone on: %s (%s)", step, why)
	}
}
