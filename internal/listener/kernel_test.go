package listener

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/offload/offloadtest"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// dataPaths returns the data paths that carry sessions here. A subtest is skipped, or fails, for one that is missing.
func dataPaths(t *testing.T) []string {
	t.Helper()
	paths := []string{PathLoop, PathGoroutines}
	if t.Run("the kernel's path", offloadtest.Need); offloadtest.Missing() == nil {
		paths = append(paths, PathKernel)
	}
	return paths
}

// carried checks that the path has carried at least that share of the sessions of the group's clients, and no other
// path any, but for the loop on which a session begins that the kernel takes over.
func (g *group) carried(t *testing.T, path string, share float64) {
	t.Helper()
	path = strings.TrimSuffix(path, strings.TrimPrefix(writingSingly, PathLoop))
	n := g.srv.Stats().Carried
	all := n[PathLoop] + n[PathGoroutines] // each begins there
	if all == 0 || float64(n[path]) < share*float64(all) {
		t.Errorf("the path %s carried %d of %d sessions, want at least %.0f %%: %v", path, n[path], all, 100*share, n)
	}
	for other, m := range n {
		if other != path && m > 0 && (path != PathKernel || other != PathLoop) {
			t.Errorf("sessions that are for the path %s were carried by %s: %v", path, other, n)
		}
	}
	t.Logf("%s: of %d sessions each path carried %v", path, all, n)
}

// offloadGroup is a group whose sessions are offloaded after their first answer.
func offloadGroup(t *testing.T, change func(*Config)) *group {
	t.Helper()
	offloadtest.Need(t)
	return newGroup(t, func(c *Config) {
		trusting(c)
		c.offloadAfter = 1
		if change != nil {
			change(c)
		}
	})
}

// query returns a Query message.
func query(sql string) []byte { return pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, sql)) }

// offloadedSession returns the raw connection of a client whose session is offloaded, and the session.
func (g *group) offloadedSession() (net.Conn, *session) {
	g.t.Helper()
	conn := g.begin((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(g.t, conn, 'Z')
	local := conn.LocalAddr().String()
	g.ask(conn, "select 1")
	var x *session
	waitFor(g.t, "the kernel carries it", func() bool {
		x = g.sessionFrom(local)
		return x != nil && x.work.Offloaded()
	})
	return conn, x
}

// sessionFrom returns the session of the client with that address, or nil.
func (g *group) sessionFrom(address string) *session {
	g.srv.mu.Lock()
	defer g.srv.mu.Unlock()
	for _, x := range g.srv.sessions {
		if x.addr == address {
			return x
		}
	}
	return nil
}

// relayedByKernel reports whether the kernel has relayed requests of the client since it got the session last.
func (g *group) relayedByKernel(c *pgx.Conn) bool {
	x := g.sessionFrom(c.PgConn().Conn().LocalAddr().String())
	if x == nil {
		return false
	}
	x.work.Lock()
	defer x.work.Unlock()
	return x.work.RelayedUnseen()
}

// ask sends a Query and reads up to its end.
func (g *group) ask(conn io.ReadWriter, sql string) {
	g.t.Helper()
	if _, err := conn.Write(query(sql)); err != nil {
		g.t.Fatal(err)
	}
	readUntil(g.t, conn, 'Z')
}

// Requests pass without the loop, and are counted when the session comes back: in the views, the next drain, the
// final error.
func TestKernelPathKeepsTheBooks(t *testing.T) {
	g := offloadGroup(t, nil)
	conn, x := g.offloadedSession()
	in := g.srv.Sessions()[0].BytesIn
	for range 40 {
		g.ask(conn, "select 1")
	}
	if got := g.srv.Stats(); got.Offloaded != 1 {
		t.Errorf("lent %d times, %v", got.Offloaded, got.KernelPath)
	}
	if s := g.srv.Sessions()[0]; s.Path != PathKernel || s.State != "idle" || s.BytesIn != in+40*uint64(len(query("select 1"))) {
		t.Errorf("%+v, %d bytes before", s, in)
	}
	g.ask(conn, "begin")
	if s := g.srv.Sessions()[0]; s.State != "idle in transaction" || g.srv.Busy() != 1 {
		t.Errorf("%s, %d busy", s.State, g.srv.Busy())
	}
	x.reclaim()
	waitFor(t, "it is back", func() bool { return !x.work.Offloaded() })
	if s := g.srv.Sessions()[0]; s.State != "idle in transaction" || s.BytesIn != in+40*uint64(len(query("select 1")))+uint64(len(query("begin"))) {
		t.Errorf("%+v", s)
	}
	if got := g.srv.Stats(); got.RelayedByKernel != 41 || got.KernelPath["called"] != 1 {
		t.Errorf("%d passed, %v", got.RelayedByKernel, got.KernelPath)
	}
}

// The final error of an offloaded session, by its last request.
func TestKernelPathVerdicts(t *testing.T) {
	g := offloadGroup(t, nil)
	g.servers["a"].sql(t, "create table if not exists passed(a int)", "truncate passed")
	defer g.servers["a"].sql(t, "drop table passed")
	for _, c := range []struct {
		name, want string
		before     []string
		last       []byte
	}{
		{"idle", "57P01", nil, nil},
		{"a statement", "08007", nil, query("insert into passed select 1 from pg_sleep(60)")},
		{"open", "40001", []string{"begin", "insert into passed values (2)"}, nil},
		{"in a block", "40001", []string{"begin"}, query("insert into passed select 3 from pg_sleep(60)")},
		{"a block of its own", "08007", nil, query("begin; insert into passed select 4 from pg_sleep(60); commit")},
		{"after a block", "08007", []string{"begin", "commit"}, query("insert into passed select 5 from pg_sleep(60)")},
		{"prepared", "08007", nil, unnamed("insert into passed select 6 from pg_sleep(60)")},
		{"prepared in a block", "40001", []string{"begin"}, unnamed("insert into passed select 7 from pg_sleep(60)")},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, x := g.offloadedSession()
			for _, sql := range c.before {
				g.ask(conn, sql)
			}
			if c.last != nil {
				_, _ = conn.Write(c.last)
				waitFor(t, "it has passed", func() bool { return x.work.State() == "active" })
			}
			if several := c.name == "a block of its own"; x.work.Offloaded() == several { // the loop looks at several statements
				t.Errorf("it is offloaded: %v: %v", !several, g.srv.Stats().KernelPath)
			}
			x.end(ending{reason: "test", why: "a test wants it"})
			readUntilError(t, conn, c.want)
		})
	}
	g.servers["a"].sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid()")
	if n := value[int](t, g.mustDial(g.rw, "user=postgres"), "select count(*) from passed where a in (2, 3, 7)"); n != 0 {
		t.Errorf("%d rows of transactions that were called lost", n)
	}
}

