package liveness

import (
	"context"
	"io"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// deafStream takes what is sent. It echoes only the first echoes heartbeats, and ends when it is closed.
type deafStream struct {
	echoes int
	back   chan Heartbeat
	closed chan struct{}
	close  func()
}

func newDeafStream(echoes int) *deafStream {
	h := &deafStream{echoes: echoes, back: make(chan Heartbeat, 1000), closed: make(chan struct{})}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	return h
}

func (h *deafStream) Send(b Heartbeat) error {
	if b.Epoch != 0 && h.echoes > 0 {
		h.echoes--
		h.back <- b
	}
	return nil
}

func (h *deafStream) Receive() (Heartbeat, error) {
	select {
	case b := <-h.back:
		return b, nil
	case <-h.closed:
		return Heartbeat{}, io.EOF
	}
}

func (h *deafStream) Close() error { h.close(); return nil }

// hearing counts the streams that were opened. The n-th one echoes as many heartbeats as echoes returns.
type hearing struct {
	opened []time.Time
	echoes func(n int) int
}

func (p *hearing) dial(context.Context, ag.Replica) (HeartbeatStream, error) {
	p.opened = append(p.opened, time.Now())
	return newDeafStream(p.echoes(len(p.opened))), nil
}

// A stream whose heartbeats get no echo is replaced long before TCP would give it up. A stream whose heartbeats are
// answered, or on which none are to be sent, is kept.
func TestSilentStreamIsReplaced(t *testing.T) {
	const ever = 1 << 30
	for name, c := range map[string]struct {
		epoch  ag.Epoch
		echoes func(n int) int
		want   int // streams within a minute
	}{
		"answered":          {7, func(int) int { return ever }, 1},
		"silent from then":  {7, func(n int) int { return []int{10, ever}[n-1] }, 2},
		"nothing is wanted": {0, func(int) int { return 0 }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &hearing{echoes: c.echoes}
				profile := ag.Profiles["default"]
				h := NewHeartbeater(HeartbeatConfig{
					Incarnation: "i", Dial: p.dial, Acknowledged: func(ag.Epoch, ag.ReplicaID, time.Duration) {},
					Profile: func() ag.Profile { return profile }, Log: slog.New(slog.DiscardHandler),
				})
				h.Want(7, []ag.Replica{{ID: "b"}})
				if c.epoch == 0 {
					h.wanted.Store(&target{0, nil})
				}
				ctx, cancel := context.WithCancel(t.Context())
				var ended sync.WaitGroup
				ended.Go(func() { h.reach(ctx, ag.Replica{ID: "b"}) })
				time.Sleep(time.Minute)
				cancel()
				ended.Wait()
				if len(p.opened) != c.want {
					t.Errorf("%d streams were opened, want %d", len(p.opened), c.want)
				}
				if c.want == 2 && p.opened[1].Sub(p.opened[0]) > 2*silent(profile) {
					t.Errorf("a silent stream was kept for %v", p.opened[1].Sub(p.opened[0]))
				}
			})
		})
	}
}

// liar is a stream whose voter acknowledges heartbeats in an epoch of its own.
type liar struct {
	*deafStream
	epoch ag.Epoch
}

func (l liar) Receive() (Heartbeat, error) {
	b, err := l.deafStream.Receive()
	b.Epoch = l.epoch
	return b, err
}

// An acknowledgement in an epoch in which nothing was sent counts for nothing: the answer lease of the epoch that this
// node leads would end by it, for as long as this process lives.
func TestAcknowledgedEpochWasSent(t *testing.T) {
	for epoch, want := range map[ag.Epoch]bool{7: true, 8: false, math.MaxUint64: false} {
		synctest.Test(t, func(t *testing.T) {
			counted := map[ag.Epoch]bool{}
			h := NewHeartbeater(HeartbeatConfig{
				Incarnation: "i", Dial: func(context.Context, ag.Replica) (HeartbeatStream, error) {
					return liar{newDeafStream(1 << 30), epoch}, nil
				},
				Acknowledged: func(e ag.Epoch, _ ag.ReplicaID, _ time.Duration) { counted[e] = true },
				Profile:      func() ag.Profile { return ag.Profiles["default"] }, Log: slog.New(slog.DiscardHandler),
			})
			h.Want(7, []ag.Replica{{ID: "w"}})
			ctx, cancel := context.WithCancel(t.Context())
			var ended sync.WaitGroup
			ended.Go(func() { h.reach(ctx, ag.Replica{ID: "w"}) })
			time.Sleep(10 * time.Second)
			cancel()
			ended.Wait()
			if counted[epoch] != want {
				t.Errorf("epoch %d is counted: %t", epoch, counted[epoch])
			}
		})
	}
}
