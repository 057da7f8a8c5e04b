package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// SetSync sets synchronous_standby_names in the running server, on a primary or in recovery. It returns when new
// sessions see the value, loaded by the second of two reloads (docs/internals/safety.md, "Proof of a setting"). Each
// walsender reads the setting in its own time: the caller proves on the streams that it is in force.
func (i *Instance) SetSync(ctx context.Context, s settings.Sync) error {
	if s.Num < 0 || s.Num > len(s.Names) {
		return fmt.Errorf("set synchronous_standby_names: %d of %d names", s.Num, len(s.Names))
	}
	if err := i.alterSystem(ctx, "synchronous_standby_names", s.String()); err != nil {
		return fmt.Errorf("set synchronous_standby_names: %w", err)
	}
	fault.Point("sync.altered") // the setting is in postgresql.auto.conf; no process has read it
	if err := i.reload(ctx); err != nil {
		return fmt.Errorf("set synchronous_standby_names: %w", err)
	}
	if err := i.reload(ctx); err != nil {
		return fmt.Errorf("set synchronous_standby_names: %w", err)
	}
	fault.Point("sync.reloaded") // PostgreSQL was told to read the setting; no new session has seen it
	got, source, err := i.SyncInForce(ctx)
	if err != nil {
		return err
	}
	if !got.Equal(s) {
		return fmt.Errorf("set synchronous_standby_names: %q was set, but %q from %s is in force; another program changes this setting, which belongs to the group: stop it", s, got, source)
	}
	return nil
}

