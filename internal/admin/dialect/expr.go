package dialect

import (
	"slices"
	"strconv"
	"strings"
)

// expr parses an expression.
func (p *parser) expr() *expr {
	p.enter()
	defer p.leave()
	left := p.and()
	for p.take("OR") {
		left = binary("OR", left, p.and())
	}
	return left
}

func binary(op string, a, b *expr) *expr { return &expr{kind: exBinary, text: op, args: []*expr{a, b}} }

func (p *parser) and() *expr {
	left := p.not()
	for p.take("AND") {
		left = binary("AND", left, p.not())
	}
	return left
}

func (p *parser) not() *expr {
	if !p.take("NOT") {
		return p.is()
	}
	p.enter()
	defer p.leave()
	return &expr{kind: exUnary, text: "NOT", args: []*expr{p.not()}}
}

func (p *parser) is() *expr {
	e := p.comparison()
	for {
		switch {
		case p.take("ISNULL"):
			e = &expr{kind: exIs, text: "NULL", args: []*expr{e}}
		case p.take("NOTNULL"):
			e = &expr{kind: exIs, text: "NULL", not: true, args: []*expr{e}}
		case p.take("IS"):
			x := &expr{kind: exIs, not: p.take("NOT"), args: []*expr{e}}
			switch {
			case p.take("NULL"), p.take("UNKNOWN"):
				x.text = "NULL"
			case p.take("TRUE"):
				x.text = "TRUE"
			case p.take("FALSE"):
				x.text = "FALSE"
			case p.take("DISTINCT", "FROM"):
				x.text = "DISTINCT"
				x.args = append(x.args, p.comparison())
			default:
				p.fail()
			}
			e = x
		default:
			return e
		}
	}
}

var comparisons = map[string]string{"=": "=", "<>": "<>", "!=": "<>", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!<": ">=", "!>": "<="}

func (p *parser) comparison() *expr {
	left := p.matching()
	for p.tok().kind == tokSign && comparisons[p.tok().text] != "" {
		op := comparisons[p.tok().text]
		p.at++
		if t := p.tok(); (t.is("ANY") || t.is("SOME") || t.is("ALL")) && p.ahead(1).sign("(") {
			left = p.quantified(op, left)
			continue
		}
		left = binary(op, left, p.matching())
	}
	return left
}

// quantified parses = ANY (…) and <> ALL (…), which are IN and NOT IN.
func (p *parser) quantified(op string, left *expr) *expr {
	all := p.tok().is("ALL")
	p.at++
	if op != "=" && op != "<>" || all != (op == "<>") {
		panic(unsupported(op+" "+strings.ToUpper(p.tokens[p.at-1].text)+" (...)", "= ANY and <> ALL are"))
	}
	e := &expr{kind: exIn, not: all, args: []*expr{left}}
	p.needSign("(")
	if p.queryAhead(0) {
		e.query = p.query()
		p.needSign(")")
		return e
	}
	list := p.expr()
	p.needSign(")")
	switch {
	case list.kind == exCast && list.args[0].kind == exString:
		list = list.args[0]
		fallthrough
	case list.kind == exString && strings.HasPrefix(list.text, "{"):
		e.args = append(e.args, elements(list.text)...)
		if len(e.args) == 1 { // = ANY of none is false, <> ALL of none is true
			return &expr{kind: exBool, text: bitOf(all)}
		}
	case list.kind == exArray && list.query == nil:
		e.args = append(e.args, list.args...)
	case list.kind == exArray:
		e.query = list.query
	case list.kind == exCall && list.text == "current_schemas":
		for _, s := range []string{"sys", "coterie", "pg_catalog"} {
			e.args = append(e.args, &expr{kind: exString, text: s})
		}
	default:
		panic(unsupported("an array", "IN (...) compares with a list"))
	}
	if len(e.args) > 1+500 {
		panic(tooComplex())
	}
	return e
}

// elements returns those of an array that is written as a text.
func elements(text string) (out []*expr) {
	inner := strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}")
	if strings.ContainsAny(inner, `{}\"`) {
		panic(unsupported("an array with quotes or arrays in it", "IN (...) compares with a list"))
	}
	if strings.TrimSpace(inner) == "" {
		return nil
	}
	for _, s := range strings.Split(inner, ",") {
		x := &expr{kind: exString, text: strings.TrimSpace(s)}
		if strings.EqualFold(x.text, "NULL") {
			x = &expr{kind: exNull}
		}
		out = append(out, x)
	}
	return out
}

