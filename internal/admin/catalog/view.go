package catalog

import (
	"cmp"
	"context"
	"database/sql/driver"
	_ "embed" // columns.txt
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/dialect"
	"github.com/coteriedb/coterie/internal/admin/scalar"
)

// columnType is the type of a column, for clients and for the SQL engine.
type columnType struct {
	oid     uint32
	name    string // PostgreSQL's
	declare string // declaration in the engine, which determines the affinity
	length  int
}

var (
	typeBool  = columnType{16, "boolean", "BOOL_INT", 1}
	typeInt8  = columnType{20, "bigint", "INT8", 8}
	typeInt4  = columnType{23, "integer", "INT4", 4}
	typeText  = columnType{25, "text", "TEXT", -1}
	typeOID   = columnType{26, "oid", "OID_INT", 4}
	typeFloat = columnType{701, "double precision", "FLOAT8_REAL", 8}
	typeTime  = columnType{1184, "timestamp with time zone", "TIMESTAMPTZ_TEXT", 8}
	typeUUID  = columnType{2950, "uuid", "UUID_TEXT", 16}

	typeDecimal = columnType{1700, "numeric", "NUMERIC_REAL", -1} // of expressions only
)

var columnTypes = []columnType{typeBool, typeInt8, typeInt4, typeText, typeOID, typeFloat, typeTime, typeUUID}

func typeByDeclaration(declared string) (columnType, bool) {
	i := slices.IndexFunc(columnTypes, func(t columnType) bool { return strings.EqualFold(t.declare, declared) })
	if i < 0 {
		return columnType{}, false
	}
	return columnTypes[i], true
}

// column is a column of a view.
type column struct {
	name    string
	typ     columnType
	null    bool   // it is always NULL, so that queries written for SQL Server run
	meaning string // of sys and coterie only; the reason if the column is always NULL
}

// about returns the meaning as a reader of one column needs it.
func (c column) about() string {
	if c.null {
		return "always NULL: " + c.meaning
	}
	return c.meaning
}

// view is a table of the catalog, with the function that returns its rows.
type view struct {
	schema, name string
	about        string
	columns      []column
	rows         func(Facts) [][]any
	oid          int64
}

func (v view) full() string { return v.schema + "." + v.name }

// ours reports whether the view is none of PostgreSQL's.
func (v view) ours() bool { return v.schema == "sys" || v.schema == "coterie" }

// statements returns the statements that empty the view's table in the engine, and that insert a row.
func (v view) statements() (empty, insert string) {
	return "DELETE FROM " + v.full(), "INSERT INTO " + v.full() + " VALUES (?" + strings.Repeat(", ?", len(v.columns)-1) + ")"
}

// cols parses "name type, name type" with the types b i8 i4 t o f ts u; a ! after the type marks a column that is
// always NULL.
func cols(spec string) []column {
	types := map[string]columnType{"b": typeBool, "i8": typeInt8, "i4": typeInt4, "t": typeText, "o": typeOID, "f": typeFloat, "ts": typeTime, "u": typeUUID}
	var out []column
	for _, f := range strings.Split(spec, ",") {
		name, t, _ := strings.Cut(strings.TrimSpace(f), " ")
		t, null := strings.CutSuffix(t, "!")
		typ, ok := types[t]
		if !ok {
			panic(fmt.Sprintf("catalog: column %q of type %q", name, t)) // a mistake in this package
		}
		out = append(out, column{name: name, typ: typ, null: null})
	}
	return out
}

//go:embed columns.txt
var columnText string

// shared is the section of columns.txt for columns of several views.
const shared = "shared"

// parseMeanings reads sections of views, each with lines "column: meaning". Its keys are section.column.
func parseMeanings(text string) map[string]string {
	out, section := map[string]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSuffix(name, "]")
		} else if name, meaning, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, "#") {
			out[section+"."+name] = meaning
		}
	}
	return out
}

// explain gives the columns of the views of sys and coterie their meanings.
func explain(list []view, meanings map[string]string) {
	for _, v := range list {
		if !v.ours() {
			continue
		}
		for i, c := range v.columns {
			v.columns[i].meaning = cmp.Or(meanings[v.full()+"."+c.name], meanings[shared+"."+c.name])
		}
	}
}

// timeLayout is the form of times in the engine: as text they sort by time.
const timeLayout = "2006-01-02 15:04:05.000000-07"

// perNode returns the rows of a view of a list that every node reports. The first column is the node's name.
func perNode[T any](list func(Node) []T, row func(T) []any) func(Facts) [][]any {
	return func(f Facts) (out [][]any) {
		for _, r := range f.Group.Replicas {
			for _, each := range list(f.Nodes[r.ID]) {
				out = append(out, append([]any{string(r.ID)}, row(each)...))
			}
		}
		return out
	}
}

