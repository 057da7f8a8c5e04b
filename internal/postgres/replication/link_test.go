package replication

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lib/codec"
)

// cable is a TCP relay that can be cut.
type cable struct {
	l     net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
}

func newCable(t *testing.T, to string) *cable {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{l: l, to: to}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, a, b)
			c.mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(a, b); _ = a.Close() })
			wg.Go(func() { _, _ = io.Copy(b, a); _ = b.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		wg.Wait()
	})
	return c
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// ends makes two endpoints, the primary's of which serves links into down.
func ends(t *testing.T, down *Downstream, wish codec.Setting) (near, far *endpoint.Endpoint, cut func()) {
	t.Helper()
	ca, err := certs.NewCA("6f1c2f3e-0c55-4a0e-9a51-6a4d3c5a7b01", "test")
	if err != nil {
		t.Fatal(err)
	}
	hub := &link.Hub{
		Serve:     func(ctx context.Context, c *link.Conn) { down.Handle(ctx, "s1", c) },
		Configure: func(string) link.Config { return link.Config{Compression: func() codec.Setting { return wish }} },
	}
	var distrusted atomic.Bool
	serve := func(id ag.ReplicaID, h endpoint.Handler) *endpoint.Endpoint {
		n, err := certs.CreateNode(t.TempDir(), ca, certs.Identity{Group: ca.Group, Kind: certs.KindReplica, ID: id}, nil)
		if err != nil {
			t.Fatal(err)
		}
		e := endpoint.New(endpoint.Config{
			Node: n, Listen: "127.0.0.1:0", Authorize: func(certs.Identity, string, endpoint.Class) error { return nil },
			Trust: func(certs.Identity, string) error {
				if distrusted.Load() {
					return errors.New("not trusted at the moment")
				}
				return nil
			},
			Handlers: map[endpoint.Class]endpoint.Handler{endpoint.ClassWAL: h},
		})
		if err := e.Listen(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var serving sync.WaitGroup
		serving.Go(func() { _ = e.Serve(ctx) })
		t.Cleanup(func() {
			cancel()
			serving.Wait()
		})
		return e
	}
	far = serve("p1", func(ctx context.Context, peer certs.Identity, conn net.Conn) {
		_ = hub.Handle(ctx, string(peer.ID), conn.(*endpoint.Conn))
	})
	t.Cleanup(hub.Close)
	near = serve("s1", func(context.Context, certs.Identity, net.Conn) {})
	return near, far, func() {
		distrusted.Store(true)
		near.CloseUnauthorised()
		distrusted.Store(false)
	}
}

// TestServersOverLinks streams between two real servers over links of each transport and codec, which are cut at
// random: the data is the same at the end. COTERIE_LONG makes it minutes.
func TestServersOverLinks(t *testing.T) {
	if testing.Short() {
		t.Skip("real servers")
	}
	each := 4 * time.Second
	if os.Getenv("COTERIE_LONG") != "" {
		each = time.Minute
	}
	p := newPair(t)
	mustQuery(t, p.admin, "CREATE TABLE cut(i serial, pad text)")
	p.waitFlushed()
	reader := p.secondary.connect()
	for i, c := range []struct {
		name   string
		prefer link.Preference
		codec  string
	}{{"TCP, no codec", link.PreferTCP, "OFF"}, {"TCP, zstd", link.PreferTCP, "ZSTD"}, {"TCP, lz4", link.PreferTCP, "LZ4"}, {"QUIC, zstd", link.PreferQUIC, "ZSTD:3"}} {
		wish, err := codec.Parse("LOG_COMPRESSION", c.codec)
		if err != nil {
			t.Fatal(err)
		}
		near, far, distrust := ends(t, p.down, wish)
		wire := newCable(t, far.Addr().String())
		d := &link.Dialer{Peer: "p1", Prefer: func() link.Preference { return c.prefer }, Open: func(ctx context.Context, kind string) (link.Transport, error) {
			to := wire.l.Addr().String()
			if kind == link.QUIC {
				to = far.Addr().String()
			}
			conn, err := near.DialBy(ctx, kind, to, endpoint.ClassWAL, "p1")
			if err != nil {
				return nil, err
			}
			return conn, nil
		}}
		cut := wire.cut
		if c.prefer == link.PreferQUIC {
			cut = distrust // this ends the link: the walreceiver comes back
		}
		p.up.SetSource(&Source{Epoch: 1, Replica: ag.ReplicaID([]string{"a", "b", "c", "d"}[i]), Dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx) }})
		cuts, began := 0, time.Now()
		for time.Since(began) < each {
			mustQuery(t, p.admin, "INSERT INTO cut(pad) SELECT repeat(md5(random()::text), 20) FROM generate_series(1, 2000)")
			if rand.IntN(3) == 0 {
				cut()
				cuts++
			}
			if cuts%32 == 31 {
				p.waitFlushed() // the slowest way must not fall behind without bound
			}
		}
		p.waitFlushed()
		end := mustQuery(t, p.admin, "SELECT pg_current_wal_flush_lsn()")
		waitFor(t, "the secondary to replay "+end, func() bool {
			return mustQuery(t, reader, "SELECT pg_last_wal_replay_lsn() >= '"+end+"'") == "t"
		})
		sum := "SELECT count(*) || ' ' || sum(hashtext(pad)::bigint) FROM cut"
		if a, b := mustQuery(t, p.admin, sum), mustQuery(t, reader, sum); a != b {
			t.Errorf("%s: the primary has %s, the secondary %s", c.name, a, b)
		} else {
			t.Logf("%s: %s after %d cuts", c.name, a, cuts)
		}
	}
}
