package sharedquery

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnAnswerIsNoOlderThanItsQuestion: a caller that asks while a query is running is not served by its answer,
// which may be older than the need for it. Callers that ask meanwhile share the next one.
func TestAnAnswerIsNoOlderThanItsQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		answers, asked := make(chan int), 0
		s := &Query[int]{
			Do:     func(context.Context) (int, error) { asked++; return <-answers, nil },
			Run:    func(f func()) { running.Go(f) },
			Within: time.Minute,
		}
		heard := make([]chan int, 3)
		for i := range heard {
			heard[i] = make(chan int, 1)
			go func() {
				n, err := s.Ask(t.Context())
				if err != nil {
					t.Error(err)
				}
				heard[i] <- n
			}()
			synctest.Wait() // the first question is on its way
		}
		answers <- 1
		synctest.Wait()
		if len(heard[0]) != 1 || len(heard[1])+len(heard[2]) != 0 {
			t.Errorf("served by a question sent before they asked: %d, %d", len(heard[1]), len(heard[2]))
		}
		answers <- 2
		if a, b, c := <-heard[0], <-heard[1], <-heard[2]; a != 1 || b != 2 || c != 2 {
			t.Errorf("answers %d, %d, %d", a, b, c)
		}
		running.Wait()
		if asked != 2 {
			t.Errorf("%d questions", asked)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.Run = func(func()) {} // no answer
		if _, err := s.Ask(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("an asker that left: %v", err)
		}
	})
}
