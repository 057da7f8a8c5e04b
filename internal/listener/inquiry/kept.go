package inquiry

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// A question takes the server some milliseconds of a processor, so hundreds of sessions cannot be asked while a drain
// holds their requests. They are asked ahead, while they go on. The server's answer holds for as long as no request is
// forwarded to it: nothing else changes a session.

const (
	// aheadFor is how long an answer holds that was read ahead. The server's configuration may be loaded meanwhile.
	aheadFor = time.Minute
	// aheadPatience is how long the answer of a session may take that is asked ahead.
	aheadPatience = 2 * time.Second
	// aheadBusy is that time for a session that is busy. One that stays so is asked in the drain alone.
	aheadBusy = 50 * time.Millisecond
	// aheadAtOnce is how many sessions are asked ahead at once: other sessions work meanwhile.
	aheadAtOnce = 4
	// aheadLook is how often it is looked whether another inquiry is over.
	aheadLook = 10 * time.Millisecond
	// aheadTold is after how many sessions who has asked hears of it.
	aheadTold = 50
)

// Kept is what was read of a session for its move. It is guarded by the lock of the session's Work.
type Kept struct {
	State   *continuity.State // nil: nothing was told, or something was forwarded since
	Refusal string            // why the session cannot be moved; "": State tells
	ahead   time.Duration     // CLOCK_BOOTTIME at which both were read while the session went on; 0: they were not
}

// Refuse notes why the session cannot be moved.
func (k *Kept) Refuse(w *underway.Work, why string) {
	w.Lock()
	*k = Kept{Refusal: why}
	w.Unlock()
}

// Forget has the session stay where it is, unless it is asked again.
func (k *Kept) Forget(w *underway.Work) { k.set(w, Kept{}) }

// set replaces what is kept, unless the session leaves its server: the next one is opened with what it has.
func (k *Kept) set(w *underway.Work, to Kept) {
	w.Lock()
	defer w.Unlock()
	if !w.Leaving.Load() {
		*k = to
	}
}

// Drained notes that a drain begins to hold the requests of the session, or is over. At its beginning an answer that
// was read ahead stays, if it holds. At its end nobody needs the state of a session that stays; the reason for which
// it cannot be moved is kept.
func (k *Kept) Drained(w *underway.Work, on bool, now time.Duration) {
	w.Lock()
	defer w.Unlock()
	switch {
	case w.Leaving.Load():
	case !on:
		k.State, k.ahead = nil, 0
	case k.ahead == 0 || now-k.ahead > aheadFor:
		*k = Kept{}
	}
}

// known reports whether the session need not be asked in a drain: it was asked ahead, and nothing was forwarded since.
// Requests that the kernel has forwarded are known once it has given the session back.
func (k *Kept) known(w *underway.Work) bool {
	w.Lock()
	defer w.Unlock()
	return k.ahead != 0 && !w.Offloaded()
}

// ReadStates has the states of those sessions read for their move, as long as ctx allows. A drain holds their
// requests.
func (i *Inquirer[H]) ReadStates(ctx context.Context, list []H) {
	var unknown []H
	for _, h := range list {
		if !h.Inquiry().known(h.Underway()) {
			unknown = append(unknown, h)
		}
	}
	late := func(h H, why string) { h.Inquiry().set(h.Underway(), Kept{Refusal: why}) }
	i.Each(ctx, AtOnce, unknown, func(h H) { i.keep(ctx, h, 0) }, late)
}

// ReadAhead has the states of those sessions read while they go on, as long as ctx allows. told is called now and then
// with how many were asked, of how many. A drain that begins ends it. It begins when the inquiry that is under way is
// over, and before any other: those who may see sessions can ask for one inquiry after another.
func (i *Inquirer[H]) ReadAhead(ctx context.Context, list []H, told func(asked, of int)) {
	i.first.Add(1)
	defer i.first.Add(-1)
	for !i.mu.TryLock() {
		select {
		case <-time.After(aheadLook):
		case <-ctx.Done():
			return
		}
	}
	defer i.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	i.cancel.Store(&cancel) // BEFORE the check for a drain
	var asked atomic.Int64
	ask := func(h H) {
		if n := asked.Add(1); n%aheadTold == 0 {
			told(int(n), len(list))
		}
		if i.Draining() {
			return
		}
		patience := aheadPatience
		if !h.Underway().Idle() {
			patience = aheadBusy
		}
		c, end := context.WithTimeout(ctx, patience)
		defer end()
		i.keep(c, h, boottime.Now())
	}
	i.Each(ctx, aheadAtOnce, list, ask, func(H, string) {})
}

// keep keeps what the session tells. ahead is the time at which it is asked while it goes on, or 0.
func (i *Inquirer[H]) keep(ctx context.Context, h H, ahead time.Duration) {
	s, w := h.Inquiry(), h.Underway()
	s.set(w, Kept{Refusal: i.Panicked}) // if this panics
	q, why := read(ctx, h, ahead != 0)
	w.Lock()
	defer w.Unlock()
	if w.Leaving.Load() {
		return
	}
	if s.Refusal = why; q == nil || q.after != s.forwards { // nil: it has left or ended, or was not asked
		return
	}
	if s.ahead = ahead; why == "" {
		s.State = &q.state
	}
}
