package dialect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Env is what a query may refer to.
type Env struct {
	// Table returns the columns of a table. Without a schema it is looked for in all of them.
	Table func(schema, name string) (fullSchema string, columns []Column, ok bool)
	// Names are the names of the tables, as schema.name, for hints.
	Names []string
	// Function reports whether the engine has a function of that lower-case name that a query may call.
	Function func(name string) bool
	// Variables are the variables of T-SQL, by lower-case names without @.
	Variables map[string]Value
}

// Translation is a query for the engine.
type Translation struct {
	SQL     string
	Tables  []string // schema.name of each table that it reads
	Params  []uint32 // for each parameter the type of what it meets; 0: unknown
	Limits  []int    // the parameters of LIMIT and OFFSET, which must not be NULL
	Columns []Column // what is known of the columns; nil: not even their number
	Notices []string // of clauses that have no effect
}

// Translate translates a query. The error is an *Error, or that of ctx.
func Translate(ctx context.Context, sql string, env Env) (t *Translation, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q, notices, err := parse(sql)
	if err != nil {
		return nil, err
	}
	w := &writer{env: env, params: map[int]uint32{}}
	defer func() {
		if r := recover(); r != nil {
			bad, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			t, err = nil, bad
		}
	}()
	text, columns := w.query(q, nil)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t = &Translation{SQL: text, Tables: w.tables, Limits: w.limits, Columns: columns, Notices: notices}
	for n := range w.params {
		for len(t.Params) < n {
			t.Params = append(t.Params, 0)
		}
	}
	for n, oid := range w.params {
		t.Params[n-1] = oid
	}
	return t, nil
}

// writer writes a tree as the engine's text. It ends a translation that fails by a panic with an *Error.
type writer struct {
	env     Env
	tables  []string
	params  map[int]uint32
	limits  []int
	made    int // names that this package has made
	written int // bytes of all parts
}

// maxWritten bounds the work of a translation: the bytes of all parts that are written, each as often as it is moved.
const maxWritten = 32 << 20

// note counts the bytes of a part, and returns it.
func (w *writer) note(text string) string {
	if w.written += len(text); w.written > maxWritten {
		panic(tooComplex())
	}
	return text
}

// scope is the names that an expression sees.
type scope struct {
	parent  *scope
	ctes    map[string][]Column // by lower-case name; nil: the columns are unknown
	sources []*bound
	aliases map[string]Type // of the SELECT list, for ORDER BY
	merges  bool            // a join names columns once that both sides have
	group   *grouping       // nil: the query makes no groups of its rows
}

// bound is a source with its columns.
type bound struct {
	name    string
	columns []Column
	open    bool   // there may be other columns
	json    string // name of the engine's source whose values are arrays of the columns; "": a table or a query
}

// quoteName returns a name as the engine takes it.
func quoteName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// quoteText returns a string as the engine takes it.
func quoteText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func (w *writer) newName() string {
	w.made++
	return "~" + strconv.Itoa(w.made)
}

// query writes a query, and returns its columns; nil if they are unknown.
func (w *writer) query(q *query, outer *scope) (string, []Column) {
	s := &scope{parent: outer, ctes: map[string][]Column{}}
	var b strings.Builder
	for i, c := range q.with {
		if i == 0 {
			b.WriteString("WITH ")
			if q.recursive {
				b.WriteString("RECURSIVE ")
			}
		} else {
			b.WriteString(", ")
		}
		b.WriteString(w.cte(c, s))
	}
	if len(q.with) > 0 {
		b.WriteString(" ")
	}
	if q.xml {
		b.WriteString(w.joined(q, s))
		return w.note(b.String()), []Column{{"?column?", Type{Kind: Text}}}
	}
	limit, ties := q.limit, q.ties
	if sel := q.body.sel; sel != nil {
		sel.grouped = slices.ContainsFunc(q.order, func(k sortKey) bool { return k.e.hasAggregate() })
		if sel.top != nil && limit != nil {
			panic(Errorf("42601", "TOP and LIMIT or FETCH in one query"))
		}
		if sel.top != nil && q.offset != nil {
			panic(Errorf("42601", "TOP and OFFSET in one query").withHint("OFFSET n ROWS FETCH NEXT m ROWS ONLY"))
		}
		if sel.top != nil {
			limit, ties = sel.top, sel.ties
		}
	}
	if ties {
		text, columns := w.withTies(q, limit, s)
		b.WriteString(text)
		return w.note(b.String()), columns
	}
	text, columns, inner := w.body(q.body, s)
	b.WriteString(text)
	b.WriteString(w.order(q, inner))
	b.WriteString(w.limit(limit, q.offset, s))
	return w.note(b.String()), columns
}

