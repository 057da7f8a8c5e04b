package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// What belongs to PostgreSQL itself, by backend_type, or ends by itself when the server stops. Everything else was started by
// somebody: an extension's worker, or a session that is in the middle of a transaction.
const writersQuery = `
SELECT pid, coalesce(backend_type, ''), coalesce(usename::text, ''), coalesce(datname::text, '')
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND application_name IS DISTINCT FROM $1
  AND (backend_type = 'client backend' AND state <> 'idle'
    OR backend_type NOT IN ('client backend', 'walsender', 'walreceiver', 'walwriter', 'checkpointer', 'background writer', 'startup',
       'archiver', 'logger', 'autovacuum launcher', 'autovacuum worker', 'logical replication launcher', 'slotsync worker', 'walsummarizer',
       'wal summarizer', 'io worker', 'standalone backend', 'parallel worker', 'stats collector'))`

// EndWriters ends background workers that extensions and users started, and sessions that are not idle, and waits until those are
// gone; one that is started anew meanwhile is left to the stop of the server. A session whose commit waits for a secondary is ended
// too: nobody is told of its outcome.
func (i *Instance) EndWriters(ctx context.Context) error {
	type writer struct {
		PID                  int
		Type, User, Database string
	}
	var first []int // those found at the first look; nil before it
	for {
		var left []writer
		err := i.main.do(ctx, func(c *pgx.Conn) error {
			rows, err := c.Query(ctx, writersQuery, SessionName)
			if err == nil {
				left, err = pgx.CollectRows(rows, pgx.RowToStructByPos[writer])
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("look for background workers: %w", err)
		}
		alive := 0
		for _, w := range left {
			switch {
			case first == nil:
				i.log.Info("ending what still writes", "pid", w.PID, "type", w.Type, "user", w.User, "database", w.Database)
				if err := i.exec(ctx, "SELECT pg_terminate_backend($1)", w.PID); err != nil {
					return fmt.Errorf("end %s %d: %w", w.Type, w.PID, err)
				}
				alive++
			case slices.Contains(first, w.PID):
				alive++
			}
		}
		if alive == 0 {
			return nil
		}
		if first == nil {
			first = make([]int, 0, len(left))
			for _, w := range left {
				first = append(first, w.PID)
			}
		}
		if err := sleep(ctx, pollInterval); err != nil {
			return fmt.Errorf("%s of user %q in database %q (process %d) does not end: %w", left[0].Type, left[0].User, left[0].Database, left[0].PID, err)
		}
	}
}
