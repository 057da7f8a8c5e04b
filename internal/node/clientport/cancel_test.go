package clientport

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener"
)

// TestForwardCancel holds that every other node with clients is asked, that the first that knows the key ends the
// search for the others, and that a dead node does not keep others from being asked.
func TestForwardCancel(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context, _ ag.ReplicaID) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, tt := range map[string]struct {
		cancel func(context.Context, ag.ReplicaID) error
		known  bool
		took   time.Duration
	}{
		"nobody knows it": {nil, false, 0},
		"one knows it":    {func(_ context.Context, to ag.ReplicaID) error { return map[ag.ReplicaID]error{"n2": errNoRoute}[to] }, true, 0},
		"nobody answers":  {hang, false, time.Second},
		"one is dead": {func(ctx context.Context, to ag.ReplicaID) error {
			if to == "n2" {
				return hang(ctx, to)
			}
			return nil
		}, true, 0},
		"one is dead, and the other does not know it": {func(ctx context.Context, to ag.ReplicaID) error {
			if to == "n2" {
				return hang(ctx, to)
			}
			return errNoRoute
		}, false, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := primary()
			n.peers.cancel = tt.cancel
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			began := time.Now()
			err := n.port(t).forwardCancel(ctx, 3, listener.CancelKey{PID: 7})
			slices.Sort(n.peers.asked)
			if (err == nil) != tt.known || time.Since(began) != tt.took || !slices.Equal(n.peers.asked, []ag.ReplicaID{"n2", "n3"}) {
				t.Errorf("%s: %v after %v, asked %v", name, err, time.Since(began), n.peers.asked)
			}
		})
	}
	n := primary()
	n.group = nil
	if err := n.port(t).forwardCancel(t.Context(), 3, listener.CancelKey{PID: 7}); err == nil || len(n.peers.asked) > 0 {
		t.Errorf("no group is known: %v, asked %v", err, n.peers.asked)
	}
}
