package dialect

// exprKind is the kind of an expression.
type exprKind int

const (
	exNumber   exprKind = iota // text
	exString                   // text
	exNull                     //
	exBool                     // text: 1 or 0
	exParam                    // text: its number
	exVariable                 // text: its name
	exColumn                   // names
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
