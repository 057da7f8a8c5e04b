package session

import (
	"sync/atomic"
	"time"
)

// watch ends operations whose time is up, each at its own deadline. A deadline of a context would set up and tear down
// a timer and its waiter for every operation: a sixth of the cost of a small one for its client. A watch has one
// timer, which goes off no later than the operation that is under way has to end, and is then set to when it has to.
type watch struct {
	limit  time.Duration
	expire func()
	origin time.Time
	began  atomic.Int64 // nanoseconds since origin, of the operation that is under way; or one of the two below
	timer  *time.Timer
}

const (
	idle    = -1 // no operation is under way
	expired = -2 // the last one was ended, or the watch was: nothing follows
)

// newWatch begins; expire is called at most once.
func newWatch(limit time.Duration, expire func()) *watch {
	w := &watch{limit: limit, expire: expire, origin: time.Now()}
	w.began.Store(idle)
	w.timer = time.AfterFunc(limit, w.look)
	return w
}

func (w *watch) begin() { w.began.Store(int64(time.Since(w.origin))) }

// end reports whether the operation had not run out of time.
func (w *watch) end() bool { return w.began.Swap(idle) != expired }

// look ends the operation if it is due, and else looks again when it will be. One that begins from now on is not due
// before that.
func (w *watch) look() {
	began := w.began.Load()
	if began == expired {
		return
	}
	left := w.limit
	if began != idle {
		left -= time.Since(w.origin) - time.Duration(began)
	}
	if left <= 0 && w.began.CompareAndSwap(began, expired) {
		w.expire()
		return
	}
	w.timer.Reset(max(left, 0))
}

// stop ends the watch for good, also if it is just about to set its timer again.
func (w *watch) stop() {
	w.began.Store(expired)
	w.timer.Stop()
}
