package pool

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPlacesTakeAMomentToBeFree: a login for which backends were dropped is tried again while their processes may still
// exit, and refused at once if none were dropped.
func TestPlacesTakeAMomentToBeFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Pool{Config: Config{Answer: time.Second}}
		if w.MakeRoom() {
			t.Error("tried again though nothing was dropped")
		}
		w.CountOpening(1)
		if !w.MakeRoom() {
			t.Error("refused though one was dropped")
		}
		w.CountOpening(-1)
		if !w.MakeRoom() {
			t.Error("refused while its process may still end")
		}
		time.Sleep(w.Answer + time.Millisecond)
		if w.MakeRoom() {
			t.Error("tried again for ever")
		}
	})
}
