package listener

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// byLoops repeats visits until event loops complete logins: the first login of a kind cannot be completed there.
func (g *group) byLoops() {
	g.t.Helper()
	if wantedPath() == PathGoroutines {
		g.t.Skip("there are no loops")
	}
	waitFor(g.t, "an event loop gives a session by itself", func() bool {
		before := g.srv.Stats().LoopLogins
		g.visit("user=door", nil)
		g.left()
		return g.srv.Stats().LoopLogins > before
	})
}

// A login for which a pooled backend waits wakes only its loop, and its session is like any other.
func TestLoopsGiveSessions(t *testing.T) {
	g := poolGroup(t, reusing(), func(c *Config) { c.NameClient = true })
	g.role("door", "login")
	g.byLoops()
	conn, err := g.dial(g.rw, "user=door")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	list := g.srv.Sessions()
	if len(list) != 1 || list[0].Path != PathLoop || list[0].Backend != counters.BackendReused || list[0].PID != conn.PgConn().PID() && list[0].PID == 0 {
		t.Errorf("%+v", list)
	}
	if name := value[string](t, conn, "select current_setting('application_name')"); !strings.Contains(name, "127.0.0.1") {
		t.Errorf("application_name is %q", name)
	}
	if from := list[0].ClientAddr; from != conn.PgConn().Conn().LocalAddr().String() {
		t.Errorf("the client is %s, and came from %s", from, conn.PgConn().Conn().LocalAddr())
	}
	if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
		t.Error(err)
	}
}

// A login completed by a loop on a pooled backend still gets the notices for its role.
func TestLoopsHearOfChanges(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("door", "login")
	for _, change := range []string{"alter role door set work_mem = '5MB'", "alter role door valid until 'infinity'", "alter database postgres set geqo = off", "select pg_reload_conf()"} {
		g.byLoops()
		before := g.srv.Stats().LoopLogins
		g.servers["a"].sql(t, change)
		if strings.HasPrefix(change, "select") {
			continue // it is for the next round that loops give sessions again
		}
		g.visit("user=door", nil)
		if now := g.srv.Stats().LoopLogins; now != before {
			t.Errorf("%s: a loop gave a session of before", change)
		}
	}
	g.servers["a"].sql(t, "alter database postgres reset geqo")
	g.byLoops()
	g.servers["a"].sql(t, "alter role door nologin")
	if _, err := g.dial(g.rw, "user=door"); sqlstate(err) != "28000" {
		t.Errorf("a role without LOGIN: %v", err)
	}
}

// The session for fingerprints may end at any time: other sessions do not wait, and the loops ask on a new one.
func TestLoopsLoseTheirSession(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("door", "login")
	for range 3 {
		g.byLoops()
		g.servers["a"].sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where query like '%pg_auth_members%' and pid <> pg_backend_pid()")
		g.visit("user=door", func(conn *pgx.Conn) {
			if n := value[int](t, conn, "select 1"); n != 1 {
				t.Error(n)
			}
		})
	}
	g.byLoops()
}

// A server that does not answer locks no client out: the login is handed off.
func TestLoopsAreNotAnswered(t *testing.T) {
	for name, answer := range map[string]string{"silent": "", "nonsense": "\x00\x00\x00\x00\x00\x00", "an unasked row": "D\x00\x00\x00\x06\x00\x00", "too long": "D\x7f\xff\xff\xff"} {
		t.Run(name, func(t *testing.T) {
			pair := socketPair(t)
			g := poolGroup(t, reusing(), func(c *Config) {
				c.FingerprintSession = func(context.Context) (net.Conn, error) {
					if answer != "" {
						_, _ = unix.Write(pair[1], []byte(answer))
					}
					f := os.NewFile(uintptr(mustDup(t, pair[0])), "fingerprints")
					defer func() { _ = f.Close() }()
					return net.FileConn(f)
				}
			})
			g.role("door", "login")
			if answer == "" {
				g.srv.pool.Answer = 100 * time.Millisecond
			}
			for range 5 {
				g.visit("user=door", nil)
				g.left()
			}
			if n := g.srv.Stats().LoopLogins; n != 0 {
				t.Errorf("%d sessions by loops that were told nothing", n)
			}
		})
	}
}

