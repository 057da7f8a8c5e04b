package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/known"
	"github.com/coteriedb/coterie/internal/listener/offload/offloadtest"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// ownPaths are the carriers of sessions of the node's own server.
func ownPaths(t *testing.T, f func(t *testing.T, g *group, with string), change ...func(*Config)) {
	cert, _ := certificate(t)
	for name, c := range map[string]struct {
		change func(*Config)
		with   string
	}{
		PathLoop:          {func(*Config) {}, "sslmode=disable"},
		PathLoop + " TLS": {func(c *Config) { c.Certificate = func() *tls.Certificate { return cert } }, "sslmode=require"},
		PathGoroutines:    {func(c *Config) { c.Loops = -1 }, "sslmode=disable"},
		PathKernel:        {func(c *Config) { c.NoKernelPath, c.offloadAfter = false, 1 }, "sslmode=disable"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == PathKernel {
				offloadtest.Need(t)
			}
			g := movingGroup(t, func(cfg *Config) {
				cfg.keepTick = 5 * time.Millisecond
				c.change(cfg)
				for _, f := range change {
					f(cfg)
				}
			})
			f(t, g, c.with)
		})
	}
}

// serverDies has the local server die under its sessions, as at a SIGKILL of all of its processes.
func (g *group) serverDies() {
	for _, x := range g.srv.localSessions() {
		if p := x.onLoop.Load(); p != nil {
			p.loop.Post(func() { _ = unix.Shutdown(p.backend.FD, unix.SHUT_RDWR) })
			continue
		}
		if fd, err := socket.Duplicate(x.backend); err == nil {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR)
			_ = unix.Close(fd)
		}
	}
}

// succeeds makes b the primary, as seen by the node a.
func (g *group) succeeds() {
	r := *g.routes.Load()
	r.Epoch++
	r.Primary = "b"
	g.publish(&r)
	g.srv.CloseReplica("a", ag.ReadWrite, "this node is not the primary any more")
	g.srv.CloseEpoch(r.Epoch, "the primary has changed")
}

func TestSessionsOutliveTheirOwnServer(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		conn := g.mustDial(g.rw, "user=postgres "+with)
		pid := conn.PgConn().PID()
		g.do(conn, "set my.tenant = '42'", "listen coterie_lost")
		if _, err := conn.Prepare(t.Context(), "named", "select lower($1)"); err != nil {
			t.Fatal(err)
		}
		g.known()
		if got := g.one(conn, "named", "A"); got != "a" { // the known state holds
			t.Fatal(got)
		}
		g.serverDies()
		g.succeeds()
		g.shows(conn, map[string]string{"select current_setting('cluster_name')": "b", "select current_setting('my.tenant')": "42"})
		if got := g.one(conn, "named", "B"); got != "b" {
			t.Errorf("the prepared statement returns %q", got)
		}
		g.movedOne(conn, pid)
	})
}

// The server may come again in its place.
func TestSessionsOutliveARestartOfTheirServer(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		conn := g.mustDial(g.rw, "user=postgres "+with)
		for range 3 {
			g.do(conn, "set my.tenant = '42'")
			g.known()
			moved := g.srv.Stats().Moved
			g.serverDies()
			waitFor(t, "it goes on", func() bool { return g.srv.Stats().Moved == moved+1 })
			if got := g.one(conn, "select current_setting('cluster_name') || ' ' || current_setting('my.tenant')"); got != "a 42" {
				t.Errorf("it goes on as %q", got)
			}
		}
	})
}

