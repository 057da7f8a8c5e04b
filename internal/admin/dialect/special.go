package dialect

import (
	"strconv"
	"strings"
)

// callOf parses the call of a function. The token at p.at is its name.
func (p *parser) callOf(name string) *expr {
	p.at++
	p.needSign("(")
	e := &expr{kind: exCall, text: name, call: &callParts{}}
	switch name {
	case "cast", "try_cast":
		x := p.expr()
		p.need("AS")
		e = &expr{kind: exCast, text: "CAST", args: []*expr{x}, typ: p.typeName(), try: name == "try_cast"}
		p.needSign(")")
		return e
	case "convert", "try_convert":
		e = &expr{kind: exCast, text: "CONVERT", typ: p.typeName(), try: name == "try_convert"}
		p.needSign(",")
		e.args = p.exprs()
		if len(e.args) > 2 {
			p.fail()
		}
		p.needSign(")")
		return e
	case "extract", "position", "substring", "trim", "overlay":
		if p.special(e) {
			p.needSign(")")
			return e
		}
	case "datediff", "datediff_big", "dateadd", "datepart", "datename", "datetrunc", "date_bucket":
		if t := p.tok(); t.kind == tokWord && p.ahead(1).sign(",") {
			p.at++
			e.args = append(e.args, &expr{kind: exString, text: strings.ToLower(t.text)})
			p.needSign(",")
		}
	}
	p.arguments(e)
	p.after(e)
	return e
}

// special parses the arguments of the functions that have a syntax of their own, and reports whether they are so.
func (p *parser) special(e *expr) bool {
	start := p.at
	switch e.text {
	case "extract":
		field := p.tok()
		if field.kind != tokWord && field.kind != tokString || !p.ahead(1).is("FROM") {
			return false
		}
		p.at += 2
		e.text, e.args = "extract_field", []*expr{{kind: exString, text: strings.ToLower(field.text)}, p.expr()}
		return true
	case "position":
		e.args = []*expr{p.other()}
		p.need("IN")
		e.args = append(e.args, p.expr())
		return true
	case "substring":
		x := p.expr()
		if !p.take("FROM") {
			p.at = start
			return false
		}
		e.args = []*expr{x, p.expr()}
		if p.take("FOR") {
			e.args = append(e.args, p.expr())
		}
		return true
	case "trim":
		side := "btrim"
		switch {
		case p.take("LEADING"):
			side = "ltrim"
		case p.take("TRAILING"):
			side = "rtrim"
		default:
			p.take("BOTH")
		}
		if p.take("FROM") {
			e.text, e.args = side, []*expr{p.expr()}
			return true
		}
		x := p.expr()
		if p.take("FROM") {
			e.text, e.args = side, []*expr{p.expr(), x}
			return true
		}
		e.text, e.args = side, []*expr{x}
		if p.takeSign(",") {
			e.args = append(e.args, p.expr())
		}
		return true
	case "overlay":
		panic(unsupported("OVERLAY", "STUFF(x, start, length, with) does the same"))
	}
	return false
}

func (p *parser) arguments(e *expr) {
	switch {
	case p.takeSign("*"):
		e.call.star = true
	case p.tok().sign(")"):
	default:
		if e.call.distinct = p.take("DISTINCT"); !e.call.distinct {
			p.take("ALL")
		}
		if p.tok().is("VARIADIC") {
			panic(unsupported("VARIADIC", ""))
		}
		if p.queryAhead(0) && (p.tok().is("SELECT") || p.tok().is("WITH")) {
			panic(Errorf("42601", "a query as an argument of %s needs brackets of its own", strings.ToUpper(e.text)))
		}
		e.args = append(e.args, p.exprs()...)
		if p.take("ORDER", "BY") {
			e.call.order = p.sortKeys()
		}
	}
	p.needSign(")")
}

