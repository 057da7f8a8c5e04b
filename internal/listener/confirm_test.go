package listener

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/passage"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
)

// cut is a way to cancel a commit's wait for the secondaries before they have flushed it.
type cut struct {
	name    string
	options string // of the session
	prepare []string
	sql     string // inserts into acks the row 1
	simple  bool
	do      func(t *testing.T, p *pair, conn *pgx.Conn)
	// ends: the session ends with the wait, so nothing can be confirmed afterwards.
	ends bool
	// alone: the wait may end before it was seen.
	alone bool
}

func protocolCancel(t *testing.T, _ *pair, conn *pgx.Conn) {
	if err := conn.PgConn().CancelRequest(context.Background()); err != nil {
		t.Error(err)
	}
}

func superuserCancel(t *testing.T, p *pair, conn *pgx.Conn) {
	p.primary.sql(t, fmt.Sprintf("select pg_cancel_backend(%d)", conn.PgConn().PID()))
}

func terminate(t *testing.T, p *pair, conn *pgx.Conn) {
	p.primary.sql(t, fmt.Sprintf("select pg_terminate_backend(%d)", conn.PgConn().PID()))
}

var insert = "insert into acks values (1)"

var cuts = []cut{
	{name: "protocol cancel", sql: insert, do: protocolCancel},
	{name: "protocol cancel of a simple query", sql: insert, simple: true, do: protocolCancel},
	{name: "protocol cancel of COMMIT", prepare: []string{"begin", insert}, sql: "commit", simple: true, do: protocolCancel},
	{name: "protocol cancel, warnings off", options: "client_min_messages=error", sql: insert, do: protocolCancel},
	{name: "pg_cancel_backend by a superuser", sql: insert, do: superuserCancel},
	{name: "pg_cancel_backend, warnings off at start", options: "client_min_messages=error", sql: insert, do: superuserCancel},
	{name: "pg_cancel_backend, warnings off in options", options: "options='-c client_min_messages=error'", sql: insert, do: superuserCancel},
	{name: "pg_cancel_backend, warnings off by SET", prepare: []string{"set client_min_messages = error"}, sql: insert, do: superuserCancel},
	{
		name: "pg_cancel_backend, warnings off by set_config", prepare: []string{"select set_config('client_min_messages', 'error', false)"},
		sql: insert, do: superuserCancel,
	},
	{name: "pg_cancel_backend, warnings off in other capitals", prepare: []string{"set Client_Min_Messages = error"}, sql: insert, do: superuserCancel},
	{
		name: "statement_timeout inside CALL, warnings off by a function", prepare: []string{"set statement_timeout = '600ms'", "select set_config('client_min' || '_messages', 'error', false)"},
		sql: "call insert_and_commit()", alone: true,
	},
	{
		name: "statement_timeout inside CALL", prepare: []string{"set statement_timeout = '600ms'"},
		sql: "call insert_and_commit()", alone: true,
	},
	{
		name: "statement_timeout inside DO, warnings off", prepare: []string{"set statement_timeout = '600ms'", "set client_min_messages to error"},
		sql: "do $$ begin insert into acks values (1); commit; end $$", simple: true, alone: true,
	},
	{name: "terminate", sql: insert, do: terminate, ends: true},
	{
		name: "the client vanishes", sql: insert, ends: true,
		do: func(_ *testing.T, _ *pair, conn *pgx.Conn) { _ = conn.PgConn().Conn().Close() },
	},
}

// attempt runs the statement with the standby's feedback frozen, cancels its wait, and returns what the client
// receives.
func (c cut) attempt(t *testing.T, p *pair, g *group) <-chan error {
	t.Helper()
	p.reset(t)
	p.primary.sql(t, "create or replace procedure insert_and_commit() language plpgsql as $$ begin insert into acks values (1); commit; end $$")
	conn := g.mustDial(g.rw, "user=postgres synchronous_commit=on "+c.options)
	sqlOn(t, conn, c.prepare...) // before the freeze: a session with its warnings off waits for the standby with its reads, too
	p.relay.freeze(true)
	heard := make(chan error, 1)
	go func() {
		var args []any
		if c.simple {
			args = append(args, pgx.QueryExecModeSimpleProtocol)
		}
		_, err := conn.Exec(context.Background(), c.sql, args...)
		heard <- err
	}()
	if !c.alone {
		p.inSyncRep(t, conn.PgConn().PID())
		c.do(t, p, conn)
	}
	return heard
}