func timeText(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(timeLayout)
}

// orNull returns NULL for a zero value.
func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
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
func typed(v any, oid uint32, scale int) any {
	switch x := v.(type) {
	case []byte:
		return typed(string(x), oid, scale)
	case int64:
		switch oid {
		case typeBool.oid:
			return x != 0
		case typeDecimal.oid:
			return scalar.Decimal(float64(x), scale)
		case typeFloat.oid:
			return float64(x)
		}
	case float64:
		switch oid {
		case typeDecimal.oid:
			return scalar.Decimal(x, scale)
		case typeInt8.oid, typeInt4.oid:
			if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
				return int64(x)
			}
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

// A row is held back until each column has a type, and then sent; at most these rows and bytes are.
const (
	heldRows  = 100
	heldBytes = 64 << 10
)

// answer sends what the engine answers to a query.
type answer struct {
	to   Rows
	most int // rows that are taken; with maxRows, a further one is an error

	static  []dialect.Column // what the translation knows of the columns
	columns []Column
	scales  []int  // digits of the fraction of decimals
	known   []bool // whether the column's type is known
	held    [][]any
	begun   bool // the columns are sent, and nothing is held back any more
	rows    int
	bytes   int
	refused error // of to
}

// newAnswer returns the receiver of the answer to a translation.
func newAnswer(to Rows, most int, t *dialect.Translation) *answer {
	return &answer{to: to, most: most, static: t.Columns}
}

// read executes the query.
func (a *answer) read(c driver.QueryerContext, query string, args []driver.NamedValue) error {
	rows, err := c.QueryContext(context.Background(), query, args)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	names := rows.Columns()
	for i, name := range names {
		t, ok := typeByDeclaration(rows.(driver.RowsColumnTypeDatabaseTypeName).ColumnTypeDatabaseTypeName(i))
		c, scale := Column{name, typeText.oid}, 0
		if ok {
			c.Type = t.oid
		} else if len(a.static) == len(names) {
			of := a.static[i].Type
			if oid := dialect.OIDOf(of); oid != 0 {
				c.Type, ok, scale = oid, true, of.Scale
			}
			if of.Kind == dialect.Elapsed {
				return &Error{State: "0A000", Message: "the difference of two times is not supported as a column", Hint: "DATEDIFF(second, a, b) is a number"}
			}
		}
		a.columns, a.scales, a.known = append(a.columns, c), append(a.scales, scale), append(a.known, ok)
	}
	for {
		values := make([]driver.Value, len(a.columns))
		if err := rows.Next(values); errors.Is(err, io.EOF) {
			return a.begin()
		} else if err != nil {
			return err
		}
		if a.rows == a.most {
			if a.most == maxRows {
				return &Error{State: "54000", Message: fmt.Sprintf("the answer has more than %d rows", maxRows), Hint: "add LIMIT"}
			}
			return a.begin()
		}
		if err := a.row(values); err != nil {
			return err
		}
	}
}

// row sends a row, or holds it back.
func (a *answer) row(values []driver.Value) error {
	row := make([]any, len(values))
	for i, v := range values {
		row[i] = v
		a.bytes += 16
		switch v := v.(type) {
		case string:
			a.bytes += len(v)
		case []byte:
			a.bytes += len(v)
		}
	}
	if a.rows++; a.bytes > maxBytes {
		return &Error{State: "54000", Message: fmt.Sprintf("the answer has more than %d bytes", maxBytes), Hint: "add LIMIT"}
	}
	if a.begun {
		return a.send(row)
	}
	a.held = append(a.held, row)
	open := false
	for i := range a.columns {
		open = open || !a.known[i] && !slices.ContainsFunc(a.held, func(row []any) bool { return row[i] != nil })
	}
	if !open || len(a.held) >= heldRows || a.bytes > heldBytes {
		return a.begin()
	}
	return nil
}

// begin gives every column its type, and sends the columns and the rows that were held back.
func (a *answer) begin() error {
	if a.begun {
		return nil
	}
	a.begun = true
	for i := range a.columns {
		if !a.known[i] {
			a.columns[i].Type = inferred(a.held, i)
		}
	}
	if a.refused = a.to.Columns(a.columns); a.refused != nil {
		return a.refused
	}
	for _, row := range a.held {
		if err := a.send(row); err != nil {
			return err
		}
	}
	a.held = nil
	return nil
}

func (a *answer) send(row []any) error {
	for i := range row {
		row[i] = typed(row[i], a.columns[i].Type, a.scales[i])
	}
	a.refused = a.to.Row(row)
	return a.refused
}
