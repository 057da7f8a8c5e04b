package postgres

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/diagnose"
)

// Sessions that wait for a lock are an illness only when they fill all places and none of them can continue.
func TestEverySessionIsBlocked(t *testing.T) {
	p := newPrimary(t, false)
	p.kill(syscall.SIGINT) // it is running already, with more places
	p.Config().Extra["max_connections"] = "16"
	p.start(true)
	ctx := t.Context()
	open := func() *pgx.Conn {
		t.Helper()
		c, err := p.server.Connect(ctx, func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = "app" })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	well := func(what string) {
		t.Helper()
		if err := p.Commit(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	holder := open()
	t.Cleanup(func() { _ = holder.Close(context.Background()) })
	if _, err := holder.Exec(ctx, "CREATE TABLE public.hot (n int); INSERT INTO public.hot VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(ctx, "BEGIN; UPDATE public.hot SET n = 1"); err != nil {
		t.Fatal(err)
	}
	var waiters sync.WaitGroup // each closes its own session: a connection has one user at a time
	t.Cleanup(waiters.Wait)
	wait := func() {
		c := open()
		waiters.Go(func() {
			defer func() { _ = c.Close(context.Background()) }()
			if _, err := c.Exec(ctx, "UPDATE public.hot SET n = n + 1"); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	wait()
	wait()
	well("places are left")
	left := func() (left bool) {
		err := p.server.Fresh(ctx, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, `SELECT count(*) < current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&left)
		})
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	p.waitFor("the blockade to be seen", func(context.Context) error {
		for left() { // also a place of the agent's own that has become free meanwhile
			wait()
		}
		if err := p.Commit(ctx); !errors.Is(err, diagnose.ErrBlocked) {
			return errors.Join(errors.New("not seen"), err)
		}
		return nil
	})
	p.waitFor("the work of the one that holds the lock to be seen", func(context.Context) error {
		if _, err := holder.Exec(ctx, "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		return p.Commit(ctx)
	})
	if _, err := holder.Exec(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	waiters.Wait()
	well("the lock is gone")
}
