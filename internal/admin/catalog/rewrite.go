package catalog

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Error is the error of a query.
type Error struct {
	State   string
	Message string
	Hint    string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

func unsupported(what string) error {
	return &Error{State: "0A000", Message: what + " is not there in the console", Hint: "the views are plain tables: SELECT, WITH, joins, aggregates and window functions work"}
}

// rewrite translates the SQL of PostgreSQL and SQL Server clients into that of the engine.
// It ends between two passes when ctx does.
func rewrite(ctx context.Context, sql string) ([]token, error) {
	t, err := scan(sql)
	if err != nil {
		return nil, err
	}
	w := &rewriter{}
	if len(t) > 0 && t[0].is("TABLE") {
		t = append([]token{{tokWord, "SELECT"}, {tokSign, "*"}, {tokWord, "FROM"}}, t[1:]...)
	}
	for _, pass := range []func([]token) ([]token, error){w.names, operators, expressions, w.arrays, w.casts, w.limits} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t, err = pass(t)
		if w.steps > maxSteps {
			return nil, tooComplex()
		}
		if err != nil {
			return nil, err
		}
	}
	if err := check(t); err != nil {
		return nil, err
	}
	return t, nil
}

func at(t []token, i int) token {
	if i < 0 || i >= len(t) {
		return token{tokSign, ""}
	}
	return t[i]
}

