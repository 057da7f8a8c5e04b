package dialect

import (
	"strconv"
	"strings"
)

// expr writes an expression, and returns its type.
func (w *writer) expr(e *expr, s *scope) (string, Type) {
	if s != nil && s.group.key(e, s) {
		defer s.eachRow()()
	}
	text, t := w.plain(e, s)
	return w.note(text), t
}

func (w *writer) plain(e *expr, s *scope) (string, Type) {
	switch e.kind {
	case exNumber:
		return number(e.text)
	case exString:
		return quoteText(e.text), Type{Kind: Text}
	case exNull:
		return "NULL", Type{Kind: Null}
	case exBool:
		return e.text, Type{Kind: Bit}
	case exParam:
		n, _ := strconv.Atoi(e.text)
		if _, seen := w.params[n]; !seen {
			w.params[n] = 0
		}
		return "?" + e.text, Type{}
	case exVariable:
		return w.variable(e.text)
	case exColumn:
		return w.column(e, s)
	case exUnary:
		return w.unary(e, s)
	case exBinary:
		return w.binary(e, s)
	case exIn:
		return w.in(e, s)
	case exBetween:
		low := &expr{kind: exBinary, text: ">=", args: []*expr{e.args[0], e.args[1]}}
		high := &expr{kind: exBinary, text: "<=", args: []*expr{e.args[0], e.args[2]}}
		a, _ := w.expr(low, s)
		b, _ := w.expr(high, s)
		return negated(e.not, "("+a+" AND "+b+")"), Type{Kind: Bit}
	case exLike, exRegexp:
		return w.matches(e, s)
	case exIs:
		return w.is(e, s)
	case exCase:
		return w.caseOf(e, s)
	case exCast:
		return w.cast(e, s)
	case exCall:
		return w.call(e, s)
	case exQuery:
		text, columns := w.query(e.query, s)
		if columns == nil || len(columns) != 1 {
			panic(Errorf("42601", "a query in an expression must return one column"))
		}
		if !e.query.oneRow() { // the engine takes the first row of several, and both servers refuse that
			name := quoteName(w.newName())
			text = "WITH " + name + "(c) AS (" + text + ") SELECT co_only(c) FROM " + name
		}
		return "(" + text + ")", columns[0].Type
	case exExists:
		text, _ := w.query(e.query, s)
		return "EXISTS (" + text + ")", Type{Kind: Bit}
	case exRow:
		return "(" + w.list2(e.args, s) + ")", Type{}
	case exResult:
		return quoteName(e.text), Type{}
	case exCollate:
		text, t := w.expr(e.args[0], s)
		return "(" + text + " COLLATE " + strings.Replace(e.text, "NOCASE", "co_nocase", 1) + ")", t
	default:
	}
	panic(unsupported("an array", "IN (...) compares with a list"))
}

// number writes a number. One with a fraction is a decimal, as in T-SQL and PostgreSQL.
func number(text string) (string, Type) {
	if strings.ContainsAny(text, "eE") {
		return text, Type{Kind: Float}
	}
	whole, fraction, ok := strings.Cut(text, ".")
	if _, err := strconv.ParseInt(text, 10, 64); !ok && err == nil {
		return text, Type{Kind: Int}
	}
	if len(fraction) == 0 {
		text = whole + ".0"
	}
	f, err := strconv.ParseFloat(text, 64)
	if exact := strconv.FormatFloat(f, 'f', len(fraction), 64); err != nil || strings.TrimLeft(exact, "0") != strings.TrimLeft(strings.TrimSuffix(whole+"."+fraction, "."), "0") {
		panic(unsupported("the decimal "+text, "15 digits are calculated with: write it with fewer, or as a float, such as 1.5e0"))
	}
	return text, Type{Kind: Decimal, Scale: min(len(fraction), 38)}
}

func (w *writer) variable(name string) (string, Type) {
	v, ok := w.env.Variables[name]
	if !ok {
		panic(Errorf("42704", "must declare the scalar variable \"@%s\"", name).withHint(LifeOfVariables))
	}
	return v.write()
}

// write writes the value of a variable.
func (v Value) write() (string, Type) {
	switch x := v.V.(type) {
	case int64:
		return "(" + strconv.FormatInt(x, 10) + ")", v.Type
	case float64:
		return "(" + strconv.FormatFloat(x, 'e', -1, 64) + ")", v.Type
	case string:
		return quoteText(x), v.Type
	}
	return "NULL", v.Type
}