// unnamed returns a statement of the extended protocol in one piece.
func unnamed(sql string) []byte {
	b := pgwire.AppendMessage(nil, 'P', append(pgwire.AppendCString(pgwire.AppendCString(nil, ""), sql), 0, 0))
	b = pgwire.AppendMessage(b, 'B', []byte{0, 0, 0, 0, 0, 0, 0, 0})
	b = pgwire.AppendMessage(b, 'D', []byte{'P', 0})
	b = pgwire.AppendMessage(b, 'E', []byte{0, 0, 0, 0, 0})
	return pgwire.AppendMessage(b, 'S', nil)
}

// A drain reclaims every session: new requests wait, running ones continue, and no busy session counts as idle.
func TestKernelPathDrains(t *testing.T) {
	g := offloadGroup(t, nil)
	idle, _ := g.offloadedSession()
	open, _ := g.offloadedSession()
	g.ask(open, "begin")
	runs, _ := g.offloadedSession()
	_, _ = runs.Write(query("select pg_sleep(1)"))
	waitFor(t, "it runs", func() bool { return g.srv.Busy() == 2 })
	g.srv.Drain(true)
	if n := g.srv.Busy(); n != 2 {
		t.Errorf("%d busy", n)
	}
	for _, x := range g.srv.localSessions() {
		if s := x.onLoop.Load().kernel.Slot; s.Armed != 0 {
			t.Error("the kernel has one still")
		}
	}
	_, _ = idle.Write(query("select 2"))
	waitFor(t, "it is held", func() bool { return g.srv.Stats().Drained == 1 })
	g.ask(open, "select 3")
	g.ask(open, "commit")
	readUntil(t, runs, 'Z')
	waitFor(t, "nothing runs", func() bool { return g.srv.Busy() == 0 })
	g.srv.Drain(false)
	readUntil(t, idle, 'Z')
	g.ask(runs, "select 4")
}

