package offload

import (
	"testing"
	"unsafe"
)

// The program's offsets are those of the Go struct.
func TestSlotLayout(t *testing.T) {
	var s Slot
	for name, got := range map[string][2]uintptr{
		"armed": {unsafe.Offsetof(s.Armed), slotArmed}, "flags": {unsafe.Offsetof(s.Flags), slotFlags}, "inside": {unsafe.Offsetof(s.inside), slotInside},
		"generation": {unsafe.Offsetof(s.generation), slotGeneration}, "ups": {unsafe.Offsetof(s.Ups), slotUps}, "downs": {unsafe.Offsetof(s.Downs), slotDowns},
		"upBytes": {unsafe.Offsetof(s.upBytes), slotUpBytes}, "downBytes": {unsafe.Offsetof(s.DownBytes), slotDownBytes},
		"upLeft": {unsafe.Offsetof(s.UpLeft), slotUpLeft}, "upTaken": {unsafe.Offsetof(s.UpTaken), slotUpTaken},
		"downLeft": {unsafe.Offsetof(s.DownLeft), slotDownLeft}, "downTaken": {unsafe.Offsetof(s.DownTaken), slotDownTaken},
		"downLimit": {unsafe.Offsetof(s.DownLimit), slotDownLimit}, "logged": {unsafe.Offsetof(s.Logged), slotLogged},
		"status": {unsafe.Offsetof(s.Status), slotStatus}, "why": {unsafe.Offsetof(s.Why), slotWhy}, "single": {unsafe.Offsetof(s.Single), slotSingle},
		"parsed": {unsafe.Offsetof(s.Parsed), slotParsed},
		"log":    {unsafe.Offsetof(s.Log), slotLog}, "size": {unsafe.Sizeof(s), slotSize},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is at %d, the program has it at %d", name, got[0], got[1])
		}
	}
}

// TestSlotResetsWhileARunIsInside: a run of the program that enters a slot for an older session, just when the slot is
// given to a new one, is counted out again. A slot with a wrong count would be waited for without an end.
func TestSlotResetsWhileARunIsInside(t *testing.T) {
	var s Slot
	all := unsafe.Slice((*byte)(unsafe.Pointer(&s)), slotSize)
	for i := range all {
		all[i] = 0xff
	}
	s.inside, s.generation = 1, 7
	s.reset()
	s.inside--
	if s.inside != 0 || s.generation != 7 {
		t.Errorf("%d runs are said to be inside, generation %d", s.inside, s.generation)
	}
	for i, b := range all {
		known := i >= slotGeneration && i < slotGeneration+4 || i >= slotParsed+4 && i < slotLog
		if !known && b != 0 {
			t.Errorf("byte %d is %#x", i, b)
		}
	}
}