// LifeOfVariables is the hint to an error about a variable that is not declared.
const LifeOfVariables = "a variable lives until the end of the text that declares it, or until GO; psql -f sends a text at each semicolon, coterie sql -f and psql -c send the script whole"

func (e *Error) withHint(hint string) *Error {
	e.Hint = hint
	return e
}

func (w *writer) column(e *expr, s *scope) (string, Type) {
	name := e.names[len(e.names)-1]
	c, b, ok := s.find(e.names)
	if b != nil {
		s.unambiguous(b, e.names)
		s.grouped(b, c.Name)
	}
	switch {
	case ok && b.json != "":
		for i := range b.columns {
			if b.columns[i].Name == c.Name {
				return b.column(i), c.Type
			}
		}
	case len(e.names) > 1:
		table := e.names[len(e.names)-2]
		if b == nil {
			panic(Errorf("42P01", "missing FROM-clause entry for table %.60q", table))
		}
		if !ok && !b.open {
			panic(noColumn(table+"."+name, name, []*bound{b}))
		}
		return quoteName(table) + "." + quoteName(name), c.Type
	case !ok:
		var seen []*bound
		for up := s; up != nil; up = up.parent {
			if t, found := up.aliases[strings.ToLower(name)]; found {
				return quoteName(name), t
			}
			if up.open() {
				return quoteName(name), Type{}
			}
			seen = append(seen, up.sources...)
		}
		panic(noColumn(name, name, seen).quoted(e))
	}
	return quoteName(name), c.Type
}

// noColumn returns the error of a column that no source has, with one that is spelled almost like it.
func noColumn(shown, name string, in []*bound) *Error {
	e := Errorf("42703", "no such column: %.60s", shown)
	for _, b := range in {
		for _, c := range b.columns {
			if Alike(strings.ToLower(c.Name), strings.ToLower(name)) {
				return e.withHint("perhaps " + b.name + "." + c.Name)
			}
		}
	}
	return e
}

// quoted adds to the error of a column without a hint what quotes mean: a text in double quotes is taken for a name.
func (e *Error) quoted(x *expr) *Error {
	if x.text != "" && e.Hint == "" {
		e.Hint = "double quotes and brackets are for names, and single quotes for texts"
	}
	return e
}

// Alike reports whether two names differ by one letter, by two that one of them has more, or by two that have changed
// places.
func Alike(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 2 || len(a) < 3 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	j := 0
	for j < len(a)-i && a[len(a)-1-j] == b[len(b)-1-j] {
		j++
	}
	rest := len(a) - i - j
	swapped := rest == 2 && len(a) == len(b) && a[i] == b[i+1] && a[i+1] == b[i]
	return rest <= 1 || swapped
}

// condition writes an expression that is to be true. The engine takes any value for one, and a text as false; both
// servers refuse what is none.
func (w *writer) condition(e *expr, s *scope) string {
	text, t := w.expr(e, s)
	w.guess(e, Type{Kind: Bit})
	if t.Kind != Bit && t.Kind != Unknown && t.Kind != Null {
		panic(Errorf("42804", "a condition is expected, and not a %s", kindNames[t.Kind]).withHint("compare it: x = 1"))
	}
	return text
}

func (w *writer) unary(e *expr, s *scope) (string, Type) {
	if e.text == "NOT" {
		return "(NOT " + w.condition(e.args[0], s) + ")", Type{Kind: Bit}
	}
	text, t := w.expr(e.args[0], s)
	switch e.text {
	case "-":
		if t.Kind == Text {
			panic(Errorf("42883", "- of a text").withHint("CAST it to a number"))
		}
		if t.Kind == Bit {
			t = Type{Kind: Int}
		}
		if e.args[0].kind == exNumber {
			return "(- " + text + ")", calculated(t)
		}
		return "co_minus(0, " + w.asNumber(text, t) + ", -1)", calculated(t)
	}
	if t.Kind == Bit { // T-SQL's; PostgreSQL has none of a boolean
		return "(NOT " + text + ")", t
	}
	return "(~ " + w.asNumber(text, t) + ")", Type{Kind: Int}
}

// operand writes an operand of arithmetic, in which a parameter is a number.
func (w *writer) operand(e *expr, s *scope) (string, Type) {
	text, t := w.expr(e, s)
	if e.kind == exParam {
		return text, Type{}
	}
	return text, t
}

