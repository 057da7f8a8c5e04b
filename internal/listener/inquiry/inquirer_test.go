package inquiry

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// among returns what asks those sessions. Both switches are off.
func among(sessions ...*fake) *Inquirer[*fake] {
	all := func() []*fake { return sessions }
	return &Inquirer[*fake]{
		Life: context.Background(), Closed: make(chan struct{}), Times: times,
		Continues: func() bool { return true }, Draining: func() bool { return false }, Followed: all, Local: all,
		Sheltered: func(_ string, f func()) {
			defer func() { _ = recover() }()
			f()
		},
		Rescued: func(h *fake, f func()) {
			defer func() {
				if recover() != nil {
					close(h.ended)
				}
			}()
			f()
		},
		Panicked: "it panicked",
	}
}

// TestMoves holds what an inquiry says of a session, and when it asks none.
func TestMoves(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *fake, i *Inquirer[*fake])
		why    string
		waits  bool
		sent   int
	}{
		{"idle", func(*fake, *Inquirer[*fake]) {}, "", false, 1},
		{"off", func(_ *fake, i *Inquirer[*fake]) { i.Continues = func() bool { return false } }, "CONTINUITY = OFF", false, 0},
		{"drain", func(_ *fake, i *Inquirer[*fake]) { i.Draining = func() bool { return true } }, "a drain is under way", false, 0},
		{"another", func(_ *fake, i *Inquirer[*fake]) { i.mu.Lock() }, "another inquiry is under way; ask again", false, 0},
		{"panics", func(f *fake, _ *Inquirer[*fake]) { f.wake = func() { panic("boom") } }, "it panicked", false, 0},
		{"busy", func(f *fake, _ *Inquirer[*fake]) { f.work.Status.Store('T') }, Busy, true, 0},
	} {
		f := newFake()
		f.facts.Move.User = "ann"
		i := among(f)
		c.change(f, i)
		if m := one(t, i.Moves(t.Context())); m.Why != c.why || m.Waits != c.waits || m.User != "ann" || f.sent != c.sent {
			t.Errorf("%s: %+v after %d questions", c.name, m, f.sent)
		}
	}
}

// TestDrainEndsMoves holds that a drain which begins ends the inquiry under way, and that one whose servers are silent
// ends by itself.
func TestDrainEndsMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.silent = true
		i := among(f)
		began := time.Now()
		if m := one(t, i.Moves(t.Context())); m.Why != tooLate || time.Since(began) != movesBudget {
			t.Errorf("%+v after %v", m, time.Since(began))
		}
		f = newFake()
		f.silent = true
		i = among(f)
		over := make(chan string, 1)
		go func() { over <- one(t, i.Moves(t.Context())).Why }()
		synctest.Wait()
		began = time.Now()
		i.End()
		if why := <-over; why != tooLate || time.Since(began) > 0 {
			t.Errorf("%q after %v", why, time.Since(began))
		}
		i.End() // nothing is under way
	})
}

// TestEach holds that sessions are asked a few at a time, that one whose server is silent does not keep the others
// waiting, and that those whose turn does not come hear so.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list []*fake
		for range 3*AtOnce + 1 {
			list = append(list, newFake())
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var begun, late atomic.Int64
		over := make(chan struct{})
		go func() {
			defer close(over)
			among().Each(ctx, AtOnce, list, func(*fake) {
				begun.Add(1)
				<-ctx.Done()
			}, func(_ *fake, why string) {
				if late.Add(1); why != tooLate {
					t.Errorf("%q", why)
				}
			})
		}()
		for turn := 1; turn <= 3; turn++ {
			synctest.Wait()
			if begun.Load() != int64(turn*AtOnce) {
				t.Errorf("in turn %d, %d were begun", turn, begun.Load())
			}
			if turn < 3 {
				time.Sleep(turnTime)
			}
		}
		cancel()
		<-over
		if begun.Load() != 3*AtOnce || late.Load() != 1 {
			t.Errorf("%d were begun, %d are late", begun.Load(), late.Load())
		}
	})
}

// TestUnknown holds that those are asked first that have waited longest, and only so many at once.
func TestUnknown(t *testing.T) {
	now := time.Now()
	var list []*fake
	for n := range keepPerTick + 5 {
		f := newFake()
		f.work.Local = false
		f.facts.Move.Since = now.Add(-time.Hour - time.Duration(n)*time.Second)
		list = append(list, f)
	}
	young := newFake()
	young.facts.Move.Since = now
	i := among(append(list, young)...)
	got := i.Unknown(now)
	if len(got) != keepPerTick || got[0] != list[len(list)-1] || got[1] != list[len(list)-2] {
		t.Errorf("%d are asked", len(got))
	}
	i.Continues = func() bool { return false }
	if got := i.Unknown(now); len(got) > 0 {
		t.Errorf("%d are asked though none goes on", len(got))
	}
}

// TestKeepKnown holds that sessions are asked one tick after the other until the listener closes, and that one of which
// the asking panics ends alone.
func TestKeepKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		var list []*fake
		for range keepPerTick + 2 {
			f := newFake([]string{"extension", "plpgsql 1.0"})
			f.work.Local, f.facts.Move.Since = false, time.Now().Add(-time.Minute)
			list = append(list, f)
		}
		list[3].wake = func() { panic("boom") }
		i := among(list...)
		i.Closed = closed
		over := make(chan struct{})
		go func() { defer close(over); i.KeepKnown() }()
		time.Sleep(3 * times.Tick)
		synctest.Wait()
		close(closed)
		<-over
		for n, f := range list {
			if known := f.work.Known.Told != nil; known != (n != 3) {
				t.Errorf("session %d is known: %v", n, known)
			}
		}
		select {
		case <-list[3].ended:
		default:
			t.Error("one that panicked has not ended")
		}
	})
}