var likes = map[string]struct {
	kind exprKind
	text string
	not  bool
}{
	"~": {exRegexp, "~", false}, "~*": {exRegexp, "~*", false}, "!~": {exRegexp, "~", true}, "!~*": {exRegexp, "~*", true},
	"~~": {exLike, "~~", false}, "!~~": {exLike, "~~", true}, "~~*": {exLike, "ILIKE", false}, "!~~*": {exLike, "ILIKE", true},
}

// matching parses BETWEEN, IN, LIKE and the operators of PostgreSQL that match patterns.
func (p *parser) matching() *expr {
	left := p.other()
	for {
		not := p.tok().is("NOT") && (p.ahead(1).is("IN") || p.ahead(1).is("LIKE") || p.ahead(1).is("ILIKE") || p.ahead(1).is("BETWEEN") || p.ahead(1).is("SIMILAR"))
		if not {
			p.at++
		}
		switch t := p.tok(); {
		case p.take("BETWEEN"):
			if p.tok().is("SYMMETRIC") {
				panic(unsupported("BETWEEN SYMMETRIC", "write BETWEEN LEAST(a, b) AND GREATEST(a, b)"))
			}
			low := p.other()
			p.need("AND")
			left = &expr{kind: exBetween, not: not, args: []*expr{left, low, p.other()}}
		case p.take("IN"):
			left = p.in(left, not)
		case t.is("LIKE") || t.is("ILIKE"):
			p.at++
			left = p.escape(&expr{kind: exLike, text: strings.ToUpper(t.text), not: not, args: []*expr{left, p.other()}})
		case t.is("SIMILAR"):
			p.fail()
		case t.is("OPERATOR") && p.ahead(1).sign("("):
			op := p.operatorName()
			l, ok := likes[op]
			switch {
			case ok:
				left = &expr{kind: l.kind, text: l.text, not: l.not, args: []*expr{left, p.other()}}
			case comparisons[op] != "":
				if t := p.tok(); t.is("ANY") || t.is("SOME") || t.is("ALL") {
					left = p.quantified(comparisons[op], left)
				} else {
					left = binary(comparisons[op], left, p.other())
				}
			default:
				panic(unsupported("OPERATOR("+op+")", ""))
			}
		case t.kind == tokSign && likes[t.text].text != "":
			p.at++
			l := likes[t.text]
			left = &expr{kind: l.kind, text: l.text, not: l.not, args: []*expr{left, p.other()}}
		default:
			return left
		}
	}
}

func (p *parser) escape(e *expr) *expr {
	if p.take("ESCAPE") {
		e.args = append(e.args, p.other())
	}
	return e
}

// operatorName parses OPERATOR(schema.op) of PostgreSQL.
func (p *parser) operatorName() string {
	p.at += 2
	if p.tok().kind == tokWord && p.ahead(1).sign(".") {
		p.at += 2
	}
	op := p.tok().text
	if p.tok().kind != tokSign {
		p.fail()
	}
	p.at++
	p.needSign(")")
	return op
}

func (p *parser) in(left *expr, not bool) *expr {
	e := &expr{kind: exIn, not: not, args: []*expr{left}}
	p.needSign("(")
	if p.queryAhead(0) {
		e.query = p.query()
	} else {
		e.args = append(e.args, p.exprs()...)
	}
	p.needSign(")")
	return e
}

// other parses the operators between comparisons and sums: || and those of JSON and bits.
func (p *parser) other() *expr {
	left := p.sum()
	for {
		t := p.tok()
		if !slices.ContainsFunc([]string{"||", "->", "->>", "&", "|"}, t.sign) {
			if t.sign("@>") || t.sign("<@") || t.sign("#>") || t.sign("#>>") || t.sign("^") {
				panic(unsupported("the operator "+t.text, ""))
			}
			return left
		}
		p.at++
		right := p.product
		if t.text != "&" && t.text != "|" {
			right = p.sum
		}
		left = binary(t.text, left, right())
		if next := p.tok(); next.sign("+") || next.sign("-") {
			panic(unsupported(t.text+" before "+next.text+" without brackets", "T-SQL takes them from the left, PostgreSQL takes the sum first"))
		}
	}
}

