package listener

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// A statement that may need a database alone goes to the loop, which has the pool drop its backends.
func TestKernelPathLeavesDatabases(t *testing.T) {
	g := offloadGroup(t, nil)
	conn, x := g.offloadedSession()
	for _, sql := range []string{"create temp table a (b int)", "ALTER table a rename to c", "Drop table c"} {
		for _, request := range [][]byte{query(sql), unnamed("select 1"), unnamed(sql + " -- ")} {
			waitFor(t, "it is lent", func() bool { g.ask(conn, "select 1"); return x.work.Offloaded() })
			before := g.srv.Stats().KernelPath["statement"]
			_, _ = conn.Write(request)
			readUntilEnd(t, conn)
			if after := g.srv.Stats().KernelPath["statement"]; (after > before) == bytes.Contains(request, []byte("select")) {
				t.Errorf("%q: %d sessions came back for a statement, %d before", request, after, before)
			}
		}
	}
}

// readUntilEnd reads up to the end of an answer or an error.
func readUntilEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	for {
		typ, _, err := pgwire.ReadMessage(conn, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if typ == 'Z' {
			return
		}
	}
}

// A session stays offloaded as long as its requests are simple. Its final error is about its last request, whatever
// came before.
func TestKernelPathStays(t *testing.T) {
	g := offloadGroup(t, nil)
	conn, x := g.offloadedSession()
	before := g.srv.Stats()
	for i := range 300 {
		g.ask(conn, "select 1 --"+strings.Repeat("x", i*3))
		if i%2 == 0 {
			_, _ = conn.Write(unnamed("select 'unnamed'"))
			readUntil(t, conn, 'Z')
		}
	}
	if after := g.srv.Stats(); after.Offloaded != before.Offloaded || x.path() != PathKernel {
		t.Errorf("it was lent %d times more, and is with %s: %v", after.Offloaded-before.Offloaded, x.path(), after.KernelPath)
	}
	if n := x.onLoop.Load().kernel.Slot.Ups; n < 450 {
		t.Errorf("the kernel passed %d requests on", n)
	}
}

// The final error is about the last request, not about requests that the kernel has relayed before it.
func TestKernelPathKnowsTheLast(t *testing.T) {
	g := offloadGroup(t, nil)
	again := unnamed("")[len(pgwire.AppendMessage(nil, 'P', append(pgwire.AppendCString(pgwire.AppendCString(nil, ""), ""), 0, 0))):] // of the unnamed statement there is
	const sleeps = "select pg_sleep(600)"
	// the same statement sleeps when it runs again; a Query between would end the unnamed statement
	const second = "select pg_sleep(case current_setting('test.ran', true) when 'yes' then 600 else length(set_config('test.ran', 'yes', true)) / 10 end)"
	for name, c := range map[string]struct {
		asks [][]byte
		last []byte // is not answered; nil: all are
		want string
	}{
		"nothing":                {[][]byte{query("select 1"), query("begin"), query("commit")}, nil, pgwire.StateAdminShutdown},
		"a block":                {[][]byte{query("begin"), query("select 1")}, nil, pgwire.StateSerialization},
		"work in a block":        {[][]byte{query("begin"), query("select 1")}, query(sleeps), pgwire.StateSerialization},
		"work of its own":        {[][]byte{query("begin"), query("rollback")}, query(sleeps), pgwire.StateUnknownOutcome},
		"parsed, in a block":     {[][]byte{query("begin"), unnamed("select 1")}, unnamed(sleeps), pgwire.StateSerialization},
		"not parsed, in a block": {[][]byte{query("begin"), unnamed(second)}, again, pgwire.StateUnknownOutcome},
	} {
		t.Run(name, func(t *testing.T) {
			conn, x := g.offloadedSession()
			for _, ask := range c.asks {
				_, _ = conn.Write(ask)
				readUntil(t, conn, 'Z')
				waitFor(t, "the kernel carries it", x.work.Offloaded) // again, if a loop has looked at the request
			}
			if c.last != nil {
				_, _ = conn.Write(c.last)
				waitFor(t, "it runs", func() bool { return !x.work.Idle() && x.work.State() == "active" })
			}
			if x.path() != PathKernel {
				t.Errorf("it is with %s: %v", x.path(), g.srv.Stats().KernelPath)
			}
			x.end(ending{reason: "test", why: "a test"})
			if got := pgwire.ErrorField(readUntil(t, conn, 'E'), 'C'); got != c.want {
				t.Errorf("it was told %s, want %s", got, c.want)
			}
			_ = conn.Close()
		})
	}
}

