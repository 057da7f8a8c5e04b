// Package sharedquery answers many callers with one query, whose answer is no older than the need of any of them.
package sharedquery

import (
	"context"
	"sync"
	"time"
)

// Query runs one query for many callers. One query runs at a time, and its answer serves all callers that asked
// before it was sent: an answer may not be older than the need for it.
type Query[T any] struct {
	Do     func(context.Context) (T, error)
	Run    func(func())  // runs a function in a goroutine
	Within time.Duration // bounds one query

	mu      sync.Mutex
	next    *answer[T] // of the query that is not sent yet; guarded by mu
	running bool       // guarded by mu
}

// answer is the result of one query.
type answer[T any] struct {
	there chan struct{} // closed when value and err are set
	value T
	err   error
}

// Ask returns the answer to a query that was sent after the call.
func (q *Query[T]) Ask(ctx context.Context) (T, error) {
	q.mu.Lock()
	if q.next == nil {
		q.next = &answer[T]{there: make(chan struct{})}
	}
	a := q.next
	if !q.running {
		q.running = true
		q.Run(q.serve)
	}
	q.mu.Unlock()
	select {
	case <-a.there:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// serve sends queries until there are no callers.
func (q *Query[T]) serve() {
	for {
		q.mu.Lock()
		a := q.next
		q.next = nil
		if a == nil {
			q.running = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), q.Within)
		a.value, a.err = q.Do(ctx)
		cancel()
		close(a.there)
	}
}