// SyncInForce returns the synchronous_standby_names that a new session sees, and the file of that value.
func (i *Instance) SyncInForce(ctx context.Context) (s settings.Sync, sourcefile string, err error) {
	var value string
	err = i.server.Fresh(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT setting, coalesce(sourcefile, '') FROM pg_settings WHERE name = 'synchronous_standby_names'`).
			Scan(&value, &sourcefile)
	})
	if err == nil {
		s, err = settings.ParseSync(value)
	}
	if err != nil {
		return settings.Sync{}, "", fmt.Errorf("read synchronous_standby_names: %w", err)
	}
	return s, sourcefile, nil
}

// alterSystem writes one setting into postgresql.auto.conf. ALTER SYSTEM takes no parameters; both parts are quoted
// here.
func (i *Instance) alterSystem(ctx context.Context, name, value string) error {
	if strings.ContainsAny(value, "\x00\n\r") {
		return fmt.Errorf("%s: a value is one line", name)
	}
	return i.exec(ctx, "ALTER SYSTEM SET "+pgx.Identifier{name}.Sanitize()+" = "+settings.QuoteLiteral(value))
}

// reload makes the postmaster read its files again and waits until a new session has inherited the result. Without that
// wait one load could serve two requests.
func (i *Instance) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	before, err := i.loadTime(ctx)
	if err != nil {
		return err
	}
	if err := i.exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	for {
		now, err := i.loadTime(ctx)
		if err != nil {
			return err
		}
		if now.After(before) {
			return nil
		}
		if err := retry.Sleep(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the configuration to be loaded: %w", err)
		}
	}
}

// loadTime returns when the postmaster last read its configuration, as a new session inherits it.
func (i *Instance) loadTime(ctx context.Context) (t time.Time, err error) {
	err = i.server.Fresh(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&t) })
	return t, err
}

// probeInTemplate is how long a probe may wait in template1, where nobody can make a database meanwhile. The agent
// looks for less than that whether the probe waits, and then begins another one.
const probeInTemplate = 3 * time.Second

// ProbeCommit starts a tiny commit that waits for the synchronous secondaries, in a session of its own with that pid.
// The channel receives its outcome once: nil if they confirmed the commit. The session ends with ctx, or soon where it
// would be in the way of others. A commit whose wait was cut short is an error, whatever the server reported to the
// client.
func (i *Instance) ProbeCommit(ctx context.Context) (done <-chan error, pid int, err error) {
	var cancelled error // written and read by the session's own goroutine only, once connected
	var begun atomic.Pointer[pgconn.PgConn]
	conn, err := i.server.Brief(ctx, func(c *pgx.ConnConfig) {
		c.RuntimeParams["synchronous_commit"] = "on"
		c.OnNotice = func(from *pgconn.PgConn, n *pgconn.Notice) {
			if n.SeverityUnlocalized == "WARNING" && begun.Load() == from { // "canceling wait for synchronous replication", and none of the login's
				cancelled = errors.New(n.Message)
			}
		}
	})
	if err != nil {
		return nil, 0, fmt.Errorf("probe commit: %w", err)
	}
	begun.Store(conn.PgConn())
	end := func() {}
	if session.InTemplate(conn) {
		ctx, end = context.WithTimeout(ctx, probeInTemplate)
	}
	result := make(chan error, 1)
	go func() {
		defer end()
		defer session.Close(conn)
		_, err := conn.PgConn().Exec(ctx, "SELECT pg_logical_emit_message(true, 'coterie', 'probe')").ReadAll()
		if err == nil {
			err = cancelled
		}
		if err != nil {
			err = fmt.Errorf("probe commit: %w", err)
		}
		result <- err
	}()
	return result, int(conn.PgConn().PID()), nil
}

// WaitingInSyncRep reports whether the backend with that pid waits for synchronous replication now. It is false also if
// the server does not answer.
func (i *Instance) WaitingInSyncRep(ctx context.Context, pid int) bool {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	waiting := false
	err := i.main.Do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'IPC' AND wait_event = 'SyncRep')", pid).
			Scan(&waiting)
	})
	return err == nil && waiting
}

// EnsureSlots makes the members' physical slots match want. Missing ones are created and reserve WAL at once. Inactive
// slots named cot_* that are not wanted are dropped, except those of seeding windows. In recovery each inactive wanted
// slot is advanced to its minimum, so that this copy keeps what any other would need to follow it, and no more
// (docs/internals/postgresql.md, "Slots"). A slot is never advanced beyond this copy's last restartpoint: a member that
// is rewound from this copy begins at the last checkpoint that both have, which is no older. A slot that fails does not
// keep the others from being made; the error names each.
func (i *Instance) EnsureSlots(ctx context.Context, want []string, min map[string]ag.LSN) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	o, err := i.Observe(ctx)
	if err != nil {
		return fmt.Errorf("replication slots: %w", err)
	}
	have := map[string]Slot{}
	var failed []error
	for _, s := range o.Slots {
		have[s.Name] = s
		stray := strings.HasPrefix(s.Name, settings.ApplicationPrefix) && !strings.HasPrefix(s.Name, settings.SeedSlotPrefix) && !slices.Contains(want, s.Name)
		if !stray || s.Active || s.Type != "physical" {
			continue
		}
		if err := i.exec(ctx, "SELECT pg_drop_replication_slot($1)", s.Name); err != nil {
			failed = append(failed, fmt.Errorf("drop replication slot %s: %w", s.Name, err))
			continue
		}
		i.log.Info("dropped a replication slot of no member", "slot", s.Name, "restart_lsn", s.Restart)
	}
	for _, name := range want {
		if err := i.ensureSlot(ctx, name, have, o, min[name]); err != nil {
			failed = append(failed, fmt.Errorf("replication slot %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

func (i *Instance) ensureSlot(ctx context.Context, name string, have map[string]Slot, o Observation, to ag.LSN) error {
	s, ok := have[name]
	if ok && s.WALStatus == "lost" && !s.Active {
		// It protects no WAL any more and cannot be used again.
		if err := i.exec(ctx, "SELECT pg_drop_replication_slot($1)", name); err != nil {
			return err
		}
		i.log.Warn("a replication slot had lost its WAL and is made anew", "slot", name)
		ok = false
	}
	if !ok {
		if err := i.exec(ctx, "SELECT pg_create_physical_replication_slot($1, true)", name); err != nil {
			return err
		}
		return nil // reserved from here on; the next call advances it
	}
	to = min(to, o.Replay) // the server refuses to go beyond what it has replayed
	if !o.InRecovery || s.Active || to <= s.Restart || s.Restart == 0 {
		return nil
	}
	return i.exec(ctx, `SELECT pg_replication_slot_advance($1, least($2::text::pg_lsn, redo_lsn))
		FROM pg_control_checkpoint() WHERE redo_lsn > $3::text::pg_lsn`, name, to.String(), s.Restart.String())
}

// WalsenderRows counts the walsenders of a member, whatever their epoch. A new stream of the member is admitted only if
// the count is 0 (docs/internals/safety.md, "Streams").
func (i *Instance) WalsenderRows(ctx context.Context, member string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	n := 0
	err := i.main.Do(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT application_name FROM pg_stat_replication")
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[*string])
		n = 0
		for _, name := range names {
			if name == nil {
				continue
			}
			if m, _, ok := settings.ParseApplication(*name); ok && string(m) == member {
				n++
			}
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("count the walsenders of %s: %w", member, err)
	}
	return n, nil
}
