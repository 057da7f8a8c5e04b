package catalog

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"
)

// Limits of a query.
const (
	maxRows    = 10000
	maxBytes   = 16 << 20  // of an answer
	maxGrowth  = 128 << 20 // bytes by which the process may grow during a query
	queryLimit = 10 * time.Second
	engines    = 3 // engines that exist at once; further queries wait
)

// Catalog answers queries. Make it with New and Close it at the end.
type Catalog struct {
	facts func(context.Context) Facts
	pool  chan *engine

	mu   sync.Mutex // guards open
	open []*engine
}

// engine is an embedded database with the views as tables. One query uses it at a time.
type engine struct {
	db    *sql.DB
	conn  *sql.Conn
	facts *Facts // of the running query, for its functions

	trusted bool         // the statements of this package run; those of a client never do while it is set
	denied  bool         // a statement asked for more than reading the views
	pump    func() error // executes the running query; see run
}

// Column is a column of a result.
type Column struct {
	Name string
	Type uint32 // OID
}

// New returns a catalog of the facts. Each query calls facts once.
func New(facts func(context.Context) Facts) *Catalog {
	c := &Catalog{facts: facts, pool: make(chan *engine, engines)}
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

func (c *Catalog) newEngine(ctx context.Context) (*engine, error) {
	e := &engine{facts: &Facts{}}
	d := &sqlite.Driver{}
	if err := registerPure(d); err != nil {
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
	0:  1 << 20,   // SQLITE_LIMIT_LENGTH: bytes of a value or a row
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

// use runs f on an engine whose tables contain the current facts. Only the tables that the query names are filled.
func (c *Catalog) use(ctx context.Context, user string, t []token, f func(context.Context, *engine) error) error {
	ctx, cancel := context.WithTimeout(ctx, queryLimit)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	facts := c.facts(ctx)
	facts.User = user
	var e *engine
	select {
	case e = <-c.pool:
	case <-ctx.Done():
		return &Error{State: "53300", Message: "too many queries are under way"}
	}
	sound := false // an engine that was asked for a forbidden thing, or whose query panicked, is not used again
	defer func() {
		if e != nil && !sound {
			c.discard(e)
			e = nil
		}
		c.pool <- e
	}()
	if e == nil {
		var err error
		if e, err = c.newEngine(ctx); err != nil {
			e = nil
			return err
		}
	}
	*e.facts = facts
	if err := e.fill(ctx, t); err != nil {
		return fmt.Errorf("fill the views: %w", err)
	}
	go watchMemory(ctx, stop)
	err := f(ctx, e)
	sound = !e.denied
	var known *Error
	if err != nil && errors.As(context.Cause(ctx), &known) {
		sound = false
		return known
	}
	if ctx.Err() != nil && err != nil {
		return &Error{State: "57014", Message: fmt.Sprintf("the query took longer than %v", queryLimit)}
	}
	return err
}

// watchMemory stops the query when the process has grown by maxGrowth since it began. The engine's own heap limit does
// not work: the library is built without SQLite's memory statistics. Growth that other parts of the process cause
// counts, too.
func watchMemory(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begin := resident(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if resident() > begin+maxGrowth {
			stop(&Error{State: "54000", Message: fmt.Sprintf("the query needs more than %d bytes of memory", maxGrowth)})
			return
		}
	}
}

// resident returns the resident memory of the process in bytes; 0 where the kernel does not tell.
func resident() int {
	b, _ := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(b)); len(fields) > 1 {
		pages, _ := strconv.Atoi(fields[1])
		return pages * os.Getpagesize()
	}
	return 0
}

// fill writes the rows of every view that the query names.
func (e *engine) fill(ctx context.Context, t []token) error {
	e.trusted = true
	defer func() { e.trusted = false }()
	if _, err := e.conn.ExecContext(ctx, "PRAGMA query_only = OFF"); err != nil {
		return err
	}
	for _, v := range views {
		named := slices.ContainsFunc(t, func(x token) bool { return x.is(v.name) || strings.EqualFold(x.text, `"`+v.name+`"`) })
		if !named {
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
			if _, err := e.conn.ExecContext(ctx, insert, row...); err != nil {
				return err
			}
		}
	}
	_, err := e.conn.ExecContext(ctx, "PRAGMA query_only = ON")
	return err
}

// numbered replaces $n by ?n, and returns the number of parameters.
func numbered(t []token) (string, int) {
	out, most := slices.Clone(t), 0
	for i, x := range out {
		if x.kind == tokParam {
			n, _ := strconv.Atoi(x.text[1:])
			most = max(most, n)
			out[i].text = "?" + x.text[1:]
		}
	}
	return join(out), most
}

// maxParams is the maximum number of parameters of a query.
const maxParams = 100

// Describe returns a query's columns and the types of its parameters, without its rows. The types in given are the
// client's; 0: the client left it open.
func (c *Catalog) Describe(ctx context.Context, query string, given []uint32) (columns []Column, params []uint32, err error) {
	t, err := rewrite(query)
	if err != nil {
		return nil, nil, err
	}
	sqlText, n := numbered(t)
	if n > maxParams {
		return nil, nil, &Error{State: "54000", Message: fmt.Sprintf("at most %d parameters are taken", maxParams)}
	}
	params = guessParams(t, n, given)
	args := make([]any, n)
	for i, x := range t { // LIMIT does not accept NULL
		if k, err := strconv.Atoi(strings.TrimPrefix(x.text, "$")); err == nil && x.kind == tokParam && k >= 1 && (at(t, i-1).is("LIMIT") || at(t, i-1).is("OFFSET")) {
			args[k-1] = int64(1)
		}
	}
	err = c.use(ctx, "", t, func(ctx context.Context, e *engine) error {
		columns, _, err = e.run(ctx, sqlText, args, 1)
		return err
	})
	return columns, params, err
}

// Query runs a query for a user and returns its rows. Values are bool, int64, float64, string, time.Time and nil.
func (c *Catalog) Query(ctx context.Context, user, query string, args []any) (columns []Column, rows [][]any, err error) {
	t, err := rewrite(query)
	if err != nil {
		return nil, nil, err
	}
	sqlText, n := numbered(t)
	if n != len(args) {
		return nil, nil, &Error{State: "08P01", Message: fmt.Sprintf("the query has %d parameters, and %d are given", n, len(args))}
	}
	err = c.use(ctx, user, t, func(ctx context.Context, e *engine) error {
		columns, rows, err = e.run(ctx, sqlText, args, maxRows)
		return err
	})
	return columns, rows, err
}

// pumpName is the function of the engine that executes the query of a client.
const pumpName = "coterie_pump"

// run executes the query and returns at most that many rows. The text must be one statement, and the authorizer lets it
// read the views only.
//
// The driver interrupts a statement up to its first row only. So the query runs inside a function of another statement,
// whose first row comes when the query has ended: the end of ctx ends it at any row.
func (e *engine) run(ctx context.Context, query string, args []any, most int) ([]Column, [][]any, error) {
	if !oneStatement(query) {
		return nil, nil, &Error{State: "42601", Message: "the text is more than one statement"}
	}
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		v, err := driver.DefaultParameterConverter.ConvertValue(a)
		if err != nil {
			return nil, nil, &Error{State: "22023", Message: fmt.Sprintf("parameter $%d: %v", i+1, err)}
		}
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	var a *answer
	err := e.conn.Raw(func(c any) error {
		var failed error
		e.pump = func() error {
			e.trusted = false
			a, failed = read(c.(driver.QueryerContext), query, named, most)
			return failed
		}
		e.trusted = true
		defer func() { e.trusted, e.pump = false, nil }()
		_, err := c.(driver.ExecerContext).ExecContext(ctx, "SELECT "+pumpName+"()", nil)
		return cmp.Or(failed, err)
	})
	if err != nil {
		return nil, nil, queryError(err)
	}
	return a.typed()
}

// answer is what the engine answers to a query.
type answer struct {
	columns []Column
	known   []bool // whether the column's type is known from its declaration
	rows    [][]any
}

// read executes the query.
func read(c driver.QueryerContext, query string, args []driver.NamedValue, most int) (*answer, error) {
	rows, err := c.QueryContext(context.Background(), query, args)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	a, bytes := &answer{}, 0
	for i, name := range rows.Columns() {
		t, ok := typeByDeclaration(rows.(driver.RowsColumnTypeDatabaseTypeName).ColumnTypeDatabaseTypeName(i))
		if !ok {
			t = typeText
		}
		a.columns, a.known = append(a.columns, Column{name, t.oid}), append(a.known, ok)
	}
	for {
		values := make([]driver.Value, len(a.columns))
		if err := rows.Next(values); errors.Is(err, io.EOF) {
			return a, nil
		} else if err != nil {
			return nil, err
		}
		if len(a.rows) == most {
			if most == maxRows {
				return nil, &Error{State: "54000", Message: fmt.Sprintf("the answer has more than %d rows", maxRows), Hint: "add LIMIT"}
			}
			return a, nil
		}
		row := make([]any, len(values))
		for i, v := range values {
			row[i] = v
			bytes += 16
			switch v := v.(type) {
			case string:
				bytes += len(v)
			case []byte:
				bytes += len(v)
			}
		}
		if bytes > maxBytes {
			return nil, &Error{State: "54000", Message: fmt.Sprintf("the answer has more than %d bytes", maxBytes), Hint: "add LIMIT"}
		}
		a.rows = append(a.rows, row)
	}
}

// typed gives every column its type, and every value the type of its column.
func (a *answer) typed() ([]Column, [][]any, error) {
	for i := range a.columns {
		if !a.known[i] {
			a.columns[i] = expressionColumn(a.columns[i].Name, a.rows, i)
		}
		for _, row := range a.rows {
			row[i] = typed(row[i], a.columns[i].Type)
		}
	}
	return a.columns, a.rows, nil
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
	case strings.Contains(text, "no such table"):
		e.State, e.Hint = "42P01", "SELECT table_schema, table_name FROM information_schema.tables lists what there is; the data is in other databases"
	case strings.Contains(text, "no such column"):
		e.State = "42703"
	case strings.Contains(text, "no such function"), strings.Contains(text, "wrong number of arguments"):
		e.State, e.Hint = "42883", "docs/views.md lists the functions of the console; of psql's commands \\d, \\dv, \\dn and \\l work"
	case strings.Contains(text, "not authorized"), strings.Contains(text, "prohibited"):
		e.State, e.Message, e.Hint = "42501", "permission denied: "+text, "a query of the console reads the views, and does nothing else"
	case strings.Contains(text, "out of memory"), strings.Contains(text, "too big"), strings.Contains(text, "too large"):
		e.State = "54000"
	case strings.Contains(text, "interrupted"):
		return context.DeadlineExceeded
	}
	return e
}
