package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
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

	at := func(l ag.LSN) ag.Position { return ag.Position{Timeline: 1, LSN: l} }
	target := s.receivesOnly(p, "INSERT INTO t VALUES (2)")
	if err := within(10*time.Second, func(c context.Context) error { return s.CatchUp(c, at(target), 2) }); err != nil || s.observe().Replay < target {
		t.Errorf("replay was paused: %v, replayed %s of %s", err, s.observe().Replay, target)
	}
	if err := within(10*time.Second, func(c context.Context) error { return s.CatchUp(c, at(target+1<<30), 2) }); err != nil {
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
	if err := within(1500*time.Millisecond, func(c context.Context) error { return s.CatchUp(c, at(target), 2) }); !errors.Is(err, context.DeadlineExceeded) {
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
	if err := within(time.Second, func(c context.Context) error { return s.CatchUp(c, at(target+1<<30), 2) }); err != nil {
		t.Errorf("no recovery is under way: %v", err)
	}
}

// TestCatchUpLooksSeldom holds that a replay of hours is looked at a few thousand times, and that its end is seen soon
// after it all the same.
func TestCatchUpLooksSeldom(t *testing.T) {
	looks := 0
	for since := time.Duration(0); since < 3*time.Hour; since += catchUpPause(since) {
		if pause := catchUpPause(since); pause < pollInterval || pause > max(pollInterval, since/10) || pause > time.Second {
			t.Fatalf("after %v the pause is %v", since, pause)
		}
		looks++
	}
	if looks > 12_000 {
		t.Errorf("%d looks in three hours", looks)
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

// TestSkippedTimelinesStay holds that a promotion which follows one that was given up makes only the marks that are not
// there: after an hour of such promotions, making all of them takes longer than a lease.
func TestSkippedTimelinesStay(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pg_wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	i := New(Config{PGData: dir})
	var was os.FileInfo
	for _, tli := range []ag.Timeline{5, 9, 3} {
		if err := i.skipTo(1, tli); err != nil {
			t.Fatal(err)
		}
		files, err := i.historyFiles()
		if _, beyond := files[tli]; err != nil || len(files) != int(tli)-2 || beyond {
			t.Errorf("before timeline %d these are skipped: %v, %v", tli, files, err)
		}
		now, err := os.Stat(i.historyPath(2))
		if err != nil || was != nil && !now.ModTime().Equal(was.ModTime()) {
			t.Errorf("timeline 2 was marked again for timeline %d: %v", tli, err)
		}
		was = now
	}
}

// TestPausedForSettings holds that a secondary says for which settings PostgreSQL has paused its replay, that it has
// them once it is started again, and that a pause that somebody asked for is no such.
func TestPausedForSettings(t *testing.T) {
	ctx := t.Context()
	p := newPrimary(t, false)
	p.sql("CREATE TABLE t (v int)")
	if err := p.EnsureSlots(ctx, []string{"cot_n2"}, nil); err != nil {
		t.Fatal(err)
	}
	s := p.clone("cot_n2")
	s.start(false)
	s.streams(p)
	s.receivesOnly(p, "INSERT INTO t VALUES (1)")
	if o := s.observe(); !o.ReplayPaused || o.Short != "" {
		t.Errorf("paused by a person: %+v", o)
	}
	s.sql("SELECT pg_wal_replay_resume()")
	s.streams(p)

	p.kill(syscall.SIGINT)
	p.Config().Extra["max_connections"] = "300"
	p.start(true)
	p.sql("INSERT INTO t VALUES (2)")
	s.waitFor("replay to be paused", func(context.Context) error {
		if o := s.observe(); !strings.HasPrefix(o.Short, "max_connections is ") || !strings.HasSuffix(o.Short, " here and 300 on the primary") {
			return fmt.Errorf("paused %v for %q", o.ReplayPaused, o.Short)
		}
		return nil
	})
	s.kill(syscall.SIGINT)
	s.start(false)
	s.streams(p)
	if o := s.observe(); o.ReplayPaused || o.Short != "" {
		t.Errorf("started again: %+v", o)
	}
}
