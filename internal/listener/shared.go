package listener

import (
	"context"
	"sync"
	"time"
)

// questionTime bounds one question.
const questionTime = 2 * time.Second

// shared asks a question for many at once. One is on its way at a time, and its answer serves everybody who asked before it was
// sent: an answer may not be older than what it is needed for.
type shared[T any] struct {
	question func(context.Context) (T, error)
	run      func(func()) // runs it in a goroutine that is waited for

	mu      sync.Mutex
	next    *answer[T] // to a question that is not sent yet; guarded by mu
	running bool       // guarded by mu
}

type answer[T any] struct {
	there chan struct{} // closed when it is there
	value T
	err   error
}

// ask returns the answer to a question that was sent after the call.
func (s *shared[T]) ask(ctx context.Context) (T, error) {
	s.mu.Lock()
	if s.next == nil {
		s.next = &answer[T]{there: make(chan struct{})}
	}
	a := s.next
	if !s.running {
		s.running = true
		s.run(s.serve)
	}
	s.mu.Unlock()
	select {
	case <-a.there:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// serve sends questions until nobody asks any more.
func (s *shared[T]) serve() {
	for {
		s.mu.Lock()
		a := s.next
		s.next = nil
		if a == nil {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), questionTime)
		a.value, a.err = s.question(ctx)
		cancel()
		close(a.there)
	}
}
