package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// TestSlowReplay holds that CatchUp returns when all is replayed that can be, and not before, and that a server whose
// promotion waits for a long replay is observed meanwhile. A reader holds replay up in the place of a record that takes
// long.
func TestSlowReplay(t *testing.T) {
	ctx := t.Context()
	p := newPrimary(t, true)
	p.sql("CREATE TABLE t (v int)", "INSERT INTO t VALUES (1)")
	if err := p.EnsureSlots(ctx, []string{"cot_n2"}, nil); err != nil {
		t.Fatal(err)
	}
	s := p.clone("cot_n2")
	s.start(false)
	s.streams(p)
	within := func(d time.Duration, f func(context.Context) error) error {
		c, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return f(c)
	}

	target := s.receivesOnly(p, "INSERT INTO t VALUES (2)")
	if err := within(10*time.Second, func(c context.Context) error { return s.CatchUp(c, target) }); err != nil || s.observe().Replay < target {
		t.Errorf("replay was paused: %v, replayed %s of %s", err, s.observe().Replay, target)
	}
	if err := within(10*time.Second, func(c context.Context) error { return s.CatchUp(c, target+1<<30) }); err != nil {
		t.Errorf("waits for what the server does not have: %v", err)
	}

	s.sql("ALTER SYSTEM SET max_standby_streaming_delay = '-1'", "ALTER SYSTEM SET max_standby_archive_delay = '-1'", "SELECT pg_reload_conf()")
	reader, err := s.server.Connect(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(reader)
	holdUp(t, p, s, reader)
	target = p.observe().Flush
	if err := within(1500*time.Millisecond, func(c context.Context) error { return s.CatchUp(c, target) }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("replay is held up: %v", err)
	}
	promoted := make(chan error, 1)
	go func() {
		_, _, err := s.Promote(ctx, 2, time.Minute)
		promoted <- err
	}()
	_ = retry.Sleep(ctx, 500*time.Millisecond) // it is under way
	for range 3 {
		if o, err := s.Observe(ctx); err != nil || !o.InRecovery || o.Replay >= target {
			t.Errorf("observed while the promotion waits for replay: %+v, %v", o, err)
		}
	}
	session.Close(reader)
	if err := <-promoted; err != nil {
		t.Error(err)
	}
	if err := within(time.Second, func(c context.Context) error { return s.CatchUp(c, target+1<<30) }); err != nil {
		t.Errorf("no recovery is under way: %v", err)
	}
}

// holdUp has a reader of the secondary hold up its replay.
func holdUp(t *testing.T, p, s *server, reader *pgx.Conn) {
	t.Helper()
	if _, err := reader.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM public.t"); err != nil {
		t.Fatal(err)
	}
	p.sql("DELETE FROM t WHERE v = 1", "VACUUM t", "INSERT INTO t VALUES (3)")
	s.waitFor("replay to be held up", func(context.Context) error {
		if event := s.value("SELECT coalesce(max(wait_event), '') FROM pg_stat_activity WHERE backend_type = 'startup'"); !strings.HasPrefix(event, "RecoveryConflict") {
			return errors.New("it waits for " + event)
		}
		return nil
	})
}
