package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/endpoint/link/linktest"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/rawconn"
)

// newPath returns two endpoints between which a link's legs are opened.
func newPath(t *testing.T, prefer link.Preference) linktest.Net {
	return newPathOf(t, prefer, func(c *Conn) link.Transport { return c })
}

// newPathOf is newPath with a wrapper of accepted connections.
func newPathOf(t *testing.T, prefer link.Preference, accept func(*Conn) link.Transport) linktest.Net {
	return newPathBy(t, prefer, accept, func(addr string) (tcp, quic string) { return addr, addr })
}

// newPathBy is newPathOf by addresses behind which the other end is.
func newPathBy(t *testing.T, prefer link.Preference, accept func(*Conn) link.Transport, by func(addr string) (tcp, quic string)) linktest.Net {
	ca := newTestCA(t, groupA)
	var mu sync.Mutex
	var hub *link.Hub
	server := startBeside(t, Config{Node: newTestNode(t, ca, "far"), MaxConns: map[Class]int{ClassWAL: 1000}, Handlers: map[Class]Handler{
		ClassWAL: func(ctx context.Context, peer certs.Identity, conn net.Conn) {
			mu.Lock()
			h := hub
			mu.Unlock()
			if err := h.Handle(ctx, string(peer.ID), accept(conn.(*Conn))); err != nil {
				t.Logf("leg: %v", err)
			}
		},
	}})
	near := startBeside(t, Config{Node: newTestNode(t, ca, "near"), Handlers: map[Class]Handler{ClassWAL: echo}})
	tcp, quic := by(server.Addr().String())
	return linktest.Net{
		Prefer: prefer,
		Attach: func(h *link.Hub) {
			mu.Lock()
			defer mu.Unlock()
			hub = h
		},
		Open: func(ctx context.Context, kind string) (link.Transport, error) {
			addr := tcp
			if kind == KindQUIC {
				addr = quic
			}
			c, err := near.DialBy(ctx, kind, addr, ClassWAL, "far")
			if err != nil {
				return nil, err
			}
			return c, nil
		},
		Cut: func() { // as a network does: without notice to either end
			for _, c := range server.live() {
				if s, ok := c.Conn.(*quicStream); ok {
					_ = s.conn.CloseWithError(7, "cut")
					continue
				}
				c.socket(func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
			}
		},
	}
}

func TestLinkOverTCP(t *testing.T) {
	t.Parallel()
	linktest.Run(t, func(t *testing.T) linktest.Net { return newPath(t, link.PreferTCP) })
}

func TestLinkOverQUIC(t *testing.T) {
	t.Parallel()
	linktest.Run(t, func(t *testing.T) linktest.Net {
		n := newPath(t, link.PreferQUIC)
		n.Cut = nil // a QUIC connection that is cut is silent for 10 s; TestQUICCut
		return n
	})
}

// lossyCubic is a connection over a far path whose controller takes each loss for congestion, and which reports many
// losses.
type lossyCubic struct {
	*Conn
	asked atomic.Uint64
}

func (c *lossyCubic) Write(p []byte) (int, error) {
	time.Sleep(1200 * time.Microsecond)
	return c.Conn.Write(p)
}

func (*lossyCubic) Congestion() string { return "cubic" }

func (*lossyCubic) Steer(bool) (string, error) { return "cubic", errors.New("not allowed here") }

func (c *lossyCubic) Counters() (time.Duration, uint64, uint64) {
	n := c.asked.Add(1)
	return 60 * time.Millisecond, 1000 * n, 20 * n
}

// TestStripedLink sends large data over several connections, which are cut all the while.
func TestStripedLink(t *testing.T) {
	t.Parallel()
	striped := func(t *testing.T) linktest.Net {
		n := newPathOf(t, link.PreferTCP, func(c *Conn) link.Transport { return &lossyCubic{Conn: c} })
		open := n.Open
		n.Open = func(ctx context.Context, kind string) (link.Transport, error) {
			c, err := open(ctx, kind)
			if err != nil {
				return nil, err
			}
			return &lossyCubic{Conn: c.(*Conn)}, nil
		}
		return n
	}
	linktest.Run(t, striped)
	t.Run("stripes", func(t *testing.T) {
		t.Parallel()
		p := linktest.Open(t, striped(t), linktest.Config("OFF"))
		waitFor(t, "eight connections", func() bool { return len(p.Far.Status().Legs) >= 8 && len(p.Near.Status().Legs) >= 8 })
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for b := make([]byte, 128<<10); ; {
				if _, err := p.Far.Write(b); err != nil {
					return
				}
			}
		})
		for b := make([]byte, 1<<20); ; {
			if _, err := io.ReadFull(p.Near, b); err != nil {
				t.Fatal(err)
			}
			busy := 0
			for _, l := range p.Far.Status().Legs {
				if l.Sent > 1<<20 {
					busy++
				}
			}
			if busy >= 4 {
				break
			}
		}
		_ = p.Far.Close()
	})
}

