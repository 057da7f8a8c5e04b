package endpoint

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/endpoint/link/linktest"
)

// stuckWriter opens a stream by QUIC to a peer that reads nothing, and returns once a Write on it waits for room.
func stuckWriter(t *testing.T) (c *Conn, wrote <-chan error) {
	t.Helper()
	ca := newTestCA(t, groupA)
	server := startBeside(t, Config{Node: newTestNode(t, ca, "far"), Handlers: map[Class]Handler{
		ClassWAL: func(ctx context.Context, _ certs.Identity, _ net.Conn) { <-ctx.Done() },
	}})
	near := startBeside(t, Config{Node: newTestNode(t, ca, "near"), Handlers: map[Class]Handler{ClassWAL: echo}})
	c, err := near.DialBy(within(t), KindQUIC, server.Addr().String(), ClassWAL, "far")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Abort)
	var written atomic.Int64
	result := make(chan error, 1)
	go func() {
		for b := make([]byte, 64<<10); ; {
			n, err := c.Write(b)
			written.Add(int64(n))
			if err != nil {
				result <- err
				return
			}
		}
	}()
	for last, since := int64(-1), time.Now(); time.Since(since) < 300*time.Millisecond; time.Sleep(5 * time.Millisecond) {
		if n := written.Load(); n != last {
			last, since = n, time.Now()
		}
	}
	return c, result
}

// TestCloseEndsAWrite holds that a Write that waits for room on a stream by QUIC returns when the stream is closed from
// another goroutine, as it does by TCP.
func TestCloseEndsAWrite(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(c *Conn){
		"close":                      func(c *Conn) { _ = c.Close() },
		"abort":                      (*Conn).Abort,
		"close, then abort":          func(c *Conn) { go func() { _ = c.Close() }(); c.Abort() },
		"end of writing, then abort": func(c *Conn) { go func() { _ = c.CloseWrite() }(); time.Sleep(20 * time.Millisecond); c.Abort() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, wrote := stuckWriter(t)
			end(c)
			select {
			case err := <-wrote:
				if err == nil {
					t.Error("a Write on a closed stream succeeds")
				}
			case <-time.After(patience):
				t.Fatal("waited in vain for the Write to return")
			}
			if _, err := c.Write([]byte("more")); err == nil {
				t.Error("a closed stream was written to")
			}
		})
	}
}

// udpGate passes datagrams between clients and a server until it is shut; from then on it drops them.
type udpGate struct {
	front  *net.UDPConn
	to     *net.UDPAddr
	isShut atomic.Bool
	mu     sync.Mutex
	backs  map[string]*net.UDPConn // by client
	wg     sync.WaitGroup
}

func newUDPGate(t *testing.T, to string) *udpGate {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.ListenUDP("udp", &net.UDPAddr{IP: addr.IP})
	if err != nil {
		t.Fatal(err)
	}
	g := &udpGate{front: front, to: addr, backs: make(map[string]*net.UDPConn)}
	g.wg.Go(g.forward)
	t.Cleanup(func() {
		_ = front.Close()
		g.mu.Lock()
		for _, b := range g.backs {
			_ = b.Close()
		}
		g.mu.Unlock()
		g.wg.Wait()
	})
	return g
}

func (g *udpGate) forward() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := g.front.ReadFromUDP(buf)
		if err != nil {
			return
		}
		if b := g.back(from); b != nil && !g.isShut.Load() {
			_, _ = b.Write(buf[:n])
		}
	}
}

// back returns the socket towards the server for a client.
func (g *udpGate) back(client *net.UDPAddr) *net.UDPConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b := g.backs[client.String()]; b != nil {
		return b
	}
	b, err := net.DialUDP("udp", nil, g.to)
	if err != nil {
		return nil
	}
	g.backs[client.String()] = b
	g.wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := b.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && !g.isShut.Load() {
				_, _ = g.front.WriteToUDP(buf[:n], client)
			}
		}
	})
	return b
}

// TestQUICCut makes UDP silent in both directions while a link by QUIC is written to: the link continues by TCP, and
// every byte arrives. That holds for a leg that this side closes because it was silent for too long, and for one that
// another leg replaces.
func TestQUICCut(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]link.Config{
		"silent for too long": {Suspect: time.Hour, DeadAfter: 3 * time.Second},
		"replaced":            {Suspect: 300 * time.Millisecond, DeadAfter: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gate *udpGate
			n := newPathBy(t, link.PreferQUIC, func(c *Conn) link.Transport { return c }, func(addr string) (tcp, quic string) {
				gate = newUDPGate(t, addr)
				return addr, gate.front.LocalAddr().String()
			})
			c := linktest.Config("OFF")
			c.Suspect, c.DeadAfter = cfg.Suspect, cfg.DeadAfter
			p := linktest.Open(t, n, c)
			var cut sync.WaitGroup
			cut.Go(func() {
				waitFor(t, "data to be under way", func() bool { return p.Near.Status().Received > 2<<20 && p.Far.Status().Received > 2<<20 })
				gate.isShut.Store(true)
			})
			linktest.BothWays(t, p, 24<<20)
			cut.Wait()
			waitFor(t, "the link to go by TCP alone", func() bool { // a leg that is replaced by another one goes a moment later
				legs := p.Near.Status().Legs
				return len(legs) == 1 && legs[0].Kind == KindTCP
			})
		})
	}
}
