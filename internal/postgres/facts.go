package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/parameters"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// Database is a database of the instance that sessions may be opened in.
type Database struct {
	OID  uint32
	Name string
}

// ServerFacts are what the views show of a server.
type ServerFacts struct {
	Databases []Database
	Flush     ag.LSN     // durably here: written as primary, received as secondary; 0: not known
	Replay    ag.LSN     // of a secondary
	Commit    *time.Time // of the last transaction committed here, or replayed; nil where the server does not keep that
}

// Facts reads what the views show of a running server.
type Facts struct {
	s       *session.Session
	control func(context.Context) (pgfiles.Control, error)
}

func newFacts(s *session.Session, control func(context.Context) (pgfiles.Control, error)) *Facts {
	return &Facts{s, control}
}

// ServerFacts reads them, in the session that serves logins.
func (v *Facts) ServerFacts(ctx context.Context) (f ServerFacts, err error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	err = v.s.Do(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT oid, datname FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY datname LIMIT 1000")
		if err != nil {
			return err
		}
		if f.Databases, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Database]); err != nil {
			return err
		}
		var flush, replay *string
		err = c.QueryRow(ctx, `SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_flush_lsn() END::text,
		    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() END::text,
		    CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp()
		         WHEN current_setting('track_commit_timestamp')::bool THEN (SELECT timestamp FROM pg_last_committed_xact()) END`).Scan(&flush, &replay, &f.Commit)
		if err != nil {
			return err
		}
		if flush != nil {
			f.Flush, _ = ag.ParseLSN(*flush) // the server's own words
		}
		if replay != nil {
			f.Replay, _ = ag.ParseLSN(*replay)
			f.Flush = max(f.Flush, f.Replay) // before the first stream nothing was received
		}
		return nil
	})
	if err != nil {
		return f, fmt.Errorf("ask the server how it is: %w", err)
	}
	return f, nil
}

// Setting is one setting of a running server.
type Setting struct {
	Name    string
	Value   string // with its unit
	Source  string // where the value is from, in the server's words: default, configuration file, command line, …
	Pending bool   // another value waits for a restart
}

// ownSettings differ from node to node by nature, or are changed by the agent with the node's role.
var ownSettings = []string{
	"external_pid_file", "cluster_name", "primary_conninfo", "primary_slot_name", "synchronous_standby_names", "max_standby_streaming_delay", "max_standby_archive_delay",
	"hot_standby_feedback", "in_hot_standby", "transaction_read_only", "server_version_num", "shared_memory_size", "shared_memory_size_in_huge_pages", "application_name", "role",
}

// Settings that only superusers may see could be secret and are left out, except the libraries, without which a server
// does not start. Of primary_conninfo, which may have a password, it is only said where it is written. The version of a
// collation provider counts as a setting, because indexes on text depend on it. Settings that this session may have
// changed for itself are read from the files. PostgreSQL calls a setting pending, too, whose other value in a file the
// command line overrides: no restart changes it.
const privilegedSettings = `SELECT 'shared_preload_libraries' AS name, current_setting('shared_preload_libraries') AS value, source, pending_restart AND source <> 'command line'
    FROM pg_settings WHERE name = 'shared_preload_libraries'
UNION ALL
SELECT 'collation version of libc', max(pg_collation_actual_version(oid)), 'the operating system', false FROM pg_collation WHERE collprovider = 'c'
    HAVING max(pg_collation_actual_version(oid)) IS NOT NULL
UNION ALL
SELECT 'collation version of ICU', pg_collation_actual_version(oid), 'the operating system', false FROM pg_collation WHERE collname = 'und-x-icu'
UNION ALL
SELECT 'synchronous_commit of ' || concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname)), split_part(c, '=', 2),
       'ALTER ROLE or ALTER DATABASE', false
    FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase, unnest(CASE WHEN pg_column_size(s.setconfig) <= 8192 THEN s.setconfig END) c
    WHERE split_part(c, '=', 1) = 'synchronous_commit' AND (r.oid IS NOT NULL OR d.oid IS NOT NULL)
UNION ALL
SELECT 'synchronous_commit of all roles', split_part(c, '=', 2), 'ALTER ROLE', false
    FROM pg_db_role_setting s, unnest(s.setconfig) c
    WHERE split_part(c, '=', 1) = 'synchronous_commit' AND s.setrole = 0 AND s.setdatabase = 0
UNION ALL
SELECT f.name || ' written in ' || f.sourcefile, CASE WHEN f.name = 'primary_conninfo' THEN '' ELSE f.setting END, 'configuration file', false
    FROM pg_file_settings f
    WHERE f.name IN ('primary_conninfo', 'primary_slot_name', 'restore_command') OR f.name LIKE 'recovery\_target%' OR f.name = 'recovery_min_apply_delay'
UNION ALL
SELECT s.name, coalesce(f.setting, s.boot_val, ''), CASE WHEN f.setting IS NULL THEN 'default' ELSE 'configuration file' END, false
    FROM pg_settings s LEFT JOIN (SELECT DISTINCT ON (name) name, setting FROM pg_file_settings WHERE applied ORDER BY name, seqno DESC) f ON f.name = s.name
    WHERE s.source IN ('client', 'session') AND s.name <> ALL ($1)`

