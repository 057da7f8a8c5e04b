package listener

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// In a storm of logins the server starts a few sessions at a time, through this node and others, and all clients get
// one.
func TestStormOfLogins(t *testing.T) {
	const atOnce, clients = 3, 40
	var now, most atomic.Int32
	serve := func(conn net.Conn) {
		for n := now.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		time.Sleep(5 * time.Millisecond)
		now.Add(-1)
		_, _ = conn.Write(pgwire.AppendMessage(pgwire.AppendMessage(pgwire.AppendAuth(nil, auth.OK, nil), 'K', []byte("\x00\x00\x00\x07abcd")), 'Z', []byte{'I'}))
		_, _ = conn.Read(make([]byte, 1))
	}
	g := newGroup(t, func(c *Config) { c.Rules, c.Limits.Starting = trustAll, atOnce })
	local, dir := fakeServer(t, serve)
	g.srv.cfg.Backend = local
	relaying := newGroup(t, trusting)
	relaying.srv.cfg.Backend = func(ctx context.Context, _ ag.ReplicaID, _ BackendHello) (net.Conn, error) {
		return throughNode(ctx, t, g.srv, dir)
	}
	routes := fullRoutes(1)
	routes.Targets[0].Local = false
	relaying.publish(routes)
	var wg sync.WaitGroup
	for i := range clients {
		at := g.rw
		if i%2 == 1 {
			at = relaying.rw
		}
		conn := g.rawDial(at)
		wg.Go(func() {
			_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
			readUntil(t, conn, 'Z')
		})
	}
	wg.Wait()
	if n := most.Load(); n > atOnce {
		t.Errorf("%d sessions were started at once, want at most %d", n, atOnce)
	}
	if g.srv.Stats().Queued == 0 {
		t.Error("no login had to wait")
	}
}

// A session that takes long to start waits for something, and does not block the others.
func TestSlowStartKeepsNobody(t *testing.T) {
	s := &Server{starting: make(chan struct{}, 1)}
	slow, err := s.startOne(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if done, err := s.startOne(t.Context()); err != nil {
		t.Errorf("behind a slow one: %v", err)
	} else {
		done()
	}
	slow()
	hasty, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.starting <- struct{}{}
	cancel()
	if _, err := s.startOne(hasty); err == nil {
		t.Error("started beyond the limit")
	}
}
