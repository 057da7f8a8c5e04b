package dialect

import (
	"slices"
	"strings"
)

// names parses a name with its schema, and SQL Server's database before that. master..t has no schema.
func (p *parser) names() []string {
	out := []string{p.name()}
	for p.takeSign(".") {
		if p.tok().sign(".") {
			continue
		}
		t := p.tok()
		if t.kind != tokWord && t.kind != tokName {
			p.fail()
		}
		p.at++
		out = append(out, t.text)
	}
	if len(out) > 3 {
		panic(unsupported("a name of four parts, on a linked server,", "connect to that server"))
	}
	if strings.HasPrefix(out[0], "#") {
		panic(unsupported("a temporary table ("+out[0]+")", "WITH name AS (...) holds a result within a query"))
	}
	return out
}

// joins are the words of joins.
var joins = []struct {
	words []string
	join  string
}{
	{[]string{"JOIN"}, "JOIN"},
	{[]string{"INNER", "JOIN"}, "JOIN"},
	{[]string{"CROSS", "JOIN"}, "CROSS JOIN"},
	{[]string{"LEFT", "JOIN"}, "LEFT JOIN"},
	{[]string{"LEFT", "OUTER", "JOIN"}, "LEFT JOIN"},
	{[]string{"RIGHT", "JOIN"}, "RIGHT JOIN"},
	{[]string{"RIGHT", "OUTER", "JOIN"}, "RIGHT JOIN"},
	{[]string{"FULL", "JOIN"}, "FULL JOIN"},
	{[]string{"FULL", "OUTER", "JOIN"}, "FULL JOIN"},
	{[]string{"CROSS", "APPLY"}, "CROSS APPLY"},
	{[]string{"OUTER", "APPLY"}, "OUTER APPLY"},
}

func (p *parser) joinWord() string {
	for _, j := range joins {
		if p.take(j.words...) {
			return j.join
		}
	}
	for _, side := range []string{"INNER", "LEFT", "RIGHT", "FULL"} { // INNER HASH JOIN
		for n := 1; n < 3; n++ {
			if hint := p.ahead(n); p.tok().is(side) && p.ahead(n+1).is("JOIN") && (hint.is("HASH") || hint.is("LOOP") || hint.is("MERGE") || hint.is("REMOTE")) {
				p.at += n + 2
				p.notices = append(p.notices, "the hint "+strings.ToUpper(hint.text)+" of a join has no effect")
				return strings.Replace(side+" JOIN", "INNER ", "", 1)
			}
		}
	}
	return ""
}

func (p *parser) source() *source {
	p.enter()
	defer p.leave()
	left := p.factor()
	for {
		natural := p.take("NATURAL")
		join := p.joinWord()
		if join == "" {
			if natural {
				p.fail()
			}
			return left
		}
		s := &source{join: join, natural: natural, left: left, right: p.factor()}
		switch join {
		case "CROSS APPLY", "OUTER APPLY":
			if s.join = "CROSS JOIN"; join == "OUTER APPLY" {
				s.join, s.on = "LEFT JOIN", &expr{kind: exBool, text: "1"}
			}
			if s.right.query == nil {
				panic(unsupported(join+" on a function or a table", join+" (SELECT ...) AS name works"))
			}
			s.right.lateral = true
		case "CROSS JOIN":
		default:
			switch {
			case natural:
			case p.take("ON"):
				s.on = p.expr()
			case p.take("USING"):
				s.using = p.nameList()
			default:
				p.nestedJoin(s)
			}
		}
		left = s
	}
}

// nestedJoin parses a JOIN b JOIN c ON … ON …, in which the second ON belongs to the first JOIN.
func (p *parser) nestedJoin(s *source) {
	p.enter()
	defer p.leave()
	join := p.joinWord()
	if join == "" || join == "CROSS APPLY" || join == "OUTER APPLY" {
		p.fail()
	}
	inner := &source{join: join, left: s.right, right: p.factor()}
	if !p.tok().is("ON") {
		p.nestedJoin(inner)
	} else {
		p.at++
		inner.on = p.expr()
	}
	s.right = inner
	p.need("ON")
	s.on = p.expr()
}

func (p *parser) factor() *source {
	s := &source{lateral: p.take("LATERAL")}
	switch {
	case p.tok().sign("("):
		if !p.queryAhead(1) {
			p.at++
			inner := p.source()
			p.needSign(")")
			return inner
		}
		p.at++
		s.query = p.query()
		p.needSign(")")
	default:
		if p.tok().kind == tokVariable {
			panic(unsupported("a table variable (@"+p.tok().text+")", "WITH name AS (...) holds a result within a query"))
		}
		s.names = p.names()
		if p.tok().sign("(") && !p.tableHint(p.at+1) {
			bad := unsupported("the table function "+strings.ToUpper(s.names[len(s.names)-1]), "the views are plain tables")
			bad.State = "42P01"
			panic(bad)
		}
	}
	p.hints()
	if s.alias = p.alias(); s.alias != "" && p.tok().sign("(") && !p.tableHint(p.at+1) {
		s.columns = p.nameList()
	}
	p.hints()
	return s
}

// behindQuery are the words that may follow a query in brackets which is the first part of another query.
var behindQuery = words("UNION EXCEPT INTERSECT ORDER LIMIT OFFSET FETCH FOR OPTION")

// queryAhead reports whether a query begins n tokens ahead, perhaps in further brackets: (SELECT 1) UNION SELECT 2 is
// one, and (SELECT 1) = 1 is an expression.
func (p *parser) queryAhead(n int) bool {
	if !p.ahead(n).sign("(") {
		return p.ahead(n).is("SELECT") || p.ahead(n).is("WITH") || p.ahead(n).is("VALUES")
	}
	end := n
	for depth := 0; ; end++ {
		t := p.ahead(end)
		if t.kind == tokEnd {
			break
		}
		if t.sign("(") {
			depth++
		} else if t.sign(")") {
			if depth--; depth == 0 {
				end++
				break
			}
		}
	}
	next := p.ahead(end)
	follows := next.kind == tokEnd || next.sign(")") || next.kind == tokWord && behindQuery[strings.ToUpper(next.text)]
	return follows && p.queryAhead(n+1)
}

var tableHints = words(`NOLOCK READUNCOMMITTED READCOMMITTED READCOMMITTEDLOCK REPEATABLEREAD SERIALIZABLE HOLDLOCK NOWAIT READPAST ROWLOCK PAGLOCK TABLOCK
	TABLOCKX UPDLOCK XLOCK SNAPSHOT FORCESEEK FORCESCAN NOEXPAND INDEX`)

func (p *parser) tableHint(at int) bool {
	t := p.tokens[min(at, len(p.tokens)-1)]
	return t.kind == tokWord && tableHints[strings.ToUpper(t.text)]
}

// hints skips T-SQL's table hints. NOLOCK is what the views do anyway.
func (p *parser) hints() {
	n := 0
	if p.tok().is("WITH") {
		n = 1
	}
	if !p.ahead(n).sign("(") || !p.tableHint(p.at+n+1) {
		return
	}
	hint := strings.ToUpper(p.ahead(n + 1).text)
	p.at += n
	p.skipBrackets()
	if hint != "NOLOCK" && hint != "READUNCOMMITTED" {
		note := "the table hint " + hint + " has no effect: the views are read without locks"
		if !slices.Contains(p.notices, note) {
			p.notices = append(p.notices, note)
		}
	}
}
