package decisions

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// seen is the view of node b of an epoch that a leads unless the phase says otherwise.
func seen(e ag.Epoch, leader ag.ReplicaID, reason string, silence time.Duration) ag.View {
	v := ag.View{Self: "b", Silence: silence}
	v.Record.Epoch = ag.EpochRecord{Epoch: e, Phase: ag.PhaseLead, Leader: leader, Reason: reason}
	return v
}

// TestFailovers holds how changes of the leadership are counted, and how long the last one lasted: for the node that
// leads until it takes writes, for another until the new leader is in the record.
func TestFailovers(t *testing.T) {
	t.Parallel()
	var f failovers
	at := time.Hour
	sealing := seen(2, "b", "a has been silent for 6.5s", 0)
	sealing.Record.Epoch.Phase = ag.PhaseSeal
	busy := seen(2, "b", "a has been silent for 6.5s", 0)
	busy.Busy = handingOver
	for _, step := range []struct {
		after  time.Duration
		view   ag.View
		open   bool
		count  int
		outage time.Duration
	}{
		{0, seen(1, "a", "", 0), false, 0, 0},
		{10 * time.Second, seen(1, "a", "", 400*time.Millisecond), false, 0, 0},
		{6 * time.Second, seen(1, "a", "", 6400*time.Millisecond), false, 0, 0},
		{time.Second, sealing, false, 0, 0},
		{time.Second, seen(2, "b", "a has been silent for 6.5s", 0), false, 1, 0}, // it leads, and does not take writes yet
		{time.Second, seen(2, "b", "a has been silent for 6.5s", 0), true, 1, 9400 * time.Millisecond},
		{time.Minute, seen(2, "b", "a has been silent for 6.5s", 0), true, 1, 9400 * time.Millisecond},
		{time.Second, busy, true, 1, 9400 * time.Millisecond}, // requests are held
		{time.Second, busy, true, 1, 9400 * time.Millisecond},
		{time.Second, seen(3, "a", ag.PlannedFrom("b"), 0), false, 2, 3 * time.Second},
		{time.Second, seen(4, "a", "this copy led last and nobody has led since", 0), false, 3, time.Second},
	} {
		at += step.after
		f.note(step.view, step.open, at)
		n := 0
		for _, k := range f.Count {
			n += int(k)
		}
		if n != step.count || f.Outage != step.outage {
			t.Errorf("at %v: %d changes, %v, want %d and %v", at, n, f.Outage, step.count, step.outage)
		}
	}
	for _, key := range []FailoverKey{{Automatic, ag.CauseSilent}, {Planned, ag.CausePlanned}, {Returned, ag.CauseRetaken}} {
		if f.Count[key] != 1 {
			t.Errorf("%v: %d", key, f.Count[key])
		}
	}
	forced := ag.EpochRecord{Leader: "c", Forced: true, Reason: "forced by an operator who accepted data loss"}
	if k := kindOf(f.led, forced); k != Forced || f.Last.IsZero() {
		t.Errorf("%s at %v", k, f.Last)
	}
}

// TestTransitions holds that a rule counts once for a row of turns in which it fires.
func TestTransitions(t *testing.T) {
	t.Parallel()
	d := NewLog()
	for _, r := range []ag.Rule{ag.RuleServe, ag.RuleServe, ag.RuleSync, ag.RuleServe, ag.RuleServe} {
		decide(d, r, 1, "why")
	}
	m := d.Transitions()
	if m[ag.RuleServe] != 2 || m[ag.RuleSync] != 1 || m[ag.RuleClaim] != 0 || len(m) != len(ag.Rules) {
		t.Errorf("%v", m)
	}
	for key, n := range d.Failovers().Count {
		if n != 0 {
			t.Errorf("%v: %d", key, n)
		}
	}
}

// TestFailoversAreThereBefore: a change that nobody has seen yet is counted with 0, so that its first one is an
// increase, whichever it is.
func TestFailoversAreThereBefore(t *testing.T) {
	t.Parallel()
	d := NewLog()
	before := d.Failovers().Count
	epoch := ag.Epoch(1)
	d.moves.note(seen(epoch, "a", "", 0), false, time.Hour)
	for _, leader := range []ag.ReplicaID{"a", "b"} {
		for reason, forced := range map[string]bool{
			"a released the leadership: its server ended": false, "a has been silent for 6.5s": false, "2 of 3 voters hear no more of a": false, "2 of 3 voters saw a die": false,
			"this copy led last and nobody has led since": false, "a made no progress for 5s": false, "the promotion of a was interrupted": false, "": false, "forced by an operator": true,
		} {
			epoch++
			v := seen(epoch, leader, reason, 0)
			v.Record.Epoch.Forced = forced
			d.moves.led.Leader = "a"
			d.moves.note(v, false, time.Hour)
		}
	}
	epoch++
	d.moves.note(seen(epoch, "c", ag.PlannedFrom("a"), 0), false, time.Hour)
	after, counted := d.Failovers().Count, 0
	for key, n := range after {
		if _, was := before[key]; !was {
			t.Errorf("%v was not there before it was counted", key)
		}
		counted += int(n)
	}
	if want := int(epoch) - 1; counted != want || len(after) != want {
		t.Errorf("%d changes of %d kinds and reasons are counted, want each of %d once: %v", counted, len(after), want, after)
	}
}
