package catalog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"

	"modernc.org/sqlite"

	"github.com/coteriedb/coterie/internal/admin/dialect"
	"github.com/coteriedb/coterie/internal/admin/scalar"
)

// Error is the error of a query.
type Error = dialect.Error

// kinds are the kinds of expressions, by the types of columns.
var kinds = map[uint32]dialect.Kind{
	typeBool.oid: dialect.Bit, typeInt8.oid: dialect.Int, typeInt4.oid: dialect.Int, typeOID.oid: dialect.Int, typeText.oid: dialect.Text, typeFloat.oid: dialect.Float,
	typeTime.oid: dialect.Time, typeUUID.oid: dialect.UUID,
}

// environment is what queries may refer to.
var environment = dialect.Env{
	Table: func(schema, name string) (string, []dialect.Column, bool) {
		v, ok := viewNamed(schema, name)
		if !ok {
			return "", nil, false
		}
		var out []dialect.Column
		for _, c := range v.columns {
			out = append(out, dialect.Column{Name: c.name, Type: dialect.Type{Kind: kinds[c.typ.oid], OID: c.typ.oid}})
		}
		return v.schema, out, true
	},
	Names: func() (out []string) {
		for _, v := range views {
			out = append(out, v.full())
		}
		return out
	}(),
	Function: func(name string) bool { return offered()[name] },
}

// viewNamed returns a view. Without a schema it is the first one of that name in the order of schemas.
func viewNamed(schema, name string) (view, bool) {
	for _, s := range schemas {
		if schema != "" && !strings.EqualFold(s, schema) {
			continue
		}
		for _, v := range views {
			if v.schema == s && strings.EqualFold(v.name, name) {
				return v, true
			}
		}
	}
	return view{}, false
}

// translate returns a query as the engine gets it.
func translate(ctx context.Context, text string, variables map[string]dialect.Value) (*dialect.Translation, error) {
	env := environment
	env.Variables = variables
	t, err := dialect.Translate(ctx, text, env)
	if err != nil {
		return nil, err
	}
	if len(t.Params) > maxParams {
		return nil, dialect.Errorf("54000", "at most %d parameters are taken", maxParams)
	}
	if !oneStatement(t.SQL) {
		return nil, dialect.Errorf("42601", "the text is more than one statement")
	}
	return t, nil
}

// endOfQuote returns the index behind the quotation at the beginning of s; 0 if there is none, or it does not end.
func endOfQuote(s string, mark byte) int {
	if s[0] != mark {
		return 0
	}
	for i := 1; i < len(s); i++ {
		if s[i] != mark {
			continue
		}
		if i+1 == len(s) || s[i+1] != mark {
			return i + 1
		}
		i++
	}
	return 0
}

// oneStatement reports whether a text for the engine is one statement by the rules of the engine's own lexer. It does
// not rely on the translation. Quotations and comments that a translation never contains count as more than one.
func oneStatement(sql string) bool {
	for i := 0; i < len(sql); {
		switch c := sql[i]; {
		case c == '\'' || c == '"':
			n := endOfQuote(sql[i:], c)
			if n == 0 {
				return false
			}
			i += n
		case strings.IndexByte(";`[]\x00#@$:\\", c) >= 0, strings.HasPrefix(sql[i:], "--"), strings.HasPrefix(sql[i:], "/*"):
			return false
		default:
			i++
		}
	}
	return true
}

// builtIn are the functions of the engine itself that a query may call. The others reach beyond the query's values:
// they load extensions, read tables by their names, write the log or belong to other kinds of tables.
var builtIn = strings.Fields(`-> ->> abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce concat concat_ws cos cosh count
	cume_dist current_date current_time current_timestamp date datetime degrees dense_rank exp first_value floor format glob group_concat hex if
	ifnull iif instr json json_array json_array_length json_extract json_group_array json_group_object json_insert json_object json_patch
	json_quote json_remove json_replace json_set json_type json_valid julianday lag last_value lead length like likelihood likely ln log log10
	log2 lower ltrim max min mod nth_value ntile nullif octet_length percent_rank pi pow power printf quote radians random randomblob rank
	replace round row_number rtrim sign sin sinh sqrt strftime string_agg substr substring sum tan tanh time timediff total trim trunc typeof
	unhex unicode unistr unixepoch unlikely upper zeroblob`)

