package catalog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
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

// engine is an embedded database with the views as tables.
type engine struct {
	db    *sql.DB
	conn  *sql.Conn
	facts *Facts // of the running query, for its functions
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
		_ = e.conn.Close()
		_ = e.db.Close()
	}
	c.open = nil
}

// connector opens connections of one driver.
type connector struct{ d *sqlite.Driver }

func (c connector) Connect(context.Context) (driver.Conn, error) { return c.d.Open(":memory:") }
func (c connector) Driver() driver.Driver                        { return c.d }

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
	e.db = sql.OpenDB(connector{d})
	e.db.SetMaxOpenConns(1)
	var err error
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

// Limits of SQLite, by their numbers in its C interface.
const (
	limitLength      = 0
	limitSQLLength   = 1
	limitCompound    = 4
	limitExprDepth   = 3
	limitLikePattern = 8
)

func (e *engine) setUp(ctx context.Context) error {
	statements := []string{"PRAGMA hard_heap_limit = 67108864", "PRAGMA temp_store = MEMORY", "PRAGMA trusted_schema = OFF"}
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
	for id, n := range map[int]int{limitLength: 4 << 20, limitSQLLength: 512 << 10, limitCompound: 50, limitExprDepth: 200, limitLikePattern: 1000} {
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
	facts := c.facts(ctx)
	facts.User = user
	var e *engine
	select {
	case e = <-c.pool:
	case <-ctx.Done():
		return &Error{State: "53300", Message: "too many queries are under way"}
	}
	defer func() { c.pool <- e }()
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
	err := f(ctx, e)
	if ctx.Err() != nil && err != nil {
		return &Error{State: "57014", Message: fmt.Sprintf("the query took longer than %v", queryLimit)}
	}
	return err
}

// fill writes the rows of every view that the query names.
func (e *engine) fill(ctx context.Context, t []token) error {
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
	return nil
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

// Describe returns a query's columns and the types of its parameters, without its rows. The types in given are the client's; 0: the client
// left it open.
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

// run executes the query and returns at most that many rows. The engine itself refuses writes.
func (e *engine) run(ctx context.Context, query string, args []any, most int) ([]Column, [][]any, error) {
	if _, err := e.conn.ExecContext(ctx, "PRAGMA query_only = ON"); err != nil {
		return nil, nil, err
	}
	defer func() { _, _ = e.conn.ExecContext(context.WithoutCancel(ctx), "PRAGMA query_only = OFF") }()
	rows, err := e.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, nil, queryError(err)
	}
	defer func() { _ = rows.Close() }()
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, nil, queryError(err)
	}
	columns, known := make([]Column, len(types)), make([]bool, len(types))
	for i, ct := range types {
		t, ok := typeByDeclaration(ct.DatabaseTypeName())
		if !ok {
			t = typeText
		}
		columns[i], known[i] = Column{ct.Name(), t.oid}, ok
	}
	var out [][]any
	for rows.Next() {
		if len(out) == most {
			if most == maxRows {
				return nil, nil, &Error{State: "54000", Message: fmt.Sprintf("the answer has more than %d rows", maxRows), Hint: "add LIMIT"}
			}
			break
		}
		values, into := make([]any, len(types)), make([]any, len(types))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, nil, queryError(err)
		}
		out = append(out, values)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, queryError(err)
	}
	for i := range columns {
		if !known[i] {
			columns[i] = expressionColumn(columns[i].Name, out, i)
		}
		for _, row := range out {
			row[i] = typed(row[i], columns[i].Type)
		}
	}
	return columns, out, nil
}

var (
	aName = regexp.MustCompile(`^[\pL_][\pL\pN_ $#-]*$`)
	aCall = regexp.MustCompile(`^(\w+) *\(`)
)

