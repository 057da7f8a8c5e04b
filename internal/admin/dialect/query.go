package dialect

import (
	"strings"
)

// parser reads tokens. Its methods end a parse that fails by a panic with an *Error, which parse recovers.
type parser struct {
	tokens  []token
	at      int
	nested  int
	notices []string
}

// parse parses one query, which ends at the end of the text.
func parse(sql string) (q *query, notices []string, err error) {
	tokens, err := scan(sql)
	if err != nil {
		return nil, nil, err
	}
	p := &parser{tokens: tokens}
	defer func() {
		if r := recover(); r != nil {
			bad, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			q, err = nil, bad
		}
	}()
	first := p.tok()
	if !first.is("SELECT") && !first.is("WITH") && !first.is("VALUES") && !first.is("TABLE") && !first.sign("(") {
		return nil, nil, Errorf("42601", "a query begins with SELECT, WITH, VALUES or TABLE, not with %s", first.shown())
	}
	q = p.query()
	for p.takeSign(";") {
	}
	if p.tok().kind != tokEnd {
		p.fail()
	}
	return q, p.notices, nil
}

func (p *parser) tok() token { return p.tokens[p.at] }

func (p *parser) ahead(n int) token { return p.tokens[min(p.at+n, len(p.tokens)-1)] }

func (p *parser) fail() {
	if t := p.tok(); t.kind == tokWord {
		if hint, known := refusedClauses[strings.ToUpper(t.text)]; known {
			panic(unsupported(strings.ToUpper(t.text), hint))
		}
	}
	panic(Errorf("42601", "syntax error at or near %s", p.tok().shown()))
}

// refusedClauses are words whose constructs are refused by their name, with what to do instead.
var refusedClauses = map[string]string{
	"INTO": "the views are read only: there are no tables to write to", "PIVOT": "write one CASE for each column", "UNPIVOT": "write one SELECT for each column, with UNION ALL",
	"TABLESAMPLE": "the views are small: leave it out", "GROUPING": "", "ROLLUP": "write one SELECT for each level, with UNION ALL", "CUBE": "",
	"SIMILAR": "use LIKE or ~", "OVERLAPS": "compare the ends", "ORDINALITY": "", "UNNEST": "", "INTERVAL": "use DATEADD and DATEDIFF", "CONTAINS": "use LIKE",
	"FREETEXT": "use LIKE",
}

// Check returns the error of a text that is no query by the grammar. Names and types are not looked at.
func Check(sql string) error {
	_, _, err := parse(sql)
	return err
}

// take skips the keywords if all of them follow, and reports whether they do.
func (p *parser) take(words ...string) bool {
	for i, w := range words {
		if !p.ahead(i).is(w) {
			return false
		}
	}
	p.at += len(words)
	return true
}

func (p *parser) takeSign(s string) bool {
	if !p.tok().sign(s) {
		return false
	}
	p.at++
	return true
}

func (p *parser) need(words ...string) {
	if !p.take(words...) {
		p.fail()
	}
}

func (p *parser) needSign(s string) {
	if !p.takeSign(s) {
		p.fail()
	}
}

// enter counts a nesting of the grammar. The caller calls leave.
func (p *parser) enter() {
	if p.nested++; p.nested > maxNested {
		panic(tooComplex())
	}
}

func (p *parser) leave() { p.nested-- }

// reserved are the words that are neither a column nor an alias without AS.
var reserved = words(`ALL AND ANY AS ASC BETWEEN CASE CAST COLLATE CROSS DESC DISTINCT ELSE END ESCAPE EXCEPT EXISTS FETCH FOR FROM FULL GROUP HAVING
	ILIKE IN INNER INTERSECT INTO IS ISNULL JOIN LATERAL LEFT LIKE LIMIT NATURAL NOT NOTNULL NULL OFFSET ON OR ORDER OUTER OVER PIVOT RIGHT SELECT SIMILAR
	SOME TABLESAMPLE THEN TOP UNION UNPIVOT USING WHEN WHERE WINDOW WITH WITHIN`)

func words(list string) map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.Fields(list) {
		out[w] = true
	}
	return out
}

func (t token) name() bool {
	return t.kind == tokName || t.kind == tokWord && !reserved[strings.ToUpper(t.text)]
}

// name parses a name.
func (p *parser) name() string {
	t := p.tok()
	if !t.name() {
		p.fail()
	}
	p.at++
	return t.text
}

func (p *parser) nameList() (out []string) {
	p.needSign("(")
	for {
		out = append(out, p.name())
		if !p.takeSign(",") {
			p.needSign(")")
			return out
		}
	}
}