func (w *writer) binary(e *expr, s *scope) (string, Type) {
	switch e.text {
	case "AND", "OR":
		a := w.condition(e.args[0], s)
		b := w.condition(e.args[1], s)
		return "(" + a + " " + e.text + " " + b + ")", Type{Kind: Bit}
	case "=", "<>", "<", ">", "<=", ">=":
		a, b := w.compared(e.args[0], e.args[1], s)
		return "(" + a + " " + e.text + " " + b + ")", Type{Kind: Bit}
	case "||":
		a, ta := w.expr(e.args[0], s)
		b, tb := w.expr(e.args[1], s)
		return "(" + w.inText(a, ta) + " || " + w.inText(b, tb) + ")", Type{Kind: Text}
	case "->", "->>":
		a, _ := w.expr(e.args[0], s)
		b, _ := w.expr(e.args[1], s)
		return "(" + a + " " + e.text + " " + b + ")", Type{}
	}
	a, ta := w.operand(e.args[0], s)
	b, tb := w.operand(e.args[1], s)
	return w.arithmetic(e, [2]string{a, b}, [2]Type{ta, tb})
}

// inText writes an operand of ||, which makes words of booleans.
func (w *writer) inText(text string, t Type) string {
	if t.Kind == Bit {
		return "CASE " + text + " WHEN 0 THEN 'false' WHEN 1 THEN 'true' END"
	}
	return w.asText(text, t)
}

// asText writes an operand of || or CONCAT as PostgreSQL shows it.
func (w *writer) asText(text string, t Type) string {
	switch t.Kind {
	case Text, Null, UUID, Date, Clock:
		return text
	case Elapsed:
		panic(unsupported("the difference of two times as a text", "DATEDIFF(second, a, b) is a number"))
	default:
		w.digitsKnown(t)
		return "co_text(" + text + ", " + quoteText(t.code()) + ")"
	}
}

// compared writes two operands of a comparison. A text that meets another type is converted to that.
func (w *writer) compared(a, b *expr, s *scope) (string, string) {
	x, tx := w.expr(a, s)
	y, ty := w.expr(b, s)
	w.guess(a, ty)
	w.guess(b, tx)
	if a.kind == exParam {
		return w.paramAs(x, ty), y
	}
	if b.kind == exParam {
		return x, w.paramAs(y, tx)
	}
	to := w.agree(tx, ty)
	if to.Kind == Clock { // with as many digits on both sides
		return "co_clock(" + x + ", 7, 0)", "co_clock(" + y + ", 7, 0)"
	}
	return w.converted(x, tx, to), w.converted(y, ty, to)
}

// paramAs writes a parameter that meets a value of the type. The client may have sent a number with a fraction.
func (w *writer) paramAs(text string, to Type) string {
	if to.Kind == Int {
		return "co_number(" + text + ")"
	}
	return w.converted(text, Type{Kind: Text}, to)
}

// guess notes the type that a parameter meets.
func (w *writer) guess(e *expr, t Type) {
	if e.kind != exParam {
		return
	}
	n, _ := strconv.Atoi(e.text)
	if w.params[n] != 0 {
		return
	}
	switch t.Kind { // as clients send them
	case Decimal:
		w.params[n] = 701
	case Date:
		w.params[n] = 25
	default:
		w.params[n] = OIDOf(t)
	}
}

// OIDOf returns the type of PostgreSQL by which a client gets the values of an expression; 0: unknown.
func OIDOf(t Type) uint32 {
	if t.OID != 0 {
		return t.OID
	}
	return map[Kind]uint32{Int: 20, Decimal: 1700, Float: 701, Text: 25, Time: 1184, Date: 1082, Bit: 16, UUID: 2950, Clock: 25}[t.Kind]
}

// converted writes a value as one of the type, if that is not what it is.
func (w *writer) converted(text string, from, to Type) string {
	switch {
	case from.Kind == to.Kind || from.Kind == Null || from.Kind == Unknown && to.Kind != Unknown && !to.numeric():
		return text
	case to.Kind == UUID && from.Kind == Text:
		return "co_uuid(" + text + ", 0)"
	case to.Kind == Bit && from.Kind == Text:
		return "co_bit(" + text + ", 1, 0)"
	case to.Kind == Int && from.Kind == Text: // 1 = '1.5' is an error in both languages
		return "co_int(" + text + ", 64, 0, 0)"
	case to.numeric() && !from.numeric():
		return "co_number(" + text + ")"
	case to.Kind == Time && (from.Kind == Text || from.Kind == Date || from.numeric()):
		return "co_time(" + text + ", 0, 0)"
	case to.Kind == Date && from.Kind == Text:
		return "co_date(" + text + ", 0)"
	}
	return text
}

