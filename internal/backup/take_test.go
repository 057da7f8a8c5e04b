package backup

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// place is a place of a repository that several groups use at once, in an order that a test chooses.
type place struct {
	mu    sync.Mutex
	owner string
	said  map[string]bool
}

// at is the place as one group uses it. Each call waits for its turn.
type at struct {
	*place
	group string
	turn  chan chan struct{}
}

func (a at) step(f func()) {
	done := make(chan struct{})
	a.turn <- done
	a.mu.Lock()
	f()
	a.mu.Unlock()
	close(done)
}

func (a at) Owner(context.Context) (o string, err error) {
	a.step(func() { o = a.owner })
	return o, nil
}

func (a at) Claim(context.Context) error {
	a.step(func() { a.owner = a.group })
	return nil
}

func (a at) Announce(context.Context) (others []string, err error) {
	a.step(func() { a.said[a.group] = true })
	a.step(func() {
		for g := range a.said {
			if g != a.group {
				others = append(others, g)
			}
		}
	})
	return others, nil
}

func (a at) Withdraw(context.Context) error {
	a.step(func() { delete(a.said, a.group) })
	return nil
}

// TestTakeAtOnce has three groups take one place in thousands of orders: never do two succeed, one that is alone does,
// and nothing that was announced stays.
func TestTakeAtOnce(t *testing.T) {
	succeeded := map[int]int{}
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		p := &place{said: map[string]bool{}}
		var turns []chan chan struct{}
		errs := make(chan error, 3)
		var running sync.WaitGroup
		for i := range 1 + int(seed%3) {
			turn := make(chan chan struct{})
			turns = append(turns, turn)
			running.Go(func() {
				defer close(turn)
				errs <- Take(t.Context(), at{p, fmt.Sprint("g", i), turn}, fmt.Sprint("g", i), "")
			})
		}
		groups := len(turns)
		for len(turns) > 0 {
			i := rng.IntN(len(turns))
			if done, more := <-turns[i]; more {
				<-done
			} else {
				turns = append(turns[:i], turns[i+1:]...)
			}
		}
		running.Wait()
		won := 0
		for range groups {
			if <-errs == nil {
				won++
			}
		}
		if won > 1 || groups == 1 && won != 1 || len(p.said) > 0 {
			t.Fatalf("seed %d: %d of %d groups took it, owner %q, announced %v", seed, won, groups, p.owner, p.said)
		}
		succeeded[won]++
	}
	if succeeded[0] == 0 || succeeded[1] == 0 {
		t.Errorf("successes: %v", succeeded)
	}
}