// after parses WITHIN GROUP, FILTER and OVER.
func (p *parser) after(e *expr) {
	if p.take("WITHIN", "GROUP") {
		p.needSign("(")
		p.need("ORDER", "BY")
		e.call.order = p.sortKeys()
		p.needSign(")")
		if e.text != "string_agg" {
			panic(unsupported(strings.ToUpper(e.text)+" WITHIN GROUP", ""))
		}
	}
	if p.tok().is("FILTER") && p.ahead(1).sign("(") {
		p.at += 2
		p.need("WHERE")
		e.call.filter = p.expr()
		p.needSign(")")
	}
	if (p.tok().is("IGNORE") || p.tok().is("RESPECT")) && p.ahead(1).is("NULLS") {
		if p.tok().is("IGNORE") {
			panic(unsupported("IGNORE NULLS", ""))
		}
		p.at += 2
	}
	if p.take("OVER") {
		if p.tok().sign("(") {
			e.call.over = p.window()
		} else {
			e.call.overName = p.name()
		}
	}
}

// typeName parses the name of a type.
func (p *parser) typeName() typeName {
	if (p.tok().is("pg_catalog") || p.tok().is("sys")) && p.ahead(1).sign(".") {
		p.at += 2
	}
	t := p.tok()
	if t.kind != tokWord && t.kind != tokName {
		p.fail()
	}
	p.at++
	typ := typeName{name: strings.ToLower(t.text)}
	_ = p.take("PRECISION") || p.take("VARYING")
	if p.takeSign("(") {
		for {
			n, err := strconv.Atoi(p.tok().text)
			switch {
			case p.tok().is("MAX"):
				n = -1
			case p.tok().kind != tokNumber || err != nil:
				p.fail()
			}
			p.at++
			if typ.args = append(typ.args, n); !p.takeSign(",") {
				break
			}
		}
		p.needSign(")")
	}
	_ = p.take("WITH", "TIME", "ZONE") || p.take("WITHOUT", "TIME", "ZONE")
	if p.tok().sign("[") && p.ahead(1).sign("]") {
		p.at += 2
		typ.name = "array"
	}
	return typ
}

// window parses the brackets of a window.
func (p *parser) window() *window {
	w := &window{}
	p.needSign("(")
	if t := p.tok(); t.name() && !t.is("PARTITION") && !t.is("ROWS") && !t.is("RANGE") && !t.is("GROUPS") {
		w.base = p.name()
	}
	if p.take("PARTITION", "BY") {
		w.partition = p.exprs()
	}
	if p.take("ORDER", "BY") {
		w.order = p.sortKeys()
	}
	if t := p.tok(); t.is("ROWS") || t.is("RANGE") || t.is("GROUPS") {
		for !p.tok().sign(")") {
			t := p.tok()
			_, err := strconv.ParseUint(t.text, 10, 32)
			if !(t.kind == tokWord && frameWords[strings.ToUpper(t.text)]) && (t.kind != tokNumber || err != nil) {
				p.fail()
			}
			w.frame = append(w.frame, strings.ToUpper(t.text))
			p.at++
		}
	}
	p.needSign(")")
	return w
}

var frameWords = words("ROWS RANGE GROUPS BETWEEN AND UNBOUNDED PRECEDING FOLLOWING CURRENT ROW EXCLUDE NO OTHERS GROUP TIES")

func (p *parser) exprs() (out []*expr) {
	for {
		if out = append(out, p.expr()); !p.takeSign(",") {
			return out
		}
	}
}

func (p *parser) sortKeys() (out []sortKey) {
	for {
		k := sortKey{e: p.expr()}
		if p.take("DESC") {
			k.desc = true
		} else {
			p.take("ASC")
		}
		if p.take("USING") {
			panic(unsupported("ORDER BY ... USING", "use ASC or DESC"))
		}
		if p.take("NULLS") {
			if k.nulls = "FIRST"; !p.take("FIRST") {
				p.need("LAST")
				k.nulls = "LAST"
			}
		}
		if out = append(out, k); !p.takeSign(",") {
			return out
		}
	}
}