func (p *parser) sum() *expr {
	left := p.product()
	for t := p.tok(); t.sign("+") || t.sign("-"); t = p.tok() {
		p.at++
		left = binary(t.text, left, p.product())
	}
	return left
}

func (p *parser) product() *expr {
	left := p.unary()
	for t := p.tok(); t.sign("*") || t.sign("/") || t.sign("%"); t = p.tok() {
		p.at++
		left = binary(t.text, left, p.unary())
	}
	return left
}

func (p *parser) unary() *expr {
	t := p.tok()
	if !t.sign("-") && !t.sign("+") && !t.sign("~") {
		return p.postfix()
	}
	p.enter()
	defer p.leave()
	p.at++
	e := p.unary()
	if t.sign("+") {
		return e
	}
	return &expr{kind: exUnary, text: t.text, args: []*expr{e}}
}

// postfix parses what follows an operand: casts, COLLATE, AT TIME ZONE and subscripts.
func (p *parser) postfix() *expr {
	e := p.primary()
	for casts := 0; ; {
		switch t := p.tok(); {
		case p.takeSign("::"):
			if casts++; casts > maxDepth {
				panic(tooComplex())
			}
			e = &expr{kind: exCast, text: "::", args: []*expr{e}, typ: p.typeName()}
		case p.take("COLLATE"):
			e = p.collate(e)
		case p.take("AT", "TIME", "ZONE"):
			if zone := p.primary(); zone.kind != exString || !strings.EqualFold(zone.text, "UTC") {
				panic(unsupported("AT TIME ZONE other than 'UTC'", "all times of the views are UTC; DATEADD(hour, n, x) shifts one"))
			}
		case t.sign("["):
			p.at++
			if e.kind != exCall || e.text != "current_schemas" || p.tok().kind != tokNumber {
				panic(unsupported("an array", "IN (...) compares with a list"))
			}
			p.at++
			p.needSign("]")
			e = &expr{kind: exString, text: "sys"}
		default:
			return e
		}
	}
}

// collate parses the name of a collation. Case matters unless the collation is one of SQL Server's that ignore it.
func (p *parser) collate(e *expr) *expr {
	names := []string{p.name()}
	for p.takeSign(".") {
		names = append(names, p.name())
	}
	name := strings.ToLower(names[len(names)-1])
	switch {
	case name == "database_default", name == "catalog_default", name == "default", name == "c", name == "posix", name == "ucs_basic":
		return e
	case strings.Contains(name+"_", "_ai_"):
		panic(unsupported("the collation "+name, "accents matter here: a collation _CI_AS compares without regard to case"))
	case strings.Contains(name, "_ci_") || strings.HasSuffix(name, "_ci"):
		return &expr{kind: exCollate, text: "NOCASE", args: []*expr{e}}
	case strings.Contains(name, "_cs_"), strings.Contains(name, "_bin"):
		return &expr{kind: exCollate, text: "BINARY", args: []*expr{e}}
	}
	panic(unsupported("the collation "+name, "database_default compares by bytes, a collation _CI_ without regard to case"))
}

// primary parses an operand.
func (p *parser) primary() *expr {
	t := p.tok()
	switch t.kind {
	case tokNumber:
		p.at++
		return &expr{kind: exNumber, text: t.text}
	case tokString:
		p.at++
		return &expr{kind: exString, text: t.text}
	case tokParam:
		p.at++
		if n, err := strconv.Atoi(t.text); err != nil || n < 1 || n > 65535 {
			panic(Errorf("42P02", "there is no parameter $%.10s", t.text))
		}
		return &expr{kind: exParam, text: t.text}
	case tokVariable:
		p.at++
		return &expr{kind: exVariable, text: strings.ToLower(t.text)}
	case tokGlobal:
		p.at++
		return &expr{kind: exCall, text: "@@" + strings.ToLower(t.text), call: &callParts{}}
	case tokSign:
		if t.sign("(") {
			return p.brackets()
		}
	case tokWord, tokName:
		return p.word()
	default:
	}
	p.fail()
	return nil
}

func (p *parser) brackets() *expr {
	p.needSign("(")
	if p.queryAhead(0) {
		q := p.query()
		p.needSign(")")
		return &expr{kind: exQuery, query: q}
	}
	list := p.exprs()
	p.needSign(")")
	if len(list) == 1 {
		return list[0]
	}
	return &expr{kind: exRow, args: list}
}