// Moving the gate moves it for the kernel, too, and the kernel's deadline expires by time alone.
func TestKernelPathGate(t *testing.T) {
	g := offloadGroup(t, func(c *Config) { c.GateHold = time.Minute })
	g.gate.Store(openGate())
	conn, x := g.offloadedSession()
	g.gate.Store(closedGate())
	_, _ = conn.Write(query("select 1"))
	waitFor(t, "the answer is held", func() bool { return g.srv.Stats().Gated == 1 })
	g.gate.Store(openGate())
	readUntil(t, conn, 'Z')
	waitFor(t, "it is lent again", x.work.Offloaded)
	soon := boottime.Now() + 200*time.Millisecond
	g.gate.Int64.Store(int64(soon)) // not announced: an earlier deadline is found by polling
	told := (*g.srv.loops.Load())[0].path.Deadline
	waitFor(t, "the program is told, and it is over", func() bool { return atomic.LoadUint64(told) == uint64(soon) && boottime.Now() > soon })
	held := g.srv.Stats().Gated
	_, _ = conn.Write(query("select 1"))
	waitFor(t, "the answer is held", func() bool { return g.srv.Stats().Gated == held+1 })
	g.gate.Store(openGate())
	readUntil(t, conn, 'Z')
}

// A secondary has no gate. Once it leads it has one, which sessions from before have to pass.
func TestKernelPathUngated(t *testing.T) {
	g := offloadGroup(t, nil)
	conn, x := g.offloadedSession()
	g.gate.Store(closedGate())
	waitFor(t, "it is called back", func() bool { return !x.work.Offloaded() })
	_, _ = conn.Write(query("select 1"))
	waitFor(t, "the answer is held", func() bool { return g.srv.Stats().Gated == 1 })
	g.gate.Store(openGate())
	readUntil(t, conn, 'Z')
}

// A cancel request reaches an offloaded session, whose answers are checked from then on.
func TestKernelPathCancel(t *testing.T) {
	g := offloadGroup(t, nil)
	conn := g.mustDial(g.rw, "user=postgres default_query_exec_mode=simple_protocol")
	if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it is lent", func() bool { return g.srv.Sessions()[0].Path == PathKernel })
	done := make(chan error, 1)
	go func() { _, err := conn.Exec(context.Background(), "select pg_sleep(60)"); done <- err }()
	waitFor(t, "it runs in the kernel", func() bool { s := g.srv.Sessions(); return s[0].Path == PathKernel && s[0].State == "active" })
	waitFor(t, "it runs", func() bool {
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if sqlstate(err) != "57014" {
				t.Errorf("%v", err)
			}
			return true
		default:
			return false
		}
	})
	if n := value[int](t, conn, "select 7"); n != 7 {
		t.Error(n)
	}
}

// Messages that the loop has to decide about come back to it, and each gets the answer that a direct client gets.
func TestKernelPathComesBack(t *testing.T) {
	g := offloadGroup(t, nil)
	for why, f := range map[string]func(conn net.Conn, x *session){
		"long":      func(conn net.Conn, _ *session) { g.ask(conn, "select '"+strings.Repeat("x", 3000)+"'") },
		"statement": func(conn net.Conn, _ *session) { g.ask(conn, "create temp table t()") },
		"message": func(conn net.Conn, _ *session) {
			_, _ = conn.Write(query("select * from no_such_table"))
			readUntilError(t, conn, "42P01")
			readUntil(t, conn, 'Z')
		},
		"pipelined": func(conn net.Conn, _ *session) {
			_, _ = conn.Write(append(query("select 1"), query("select 2")...))
			readUntil(t, conn, 'Z')
			readUntil(t, conn, 'Z')
		},
		"in parts": func(conn net.Conn, _ *session) {
			q := query("select 'in parts'")
			_, _ = conn.Write(q[:7])
			time.Sleep(20 * time.Millisecond)
			_, _ = conn.Write(q[7:])
			readUntil(t, conn, 'Z')
		},
		"slow client": func(conn net.Conn, x *session) {
			x.onLoop.Load().kernel.Slot.DownLimit = 0
			g.ask(conn, "select 1")
		},
	} {
		t.Run(why, func(t *testing.T) {
			conn, x := g.offloadedSession()
			before := g.srv.Stats().KernelPath[why]
			f(conn, x)
			if after := g.srv.Stats(); after.KernelPath[why] <= before {
				t.Errorf("%v", after.KernelPath)
			}
			_, _ = conn.Write(unnamed("select 'goes on'"))
			readUntil(t, conn, 'Z')
			_ = conn.Close()
			waitFor(t, "it is gone", func() bool { return g.srv.Stats().Open == 0 })
		})
	}
}

