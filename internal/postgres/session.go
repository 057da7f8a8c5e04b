package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
)

// SessionName is the application_name of the agent's own sessions.
const SessionName = "coterie_agent"

// observeLimit bounds everything that asks the server for facts: what takes longer is an answer in itself.
const observeLimit = 2 * time.Second

// sessionParams are the settings of the agent's sessions (docs/internals/postgresql.md, "Sessions of the agent"):
// whatever the administrator set for roles or databases, they neither time out, nor wait for secondaries, nor find
// other people's functions.
func (i *Instance) sessionParams() map[string]string {
	p := map[string]string{
		"application_name":                    SessionName,
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_session_timeout":                "0",
		"idle_in_transaction_session_timeout": "0",
		"search_path":                         "pg_catalog",
		"default_transaction_read_only":       "off",
		"synchronous_commit":                  "local",
		"client_min_messages":                 "warning",
		"datestyle":                           "ISO",
	}
	if i.cfg.Install.Major >= 17 {
		p["transaction_timeout"] = "0"
		p["event_triggers"] = "off" // a failing login trigger locks out even the superuser
	}
	return p
}

// connConfig is the way to this server and no other: nothing of the process's PG* environment stays in it.
func (i *Instance) connConfig(database string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable connect_timeout=5",
		QuoteConninfo(i.cfg.SocketDir), Port, QuoteConninfo(i.cfg.Superuser), QuoteConninfo(database)))
	if err != nil {
		return nil, err
	}
	c.RuntimeParams, c.Password, c.TLSConfig, c.Fallbacks = i.sessionParams(), "", nil, nil
	return c, nil
}

// connect opens a session in the database postgres, or in template1 where somebody dropped that one.
func (i *Instance) connect(ctx context.Context, change func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	for _, database := range []string{"postgres", "template1"} {
		c, err := i.connConfig(database)
		if err != nil {
			return nil, fmt.Errorf("connect to PostgreSQL in %s: %w", i.cfg.SocketDir, err)
		}
		if change != nil {
			change(c)
		}
		conn, err := pgx.ConnectConfig(ctx, c)
		if err == nil {
			return conn, nil
		}
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "3D000" || database == "template1" {
			return nil, fmt.Errorf("connect to PostgreSQL in %s: %w", i.cfg.SocketDir, err)
		}
	}
	panic("unreachable")
}

// Session opens a session of the superuser in a database that is always there, with the settings of the agent's own sessions. The
// caller closes it.
func (i *Instance) Session(ctx context.Context) (*pgx.Conn, error) { return i.connect(ctx, nil) }

// fresh runs f in a new session, which sees the settings in force in the postmaster now.
func (i *Instance) fresh(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := i.connect(ctx, nil)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return f(conn)
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the session ends either way
}

// session is a permanent session, opened at first use and again when it was lost. One caller at a time.
type session struct {
	turn chan struct{} // holds one token; a channel, so that waiting for a turn ends with the caller's context
	open func(context.Context) (*pgx.Conn, error)
	conn *pgx.Conn
}

func newSession(i *Instance) *session {
	return &session{turn: make(chan struct{}, 1), open: func(ctx context.Context) (*pgx.Conn, error) { return i.connect(ctx, nil) }}
}

// newReplSession is for IDENTIFY_SYSTEM: the only thing that tells a standby's replay timeline. It is a walsender, which the server wakes
// whenever it has flushed WAL or replayed some, at each commit: so it is not kept open where it has nothing new to say (rest).
func newReplSession(i *Instance) *session {
	return &session{turn: make(chan struct{}, 1), open: func(ctx context.Context) (*pgx.Conn, error) {
		return i.connect(ctx, func(c *pgx.ConnConfig) {
			c.RuntimeParams["replication"] = "true"
			c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // a walsender knows no other
			delete(c.RuntimeParams, "search_path")
		})
	}}
}

// do runs f in the session. A session that was lost while idle (the server was restarted) is opened again once, so f may
// run twice, but never after it succeeded.
func (s *session) do(ctx context.Context, f func(*pgx.Conn) error) error {
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

func (s *session) once(ctx context.Context, f func(*pgx.Conn) error) error {
	if s.conn == nil || s.conn.IsClosed() {
		conn, err := s.open(ctx)
		if err != nil {
			return err
		}
		s.conn = conn
	}
	err := f(s.conn)
	if err != nil && (s.conn.IsClosed() || pgconn.SafeToRetry(err)) {
		closeConn(s.conn)
		s.conn = nil
	}
	return err
}

// close ends the session; a later do would open it again.
func (s *session) close() error {
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

// rest ends the session if nobody uses it; the next do opens it again.
func (s *session) rest() {
	select {
	case s.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.turn }()
	if s.conn != nil {
		closeConn(s.conn)
		s.conn = nil
	}
}

// exec runs one command in the main session.
func (i *Instance) exec(ctx context.Context, sql string, args ...any) error {
	return i.main.do(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

// identify asks for the timeline the server writes or replays and how far its WAL goes there: as primary what is flushed,
// in recovery the highest of replayed and, if it belongs to the same timeline, received.
func (i *Instance) identify(ctx context.Context) (ag.Position, error) {
	var p ag.Position
	err := i.repl.do(ctx, func(c *pgx.Conn) error {
		results, err := c.PgConn().Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
		if err != nil {
			return err
		}
		if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 3 {
			return errors.New("IDENTIFY_SYSTEM: unexpected answer")
		}
		row := results[0].Rows[0]
		var tli uint32
		if _, err := fmt.Sscan(string(row[1]), &tli); err != nil {
			return fmt.Errorf("IDENTIFY_SYSTEM: timeline %.20q: %w", row[1], err)
		}
		lsn, err := ag.ParseLSN(string(row[2]))
		p = ag.Position{Timeline: ag.Timeline(tli), LSN: lsn}
		return err
	})
	if err != nil {
		return ag.Position{}, fmt.Errorf("ask for the timeline: %w", err)
	}
	return p, nil
}
