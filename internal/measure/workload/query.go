package workload

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/session"
)

const appName = "coterie bench"

// Format is how rows come.
type Format string

// The formats.
const (
	Binary Format = "binary" // a prepared statement
	Text   Format = "text"   // the simple protocol
	Copy   Format = "copy"   // COPY (query) TO STDOUT
)

// Query is a statement that is asked again and again.
type Query struct {
	DSN     string
	SQL     string
	Params  *Params
	Format  Format        // default Binary
	Connect bool          // a connection for every operation, instead of one for the run
	Timeout time.Duration // of an operation; default session.DefaultTimeout
	Dial    pgconn.DialFunc
	Retries int // of what failed with a serialization failure or a deadlock, with the same parameters
}

// Worker makes one client of the query.
func (q Query) Worker(client int) (method.Worker, error) {
	s, err := session.New(session.Options{DSN: q.DSN, Start: client, Timeout: q.Timeout, Name: appName, Dial: q.Dial})
	if err != nil {
		return nil, err
	}
	return &querier{client: asker{session: s, again: q.Connect}, Query: q}, nil
}

// Try asks once, with the first parameters. It finds what would fail each time, such as a parameter that is not there:
// the clients of an experiment count failures and continue.
func (q Query) Try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(q.Timeout, session.DefaultTimeout))
	defer cancel()
	conn, err := session.Open(ctx, q.DSN, appName)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	var first []any
	if q.Params != nil && len(q.Params.rows) > 0 {
		first = q.Params.rows[0]
	}
	if err := (&querier{Query: q}).ask(ctx, conn, first, &method.Event{}); err != nil {
		return fmt.Errorf("the query fails, with %d in the first row of parameters: %w", len(first), err)
	}
	return nil
}

// asker is a session that knows which server answers it.
type asker struct {
	session *session.Session
	again   bool // connect for every operation
	known   *pgx.Conn
	server  string
	routed  bool
}

// server is the name of the server that answers: the replica's, or what else tells it from others.
const server = `coalesce(nullif(current_setting('coterie.replica', true), ''), nullif(current_setting('cluster_name'), ''),
	host(inet_server_addr()) || ':' || inet_server_port(), 'started ' || to_char(pg_postmaster_start_time(), 'HH24:MI:SS.US'))`

// ServerName returns the name of the server that answers: in a group, the replica's.
const ServerName = "select " + server

// identity returns the server's name, and whether the server is in recovery.
const identity = "select pg_is_in_recovery(), " + server

// ready connects if necessary. An error means a failure that no waiting mends; an Event is a failed attempt.
func (c *asker) ready(ctx context.Context) (*method.Event, error) {
	if c.again {
		c.session.Close()
	}
	if c.session.Conn() == nil {
		if err := c.session.Connect(ctx); err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
	}
	if c.known == c.session.Conn() {
		return nil, nil //nolint:nilnil // nothing went wrong
	}
	outcome, state, err := c.session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, identity, pgx.QueryExecModeSimpleProtocol).Scan(&c.routed, &c.server)
	})
	if err != nil {
		session.Pause(ctx)
		if outcome == session.OK {
			outcome = session.Fail
		}
		return &method.Event{Outcome: outcome, State: state}, nil
	}
	c.known = c.session.Conn()
	return nil, nil //nolint:nilnil // the same
}

// prepare connects, unless every operation does that for itself.
func (c *asker) prepare(ctx context.Context) error {
	for !c.again {
		e, err := c.ready(ctx)
		if err != nil || e == nil {
			return err
		}
	}
	return nil
}

// do runs op and returns its outcome.
func (c *asker) do(ctx context.Context, op func(context.Context, *pgx.Conn, *method.Event) error) (method.Event, error) {
	if e, err := c.ready(ctx); err != nil || e != nil {
		if e == nil {
			e = &method.Event{}
		}
		return *e, err
	}
	e := method.Event{Server: c.server, Routed: c.routed}
	var err error
	e.Outcome, e.State, err = c.session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error { return op(ctx, conn, &e) })
	if fatal(err) {
		return e, err
	}
	return e, nil
}

// fatal tells the errors that are the same for ever: a statement that the server does not understand, or may not run.
func fatal(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && len(pg.Code) == 5 && pg.Code[:2] == "42"
}

func (c *asker) Close() { c.session.Close() }

type querier struct {
	client asker

	prepared   *pgconn.StatementDescription
	preparedOn *pgx.Conn
	builder    pgx.ExtendedQueryBuilder
	Query
}

// Do implements method.Worker.
func (q *querier) Do(ctx context.Context) (method.Event, error) {
	args := q.Params.next()
	var retried []string
	for {
		e, err := q.client.do(ctx, func(ctx context.Context, conn *pgx.Conn, e *method.Event) error { return q.ask(ctx, conn, args, e) })
		e.Retried = retried
		if err != nil || len(retried) >= q.Retries || !session.Retryable(e.State) {
			if e.Outcome == session.Fail {
				session.Pause(ctx)
			}
			return e, err
		}
		retried = append(retried, e.State)
	}
}

// Prepare implements method.Preparer.
func (q *querier) Prepare(ctx context.Context) error { return q.client.prepare(ctx) }

// Close implements method.Worker.
func (q *querier) Close() { q.client.Close() }

// rowOverhead is a DataRow message beside its columns: type, length, number of columns.
const rowOverhead = 1 + 4 + 2