// closing returns the index of the bracket that closes the one at i; -1 if it is not closed.
func (w *rewriter) closing(t []token, i int) int {
	depth := 0
	for ; i < len(t) && w.step(1); i++ {
		switch {
		case t[i].sign("(") || t[i].sign("["):
			depth++
		case t[i].sign(")") || t[i].sign("]"):
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// schemaPrefixes are removed before the name of a function: the engine has no functions in schemas.
var schemaPrefixes = []string{"pg_catalog", "sys", "coterie", "dbo", "master"}

// names removes schemas before functions, SQL Server's database names and table hints, and collations.
func (w *rewriter) names(t []token) ([]token, error) {
	var out []token
	for i := 0; i < len(t); i++ {
		schema := slices.ContainsFunc(schemaPrefixes, func(s string) bool { return t[i].is(s) || t[i].text == `"`+s+`"` })
		switch {
		case t[i].is("OPERATOR") && at(t, i+1).sign("("):
			end := w.closing(t, i+1)
			if end < 0 {
				return nil, &Error{State: "42601", Message: "unclosed OPERATOR("}
			}
			out = append(out, t[end-1])
			i = end
		case schema && at(t, i+1).sign(".") && at(t, i+3).sign("("):
			i++
		case (t[i].is("master") || t[i].text == `"master"`) && at(t, i+1).sign(".") && at(t, i+3).sign("."):
			i++
		case t[i].is("COLLATE"):
			i++
			for at(t, i+1).sign(".") {
				i += 2
			}
		case t[i].is("WITH") && at(t, i+1).sign("(") && at(t, i+2).is("NOLOCK"):
			i += 3
		case t[i].is("N") && at(t, i+1).kind == tokString:
		default:
			out = append(out, t[i])
		}
	}
	return out, nil
}

// operators replaces operators that the engine does not have.
func operators(t []token) ([]token, error) {
	word := func(s string) token { return token{tokWord, s} }
	var out []token
	for i := 0; i < len(t); i++ {
		switch {
		case t[i].sign("~"), t[i].sign("!~"), t[i].sign("~*"), t[i].sign("!~*"):
			if strings.HasPrefix(t[i].text, "!") {
				out = append(out, word("NOT"))
			}
			out = append(out, word("REGEXP"))
			if strings.HasSuffix(t[i].text, "*") && at(t, i+1).kind == tokString {
				t[i+1].text = "'(?i)" + t[i+1].text[1:]
			}
		case t[i].sign("~~"), t[i].sign("~~*"), t[i].is("ILIKE"):
			out = append(out, word("LIKE"))
		case t[i].sign("!~~"), t[i].sign("!~~*"):
			out = append(out, word("NOT"), word("LIKE"))
		case t[i].sign("@@") && at(t, i+1).kind == tokWord:
			out = append(out, word(strings.ToLower(at(t, i+1).text)), token{tokSign, "("}, token{tokSign, ")"})
			i++
		default:
			out = append(out, t[i])
		}
	}
	return out, nil
}

// niladic are the functions that are called without brackets.
var niladic = []string{"current_user", "session_user", "current_catalog", "current_schema", "current_role", "user"}

// expressions replaces extract(field from x) and niladic functions by calls.
func expressions(t []token) ([]token, error) {
	var out []token
	for i := 0; i < len(t); i++ {
		call := at(t, i+1).sign("(")
		switch {
		case t[i].is("extract") && call && at(t, i+3).is("FROM"):
			field := at(t, i+2)
			if field.kind == tokWord {
				field = token{tokString, "'" + strings.ToLower(field.text) + "'"}
			}
			out = append(out, token{tokWord, "extract_field"}, token{tokSign, "("}, field, token{tokSign, ","})
			i += 3
		case (t[i].is("datediff") || t[i].is("dateadd") || t[i].is("datepart")) && call && at(t, i+2).kind == tokWord:
			out = append(out, t[i], t[i+1], token{tokString, "'" + strings.ToLower(t[i+2].text) + "'"})
			i += 2
		case t[i].is("current_timestamp") || t[i].is("localtimestamp"):
			out = append(out, token{tokWord, "now"}, token{tokSign, "("}, token{tokSign, ")"})
		case slices.ContainsFunc(niladic, t[i].is) && !call && !at(t, i-1).sign(".") && !at(t, i+1).sign(".") && !at(t, i-1).is("AS"):
			out = append(out, token{tokWord, strings.ToLower(t[i].text)}, token{tokSign, "("}, token{tokSign, ")"})
		case t[i].is("LATERAL") || t[i].is("unnest") && call || t[i].is("generate_series") && call || t[i].is("ORDINALITY"):
			return nil, unsupported(strings.ToUpper(t[i].text))
		default:
			out = append(out, t[i])
		}
	}
	return out, nil
}

// arrays replaces = ANY (ARRAY[…]) and = ANY (current_schemas(…)) by IN lists. Other arrays are not supported.
func (w *rewriter) arrays(t []token) ([]token, error) {
	var out []token
	for i := 0; i < len(t); i++ {
		if !(t[i].is("ANY") || t[i].is("ALL")) || !at(t, i+1).sign("(") || !at(t, i-1).sign("=") && !at(t, i-1).sign("<>") && !at(t, i-1).sign("!=") {
			if t[i].is("ARRAY") && (at(t, i+1).sign("[") || at(t, i+1).sign("(")) {
				return nil, unsupported("an array")
			}
			if t[i].sign("[") { // a subscript: supported for the search path only
				from := w.operand(out, len(out))
				if !slices.ContainsFunc(out[from:], func(x token) bool { return x.is("current_schemas") }) || !at(t, i+2).sign("]") {
					return nil, unsupported("an array")
				}
				out = append(out[:from], token{tokString, "'sys'"})
				i += 2
				continue
			}
			out = append(out, t[i])
			continue
		}
		end := w.closing(t, i+1)
		if end < 0 {
			return nil, &Error{State: "42601", Message: "unclosed ANY("}
		}
		list, err := w.listOf(t[i+2 : end])
		if err != nil {
			return nil, err
		}
		op := out[len(out)-1]
		out = out[:len(out)-1]
		if !op.sign("=") {
			out = append(out, token{tokWord, "NOT"})
		}
		out = append(out, token{tokWord, "IN"}, token{tokSign, "("})
		out = append(append(out, list...), token{tokSign, ")"})
		i = end
	}
	return out, nil
}

func (w *rewriter) listOf(t []token) ([]token, error) {
	switch {
	case len(t) > 0 && (t[0].is("current_schemas") || t[0].is("SELECT")):
		if t[0].is("SELECT") {
			return t, nil
		}
		return []token{{tokString, "'sys'"}, {tokSign, ","}, {tokString, "'coterie'"}, {tokSign, ","}, {tokString, "'pg_catalog'"}}, nil
	case len(t) > 2 && t[0].is("ARRAY") && t[1].sign("["):
		if end := w.closing(t, 1); end > 0 {
			return t[2:end], nil
		}
	case len(t) > 0 && t[0].kind == tokString && strings.HasPrefix(t[0].text, "'{"):
		var out []token
		for i, s := range strings.Split(strings.Trim(t[0].text, "'{}"), ",") {
			if i > 0 {
				out = append(out, token{tokSign, ","})
			}
			out = append(out, token{tokString, "'" + strings.Trim(s, `" `) + "'"})
		}
		return out, nil
	case len(t) == 1 && t[0].kind == tokParam:
		return nil, unsupported("an array as a parameter")
	}
	return nil, unsupported("an array")
}

// affinities are the engine's types, by the names of types in casts; "": the cast is dropped.
var affinities = map[string]string{
	"int": "INTEGER", "int2": "INTEGER", "int4": "INTEGER", "int8": "INTEGER", "integer": "INTEGER", "bigint": "INTEGER", "smallint": "INTEGER", "tinyint": "INTEGER",
	"text": "TEXT", "varchar": "TEXT", "nvarchar": "TEXT", "char": "TEXT", "nchar": "TEXT", "character": "TEXT", "name": "TEXT", "bpchar": "TEXT", "sysname": "TEXT",
	"uuid": "TEXT", "uniqueidentifier": "TEXT",
	"float": "REAL", "float4": "REAL", "float8": "REAL", "real": "REAL", "double": "REAL", "numeric": "REAL", "decimal": "REAL",
	"regclass": "regclass", "bool": "", "boolean": "", "bit": "", "oid": "", "regtype": "", "regproc": "", "regnamespace": "", "timestamptz": "", "timestamp": "",
	"datetime": "", "datetime2": "", "datetimeoffset": "", "date": "", "interval": "", "unknown": "", "pg_lsn": "", "json": "", "jsonb": "", "regrole": "",
}

// typeAt parses the name of a type, and returns the affinity and the number of tokens of the name.
func (w *rewriter) typeAt(t []token, i int) (affinity string, used int, err error) {
	start := i
	if at(t, i).is("pg_catalog") && at(t, i+1).sign(".") {
		i += 2
	}
	name := strings.ToLower(strings.Trim(at(t, i).text, `"`))
	affinity, ok := affinities[name]
	if !ok {
		return "", 0, &Error{State: "42704", Message: fmt.Sprintf("type %.40q does not exist", name)}
	}
	i++
	for _, words := range [][]string{{"PRECISION"}, {"VARYING"}, {"WITH", "TIME", "ZONE"}, {"WITHOUT", "TIME", "ZONE"}} {
		n := 0
		for n < len(words) && at(t, i+n).is(words[n]) {
			n++
		}
		if n == len(words) {
			i += n
		}
	}
	if at(t, i).sign("(") {
		if end := w.closing(t, i); end > 0 {
			i = end + 1
		}
	}
	if at(t, i).sign("[") {
		return "", 0, unsupported("an array")
	}
	return affinity, i - start, nil
}

// operand returns the index at which the operand that ends before i begins.
func (w *rewriter) operand(t []token, i int) int {
	i--
	if at(t, i).sign(")") {
		depth := 0
		for ; i >= 0 && w.step(1); i-- {
			if t[i].sign(")") {
				depth++
			} else if t[i].sign("(") {
				if depth--; depth == 0 {
					break
				}
			}
		}
		if at(t, i-1).kind == tokWord && !keyword(at(t, i-1)) {
			i--
		}
	}
	for at(t, i-1).sign(".") && w.step(1) {
		i -= 2
	}
	return max(i, 0)
}

func keyword(t token) bool {
	return slices.ContainsFunc([]string{"SELECT", "AND", "OR", "NOT", "IN", "WHERE", "ON", "THEN", "ELSE", "WHEN", "CASE", "BY", "LIKE", "REGEXP", "FROM", "AS", "HAVING"}, t.is)
}

// casts replaces x::type and CAST(x AS type) by the engine's casts, or drops those without a meaning for it.
func (w *rewriter) casts(t []token) ([]token, error) {
	var out []token
	chain, last := 0, -1 // casts of one operand, and the index behind the last one
	for i := 0; i < len(t) && w.step(1); i++ {
		switch {
		case t[i].sign("::"):
			if chain++; last != i {
				chain = 1
			}
			if chain > maxDepth {
				return nil, tooComplex()
			}
			affinity, used, err := w.typeAt(t, i+1)
			if err != nil {
				return nil, err
			}
			from := w.operand(out, len(out))
			out = w.castTo(out, from, affinity)
			i += used
			last = i + 1
		case t[i].is("CAST") && at(t, i+1).sign("("):
			inner, end, err := w.castCall(t, i)
			if err != nil {
				return nil, err
			}
			out = append(out, inner...)
			i = end
		default:
			out = append(out, t[i])
		}
	}
	return out, nil
}

// castTo wraps out[from:] in a cast.
func (w *rewriter) castTo(out []token, from int, affinity string) []token {
	if !w.step(len(out) - from) {
		return out // and the whole query is refused
	}
	inner := slices.Clone(out[from:])
	out = out[:from]
	sign := func(s string) token { return token{tokSign, s} }
	switch affinity {
	case "":
		return append(out, inner...)
	case "regclass":
		return append(append(append(out, token{tokWord, "to_regclass"}, sign("(")), inner...), sign(")"))
	}
	out = append(append(out, token{tokWord, "CAST"}, sign("(")), inner...)
	return append(out, token{tokWord, "AS"}, token{tokWord, affinity}, sign(")"))
}

// castCall parses CAST ( x AS type ).
func (w *rewriter) castCall(t []token, i int) ([]token, int, error) {
	end := w.closing(t, i+1)
	if end < 0 {
		return nil, 0, &Error{State: "42601", Message: "unclosed CAST("}
	}
	depth, as := 0, -1
	for k := i + 1; k < end && w.step(1); k++ {
		switch {
		case t[k].sign("("):
			depth++
		case t[k].sign(")"):
			depth--
		case t[k].is("AS") && depth == 1:
			as = k
		}
	}
	if as < 0 {
		return nil, 0, &Error{State: "42601", Message: "CAST without AS"}
	}
	affinity, _, err := w.typeAt(t, as+1)
	if err != nil {
		return nil, 0, err
	}
	inner, err := w.casts(t[i+2 : as])
	if err != nil {
		return nil, 0, err
	}
	inner = append(append([]token{{tokSign, "("}}, inner...), token{tokSign, ")"})
	return w.castTo(inner, 0, affinity), end, nil
}

// limits replaces TOP n and FETCH FIRST n ROWS ONLY by LIMIT n.
func (w *rewriter) limits(t []token) ([]token, error) {
	var l limiter
	for i := 0; i < len(t); i++ {
		switch {
		case t[i].sign("("):
			l.depth++
			l.out = append(l.out, t[i])
		case t[i].sign(")"):
			l.close()
			l.depth--
			l.out = append(l.out, t[i])
		case t[i].is("TOP") && (at(t, i-1).is("SELECT") || at(t, i-1).is("DISTINCT")) && (at(t, i+1).kind == tokNumber || at(t, i+1).sign("(")):
			end := i + 1
			if at(t, i+1).sign("(") {
				if end = w.closing(t, i+1); end < 0 {
					return nil, &Error{State: "42601", Message: "unclosed TOP("}
				}
			}
			l.pending = append(l.pending, topN{l.depth, slices.Clone(t[i+1 : end+1])})
			i = end
		case t[i].is("FETCH") && (at(t, i+1).is("FIRST") || at(t, i+1).is("NEXT")) && at(t, i+2).kind == tokNumber:
			l.out = append(l.out, token{tokWord, "LIMIT"}, t[i+2])
			i += 2
			for at(t, i+1).is("ROW") || at(t, i+1).is("ROWS") || at(t, i+1).is("ONLY") {
				i++
			}
		case t[i].is("LIMIT") && (at(t, i+1).is("ALL") || at(t, i+1).is("NULL")):
			i++
		default:
			l.out = append(l.out, t[i])
		}
	}
	l.depth = 0
	l.close()
	return l.out, nil
}

// topN is a TOP whose LIMIT is written at the end of the query at that depth of brackets.
type topN struct {
	depth int
	count []token
}

type limiter struct {
	out     []token
	depth   int
	pending []topN
}

// close writes the LIMIT clauses of the query that ends here.
func (l *limiter) close() {
	for n := len(l.pending); n > 0 && l.pending[n-1].depth == l.depth; n-- {
		l.out = append(append(l.out, token{tokWord, "LIMIT"}), l.pending[n-1].count...)
		l.pending = l.pending[:n-1]
	}
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