// alias parses [AS] name, and the string that T-SQL allows in its place after AS.
func (p *parser) alias() string {
	switch t := p.tok(); {
	case p.take("AS"):
		if t := p.tok(); t.kind == tokString || t.kind == tokWord {
			p.at++
			if t.text == "" {
				panic(Errorf("42601", "a name must not be empty"))
			}
			return t.text
		}
		return p.name()
	case t.name() && !(t.is("OPTION") && p.ahead(1).sign("(")):
		return p.name()
	}
	return ""
}

func (p *parser) query() *query {
	p.enter()
	defer p.leave()
	q := &query{}
	if p.tok().is("TABLE") {
		p.at++
		q.body = &body{sel: &selection{items: []item{{star: true}}, from: []*source{{names: p.names()}}}}
		return q
	}
	if p.take("WITH") {
		if p.ahead(1).sign("(") && p.tok().is("XMLNAMESPACES") {
			panic(unsupported("XMLNAMESPACES", ""))
		}
		q.recursive = p.take("RECURSIVE")
		for {
			q.with = append(q.with, p.cte())
			if !p.takeSign(",") {
				break
			}
		}
	}
	q.body = p.union()
	if p.take("ORDER", "BY") {
		q.order = p.sortKeys()
	}
	p.limits(q)
	p.forClause(q)
	p.limits(q)
	p.option()
	return q
}

func (p *parser) cte() cte {
	c := cte{name: p.name()}
	if p.tok().sign("(") {
		c.columns = p.nameList()
	}
	p.need("AS")
	if p.take("MATERIALIZED") {
		c.hint = "MATERIALIZED"
	} else if p.take("NOT", "MATERIALIZED") {
		c.hint = "NOT MATERIALIZED"
	}
	p.needSign("(")
	c.q = p.query()
	p.needSign(")")
	return c
}

// limits parses LIMIT, OFFSET and FETCH.
func (p *parser) limits(q *query) {
	for {
		switch {
		case q.limit == nil && p.take("LIMIT"):
			if p.take("ALL") || p.take("NULL") {
				continue
			}
			q.limit = p.expr()
			if p.takeSign(",") {
				panic(unsupported("LIMIT with two numbers", "write LIMIT n OFFSET m"))
			}
		case q.offset == nil && p.take("OFFSET"):
			q.offset = p.expr()
			_ = p.take("ROWS") || p.take("ROW")
		case q.limit == nil && (p.take("FETCH", "FIRST") || p.take("FETCH", "NEXT")):
			p.fetch(q)
		default:
			return
		}
	}
}

// fetch parses what follows FETCH FIRST.
func (p *parser) fetch(q *query) {
	q.limit = &expr{kind: exNumber, text: "1"}
	if !p.tok().is("ROW") && !p.tok().is("ROWS") {
		q.limit = p.primary()
	}
	if !p.take("ROWS") {
		p.need("ROW")
	}
	if q.ties = p.take("WITH", "TIES"); !q.ties {
		p.need("ONLY")
	}
}

// forClause parses FOR: XML PATH(”) joins texts, the locks of PostgreSQL have no effect on views.
func (p *parser) forClause(q *query) {
	if !p.take("FOR") {
		return
	}
	switch {
	case p.take("XML"):
		plain := p.take("PATH") && p.takeSign("(") && p.tok().kind == tokString && p.tok().text == ""
		if plain {
			p.at++
			p.needSign(")")
		}
		if !plain || p.tok().sign(",") {
			panic(unsupported("FOR XML other than FOR XML PATH('')", "STRING_AGG joins texts"))
		}
		q.xml = true
	case p.tok().is("JSON"), p.tok().is("BROWSE"):
		panic(unsupported("FOR "+strings.ToUpper(p.tok().text), "coterie sql --json gives a result as JSON"))
	case p.take("UPDATE"), p.take("SHARE"):
		p.notices = append(p.notices, "FOR UPDATE and FOR SHARE have no effect: the views are read only")
	default:
		p.fail()
	}
}

// option parses OPTION (…), which has no effect.
func (p *parser) option() {
	if !p.take("OPTION") {
		return
	}
	p.skipBrackets()
	p.notices = append(p.notices, "OPTION (...) has no effect: the views have no query plans to choose from")
}

// skipBrackets skips brackets with what they contain.
func (p *parser) skipBrackets() {
	p.needSign("(")
	for depth := 1; depth > 0; p.at++ {
		switch t := p.tok(); {
		case t.kind == tokEnd:
			p.fail()
		case t.sign("("):
			depth++
		case t.sign(")"):
			depth--
		}
	}
}

