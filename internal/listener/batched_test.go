package listener

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

func kernelRing(t *testing.T) *uring.Ring {
	t.Helper()
	r, err := uring.New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(r.Close)
	return r
}

// socketPair returns two connected non-blocking sockets.
func socketPair(t *testing.T) [2]int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) })
	return pair
}

// All sessions that write in one turn of the loop do so in one system call; a full ring is written before its turn
// ends.
func TestSessionsWriteTogether(t *testing.T) {
	kernelRing(t)
	g := newGroup(t, trusting)
	if wantedPath() != PathLoop || g.srv.cfg.singleWrites {
		t.Skip("nothing is written together on this path")
	}
	const many = uring.Size + 10
	g.srv.cfg.Backend = fakeBackend(t, func(conn net.Conn) {
		greeting := pgwire.AppendMessage(pgwire.AppendAuth(nil, auth.OK, nil), 'K', []byte("\x00\x00\x00\x07abcd"))
		_, _ = conn.Write(pgwire.AppendMessage(greeting, 'Z', []byte{'I'}))
		_, _ = conn.Read(make([]byte, 1))
	})
	clients := make([]net.Conn, many)
	for i := range clients {
		conn, err := net.Dial("tcp", g.rw)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
		_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
		readUntil(t, conn, 'Z')
		clients[i] = conn
	}
	waitFor(t, "the loop carries all", func() bool {
		n := 0
		for _, s := range g.srv.Sessions() {
			n += b2i(s.Path == PathLoop)
		}
		return n == many
	})
	before := g.srv.Stats().BatchedWrites
	var done sync.WaitGroup
	done.Add(1)
	g.srv.leastLoaded().Post(func() {
		defer done.Done()
		g.srv.mu.Lock()
		defer g.srv.mu.Unlock()
		for _, x := range g.srv.sessions {
			p := x.onLoop.Load()
			_ = p.toClient(pgwire.AppendMessage(nil, 'N', []byte("SNOTICE\x00Mfirst\x00\x00")))
			_ = p.toClient(pgwire.AppendMessage(nil, 'N', []byte("SNOTICE\x00Msecond\x00\x00")))
		}
	})
	done.Wait()
	for i, conn := range clients {
		for _, want := range []string{"first", "second"} {
			if got := pgwire.ErrorField(readUntil(t, conn, 'N'), 'M'); got != want {
				t.Fatalf("client %d got %q, want %q", i, got, want)
			}
		}
	}
	if n := g.srv.Stats().BatchedWrites - before; n == 0 || n > uring.Size {
		t.Errorf("%d writes went to the kernel together", n)
	}
}

// A write that is queued in the turn in which its session ends is written before the final error.
func TestLastWordsComeLast(t *testing.T) {
	g := newGroup(t, trusting)
	if wantedPath() != PathLoop {
		t.Skip("of loops")
	}
	for range 20 {
		conn, err := net.Dial("tcp", g.rw)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
		_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
		readUntil(t, conn, 'Z')
		var p *loopSession
		waitFor(t, "the loop carries it", func() bool {
			g.srv.mu.Lock()
			for _, x := range g.srv.sessions {
				p = x.onLoop.Load()
			}
			g.srv.mu.Unlock()
			if p == nil {
				return false
			}
			started := make(chan bool, 1)
			p.loop.Post(func() { started <- p.started })
			return <-started
		})
		p.loop.Post(p.guarded(func() {
			_ = p.toClient(pgwire.AppendMessage(nil, 'N', []byte("SNOTICE\x00Mfirst\x00\x00")))
			p.x.end(ending{reason: "test", why: "a test"})
			p.checkEnded()
		}))
		if got := pgwire.ErrorField(readUntil(t, conn, 'N'), 'M'); got != "first" {
			t.Errorf("heard %q", got)
		}
		if got := pgwire.ErrorField(readUntil(t, conn, 'E'), 'C'); got != "57P01" {
			t.Errorf("the last word is %q", got)
		}
		_ = conn.Close()
		waitFor(t, "it is gone", func() bool { return len(g.srv.Sessions()) == 0 })
	}
}

// A client that sends Terminate right after its last request has the request executed, also if the backend cannot
// take it yet. TLS brings both in one turn of the loop, in which the request is queued.
func TestLastRequestComesBeforeTheEnd(t *testing.T) {
	cert, pool := certificate(t)
	g := newGroup(t, func(c *Config) { c.Rules, c.Certificate = trustAll, func() *tls.Certificate { return cert } })
	request := pgwire.AppendMessage(nil, 'd', make([]byte, eventloop.MaxQueued-5))
	fits := 0 // as many as an unread socket takes
	for pair := socketPair(t); ; fits++ {
		if _, err := socket.Transmit(pair[0], request); err != nil {
			break
		}
	}
	reads, came := make(chan struct{}), make(chan int, 1)
	g.srv.cfg.Backend = fakeBackend(t, func(conn net.Conn) {
		greeting := pgwire.AppendMessage(pgwire.AppendAuth(nil, auth.OK, nil), 'K', []byte("\x00\x00\x00\x07abcd"))
		_, _ = conn.Write(pgwire.AppendMessage(greeting, 'Z', []byte{'I'}))
		<-reads
		n, _ := io.Copy(io.Discard, conn)
		came <- int(n)
	})
	for many := fits - 1; many <= fits+5; many++ {
		raw, err := net.Dial("tcp", g.rw)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = raw.Close() }()
		_ = raw.SetDeadline(time.Now().Add(60 * time.Second))
		all := &heldBack{Conn: raw}
		client := tls.Client(all, &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: []string{"postgresql"}})
		_, _ = client.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
		readUntil(t, client, 'Z')
		waitFor(t, "it is served by "+wantedPath(), func() bool { list := g.srv.Sessions(); return len(list) == 1 && list[0].Path == wantedPath() })
		all.holds = true
		for range many {
			_, _ = client.Write(request)
		}
		_ = client.CloseWrite() // which lets nothing be written afterwards
		_ = raw.SetDeadline(time.Now().Add(60 * time.Second))
		_, _ = raw.Write(all.held)
		_ = raw.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // dialled so
		waitFor(t, "what fits is under way", func() bool { return g.srv.Sessions()[0].BytesIn >= uint64(min(many, fits)*len(request)) })
		reads <- struct{}{}
		if n := <-came; n != many*len(request) {
			t.Errorf("of %d requests, where %d fit, %d bytes of %d came", many, fits, n, many*len(request))
		}
		waitFor(t, "it is gone", func() bool { return len(g.srv.Sessions()) == 0 })
	}
}

// heldBack keeps the written bytes once it is switched on.
type heldBack struct {
	net.Conn
	holds bool
	held  []byte
}

func (h *heldBack) Write(b []byte) (int, error) {
	if !h.holds {
		return h.Conn.Write(b)
	}
	h.held = append(h.held, b...)
	return len(b), nil
}
