package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
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

// Facts asks the running server for them, in the session that serves logins.
func (i *Instance) Facts(ctx context.Context) (f ServerFacts, err error) {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	err = i.auth.do(ctx, func(c *pgx.Conn) error {
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

// Version returns the version of the server's binaries, as 15.18.
func (i *Instance) Version() string { return i.cfg.Install.Version }

// CreateDatabase creates a database unless it is there, and reports whether it did. It returns when the creation is replicated as any
// commit is.
func (i *Instance) CreateDatabase(ctx context.Context, name string) (made bool, err error) {
	err = i.fresh(ctx, func(c *pgx.Conn) error {
		var there bool
		if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there); err != nil || there {
			return err
		}
		made = true
		if _, err := c.Exec(ctx, "SET synchronous_commit = on"); err != nil {
			return err
		}
		_, err := c.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		return err
	})
	if err != nil {
		return false, fmt.Errorf("create database %q: %w", name, err)
	}
	return made, nil
}

// EnsureRoles creates the roles that are missing, without LOGIN, each a member of the one before it.
func (i *Instance) EnsureRoles(ctx context.Context, names []string) error {
	err := i.fresh(ctx, func(c *pgx.Conn) error {
		var before string
		for _, name := range names {
			role := pgx.Identifier{name}.Sanitize()
			var there bool
			if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", name).Scan(&there); err != nil {
				return err
			}
			statements := []string{"CREATE ROLE " + role + " NOLOGIN"}
			if before != "" {
				statements = append(statements, "GRANT "+before+" TO "+role)
			}
			if !there {
				if _, err := c.Exec(ctx, strings.Join(statements, "; "), pgx.QueryExecModeSimpleProtocol); err != nil {
					return err
				}
			}
			before = role
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("create the roles of the console: %w", err)
	}
	return nil
}