func (p *parser) union() *body {
	left := p.intersect()
	for {
		op := ""
		switch {
		case p.take("UNION", "ALL"):
			op = "UNION ALL"
		case p.take("UNION"):
			p.take("DISTINCT")
			op = "UNION"
		case p.take("EXCEPT"):
			op = "EXCEPT"
		default:
			return left
		}
		if op == "EXCEPT" && p.tok().is("ALL") {
			panic(unsupported("EXCEPT ALL", ""))
		}
		left = &body{op: op, left: left, right: p.intersect()}
	}
}

func (p *parser) intersect() *body {
	left := p.simple()
	for p.take("INTERSECT") {
		if p.tok().is("ALL") {
			panic(unsupported("INTERSECT ALL", ""))
		}
		left = &body{op: "INTERSECT", left: left, right: p.simple()}
	}
	return left
}

func (p *parser) simple() *body {
	switch {
	case p.takeSign("("):
		q := p.query()
		p.needSign(")")
		return &body{nested: q}
	case p.take("VALUES"):
		b := &body{}
		for {
			p.needSign("(")
			row := p.exprs()
			p.needSign(")")
			if len(b.values) > 0 && len(row) != len(b.values[0]) {
				panic(Errorf("42601", "VALUES lists must all be the same length"))
			}
			if b.values = append(b.values, row); !p.takeSign(",") {
				return b
			}
		}
	}
	p.need("SELECT")
	return &body{sel: p.selection()}
}

func (p *parser) selection() *selection {
	s := &selection{}
	p.quantity(s)
	for {
		s.items = append(s.items, p.item())
		if !p.takeSign(",") {
			break
		}
	}
	if p.tok().is("INTO") {
		p.fail()
	}
	if p.take("FROM") {
		for {
			s.from = append(s.from, p.source())
			if !p.takeSign(",") {
				break
			}
		}
	}
	if p.take("WHERE") {
		s.where = p.expr()
	}
	if p.take("GROUP", "BY") {
		s.group = p.grouping()
	}
	if p.take("HAVING") {
		s.having = p.expr()
	}
	if p.take("WINDOW") {
		s.windows = p.namedWindows()
	}
	return s
}

// quantity parses DISTINCT and TOP.
func (p *parser) quantity(s *selection) {
	if p.take("DISTINCT") {
		s.distinct = true
		if p.tok().is("ON") {
			panic(unsupported("DISTINCT ON", "use ROW_NUMBER() OVER (PARTITION BY ...)"))
		}
	} else {
		p.take("ALL")
	}
	if !p.tok().is("TOP") || p.ahead(1).kind != tokNumber && !p.ahead(1).sign("(") {
		return
	}
	p.at++
	s.top = p.primary()
	if p.tok().is("PERCENT") {
		panic(unsupported("TOP ... PERCENT", "use NTILE(100), or TOP with a number"))
	}
	s.ties = p.take("WITH", "TIES")
}

func (p *parser) namedWindows() (out []namedWindow) {
	for {
		w := namedWindow{name: p.name()}
		p.need("AS")
		w.w = p.window()
		if out = append(out, w); !p.takeSign(",") {
			return out
		}
	}
}

func (p *parser) grouping() []*expr {
	for _, w := range []string{"ROLLUP", "CUBE", "GROUPING"} {
		if p.tok().is(w) && (p.ahead(1).sign("(") || p.ahead(1).is("SETS")) {
			p.fail()
		}
	}
	list := p.exprs()
	if p.tok().is("WITH") && (p.ahead(1).is("ROLLUP") || p.ahead(1).is("CUBE")) {
		p.at++
		p.fail()
	}
	return list
}

// item parses an entry of a SELECT list. alias = expr is T-SQL's way to name a column; a comparison there needs
// brackets, a qualified name, or AS behind it.
func (p *parser) item() item {
	t := p.tok()
	if p.takeSign("*") {
		return item{star: true}
	}
	if t.kind == tokVariable && p.ahead(1).sign("=") {
		panic(unsupported("SELECT @variable = ... inside of another query", "assign variables in a statement of their own"))
	}
	if (t.name() || t.kind == tokString) && p.ahead(1).sign("=") && t.text != "" {
		start := p.at
		p.at += 2
		e := p.expr()
		if !p.tok().is("AS") {
			return item{e: e, alias: t.text}
		}
		p.at = start
	}
	for n := 0; p.ahead(n).kind == tokName || p.ahead(n).kind == tokWord; n += 2 { // a.b.*
		if !p.ahead(n + 1).sign(".") {
			break
		}
		if p.ahead(n + 2).sign("*") {
			of := p.ahead(n).text
			p.at += n + 3
			return item{star: true, of: of}
		}
	}
	e := p.expr()
	alias := p.alias()
	if alias == "" && p.tok().kind == tokString && p.tok().text != "" { // SELECT x 'name' of T-SQL
		alias = p.tok().text
		p.at++
	}
	return item{e: e, alias: alias}
}