// A state that was read before the kernel passed requests on does not hold.
func TestKernelPathChangesStates(t *testing.T) {
	g := offloadGroup(t, nil)
	conn, x := g.offloadedSession()
	back := func() {
		x.reclaim()
		waitFor(t, "it is back", func() bool { return !x.work.Offloaded() })
	}
	for _, asks := range []bool{false, true} {
		waitFor(t, "it is lent anew", func() bool { back(); g.ask(conn, "select 1"); return x.work.Offloaded() })
		x.work.Lock()
		x.moving.inquiry.State = &continuity.State{}
		x.work.Unlock()
		if asks {
			g.ask(conn, "select 1")
		}
		back()
		x.work.Lock()
		if held := x.moving.inquiry.State != nil; held == asks {
			t.Errorf("a request was passed on: %v; the state holds: %v", asks, held)
		}
		x.work.Unlock()
	}
}

// A session that is asked for its state is not lent before it has answered: the kernel would pass the answer on.
func TestKernelPathPassesNoStatesOn(t *testing.T) {
	g := offloadGroup(t, nil)
	conn, x := g.offloadedSession()
	p, lent, read := x.onLoop.Load(), make(chan bool), make(chan string, 1)
	waitFor(t, "it could be lent again", func() bool {
		could := make(chan bool)
		p.loop.Post(p.guarded(func() { could <- p.canOffload() })) // it comes back for that
		return <-could
	})
	p.loop.Post(p.guarded(func() { // in the turn in which it is due to be lent
		p.loop.toOffload = append(p.loop.toOffload, p)
		go func() {
			_, why := inquiry.Read(t.Context(), x)
			read <- why
		}()
		waitFor(t, "it is to be asked", x.moving.inquiry.Wanted)
		p.woken()
		p.updateInterest()
	}))
	p.loop.Post(func() {
		p.loop.Post(func() { lent <- x.work.Offloaded() && x.moving.inquiry.Answering() }) // in a later turn
	})
	if <-lent {
		t.Error("it was lent before it has answered")
	}
	_, _ = conn.Write(query("select 1"))
	var heard []byte
	for typ := byte(0); typ != 'Z'; heard = append(heard, typ) {
		var err error
		if typ, _, err = pgwire.ReadMessage(conn, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	if string(heard) != "TDCZ" {
		t.Errorf("heard %q", heard)
	}
	if why := <-read; why != "" {
		t.Errorf("it cannot be moved: %s", why)
	}
}

// onLoop returns the raw connection of a client whose session is on a loop, and the session. Its first answer offloads
// it.
func (g *group) onLoop() (net.Conn, *session) {
	g.t.Helper()
	conn := g.begin((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(g.t, conn, 'Z')
	var x *session
	waitFor(g.t, "a loop carries it", func() bool {
		x = g.sessionOf(conn)
		return x != nil && x.onLoop.Load() != nil
	})
	return conn, x
}

// stop stops the session's loop until resume is called, or the test is over.
func (x *session) stop(t *testing.T) (resume func()) {
	t.Helper()
	stopped, goOn := make(chan struct{}), make(chan struct{})
	resume = sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(resume)
	x.onLoop.Load().loop.Post(func() { close(stopped); <-goOn })
	<-stopped
	return resume
}

// A client that has sent its next request when its session is due is offloaded at a later answer.
func TestKernelPathAfterAPipeline(t *testing.T) {
	g := offloadGroup(t, nil)
	other, err := g.servers["a"].connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(t.Context()) }()
	sqlOn(t, other, "select pg_advisory_lock(94)")
	conn, x := g.onLoop()
	p := x.onLoop.Load()
	_, _ = conn.Write(query("select pg_advisory_lock(94)"))
	waitFor(t, "it waits for the lock", func() bool {
		return value[bool](t, other, "select exists(select 1 from pg_stat_activity where pid = $1 and wait_event = 'advisory')", x.pid)
	})
	resume := x.stop(t)
	sqlOn(t, other, "select pg_advisory_unlock(94)")
	waitFor(t, "the answer is there", func() bool { return offload.Unread(p.backend.FD) })
	_, _ = conn.Write(query("select pg_advisory_unlock(94)"))
	waitFor(t, "the next request is there", func() bool { return offload.Unread(p.client.FD) })
	resume()
	readUntil(t, conn, 'Z')
	readUntil(t, conn, 'Z')
	g.untilOffloaded(t, conn)
}

// A notification that comes when a session is due does not end it: it is offloaded at a later answer.
func TestKernelPathAfterANotification(t *testing.T) {
	g := offloadGroup(t, nil)
	conn, x := g.onLoop()
	p := x.onLoop.Load()
	p.loop.Post(func() { p.patience.Needed = 1000 })
	g.ask(conn, "listen news")
	resume := x.stop(t)
	g.servers["a"].sql(t, "notify news")
	waitFor(t, "the notification is there", func() bool { return offload.Unread(p.backend.FD) })
	p.loop.Post(func() { // as if it had come after the answer was read
		p.patience.Needed = 1
		p.beforeAnswer()
	})
	resume()
	readUntil(t, conn, 'A')
	g.untilOffloaded(t, conn)
}

// A session that the kernel relays is not moved between a Parse and a Bind of the unnamed statement, whatever came
// between them, and is moved after the Bind or a Query.
func TestMoveFromTheKernelOfAnUnnamedStatement(t *testing.T) {
	g := offloadGroup(t, func(c *Config) { c.Continuity = always })
	sync := pgwire.AppendMessage(nil, 'S', nil)
	described := pgwire.AppendMessage(nil, 'P', append(pgwire.AppendCString(pgwire.AppendCString(nil, ""), "select 42"), 0, 0))
	described = append(pgwire.AppendMessage(described, 'D', []byte{'S', 0}), sync...)
	other := pgwire.AppendMessage(pgwire.AppendMessage(nil, 'B', []byte("\x00named\x00\x00\x00\x00\x00\x00\x00")), 'E', make([]byte, 5))
	bound := append(pgwire.AppendMessage(pgwire.AppendMessage(nil, 'B', make([]byte, 8)), 'E', make([]byte, 5)), sync...)
	for name, c := range map[string]struct {
		loop, kernel [][]byte
		moves        bool
	}{
		"nothing":               {nil, nil, true},
		"parsed":                {nil, [][]byte{described, sync}, false},
		"parsed, another bound": {nil, [][]byte{described, append(other, sync...), sync}, false},
		"parsed on the loop":    {[][]byte{described}, [][]byte{sync, sync}, false},
		"bound":                 {nil, [][]byte{described, bound, sync}, true},
		"bound, of the loop's":  {[][]byte{described}, [][]byte{bound, sync}, true},
		"a Query after it":      {[][]byte{described}, [][]byte{query("select 1"), sync}, true},
	} {
		t.Run(name, func(t *testing.T) {
			conn, x := g.onLoop()
			_, _ = conn.Write(append(pgwire.AppendMessage(nil, 'P', []byte("named\x00select 1\x00\x00\x00")), sync...))
			readUntilEnd(t, conn)
			g.untilOffloaded(t, conn)
			if len(c.loop) > 0 {
				x.reclaim()
				waitFor(t, "it is back", func() bool { return !x.work.Offloaded() })
			}
			for _, request := range slices.Concat(c.loop, c.kernel) {
				_, _ = conn.Write(request)
				readUntilEnd(t, conn)
				waitFor(t, "the kernel carries it", x.work.Offloaded)
			}
			g.failOver("b")
			_, _ = conn.Write(query("select 1"))
			if typ, body, err := pgwire.ReadMessage(conn, 1<<20); (typ == 'T') != c.moves || err != nil {
				t.Errorf("moves: %v; it is told %c %q, %v", c.moves, typ, body, err)
			}
			g.failOver("a")
		})
	}
}
