package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Sessions that wait for a lock are an illness only when they are all there can be, and none of them can go on.
func TestEverySessionIsBlocked(t *testing.T) {
	p := newPrimary(t, false)
	p.Config().Extra["max_connections"] = "8"
	p.start(true)
	ctx := t.Context()
	open := func() *pgx.Conn {
		c, err := p.connect(ctx, func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = "app" })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		return c
	}
	well := func(what string) {
		t.Helper()
		if err := p.Commit(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	holder := open()
	if _, err := holder.Exec(ctx, "CREATE TABLE public.hot (n int); INSERT INTO public.hot VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(ctx, "BEGIN; UPDATE public.hot SET n = 1"); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 8)
	wait := func() {
		c := open()
		go func() {
			_, err := c.Exec(ctx, "UPDATE public.hot SET n = n + 1")
			waits <- err
		}()
	}
	wait()
	wait()
	well("places are left")
	for n := 0; ; n++ { // the agent's own sessions take some
		var left bool
		err := p.fresh(ctx, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, `SELECT count(*) < current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&left)
		})
		if err != nil {
			t.Fatal(err)
		}
		if !left {
			break
		}
		wait()
	}
	p.waitFor("the blockade to be seen", func(context.Context) error {
		if err := p.Commit(ctx); !errors.Is(err, ErrBlocked) {
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
	if err := <-waits; err != nil {
		t.Error(err)
	}
	well("the lock is gone")
}
