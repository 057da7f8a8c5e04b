package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/postgres/session"
)

// ErrExhausted means that the server is up and has no connection, process or memory left, not even for its superuser.
var ErrExhausted = errors.New("the server has no connection, process or memory left")

// Checks looks for what may be wrong with a running server and its data.
type Checks struct {
	server  session.Server
	dataDir atomic.Pointer[string]

	logMarks atomic.Pointer[map[string]logMark] // the ends of the logs before the last start
}

// New returns the checks of a server and its data directory.
func New(server session.Server, dataDir string) *Checks {
	k := &Checks{server: server}
	k.MoveTo(dataDir)
	return k
}

// MoveTo has the checks look at another data directory from now on.
func (k *Checks) MoveTo(dataDir string) { k.dataDir.Store(&dataDir) }

func (k *Checks) path(elem ...string) string {
	return filepath.Join(append([]string{*k.dataDir.Load()}, elem...)...)
}

// maxDatabases bounds the databases of one check. Those are looked into that have been there for the longest: a role
// that makes many databases hides no fault of another's.
const maxDatabases = 32

// Answer opens a new connection and runs a trivial query. A server that refuses because it is starting or stopping has
// answered.
func (k *Checks) Answer(ctx context.Context) error {
	err := k.server.Fresh(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT 1")
		return err
	})
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch {
	case pg.Code == "53300" || pg.Code == "53200" || strings.Contains(pg.Message, "fork"):
		return fmt.Errorf("%w: %s", ErrExhausted, pg.Message)
	case pg.Code == "57P03" || pg.Code == "57P01" || pg.Code == "57P02":
		return nil // starting up, shutting down, or recovering from a crash: others watch over that
	}
	return err
}

// ErrBlocked means that no work is possible: no ordinary connection is left, and every session waits for a lock or
// holds some in an idle transaction. Waiting for synchronous replication does not count.
var ErrBlocked = errors.New("no connection is left and every session is blocked")

// blocked returns the number of sessions if all are blocked and were so two seconds ago: a working session would
// release others in between. The agent's sessions are left out.
const blocked = `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
	HAVING count(*) >= current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
			- coalesce(current_setting('reserved_connections', true)::int, 0)
		AND bool_and(state LIKE 'idle in transaction%' OR state = 'active' AND wait_event_type IN ('Lock', 'LWLock', 'BufferPin'))
			FILTER (WHERE (application_name = $1 AND usename = session_user) IS NOT TRUE)
		AND bool_or(state = 'active') FILTER (WHERE (application_name = $1 AND usename = session_user) IS NOT TRUE)
		AND max(state_change) FILTER (WHERE (application_name = $1 AND usename = session_user) IS NOT TRUE) < clock_timestamp() - interval '2 seconds'`

// Commit commits an empty transaction with an id, and waits for this server's disk only. It returns ErrBlocked if that
// succeeded and no other session can work.
func (k *Checks) Commit(ctx context.Context) error {
	return k.server.Fresh(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "SELECT pg_current_xact_id()"); err != nil { // the session's synchronous_commit is local
			return err
		}
		var sessions int
		err := conn.QueryRow(ctx, blocked, session.Name).Scan(&sessions)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: %d sessions", ErrBlocked, sessions)
	})
}

// Fault is a database that is not online.
type Fault struct {
	Database string
	Err      string
}

// Databases checks the named databases, or all that allow connections. It connects, reads the catalog, makes a tiny
// write on a primary, and looks at the directory and the file of pg_class on the disk. A failure of the server as a
// whole is an error.
func (k *Checks) Databases(ctx context.Context, names []string) ([]Fault, error) {
	type row struct {
		Name string
		OID  uint32
		Dir  string
	}
	var all []row
	err := k.server.Fresh(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT d.datname, d.oid::oid,
			CASE WHEN d.dattablespace = 1663 THEN '' ELSE pg_tablespace_location(d.dattablespace) END
			FROM pg_database d WHERE d.datallowconn AND (cardinality($1::text[]) = 0 OR d.datname = ANY($1))
			ORDER BY d.oid LIMIT $2`, append([]string{}, names...), maxDatabases)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	var faults []Fault
	for _, d := range all {
		err := k.lookInto(ctx, d.Name)
		if isFault(err) {
			faults = append(faults, Fault{d.Name, err.Error()})
			continue
		}
		if d.Dir == "" && !isDropped(err) {
			if err := readable(k.path("base", fmt.Sprint(d.OID), "PG_VERSION")); err != nil {
				faults = append(faults, Fault{d.Name, err.Error()})
			}
		}
	}
	return faults, ctx.Err()
}

// lookInto reads in one database and, unless the server is a standby, writes. It gives a database up that takes long:
// the owner of one can lock it, and would have the check end before it comes to the others.
func (k *Checks) lookInto(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	cfg, err := k.server.ConnConfig(name)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer session.Close(conn)
	var file string
	var standby bool
	err = conn.QueryRow(ctx, `SELECT pg_relation_filepath('pg_class'), pg_is_in_recovery() FROM (SELECT count(*) FROM pg_class) AS read`).Scan(&file, &standby)
	if err != nil {
		return err
	}
	if err := readable(k.path(filepath.FromSlash(file))); err != nil {
		return err
	}
	if standby {
		return nil
	}
	_, err = conn.Exec(ctx, "SELECT pg_logical_emit_message(true, 'coterie', '')")
	return err
}

// isFault reports whether an error means a fault of the database, and not of the server, the moment or the caller.
func isFault(err error) bool {
	if errors.Is(err, errUnreadable) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case "XX001", "XX002", "58030", "58P01", "58P02": // corrupt, or not readable
		return true
	case "3D000": // it is in the catalog, and its directory is not there
		return strings.Contains(pg.Detail, "base/") || strings.Contains(pg.Detail, "pg_tblspc/")
	}
	return false
}

// isDropped reports whether an error means that the database was dropped after it was listed.
func isDropped(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "3D000" || pg.Code == "57P04")
}

var errUnreadable = errors.New("unreadable")

// readable reads the beginning of a file.
func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("%w: read %s: %w", errUnreadable, path, err)
	}
	return nil
}

// Place is a directory with data of this instance.
type Place struct {
	Name string
	Dir  string // the target of a symbolic link
	Has  string // a pattern of a file that it must have: if a file system is not mounted, its directory exists, but is empty
	WAL  bool
}

// Places lists the directories in which PostgreSQL writes: the data directory, that of WAL, every tablespace.
func (k *Checks) Places(context.Context) ([]Place, error) {
	places := []Place{{"the data directory", k.path(), "PG_VERSION", false}}
	wal, err := filepath.EvalSymlinks(k.path("pg_wal"))
	if err != nil {
		return nil, fmt.Errorf("find the WAL directory: %w", err)
	}
	places = append(places, Place{"the WAL directory", wal, "archive_status", true})
	links, err := os.ReadDir(k.path("pg_tblspc"))
	if err != nil {
		return nil, fmt.Errorf("find the tablespaces: %w", err)
	}
	for _, l := range links {
		if l.Type()&fs.ModeSymlink == 0 {
			continue
		}
		dir, err := os.Readlink(k.path("pg_tblspc", l.Name())) // not resolved further: it may not exist
		if err != nil {
			continue // dropped since
		}
		places = append(places, Place{"tablespace " + l.Name(), dir, "PG_*", false})
	}
	return places, nil
}
