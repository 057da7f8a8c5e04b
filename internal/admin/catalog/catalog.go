package catalog

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"modernc.org/libc"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/coteriedb/coterie/internal/admin/dialect"
)

// Limits of a query.
const (
	maxRows    = 10000
	maxBytes   = 16 << 20         // of an answer
	maxHeap    = 96 << 20         // bytes that SQLite may have allocated, of all engines together
	maxValue   = 64 << 10         // bytes of a value or a row in the engine
	maxShown   = 8 << 10          // bytes of a text in a view; the rest of a longer one is cut off
	queryLimit = 10 * time.Second // unless the caller has a limit of its own
	engines    = 3                // engines that exist at once; further queries wait
	perUser    = engines - 1      // queries of one user that are under way at once; further ones wait
)

// Catalog answers queries. Make it with New and Close it at the end.
type Catalog struct {
	facts func(context.Context) Facts
	pool  chan *engine

	mu      sync.Mutex // guards the fields below
	open    []*engine
	running map[string]int // queries under way, by user
	left    chan struct{}  // closed when a query ends, and replaced
}

// engine is an embedded database with the views as tables. One query uses it at a time.
type engine struct {
	db    *sql.DB
	conn  *sql.Conn
	facts *Facts // of the running query, for its functions

	trusted bool         // the statements of this package run; those of a client never do while it is set
	denied  bool         // a statement asked for more than reading the views
	pump    func() error // executes the running query; see run

	over <-chan struct{} // closed at the end of the running query's time; nil: none runs
}

// Column is a column of a result.
type Column struct {
	Name string
	Type uint32 // OID
}

// New returns a catalog of the facts. Each query calls facts once.
func New(facts func(context.Context) Facts) *Catalog {
	c := &Catalog{facts: facts, pool: make(chan *engine, engines), running: map[string]int{}, left: make(chan struct{})}
	for range engines {
		c.pool <- nil // opened at first use
	}
	return c
}

// Close frees the engines. No query may be under way.
func (c *Catalog) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.open {
		e.close()
	}
	c.open = nil
}

func (e *engine) close() {
	_ = e.conn.Close()
	_ = e.db.Close()
}

// discard closes an engine that is not used again.
func (c *Catalog) discard(e *engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(x *engine) bool { return x == e })
	e.close()
}

// connector opens connections of one driver.
type connector struct{ d *sqlite.Driver }

// Connect opens a database in memory, in which "x" is a name and never a string.
func (c connector) Connect(context.Context) (driver.Conn, error) {
	return c.d.Open(":memory:?_dqs=0&_defensive=1")
}
func (c connector) Driver() driver.Driver { return c.d }

// limitHeap bounds the memory of SQLite in this process. It is called before the first database is opened: SQLite
// counts its memory only if that is asked for by then, and without a count it does not keep the limit.
var limitHeap = sync.OnceValue(func() error {
	tls := libc.NewTLS()
	defer tls.Close()
	arg := libc.Xmalloc(tls, 8)
	if arg == 0 {
		return errors.New("limit the memory of the engine: no memory")
	}
	defer libc.Xfree(tls, arg)
	if rc := sqlite3.Xsqlite3_config(tls, sqlite3.SQLITE_CONFIG_MEMSTATUS, libc.VaList(arg, int32(1))); rc != sqlite3.SQLITE_OK {
		return fmt.Errorf("limit the memory of the engine: SQLite counts no memory: %d", rc)
	}
	if sqlite3.Xsqlite3_hard_heap_limit64(tls, maxHeap); sqlite3.Xsqlite3_hard_heap_limit64(tls, -1) != maxHeap {
		return errors.New("limit the memory of the engine: SQLite takes no limit")
	}
	return nil
})

