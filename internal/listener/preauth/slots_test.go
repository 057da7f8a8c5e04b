package preauth

import "testing"

// When all pre-auth slots are taken, the client is evicted that keeps the listener waiting longest, of the address
// with most of them. A client that waits for the listener stays.
func TestWhoMakesRoom(t *testing.T) {
	var l Slots
	enter := func(host string, since int64) *Slot {
		s := NewSlot(host, func() {})
		s.since.Store(since)
		l.Enter(s, 0)
		return s
	}
	if busy := enter("10.0.0.1", 0); l.oldestIdle() != nil {
		t.Errorf("%s has done its part", busy.address)
	}
	only := enter("10.0.0.2", 1)
	if l.oldestIdle() != only {
		t.Error("the only one that can")
	}
	enter("10.0.0.3", 7)
	oldest := enter("10.0.0.3", 5)
	if l.oldestIdle() != oldest {
		t.Error("not the oldest of the address with two")
	}
}

// A client whose slot is given to another one is told once its login was ended, and gives nothing back that is not its
// own.
func TestEvicted(t *testing.T) {
	var l Slots
	ended := 0
	first := NewSlot("10.0.0.1", func() { t.Error("ended by what was changed") })
	first.Waits()
	if !l.Enter(first, 1) || l.Hold(first, true, func() { ended++ }) {
		t.Fatal("it is alone, and evicted")
	}
	second := NewSlot("10.0.0.2", func() {})
	if !l.Enter(second, 1) || ended != 1 || !l.Evicted(first) || l.Holds(first) || first.Kept().Err() == nil {
		t.Errorf("ended %d times, evicted: %v, holds: %v, %v", ended, l.Evicted(first), l.Holds(first), first.Kept().Err())
	}
	if third := NewSlot("10.0.0.2", func() {}); l.Enter(third, 1) {
		t.Error("one that is waited for made room for another of its address")
	}
	l.Leave(first)
	if !l.Holds(second) || l.Len() != 1 {
		t.Error("it gave back what another one holds")
	}
}
