package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// The settings that bound how long a local reader may delay replay.
var conflictSettings = []string{"max_standby_streaming_delay", "max_standby_archive_delay"}

// conflictBudget bounds how long PauseConflicts looks for sessions that delay replay.
const conflictBudget = 2 * time.Second

// PauseConflicts gives replay precedence over local sessions until RestoreConflicts. New conflicts end the session at
// once, and sessions that delay replay now are ended: one long read would delay a promotion without bound
// (docs/internals/postgresql.md, "Promotion"). The administrator's own values are kept in StateDir.
func (i *Instance) PauseConflicts(ctx context.Context) error {
	if err := i.rememberConflicts(); err != nil {
		return fmt.Errorf("let replay win: %w", err)
	}
	for _, name := range conflictSettings {
		if err := i.alterSystem(ctx, name, "0"); err != nil {
			return fmt.Errorf("let replay win: %w", err)
		}
	}
	if err := i.exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return fmt.Errorf("let replay win: %w", err)
	}
	if err := i.endBlockers(ctx); err != nil {
		return fmt.Errorf("let replay win: %w", err)
	}
	return nil
}

// RestoreConflicts restores the administrator's values. Without an earlier PauseConflicts it does nothing.
func (i *Instance) RestoreConflicts(ctx context.Context) error {
	content, err := os.ReadFile(i.conflictsFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	own := map[string]*string{}
	if err == nil {
		err = json.Unmarshal(content, &own)
	}
	if err != nil {
		return fmt.Errorf("restore max_standby_*_delay: %w", err)
	}
	for _, name := range conflictSettings {
		if v := own[name]; v != nil {
			err = i.alterSystem(ctx, name, *v)
		} else {
			err = i.exec(ctx, "ALTER SYSTEM RESET "+name)
		}
		if err != nil {
			return fmt.Errorf("restore %s: %w", name, err)
		}
	}
	if err := i.exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return fmt.Errorf("restore max_standby_*_delay: %w", err)
	}
	return durable.Remove(i.conflictsFile())
}

// OwnConflicts returns the administrator's values of the settings that PauseConflicts has changed, nil for those that
// had none, for WriteAutoConf. It is empty unless RestoreConflicts is still to come.
func (i *Instance) OwnConflicts() (map[string]*string, error) {
	own := map[string]*string{}
	content, err := os.ReadFile(i.conflictsFile())
	if errors.Is(err, os.ErrNotExist) {
		return own, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &own)
	}
	if err != nil {
		return nil, fmt.Errorf("read the administrator's max_standby_*_delay: %w", err)
	}
	for _, name := range conflictSettings {
		if _, had := own[name]; !had {
			own[name] = nil
		}
	}
	return own, nil
}

// ForgetConflicts forgets the values of OwnConflicts once they are in postgresql.auto.conf.
func (i *Instance) ForgetConflicts() error { return durable.Remove(i.conflictsFile()) }

func (i *Instance) conflictsFile() string {
	return filepath.Join(i.Config().StateDir, "conflicts.json")
}

// rememberConflicts saves the settings' values in postgresql.auto.conf. A file that exists already still holds the
// right values.
func (i *Instance) rememberConflicts() error {
	if exists(i.conflictsFile()) {
		return nil
	}
	content, err := os.ReadFile(i.autoConf())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	own := map[string]*string{}
	for _, name := range conflictSettings {
		if v, ok := settings.AutoConfValue(string(content), name); ok {
			own[name] = &v
		}
	}
	b, err := json.Marshal(own)
	if err != nil {
		return err
	}
	return durable.Replace(i.conflictsFile(), b, 0o600)
}