// TestRevokedLink removes a member whose link lives: it ends at once on both sides, without waiting for another leg.
func TestRevokedLink(t *testing.T) {
	noLeaks(t)
	for _, prefer := range []link.Preference{link.PreferTCP, link.PreferQUIC} {
		ca, members := newTestCA(t, groupA), new(allow)
		far := make(chan *link.Conn, 1)
		cfg := linktest.Config("OFF")
		cfg.Grace = 4 * patience // so that an end within it is not due to a lack of legs
		hub := &link.Hub{
			Configure: func(string) link.Config { return cfg },
			Serve:     func(ctx context.Context, c *link.Conn) { far <- c; <-ctx.Done() },
		}
		server := startBeside(t, Config{Node: newTestNode(t, ca, "far"), Authorize: members.authorize, Handlers: map[Class]Handler{
			ClassWAL: func(ctx context.Context, peer certs.Identity, conn net.Conn) {
				_ = hub.Handle(ctx, string(peer.ID), conn.(*Conn))
			},
		}})
		client := startBeside(t, Config{Node: newTestNode(t, ca, "near"), Handlers: map[Class]Handler{ClassWAL: echo}})
		d := &link.Dialer{
			Config: cfg, Peer: "far", Prefer: func() link.Preference { return prefer },
			Open: func(ctx context.Context, kind string) (link.Transport, error) {
				c, err := client.DialBy(ctx, kind, server.Addr().String(), ClassWAL, "far")
				if err != nil {
					return nil, err
				}
				return c, nil
			},
			Final: func(err error) bool { var refused *RefusedError; return errors.As(err, &refused) },
		}
		near, err := d.Dial(within(t))
		if err != nil {
			t.Fatal(err)
		}
		accepted := <-far
		began := time.Now()
		members.refuse("near")
		if n := server.CloseUnauthorised(); n < 1 {
			t.Errorf("%s: %d connections were closed", prefer, n)
		}
		for _, c := range []*link.Conn{accepted, near} {
			select {
			case <-c.Done():
			case <-time.After(patience):
				t.Fatalf("%s: the link lives on", prefer)
			}
		}
		if took := time.Since(began); took > 2*patience {
			t.Errorf("%s: it took %v", prefer, took)
		}
		if _, err := d.Dial(within(t)); err == nil {
			t.Errorf("%s: a removed member opened a link", prefer)
		}
		near.Wait()
		hub.Close()
	}
}

// TestPathTo looks at the path to a member with a connection.
func TestPathTo(t *testing.T) {
	ca := newTestCA(t, groupA)
	server := start(t, Config{Node: newTestNode(t, ca, "far"), Handlers: map[Class]Handler{ClassSQL: echo}})
	near := client(newTestNode(t, ca, "near"))
	if w := near.PathTo("far"); w.RTT != 0 {
		t.Errorf("without a connection: %+v", w)
	}
	roundTrip(t, mustDial(t, near, server, ClassSQL, "far"))
	if w := near.PathTo("far"); w.RTT <= 0 || w.Sent == 0 || w.Lost > w.Sent || w.Congestion == "" || w.Via != "" {
		t.Errorf("with one: %+v", w)
	}
}

// TestSockets finds that an endpoint opens one TCP port and the UDP port of the same number, and nothing else.
func TestSockets(t *testing.T) {
	before := openSockets(t)
	e := start(t, Config{Node: newTestNode(t, newTestCA(t, groupA), "a"), Handlers: map[Class]Handler{ClassWAL: echo}})
	_, port, _ := net.SplitHostPort(e.Addr().String())
	var opened []string
	for _, s := range openSockets(t) {
		if !slices.Contains(before, s) {
			opened = append(opened, s)
		}
	}
	if want := []string{"tcp " + port, "udp " + port}; !slices.Equal(opened, want) {
		t.Errorf("opened %q, want %q", opened, want)
	}
}