// COPY in both directions and by both protocols, from a session that was offloaded a moment before.
func TestKernelPathCopy(t *testing.T) {
	g := offloadGroup(t, nil)
	conn := g.mustDial(g.rw, "user=postgres")
	lend := func() {
		t.Helper()
		waitFor(t, "it is lent", func() bool {
			_, _ = conn.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol)
			return g.srv.Sessions()[0].Path == PathKernel
		})
	}
	sqlOn(t, conn, "create temp table copied(a text)")
	for range 4 {
		lend()
		if _, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader(strings.Repeat("some line\n", 50_000)), "copy copied from stdin"); err != nil {
			t.Fatal(err)
		}
		lend()
		var rows countingWriter
		if _, err := conn.PgConn().CopyTo(t.Context(), &rows, "copy copied to stdout"); err != nil {
			t.Fatal(err)
		}
		sqlOn(t, conn, "truncate copied")
	}
	raw, x := g.offloadedSession()
	g.ask(raw, "create temp table copied(a text)")
	waitFor(t, "it is lent", func() bool { g.ask(raw, "select 1"); return x.work.Offloaded() })
	_, _ = raw.Write(unnamed("copy copied from stdin"))
	readUntil(t, raw, 'G')
	_, _ = raw.Write(pgwire.AppendMessage(pgwire.AppendMessage(pgwire.AppendMessage(nil, 'd', []byte("one\n")), 'c', nil), 'S', nil))
	readUntil(t, raw, 'Z')
	g.ask(raw, "select 1")
	if x.work.Offloaded() {
		t.Error("a session that prepared a COPY is offloaded again")
	}
}

// Results that are many times larger than a session's buffers pass whole through registered sockets. A client that
// does not read slows PostgreSQL down.
func TestKernelPathBulk(t *testing.T) {
	g := offloadGroup(t, nil)
	conn, _ := g.offloadedSession()
	_, _ = conn.Write(query("select repeat('x', 1000) from generate_series(1, 100000)"))
	other := g.mustDial(g.rw, "user=postgres")
	waitFor(t, "PostgreSQL waits for its client", func() bool {
		return value[bool](t, other, "select exists(select 1 from pg_stat_activity where wait_event = 'ClientWrite' and query like 'select repeat%')")
	})
	if n := rowsOf(t, conn); n != 100_000 {
		t.Errorf("%d rows came", n)
	}
	_, _ = conn.Write(query("select '" + strings.Repeat("y", 3_000_000) + "'"))
	if n := rowsOf(t, conn); n != 1 {
		t.Errorf("%d rows came", n)
	}

	// Requests that PostgreSQL does not take are felt by the client.
	sqlOn(t, other, "create table locked(a text)", "begin", "lock locked")
	defer g.servers["a"].sql(t, "drop table locked")
	conn, x := g.offloadedSession()
	_, _ = conn.Write(query("copy locked from stdin"))
	sent := make(chan int, 1)
	go func() {
		n := 0
		line := pgwire.AppendMessage(nil, 'd', append(bytes.Repeat([]byte("z"), 99_999), '\n'))
		for range 2_000 {
			_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			k, err := conn.Write(line)
			if n += k; err != nil {
				break
			}
		}
		sent <- n
	}()
	if n := <-sent; n > 32<<20 {
		t.Errorf("%d MB were taken from a client whose server takes nothing", n>>20)
	}
	x.end(ending{reason: "test", why: "a test wants it"})
	sqlOn(t, other, "rollback")
}

// A client that asks and does not read slows PostgreSQL down, also where the kernel relays the answers. Unread bytes
// arrive in order when it reads again. When it leaves, PostgreSQL does not wait for it.
func TestKernelPathSlowClient(t *testing.T) {
	g := offloadGroup(t, nil)
	for i := range 4 {
		reads, back := i%2 == 0, i > 1
		conn, x := g.offloadedSession()
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(x.standing())
			}
		})
		_ = conn.(*net.TCPConn).SetReadBuffer(128 << 10)
		_ = unix.SetsockoptInt(x.onLoop.Load().client.FD, unix.SOL_SOCKET, unix.SO_SNDBUF, 32<<10) // the rest waits in the kernel's backlog
		asked := 0
		blocked := func() (is bool) {
			other, err := g.servers["a"].connect(t.Context(), "postgres")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Close(t.Context()) }()
			return value[bool](t, other, "select exists(select 1 from pg_stat_activity where wait_event = 'ClientWrite' and pid = $1)", x.pid)
		}
		for waits := true; waits; {
			asked++
			if back && asked == 120 {
				x.reclaim()
			}
			_, _ = conn.Write(query("select repeat('s', 3000), " + strconv.Itoa(asked)))
			waitFor(t, "it is answered, or cannot be", func() bool {
				for range 100 { // the session is idle also while the request is on its way to it
					if x.info().BytesOut > uint64(asked)*3000 && x.work.State() == "idle" {
						return true
					}
					time.Sleep(time.Millisecond)
				}
				// If the session has come back, its requests wait behind the answers in the kernel's backlog.
				waits = !blocked() && x.work.Offloaded()
				return !waits
			})
		}
		if n := g.srv.Sessions()[0].BytesOut; n > 4<<20 {
			t.Errorf("%d bytes went to a client that reads nothing", n)
		}
		if !reads {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
			waitFor(t, "it is gone", func() bool { return g.srv.Stats().Open == i/2+1 })
			waitFor(t, "its process is gone", func() bool { return !slices.Contains(g.backends("postgres"), x.pid) })
			continue
		}
		for i := range asked {
			row, number := readUntil(t, conn, 'D'), strconv.Itoa(i+1)
			if !bytes.HasSuffix(row, append([]byte{'s', 0, 0, 0, byte(len(number))}, number...)) {
				t.Fatalf("answer %d ends in %q", i+1, row[len(row)-12:])
			}
			readUntil(t, conn, 'Z')
		}
		g.ask(conn, "select 1")
	}
}

