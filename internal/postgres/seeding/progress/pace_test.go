package progress

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPacerFollowsARateThatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rate := int64(1 << 20)
		p := &Pacer{Rate: func() int64 { return rate }}
		began := time.Now()
		for range 5 {
			if err := p.Wait(t.Context(), 2<<20); err != nil {
				t.Fatal(err)
			}
			p.GiveBack(1 << 20)
		}
		if took := time.Since(began); took < 3900*time.Millisecond || took > 4500*time.Millisecond {
			t.Errorf("5 MiB at 1 MiB/s took %v", took)
		}
		p.GiveBack(-100 << 20)
		if wait := p.Take(1); wait < 90*time.Second {
			t.Errorf("100 MiB are paid for in %v", wait)
		}
		rate = 100 << 20
		began = time.Now()
		if err := p.Wait(t.Context(), 1); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("a limit that was raised held on for %v (%v)", time.Since(began), err)
		}
		rate = 1 << 10
		p.GiveBack(-100 << 20)
		go func() { time.Sleep(time.Second); rate = 0 }()
		began = time.Now()
		if err := p.Wait(t.Context(), 1); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("a limit that was taken away held on for %v (%v)", time.Since(began), err)
		}
	})
}
