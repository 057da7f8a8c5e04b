package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/sdnotify"
)

// heard is a service manager that remembers the messages.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) tell(messages ...string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, messages...)
	return nil
}

// take returns the messages since the last call.
func (h *heard) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.all
	h.all = nil
	return out
}

// TestToldManager holds when a node is called ready, that its signs of life end when the loop that decides stands still
// and come back with it, and that a manager that does not hear changes nothing.
func TestToldManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now()
		defer boottime.SetForTest(func() time.Duration { return time.Since(origin) + time.Second })()
		var turned atomic.Int64
		h := &heard{}
		m := &told{
			tell: h.tell, watchdog: time.Minute, turned: func() time.Duration { return time.Duration(turned.Load()) }, status: func() string { return "x" },
			log: slog.New(slog.DiscardHandler),
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.run(ctx) })
		wait := func(d time.Duration) []string {
			time.Sleep(d)
			synctest.Wait()
			return h.take()
		}
		if got := wait(5 * time.Second); slices.Contains(got, sdnotify.Ready) || !slices.Contains(got, sdnotify.Alive) || !slices.Contains(got, "STATUS=x") {
			t.Errorf("a node that starts: %q", got)
		}
		turned.Store(int64(boottime.Now()))
		if got := wait(time.Second); !slices.Contains(got, sdnotify.Ready) {
			t.Errorf("after the first turn: %q", got)
		}
		wait(29 * time.Second)
		if got := wait(time.Hour); slices.Contains(got, sdnotify.Alive) || !slices.Contains(got, "STATUS=x") {
			t.Errorf("a loop that stands still: %q", got)
		}
		turned.Store(int64(boottime.Now()))
		if got := wait(mostPause); !slices.Contains(got, sdnotify.Alive) || slices.Contains(got, sdnotify.Ready) {
			t.Errorf("a loop that turns again: %q", got)
		}
		stop()
		running.Wait()
	})
}

// TestSignsOfLifeWaitForNoText holds that a text which does not come, as while something else is stuck, keeps the
// manager from no sign of life.
func TestSignsOfLifeWaitForNoText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now()
		defer boottime.SetForTest(func() time.Duration { return time.Since(origin) + time.Second })()
		h, stuck := &heard{}, make(chan struct{})
		m := &told{
			tell: h.tell, watchdog: time.Minute, turned: boottime.Now, log: slog.New(slog.DiscardHandler),
			status: func() string { <-stuck; return "x" },
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.run(ctx) })
		for range 10 {
			time.Sleep(mostPause)
			synctest.Wait()
			if got := h.take(); !slices.Contains(got, sdnotify.Alive) {
				t.Errorf("while the text is stuck: %q", got)
			}
		}
		close(stuck)
		stop()
		running.Wait()
	})
}

// TestReadyIsHeard holds that a node is called ready until a manager that could not hear has heard it: it would end the
// node otherwise.
func TestReadyIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now()
		defer boottime.SetForTest(func() time.Duration { return time.Since(origin) + time.Second })()
		h := &heard{}
		var deaf atomic.Bool
		deaf.Store(true)
		m := &told{
			tell: func(messages ...string) error {
				if deaf.Load() {
					return errors.New("nobody hears")
				}
				return h.tell(messages...)
			},
			turned: boottime.Now, status: func() string { return "x" }, log: slog.New(slog.DiscardHandler),
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.run(ctx) })
		time.Sleep(time.Minute)
		deaf.Store(false)
		time.Sleep(mostPause)
		synctest.Wait()
		if got := h.take(); !slices.Contains(got, sdnotify.Ready) {
			t.Errorf("a manager that hears: %q", got)
		}
		stop()
		running.Wait()
	})
}

// TestToldThatItWaits holds that a node that waits for others is called ready after a while, and lives.
func TestToldThatItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := time.Now()
		defer boottime.SetForTest(func() time.Duration { return time.Since(origin) + time.Second })()
		h := &heard{}
		var deaf atomic.Bool
		m := &told{
			tell: func(messages ...string) error {
				if deaf.Load() {
					return errors.New("nobody hears")
				}
				return h.tell(messages...)
			},
			watchdog: time.Minute, turned: func() time.Duration { return 0 }, status: func() string { return "starting" }, log: slog.New(slog.DiscardHandler),
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.run(ctx) })
		time.Sleep(readyAtLatest + time.Second)
		synctest.Wait()
		if got := h.take(); !slices.Contains(got, sdnotify.Ready) {
			t.Errorf("after %v: %q", readyAtLatest, strings.Join(got, " "))
		}
		deaf.Store(true)
		time.Sleep(time.Hour)
		deaf.Store(false)
		h.take()
		time.Sleep(mostPause)
		synctest.Wait()
		if got := h.take(); !slices.Contains(got, sdnotify.Alive) {
			t.Errorf("a manager that hears again: %q", got)
		}
		stop()
		running.Wait()
	})
}
