package listener

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// In these tests all bytes have arrived before a loop reads. They are exactly a full buffer, one byte less or more, the
// end of the stream right after the last bytes, or an urgent byte among them.

// stalled calls f while the server's loop, if there is one, does nothing.
func (g *group) stalled(f func()) {
	l := g.srv.leastLoaded()
	if l == nil {
		f()
		return
	}
	in, out := make(chan struct{}), make(chan struct{})
	l.Post(func() { close(in); <-out })
	<-in
	f()
	close(out)
}

// replying is a group whose backends send a greeting and then call serve.
func replying(t *testing.T, serve func(net.Conn)) *group {
	t.Helper()
	g := newGroup(t, trusting)
	g.srv.cfg.Backend = fakeBackend(t, func(conn net.Conn) {
		greeting := pgwire.AppendMessage(pgwire.AppendAuth(nil, auth.OK, nil), 'K', []byte("\x00\x00\x00\x07abcd"))
		_, _ = conn.Write(pgwire.AppendMessage(greeting, 'Z', []byte{'I'}))
		serve(conn)
	})
	return g
}

// enter connects a client without TLS and waits until its session is on the wanted path.
func (g *group) enter(t *testing.T) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", g.rw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, conn, 'Z')
	waitFor(t, "it is served by "+wantedPath(), func() bool { list := g.srv.Sessions(); return len(list) == 1 && list[0].Path == wantedPath() })
	return conn.(*net.TCPConn) //nolint:forcetypeassert // dialled so
}

// within receives from c for at most a minute.
func within(c <-chan string) string {
	select {
	case s := <-c:
		return s
	case <-time.After(time.Minute):
		return "nothing"
	}
}

func TestReadsThatFillTheBuffer(t *testing.T) {
	t.Parallel()
	var g *group
	g = replying(t, func(conn net.Conn) {
		for {
			var head [5]byte
			if _, err := io.ReadFull(conn, head[:]); err != nil {
				return
			}
			size := int64(binary.BigEndian.Uint32(head[1:])) - 4
			if _, err := io.CopyN(io.Discard, conn, size); err != nil {
				return
			}
			// The answer is as long as the request, including its ReadyForQuery.
			answer := pgwire.AppendMessage(pgwire.AppendMessage(nil, 'D', make([]byte, size-6)), 'Z', []byte{'I'})
			g.stalled(func() { _, _ = conn.Write(answer) })
		}
	})
	conn := g.enter(t)
	for _, size := range []int{eventloop.BufferSize - 1, eventloop.BufferSize, eventloop.BufferSize + 1, 2*eventloop.BufferSize - 1, 2 * eventloop.BufferSize, 2*eventloop.BufferSize + 1} {
		question := pgwire.AppendMessage(nil, 'Q', make([]byte, size-5))
		g.stalled(func() { _, _ = conn.Write(question) })
		if len(readUntil(t, conn, 'D')) != size-5-6 {
			t.Errorf("the answer to %d bytes is not as long as they", size)
		}
		readUntil(t, conn, 'Z')
	}
}

func TestEndBehindTheLastBytes(t *testing.T) {
	t.Parallel()
	came := make(chan string, 1)
	var g *group
	g = replying(t, func(conn net.Conn) {
		b := make([]byte, 100)
		if n, _ := conn.Read(b[:6]); n == 6 && b[5] == 'x' { // the server ends
			g.stalled(func() {
				_, _ = conn.Write(pgwire.AppendMessage(nil, 'E', []byte("SFATAL\x00VFATAL\x00C57P01\x00Mthe last words\x00\x00")))
				_ = conn.Close()
			})
			return
		}
		rest, err := io.ReadAll(conn)
		came <- fmt.Sprintf("%d %v", 6+len(rest), err)
	})
	for range 20 {
		conn := g.enter(t)
		g.stalled(func() {
			_, _ = conn.Write(pgwire.AppendMessage(nil, 'Q', []byte("y: a question without an end")))
			_ = conn.CloseWrite()
		})
		if got := within(came); got != "33 <nil>" {
			t.Fatalf("the server got %s", got)
		}
		waitFor(t, "it is gone", func() bool { return len(g.srv.Sessions()) == 0 })

		conn = g.enter(t)
		_, _ = conn.Write(pgwire.AppendMessage(nil, 'Q', []byte("x")))
		if got := pgwire.ErrorField(readUntil(t, conn, 'E'), 'M'); got != "the last words" {
			t.Fatalf("the client heard %q", got)
		}
		if b, _ := io.ReadAll(conn); len(b) > 0 {
			t.Errorf("and then %q", b)
		}
		waitFor(t, "it is gone", func() bool { return len(g.srv.Sessions()) == 0 })
	}
}

// A read ends before an urgent byte, which no PostgreSQL server requests and the kernel leaves out.
func TestUrgentByte(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	g := replying(t, func(conn net.Conn) {
		b := make([]byte, 15)
		_, _ = io.ReadFull(conn, b)
		got <- string(b[5:])
		_, _ = io.Copy(io.Discard, conn)
	})
	conn := g.enter(t)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	question := pgwire.AppendMessage(nil, 'Q', []byte("0123456789"))
	g.stalled(func() {
		_, _ = conn.Write(question[:8])
		_ = raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil) })
		_, _ = conn.Write(question[8:])
	})
	if s := within(got); err != nil || s != "0123456789" {
		t.Errorf("the server got %q (%v)", s, err)
	}
}