// namedHere are the functions of the engine itself that a client may name. Its other ones are those of neither
// language, or do not read the times of the views and return NULL.
var namedHere = strings.Fields(`acos acosh asin asinh atan atan2 atanh cos cosh degrees hex json_array_length json_extract json_group_array json_type json_valid
	radians sin sinh tan tanh trunc zeroblob`)

// offered are the names of the functions that a client may name, beside those of the translation.
var offered = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	for _, name := range namedHere {
		out[name] = true
	}
	for name := range pure {
		out[name] = true
	}
	for name := range answers {
		out[name] = true
	}
	return out
})

// callable are the names of all functions that the engine lets a query call.
var callable = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	for _, name := range builtIn {
		out[name] = true
	}
	for name := range pure {
		out[name] = true
	}
	for name := range answers {
		out[name] = true
	}
	for name := range scalar.Functions {
		out[name] = true
	}
	for _, name := range dialect.EngineFunctions() {
		out[name] = true
	}
	return out
})

// readable are the tables that a query may read, with their schemas.
var readable = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	for _, v := range views {
		out[v.full()] = true
	}
	return out
})

// authorize tells SQLite whether it may compile an operation. A refusal marks the engine, which is then not used again.
func (e *engine) authorize(action sqlite.AuthorizerActionCode, arg1, arg2, database string) sqlite.AuthorizerReturnCode {
	if !e.trusted && !reading(action, arg1, arg2, database) {
		e.denied = true
		return sqlite.AuthorizerDeny
	}
	return sqlite.AuthorizerOK
}

// reading reports whether an operation only reads the views or calls a function of the console. A client's query may do
// nothing else: PRAGMA, ATTACH, transactions and every kind of write are refused, and so is whatever a later version of
// the engine adds.
func reading(action sqlite.AuthorizerActionCode, arg1, arg2, database string) bool {
	switch action {
	case sqlite.AuthSelect, sqlite.AuthRecursive:
		return true
	case sqlite.AuthFunction:
		return callable()[strings.ToLower(arg2)]
	case sqlite.AuthRead:
		// Without a column and a database it is a table of which no value is read, such as in count(*).
		return arg2 == "" && database == "" || readable()[database+"."+arg1] || arg1 == "json_each"
	default:
		return false
	}
}

// errManyRows is the error of a query in an expression.
var errManyRows = errors.New("a query in an expression returned more than one row")

// only is the aggregate function of the one row that a query in an expression may have.
type only struct {
	value driver.Value
	found bool
}

// Step implements sqlite.AggregateFunction.
func (o *only) Step(_ *sqlite.FunctionContext, args []driver.Value) error {
	if o.found {
		return errManyRows
	}
	o.value, o.found = args[0], true
	return nil
}

// WindowInverse implements sqlite.AggregateFunction. No window has this function.
func (o *only) WindowInverse(*sqlite.FunctionContext, []driver.Value) error { return errManyRows }

// WindowValue implements sqlite.AggregateFunction.
func (o *only) WindowValue(*sqlite.FunctionContext) (driver.Value, error) { return o.value, nil }

// Final implements sqlite.AggregateFunction.
func (o *only) Final(*sqlite.FunctionContext) {}

// registerOthers registers what is no function of one row's values.
func registerOthers(d *sqlite.Driver) error {
	err := d.RegisterFunction("co_only", &sqlite.FunctionImpl{
		NArgs: 1, Deterministic: true,
		MakeAggregate: func(sqlite.FunctionContext) (sqlite.AggregateFunction, error) { return &only{}, nil },
	})
	if err == nil { // that of the engine ignores the case of ASCII alone
		err = d.RegisterCollationUtf8("co_nocase", func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	}
	if err != nil {
		return fmt.Errorf("register functions: %w", err)
	}
	return nil
}