func mustDup(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Bytes that follow the startup packet, and packets in pieces, are served as by a goroutine: nothing was taken from
// the socket.
func TestDoorstepTakesNothing(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("door", "login")
	g.byLoops()
	packet := (&startup.Message{User: "door", Database: "postgres"}).Packet()
	query := pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "select 'here'"))
	ssl := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 8), pgwire.SSLRequest)
	for name, pieces := range map[string][][]byte{
		"with a query": {append(append([]byte(nil), packet...), query...)},
		"in pieces":    {packet[:3], packet[3:20], packet[20:], query},
		"after SSL":    {ssl, packet, query},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", g.rw)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			for _, b := range pieces {
				if _, err := conn.Write(b); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Millisecond) // pieces that arrive apart; together they have to do as well
			}
			var got []byte
			for b := make([]byte, 4096); !strings.Contains(string(got), "here"); {
				n, err := conn.Read(b)
				if err != nil {
					t.Fatalf("%v after %q", err, got)
				}
				got = append(got, b[:n]...)
			}
		})
	}
}

// answering is a server that gives every role the same fingerprint, and calls before first.
func answering(t *testing.T, before func()) func(context.Context) (net.Conn, error) {
	t.Helper()
	pair := socketPair(t)
	if err := unix.SetNonblock(pair[1], false); err != nil {
		t.Fatal(err)
	}
	row := []byte{0, 3, 0, 0, 0, 1, 'm', 0, 0, 0, 1, 'f', 0, 0, 0, 1, 'f'}
	answer := pgwire.AppendMessage(pgwire.AppendMessage(pgwire.AppendMessage(nil, 'D', row), 'C', []byte("SELECT 1\x00")), 'Z', []byte("I"))
	go func() { // ends with the sockets
		for b := make([]byte, 4096); ; {
			if n, err := unix.Read(pair[1], b); n <= 0 || err != nil {
				return
			}
			before()
			_, _ = unix.Write(pair[1], answer)
		}
	}()
	return func(context.Context) (net.Conn, error) {
		f := os.NewFile(uintptr(mustDup(t, pair[0])), "fingerprints")
		defer func() { _ = f.Close() }()
		return net.FileConn(f)
	}
}

// A planned failover that begins while a loop queries a fingerprint finds no session opened after it: the client waits
// as others do.
func TestDoorstepHeld(t *testing.T) {
	var hold atomic.Bool
	var g *group
	fingerprints := answering(t, func() {
		if hold.Swap(false) {
			g.srv.HoldNew(true)
		}
	})
	g = poolGroup(t, reusing(), func(c *Config) { c.FingerprintSession = fingerprints })
	g.role("door", "login")
	g.byLoops()
	before := g.srv.Stats().LoopLogins
	hold.Store(true)
	opened := make(chan error, 1)
	go func() {
		conn, err := g.dial(g.rw, "user=door")
		if err == nil {
			_ = conn.Close(context.Background())
		}
		opened <- err
	}()
	waitFor(t, "the login waits", func() bool { return g.srv.Stats().Waiting == 1 })
	g.srv.HoldNew(false)
	if err := <-opened; err != nil {
		t.Error(err)
	}
	if now := g.srv.Stats().LoopLogins; now != before {
		t.Error("a loop gave a session while none was to be given")
	}
}

// Readers whose login is handed off keep their turn: two replicas get the same number of them.
func TestDoorstepTakesOneTurn(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules = trustAll })
	for range 20 {
		conn, err := g.dial(g.ro, "user=postgres")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close(context.Background())
	}
	routed := g.srv.Stats().Routed
	if b, c := routed[RoutedKey{Replica: "b", Intent: ag.ReadOnly}], routed[RoutedKey{Replica: "c", Intent: ag.ReadOnly}]; b != 10 || c != 10 {
		t.Errorf("%d readers on b and %d on c", b, c)
	}
}

// Clients whose login is on a loop are ended with the server, and silent ones after their time.
func TestDoorstepEnds(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.Limits.PreAuthTime = trustAll, 200*time.Millisecond })
	conn, err := net.Dial("tcp", g.rw)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	waitFor(t, "the silent client is counted", func() bool { return g.srv.Stats().Rejected["timeout"] == 1 })
}