// functionTypes are the result types of functions, for results without a value.
var functionTypes = map[string]uint32{
	"count": typeInt8.oid, "sum": typeInt8.oid, "row_number": typeInt8.oid, "rank": typeInt8.oid, "datediff": typeInt8.oid, "len": typeInt8.oid, "length": typeInt8.oid,
	"now": typeTime.oid, "getdate": typeTime.oid, "to_timestamp": typeTime.oid, "date_trunc": typeTime.oid, "clock_timestamp": typeTime.oid,
	"extract_field": typeFloat.oid, "avg": typeFloat.oid, "backup_is_preferred_replica": typeInt8.oid, "fn_hadr_backup_is_preferred_replica": typeInt8.oid,
}

// expressionColumn returns name and type of a column that is an expression. The name is PostgreSQL's; the type follows from the first value
// or, without values, from the function.
func expressionColumn(name string, rows [][]any, i int) Column {
	c := Column{name, inferred(rows, i)}
	call := aCall.FindStringSubmatch(name)
	if call != nil && !slices.ContainsFunc(rows, func(row []any) bool { return row[i] != nil }) {
		if t, ok := functionTypes[strings.ToLower(call[1])]; ok {
			c.Type = t
		} else if strings.HasSuffix(name, "AS INTEGER )") {
			c.Type = typeInt8.oid
		}
	}
	switch {
	case call != nil && strings.EqualFold(call[1], "CAST"):
		c.Name = "?column?"
	case call != nil:
		c.Name = strings.Replace(strings.ToLower(call[1]), "extract_field", "extract", 1)
	case !aName.MatchString(name):
		c.Name = "?column?"
	}
	return c
}

// inferred returns the type of an expression: that of its first value.
func inferred(rows [][]any, i int) uint32 {
	for _, row := range rows {
		switch v := row[i].(type) {
		case nil:
			continue
		case int64:
			return typeInt8.oid
		case float64:
			return typeFloat.oid
		case bool:
			return typeBool.oid
		case string:
			if _, err := time.Parse(timeLayout, v); err == nil {
				return typeTime.oid
			}
			return typeText.oid
		default:
			return typeText.oid
		}
	}
	return typeText.oid
}

// typed converts a value of the engine to the type.
func typed(v any, oid uint32) any {
	switch x := v.(type) {
	case []byte:
		return typed(string(x), oid)
	case int64:
		if oid == typeBool.oid {
			return x != 0
		}
	case string:
		if oid == typeTime.oid {
			if t, err := time.Parse(timeLayout, x); err == nil {
				return t
			}
		}
	}
	return v
}

// queryError converts an error of the engine to one for a client.
func queryError(err error) error {
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
	case strings.Contains(text, "readonly"), strings.Contains(text, "read-only"):
		e.State = "25006"
	case strings.Contains(text, "out of memory"), strings.Contains(text, "too big"), strings.Contains(text, "too large"):
		e.State = "54000"
	case strings.Contains(text, "interrupted"):
		return context.DeadlineExceeded
	}
	return e
}

// guessParams returns for each parameter the type that the client gave, or else that of the column next to it.
func guessParams(t []token, n int, given []uint32) []uint32 {
	out := make([]uint32, n)
	copy(out, given)
	for i, x := range t {
		if x.kind != tokParam {
			continue
		}
		k, _ := strconv.Atoi(x.text[1:])
		if k < 1 || k > n || out[k-1] != 0 {
			continue
		}
		switch {
		case at(t, i-1).is("LIMIT") || at(t, i-1).is("OFFSET"):
			out[k-1] = typeInt8.oid
		case at(t, i+1).is("AS") && at(t, i+2).is("INTEGER"):
			out[k-1] = typeInt8.oid
		case at(t, i+1).is("AS") && at(t, i+2).is("REAL"):
			out[k-1] = typeFloat.oid
		case at(t, i-1).kind == tokSign && at(t, i-2).kind != tokSign:
			out[k-1] = columnTypeOf(at(t, i-2).text)
		}
	}
	for i := range out {
		if out[i] == 0 {
			out[i] = typeText.oid
		}
	}
	return out
}

// columnTypeOf returns the type of a column by its name alone.
func columnTypeOf(name string) uint32 {
	for _, v := range views {
		for _, c := range v.columns {
			if strings.EqualFold(c.name, strings.Trim(name, `"`)) {
				return c.typ.oid
			}
		}
	}
	return 0
}
