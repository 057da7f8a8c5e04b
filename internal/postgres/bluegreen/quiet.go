package bluegreen

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Carried returns an error if blue has what logical replication does not carry, and what is no definition.
func (p *Pair) Carried(ctx context.Context, databases []string) error {
	for _, d := range databases {
		err := in(ctx, p.Blue, d, func(c *pgx.Conn) error {
			var large, prepared int
			err := c.QueryRow(ctx, "SELECT (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_prepared_xacts)").Scan(&large, &prepared)
			if err == nil && large+prepared > 0 {
				err = fmt.Errorf("there are %d large objects and %d prepared transactions, which are not replicated; remove the large objects (lo_unlink, vacuumlo), and end the transactions", large, prepared)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("look for what is not replicated: %w", err)
		}
	}
	return nil
}

// quiet waits until no transaction with a number runs, and returns the next number.
func quiet(ctx context.Context, c *pgx.Conn) (next uint64, err error) {
	for {
		var least uint64
		err := c.QueryRow(ctx, "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s").Scan(&least, &next)
		if err != nil || least == next {
			return next, err
		}
		if retry.Sleep(ctx, 5*time.Millisecond) != nil {
			return 0, fmt.Errorf("transaction %d still writes", least)
		}
	}
}

// others ends the workers of autovacuum and all sessions that are not of an agent, and waits until they have ended.
const others = `SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity
	WHERE backend_type = 'autovacuum worker' OR backend_type = 'client backend' AND (application_name = $1 AND usename = session_user) IS NOT TRUE AND pid <> pg_backend_pid()`
