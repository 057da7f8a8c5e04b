package dialect

import (
	"fmt"
	"slices"
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
	case "parse", "try_parse": // they have AS and USING between their arguments
		panic(unsupported(strings.ToUpper(name), refusedFunctions[name]))
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

// shortParts are the parts of a time that a date does not have.
var shortParts = strings.Fields("hour hh minute mi n second ss s millisecond ms microsecond mcs nanosecond ns")

// hasPart refuses a part of a date or of a time of day that it does not have.
func hasPart(e *expr, t Type) {
	part, whole := e.args[0], slices.Contains([]string{"year", "month", "day", "eomonth"}, e.text)
	parted := (e.text == "datepart" || e.text == "datename") && part.kind == exString
	short := parted && slices.Contains(shortParts, part.text)
	if t.Kind == Date && short || t.Kind == Clock && (whole || parted && !short) {
		panic(unsupported(strings.ToUpper(e.text)+" of a "+kindNames[t.Kind]+" by that part", "it has none; CAST it to a datetime"))
	}
}

// result returns a call with its type, which may be that of an argument.
func (w *writer) result(e *expr, result, text string, types []Type) (string, Type) {
	first := Type{}
	if len(types) > 0 {
		first = types[0]
	}
	switch {
	case (e.text == "min" || e.text == "max") && first.Kind == Elapsed:
		panic(unsupported("the difference of two times there", "use DATEDIFF"))
	case e.text == "sum" && first.Kind == Decimal:
		return "co_exact(" + text + ", " + first.digits() + ")", calculated(first)
	case result == "mean" && (first.Kind != Float || first.Scale == open):
		return "co_exact(" + text + ", -2)", Type{Kind: Float, Scale: open}
	case result == "round" && first.Kind == Decimal && len(types) == 1:
		return text, Type{Kind: Decimal}
	case result == "round" && first.Kind == Decimal:
		return text, Type{Kind: Float, Scale: open}
	case result == "round" && first.Kind == Bit:
		return text, Type{Kind: Int}
	case result == "power" && first.Kind == Int && types[1].Kind == Decimal:
		panic(unsupported("POWER of a whole number to a decimal", "T-SQL cuts the result to a whole number, PostgreSQL does not: CAST the base to float"))
	case result == "power" && first.Kind == Int && types[1].Kind == Int:
		return text, Type{Kind: Int}
	case result == "power" && first.Kind == Decimal && (types[1].Kind == Decimal || types[1].Kind == Int):
		return text, Type{Kind: Float, Scale: open}
	case e.text == "dateadd", e.text == "datetrunc":
		return w.dateOf(e, text, types[len(types)-1])
	}
	return text, resultOf(result, first)
}

// dateOf returns a call of DATEADD or DATETRUNC, whose result is of the type of the time that it is given.
func (w *writer) dateOf(e *expr, text string, of Type) (string, Type) {
	switch {
	case of.Kind == Clock, of.Kind == Date && slices.Contains(shortParts, e.args[0].text):
		panic(unsupported(strings.ToUpper(e.text)+" of a "+kindNames[of.Kind]+" by that part", "CAST it to a datetime"))
	case of.Kind == Date:
		return "co_date(" + text + ", 0)", of
	case of.Kind == Time:
		of.OID = 0
		return text, of
	}
	return text, Type{Kind: Time, Scale: 3}
}

func resultOf(result string, first Type) Type {
	switch result {
	case "int":
		return Type{Kind: Int, OID: 23}
	case "bigint":
		return Type{Kind: Int}
	case "bitint":
		return Type{Kind: Int}
	case "float", "mean", "power":
		return Type{Kind: Float}
	case "round":
		return calculated(first)
	case "text":
		return Type{Kind: Text}
	case "time":
		return Type{Kind: Time, Scale: 3}
	case "datetime2":
		return Type{Kind: Time, Scale: 17}
	case "offset":
		return Type{Kind: Time, Scale: 27}
	case "date":
		return Type{Kind: Date}
	case "bit":
		return Type{Kind: Bit}
	case "uuid":
		return Type{Kind: UUID}
	case "sum":
		if first.Kind == Int || first.Kind == Bit {
			return Type{Kind: Int}
		}
		return calculated(first)
	case "same":
		return first
	case "whole":
		out := calculated(first)
		out.Scale = 0
		return out
	}
	return Type{}
}

// cast writes CAST, CONVERT and ::.
func (w *writer) cast(e *expr, s *scope) (string, Type) {
	to, bad := targetOf(e.typ, e.text == "::")
	if bad != nil {
		panic(bad)
	}
	text, from := w.expr(e.args[0], s)
	style := "-1"
	if len(e.args) > 1 {
		style, _ = w.expr(e.args[1], s)
		if to.conv != "co_str" && to.conv != "co_time" && to.conv != "co_date" && to.conv != "co_int" && to.conv != "co_dec" && to.conv != "co_float" {
			panic(unsupported("CONVERT to "+e.typ.name+" with a style", ""))
		}
	}
	switch moment := from.Kind == Time || from.Kind == Date || from.Kind == Clock; {
	case from.Kind == Elapsed:
		panic(unsupported("a cast of the difference of two times", "use DATEDIFF"))
	case moment && to.typ.numeric():
		panic(unsupported("a cast of a "+kindNames[from.Kind]+" to a "+kindNames[to.typ.Kind], "DATEDIFF(day, 0, x) counts the days from 1900 on"))
	case from.Kind == UUID && to.typ.Kind == Text && to.a > 0 && to.a < 36 && to.conv == "co_str":
		panic(Errorf("22001", "a uuid has 36 characters, and %s(%d) has no room for them", e.typ.name, to.a).withHint("LEFT(x, n) is its beginning"))
	}
	if e.args[0].kind == exParam {
		w.guess(e.args[0], to.typ)
		from = Type{}
	}
	if (to.conv == "co_time" || to.conv == "co_date") && len(e.args) > 1 && (from.Kind == Text || from.Kind == Unknown) && !slices.Contains(readStyles, e.args[1].text) {
		panic(unsupported("CONVERT of a text to a time with that style", "write the text as 2026-11-21 12:00:00, and leave the style out"))
	}
	if to.typ.Kind == Text {
		w.digitsKnown(from)
	}
	try := bitOf(e.try)
	code := quoteText(from.code())
	switch to.conv {
	case "":
		return text, from
	case "to_regclass":
		return "to_regclass(" + text + ")", Type{}
	case "co_text":
		if from.Kind == Text || from.Kind == UUID {
			return text, Type{Kind: Text}
		}
		if from.Kind == Bit {
			return "CASE " + text + " WHEN 0 THEN 'false' WHEN 1 THEN 'true' END", Type{Kind: Text}
		}
		return "co_text(" + text + ", " + code + ")", Type{Kind: Text}
	case "co_cut":
		return fmt.Sprintf("co_cut(%s, %d, %d, 0)", w.asText(text, from), to.a, to.b), to.typ
	case "co_str":
		return fmt.Sprintf("co_str(%s, %s, %d, %d, %s, %s)", text, code, to.a, to.b, style, try), to.typ
	case "co_bit":
		return fmt.Sprintf("co_bit(%s, %d, %s)", text, to.a, try), to.typ
	case "co_int", "co_dec":
		return fmt.Sprintf("%s(%s, %d, %d, %s)", to.conv, text, to.a, to.b, try), to.typ
	case "co_time", "co_clock":
		return fmt.Sprintf("%s(%s, %d, %s)", to.conv, text, to.a, try), to.typ
	}
	return to.conv + "(" + text + ", " + try + ")", to.typ
}

// readStyles are the styles of CONVERT by which a text is read as it is without one.
var readStyles = strings.Fields("0 20 21 23 25 100 101 110 112 120 121 126 127")

// digitsKnown refuses a text of a number in whose digits the languages differ.
func (w *writer) digitsKnown(t Type) {
	if t.Kind == Float && t.Scale == open {
		panic(unsupported("a text of a quotient, a mean or a rounded decimal", "T-SQL and PostgreSQL give it other digits: CAST it to a decimal(p, s) or a float first"))
	}
}

// asString writes an argument that is to be a text as T-SQL converts it. PostgreSQL refuses there what is none.
func (w *writer) asString(text string, t Type) string {
	switch t.Kind {
	case Text, Unknown, Null, UUID:
		return text
	case Elapsed:
		return w.asText(text, t) // which refuses it
	default:
		w.digitsKnown(t)
		return "co_str(" + text + ", " + quoteText(t.code()) + ", -1, 0, -1, 0)"
	}
}