func TestWhatWasUnderWayWhenTheOwnServerDied(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		for _, c := range []struct{ name, before, during, code, severity string }{
			{"a statement of a transaction", "begin", "select pg_sleep(65)", "40001", "ERROR"},
			{"a statement alone", "", "select 1 from pg_sleep(66) for update", "08007", "FATAL"},
			{"an open transaction", "begin; select 1", "", "40001", "ERROR"},
			{"a setting since", "set work_mem = '9MB'", "", "57P01", "FATAL"},
		} {
			t.Run(c.name, func(t *testing.T) {
				conn := g.mustDial(g.rw, "user=postgres "+with)
				waitFor(t, "it is known", func() bool { return g.stateKnown(conn) })
				x := g.sessionOf(conn.PgConn().Conn())
				x.work.Lock()
				x.work.Known.Next = time.Now().Add(time.Hour)
				x.work.Unlock()
				if c.before != "" {
					g.do(conn, c.before)
				}
				ended := make(<-chan error)
				if c.during != "" {
					ended = later(conn, c.during)
					waitFor(t, "it runs", func() bool { return g.waiting(c.during) > 0 })
				}
				g.serverDies()
				if c.code == "57P01" { // a request would be under way
					waitFor(t, "it has ended", func() bool { return g.sessionOf(conn.PgConn().Conn()) == nil })
				}
				if c.during == "" {
					ended = later(conn, "select 1")
				}
				err := <-ended
				var pg *pgconn.PgError
				if !errors.As(err, &pg) || pg.Code != c.code || pg.Severity != c.severity {
					t.Fatalf("%v, want %s %s", err, c.severity, c.code)
				}
				if c.severity == "ERROR" {
					g.do(conn, "rollback", "begin", "select 1", "commit")
				} else if c.code == "57P01" && !strings.Contains(pg.Message, "had changed") {
					t.Errorf("it does not say why: %s", pg.Message)
				}
			})
		}
	})
}

// A node that has lost its right to answer keeps its sessions, and passes nothing on that its server answers.
func TestSessionsOutliveTheFence(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		g.gate.Store(openGate())
		idle, busy, lone := g.mustDial(g.rw, "user=postgres "+with), g.mustDial(g.rw, "user=postgres "+with), g.mustDial(g.rw, "user=postgres "+with)
		g.known()
		g.do(busy, "begin")
		g.gate.Store(closedGate())
		cut := make(chan error, 1)
		go func() {
			var got string
			cut <- busy.QueryRow(t.Context(), "select 'of the old primary'", pgx.QueryExecModeSimpleProtocol).Scan(&got)
		}()
		alone := asks(lone, "extended", "select current_setting('cluster_name')")
		waitFor(t, "the answers are held", func() bool { return g.srv.Stats().Gated == 2 })
		closed := *g.routes.Load()
		closed.Primary, closed.WriteOpen = "", false
		g.publish(&closed) // as Agent.fence does, whose server lives for a moment
		g.srv.CloseReplica("a", ag.ReadWrite, "the lease has ended")
		r := closed
		r.Epoch, r.Primary, r.WriteOpen = r.Epoch+1, "b", true
		g.gate.Store(0)
		g.publish(&r)
		g.srv.CloseEpoch(r.Epoch, "the primary has changed")
		if got := <-alone; got != "b" {
			t.Errorf("a query alone: %q", got)
		}
		var pg *pgconn.PgError
		if err := <-cut; !errors.As(err, &pg) || pg.Code != "40001" || pg.Severity != "ERROR" {
			t.Errorf("a statement of a transaction: %v", err)
		}
		g.do(busy, "rollback")
		for _, conn := range []*pgx.Conn{idle, busy} {
			if got := g.one(conn, "select current_setting('cluster_name')"); got != "b" {
				t.Errorf("it goes on on %q", got)
			}
		}
	})
}

// Requests are executed once, whenever the node's own server dies.
func TestOutlivingTheOwnServerExecutesOnce(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		hammer(t, g, strings.TrimPrefix(with, "sslmode="), func(int) {
			idle := g.mustDial(g.rw, "user=postgres "+with)
			g.do(idle, "set my.x = 'kept'")
			waitFor(t, "its state is known", func() bool { return g.stateKnown(idle) })
			x := g.sessionOf(idle.PgConn().Conn())
			g.serverDies()
			waitFor(t, "it has left its server", func() bool { return x.ended.Load() != nil }) // a request before would be under way
			g.shows(idle, map[string]string{"select current_setting('my.x')": "kept"})
			_ = idle.Close(context.Background())
		})
	})
}

// Sessions that outlive the node's own server are the same as ones whose server did not die, or have ended.
func TestOutlivingTheOwnServerIsTheSame(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, _ string) {
		g.role("mover", "login")
		g.role("lender", "")
		defer sameSchemas(t, g)()
		ended, scripts := runScripts(t, 8, func(r *rand.Rand) bool {
			return sameWhenOutlived(t, g, func() {
				g.serverDies()
				sessions := g.srv.localSessions()
				moved := g.srv.Stats().Moved
				waitFor(t, "its session has noticed", func() bool {
					return len(sessions) == 0 || sessions[0].ended.Load() != nil || sessions[0].closed.Load() || g.srv.Stats().Moved > moved
				})
			}, func() {}, r)
		})
		t.Logf("%d of %d sessions ended: %v", ended, scripts, g.srv.Stats().Unmoved)
		if ended > scripts*3/4 {
			t.Error("most sessions ended")
		}
	})
}