func (c *Catalog) newEngine(ctx context.Context) (*engine, error) {
	if err := limitHeap(); err != nil {
		return nil, err
	}
	e := &engine{facts: &Facts{}}
	d := &sqlite.Driver{}
	if err := e.registerPure(d); err != nil {
		return nil, err
	}
	if err := registerOthers(d); err != nil {
		return nil, err
	}
	for name, fn := range answers {
		f := fn.f
		err := d.RegisterFunction(name, &sqlite.FunctionImpl{
			NArgs: fn.args, Scalar: func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) { return f(*e.facts, args) },
		})
		if err != nil {
			return nil, fmt.Errorf("function %s: %w", name, err)
		}
	}
	err := d.RegisterFunction(pumpName, &sqlite.FunctionImpl{
		Scalar: func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) { return nil, e.pump() },
	})
	if err != nil {
		return nil, fmt.Errorf("function %s: %w", pumpName, err)
	}
	e.db = sql.OpenDB(connector{d})
	e.db.SetMaxOpenConns(1)
	if e.conn, err = e.db.Conn(ctx); err != nil {
		return nil, errors.Join(err, e.db.Close())
	}
	if err := e.setUp(ctx); err != nil {
		return nil, errors.Join(err, e.conn.Close(), e.db.Close())
	}
	c.mu.Lock()
	c.open = append(c.open, e)
	c.mu.Unlock()
	return e, nil
}

// limitsOfEngine are the limits of SQLite that an engine gets after its set-up, by their numbers in its C interface.
var limitsOfEngine = map[int]int{
	0:  maxValue,  // SQLITE_LIMIT_LENGTH: one function call on such values takes milliseconds, and nothing interrupts it
	1:  512 << 10, // SQL_LENGTH
	2:  500,       // COLUMN
	3:  200,       // EXPR_DEPTH
	4:  50,        // COMPOUND_SELECT
	5:  100_000,   // VDBE_OP
	6:  100,       // FUNCTION_ARG
	7:  0,         // ATTACHED: no further database is attached
	8:  1000,      // LIKE_PATTERN_LENGTH
	9:  maxParams, // VARIABLE_NUMBER
	10: 0,         // TRIGGER_DEPTH
	11: 0,         // WORKER_THREADS
}

func (e *engine) setUp(ctx context.Context) error {
	e.trusted = true
	defer func() { e.trusted = false }()
	err := e.conn.Raw(func(c any) error {
		return c.(sqlite.AuthorizerRegisterer).RegisterAuthorizer(func(a sqlite.AuthorizerActionCode, arg1, arg2, database, _ string) sqlite.AuthorizerReturnCode {
			return e.authorize(a, arg1, arg2, database)
		})
	})
	if err != nil {
		return fmt.Errorf("set up the views: %w", err)
	}
	statements := []string{"PRAGMA temp_store = MEMORY", "PRAGMA trusted_schema = OFF"}
	for _, s := range schemas {
		statements = append(statements, "ATTACH ':memory:' AS "+s)
	}
	for _, v := range views {
		var columns []string
		for _, c := range v.columns {
			columns = append(columns, fmt.Sprintf("%q %s", c.name, c.typ.declare))
		}
		statements = append(statements, fmt.Sprintf("CREATE TABLE %s.%s (%s)", v.schema, v.name, strings.Join(columns, ", ")))
	}
	for _, s := range statements {
		if _, err := e.conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("set up the views: %s: %w", s, err)
		}
	}
	for id, n := range limitsOfEngine {
		if _, err := sqlite.Limit(e.conn, id, n); err != nil {
			return fmt.Errorf("set up the views: %w", err)
		}
	}
	return nil
}

// enter waits until the user may have one more query under way. The caller calls leave at its end.
func (c *Catalog) enter(ctx context.Context, user string) (leave func(), err error) {
	for {
		c.mu.Lock()
		if c.running[user] < perUser {
			c.running[user]++
			c.mu.Unlock()
			return func() { c.leave(user) }, nil
		}
		left := c.left
		c.mu.Unlock()
		select {
		case <-left:
		case <-ctx.Done():
			return nil, &Error{State: "53300", Message: fmt.Sprintf("%d queries of %q were under way all the time; at most %d are executed at once", perUser, user, perUser)}
		}
	}
}

func (c *Catalog) leave(user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[user]--; c.running[user] == 0 {
		delete(c.running, user)
	}
	close(c.left)
	c.left = make(chan struct{})
}

