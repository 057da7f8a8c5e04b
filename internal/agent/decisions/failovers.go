package decisions

import (
	"maps"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// FailoverKind is how the leadership changed.
type FailoverKind string

// The kinds of a change of the leadership.
const (
	Planned   FailoverKind = "planned"
	Automatic FailoverKind = "automatic"
	Forced    FailoverKind = "forced" // an operator accepted the loss
	Returned  FailoverKind = "return" // the same replica leads again
)

// FailoverKey counts changes of the leadership.
type FailoverKey struct {
	Kind  FailoverKind
	Cause ag.Cause
}

// Failovers are the changes of the leadership that one node saw since its agent started.
type Failovers struct {
	// Count has every change that can occur, those that have not with 0. A monitor sees no increase in a counter that
	// begins at 1.
	Count map[FailoverKey]uint64
	// Last is when the last one had ended, by this node's own clock; zero: there was none. Outage is how long it had
	// lasted: from the last sign that the previous leader served to the first one of the next, as this node saw them.
	Last   time.Time
	Outage time.Duration
}

// failovers are Failovers while they grow.
type failovers struct {
	Failovers
	led    ag.EpochRecord // the last epoch that was seen in LEAD
	served time.Duration  // boottime of the last sign that its leader served
	open   bool           // a change is seen, and its leader does not serve yet
}

// note looks at the view of a turn at now; open reports whether this node, as the leader, takes writes.
func (f *failovers) note(v ag.View, open bool, now time.Duration) {
	e := v.Record.Epoch
	if e.Phase != ag.PhaseLead {
		return
	}
	leads := e.Leader == v.Self
	serves := open && v.Busy != handingOver
	switch {
	case f.led.Epoch == 0:
		f.led, f.served = e, now
	case e.Epoch > f.led.Epoch:
		if f.Count == nil {
			f.Count = map[FailoverKey]uint64{}
		}
		f.Count[FailoverKey{kindOf(f.led, e), e.Cause()}]++
		f.led, f.open = e, true
	}
	if f.open && (!leads || serves) {
		f.open, f.Last, f.Outage = false, time.Now(), max(now-f.served, 0)
	}
	if f.open {
		return
	}
	if leads && serves {
		f.served = now
	}
	if !leads { // the leader has renewed its lease then
		f.served = max(f.served, now-v.Silence)
	}
}

// handingOver is the long action of a leader that carries out a planned failover: requests are held during it.
const handingOver = "hand-over"

func kindOf(before, e ag.EpochRecord) FailoverKind {
	switch {
	case before.Leader == e.Leader:
		return Returned
	case e.Cause() == ag.CauseOperator:
		return Forced
	case e.Cause() == ag.CausePlanned:
		return Planned
	}
	return Automatic
}

// Failovers returns the changes of the leadership since the agent started.
func (d *Log) Failovers() Failovers {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.moves.Failovers
	out.Count = none()
	maps.Copy(out.Count, d.moves.Count)
	return out
}

// none returns 0 for each change of the leadership that can occur.
func none() map[FailoverKey]uint64 {
	out := map[FailoverKey]uint64{}
	for _, cause := range ag.Causes() {
		switch cause {
		case ag.CausePlanned:
			out[FailoverKey{Planned, cause}] = 0
		case ag.CauseOperator:
			out[FailoverKey{Forced, cause}], out[FailoverKey{Returned, cause}] = 0, 0
		default:
			out[FailoverKey{Automatic, cause}], out[FailoverKey{Returned, cause}] = 0, 0
		}
	}
	return out
}
