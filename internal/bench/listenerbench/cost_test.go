package listenerbench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
)

// TestAnInterruptionEndsTheWaitForAnswers holds that the measurement of idle sessions can be interrupted.
func TestAnInterruptionEndsTheWaitForAnswers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if err := (&recorded{}).await(ctx, 1); !errors.Is(err, context.Canceled) || time.Since(began) > time.Minute {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestIdleBytesOfAnUnfinishedMeasurement holds that the sessions are not counted before each arm is measured.
func TestIdleBytesOfAnUnfinishedMeasurement(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := &listenerBed{dir: t.TempDir(), server: &pgtest.Server{}, ports: map[string]int{wayDirect: 1}}
	c := &Cost{Idle: map[string]float64{}}
	if err := l.idleBytes(ctx, CostOptions{Sessions: 20}, c); err == nil || c.Sessions != 0 {
		t.Errorf("%d sessions, %v", c.Sessions, err)
	}
}
