// Package retry waits: for a condition, for the next turn, for a while. Every wait ends with its context.
//
// It is for conditions that can only be polled. Where a channel or a watch reports a change, wait for that. Start
// reading at Until.
package retry

import (
	"context"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Until calls done at once and then after each pause, until it reports true (Until returns nil), fails (Until returns
// its error), or ctx ends (Until returns the cause). Done is called at least once. The caller bounds the wait by ctx.
func Until(ctx context.Context, pause time.Duration, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// Every calls turn at once and then at the instants that are multiples of pause, until ctx ends. All loops of a process
// with such a pause so turn at the same instants: one wake-up of an idle process serves them all. At least half a pause
// passes between two turns, and at most one and a half.
func Every(ctx context.Context, pause time.Duration, turn func()) {
	for {
		turn()
		if Sleep(ctx, toNext(boottime.UntilNext(pause), pause)) != nil {
			return
		}
	}
}

// toNext returns how long to wait after a turn, where the next instant is that far away.
func toNext(left, pause time.Duration) time.Duration {
	if left < pause/2 {
		return left + pause
	}
	return left
}

// Sleep waits for d. If ctx ends before, or has ended, it returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
