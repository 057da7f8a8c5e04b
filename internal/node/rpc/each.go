package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Each asks every one of the replicas at the same time, until ctx ends, and returns the answers and the errors by
// replica. ask is called in a goroutine of its own for each; Each waits for all of them. A panic of ask is one of the
// caller, which may be able to go on.
func Each[T any](ctx context.Context, replicas []ag.Replica, ask func(context.Context, ag.Replica) (T, error)) (answers map[ag.ReplicaID]T, failed map[ag.ReplicaID]error) {
	answers, failed = map[ag.ReplicaID]T{}, map[ag.ReplicaID]error{}
	var mu sync.Mutex // guards both, and panicked
	var panicked any
	var running sync.WaitGroup
	for _, r := range replicas {
		running.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					mu.Lock()
					defer mu.Unlock()
					panicked = fmt.Sprintf("%v, in\n%s", p, debug.Stack())
				}
			}()
			answer, err := ask(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[r.ID] = err
				return
			}
			answers[r.ID] = answer
		})
	}
	running.Wait()
	if panicked != nil {
		panic(panicked)
	}
	return answers, failed
}

// First asks the replicas one after the other, each for at most try, and returns the first answer. It fails with what
// every one of them said; with no error and no answer where there are none to ask.
func First[T any](ctx context.Context, replicas []ag.Replica, try time.Duration, ask func(context.Context, ag.Replica) (T, error)) (answer T, found bool, err error) {
	var tried []error
	for _, r := range replicas {
		c, cancel := context.WithTimeout(ctx, try)
		answer, err := ask(c, r)
		cancel()
		if err == nil {
			return answer, true, nil
		}
		tried = append(tried, err)
	}
	return answer, false, errors.Join(tried...)
}