func (w *writer) cte(c cte, s *scope) string {
	key := strings.ToLower(c.name)
	if _, twice := s.ctes[key]; twice {
		panic(Errorf("42712", "WITH query name %.40q specified more than once", c.name))
	}
	var named []Column
	for _, n := range c.columns {
		named = append(named, Column{Name: n})
	}
	s.ctes[key] = named // it may refer to itself
	text, columns := w.query(c.q, s)
	out := quoteName(c.name)
	if c.columns != nil {
		var names []string
		for i, n := range c.columns {
			names = append(names, quoteName(n))
			if i < len(columns) {
				named[i].Type = columns[i].Type
			}
		}
		out += "(" + strings.Join(names, ", ") + ")"
		columns = named
	}
	s.ctes[key] = columns
	if c.hint != "" {
		c.hint += " "
	}
	return out + " AS " + c.hint + "(" + text + ")"
}

// order writes ORDER BY of a query. A bare name is that of a column of the result, if there is one.
func (w *writer) order(q *query, s *scope) string {
	if len(q.order) == 0 {
		return ""
	}
	keys := slices.Clone(q.order)
	for i, k := range keys {
		_, named := s.aliases[strings.ToLower(k.e.bare())]
		sel := q.body.sel
		if sel != nil && sel.distinct && !named && k.e.kind != exNumber && !slices.ContainsFunc(sel.items, func(i item) bool { return i.star || same(i.e, k.e, s) }) {
			panic(Errorf("42P10", "ORDER BY of SELECT DISTINCT must name columns of the result"))
		}
		if named {
			keys[i].e = &expr{kind: exResult, text: k.e.bare()}
		}
	}
	return " ORDER BY " + w.keys(keys, s)
}