// use runs f on an engine whose tables contain the current facts. Only the tables that the query names are filled.
func (c *Catalog) use(ctx context.Context, user string, t *dialect.Translation, f func(context.Context, *engine) error) error {
	start := time.Now()
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, queryLimit)
		defer cancel()
	}
	leave, err := c.enter(ctx, user)
	if err != nil {
		return err
	}
	defer leave()
	facts := c.facts(ctx)
	facts.User = user
	var e *engine
	select {
	case e = <-c.pool:
	case <-ctx.Done():
		return &Error{State: "53300", Message: "too many queries are under way"}
	}
	// An engine that was asked for a forbidden thing, that had no memory left, or whose query panicked, is not used
	// again.
	sound := false
	defer func() {
		if e != nil && !sound {
			c.discard(e)
			e = nil
		}
		c.pool <- e
	}()
	if e == nil {
		if e, err = c.newEngine(ctx); err != nil {
			e = nil
			return endedBy(ctx, start, queryError(err))
		}
	}
	*e.facts = facts
	if err := e.fill(ctx, t.Tables); err != nil {
		return endedBy(ctx, start, queryError(fmt.Errorf("fill the views: %w", err)))
	}
	err = f(ctx, e)
	sound = !e.denied && !errors.Is(err, errNoMemory)
	return endedBy(ctx, start, err)
}

// endedBy returns the error of a query that began at start: that of its context, if this has ended it.
func endedBy(ctx context.Context, start time.Time, err error) error {
	if ctx.Err() != nil && err != nil {
		return &Error{State: "57014", Message: fmt.Sprintf("the query was ended after %v", time.Since(start).Round(time.Millisecond))}
	}
	return err
}

// errNoMemory is the error of a query that the limit of the engines' memory ended.
var errNoMemory = &Error{
	State: "54000", Message: fmt.Sprintf("the queries under way need more than %d bytes of memory", maxHeap),
	Hint: "sort, group or join less at once",
}

// fill writes the rows of every view that the query names.
func (e *engine) fill(ctx context.Context, tables []string) error {
	e.trusted = true
	defer func() { e.trusted = false }()
	if _, err := e.conn.ExecContext(ctx, "PRAGMA query_only = OFF"); err != nil {
		return err
	}
	for _, v := range views {
		if !slices.ContainsFunc(tables, func(name string) bool { return strings.EqualFold(name, v.full()) }) {
			continue
		}
		empty, insert := v.statements()
		if _, err := e.conn.ExecContext(ctx, empty); err != nil {
			return err
		}
		for _, row := range v.rows(*e.facts) {
			if len(row) != len(v.columns) {
				return fmt.Errorf("%s has %d columns and a row of %d", v.full(), len(v.columns), len(row))
			}
			for i, x := range row {
				if x, long := x.(string); long && len(x) > maxShown {
					row[i] = strings.ToValidUTF8(x[:maxShown], "") + "…"
				}
			}
			if _, err := e.conn.ExecContext(ctx, insert, row...); err != nil {
				return err
			}
		}
	}
	_, err := e.conn.ExecContext(ctx, "PRAGMA query_only = ON")
	return err
}

// maxParams is the maximum number of parameters of a query.
const maxParams = 100

// Rows receives the answer to a query. An error of a method ends the query, which returns it.
type Rows interface {
	Columns(list []Column) error // before the first row; once
	Row(values []any) error      // bool, int64, float64, string, time.Time or nil; the slice is the receiver's
	Notice(text string)          // of a clause that has no effect; before the columns
}

// described is the columns of a query of which nobody wants the rows.
type described []Column

func (d *described) Columns(list []Column) error { *d = list; return nil }
func (d *described) Row([]any) error             { return nil }
func (d *described) Notice(string)               {}

// Describe returns a query's columns and the types of its parameters, without its rows. The types in given are the
// client's; 0: the client left it open.
func (c *Catalog) Describe(ctx context.Context, user, query string, given []uint32) ([]Column, []uint32, error) {
	t, err := translate(ctx, query, nil)
	if err != nil {
		return nil, nil, err
	}
	params := make([]uint32, len(t.Params))
	copy(params, given)
	for i := range params {
		params[i] = cmp.Or(params[i], t.Params[i], typeText.oid)
	}
	args := make([]any, len(params))
	for _, n := range t.Limits { // LIMIT does not accept NULL
		args[n-1] = int64(1)
	}
	var columns described
	err = c.use(ctx, user, t, func(ctx context.Context, e *engine) error {
		return e.run(ctx, t.SQL, args, newAnswer(&columns, 1, t))
	})
	return columns, params, err
}

