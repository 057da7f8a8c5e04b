package agent

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// deafHeart takes what is sent; it echoes the first echoes beats only, and ends when it is closed.
type deafHeart struct {
	echoes int
	back   chan Beat
	closed chan struct{}
	close  func()
}

func newDeafHeart(echoes int) *deafHeart {
	h := &deafHeart{echoes: echoes, back: make(chan Beat, 1000), closed: make(chan struct{})}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	return h
}

func (h *deafHeart) Send(b Beat) error {
	if b.Epoch != 0 && h.echoes > 0 {
		h.echoes--
		h.back <- b
	}
	return nil
}

func (h *deafHeart) Receive() (Beat, error) {
	select {
	case b := <-h.back:
		return b, nil
	case <-h.closed:
		return Beat{}, io.EOF
	}
}

func (h *deafHeart) Close() error { h.close(); return nil }

// hearing counts the streams that were opened; the n-th one echoes as many beats as echoes says.
type hearing struct {
	Peers
	opened []time.Time
	echoes func(n int) int
}

func (p *hearing) Heart(context.Context, ag.Replica) (Heart, error) {
	p.opened = append(p.opened, time.Now())
	return newDeafHeart(p.echoes(len(p.opened))), nil
}

// TestSilentHeartIsMadeAnew: a stream whose beats come to nothing is given up long before TCP would, and one that is answered, or on which
// nothing is to be sent, is kept.
func TestSilentHeartIsMadeAnew(t *testing.T) {
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
				h := &hearts{
					self: "a", incarnation: "i", peers: p, answers: &answers{self: "a"}, profile: func() ag.Profile { return profile },
					log: slog.New(slog.DiscardHandler), answered: newAnswered(), moved: make(chan struct{}, 1),
				}
				h.want(7, []ag.Replica{{ID: "b"}})
				if c.epoch == 0 {
					h.wanted.Store(&beating{0, nil})
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
