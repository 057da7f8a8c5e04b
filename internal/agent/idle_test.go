package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// strayInstance counts how often walsenders are looked for.
type strayInstance struct {
	nodeInstance
	looks *atomic.Int32
}

func (i strayInstance) Strays(context.Context) ([]ag.ReplicaID, error) {
	i.looks.Add(1)
	return nil, nil
}

// TestOnlyAPrimaryWatchesForStrays holds that a node whose commits no member acknowledges neither looks for walsenders
// nor wakes for that, and that one which leads looks ten times a second, from the first tenth of a second on.
func TestOnlyAPrimaryWatchesForStrays(t *testing.T) {
	secondary := ag.View{Local: ag.Local{Server: ag.ServerRecovery}}
	secondary.Record.State.K = 1
	alone, primary := secondary, secondary
	alone.Local.Server, primary.Local.Server = ag.ServerWritable, ag.ServerWritable
	alone.Record.State.K = 0
	synctest.Test(t, func(t *testing.T) {
		var looks, wakes atomic.Int32
		defer boottime.SetForTest(func() time.Duration {
			wakes.Add(1) // the clock is read for each wait
			return time.Duration(time.Now().UnixNano())
		})()
		a, err := New(Config{
			Self: "a", Marks: marks.Open(t.TempDir()), Store: &node{}, Instance: strayInstance{looks: &looks}, Keeper: nodeKeeper{}, Upstream: nodeUpstream{},
			Downstream: &node{}, Peers: nodeOthers{}, Sessions: nodeOthers{}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { a.watchStrays(ctx) })
		for _, tt := range []struct {
			name  string
			view  ag.View
			span  time.Duration
			looks int32
		}{
			{"secondary", secondary, time.Minute, 0},
			{"primary", primary, strayEvery, 1},
			{"primary for a minute", primary, time.Minute, 600},
			{"primary whose commits wait for nobody", alone, time.Minute, 0},
			{"primary again", primary, strayEvery, 1},
		} {
			looks.Store(0)
			wakes.Store(0)
			a.show(tt.view)
			time.Sleep(tt.span)
			synctest.Wait()
			if n, w := looks.Load(), wakes.Load(); n < tt.looks || n > tt.looks+1 || w > tt.looks+2 {
				t.Errorf("%s: %d looks and %d wake-ups in %v, want %d looks", tt.name, n, w, tt.span, tt.looks)
			}
		}
		cancel()
		watch.Wait()
	})
}
