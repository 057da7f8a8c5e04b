package replication

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

func TestPenalty(t *testing.T) {
	members, k := []ag.ReplicaID{"b", "c"}, 1
	p := NewPenalty(func() ([]ag.ReplicaID, int) { return members, k })
	p.sent(boottime.Now(), 100)
	p.sent(boottime.Now(), 100) // the other stream carries it, too
	p.sent(boottime.Now(), 200)
	p.acknowledged(boottime.Now(), "d", 500) // no commit waits for it
	if n := p.Totals().Blocks; n != 0 {
		t.Errorf("%d blocks counted before anybody who counts had them", n)
	}
	time.Sleep(2 * time.Millisecond)
	p.acknowledged(boottime.Now(), "b", 150)
	if got := p.Totals(); got.Blocks != 1 || got.Waited < 2*time.Millisecond || got.Max != got.Waited || got.P50 < time.Millisecond || got.P99 < got.P50 || got.Mean < time.Millisecond {
		t.Errorf("after the first: %+v", got)
	}
	p.acknowledged(boottime.Now(), "c", 200)
	if n := p.Totals().Blocks; n != 2 {
		t.Errorf("%d blocks, want 2", n)
	}
	k = 2
	p.sent(boottime.Now(), 300)
	p.acknowledged(boottime.Now(), "b", 300)
	if n := p.Totals().Blocks; n != 2 {
		t.Errorf("%d blocks: one of two has it", n)
	}
	p.acknowledged(boottime.Now(), "c", 300)
	if n := p.Totals().Blocks; n != 3 {
		t.Errorf("%d blocks, want 3", n)
	}
	k = 0
	p.sent(boottime.Now(), 400)
	p.acknowledged(boottime.Now(), "d", 400)
	if n := p.Totals().Blocks; n != 3 || len(p.marks) != 0 {
		t.Errorf("%d blocks, %d marks: with k = 0 nobody waits", n, len(p.marks))
	}
	for i := range 2 * maxMarks {
		p.sent(boottime.Now(), ag.LSN(500+i))
	}
	if len(p.marks) != maxMarks {
		t.Errorf("%d marks", len(p.marks))
	}
	p.forget()
	p.sent(boottime.Now(), 1)
	if len(p.marks) != 1 {
		t.Error("after forget an older position is a new one")
	}
	var none *Penalty
	none.sent(boottime.Now(), 1)
	none.acknowledged(boottime.Now(), "b", 1)
	none.forget()
}

// TestPenaltyWindows: percentiles look back on a minute or two, sums on everything.
func TestPenaltyWindows(t *testing.T) {
	p := NewPenalty(func() ([]ag.ReplicaID, int) { return []ag.ReplicaID{"b"}, 1 })
	p.sent(boottime.Now(), 1)
	p.acknowledged(boottime.Now(), "b", 1)
	p.began -= penaltyWindow + time.Second
	if got := p.Totals(); got.P50 == 0 {
		t.Errorf("the last window is forgotten: %+v", got)
	}
	p.began -= 3 * penaltyWindow
	if got := p.Totals(); got.P50 != 0 || got.Blocks != 1 {
		t.Errorf("what is minutes old still counts, or sums were lost: %+v", got)
	}
}
