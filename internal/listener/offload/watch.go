package offload

import (
	"context"
	"sync"
	"time"
)

// tick is how often a listener with offloaded sessions looks at them.
const tick = 20 * time.Millisecond

// Watch looks at the offloaded sessions of a listener as long as there are some. The zero value has none.
type Watch struct {
	mu    sync.Mutex
	now   int           // offloaded sessions; guarded by mu, as is first
	first chan struct{} // closed for the first of them; nil: nobody waits for it
}

// Add counts a session that is offloaded.
func (w *Watch) Add() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now++; w.first != nil {
		close(w.first)
		w.first = nil
	}
}

// Done counts one that has come back.
func (w *Watch) Done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now--
}

// Run calls look again and again while there are offloaded sessions, until ctx ends.
func (w *Watch) Run(ctx context.Context, look func()) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		if first := w.none(); first != nil {
			t.Stop()
			select {
			case <-ctx.Done():
				return
			case <-first:
			}
			t.Reset(tick)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			look()
		}
	}
}

// none returns a channel that is closed for the next session, if there is none now; else nil.
func (w *Watch) none() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now > 0 {
		return nil
	}
	w.first = make(chan struct{})
	return w.first
}