func (q *querier) ask(ctx context.Context, conn *pgx.Conn, args []any, e *method.Event) error {
	e.Rows, e.Bytes = 0, 0
	if q.Format == Copy {
		w := &counter{}
		tag, err := conn.PgConn().CopyTo(ctx, w, "copy ("+q.SQL+") to stdout")
		e.Rows, e.Bytes = tag.RowsAffected(), w.bytes
		return err
	}
	if q.Format != Text {
		return q.askPrepared(ctx, conn, args, e)
	}
	rows, err := conn.Query(ctx, q.SQL, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		e.Rows++
		e.Bytes += rowOverhead
		for _, v := range rows.RawValues() {
			e.Bytes += int64(4 + len(v))
		}
	}
	return rows.Err()
}

// askPrepared sends a prepared statement, and looks at no more of the answer than its size. The work of pgx for a
// caller that wants the values is a tenth of the client's cost of a small query.
func (q *querier) askPrepared(ctx context.Context, conn *pgx.Conn, args []any, e *method.Event) (err error) {
	if q.prepared == nil || q.preparedOn != conn {
		if q.prepared, err = conn.Prepare(ctx, "coterie_bench_query", q.SQL); err != nil {
			return err
		}
		q.preparedOn = conn
	}
	if err := q.builder.Build(conn.TypeMap(), q.prepared, args); err != nil {
		return err
	}
	rows := conn.PgConn().ExecStatement(ctx, q.prepared, q.builder.ParamValues, q.builder.ParamFormats, q.builder.ResultFormats)
	for rows.NextRow() {
		e.Rows++
		e.Bytes += rowOverhead
		for _, v := range rows.Values() {
			e.Bytes += int64(4 + len(v))
		}
	}
	_, err = rows.Close()
	return err
}

type counter struct{ bytes int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}

// Params are the parameters of a query, row by row; all clients share one sequence, and it begins again at its end.
type Params struct {
	rows [][]any
	at   atomic.Int64
}

func (p *Params) next() []any {
	if p == nil || len(p.rows) == 0 {
		return nil
	}
	return p.rows[int(p.at.Add(1)-1)%len(p.rows)]
}

// maxParams bounds what is held of a parameter query or file.
const maxParams = 1_000_000

// ParamRows makes parameters of rows.
func ParamRows(rows [][]any) *Params { return &Params{rows: rows} }

// ParamQuery reads parameters by a query.
func ParamQuery(ctx context.Context, dsn, sql string) (*Params, error) {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return nil, err
	}
	defer closeConn(conn)
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("parameter query: %w", err)
	}
	defer rows.Close()
	p := &Params{}
	for rows.Next() {
		v, err := rows.Values()
		if err != nil {
			return nil, fmt.Errorf("parameter query: %w", err)
		}
		if p.rows = append(p.rows, v); len(p.rows) > maxParams {
			return nil, fmt.Errorf("parameter query: more than %d rows", maxParams)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("parameter query: %w", err)
	}
	if len(p.rows) == 0 {
		return nil, errors.New("the parameter query returned no row")
	}
	return p, nil
}

// ParamFile reads parameters from a CSV file without a heading; every value is given as text.
func ParamFile(path string) (*Params, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	p := &Params{}
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) && len(p.rows) > 0 {
			return p, nil
		}
		if err != nil {
			return nil, fmt.Errorf("parameters: %s: %w", path, err)
		}
		values := make([]any, len(row))
		for i, v := range row {
			values[i] = v
		}
		if p.rows = append(p.rows, values); len(p.rows) > maxParams {
			return nil, fmt.Errorf("parameters: %s: more than %d rows", path, maxParams)
		}
	}
}

// Statement is a write that is asked again and again: each is a transaction of its own.
type Statement struct {
	DSN     string
	Setup   string // of every connection, such as SET synchronous_commit
	SQL     string
	Timeout time.Duration
	Dial    pgconn.DialFunc
}

// Worker makes one client of the statement.
func (s Statement) Worker(client int) (method.Worker, error) {
	one, err := session.New(session.Options{DSN: s.DSN, Start: client, Timeout: s.Timeout, Name: appName, Dial: s.Dial})
	if err != nil {
		return nil, err
	}
	return &stater{client: asker{session: one}, Statement: s}, nil
}

type stater struct {
	client asker
	set    *pgx.Conn // that Setup ran on
	Statement
}

// Do implements method.Worker.
func (s *stater) Do(ctx context.Context) (method.Event, error) {
	return s.client.do(ctx, func(ctx context.Context, conn *pgx.Conn, e *method.Event) error {
		if s.Setup != "" && s.set != conn {
			if _, err := conn.Exec(ctx, s.Setup); err != nil {
				return err
			}
			s.set = conn
		}
		tag, err := conn.Exec(ctx, s.SQL)
		e.Rows = tag.RowsAffected()
		return err
	})
}

// Prepare implements method.Preparer.
func (s *stater) Prepare(ctx context.Context) error { return s.client.prepare(ctx) }

// Close implements method.Worker.
func (s *stater) Close() { s.client.Close() }

// Login is a client that connects, asks which server answers, and leaves.
type Login struct {
	DSN     string
	Timeout time.Duration
	Dial    pgconn.DialFunc
}

// Worker makes one such client.
func (l Login) Worker(client int) (method.Worker, error) {
	s, err := session.New(session.Options{DSN: l.DSN, Start: client, Timeout: l.Timeout, Name: appName, Dial: l.Dial})
	if err != nil {
		return nil, err
	}
	return &logger{asker{session: s, again: true}}, nil
}

type logger struct{ client asker }

// Do implements method.Worker.
func (l *logger) Do(ctx context.Context) (method.Event, error) {
	return l.client.do(ctx, func(context.Context, *pgx.Conn, *method.Event) error { return nil })
}

// Close implements method.Worker.
func (l *logger) Close() { l.client.Close() }

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx) // the connection is not used again
}
