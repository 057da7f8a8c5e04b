package listener

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/passage"
)

// later runs a query in the background and returns a channel for its error.
func later(conn *pgx.Conn, query string) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		_, err := conn.Exec(ctx, query)
		done <- err
	}()
	return done
}

func waiting(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("it was not held: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drained waits until nothing runs in the group.
func (g *group) drained() {
	g.t.Helper()
	waitFor(g.t, "nothing runs", func() bool { return g.srv.Busy() == 0 })
}

func TestDrainHoldsWhatIsNew(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules = trustAll })
	idle, open := g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres")
	reader := g.mustDial(g.ro, "user=postgres")
	must(t, <-later(open, "begin"))
	g.srv.Drain(true)
	held := later(idle, "select 1")
	waiting(t, held)
	if n := g.srv.Busy(); n != 1 {
		t.Errorf("%d sessions are busy", n)
	}
	must(t, <-later(open, "select 1"))
	must(t, <-later(reader, "select 1")) // runs on another server
	must(t, <-later(open, "commit"))
	g.drained()
	next := later(open, "begin")
	waiting(t, next)
	waiting(t, held)
	g.srv.Drain(false)
	must(t, <-held)
	must(t, <-next)
	if st := g.srv.Stats(); st.Drained != 2 || len(st.Cut) != 0 {
		t.Errorf("%+v", st)
	}
}

// A client that sends without waiting for answers is stopped between two transactions, not in one.
func TestDrainFindsTheBoundaryInAPipeline(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules = trustAll })
	conn := g.mustDial(g.rw, "user=postgres").PgConn()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	p := conn.StartPipeline(ctx)
	for _, q := range []string{"begin", "select pg_sleep(0.3)", "commit", "select 1"} { // each with a Sync of its own
		p.SendQueryParams(q, nil, nil, nil, nil)
		must(t, p.Sync())
	}
	waitFor(t, "the transaction runs", func() bool { return g.srv.Busy() == 1 })
	g.srv.Drain(true)
	g.drained()
	all := g.srv.Sessions()
	if len(all) != 1 || all[0].State != "idle" {
		t.Fatalf("drained: %+v, %+v", all, g.srv.Stats())
	}
	g.srv.Drain(false)
	must(t, p.Close())
}

// An answer that arrives between the decision to hold a request and the wait leaves a transaction open that has to
// end: the wait may not last as long as the drain.
func TestAwaitLooksAgain(t *testing.T) {
	d, holds := &passage.Drain{Over: make(chan struct{})}, time.NewTimer(time.Hour)
	defer holds.Stop()
	x := &session{cut: make(chan struct{})}
	x.work.Status.Store('T')
	done := make(chan struct{})
	go func() { defer close(done); x.await(d, holds) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		close(d.Over)
		t.Fatal("it waits for the end of the drain")
	}
}

func TestDrainLetsACopyEnd(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules = trustAll })
	conn := g.mustDial(g.rw, "user=postgres")
	must(t, <-later(conn, "create temp table lines (x text)"))
	in := &slowLines{more: make(chan bool)}
	done := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().CopyFrom(context.Background(), in, "copy lines from stdin")
		done <- err
	}()
	in.more <- true
	waitFor(t, "the copy runs", func() bool { return g.srv.Busy() == 1 })
	g.srv.Drain(true)
	in.more <- true
	close(in.more)
	must(t, <-done)
	g.drained()
	g.srv.Drain(false)
	if n := value[int](t, conn, "select count(*)::int from lines"); n != 2 {
		t.Errorf("%d lines", n)
	}
}

// slowLines yields one line for each value received from more.
type slowLines struct{ more chan bool }

func (s *slowLines) Read(p []byte) (int, error) {
	if !<-s.more {
		return 0, io.EOF
	}
	return copy(p, "a line\n"), nil
}

func TestCloseServerSaysWhatBecameOfIt(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules = trustAll })
	idle, asking, open := g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres")
	reader := g.mustDial(g.ro, "user=postgres")
	must(t, <-later(open, "begin"))
	g.srv.Drain(true)
	held := later(asking, "select 1")
	waiting(t, held)
	if n := g.srv.CutBusy("planned failover"); n != 1 {
		t.Errorf("%d sessions were cut", n)
	}
	if err := <-later(open, "select 1"); sqlstate(err) != "57P01" {
		t.Errorf("in a transaction: %v", err)
	}
	g.drained()
	if n := g.srv.CloseServer("planned failover"); n != 2 {
		t.Errorf("%d sessions were closed", n)
	}
	if err := <-held; sqlstate(err) != "40001" || !strings.Contains(err.Error(), "before the transaction was begun") {
		t.Errorf("held: %v", err)
	}
	if err := <-later(idle, "select 1"); sqlstate(err) != "57P01" {
		t.Errorf("idle: %v", err)
	}
	must(t, <-later(reader, "select 1"))
}

// Clients of other nodes get the same error for a request that was held at the primary: their own listener knows no
// better.
func TestDrainReachesClientsOfOtherNodes(t *testing.T) {
	primary := newGroup(t, func(c *Config) { c.Rules = trustAll })
	g := newGroup(t, func(c *Config) { c.Rules = trustAll })
	g.remote["a"] = primary.srv
	r := fullRoutes(1)
	r.Self, r.Targets[0].Local = "b", false
	g.publish(r)
	conn := g.mustDial(g.rw, "user=postgres")
	must(t, <-later(conn, "select 1"))
	primary.srv.Drain(true)
	held := later(conn, "insert into nowhere values (1)")
	waiting(t, held)
	primary.drained()
	primary.srv.CloseServer("planned failover")
	if err := <-held; sqlstate(err) != "40001" {
		t.Errorf("held: %v", err)
	}
}

func TestHeldRequestsHaveALimit(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.HoldMax = trustAll, 200*time.Millisecond })
	idle, asking := g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres")
	g.srv.Drain(true)
	if err := <-later(asking, "select 1"); sqlstate(err) != "40001" {
		t.Errorf("held: %v", err)
	}
	g.srv.Drain(false)
	must(t, <-later(idle, "select 1"))
}

// A stream of logical replication has no end to wait for.
func TestDrainDoesNotWaitForAStream(t *testing.T) {
	g := newGroup(t, nil)
	x := &session{srv: g.srv, client: sink{}}
	x.work.Local = true
	x.work.Owed.Store(1)
	if !x.work.Busy() {
		t.Error("a request under way is not busy")
	}
	if _, err := x.pass(pgwire.AppendMessage(nil, 'W', []byte{0, 0, 0}), 0); err != nil {
		t.Fatal(err)
	}
	if x.work.Busy() {
		t.Error("a stream is waited for")
	}
}
