package release

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const most = 8 * time.Second

func never() bool  { return false }
func always() bool { return true }

// enter returns the place of a session, and takes it out when the test ends.
func enter(t *testing.T, o *Order, waits func() bool) *Place {
	t.Helper()
	p := o.Enter(waits, most)
	t.Cleanup(p.Leave)
	return p
}

// TestThoseThatWaitGoFirst: idle sessions let those of waiting clients go first, though not for long; and only a few of
// them are opened at once.
func TestThoseThatWaitGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := New(make(chan struct{}))
		var opened atomic.Int64
		over := make(chan struct{})
		first := enter(t, o, always)
		for range 2 * idleAtOnce {
			p := enter(t, o, never)
			go func() {
				done, err := p.Turn(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				opened.Add(1)
				<-over
				done()
			}()
		}
		began := time.Now()
		if _, err := first.Turn(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("one whose client waits has waited %v: %v", time.Since(began), err)
		}
		time.Sleep(yields - look)
		if n := opened.Load(); n != 0 {
			t.Errorf("%d idle ones were opened before it", n)
		}
		time.Sleep(2 * look)
		synctest.Wait()
		if n := opened.Load(); n != idleAtOnce {
			t.Errorf("%d idle ones are opened at once", n)
		}
		close(over)
		synctest.Wait()
		if n := opened.Load(); n != 2*idleAtOnce {
			t.Errorf("%d idle ones were opened", n)
		}
	})
}

// TestOneThatBeginsToWait: an idle session goes as soon as its client has sent something, and may then wait for as long
// as a request.
func TestOneThatBeginsToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := New(make(chan struct{}))
		enter(t, o, always)
		var speaks atomic.Bool
		p := enter(t, o, speaks.Load)
		if left := p.Left(); left != idleFor {
			t.Errorf("an idle one may wait %v", left)
		}
		time.AfterFunc(yields/2, func() { speaks.Store(true) })
		began := time.Now()
		if _, err := p.Turn(t.Context()); err != nil || time.Since(began) > yields/2+look {
			t.Errorf("it went after %v: %v", time.Since(began), err)
		}
		if left := p.Left(); left > most || left < most-look {
			t.Errorf("its client may wait %v", left)
		}
		time.Sleep(most)
		if _, err := p.Turn(t.Context()); !errors.Is(err, ErrLate) {
			t.Errorf("its client waits for too long: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := enter(t, o, never).Turn(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

// TestOneThatBeginsToWaitDuringATry: no try takes longer than a client may wait that begins to wait with it, and the
// time of the try counts.
func TestOneThatBeginsToWaitDuringATry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := New(make(chan struct{}))
		var speaks atomic.Bool
		p := enter(t, o, speaks.Load)
		done, err := p.Turn(t.Context())
		if err != nil || p.Try() != most {
			t.Fatalf("a try may take %v: %v", p.Try(), err)
		}
		time.AfterFunc(most/4, func() { speaks.Store(true) })
		time.Sleep(most / 2) // in which the try fails
		done()
		if left := p.Try(); left != most/2 {
			t.Errorf("its client may have waited %v, and may wait %v", most/2, left)
		}
	})
}

// TestTurnEnds: nobody waits for a turn whose listener closes.
func TestTurnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		o := New(closed)
		for range idleAtOnce {
			if _, err := enter(t, o, never).Turn(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.AfterFunc(time.Second, func() { close(closed) })
		began := time.Now()
		if _, err := enter(t, o, never).Turn(t.Context()); !errors.Is(err, ErrClosed) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestPause holds when there is another try, and how long it is until then.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		o := New(closed)
		paused := func(p *Place, next chan struct{}, refused bool) (time.Duration, bool) {
			began := time.Now()
			again := p.Pause(t.Context(), next, refused)
			return time.Since(began), again
		}
		p := enter(t, o, always)
		for i, want := range []time.Duration{pause, 2 * pause, 4 * pause, 8 * pause, LongestPause, LongestPause} {
			if took, again := paused(p, nil, true); took != want || !again {
				t.Errorf("pause %d: %v, another try: %v", i, took, again)
			}
		}
		if took, again := paused(p, nil, false); took != pause || !again {
			t.Errorf("without a route: %v, %v", took, again)
		}
		next := make(chan struct{})
		close(next)
		if took, again := paused(p, next, true); took != 0 || !again {
			t.Errorf("when the routes change: %v, %v", took, again)
		}
		time.Sleep(most)
		if took, again := paused(p, nil, true); took != 0 || again {
			t.Errorf("when its time is over: %v, %v", took, again)
		}
		close(closed)
		if took, again := paused(enter(t, o, never), nil, true); took != 0 || again {
			t.Errorf("when the listener closes: %v, %v", took, again)
		}
	})
}