// openSockets lists this process's listening TCP sockets and its UDP sockets, by the kernel's tables.
func openSockets(t *testing.T) []string {
	t.Helper()
	mine := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			mine[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	var all []string
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := os.ReadFile("/proc/self/net/" + table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // number, local address, remote address, state, …, inode
			if len(f) < 10 || !mine[f[9]] || strings.HasPrefix(table, "tcp") && f[3] != "0A" {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%.3s %d", table, port))
		}
	}
	slices.Sort(all)
	return all
}

// TestNearStreamsBlock holds that both ends of a stream of WAL over a short path are read without Go's poller, and
// those of no other class.
func TestNearStreamsBlock(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, groupA)
	accepted := make(chan *Conn, 2)
	keep := func(ctx context.Context, peer certs.Identity, conn net.Conn) {
		accepted <- conn.(*Conn)
		echo(ctx, peer, conn)
	}
	server := startBeside(t, Config{Node: newTestNode(t, ca, "far"), Handlers: map[Class]Handler{ClassWAL: keep, ClassSQL: keep}})
	from := client(newTestNode(t, ca, "near"))
	for class, want := range map[Class]bool{ClassWAL: true, ClassSQL: false} {
		c := mustDial(t, from, server, class, "far").(*Conn)
		roundTrip(t, c)
		for side, at := range map[string]*Conn{"dialled": c, "accepted": <-accepted} {
			rtt, _, _ := at.Counters()
			if _, naps := at.raw.(*rawconn.Conn); naps != want && rtt <= nearTrip {
				t.Errorf("%s, %s: naps %t, round trip %v", class, side, naps, rtt)
			}
			if at.Congestion() == "" || rtt == 0 {
				t.Errorf("%s, %s: round trip %v, controller %q", class, side, rtt, at.Congestion())
			}
		}
		_ = c.Close()
	}
}

// TestFreshen holds that a connection whose controller begins anew keeps the controller and continues. A connection
// with another controller is left alone.
func TestFreshen(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, groupA)
	server := startBeside(t, Config{Node: newTestNode(t, ca, "far"), Handlers: map[Class]Handler{ClassSQL: echo}})
	c := mustDial(t, client(newTestNode(t, ca, "near")), server, ClassSQL, "far").(*Conn)
	if name, err := c.Use("bbr"); err != nil {
		t.Skipf("NOT RUN: this machine has %s and no BBR: %v", name, err)
	}
	c.socket(func(fd int) { // as slow as one that carried little
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 1<<20); err != nil {
			t.Error(err)
		}
	})
	for range 3 {
		roundTrip(t, c)
		c.Freshen()
		if got := c.Congestion(); got != "bbr" {
			t.Fatalf("%s is in force", got)
		}
	}
	if name, err := c.Use("reno"); err != nil || name != "reno" {
		t.Fatal(name, err)
	}
	if c.Freshen(); c.Congestion() != "reno" {
		t.Errorf("%s is in force", c.Congestion())
	}
	roundTrip(t, c)
}

// TestAddressOfARemovedMember holds that the address of a member is a stranger's again once the member was removed,
// unless another member is behind it too.
func TestAddressOfARemovedMember(t *testing.T) {
	t.Parallel()
	h := newHandshakes(16)
	alone, shared := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}
	b, c := certs.Identity{Group: groupA, Kind: certs.KindReplica, ID: "b"}, certs.Identity{Group: groupA, Kind: certs.KindReplica, ID: "c"}
	h.met(alone, b, "pin-b")
	h.met(shared, b, "pin-b")
	h.met(shared, c, "pin-c")
	known := func(a net.Addr) bool { return h.rate.Known(admission.Key(a)) }
	h.forget(func(certs.Identity, string) error { return nil })
	if !known(alone) || !known(shared) {
		t.Error("addresses of members are forgotten")
	}
	h.forget(func(_ certs.Identity, pin string) error {
		if pin == "pin-b" {
			return errors.New("it was removed")
		}
		return nil
	})
	if known(alone) || !known(shared) {
		t.Errorf("after the removal of b: its own address is known: %t; one that it shares with c: %t", known(alone), known(shared))
	}
	h.forget(func(certs.Identity, string) error { return errors.New("removed") })
	if known(shared) {
		t.Error("after the removal of both the address is known")
	}
}

// TestRemovalMakesAnAddressAStrangers holds the same of an endpoint whose configuration changes.
func TestRemovalMakesAnAddressAStrangers(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, groupA)
	var removed atomic.Bool
	trust := func(certs.Identity, string) error {
		if removed.Load() {
			return errors.New("no member")
		}
		return nil
	}
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Trust: trust, Handlers: map[Class]Handler{ClassControl: echo}})
	_ = mustDial(t, client(newTestNode(t, ca, "b")), e, ClassControl, "a").Close()
	key := admission.Key(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	waitFor(t, "the address to be known", func() bool { return e.handshakes.rate.Known(key) })
	removed.Store(true)
	e.CloseUnauthorised()
	if e.handshakes.rate.Known(key) {
		t.Error("the address of a removed member has the places of members")
	}
}
