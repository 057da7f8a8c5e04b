package catalog

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// columnType is a column's type: what clients are told, and how the SQL engine declares it.
type columnType struct {
	oid     uint32
	name    string // PostgreSQL's
	declare string // the engine takes the affinity from it
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
)

var columnTypes = []columnType{typeBool, typeInt8, typeInt4, typeText, typeOID, typeFloat, typeTime, typeUUID}

func typeByDeclaration(declared string) (columnType, bool) {
	i := slices.IndexFunc(columnTypes, func(t columnType) bool { return strings.EqualFold(t.declare, declared) })
	if i < 0 {
		return columnType{}, false
	}
	return columnTypes[i], true
}

// column is one of a view's; absent says why it is always NULL.
type column struct {
	name   string
	typ    columnType
	absent string
}

// view is a table of the catalog and how it is filled.
type view struct {
	schema, name string
	about        string
	columns      []column
	rows         func(Facts) [][]any
	oid          int64
}

func (v view) full() string { return v.schema + "." + v.name }

// statements empty the view's table in the engine, and insert a row.
func (v view) statements() (empty, insert string) {
	return "DELETE FROM " + v.full(), "INSERT INTO " + v.full() + " VALUES (?" + strings.Repeat(", ?", len(v.columns)-1) + ")"
}

// cols reads "name type, name type" with types b i8 i4 t o f ts u.
func cols(spec string) []column {
	types := map[string]columnType{"b": typeBool, "i8": typeInt8, "i4": typeInt4, "t": typeText, "o": typeOID, "f": typeFloat, "ts": typeTime, "u": typeUUID}
	var out []column
	for _, f := range strings.Split(spec, ",") {
		name, t, _ := strings.Cut(strings.TrimSpace(f), " ")
		typ, ok := types[strings.TrimSuffix(t, "!")]
		if !ok {
			panic(fmt.Sprintf("catalog: column %q of type %q", name, t)) // a slip in this package
		}
		c := column{name: name, typ: typ}
		if strings.HasSuffix(t, "!") {
			c.absent = absences[name]
			if c.absent == "" {
				panic("catalog: why is there no " + name)
			}
		}
		out = append(out, c)
	}
	return out
}

// timeLayout is how times stand in the engine: they sort as text.
const timeLayout = "2006-01-02 15:04:05.000000-07"

// perNode makes the rows of a view that tells a list of every node that answers, the node's name first.
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

// orNull turns a zero value into NULL.
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
