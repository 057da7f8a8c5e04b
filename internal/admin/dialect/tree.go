package dialect

import (
	"slices"
	"strings"
)

// exprKind is the kind of an expression.
type exprKind int

const (
	exNumber   exprKind = iota // text
	exString                   // text
	exNull                     //
	exBool                     // text: 1 or 0
	exParam                    // text: its number
	exVariable                 // text: its name
	exColumn                   // names; text: "quoted", if the first one is
	exUnary                    // text: operator; args[0]
	exBinary                   // text: operator; args[0], args[1]
	exIn                       // args[0] in the others, or in query
	exBetween                  // args[0] between args[1] and args[2]
	exLike                     // text: LIKE, ILIKE or ~~; args[0] like args[1] escape args[2], if there is one
	exRegexp                   // text: ~ or ~*; args[0], args[1]
	exIs                       // text: NULL, TRUE, FALSE or DISTINCT; args[0], and args[1] of DISTINCT
	exCase                     // operand args[0], which may be nil; then conditions and results in turn; at the end else, which may be nil
	exCast                     // args[0] to typ; text: CAST, CONVERT or ::, style args[1]
	exCall                     // text: lower-case name; args, call
	exQuery                    // query
	exExists                   // query
	exRow                      // args
	exArray                    // args, or query
	exCollate                  // args[0]; text: NOCASE or BINARY
	exResult                   // text: name of a column of the result, in ORDER BY
)

// expr is an expression.
type expr struct {
	kind  exprKind
	text  string
	names []string
	args  []*expr
	not   bool
	try   bool // of a cast: NULL instead of an error
	query *query
	typ   typeName
	call  *callParts
}

// callParts are the parts of a call beside its arguments.
type callParts struct {
	star, distinct bool
	order          []sortKey
	filter         *expr
	over           *window
	overName       string
}

// window is the window of a call.
type window struct {
	base      string
	partition []*expr
	order     []sortKey
	frame     []string // words and numbers, checked by the grammar
}

// sortKey is an expression of ORDER BY.
type sortKey struct {
	e     *expr
	desc  bool
	nulls string // FIRST, LAST or ""
}

// query is a SELECT with what may stand before and behind it.
type query struct {
	with          []cte
	recursive     bool
	body          *body
	order         []sortKey
	limit, offset *expr
	ties          bool // of FETCH FIRST
	xml           bool // FOR XML PATH('')
}

// cte is a query of WITH.
type cte struct {
	name    string
	columns []string
	hint    string // MATERIALIZED, NOT MATERIALIZED or ""
	q       *query
}

// body is one SELECT, a list of VALUES, a query in brackets, or an operation on two bodies.
type body struct {
	op          string // UNION, UNION ALL, INTERSECT, EXCEPT; "": none
	left, right *body
	sel         *selection
	values      [][]*expr
	nested      *query
}

// selection is SELECT up to HAVING.
type selection struct {
	distinct bool
	top      *expr
	ties     bool
	items    []item
	from     []*source
	where    *expr
	group    []*expr
	having   *expr
	windows  []namedWindow
	grouped  bool // ORDER BY has an aggregate
}

type namedWindow struct {
	name string
	w    *window
}

// item is an entry of a SELECT list: an expression, or * of all sources or of one.
type item struct {
	e     *expr
	alias string
	star  bool
	of    string // name of the source
}

// source is an entry of FROM: a table, a query, or two sources joined.
type source struct {
	names   []string // of a table
	query   *query
	lateral bool // the query sees the sources before it
	alias   string
	columns []string // names that the alias gives

	join        string // JOIN, LEFT JOIN, RIGHT JOIN, FULL JOIN, CROSS JOIN; "": no join
	natural     bool
	left, right *source
	on          *expr
	using       []string
}

// typeName is the name of a type, with its length or precision.
type typeName struct {
	name string // lower case
	args []int  // -1: max
}

// aggregates are the functions that make one value of several rows.
var aggregates = words("COUNT COUNT_BIG SUM AVG MIN MAX TOTAL STRING_AGG BOOL_AND BOOL_OR EVERY GROUP_CONCAT JSON_GROUP_ARRAY JSON_GROUP_OBJECT")

// aggregate reports whether the expression is the call of an aggregate function, and not one over a window.
func (e *expr) aggregate() bool {
	return e.kind == exCall && aggregates[strings.ToUpper(e.text)] && (e.call == nil || e.call.over == nil && e.call.overName == "")
}

// hasAggregate reports whether an expression has an aggregate function in it, outside of its queries.
func (e *expr) hasAggregate() bool {
	if e == nil {
		return false
	}
	return e.aggregate() || slices.ContainsFunc(e.args, (*expr).hasAggregate)
}

// oneRow reports whether a query has never more than one row.
func (q *query) oneRow() bool {
	limit := q.limit
	sel := q.body.sel
	if sel != nil && sel.top != nil {
		limit = sel.top
	}
	switch {
	case q.xml:
		return true
	case limit != nil && limit.kind == exNumber && (limit.text == "0" || limit.text == "1") && !q.ties && (sel == nil || !sel.ties):
		return true
	case q.body.nested != nil:
		return q.body.nested.oneRow()
	case sel == nil:
		return q.body.op == "" && len(q.body.values) == 1
	}
	return sel.from == nil || sel.group == nil && slices.ContainsFunc(sel.items, func(i item) bool { return i.e.hasAggregate() })
}

// bare returns the name that an expression is without a table before it, or "".
func (e *expr) bare() string {
	if e.kind == exColumn && len(e.names) == 1 {
		return e.names[0]
	}
	return ""
}

// same reports whether two expressions of a scope are the same. Queries, and calls with more than arguments, are the
// same as themselves only.
func same(a, b *expr, s *scope) bool {
	switch {
	case a == b:
		return true
	case a == nil || b == nil || a.kind != b.kind || a.not != b.not || a.try != b.try || a.query != nil || b.query != nil || len(a.args) != len(b.args):
		return false
	case a.kind == exColumn:
		x, of, _ := s.find(a.names)
		y, other, _ := s.find(b.names)
		return of == other && strings.EqualFold(x.Name, y.Name)
	case a.text != b.text || a.typ.name != b.typ.name || !slices.Equal(a.typ.args, b.typ.args) || !a.call.plain(b.call):
		return false
	}
	for i := range a.args {
		if !same(a.args[i], b.args[i], s) {
			return false
		}
	}
	return true
}

// plain reports whether two calls have the same parts beside their arguments, and none that are expressions.
func (c *callParts) plain(d *callParts) bool {
	if c == nil || d == nil {
		return c == d
	}
	return c.order == nil && d.order == nil && c.filter == nil && d.filter == nil && c.over == nil && d.over == nil && c.overName == d.overName &&
		c.star == d.star && c.distinct == d.distinct
}
