package webhooks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/node/events"
)

// errDown is what a receiver answers that is down.
var errDown = errors.New("HTTP status 500")

// fake is a sender whose receivers are functions, and what they got.
type fake struct {
	*Sender

	mu  sync.Mutex     // guards what follows
	now []events.Event // what the node remembers
	got map[string][]string
}

// to returns a sender to receivers by name. One that returns an error has not taken the event.
func to(receivers map[string]func(context.Context, item) error) *fake {
	f := &fake{got: map[string][]string{}}
	f.Sender = New(nil, 0, f.remembered, slog.New(slog.DiscardHandler))
	for name, answer := range receivers {
		f.receivers = append(f.receivers, newReceiver(config.Webhook{Name: name}, f.log, func(ctx context.Context, e item) error {
			err := answer(ctx, e)
			if err == nil {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.got[name] = append(f.got[name], e.id)
			}
			return err
		}))
	}
	return f
}

// happen adds an event.
func (f *fake) happen(kind, what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = append(f.now, events.Event{Kind: kind, What: what})
}

func (f *fake) remembered() []events.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.now)
}

func (f *fake) took(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got[name])
}

// run runs the sender for d of the test's time, and returns how long it took to end after that.
func (f *fake) run(t *testing.T, d time.Duration) (ending time.Duration) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), d)
	defer stop()
	began := time.Now()
	if err := f.Run(ctx); err != nil {
		t.Error(err)
	}
	return time.Since(began) - d
}

func takes(context.Context, item) error { return nil }

// hangs is a receiver that answers nothing within the time of a try.
func hangs(ctx context.Context, _ item) error {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestASlowReceiverDelaysNoOther holds that one that hangs and one that is down keep nothing from a third.
func TestASlowReceiverDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := to(map[string]func(context.Context, item) error{"hangs": hangs, "down": func(context.Context, item) error { return errDown }, "good": takes})
		for i := range 50 {
			f.happen("health", fmt.Sprint(i))
		}
		f.run(t, 3*time.Second)
		if f.took("good") != 50 || f.took("hangs") != 0 {
			t.Errorf("it took %d", f.took("good"))
		}
		if c := f.Counts()["good"]; c.Sent != 50 || c.Failed != 0 || c.Waiting != 0 {
			t.Errorf("%+v", c)
		}
	})
}

// TestTriedAgain holds when an event is tried again: after pauses that grow, up to a minute, until it is taken; for an
// hour and forty times at most; at once no more if the receiver refuses it; and not before the time that it asks for.
func TestTriedAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer func(try int) error
		tries  int
		want   Counts
		atMost time.Duration // between two tries
	}{
		{"the third time", func(try int) error {
			if try < 3 {
				return errDown
			}
			return nil
		}, 3, Counts{Sent: 1, Failed: 2}, 2 * time.Second},
		{"never", func(int) error { return errDown }, maxTries, Counts{Failed: maxTries, Abandoned: 1, Failing: 1}, maxPause},
		{"refused", func(int) error { return fmt.Errorf("%w: HTTP status 400", errRefused) }, 1, Counts{Failed: 1, Refused: 1}, 0},
		{"later", func(try int) error {
			if try < 4 {
				return laterError{errDown, maxPause}
			}
			return nil
		}, 4, Counts{Sent: 1, Failed: 3}, maxPause},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var tries []time.Time
				f := to(map[string]func(context.Context, item) error{"r": func(context.Context, item) error {
					tries = append(tries, time.Now())
					return tt.answer(len(tries))
				}})
				f.happen("health", "x")
				f.run(t, 2*maxAge)
				got := f.Counts()["r"]
				if got.Failing > 0 {
					got.Failing = 1
				}
				if len(tries) != tt.tries || got != tt.want {
					t.Errorf("%d tries, %+v", len(tries), got)
				}
				longest := time.Duration(0)
				for i := 1; i < len(tries); i++ {
					pause := tries[i].Sub(tries[i-1])
					if pause < min(firstPause/2<<min(i-1, 6), maxPause/2) || pause > tt.atMost || tt.name == "later" && pause < maxPause {
						t.Errorf("pause %d took %v", i, pause)
					}
					longest = max(longest, pause)
				}
				if tt.name == "never" && (longest < maxPause/2 || tries[len(tries)-1].Sub(tries[0]) > maxAge) {
					t.Errorf("the pauses grow to %v", longest)
				}
			})
		})
	}
}

