package retry

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errStop = errors.New("stop")

// TestUntil holds when the condition is asked for, and what ends the wait.
func TestUntil(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		trueAt, failAt int // the call that reports true, or fails; 0: none
		want           error
		calls          int
		took           time.Duration
	}{
		{"at once", 1, 0, nil, 1, 0},
		{"at the third time", 3, 0, nil, 3, 2 * time.Second},
		{"by its error", 0, 2, errStop, 2, time.Second},
		{"by its context", 0, 0, context.DeadlineExceeded, 5, 4500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 4500*time.Millisecond)
				defer cancel()
				start, calls := time.Now(), 0
				err := Until(ctx, time.Second, func() (bool, error) {
					calls++
					if calls == tt.failAt {
						return false, errStop
					}
					return calls == tt.trueAt, nil
				})
				if took := time.Since(start); !errors.Is(err, tt.want) || calls != tt.calls || took != tt.took {
					t.Errorf("%v after %d calls and %v; want %v, %d, %v", err, calls, took, tt.want, tt.calls, tt.took)
				}
			})
		})
	}
}

// TestUntilAsksOnce holds that a condition which is true already is seen, also after the end of the context.
func TestUntilAsksOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStop)
	if err := Until(ctx, time.Hour, func() (bool, error) { return true, nil }); err != nil {
		t.Error(err)
	}
	if err := Until(ctx, time.Hour, func() (bool, error) { return false, nil }); !errors.Is(err, errStop) {
		t.Errorf("%v is not the cause", err)
	}
}

// TestEvery holds that the first turn does not wait, that the others are a period apart, and that the end of the
// context ends a wait.
func TestEvery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		start := time.Now()
		var turns []time.Duration
		Every(ctx, time.Second, func() { turns = append(turns, time.Since(start)) })
		if took := time.Since(start); took != 3500*time.Millisecond || len(turns) < 4 || turns[0] != 0 || turns[1] > time.Second {
			t.Fatalf("turns at %v in %v", turns, took)
		}
		for i := 2; i < len(turns); i++ {
			if turns[i]-turns[i-1] != time.Second {
				t.Errorf("turns at %v", turns)
			}
		}
	})
}

// TestEveryWakesOnce holds that the turns of an idle process fall together, whenever each began and however long it
// takes: a minute of several periods has no more wake-ups than the shortest one.
func TestEveryWakesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var mu sync.Mutex
		wakes := map[time.Time]int{}
		for i, period := range []time.Duration{500, 500, 1000, 1000, 2000, 3000, 5000} {
			time.Sleep(37 * time.Millisecond) // they do not begin together
			all.Go(func() {
				Every(ctx, period*time.Millisecond, func() {
					mu.Lock()
					wakes[time.Now()]++
					mu.Unlock()
					time.Sleep(time.Duration(i) * 11 * time.Millisecond)
				})
			})
		}
		time.Sleep(10 * time.Second)
		mu.Lock()
		clear(wakes)
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		if len(wakes) > 121 {
			t.Errorf("%d wake-ups in a minute, want 120", len(wakes))
		}
		mu.Unlock()
		cancel()
		all.Wait()
	})
}

// TestSleep holds that a context which has ended is reported even where there is nothing to wait for.
func TestSleep(t *testing.T) {
	t.Parallel()
	if err := Sleep(t.Context(), 0); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStop)
	if err := Sleep(ctx, 0); !errors.Is(err, errStop) {
		t.Errorf("%v is not the cause", err)
	}
}