// A session that the kernel relays is called back once it is idle, and asked. It stays on its loop, where it is
// followed, until it has sent a thousand requests.
func TestSessionsInTheKernelAreAskedOnceIdle(t *testing.T) {
	g := offloadGroup(t, func(c *Config) { c.Continuity, c.keepTick = always, 50*time.Millisecond })
	conn := g.begin((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, conn, 'Z')
	x := g.sessionOf(conn)
	ends := func() string {
		x.work.Lock()
		defer x.work.Unlock()
		why, _ := x.work.WouldEnd()
		return why
	}
	waitFor(t, "the kernel carries it", func() bool { // it may be asked before that
		g.ask(conn, "select 1")
		return strings.Contains(ends(), "kernel")
	})
	waitFor(t, "it is known", func() bool { return ends() == "" })
	if x.path() != PathLoop {
		t.Errorf("it is with %s", x.path())
	}
	x.work.Lock()
	x.work.Known.Next = time.Now().Add(time.Hour)
	x.work.Unlock()
	for range 1000 {
		g.ask(conn, "select 1")
	}
	if why := ends(); why != "" || x.path() != PathLoop {
		t.Errorf("it is with %s, and would end because %q", x.path(), why)
	}
	waitFor(t, "the kernel carries it again", func() bool {
		g.ask(conn, "select 1")
		return strings.Contains(ends(), "kernel")
	})
}

// A change that a loop could not write to its dead server is executed at the next primary: nobody else has it.
func TestChangeThatTheOwnServerNeverGot(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		if strings.HasSuffix(t.Name(), PathGoroutines) {
			t.Skip("loops only")
		}
		defer g.rowsOnce()()
		conn := g.mustDial(g.rw, "user=postgres "+with)
		g.known()
		g.unasked()
		x := g.sessionOf(conn.PgConn().Conn())
		p := x.onLoop.Load()
		dead, sent := make(chan struct{}), make(chan struct{})
		p.loop.Post(func() { // before the loop sees the end of its server
			_ = unix.Shutdown(p.backend.FD, unix.SHUT_RDWR)
			close(dead)
			<-sent
			p.fromClient()
			p.updateInterest()
		})
		<-dead
		told := later(conn, "insert into once values (1, 1)")
		waitFor(t, "the request is in the socket", func() bool {
			var b [1]byte
			n, _, _ := unix.Recvfrom(p.client.FD, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return n > 0
		})
		close(sent)
		waitFor(t, "its session has noticed", func() bool { return x.ended.Load() != nil || x.moving.isOver.Load() })
		g.succeeds()
		if err := <-told; err != nil {
			t.Errorf("the client is told %v", err)
		}
		g.shows(conn, map[string]string{"select count(*)::text from once": "1", "select current_setting('cluster_name')": "b"})
	})
}

// A session whose next request is executed again, and can write nothing, is not asked for its state before that: the
// question would end the transaction in which it can write nothing.
func TestGuardedSessionIsNotAsked(t *testing.T) {
	ours, backend := net.Pipe()
	defer func() { _, _ = ours.Close(), backend.Close() }()
	x := &session{srv: &Server{}, moving: newMoving(&client{}), backend: ours, cut: make(chan struct{})}
	x.work.Status.Store('I')
	x.way.Guarding.Begin('P')
	send := func([]byte) error { t.Error("it is asked"); return nil }
	why := make(chan string, 1)
	go func() {
		_, is := inquiry.Read(t.Context(), x)
		why <- is
	}()
	waitFor(t, "a drain asks", x.moving.inquiry.Wanted)
	if x.ask(true, send); <-why != inquiry.Busy {
		t.Error("a drain does not hear why")
	}
	over := make(chan struct{})
	go func() { defer close(over); inquiry.Keep(t.Context(), x, known.Times{}) }()
	waitFor(t, "it is to be known", x.moving.inquiry.Wanted)
	if x.ask(true, send); !x.moving.inquiry.Wanted() {
		t.Error("it does not wait")
	}
	asked := false
	x.way.Guarding.Takes('Z')
	x.ask(true, func([]byte) error { asked = true; return nil })
	if !asked {
		t.Error("it is not asked afterwards either")
	}
	close(x.cut)
	<-over
}