// The hole itself: a listener that confirms nothing passes the acknowledgement of a commit that no secondary has. It
// also proves that the tests below can fail.
func TestCancelledWaitWithoutConfirmation(t *testing.T) {
	p := thePair(t)
	g := p.group(t, func(c *Config) { c.FlushLSN, c.Durable = nil, nil })
	lost := 0
	for _, c := range cuts {
		heard := c.attempt(t, p, g)
		select {
		case err := <-heard:
			if err == nil && !p.confirmed(t) {
				lost++
			} else if err == nil || !c.ends {
				t.Errorf("%s: %v", c.name, err)
			}
		case <-time.After(60 * time.Second):
			t.Errorf("%s: no answer", c.name)
		}
	}
	if lost != len(cuts)-2 {
		t.Errorf("%d of %d ways to cut the wait had the row acknowledged; expected all but those that end the session", lost, len(cuts))
	}
}

// A commit whose wait was cancelled is acknowledged when the standby has it, and not before.
func TestCancelledWaitIsHeld(t *testing.T) {
	p := thePair(t)
	g := p.group(t, func(c *Config) { c.GateHold = 2 * time.Minute })
	for _, c := range cuts {
		t.Run(c.name, func(t *testing.T) {
			held := g.srv.Stats().Held
			heard := c.attempt(t, p, g)
			if !c.ends {
				waitFor(t, "the answer is held", func() bool { return g.srv.Stats().Held > held })
			}
			select {
			case err := <-heard:
				if !c.ends || err == nil {
					t.Fatalf("while the standby was frozen: %v", err)
				}
				return
			case <-time.After(100 * time.Millisecond):
			}
			p.relay.freeze(false)
			if err := <-heard; err != nil && !c.ends {
				t.Errorf("when the standby had it: %v", err)
			}
			if !p.confirmed(t) {
				t.Error("acknowledged, and not on the standby")
			}
		})
	}
}

// A commit that cannot be confirmed in time is reported as unknown, and the connection ends.
func TestUnconfirmedIsUnknown(t *testing.T) {
	p := thePair(t)
	g := p.group(t, func(c *Config) { c.GateHold = 300 * time.Millisecond })
	for _, c := range cuts {
		t.Run(c.name, func(t *testing.T) {
			select {
			case err := <-c.attempt(t, p, g):
				if c.ends && err != nil {
					return
				}
				if sqlstate(err) != "08007" {
					t.Errorf("heard: %v", err)
				}
			case <-time.After(60 * time.Second):
				t.Error("no answer")
			}
			p.relay.freeze(false)
		})
	}
	if st := g.srv.Stats(); st.Unconfirmed == 0 || st.Cut["unconfirmed"] != st.Unconfirmed {
		t.Errorf("stats %+v", st)
	}
}