func (w *writer) keys(keys []sortKey, s *scope) string {
	var out []string
	for _, k := range keys {
		text, _ := w.expr(k.e, s)
		if k.desc {
			text += " DESC"
		}
		if k.nulls != "" {
			text += " NULLS " + k.nulls
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// body writes a body. The scope is that of ORDER BY.
func (w *writer) body(b *body, s *scope) (string, []Column, *scope) {
	switch {
	case b.nested != nil:
		text, columns := w.query(b.nested, s)
		return "SELECT * FROM (" + text + ")", columns, outputs(columns, s)
	case b.values != nil:
		return w.values(b, s)
	case b.op == "":
		return w.selection(b.sel, s)
	}
	left, columns := w.side(b.left, s)
	right, other := w.side(b.right, s)
	if columns != nil && other != nil && len(columns) != len(other) {
		panic(Errorf("42601", "each %s query must have the same number of columns", strings.Fields(b.op)[0]))
	}
	columns = slices.Clone(columns)
	for i := range columns {
		if i < len(other) {
			columns[i].Type = w.united(strings.Fields(b.op)[0], columns[i].Type, other[i].Type)
		}
	}
	return w.note(left + " " + b.op + " " + right), columns, outputs(columns, s)
}

// united returns the type of a column of UNION. The engine does not convert the values, and both servers do.
func (w *writer) united(op string, a, b Type) Type {
	out := w.agree(a, b)
	for _, t := range []Type{a, b} {
		if t.Kind != out.Kind && t.Kind != Null && t.Kind != Unknown && out.Kind != Unknown && !(t.numeric() && out.numeric()) {
			panic(unsupported(op+" of a "+kindNames[a.Kind]+" and a "+kindNames[b.Kind], "CAST one of the two columns"))
		}
	}
	return out
}

// side writes a side of UNION. The engine takes neither brackets nor a limit of its own there.
func (w *writer) side(b *body, s *scope) (string, []Column) {
	if b.sel != nil && b.sel.top != nil {
		b = &body{nested: &query{body: b}}
	}
	text, columns, _ := w.body(b, s)
	if b.op != "" {
		text = "SELECT * FROM (" + text + ")"
	}
	return text, columns
}

// outputs returns the scope of ORDER BY behind an operation on two queries.
func outputs(columns []Column, s *scope) *scope {
	out := &scope{parent: s, aliases: map[string]Type{}}
	for _, c := range columns {
		out.aliases[strings.ToLower(c.Name)] = c.Type
	}
	return out
}

func (w *writer) values(b *body, s *scope) (string, []Column, *scope) {
	columns := make([]Column, len(b.values[0]))
	texts, types := make([][]string, len(b.values)), make([][]Type, len(columns))
	for n, row := range b.values {
		for i, e := range row {
			text, t := w.expr(e, s)
			texts[n], types[i] = append(texts[n], text), append(types[i], t)
		}
	}
	var rows []string
	for i := range columns {
		columns[i] = Column{"column" + strconv.Itoa(i+1), w.agree(types[i]...)}
	}
	for n, row := range texts {
		for i := range row {
			row[i] = w.converted(row[i], types[i][n], columns[i].Type)
		}
		rows = append(rows, "("+strings.Join(row, ", ")+")")
	}
	return w.note("VALUES " + strings.Join(rows, ", ")), columns, outputs(columns, s)
}

// selection writes SELECT up to HAVING. The scope is that of its expressions and of ORDER BY.
func (w *writer) selection(sel *selection, outer *scope) (string, []Column, *scope) {
	s := &scope{parent: outer}
	from := w.from(sel, s)
	s.group = newGrouping(sel, s)
	list, columns := w.list(sel.items, s)
	out := "SELECT "
	if sel.distinct {
		out += "DISTINCT "
	}
	out += strings.Join(list, ", ") + from
	if sel.where != nil {
		done := s.eachRow()
		out += " WHERE " + w.condition(sel.where, s)
		done()
	}
	s.aliases = map[string]Type{}
	for i, it := range sel.items {
		name := it.alias
		if name == "" && !it.star {
			name = w.nameOf(it.e, s)
		}
		if columns != nil && len(columns) == len(sel.items) {
			s.aliases[strings.ToLower(name)] = columns[i].Type
		} else if !it.star {
			s.aliases[strings.ToLower(name)] = Type{}
		}
	}
	return w.note(out + w.tail(sel, s)), columns, s
}

func (w *writer) from(sel *selection, s *scope) string {
	var list []string
	for _, f := range sel.from {
		list = append(list, w.source(f, s))
	}
	if list == nil {
		return ""
	}
	return " FROM " + strings.Join(list, ", ")
}

// tail writes GROUP BY to WINDOW.
func (w *writer) tail(sel *selection, s *scope) string {
	var b strings.Builder
	if sel.group != nil {
		done := s.eachRow()
		b.WriteString(" GROUP BY " + w.list2(sel.group, s))
		done()
	}
	if sel.having != nil {
		b.WriteString(" HAVING " + w.condition(sel.having, s))
	}
	for i, n := range sel.windows {
		b.WriteString([]string{" WINDOW ", ", "}[min(i, 1)] + quoteName(n.name) + " AS " + w.window(n.w, s))
	}
	return b.String()
}

// list2 writes expressions with commas between them.
func (w *writer) list2(list []*expr, s *scope) string {
	var out []string
	for _, e := range list {
		text, _ := w.expr(e, s)
		out = append(out, text)
	}
	return w.note(strings.Join(out, ", "))
}

// list writes a SELECT list, and returns its columns; nil if they are unknown.
func (w *writer) list(items []item, s *scope) (list []string, columns []Column) {
	known := true
	for _, it := range items {
		if it.star {
			text, of, ok := w.star(it.of, s)
			list, columns, known = append(list, text), append(columns, of...), known && ok
			continue
		}
		text, t := w.expr(it.e, s)
		name := it.alias
		if name == "" {
			name = w.nameOf(it.e, s)
		}
		if it.alias != "" || it.e.kind != exColumn || strings.HasPrefix(text, "json_extract") {
			text += " AS " + quoteName(name)
		}
		list, columns = append(list, text), append(columns, Column{name, t})
	}
	if !known {
		return list, nil
	}
	return list, columns
}

// star writes * or name.*, and returns its columns if they are known.
func (w *writer) star(of string, s *scope) (string, []Column, bool) {
	var columns []Column
	var spelled []string
	known, json, found := true, false, false
	for _, b := range s.sources {
		if of != "" && !strings.EqualFold(b.name, of) {
			continue
		}
		found, known, json = true, known && !b.open, json || b.json != ""
		for _, c := range b.columns {
			s.grouped(b, c.Name)
		}
		columns = append(columns, b.columns...)
		for i, c := range b.columns {
			spelled = append(spelled, b.column(i)+" AS "+quoteName(c.Name))
		}
	}
	switch {
	case !found && of == "":
		panic(Errorf("42601", "SELECT * without FROM"))
	case !found:
		panic(Errorf("42P01", "missing FROM-clause entry for table %.40q", of))
	case json && !known:
		panic(unsupported("* of a table whose columns are unknown", "name the columns"))
	case json:
		return strings.Join(spelled, ", "), columns, true
	case of != "":
		return quoteName(of) + ".*", columns, known
	}
	return "*", columns, known && !s.merges
}

// column writes the column i of a source.
func (b *bound) column(i int) string {
	if b.json != "" {
		return fmt.Sprintf("json_extract(%s.value, '$[%d]')", quoteName(b.json), i)
	}
	return quoteName(b.name) + "." + quoteName(b.columns[i].Name)
}

// nameOf returns the name of a column without an alias, as PostgreSQL gives it.
func (w *writer) nameOf(e *expr, s *scope) string {
	switch e.kind {
	case exColumn:
		if c, _, ok := s.find(e.names); ok {
			return c.Name
		}
		return e.names[len(e.names)-1]
	case exCall:
		return strings.TrimPrefix(strings.Replace(e.text, "extract_field", "extract", 1), "@@")
	case exCase:
		return "case"
	case exCast:
		if e.text == "::" || e.args[0].kind == exColumn {
			if name := w.nameOf(e.args[0], s); name != "?column?" {
				return name
			}
		}
	case exExists:
		return "exists"
	case exBool:
		return "bool"
	case exQuery:
		if sel := e.query.body.sel; sel != nil && len(sel.items) == 1 && !sel.items[0].star {
			if sel.items[0].alias != "" {
				return sel.items[0].alias
			}
			return w.nameOf(sel.items[0].e, nil)
		}
	case exCollate:
		return w.nameOf(e.args[0], s)
	default:
	}
	return "?column?"
}