// rowsOf reads an answer of any size.
func rowsOf(t *testing.T, conn io.Reader) (rows int) {
	t.Helper()
	var f pgwire.Framer
	buf := make([]byte, 64<<10)
	for done := false; !done; {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Scan(buf[:n], func(typ byte, _ []byte) { rows += b2i(typ == 'D'); done = done || typ == 'Z' })
	}
	return rows
}

// Sessions that end while offloaded: by the client in every way, by PostgreSQL, by the end of the server. Nothing of
// them remains.
func TestKernelPathEnds(t *testing.T) {
	outer := offloadGroup(t, nil)
	c, _ := outer.offloadedSession()
	_ = c.Close()
	waitFor(t, "the first session is gone", func() bool { return outer.srv.Stats().Open == 0 })
	files, routines := openFiles(t), runtime.NumGoroutine()
	t.Run("sessions", func(t *testing.T) {
		g := offloadGroup(t, nil)
		terminated, _ := g.offloadedSession()
		_, _ = terminated.Write(pgwire.AppendMessage(nil, 'X', nil))
		if _, err := io.ReadAll(terminated); err != nil {
			t.Error(err)
		}
		halfClosed, _ := g.offloadedSession()
		_, _ = halfClosed.Write(query("select pg_sleep(0.1), 'the last'"))
		_ = halfClosed.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(halfClosed); err != nil || !bytes.Contains(b, []byte("the last")) {
			t.Errorf("%q %v", b, err)
		}
		reset, _ := g.offloadedSession()
		_, _ = reset.Write(query("select pg_sleep(0.1)"))
		_ = reset.(*net.TCPConn).SetLinger(0)
		_ = reset.Close()
		killed, x := g.offloadedSession()
		g.servers["a"].sql(t, "select pg_terminate_backend("+strconv.Itoa(int(x.pid))+")")
		readUntilError(t, killed, "57P01")
		waitFor(t, "all are gone", func() bool { return g.srv.Stats().Open == 0 })
		if l := (*g.srv.loops.Load())[0]; len(l.path.Free) != len(l.offloaded) {
			t.Errorf("%d of %d places are free", len(l.path.Free), len(l.offloaded))
		}
		g.offloadedSession() // stays until the server ends
	})
	waitFor(t, "nothing is left", func() bool { return openFiles(t) <= files && runtime.NumGoroutine() <= routines })
}

// Without a free slot a session stays on its loop, and a freed slot is used again.
func TestKernelPathIsFull(t *testing.T) {
	g := offloadGroup(t, func(c *Config) { c.Limits.Connections = 16 })
	first, x := g.offloadedSession()
	l := (*g.srv.loops.Load())[0]
	taken := make(chan struct{})
	l.Post(func() { l.path.Free = nil; close(taken) })
	<-taken
	other := g.begin((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, other, 'Z')
	for range 50 {
		g.ask(other, "select 1")
	}
	if n := g.srv.Stats().Offloaded; n != 1 {
		t.Errorf("lent %d times", n)
	}
	place := x.onLoop.Load().kernel.Index
	_ = first.Close()
	waitFor(t, "it is gone", func() bool { return g.srv.Stats().Open == 1 })
	if _, again := g.offloadedSession(); again.onLoop.Load().kernel.Index != place {
		t.Error("there was another slot")
	}
}
