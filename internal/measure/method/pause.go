package method

import (
	"context"
	"time"
)

// Pause returns after d, or when ctx ends. It reports whether ctx has not ended.
func Pause(ctx context.Context, d time.Duration) bool { return SleepUntil(ctx, time.Now().Add(d)) }

// SleepUntil returns at t, or when ctx ends. It reports whether ctx has not ended.
func SleepUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