func negated(not bool, text string) string {
	if not {
		return "(NOT " + text + ")"
	}
	return text
}

func (w *writer) in(e *expr, s *scope) (string, Type) {
	word := " IN ("
	if e.not {
		word = " NOT IN ("
	}
	left, t := w.expr(e.args[0], s)
	if e.query != nil {
		text, columns := w.query(e.query, s)
		if len(columns) == 1 && e.args[0].kind != exParam {
			of := columns[0].Type
			if to := w.agree(t, of); to.Kind != of.Kind && of.Kind != Unknown && of.Kind != Null && !(to.numeric() && of.numeric()) {
				panic(unsupported("IN (SELECT ...) of a "+kindNames[of.Kind]+" for a "+kindNames[t.Kind], "CAST one of the two"))
			}
			left = w.converted(left, t, of)
		} else if len(columns) == 1 {
			w.guess(e.args[0], columns[0].Type)
		}
		return "(" + left + word + text + "))", Type{Kind: Bit}
	}
	types := []Type{t}
	texts := make([]string, len(e.args))
	for i, x := range e.args[1:] {
		text, of := w.expr(x, s)
		w.guess(x, t)
		if x.kind == exParam {
			of = Type{Kind: Null}
		}
		texts[i+1], types = text, append(types, of)
	}
	to := w.agree(types...)
	if to.Kind == Clock {
		panic(unsupported("IN (...) of times of day", "compare with =, or CONVERT them to varchar(8) with the style 108"))
	}
	for i := range e.args[1:] {
		texts[i+1] = w.converted(texts[i+1], types[i+1], to)
	}
	return "(" + w.converted(left, t, to) + word + strings.Join(texts[1:], ", ") + "))", Type{Kind: Bit}
}

// matches writes LIKE and the regular expressions of PostgreSQL.
func (w *writer) matches(e *expr, s *scope) (string, Type) {
	a, ta := w.expr(e.args[0], s)
	b, _ := w.expr(e.args[1], s)
	w.guess(e.args[0], Type{Kind: Text})
	w.guess(e.args[1], Type{Kind: Text})
	for _, x := range e.args[:2] {
		if x.kind == exCollate && x.text == "NOCASE" && e.kind == exLike {
			e.text = "LIKE NOCASE"
		}
	}
	if e.kind == exLike {
		escape := "NULL"
		if len(e.args) > 2 {
			escape, _ = w.expr(e.args[2], s)
		}
		a = w.asString(a, ta)
		return negated(e.not, "co_like("+a+", "+b+", "+escape+", "+quoteText(e.text)+")"), Type{Kind: Bit}
	}
	if e.text == "~*" {
		b = "('(?i)' || " + b + ")"
	}
	return negated(e.not, "regexp("+b+", "+a+")"), Type{Kind: Bit}
}

func (w *writer) is(e *expr, s *scope) (string, Type) {
	a, t := w.expr(e.args[0], s)
	word := " IS "
	if e.not {
		word = " IS NOT "
	}
	switch e.text {
	case "NULL", "TRUE", "FALSE":
		if e.text != "NULL" && t.Kind == Text {
			a = "co_bit(" + a + ", 1, 0)"
		}
		return "(" + a + word + e.text + ")", Type{Kind: Bit}
	}
	x, y := w.compared(e.args[0], e.args[1], s)
	if word = " IS NOT "; e.not {
		word = " IS "
	}
	return "(" + x + word + y + ")", Type{Kind: Bit}
}

// caseOf writes CASE. Its results are of one type: a text beside numbers is converted to a number, or is an error.
func (w *writer) caseOf(e *expr, s *scope) (string, Type) {
	last := len(e.args) - 1
	var results []string
	var types []Type
	add := func(x *expr) {
		text, t := w.expr(x, s)
		results, types = append(results, text), append(types, t)
	}
	for i := 2; i < last; i += 2 {
		add(e.args[i])
	}
	if e.args[last] != nil {
		add(e.args[last])
	}
	to := w.agree(types...)
	var b strings.Builder
	b.WriteString("CASE")
	for i := 1; i < last; i += 2 {
		when := e.args[i]
		if e.args[0] != nil {
			when = binary("=", e.args[0], when)
		}
		text := w.condition(when, s)
		k := i / 2
		b.WriteString(" WHEN " + text + " THEN " + w.converted(results[k], types[k], to))
	}
	if e.args[last] != nil {
		k := len(results) - 1
		b.WriteString(" ELSE " + w.converted(results[k], types[k], to))
	}
	return b.String() + " END", to
}
