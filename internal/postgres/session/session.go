package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// Name is the application_name of the agent's own sessions.
const Name = "coterie_agent"

// Limit bounds every question to the server. A server that takes longer counts as not answering.
const Limit = 2 * time.Second

// Server is how the agent reaches its own server.
type Server struct {
	SocketDir string // where it listens
	Superuser string
	Major     int
	// Later is the major version of the cluster that has taken the place of the one of Major; nil or 0: none has.
	Later *atomic.Int32
}

// Version returns the major version of the server.
func (v Server) Version() int {
	if v.Later != nil {
		return max(v.Major, int(v.Later.Load()))
	}
	return v.Major
}

// Params are the settings of the agent's sessions (docs/internals/postgresql.md, "Sessions of the agent"). They
// override the settings of roles and databases: these sessions do not time out, do not wait for secondaries, do not
// find other users' functions, load no library, stay the superuser's, and read a quoted text as it was quoted, in
// UTF-8. The owner of a database may set all of these for it, session_preload_libraries where it was granted that; a
// library that is not there would lock even the superuser out.
func (v Server) Params() map[string]string {
	p := map[string]string{
		"application_name":                    Name,
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_session_timeout":                "0",
		"idle_in_transaction_session_timeout": "0",
		"search_path":                         "pg_catalog",
		"default_transaction_read_only":       "off",
		"default_transaction_isolation":       "read committed", // a standby refuses every question that is serializable
		"default_transaction_deferrable":      "off",
		"jit":                                 "off", // costs of an owner's choice would have each question compiled for a second
		"synchronous_commit":                  "local",
		"client_min_messages":                 "warning",
		"datestyle":                           "ISO",
		"role":                                "none",
		"standard_conforming_strings":         "on",
		"client_encoding":                     "UTF8",
		"local_preload_libraries":             "",
		"session_preload_libraries":           "",
	}
	if v.Version() >= 17 {
		p["transaction_timeout"] = "0"
		p["event_triggers"] = "off" // a failing login trigger locks out even the superuser
	}
	return p
}

// environment are the variables in which clients of PostgreSQL find the servers of their user. pgx reads them whenever
// it makes a configuration. Some, such as PGSERVICE, PGTARGETSESSIONATTRS and PGREQUIREAUTH, would keep the agent of an
// administrator who has them from its own server.
var environment = []string{
	"PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "PGPASSFILE", "PGAPPNAME", "PGCONNECT_TIMEOUT", "PGSSLMODE", "PGSSLKEY", "PGSSLCERT", "PGSSLCERTMODE",
	"PGSSLSNI", "PGSSLROOTCERT", "PGSSLPASSWORD", "PGSSLNEGOTIATION", "PGTARGETSESSIONATTRS", "PGSERVICE", "PGSERVICEFILE", "PGTZ", "PGOPTIONS", "PGMINPROTOCOLVERSION",
	"PGMAXPROTOCOLVERSION", "PGCHANNELBINDING", "PGREQUIREAUTH",
}

// ConnConfig returns the configuration of a connection to this server. It contains nothing of the process's PG*
// environment, from which it removes what clients of PostgreSQL read there.
func (v Server) ConnConfig(database string) (*pgx.ConnConfig, error) {
	for _, name := range environment {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	c, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable connect_timeout=5",
		settings.QuoteConninfo(v.SocketDir), Port, settings.QuoteConninfo(v.Superuser), settings.QuoteConninfo(database)))
	if err != nil {
		return nil, err
	}
	c.RuntimeParams, c.Password, c.TLSConfig, c.Fallbacks = v.Params(), "", nil, nil
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if conn.ParameterStatus("server_encoding") != anyBytes || c.RuntimeParams["replication"] != "" {
			return nil
		}
		return conn.Exec(ctx, "SET client_encoding = "+anyBytes).Close()
	}
	return c, nil
}

// anyBytes is the encoding of a database that takes any bytes for text. PostgreSQL refuses to tell those as UTF8 that
// are none, as in the name of a role or of another database: the question would have no answer.
const anyBytes = "SQL_ASCII"

// absent reports whether a login failed because the database is not there, or takes no connections, which its owner may
// have it do.
func absent(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "3D000" || pg.Code == "55000")
}

// The databases of the agent's sessions: the other one where the first was dropped or takes no connections.
const usual, other = "postgres", "template1"

// noSocketError is the error of a session with a server that does not run.
type noSocketError struct {
	dir string
	err error
}

func (n noSocketError) Error() string {
	return "PostgreSQL does not run, or has only begun to: there is no socket in " + n.dir
}

func (n noSocketError) Unwrap() error { return n.err }

// Connect opens a session in the database postgres, or in template1 if postgres was dropped or takes no connections.
func (v Server) Connect(ctx context.Context, change func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	conn, err := v.connect(ctx, usual, change)
	if absent(err) {
		return v.connect(ctx, other, change)
	}
	return conn, err
}