const openSettings = `SELECT name, coalesce(current_setting(name, true), ''), source, pending_restart AND source <> 'command line' FROM pg_settings
    WHERE source NOT IN ('client', 'session') AND name <> ALL ($1) AND name <> 'shared_preload_libraries'`

// Settings returns the settings of the running server that the replicas of a group have in common, unless an
// administrator chose otherwise.
func (v *Facts) Settings(ctx context.Context) (out []Setting, err error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	err = v.s.Do(ctx, func(c *pgx.Conn) error {
		tx, err := c.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
		if err != nil {
			return err
		}
		limits, err := v.limits(ctx, tx)
		if err == nil {
			out, err = collectSettings(ctx, tx)
		}
		for k := range out {
			if l, is := limits[out[k].Name]; is {
				out[k].Pending, out[k].Source = l.pending, cmp.Or(l.kept, out[k].Source)
			}
		}
		return errors.Join(err, tx.Rollback(ctx))
	})
	if err != nil {
		return nil, fmt.Errorf("ask the server for its settings: %w", err)
	}
	return out, nil
}

// limit is what is shown of one of the limits in the place of what PostgreSQL says.
type limit struct {
	pending bool
	kept    string // why the server has more than is wanted, in the place of where the value is from; "": it has not
}

// limits returns the settings of which a standby needs as much as its primary. PostgreSQL does not say of them that
// another value waits for a restart where the command line has one.
func (v *Facts) limits(ctx context.Context, tx pgx.Tx) (map[string]limit, error) {
	var text string
	var recovery, prepared bool
	err := tx.QueryRow(ctx, "SELECT ("+parameters.LimitsQuery+"), pg_is_in_recovery(), EXISTS (SELECT FROM pg_prepared_xacts)").Scan(&text, &recovery, &prepared)
	if err != nil {
		return nil, err
	}
	found, err := parameters.ParseLimits(text)
	if err != nil {
		return nil, err
	}
	var primary map[string]int
	if recovery && slices.ContainsFunc(found, func(l parameters.Limit) bool { return l.Has > l.Wanted }) {
		if c, err := v.control(ctx); err == nil {
			primary = c.Settings
		}
	}
	out := map[string]limit{}
	for _, l := range found {
		one := limit{pending: l.Waits()}
		switch {
		case l.Has <= l.Wanted || !slices.Contains(parameters.Limits, l.Name):
		case primary[l.Name] > l.Wanted:
			one.kept = fmt.Sprintf("kept while the primary has %d", primary[l.Name])
		case !recovery && prepared:
			one.kept = "kept while there are prepared transactions"
		default:
			one.kept = "kept until a restart"
		}
		out[l.Name] = one
	}
	return out, nil
}

func collectSettings(ctx context.Context, tx pgx.Tx) ([]Setting, error) {
	var out []Setting
	for _, q := range []string{privilegedSettings, openSettings} {
		rows, err := tx.Query(ctx, q, ownSettings)
		if err != nil {
			return nil, err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Setting])
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
		// From here on, read only what any role may see: this role exists on every server and sees no more settings
		// than others.
		if _, err := tx.Exec(ctx, "SET LOCAL ROLE pg_read_all_stats"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Archiver is what a server says of its archiving of WAL.
type Archiver struct {
	Mode, Command            string // archive_mode and archive_command
	Recovery                 bool   // it is a standby, which archives nothing
	Archived, Failed         int64  // since the statistics were reset
	LastArchived, LastFailed *string
	ArchivedAt, FailedAt     *time.Time
	SegmentSize              int64
	Timeline                 ag.Timeline // of a primary
}

// Archiver asks the server, in the session that serves logins.
func (v *Facts) Archiver(ctx context.Context) (a Archiver, err error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	err = v.s.Do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT current_setting('archive_mode'), current_setting('archive_command'), pg_is_in_recovery(), a.archived_count, a.failed_count,
		    a.last_archived_wal, a.last_failed_wal, a.last_archived_time, a.last_failed_time, pg_size_bytes(current_setting('wal_segment_size')),
		    CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END
		  FROM pg_stat_archiver a`).
			Scan(&a.Mode, &a.Command, &a.Recovery, &a.Archived, &a.Failed, &a.LastArchived, &a.LastFailed, &a.ArchivedAt, &a.FailedAt, &a.SegmentSize, &a.Timeline)
	})
	if err != nil {
		return a, fmt.Errorf("ask the server how its archiving is: %w", err)
	}
	return a, nil
}