// TestOldEvents holds that an event which waited for an hour behind others is given up without a try.
func TestOldEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		f := to(map[string]func(context.Context, item) error{"r": func(context.Context, item) error { tries++; return errDown }})
		for i := range 5 {
			f.happen("health", fmt.Sprint(i))
		}
		f.run(t, 3*maxAge)
		if c := f.Counts()["r"]; c.Abandoned != 5 || c.Waiting != 0 || tries > 3*maxTries {
			t.Errorf("%+v after %d tries", c, tries)
		}
	})
}

// TestAFullQueue holds that the oldest event that is not under way makes room, that it is counted, and that kinds which
// the receiver does not get take no room.
func TestAFullQueue(t *testing.T) {
	t.Parallel()
	r := newReceiver(config.Webhook{Name: "r"}, slog.New(slog.DiscardHandler), nil)
	for i := range maxWaiting + 3 {
		r.add(item{id: fmt.Sprint(i), kind: "health"})
		r.add(item{kind: "link"})
	}
	if c := r.Counts(); c.Waiting != maxWaiting || c.Dropped != 3 || r.queue[0].id != "0" || r.queue[1].id != "4" || r.queue[maxWaiting-1].id != fmt.Sprint(maxWaiting+2) {
		t.Errorf("%+v, the first are %s and %s", c, r.queue[0].id, r.queue[1].id)
	}
}

// TestTheLastEvents holds that what happens until the node has ended is sent, and what waited between two tries; and
// that a receiver that hangs holds up the end for two seconds and no longer.
func TestTheLastEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		f := to(map[string]func(context.Context, item) error{"hangs": hangs, "good": takes, "back": func(context.Context, item) error {
			if !up.Load() {
				return errDown
			}
			return nil
		}})
		f.happen("leadership", "before")
		time.AfterFunc(10*time.Minute-time.Millisecond, func() { up.Store(true); f.happen("leadership", "gave the leadership up") })
		if ending := f.run(t, 10*time.Minute); ending != lingerTime {
			t.Errorf("the end took %v", ending)
		}
		if f.took("good") != 2 || f.took("back") != 2 {
			t.Errorf("%v", f.got)
		}
		f = to(map[string]func(context.Context, item) error{"good": takes})
		if ending := f.run(t, time.Hour); ending != 0 {
			t.Errorf("the end took %v where nothing waits", ending)
		}
	})
}

// TestATryThatCannotEnd holds that a file which cannot be read, as its disk stalls, does not hold up the node's end.
func TestATryThatCannotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stalls := make(chan struct{})
		f := to(map[string]func(context.Context, item) error{"stalls": func(context.Context, item) error { <-stalls; return errDown }, "good": takes})
		defer close(stalls)
		f.happen("leadership", "gave the leadership up")
		if ending := f.run(t, time.Minute); ending != lingerTime+stallTime || f.took("good") != 1 {
			t.Errorf("the end took %v, and the other receiver got %d events", ending, f.took("good"))
		}
	})
}

// TestAReceiverThatFailsForLong holds when a person is told of it, and until when.
func TestAReceiverThatFailsForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		f := to(map[string]func(context.Context, item) error{"pager": func(context.Context, item) error {
			if !up.Load() {
				return errors.New("odd\x1b[2J answer")
			}
			return nil
		}})
		f.happen("health", "x")
		says := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			got := strings.Join(f.Problems(), "; ")
			if (want == "") != (got == "") || !strings.Contains(got, want) || strings.Contains(got, "\x1b") {
				t.Errorf("%q, want %q", got, want)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = f.Run(ctx) })
		says(failsLong-time.Minute, "")
		says(2*time.Minute, "the webhook pager has taken no event for 6m0s; 1 wait: odd [2J answer")
		says(40*time.Minute, "0 wait") // it was given up
		says(2*shownFor, "")
		f.happen("health", "y")
		says(time.Minute, "1 wait")
		up.Store(true)
		says(2*maxPause, "")
		stop()
		running.Wait()
		if c := f.Counts()["pager"]; c.Sent != 1 || c.Abandoned != 1 || c.Failing != 0 {
			t.Errorf("%+v", c)
		}
	})
}