func (v Server) connect(ctx context.Context, database string, change func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	c, err := v.ConnConfig(database)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL in %s: %w", v.SocketDir, err)
	}
	if change != nil {
		change(c)
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if errors.Is(err, syscall.ENOENT) {
		return nil, noSocketError{v.SocketDir, err}
	}
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL in %s: %w", v.SocketDir, err)
	}
	return conn, nil
}

// Fresh runs f in a new session, which has the settings in force in the postmaster now.
func (v Server) Fresh(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := v.Brief(ctx, nil)
	if err != nil {
		return err
	}
	defer Close(conn)
	return f(conn)
}

// locked is the time of a login after which another database is tried, too.
const locked = 700 * time.Millisecond

// Brief is Connect for a short session, which also tries template1 where the login in postgres takes long: its owner
// may have it locked, by one DROP DATABASE after another, each of which waits for the agent's sessions. Nobody can make
// a database while a session is open in template1.
func (v Server) Brief(ctx context.Context, change func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	type result struct {
		conn     *pgx.Conn
		err      error
		database string
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a session that is open does not depend on it
	results := make(chan result, 2)
	running := 0
	try := func(database string) {
		running++
		go func() {
			conn, err := v.connect(ctx, database, change)
			results <- result{conn, err, database}
		}()
	}
	defer func() {
		go func(late int) {
			for range late {
				if r := <-results; r.conn != nil {
					Close(r.conn)
				}
			}
		}(running)
	}()
	try(usual)
	wait := time.NewTimer(locked)
	defer wait.Stop()
	var last error
	for both := false; running > 0; {
		select {
		case <-wait.C:
			if !both {
				both = true
				try(other)
			}
		case r := <-results:
			running--
			if r.err == nil || r.database == usual && !absent(r.err) {
				return r.conn, r.err
			}
			if last = r.err; !both {
				both = true
				try(other)
			}
		}
	}
	return nil, last
}

// InTemplate reports whether a session of Brief is in template1. PostgreSQL waits 5 s for the end of such a session,
// then refuses to make a database.
func InTemplate(conn *pgx.Conn) bool { return conn.Config().Database == other }

// Close closes a connection and waits for the server a second at most.
func Close(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the session ends either way
}

// Session is a permanent session. It is opened at first use and again after it was lost. It serves one caller at a
// time.
type Session struct {
	turn chan struct{} // holds one token; a channel, so that waiting for a turn ends with the caller's context
	open func(context.Context) (*pgx.Conn, error)
	conn *pgx.Conn
}

// New returns a session that is opened at first use.
func New(v Server) *Session {
	return &Session{turn: make(chan struct{}, 1), open: func(ctx context.Context) (*pgx.Conn, error) { return v.Connect(ctx, nil) }}
}

// NewReplication returns a session for IDENTIFY_SYSTEM, the only command that tells the timeline a standby replays. The
// session is a walsender, which the server wakes at each commit, whenever it has flushed or replayed WAL. Rest closes
// it while it has nothing new to tell.
func NewReplication(v Server) *Session {
	return &Session{turn: make(chan struct{}, 1), open: func(ctx context.Context) (*pgx.Conn, error) {
		return v.Connect(ctx, func(c *pgx.ConnConfig) {
			c.RuntimeParams["replication"] = "true"
			c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // a walsender knows no other
			delete(c.RuntimeParams, "search_path")
		})
	}}
}

// Do runs f in the session. A session that was lost while idle, as when the server was restarted, is opened again once.
// So f may run twice, but never after it succeeded.
func (s *Session) Do(ctx context.Context, f func(*pgx.Conn) error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for the session: %w", context.Cause(ctx))
	}
	defer func() { <-s.turn }()
	reused := s.conn != nil && !s.conn.IsClosed()
	err := s.once(ctx, f)
	if err != nil && reused && s.conn == nil && ctx.Err() == nil {
		err = s.once(ctx, f)
	}
	return err
}

func (s *Session) once(ctx context.Context, f func(*pgx.Conn) error) error {
	if s.conn == nil || s.conn.IsClosed() {
		conn, err := s.open(ctx)
		if err != nil {
			return err
		}
		s.conn = conn
	}
	err := f(s.conn)
	if err != nil && (s.conn.IsClosed() || pgconn.SafeToRetry(err)) {
		Close(s.conn)
		s.conn = nil
	}
	return err
}

// Close ends the session; a later Do opens it again.
func (s *Session) Close() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.conn.Close(ctx)
	s.conn = nil
	if err != nil {
		return fmt.Errorf("close the session: %w", err)
	}
	return nil
}

// Rest ends the session if it is not in use; the next Do opens it again.
func (s *Session) Rest() {
	select {
	case s.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.turn }()
	if s.conn != nil {
		Close(s.conn)
		s.conn = nil
	}
}

// Port is the port number in the name of every private socket.
const Port = 5432