// niladic are the functions that are called without brackets.
var niladic = words(`CURRENT_USER SESSION_USER CURRENT_CATALOG CURRENT_SCHEMA CURRENT_ROLE USER CURRENT_TIMESTAMP LOCALTIMESTAMP SYSTEM_USER CURRENT_DATE`)

// word parses an operand that begins with a word or a name.
func (p *parser) word() *expr {
	t := p.tok()
	call := p.ahead(1).sign("(")
	switch {
	case p.take("NULL"):
		return &expr{kind: exNull}
	case !call && !p.ahead(1).sign(".") && p.take("TRUE"):
		return &expr{kind: exBool, text: "1"}
	case !call && !p.ahead(1).sign(".") && p.take("FALSE"):
		return &expr{kind: exBool, text: "0"}
	case p.take("CASE"):
		return p.caseOf()
	case t.is("EXISTS") && call:
		p.at += 2
		q := p.query()
		p.needSign(")")
		return &expr{kind: exExists, query: q}
	case t.is("ARRAY") && p.ahead(1).sign("["):
		p.at += 2
		e := &expr{kind: exArray}
		if !p.tok().sign("]") {
			e.args = p.exprs()
		}
		p.needSign("]")
		return e
	case t.is("ARRAY") && call:
		p.at += 2
		e := &expr{kind: exArray, query: p.query()}
		p.needSign(")")
		return e
	case t.is("ROW") && call:
		p.at += 2
		e := &expr{kind: exRow, args: p.exprs()}
		p.needSign(")")
		return e
	case (t.is("DATE") || t.is("TIMESTAMP") || t.is("TIMESTAMPTZ") || t.is("INTERVAL")) && p.ahead(1).kind == tokString:
		if t.is("INTERVAL") {
			p.fail()
		}
		p.at += 2
		return &expr{kind: exCast, text: "::", args: []*expr{{kind: exString, text: p.tokens[p.at-1].text}}, typ: typeName{name: strings.ToLower(t.text)}}
	case t.is("NEXT") && p.ahead(1).is("VALUE"):
		panic(unsupported("NEXT VALUE FOR", "the views have no sequences"))
	case t.kind == tokWord && niladic[strings.ToUpper(t.text)] && !call && !p.ahead(1).sign("."):
		p.at++
		return &expr{kind: exCall, text: strings.ToLower(t.text), call: &callParts{}}
	case t.kind == tokWord && call:
		return p.callOf(strings.ToLower(t.text))
	}
	return p.column()
}

// schemaPrefixes are removed before the name of a function: the engine has no functions in schemas.
var schemaPrefixes = words("PG_CATALOG SYS COTERIE DBO MASTER")

// column parses a column's name with what stands before it, or the call of a function in a schema.
func (p *parser) column() *expr {
	quoted := map[bool]string{true: "quoted"}[p.tok().kind == tokName]
	first := p.name()
	names := []string{first}
	for p.tok().sign(".") {
		p.at++
		if p.tok().sign(".") {
			continue
		}
		t := p.tok()
		if t.kind != tokWord && t.kind != tokName {
			p.fail()
		}
		if p.ahead(1).sign("(") {
			if !schemaPrefixes[strings.ToUpper(names[len(names)-1])] {
				panic(unsupported("the method "+names[len(names)-1]+"."+t.text, ""))
			}
			return p.callOf(strings.ToLower(t.text))
		}
		p.at++
		names = append(names, t.text)
	}
	if len(names) > 4 {
		p.fail()
	}
	return &expr{kind: exColumn, names: names, text: quoted}
}

func (p *parser) caseOf() *expr {
	e := &expr{kind: exCase, args: []*expr{nil}}
	if !p.tok().is("WHEN") {
		e.args[0] = p.expr()
	}
	if !p.tok().is("WHEN") {
		p.fail()
	}
	for p.take("WHEN") {
		when := p.expr()
		p.need("THEN")
		e.args = append(e.args, when, p.expr())
	}
	var otherwise *expr
	if p.take("ELSE") {
		otherwise = p.expr()
	}
	p.need("END")
	e.args = append(e.args, otherwise)
	return e
}
