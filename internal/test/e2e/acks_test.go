package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndCancelledWait has commits whose wait for the secondaries is cut short on a primary whose walsenders are
// stopped, and then kills that primary. Through the listener none of them may be acknowledged. A session on the
// server's private socket, which no listener sees, gets an acknowledgement and loses its row: the control that shows
// what would happen.
func TestEndToEndCancelledWait(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	sql(t, g.ReadWrite(), "create table cut (id text primary key)")
	was := g.ready(t)
	old := *was.Primary
	edge := g.DSN(secondaries(was)[0]) // a client that outlives the primary's node
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	type commit struct {
		id    string
		conn  *pgx.Conn
		heard chan error
	}
	var commits []*commit
	begin := func(id, dsn, settings string) *commit {
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		if settings != "" {
			cfg.RuntimeParams["client_min_messages"] = settings
		}
		c := &commit{id: id, heard: make(chan error, 1)}
		if c.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		commits = append(commits, c)
		return c
	}
	insert := func(c *commit) {
		go func() {
			_, err := c.conn.Exec(ctx, "insert into cut values ('"+c.id+"')", pgx.QueryExecModeSimpleProtocol)
			c.heard <- err
		}()
	}
	begin("cancelled here", g.DSN(old), "")
	begin("cancelled elsewhere", edge, "")
	begin("cancelled by a superuser", edge, "")
	begin("cancelled by a superuser in silence", edge, "error")
	idle, err := pgx.Connect(ctx, edge)
	if err != nil {
		t.Fatal(err)
	}
	open, err := pgx.Connect(ctx, edge)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Exec(ctx, "begin; insert into cut values ('open')"); err != nil {
		t.Fatal(err)
	}

	for _, p := range g.walsenders(old) {
		signal(t, p, syscall.SIGSTOP)
	}
	for _, c := range commits {
		insert(c)
	}
	waiting := func(n int) {
		t.Helper()
		for {
			now := g.askPrivately(t, old, "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query like 'insert into cut%'")
			if now == strconv.Itoa(n) {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	waiting(len(commits))
	for _, c := range commits {
		var err error
		if strings.Contains(c.id, "superuser") {
			// Beside the listener, which holds each answer that is in flight then until the members have the commit.
			err = g.privately(t, old, fmt.Sprintf("select pg_cancel_backend(%d)", c.conn.PgConn().PID()))
		} else {
			err = c.conn.PgConn().CancelRequest(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	waiting(0) // PostgreSQL calls every one of them done
	err = g.privately(t, old, "set statement_timeout = '300ms'", "do $$ begin insert into cut values ('control'); commit; end $$")
	if err != nil {
		t.Errorf("the control was not told that it is done: %v", err)
	}
	if err := g.Kill(old, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.newPrimary(t, was)
	survived := sql(t, g.ReadWrite(), "select coalesce(string_agg(id, ', '), '') from cut")
	if strings.Contains(survived, "control") {
		t.Error("the control's row is there: this test shows nothing")
	}
	for _, c := range commits {
		err := <-c.heard
		if err == nil && !strings.Contains(survived, c.id) {
			t.Errorf("%s: acknowledged and lost", c.id)
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code != "08007" {
			t.Errorf("%s: %v", c.id, err)
		}
		t.Logf("%s: %v", c.id, err)
		_ = c.conn.Close(ctx)
	}
	for want, conn := range map[string]*pgx.Conn{"57P01": idle, "40001": open} {
		var pg *pgconn.PgError
		if _, err := conn.Exec(ctx, "commit"); !errors.As(err, &pg) || pg.Code != want {
			t.Errorf("%v instead of %s", err, want)
		}
	}
	if strings.Contains(survived, "open") {
		t.Error("40001, and the row is there")
	}
	t.Logf("survived: %q", survived)
	for _, how := range []string{"durable", "confirmed"} {
		cfg, err := pgx.ParseConfig(g.ReadWrite())
		if err != nil {
			t.Fatal(err)
		}
		cfg.RuntimeParams["coterie.reads"] = how
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i := range 20 {
			if _, err := conn.Exec(ctx, "select $1::int", i); err != nil {
				t.Fatalf("coterie.reads = %s: %v", how, err)
			}
		}
		t.Logf("coterie.reads = %s: %v per read", how, time.Since(began)/20)
		_ = conn.Close(ctx)
	}
	if err := g.Start(old); err != nil {
		t.Fatal(err)
	}
	g.ready(t)
	g.down(t)
}

// privately runs statements on a node's private socket, as its superuser, without a listener between.
func (g *group) privately(t *testing.T, node string, statements ...string) error {
	t.Helper()
	l, err := config.NewLayout(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, fmt.Sprintf("host=%s user=postgres dbname=postgres sslmode=disable", l.Sockets()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}