// The startup process reports what kind of conflict it waits for, not always with which session. A snapshot, tablespace
// or buffer-pin conflict is with a session that holds a snapshot; a lock conflict is with those that block it.
const blockersQuery = `
SELECT b.pid, coalesce(b.usename::text, ''), coalesce(b.datname::text, '')
FROM pg_stat_activity s JOIN pg_stat_activity b ON b.backend_type = 'client backend' AND (b.application_name = $1 AND b.usename = session_user) IS NOT TRUE
WHERE s.backend_type = 'startup'
  AND (s.wait_event LIKE 'RecoveryConflict%' AND b.backend_xmin IS NOT NULL
    OR s.wait_event_type = 'BufferPin' AND b.state <> 'idle'
    OR s.wait_event_type = 'Lock' AND b.pid = ANY (pg_blocking_pids(s.pid)))`

// endBlockers ends the sessions that delay replay, until three looks in a row find none.
func (i *Instance) endBlockers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, conflictBudget)
	defer cancel()
	for quiet := 0; quiet < 3; quiet++ {
		n, err := i.endBlockersOnce(ctx)
		if err != nil {
			return err
		}
		if n > 0 {
			quiet = -1
		}
		if err := retry.Sleep(ctx, 2*pollInterval); err != nil {
			return fmt.Errorf("sessions still hold up replay: %w", err)
		}
	}
	return nil
}

func (i *Instance) endBlockersOnce(ctx context.Context) (n int, err error) {
	err = i.main.Do(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, blockersQuery, session.Name)
		if err != nil {
			return err
		}
		type blocker struct {
			PID            int
			User, Database string
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[blocker])
		if err != nil {
			return err
		}
		n = len(found)
		for _, b := range found {
			i.log.Warn("ended a session that held up replay", "pid", b.PID, "user", b.User, "database", b.Database)
			if _, err := c.Exec(ctx, "SELECT pg_terminate_backend($1)", b.PID); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}

// The query leaves out PostgreSQL's own processes, by backend_type, and those that end when the server stops. The rest
// are workers of extensions and sessions in the middle of a transaction.
const writersQuery = `
SELECT pid, coalesce(backend_type, ''), coalesce(usename::text, ''), coalesce(datname::text, '')
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND (application_name = $1 AND usename = session_user) IS NOT TRUE
  AND (backend_type = 'client backend' AND state <> 'idle'
    OR backend_type NOT IN ('client backend', 'walsender', 'walreceiver', 'walwriter', 'checkpointer', 'background writer', 'startup',
       'archiver', 'logger', 'autovacuum launcher', 'autovacuum worker', 'logical replication launcher', 'slotsync worker', 'walsummarizer',
       'wal summarizer', 'io worker', 'standalone backend', 'parallel worker', 'stats collector'))`

// EndWriters ends background workers of extensions and users, and sessions that are not idle, and waits until they have
// ended. One that is started meanwhile ends with the server. A session whose commit waits for a secondary is ended too:
// its client is not told the outcome.
func (i *Instance) EndWriters(ctx context.Context) error {
	type writer struct {
		PID                  int
		Type, User, Database string
	}
	var first []int // those found at the first look; nil before it
	for {
		var left []writer
		err := i.main.Do(ctx, func(c *pgx.Conn) error {
			rows, err := c.Query(ctx, writersQuery, session.Name)
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
		if err := retry.Sleep(ctx, pollInterval); err != nil {
			return fmt.Errorf("%s of user %q in database %q (process %d) does not end: %w", left[0].Type, left[0].User, left[0].Database, left[0].PID, err)
		}
	}
}

// EndWalsenders ends every walsender of a member, whatever its epoch and receiver.
func (i *Instance) EndWalsenders(ctx context.Context, member string) error {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	o, err := i.Observe(ctx)
	if err != nil {
		return fmt.Errorf("end the walsenders of %s: %w", member, err)
	}
	err = i.main.Do(ctx, func(c *pgx.Conn) error {
		for _, w := range o.Replication {
			if m, _, ok := settings.ParseApplication(w.Application); !ok || string(m) != member {
				continue
			}
			i.log.Warn("ended a walsender", "member", member, "application_name", w.Application, "pid", w.PID, "user", w.User, "address", w.Address, "state", w.State, "flushed", w.Flush.String())
			if _, err := c.Exec(ctx, "SELECT pg_terminate_backend($1)", w.PID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("end the walsenders of %s: %w", member, err)
	}
	return nil
}
