package listener

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// A backend whose postmaster was killed says so before it ends. A session that outlives that hears nothing of it, in
// whatever pieces that arrives.
func TestSessionsOutliveTheirPostmaster(t *testing.T) {
	last := backendsLast("secure_read")
	for name, pieces := range map[string][][]byte{
		"whole": {last}, "byte by byte": slices.Collect(slices.Chunk(last, 1)), "its header alone": {last[:5], last[5:]}, "all but its end": {last[:len(last)-1], last[len(last)-1:]},
	} {
		t.Run(name, func(t *testing.T) {
			ownPaths(t, func(t *testing.T, g *group, with string) {
				die := g.dyingServer(pieces)
				conn := g.mustDial(g.rw, "user=postgres "+with)
				g.do(conn, "set my.tenant = '42'")
				g.known()
				close(die)
				waitFor(t, "it goes on", func() bool { return g.srv.Stats().Moved == 1 || len(g.srv.Sessions()) == 0 })
				g.shows(conn, map[string]string{"select current_setting('cluster_name')": "a", "select current_setting('my.tenant')": "42"})
			})
		})
	}
}

// A session that the kernel relays has no known state, and ends with its server: by an error of the listener that says
// why.
func TestKernelPathKnowsADeadPostmaster(t *testing.T) {
	for _, size := range []int{1, 30, 1 << 10} {
		g := offloadGroup(t, func(c *Config) { c.Continuity = always })
		die := g.dyingServer(slices.Collect(slices.Chunk(backendsLast("secure_read"), size)))
		conn, x := g.offloadedSession()
		if x.path() != PathKernel {
			t.Fatalf("it is with %s", x.path())
		}
		close(die)
		if got := pgwire.ErrorField(readUntil(t, conn, 'E'), 'M'); !strings.Contains(got, "could not be continued") {
			t.Errorf("in pieces of %d bytes: the client is told %q", size, got)
		}
		if b, err := io.ReadAll(conn); err != nil || len(b) > 0 {
			t.Errorf("in pieces of %d bytes: it hears %q after that, %v", size, b, err)
		}
	}
}

// backendsLast is the error by which a backend tells that its postmaster has died.
func backendsLast(routine string) []byte {
	return pgwire.AppendMessage(nil, 'E', []byte("SFATAL\x00VFATAL\x00C57P01\x00Mterminating connection due to unexpected postmaster exit\x00Fbe-secure.c\x00L241\x00R"+routine+"\x00\x00"))
}

// dyingServer puts a server in the place of a. It is a, until die is closed: the backends that there are end with these
// pieces of a message, each of which is read before the next comes.
func (g *group) dyingServer(pieces [][]byte) (die chan struct{}) {
	die = make(chan struct{})
	dial, _ := unixServer(g.t, func(conn net.Conn) {
		dies := die
		select {
		case <-die:
			dies = nil // it came after that
		default:
		}
		backend, err := net.Dial("unix", filepath.Join(g.servers["a"].dir, socketName))
		if err != nil {
			g.t.Error(err)
			return
		}
		var copying sync.WaitGroup
		defer copying.Wait()
		defer func() { _, _ = conn.Close(), backend.Close() }()
		over := make(chan struct{})
		copying.Go(func() { _, _ = io.Copy(backend, conn); _ = backend.Close() })
		copying.Go(func() { _, _ = io.Copy(conn, backend); close(over) })
		select {
		case <-over:
			return
		case <-dies:
		}
		for _, b := range pieces {
			if _, err := conn.Write(b); err != nil || !isRead(conn) {
				return
			}
		}
	})
	backend := g.srv.cfg.Backend
	g.srv.cfg.Backend = func(ctx context.Context, id ag.ReplicaID, hello BackendHello) (net.Conn, error) {
		if id == "a" {
			return dial(ctx, id, hello)
		}
		return backend(ctx, id, hello)
	}
	return die
}

// isRead waits until the other end of a Unix socket has read what was written. It reports false if it does not.
func isRead(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		unread := -1
		if err = raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); unread == 0 {
			return true
		}
	}
	return false
}
