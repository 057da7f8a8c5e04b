package link

import "sync"

// crew is the goroutines of a link. Unlike a sync.WaitGroup it may be added to while somebody waits: a link is closed by whoever wants
// it closed, while its legs still end.
type crew struct {
	mu   sync.Mutex
	left sync.Cond // of mu
	n    int
}

// Go runs f in a goroutine that Wait waits for.
func (w *crew) Go(f func()) {
	w.mu.Lock()
	w.n++
	w.mu.Unlock()
	go func() {
		defer func() {
			w.mu.Lock()
			w.n--
			w.left.Broadcast()
			w.mu.Unlock()
		}()
		f()
	}()
}

// Wait returns when no goroutine is left.
func (w *crew) Wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.n > 0 {
		w.left.Wait()
	}
}
