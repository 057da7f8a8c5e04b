package link_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/endpoint/link/linktest"
)

// plain is a transport without encryption, over the loopback.
type plain struct {
	net.Conn
	loss func() (sent, lost uint64)
	slow time.Duration
	mute atomic.Bool // written bytes vanish
}

func (p *plain) Write(b []byte) (int, error) {
	if p.mute.Load() {
		return len(b), nil
	}
	return p.Conn.Write(b)
}

func (p *plain) Kind() string       { return link.TCP }
func (p *plain) Congestion() string { return "none" }
func (p *plain) Counters() (time.Duration, uint64, uint64) {
	if p.loss == nil {
		return p.slow, 0, 0
	}
	s, l := p.loss()
	return p.slow, s, l
}

// loopback is a path over which legs can be cut.
type loopback struct {
	t  *testing.T
	l  net.Listener
	mu sync.Mutex
	// conns are the accepted ends.
	conns []net.Conn
	ends  []*plain // both ends of all of them
}

func (b *loopback) end(c net.Conn) *plain {
	p := &plain{Conn: c}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends = append(b.ends, p)
	return p
}

// silence makes every leg that is open now one by which nothing comes any more.
func (b *loopback) silence() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.ends {
		p.mute.Store(true)
	}
	b.ends = nil
}

func newLoopback(t *testing.T) linktest.Net {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &loopback{t: t, l: l}
	return linktest.Net{
		Prefer: link.PreferTCP,
		Attach: b.attach,
		Cut:    b.cut, Silence: b.silence,
		Open: func(ctx context.Context, kind string) (link.Transport, error) {
			if kind != link.TCP {
				return nil, errors.New("no such transport")
			}
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
			if err != nil {
				return nil, err
			}
			return b.end(c), nil
		},
	}
}

func (b *loopback) attach(h *link.Hub) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := b.l.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns = append(b.conns, c)
			b.mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				_ = h.Handle(context.Background(), "near", b.end(c))
			})
		}
	})
	b.t.Cleanup(func() {
		_ = b.l.Close()
		b.cut()
		wg.Wait()
	})
}

func (b *loopback) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.(*net.TCPConn).CloseRead() // the close itself is the hub's
		_ = c.(*net.TCPConn).CloseWrite()
	}
	b.conns = nil
}

func TestSuite(t *testing.T) {
	t.Parallel()
	linktest.Run(t, newLoopback)
}
