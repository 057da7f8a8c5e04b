package register

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// Kind is what an operation does.
type Kind uint8

// The kinds of operations.
const (
	Read Kind = iota
	Write
	Swap // writes if the register still holds what is expected
)

// Op is one operation on one register, and the answer that its client got. Times are of one clock.
type Op struct {
	Client, Key  int
	Kind         Kind
	Expect       int64 // of a Swap
	Value        int64 // written, or read; no value is written twice
	Swapped      bool  // the answer of a Swap
	Outcome      session.Outcome
	Call, Return time.Duration
	Host         string // whom it was sent to
}

// String tells the operation the way a history is read.
func (o Op) String() string {
	what := [...]string{"reads %d", "writes %d", "swaps %d"}[o.Kind]
	s := fmt.Sprintf("%v to %v  client %d at %s  register %d: "+what, o.Call.Round(time.Microsecond), o.Return.Round(time.Microsecond), o.Client, o.Host, o.Key, o.Value)
	if o.Kind == Swap {
		s += fmt.Sprintf(" for %d: %t", o.Expect, o.Swapped)
	}
	return s + ", " + o.Outcome.String()
}

// forever is the end of an operation whose outcome is unknown.
const forever = math.MaxInt64

// anything is the state of a register of which nothing is known.
const anything = math.MinInt64

// model is one register, which holds 0 at first.
var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(Op).Key
			byKey[k] = append(byKey[k], o)
		}
		var parts [][]porcupine.Operation
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		now, o := state.(int64), input.(Op)
		switch {
		case o.Kind == Read:
			return now == o.Value || now == anything, o.Value
		case o.Kind == Write:
			return true, o.Value
		case now == anything && o.Swapped && o.Outcome == session.OK:
			return true, o.Value
		case now == anything: // any value but the expected one would do, or either
			return true, now
		case o.Outcome == session.Unknown && now != o.Expect:
			return true, now
		case o.Outcome == session.Unknown || o.Swapped:
			return now == o.Expect, o.Value
		}
		return now != o.Expect, now
	},
	DescribeOperation: func(input, _ any) string { return input.(Op).String() },
}

// Violation is a register whose history no single copy can have produced.
type Violation struct {
	Key     int
	History []Op // of that register, by the time of the call
}

// Check looks for histories that are not linearizable, within the limit. undecided counts the registers for which it
// was too short.
func Check(ops []Op, limit time.Duration) (bad []Violation, undecided int) {
	return check(model, ops, limit)
}

// CheckUntil is Check of what clients were answered until then. An operation under way then has an unknown outcome.
func CheckUntil(ops []Op, at, limit time.Duration) (bad []Violation, undecided int) {
	var own []Op
	for _, o := range ops {
		if o.Call >= at {
			continue
		}
		if o.Return > at {
			o.Outcome = session.Unknown
		}
		own = append(own, o)
	}
	return Check(own, limit)
}

// CheckSince is Check of what was done since then, on registers that held anything. An operation under way may have
// taken effect before, later or never.
func CheckSince(ops []Op, at, limit time.Duration) (bad []Violation, undecided int) {
	var own []Op
	for _, o := range ops {
		if o.Call < at {
			if o.Return <= at && o.Outcome != session.Unknown {
				continue
			}
			if o.Outcome == session.OK {
				o.Outcome = session.Unknown
			}
			o.Call, o.Return = at, max(o.Return, at)
		}
		own = append(own, o)
	}
	unknown := model
	unknown.Init = func() any { return int64(anything) }
	return check(unknown, own, limit)
}

func check(m porcupine.Model, ops []Op, limit time.Duration) (bad []Violation, undecided int) {
	seen := map[int64]bool{} // values that some client read, or expected
	missed := map[int]bool{} // registers in which a swap did not find what it expected: any write may be why
	for _, o := range ops {
		if o.Outcome == session.OK && o.Kind == Swap && !o.Swapped {
			missed[o.Key] = true
		}
		if o.Outcome == session.OK && o.Kind == Read {
			seen[o.Value] = true
		}
		if o.Kind == Swap {
			seen[o.Expect] = true
		}
	}
	byKey := map[int][]porcupine.Operation{}
	for _, o := range ops {
		end := int64(o.Return)
		switch {
		case o.Outcome == session.Fail, o.Outcome == session.Unknown && o.Kind == Read:
			continue
		case o.Outcome == session.Unknown && !seen[o.Value] && !missed[o.Key]:
			continue // it may have taken effect after everything else
		case o.Outcome == session.Unknown:
			end = forever
		}
		byKey[o.Key] = append(byKey[o.Key], porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(o.Call), Return: end})
	}
	deadline := time.Now().Add(limit)
	for key, history := range byKey {
		switch porcupine.CheckOperationsTimeout(m, history, max(time.Until(deadline), time.Millisecond)) {
		case porcupine.Illegal:
			bad = append(bad, Violation{key, of(ops, key)})
		case porcupine.Unknown:
			undecided++
		case porcupine.Ok:
		}
	}
	slices.SortFunc(bad, func(a, b Violation) int { return a.Key - b.Key })
	return bad, undecided
}

func of(ops []Op, key int) (own []Op) {
	for _, o := range ops {
		if o.Key == key {
			own = append(own, o)
		}
	}
	slices.SortStableFunc(own, func(a, b Op) int { return int(a.Call - b.Call) })
	return own
}

// Sighting is the count as a session saw it.
type Sighting struct {
	Session int // one connection; a client that connects again begins another
	Host    string
	Server  string // that answered: its name, and when it was started
	Count   int64
	At      time.Duration
	// Acknowledged is the count of the last increment that was acknowledged when the answer was there.
	Acknowledged int64
}

// Backwards returns the first sighting of each session that saw less than an earlier one. A session that was moved to
// another server, or to one that was started again, may miss increments that were not acknowledged when it saw them:
// they may be lost with the primary. Sightings of a session are in order.
func Backwards(seen []Sighting) (back []Sighting) {
	type standing struct {
		server       string
		here, anyway int64 // what it saw at that server, and what it saw of what was acknowledged
		told         bool
	}
	sessions := map[int]*standing{}
	for _, s := range seen {
		x := sessions[s.Session]
		if x == nil {
			x = &standing{}
			sessions[s.Session] = x
		}
		if s.Server != x.server {
			x.server, x.here = s.Server, 0
		}
		if s.Count < max(x.here, x.anyway) && !x.told {
			x.told = true
			back = append(back, s)
		}
		x.here = max(x.here, s.Count)
		x.anyway = max(x.anyway, min(s.Count, s.Acknowledged))
	}
	return back
}