// COMMIT_BARRIER = STRICT also covers a lowered synchronous_commit.
func TestStrictBarrier(t *testing.T) {
	p := thePair(t)
	var strict atomic.Bool
	strict.Store(true)
	g := p.group(t, func(c *Config) { c.GateHold, c.Strict = 500*time.Millisecond, strict.Load })
	patient := p.group(t, func(c *Config) { c.GateHold, c.Strict = time.Minute, strict.Load })
	p.reset(t)
	p.primary.sql(t, `create or replace function hush() returns text language sql as $$ select set_config('client_min' || '_messages', 'error', false) $$`)
	out := cut{prepare: []string{"select hush()"}, sql: insert, do: superuserCancel}
	if err := <-out.attempt(t, p, g); sqlstate(err) != "08007" {
		t.Errorf("out of sight: %v", err)
	}
	p.reset(t)
	conn := g.mustDial(g.rw, "user=postgres synchronous_commit=local")
	sqlOn(t, conn, "begin", insert)
	p.relay.freeze(true)
	if _, err := conn.Exec(t.Context(), "insert into acks values (2)"); err != nil {
		t.Errorf("no commit, nothing to confirm: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "commit"); sqlstate(err) != "08007" {
		t.Errorf("synchronous_commit=local under STRICT: %v", err)
	}
	p.reset(t)
	conn = patient.mustDial(patient.rw, "user=postgres synchronous_commit=on")
	for i := range 20 {
		sqlOn(t, conn, fmt.Sprintf("insert into acks values (%d)", i))
		if !p.confirmed(t) {
			t.Fatal("acknowledged before the standby said so")
		}
	}
	strict.Store(false)
	p.reset(t)
	if err := <-out.attempt(t, p, g); sqlstate(err) != "08007" {
		t.Errorf("warnings switched off by a function, without STRICT: %v", err)
	}
}

// Where the log cannot be relied on, a read waits for what it may have committed, longer than a doubtful answer would
// be held. A cancel request ends that, and a command that commits nothing does not wait.
func TestReadsWaitWithoutTheLog(t *testing.T) {
	p := thePair(t)
	g := p.group(t, func(c *Config) { c.GateHold, c.Log = 200*time.Millisecond, nil })
	p.reset(t)
	conn := g.mustDial(g.rw, "user=postgres synchronous_commit=on")
	read := func() <-chan error {
		heard := make(chan error, 1)
		go func() {
			_, err := conn.Exec(context.Background(), "select 1", pgx.QueryExecModeSimpleProtocol)
			heard <- err
		}()
		return heard
	}
	p.relay.freeze(true)
	p.primary.sql(t, "insert into acks values (100)") // by a session that does not wait
	sqlOn(t, conn, "set work_mem = '1MB'")
	heard := read()
	select {
	case err := <-heard:
		t.Fatalf("while the standby was frozen: %v", err)
	case <-time.After(700 * time.Millisecond):
	}
	p.relay.freeze(false)
	if err := <-heard; err != nil {
		t.Error(err)
	}
	p.relay.freeze(true)
	p.primary.sql(t, "insert into acks values (101)")
	held := g.srv.Stats().Held
	heard = read()
	waitFor(t, "the read is held", func() bool { return g.srv.Stats().Held > held })
	protocolCancel(t, p, conn)
	if err := <-heard; sqlstate(err) != "08007" {
		t.Errorf("cancelled: %v", err)
	}
}

// Cancelling a running statement is as quick as ever, also while the standby is frozen: only a doubtful commit is
// held.
func TestCancelOfARunningQueryIsNotHeld(t *testing.T) {
	p := thePair(t)
	g := p.group(t, nil)
	p.reset(t)
	conn := g.mustDial(g.rw, "user=postgres synchronous_commit=on client_min_messages=error")
	p.relay.freeze(true)
	var worst time.Duration
	for _, sql := range []string{"select pg_sleep(60)", "insert into acks select 7 from pg_sleep(60)", "do $$ begin perform pg_sleep(60); end $$"} {
		heard := make(chan error, 1)
		go func() { _, err := conn.Exec(context.Background(), sql); heard <- err }()
		p.primary.sleeping(t, sql)
		began := time.Now()
		protocolCancel(t, p, conn)
		if err := <-heard; sqlstate(err) != "57014" {
			t.Errorf("%s: %v", sql, err)
		}
		worst = max(worst, time.Since(began))
	}
	if worst > time.Second { // 100 ms on a machine of one's own
		t.Errorf("cancelled after %v", worst)
	}
	t.Logf("cancelled within %v", worst)
	// in a transaction block nothing commits, so nothing is held
	p.relay.freeze(false)
	sqlOn(t, conn, "begin")
	p.relay.freeze(true)
	protocolCancel(t, p, conn)
	sqlOn(t, conn, "insert into acks values (8)")
}

// The need for confirmation ends: a session whose cancel request had no effect answers without queries again.
func TestSuspicionEnds(t *testing.T) {
	p := thePair(t)
	g := p.group(t, nil)
	p.reset(t)
	conn := g.mustDial(g.rw, "user=postgres synchronous_commit=on")
	protocolCancel(t, p, conn)
	sqlOn(t, conn, "insert into acks values (1)") // held for the moment of one question
	if held := g.srv.Stats().Held; held != 1 {
		t.Errorf("held %d", held)
	}
	sqlOn(t, conn, "insert into acks values (2)", "set client_min_messages = warning", "insert into acks values (3)")
	if held := g.srv.Stats().Held; held != 1 {
		t.Errorf("held %d", held)
	}
}

// The session runs here and the client is at another node: this node holds the answer.
func TestCancelledWaitThroughAnotherNode(t *testing.T) {
	p := thePair(t)
	node := p.group(t, func(c *Config) { c.GateHold = 2 * time.Minute })
	edge := newGroup(t, trusting)
	edge.remote["a"] = node.srv
	edge.servers = node.servers
	routes := fullRoutes(1)
	routes.Targets[0].Local = false
	edge.publish(routes)
	for _, c := range cuts[:5] {
		heard := c.attempt(t, p, edge)
		select {
		case err := <-heard:
			t.Fatalf("%s: while the standby was frozen: %v", c.name, err)
		case <-time.After(300 * time.Millisecond):
		}
		p.relay.freeze(false)
		if err := <-heard; err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if held := node.srv.Stats().Held; held < 5 {
		t.Errorf("held %d", held)
	}
}

// A pipeline of several transactions is cancelled during the wait of one of them.
func TestCancelledPipeline(t *testing.T) {
	p := thePair(t)
	g := p.group(t, func(c *Config) { c.GateHold = 300 * time.Millisecond })
	p.reset(t)
	conn := g.mustDial(g.rw, "user=postgres synchronous_commit=on")
	sqlOn(t, conn, "select 1")
	p.relay.freeze(true)
	pipe := conn.PgConn().StartPipeline(t.Context())
	for i := range 3 {
		pipe.SendQueryParams(fmt.Sprintf("insert into acks values (%d)", i), nil, nil, nil, nil)
		if err := pipe.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	p.inSyncRep(t, conn.PgConn().PID())
	protocolCancel(t, p, conn)
	acknowledged := 0
	for {
		r, err := pipe.GetResults()
		if err != nil {
			break
		}
		if _, ok := r.(*pgconn.PipelineSync); ok {
			acknowledged++
		}
		if rr, ok := r.(*pgconn.ResultReader); ok {
			if _, err := rr.Close(); err != nil {
				break
			}
		}
		if r == nil {
			break
		}
	}
	if acknowledged != 0 {
		t.Errorf("%d transactions acknowledged with a frozen standby", acknowledged)
	}
}

// A COMMIT in the middle of a batch is not acknowledged either, though its answer arrives long before the end: a long
// answer follows it.
func TestCancelledCommitWithinABatch(t *testing.T) {
	p := thePair(t)
	g := p.group(t, func(c *Config) { c.GateHold = 300 * time.Millisecond })
	p.reset(t)
	conn := g.mustDial(g.rw, "user=postgres synchronous_commit=on")
	sqlOn(t, conn, "select 1")
	p.relay.freeze(true)
	pipe := conn.PgConn().StartPipeline(t.Context())
	for _, sql := range []string{"begin", "insert into acks values (1)", "commit", "select repeat('x', 1000000)"} {
		pipe.SendQueryParams(sql, nil, nil, nil, nil)
	}
	must(t, pipe.Sync())
	p.inSyncRep(t, conn.PgConn().PID())
	protocolCancel(t, p, conn)
	for {
		r, err := pipe.GetResults()
		if err != nil || r == nil {
			return
		}
		if rr, ok := r.(*pgconn.ResultReader); ok {
			if tag, err := rr.Close(); err != nil {
				return
			} else if tag.String() == "COMMIT" {
				t.Fatal("the COMMIT is acknowledged with a frozen standby")
			}
		}
	}
}

func TestEndOfSessionEndsTheHold(t *testing.T) {
	p := thePair(t)
	g := p.group(t, func(c *Config) { c.GateHold = time.Minute })
	heard := cuts[0].attempt(t, p, g)
	waitFor(t, "the answer is held", func() bool { return g.srv.Stats().Held == 1 })
	g.srv.CloseEpoch(2, "the group has a new primary")
	select {
	case err := <-heard:
		if sqlstate(err) != "08007" {
			t.Errorf("heard: %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Error("still held")
	}
}

// A read with coterie.reads = durable shows nothing that a failover could undo, on the primary and on a secondary.
func TestDurableReads(t *testing.T) {
	p := thePair(t)
	g := p.group(t, func(c *Config) { c.GateHold = 300 * time.Millisecond })
	p.reset(t)
	plain, durable := g.mustDial(g.rw, "user=postgres"), g.mustDial(g.rw, "user=postgres coterie.reads=durable")
	value[int64](t, durable, "select count(*) from acks")
	p.relay.freeze(true)
	p.primary.sql(t, "insert into acks values (1)") // does not wait
	if n := value[int64](t, plain, "select count(*) from acks"); n != 1 {
		t.Errorf("%d rows", n)
	}
	heard := make(chan error, 1)
	go func() { _, err := durable.Exec(context.Background(), "select count(*) from acks"); heard <- err }()
	select {
	case err := <-heard:
		t.Fatalf("while the standby was frozen: %v", err)
	case <-time.After(800 * time.Millisecond):
	}
	p.relay.freeze(false)
	if err := <-heard; err != nil {
		t.Error(err)
	}
	// a secondary: the listener there asks the primary
	r := fullRoutes(1)
	r.Self, r.Primary, r.ReadList = "b", "a", [][]ag.ReplicaID{{"b"}}
	r.Targets = []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true, Readable: true}}
	g.servers["b"] = p.standby
	g.gate.Store(0)
	g.publish(r)
	reader := g.mustDial(g.ro, "user=postgres coterie.reads=durable")
	if at := value[string](t, reader, "show cluster_name"); at != "s" {
		t.Errorf("read on %s", at)
	}
	if held := g.srv.Stats().Held; held < 2 {
		t.Errorf("held %d", held)
	}
	for _, bad := range []string{"coterie.reads=confirmed", "coterie.reads=maybe"} {
		if _, err := g.dial(g.ro, "user=postgres "+bad); sqlstate(err) != "22023" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// With coterie.reads = confirmed an answer waits for a majority to confirm that this node still leads.
func TestConfirmedReads(t *testing.T) {
	var asked atomic.Int64
	leads := make(chan error)
	g := newGroup(t, func(c *Config) {
		c.Rules, c.GateHold = trustAll, time.Minute
		c.FlushLSN = func(context.Context) (ag.LSN, error) { return 0, nil }
		c.Durable = func(context.Context, ag.LSN) error { return nil }
		c.Confirm = func(ctx context.Context) error {
			asked.Add(1)
			select {
			case err := <-leads:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	g.gate.Store(openGate())
	conn := g.mustDial(g.rw, "user=postgres coterie.reads=confirmed")
	read := func() <-chan error {
		heard := make(chan error, 1)
		go func() {
			_, err := conn.Exec(context.Background(), "select 1", pgx.QueryExecModeSimpleProtocol)
			heard <- err
		}()
		return heard
	}
	heard := read()
	waitFor(t, "the quorum is asked", func() bool { return asked.Load() == 1 })
	select {
	case err := <-heard:
		t.Fatalf("before the quorum answered: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	leads <- nil
	if err := <-heard; err != nil {
		t.Error(err)
	}
	heard = read()
	leads <- ag.ErrNotLeading
	if err := <-heard; sqlstate(err) != "08007" {
		t.Errorf("another leads: %v", err)
	}
}

// While the log cannot be relied on, each answer that may have ended a commit is confirmed, and no session is in the
// kernel. When it can be relied on again, none is.
func TestWeakLogConfirmsAll(t *testing.T) {
	p := thePair(t)
	for _, path := range []string{PathLoop, PathGoroutines} {
		g := p.group(t, func(c *Config) {
			if c.offloadAfter = 1; path == PathGoroutines {
				c.Loops = -1
			}
		})
		log := g.srv.cfg.Log
		p.reset(t)
		conn := g.mustDial(g.rw, "user=postgres synchronous_commit=on")
		sqlOn(t, conn, "select 1", "insert into acks values (1)")
		if st := g.srv.Stats(); st.Held != 0 {
			t.Errorf("%s: %d answers were confirmed without need", path, st.Held)
		}
		silent := serverlog.Settings{Destination: []string{"stderr"}, MinMessages: []string{"error"}, Messages: []string{"C"}}
		log.Rely(silent, log.Ask())
		sqlOn(t, conn, "insert into acks values (2)", "begin", "insert into acks values (3)", "commit", "do $$ begin end $$", "set work_mem = '1MB'")
		if st := g.srv.Stats(); st.Held < 3 || log.Confirmed() < 3 {
			t.Errorf("%s: %d answers were confirmed, %d because of the log, want 3", path, st.Held, log.Confirmed())
		}
		for _, x := range g.srv.localSessions() {
			if x.work.Offloaded() {
				t.Errorf("%s: the kernel carries a session", path)
			}
		}
		silent.MinMessages = []string{"warning"}
		log.Rely(silent, log.Ask())
		sqlOn(t, conn, "select 1", "select 1")
		held := g.srv.Stats().Held
		sqlOn(t, conn, "insert into acks values (4)", "do $$ begin end $$")
		if now := g.srv.Stats().Held; now != held {
			t.Errorf("%s: %d answers were confirmed without need", path, now-held)
		}
	}
}

// Bytes that have not passed the gate are not passed on: the assertion ends the session.
func TestAnswerThatPassedNoGate(t *testing.T) {
	x := &session{gate: &gate.Reader{Config: gate.Config{Deadline: func() time.Duration { return 0 }}}}
	pass := func() error {
		_, _, err := x.advance(&passage.Chunk{})
		return err
	}
	if err := assert.Guard(pass); !assert.Violated(err) {
		t.Errorf("passed on: %v", err)
	}
	if _, err := x.gate.Look(); err != nil {
		t.Fatal(err)
	}
	if err := assert.Guard(pass); err != nil {
		t.Error(err)
	}
}
