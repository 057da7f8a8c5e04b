package webhooks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Bounds of an event: how many wait for one receiver, how often one is tried, for how long, and the pauses in between.
const (
	maxWaiting = 128
	maxTries   = 40
	maxAge     = time.Hour
	firstPause = time.Second
	maxPause   = time.Minute
)

// failsLong is after what time of failures a person is told, and shownFor until when after the last one: a receiver
// that is mended shows it only at the next event.
const (
	failsLong = 5 * time.Minute
	shownFor  = time.Hour
)

// maxReason bounds the text of a failure, which may have something of the answer.
const maxReason = 200

// item is an event on its way to one receiver.
type item struct {
	id, kind string // the id is the same at each try
	body     []byte
	since    time.Time // when it began to wait
}

// receiver is one address with the events that wait for it. One goroutine sends them, one after the other.
type receiver struct {
	config.Webhook
	kinds []string
	log   *slog.Logger
	send  func(context.Context, item) error
	more  chan struct{} // has a place: something was added, or no more comes

	mu      sync.Mutex // guards what follows
	queue   []item     // the first is the one that is tried
	closed  bool
	counts  Counts
	failing time.Time // since when every try has failed; zero: the last one did not
	tried   time.Time // the last try
	reason  string    // of its failure
}

// Counts are what was counted of one receiver.
type Counts struct {
	Sent, Failed                uint64 // tries that were answered with success, and others
	Dropped, Refused, Abandoned uint64 // events that found no place; that the receiver refused; that were tried for too long
	Waiting                     int    // events that wait
	Failing                     time.Duration
}

func newReceiver(w config.Webhook, log *slog.Logger, send func(context.Context, item) error) *receiver {
	return &receiver{Webhook: w, kinds: w.Kinds(), log: log.With("webhook", w.Name), send: send, more: make(chan struct{}, 1)}
}

// add has an event wait, if the receiver gets its kind. The oldest one that is not being tried makes room: the youngest
// say how the node is.
func (r *receiver) add(e item) {
	if !slices.Contains(r.kinds, e.kind) {
		return
	}
	r.mu.Lock()
	first := false
	if len(r.queue) == maxWaiting {
		r.queue = slices.Delete(r.queue, 1, 2)
		r.counts.Dropped++
		first = r.counts.Dropped == 1
	}
	r.queue = append(r.queue, e)
	r.mu.Unlock()
	if first {
		r.log.Warn("events happen faster than the receiver takes them; the oldest are left out", "waiting", maxWaiting)
	}
	r.wake()
}

// close has work end once nothing waits.
func (r *receiver) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wake()
}

func (r *receiver) wake() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// next returns the event that has waited longest, once there is one; false: none comes any more, or ctx is done.
func (r *receiver) next(ctx context.Context) (item, bool) {
	for ctx.Err() == nil {
		r.mu.Lock()
		var e item
		waits, closed := len(r.queue) > 0, r.closed
		if waits {
			e = r.queue[0]
		}
		r.mu.Unlock()
		if waits || closed {
			return e, waits
		}
		select {
		case <-r.more:
		case <-ctx.Done():
		}
	}
	return item{}, false
}

// work sends one event after the other. Once ctx is done each is tried only once more, and nothing after last.
func (r *receiver) work(ctx, last context.Context) {
	pause := firstPause
	for {
		e, ok := r.next(last)
		if !ok {
			return
		}
		pause = r.deliver(ctx, last, e, pause)
		if last.Err() != nil {
			return
		}
		r.mu.Lock()
		r.queue = slices.Delete(r.queue, 0, 1)
		r.mu.Unlock()
	}
}

// deliver tries an event until it is taken, refused, or has been tried for too long. It returns the pause after the
// next failure: the first one after a success.
func (r *receiver) deliver(ctx, last context.Context, e item, pause time.Duration) time.Duration {
	for try := 1; ; try++ {
		if try > maxTries || time.Since(e.since) > maxAge {
			r.abandon(e, try-1)
			return pause
		}
		err := r.send(last, e)
		if last.Err() != nil && err != nil {
			return pause
		}
		r.note(err)
		if err == nil || errors.Is(err, errRefused) {
			if err != nil {
				r.log.Warn("an event was refused, and is not sent again", "kind", e.kind, "id", e.id, "err", plain(err.Error()))
			}
			return firstPause
		}
		if try == 1 {
			r.log.Warn("an event was not taken; it is tried again", "kind", e.kind, "id", e.id, "err", plain(err.Error()))
		}
		if ctx.Err() != nil {
			r.abandon(e, try)
			return pause
		}
		var later laterError
		_ = errors.As(err, &later)
		wait := pause/2 + rand.N(pause/2)            //nolint:gosec // it keeps senders apart, and is no secret
		_ = retry.Sleep(ctx, max(wait, later.after)) // its end: one more try
		pause = min(2*pause, maxPause)
	}
}

func (r *receiver) abandon(e item, tries int) {
	r.mu.Lock()
	r.counts.Abandoned++
	r.mu.Unlock()
	r.log.Warn("an event was given up", "kind", e.kind, "id", e.id, "tries", tries, "after", time.Since(e.since).Round(time.Second))
}

// note keeps how a try ended. A receiver that refuses an event works.
func (r *receiver) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tried = time.Now()
	switch {
	case err == nil:
		r.counts.Sent++
	case errors.Is(err, errRefused):
		r.counts.Failed++
		r.counts.Refused++
	default:
		r.counts.Failed++
		r.reason = plain(err.Error())
		if r.failing.IsZero() {
			r.failing = r.tried
		}
		return
	}
	r.failing = time.Time{}
}

// Counts returns what was counted.
func (r *receiver) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts
	c.Waiting = len(r.queue)
	if !r.failing.IsZero() {
		c.Failing = time.Since(r.failing)
	}
	return c
}

// problem returns for how long the receiver has taken nothing, and why; "": it is not long, or was long ago.
func (r *receiver) problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failing.IsZero() || time.Since(r.failing) < failsLong || len(r.queue) == 0 && time.Since(r.tried) > shownFor {
		return ""
	}
	return fmt.Sprintf("the webhook %s has taken no event for %v; %d wait: %s", r.Name, time.Since(r.failing).Round(time.Minute), len(r.queue), r.reason)
}

// plain returns the beginning of a text, without what could control a terminal.
func plain(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s[:min(len(s), maxReason)], ""))
}
