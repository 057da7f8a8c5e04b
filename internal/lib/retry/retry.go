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

// Every calls turn at once and then at each multiple of period (boottime.UntilNext), until ctx ends. A multiple that
// passes during a turn is left out. One wake-up of an idle process serves all turns that are due together.
func Every(ctx context.Context, period time.Duration, turn func()) {
	for {
		turn()
		if Sleep(ctx, boottime.UntilNext(period)) != nil {
			return
		}
	}
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