// Question is a query of a user, with the arguments of its parameters and the variables that it may name.
type Question struct {
	User, Text string
	Args       []any
	Variables  map[string]dialect.Value
}

// Query runs a query for a user and sends its rows as they come. An engine is the query's until the last row is taken,
// or its time is over.
func (c *Catalog) Query(ctx context.Context, q Question, to Rows) error {
	t, err := translate(ctx, q.Text, q.Variables)
	if err != nil {
		return err
	}
	if n := len(t.Params); n != len(q.Args) {
		return &Error{State: "08P01", Message: fmt.Sprintf("the query has %d parameters, and %d are given", n, len(q.Args))}
	}
	for _, n := range t.Notices {
		to.Notice(n)
	}
	return c.use(ctx, q.User, t, func(ctx context.Context, e *engine) error {
		return e.run(ctx, t.SQL, q.Args, newAnswer(to, maxRows, t))
	})
}

// pumpName is the function of the engine that executes the query of a client.
const pumpName = "coterie_pump"

// run executes the query. The text must be one statement, and the authorizer lets it read the views only.
//
// The driver interrupts a statement up to its first row only. So the query runs inside a function of another statement,
// whose first row comes when the query has ended: the end of ctx ends it at any row.
func (e *engine) run(ctx context.Context, query string, args []any, a *answer) error {
	if !oneStatement(query) {
		return &Error{State: "42601", Message: "the text is more than one statement"}
	}
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		v, err := driver.DefaultParameterConverter.ConvertValue(a)
		if err != nil {
			return &Error{State: "22023", Message: fmt.Sprintf("parameter $%d: %v", i+1, err)}
		}
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	err := e.conn.Raw(func(c any) error {
		var failed error
		e.pump = func() error {
			e.trusted = false
			failed = a.read(c.(driver.QueryerContext), query, named)
			return failed
		}
		e.trusted, e.over = true, ctx.Done()
		defer func() { e.trusted, e.pump, e.over = false, nil, nil }()
		_, err := c.(driver.ExecerContext).ExecContext(ctx, "SELECT "+pumpName+"()", nil)
		return cmp.Or(failed, err)
	})
	if err != nil && a.refused == nil {
		return queryError(err)
	}
	return a.refused
}

// queryError converts an error of the engine to one for a client.
func queryError(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	text := err.Error()
	text = strings.TrimPrefix(text, "SQL logic error: ")
	if i := strings.LastIndex(text, " ("); i > 0 {
		text = text[:i]
	}
	e := &Error{State: "42601", Message: text}
	switch {
	case strings.Contains(text, "is not supported in the console"):
		e.State = "0A000"
	case strings.Contains(text, "no such table"):
		e.State, e.Hint = "42P01", "SELECT table_schema, table_name FROM information_schema.tables lists what there is; the data is in other databases"
	case strings.Contains(text, "no such column"):
		e.State = "42703"
	case strings.Contains(text, "no such function"), strings.Contains(text, "wrong number of arguments"):
		e.State, e.Hint = "42883", "docs/views.md lists the functions of the console"
	case strings.Contains(text, "not authorized"), strings.Contains(text, "prohibited"):
		e.State, e.Message, e.Hint = "42501", "permission denied: "+text, "a query of the console reads the views, and does nothing else"
	case strings.Contains(text, "out of memory"):
		return errNoMemory
	case strings.Contains(text, "too big"), strings.Contains(text, "too large"):
		e.State = "54000"
	case strings.Contains(text, errManyRows.Error()):
		e.State = "21000"
	case strings.Contains(text, "division by zero"):
		e.State = "22012"
	case strings.Contains(text, "conversion failed"):
		e.State = "22P02"
	case strings.Contains(text, "out of range"), strings.Contains(text, "overflow"):
		e.State = "22003"
	case strings.Contains(text, "interrupted"):
		return context.DeadlineExceeded
	}
	return e
}
