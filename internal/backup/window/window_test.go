package window

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// world is a server with the service of its node.
type world struct {
	*Service
	server *pgtest.Server
	leads  atomic.Bool
}

func open(t *testing.T, silence time.Duration) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s, err := pgtest.New()
	if errors.Is(err, pgtest.ErrNoServer) {
		t.Skip("NOT RUN: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Remove() })
	w := &world{server: s}
	w.leads.Store(true)
	w.Service = New(Config{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, s.DSN()) }, Leads: w.leads.Load, Silence: silence, Log: slog.New(slog.DiscardHandler),
	})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = w.Run(ctx); close(ended) }()
	t.Cleanup(func() { end(); <-ended })
	return w
}

// do does a step that succeeds.
func (w *world) do(t *testing.T, member string, step backup.Step, id string) backup.StepAnswer {
	t.Helper()
	a, err := w.Do(t.Context(), member, backup.StepRequest{Step: step, Window: id})
	if err != nil {
		t.Fatalf("%s of %s: %v", step, member, err)
	}
	return a
}

// locked waits until the server has that number of backups' locks.
func (w *world) locked(t *testing.T, want int) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), w.server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := -1
	err = retry.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		err := c.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&n)
		return n == want, err
	})
	if err != nil {
		t.Fatalf("%d locks, want %d: %v", n, want, err)
	}
}

// TestWindows takes a window through its steps, and keeps another member out of it.
func TestWindows(t *testing.T) {
	w := open(t, time.Minute)
	if a := w.do(t, "n2", backup.Look, ""); a.Timeline != 1 {
		t.Errorf("%+v", a)
	}
	id := w.do(t, "n2", backup.Open, "").Window
	if a := w.do(t, "n2", backup.Lock, id); !a.Locked {
		t.Errorf("%+v", a)
	}
	if a := w.do(t, "n2", backup.Insert, id); !strings.HasPrefix(a.Segment, "00000001") {
		t.Errorf("%+v", a)
	}
	begun := w.do(t, "n2", backup.Start, id)
	if begun.LSN == "" || len(begun.Segment) != 24 {
		t.Errorf("%+v", begun)
	}
	if _, err := w.Do(t.Context(), "n3", backup.StepRequest{Step: backup.Open}); err == nil || !strings.Contains(err.Error(), "a backup is under way on n2") {
		t.Errorf("a second window: %v", err)
	}
	for _, step := range []backup.Step{backup.Stop, backup.Insert, backup.Close, backup.Keep} {
		if a, err := w.Do(t.Context(), "n3", backup.StepRequest{Step: step, Window: id}); err == nil && !a.Gone && step != backup.Close {
			t.Errorf("%s in the window of another one: %+v", step, a)
		}
	}
	w.do(t, "n2", backup.Mark, id)
	w.do(t, "n2", backup.Switch, id)
	if a := w.do(t, "n2", backup.Keep, id); a.Gone {
		t.Errorf("%+v", a)
	}
	a := w.do(t, "n2", backup.Stop, id)
	if a.LSN == "" || !strings.Contains(a.Label, "START WAL LOCATION: "+begun.LSN) || !strings.Contains(a.Label, "BACKUP FROM: primary") {
		t.Errorf("%+v", a)
	}
	w.do(t, "n2", backup.Close, id)
	w.locked(t, 0)
	w.do(t, "n3", backup.Open, "")
}

// TestWindowsEnd holds that a window ends with the silence of its member, with the leadership, and when the member
// begins another one; the server is out of backup mode then.
func TestWindowsEnd(t *testing.T) {
	w := open(t, 400*time.Millisecond)
	begin := func() string {
		id := w.do(t, "n2", backup.Open, "").Window
		w.do(t, "n2", backup.Lock, id)
		w.do(t, "n2", backup.Start, id)
		w.locked(t, 1)
		return id
	}
	id := begin()
	w.locked(t, 0)
	if a := w.do(t, "n2", backup.Keep, id); !a.Gone {
		t.Errorf("after a silence: %+v", a)
	}
	if _, err := w.Do(t.Context(), "n2", backup.StepRequest{Step: backup.Stop, Window: id}); err == nil {
		t.Error("a backup ended that the primary had given up")
	}
	first := begin()
	second := begin()
	if a := w.do(t, "n2", backup.Keep, first); !a.Gone || first == second {
		t.Errorf("the window before: %+v", a)
	}
	w.leads.Store(false)
	w.locked(t, 0)
	if a := w.do(t, "n2", backup.Keep, second); !a.Gone {
		t.Errorf("at a node that leads no more: %+v", a)
	}
	if _, err := w.Do(t.Context(), "n2", backup.StepRequest{Step: backup.Open}); err == nil || !strings.Contains(err.Error(), "not the primary") {
		t.Errorf("a window of a node that does not lead: %v", err)
	}
}

// TestStepsThatAreRefused holds that a word that is no step does nothing, and neither does a step without a window or
// out of order.
func TestStepsThatAreRefused(t *testing.T) {
	w := open(t, time.Minute)
	id := w.do(t, "n2", backup.Open, "").Window
	for _, r := range []backup.StepRequest{
		{Step: "checkpoint", Window: id},
		{Step: "start; DROP TABLE x", Window: id},
		{Step: backup.Step("SELECT pg_switch_wal()"), Window: id},
		{Step: backup.Start},
		{Step: backup.Start, Window: "x' OR ''='"},
		{Step: "", Window: id},
		{Step: backup.Stop, Window: id}, // the last: a step that fails ends the window
	} {
		if a, err := w.Do(t.Context(), "n2", r); err == nil {
			t.Errorf("%+v: %+v", r, a)
		}
	}
	if a := w.do(t, "n2", backup.Keep, id); !a.Gone {
		t.Errorf("%+v", a)
	}
	w.locked(t, 0)
}
