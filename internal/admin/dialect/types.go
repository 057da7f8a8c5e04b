package dialect

import (
	"slices"
	"strconv"
	"strings"
)

// Kind is what an expression's values are.
type Kind int

// The kinds. Unknown values are looked at when the query runs.
const (
	Unknown Kind = iota
	Null
	Int
	Decimal // a number that is shown with Scale digits of its fraction
	Float
	Text
	Time
	Date
	Bit
	UUID
	Elapsed // the difference of two times, in seconds
	Clock   // a time of day, as a text
	clash   // of values that neither language compares
)

// kindNames are the names of the kinds in errors.
var kindNames = map[Kind]string{
	Unknown: "value", Null: "NULL", Int: "whole number", Decimal: "decimal", Float: "float", Text: "text", Time: "time", Date: "date", Bit: "boolean",
	UUID: "uuid", Elapsed: "difference of two times", Clock: "time of day",
}

// Type is the type of an expression.
type Type struct {
	Kind  Kind
	OID   uint32 // of a column; 0: follows from the kind
	Scale int    // of a Decimal; 1 of a Text that is filled up with blanks; open of a Float that is one in neither language; of a Time 10 and more for datetime2, 20 and more for datetimeoffset, and the digits of a second that their texts have; of a Clock these
	Len   int    // of a Text the characters at most; 0: any number
}

// numeric reports whether the engine calculates with the values as they are.
func (t Type) numeric() bool {
	return t.Kind == Int || t.Kind == Decimal || t.Kind == Float || t.Kind == Bit
}

// code returns the type as the engine's functions get it.
func (t Type) code() string {
	switch t.Kind {
	case Int:
		return "int"
	case Decimal:
		return "dec" + strconv.Itoa(t.Scale)
	case Float:
		return "float"
	case Text:
		return "text"
	case Time:
		if t.Scale >= 10 {
			return []string{"dt2", "dto"}[min(t.Scale/10, 2)-1] + strconv.Itoa(t.Scale%10)
		}
		return "time"
	case Clock:
		return "clock"
	case Date:
		return "date"
	case Bit:
		return "bit"
	case UUID:
		return "uuid"
	default:
		return ""
	}
}

// open is the Scale of a number that is a decimal in both languages, with a number of digits in which they differ, such
// as that of a quotient. Its value is the same. A text of it is refused.
const open = -1

// digits returns the digits of a result's fraction, as the engine's functions get them.
func (t Type) digits() string {
	switch {
	case t.Kind == Decimal:
		return strconv.Itoa(t.Scale)
	case t.Kind == Float && t.Scale == open:
		return "-2"
	}
	return "-1"
}

// Column is a column of a table or of a result.
type Column struct {
	Name string
	Type Type
}

// Value is the value of a variable: nil, int64, float64 or string.
type Value struct {
	Type Type
	V    any
}

// agree returns the type of an expression that has values of all the types, as CASE has. Types that have nothing in
// common are refused, as both servers do; the engine would compare a text with a number, and answer.
func (w *writer) agree(types ...Type) Type {
	out := common(types...)
	if out.Kind != clash {
		return out
	}
	var names []string
	for _, t := range types {
		if n := "a " + kindNames[t.Kind]; t.Kind != Null && t.Kind != Unknown && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	panic(Errorf("42804", "%s cannot be one type", strings.Join(names, " and ")).withHint("CAST one of them"))
}

// common returns the type that agree returns, or one of the kind clash.
func common(types ...Type) Type {
	var out Type
	out.Kind = Null
	for _, t := range types {
		switch {
		case t.Kind == Null:
		case out.Kind == Null:
			out = t
		case out.Kind == clash:
		case out.Kind == Unknown || t.Kind == Unknown:
			out = Type{}
		case (out.Kind == Elapsed) != (t.Kind == Elapsed):
			out = Type{Kind: clash}
		case out.numeric() && t.numeric():
			out = wider(out, t)
		case out.Kind == t.Kind:
			if out.Len = max(out.Len, t.Len); out.Len > 0 && (t.Len == 0 || out.Len == 0) {
				out.Len = 0
			}
			if out.OID != t.OID {
				out.OID = 0
			}
		case out.Kind == Text:
			out = t // T-SQL and PostgreSQL convert the text
		case t.Kind == Text:
		case out.Kind == Date && t.Kind == Time:
			out = t
		case out.Kind == Time && t.Kind == Date:
		case out.Kind == Time && t.numeric(): // days since 1900 in T-SQL
		case out.numeric() && t.Kind == Time:
			out = t
		default:
			out = Type{Kind: clash}
		}
	}
	out.Len = 0
	return out
}

// wider returns the type of numbers of two types.
func wider(a, b Type) Type {
	switch {
	case (a.Kind == Float || b.Kind == Float) && (a.Kind != Float || a.Scale == open) && (b.Kind != Float || b.Scale == open):
		return Type{Kind: Float, Scale: open}
	case a.Kind == Float || b.Kind == Float:
		return Type{Kind: Float}
	case a.Kind == Decimal || b.Kind == Decimal:
		return Type{Kind: Decimal, Scale: max(scaleOf(a), scaleOf(b))}
	case a.Kind == Bit && b.Kind == Bit:
		return a
	case a.OID == b.OID:
		return Type{Kind: Int, OID: a.OID}
	}
	return Type{Kind: Int}
}

func scaleOf(t Type) int {
	if t.Kind == Decimal {
		return t.Scale
	}
	return 0
}

// target is what a cast to a type does.
type target struct {
	typ  Type
	conv string // name of the conversion; "": the value stays as it is
	a, b int    // its parameters
}

// integers are the types of whole numbers, with their bits; 0 bits: unsigned, 8 of them.
var integers = map[string]int{
	"int": 32, "integer": 32, "int4": 32, "bigint": 64, "int8": 64, "smallint": 16, "int2": 16, "tinyint": 0, "serial": 32, "oid": -1,
}

// kept are PostgreSQL's types whose casts change nothing here.
var kept = words("REGTYPE REGPROC REGNAMESPACE REGROLE REGPROCEDURE REGCONFIG REGDICTIONARY REGOPER REGOPERATOR JSON JSONB PG_LSN UNKNOWN CSTRING CHAR_")

// targetOf returns what a cast to the type does. Casts written with :: are PostgreSQL's. CAST and CONVERT are T-SQL's,
// but for the types that only PostgreSQL has.
func targetOf(t typeName, postgres bool) (target, *Error) {
	arg := func(i, otherwise int) int {
		if i < len(t.args) {
			return t.args[i]
		}
		return otherwise
	}
	for _, n := range t.args {
		if n > 8000 {
			return target{}, Errorf("42601", "the size %d given to the type %s exceeds the maximum of 8000", n, t.name)
		}
	}
	if bits, ok := integers[t.name]; ok {
		return target{typ: Type{Kind: Int}, conv: "co_int", a: bits, b: rounding(postgres || strings.HasSuffix(t.name, "8") || t.name == "int4" || t.name == "int2")}, nil
	}
	switch t.name {
	case "varchar", "nvarchar", "char", "nchar", "character", "sysname", "bpchar":
		return textTarget(t, postgres, arg)
	case "text", "ntext", "name", "citext":
		return target{typ: Type{Kind: Text}, conv: "co_text"}, nil
	case "numeric", "decimal", "dec":
		if len(t.args) == 0 && postgres {
			return target{typ: Type{Kind: Float}, conv: "co_float"}, nil
		}
		precision, scale := arg(0, 18), arg(1, 0)
		if precision < 1 || precision > 38 || scale < 0 || scale > precision {
			return target{}, Errorf("22023", "%s(%d, %d): the precision is 1 to 38, and the scale 0 to the precision", t.name, precision, scale)
		}
		return target{typ: Type{Kind: Decimal, Scale: scale}, conv: "co_dec", a: precision, b: scale}, nil
	case "float", "real", "float4", "float8", "double":
		return target{typ: Type{Kind: Float}, conv: "co_float"}, nil
	case "bit", "bool", "boolean":
		return target{typ: Type{Kind: Bit}, conv: "co_bit", a: rounding(postgres || t.name != "bit")}, nil
	case "date":
		return target{typ: Type{Kind: Date}, conv: "co_date"}, nil
	case "datetime", "datetime2", "timestamptz", "timestamp", "datetimeoffset", "smalldatetime":
		return timeTarget(t, arg)
	case "time":
		if postgres {
			return target{}, unsupported("::time", "to_char is not there; FORMAT(x, 'HH:mm:ss') gives the time of day")
		}
		n := arg(0, 7)
		if n < 0 || n > 7 {
			return target{}, Errorf("22023", "time(%d): the digits are 0 to 7", n)
		}
		return target{typ: Type{Kind: Clock, Scale: n}, conv: "co_clock", a: n}, nil
	case "uuid", "uniqueidentifier":
		return target{typ: Type{Kind: UUID}, conv: "co_uuid"}, nil
	case "regclass":
		return target{typ: Type{}, conv: "to_regclass"}, nil
	case "array":
		return target{}, unsupported("an array", "IN (...) compares with a list")
	case "money", "smallmoney", "xml", "varbinary", "binary", "image", "sql_variant", "hierarchyid", "geography", "geometry", "rowversion", "interval", "bytea", "timetz":
		return target{}, unsupported("the type "+t.name, "")
	}
	if kept[strings.ToUpper(t.name)] {
		return target{}, nil
	}
	return target{}, Errorf("42704", "type %.40q does not exist", t.name)
}

// rounding returns the parameter of co_int: PostgreSQL rounds, T-SQL cuts the fraction off.
func rounding(postgres bool) int {
	if postgres {
		return 1
	}
	return 0
}

// timeTarget returns the conversion to a time, which is rounded to the digits that the type has.
func timeTarget(t typeName, arg func(int, int) int) (target, *Error) {
	out := target{typ: Type{Kind: Time, Scale: 3}, conv: "co_time"}
	n := arg(0, 7)
	if n < 0 || n > 7 {
		return target{}, Errorf("22023", "%s(%d): the digits are 0 to 7", t.name, n)
	}
	switch t.name {
	case "smalldatetime":
		out.a = 1 + zoneless
		return out, nil
	case "datetime":
		out.a = 2
	case "datetime2":
		out.typ.Scale = 10 + n
	case "datetimeoffset":
		out.typ.Scale = 20 + n
	}
	if len(t.args) > 0 {
		out.a = 10 + n
	}
	if t.name != "timestamptz" {
		out.a += zoneless
	}
	return out, nil
}

// zoneless is added to the rounding of a time where a text with an offset from UTC is refused: T-SQL keeps the offset.
const zoneless = 100

// textTarget returns the conversion to a string of T-SQL, whose length is 30 where none is given, or of PostgreSQL.
func textTarget(t typeName, postgres bool, arg func(int, int) int) (target, *Error) {
	n := arg(0, 30)
	if t.name == "sysname" {
		n = 128
	}
	if postgres {
		n = arg(0, -1)
		if t.name == "char" || t.name == "character" || t.name == "nchar" {
			n = arg(0, 1)
		}
	}
	if n == 0 || n < -1 {
		return target{}, Errorf("22023", "the length of %s must be at least 1", t.name)
	}
	if n > 4000 && (t.name == "nvarchar" || t.name == "nchar") {
		return target{}, Errorf("42601", "the size %d given to the type %s exceeds the maximum of 4000", n, t.name)
	}
	out := target{typ: Type{Kind: Text, Len: max(n, 0)}, conv: "co_str", a: n}
	switch {
	case postgres:
		out.conv = "co_cut"
	case t.name == "nvarchar" || t.name == "nchar" || t.name == "sysname":
		out.b = 1 // a number that does not fit is an error and not *
	}
	if t.name == "char" || t.name == "nchar" || t.name == "character" {
		out.b |= 2 // filled up with blanks
		out.typ.Scale = 1
	}
	return out, nil
}

func bitOf(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// TypeNamed returns the type that T-SQL's DECLARE gives a variable.
func TypeNamed(name string) (t Type, bad *Error) {
	tokens, err := scan(name)
	if err != nil {
		return Type{}, Errorf("42601", "%v", err)
	}
	defer func() {
		if r := recover(); r != nil {
			var ok bool
			if bad, ok = r.(*Error); !ok {
				panic(r)
			}
		}
	}()
	p := &parser{tokens: tokens}
	parsed := p.typeName()
	if p.tok().kind != tokEnd {
		p.fail()
	}
	to, bad := targetOf(parsed, false)
	return to.typ, bad
}

// calculated returns the type of a result of arithmetic on the type.
func calculated(t Type) Type {
	if t.numeric() {
		t.OID = 0
		return t
	}
	return Type{}
}

// asNumber writes an operand of arithmetic. A text is converted, and one that is no number is an error.
func (w *writer) asNumber(text string, t Type) string {
	switch t.Kind {
	case Int, Decimal, Float, Bit, Null:
		return text
	case Time, Date, UUID, Clock:
		panic(unsupported("arithmetic with a "+kindNames[t.Kind], "DATEADD and DATEDIFF calculate with times"))
	case Elapsed:
		panic(unsupported("arithmetic with the difference of two times", "DATEDIFF(second, a, b) is a number"))
	default:
		return "co_number(" + text + ")"
	}
}

// arithmetic writes a sum, a difference, a product, a quotient, a remainder or an operation on bits.
func (w *writer) arithmetic(e *expr, x [2]string, t [2]Type) (string, Type) {
	if text, out, done := w.otherSum(e.text, x, t); done {
		return text, out
	}
	if t[0].Kind == Text && t[1].Kind == Text { // both languages refuse it; + has joined them
		panic(Errorf("42883", "%s of two texts: at least one must be a number", e.text).withHint("CAST them"))
	}
	for i := range t {
		if t[i].Kind == Text && t[1-i].Kind == Int { // the text is to be a whole number, too
			x[i], t[i] = "co_int("+x[i]+", 64, 0, 0)", Type{Kind: Int}
		}
	}
	a, b := w.asNumber(x[0], t[0]), w.asNumber(x[1], t[1])
	out := Type{}
	if t[0].numeric() && t[1].numeric() {
		out = calculated(wider(t[0], t[1]))
	}
	if t[0].Kind == Bit && t[1].Kind == Bit && e.text != "&" && e.text != "|" {
		panic(Errorf("42883", "%s of two booleans", e.text).withHint("CAST them to int"))
	}
	if e.text == "&" || e.text == "|" {
		out = Type{Kind: Int}
	}
	if e.text == "*" && out.Kind == Decimal {
		out.Scale = min(scaleOf(t[0])+scaleOf(t[1]), 38)
	}
	if e.text == "/" && out.Kind == Decimal {
		out = Type{Kind: Float, Scale: open}
	}
	name := map[string]string{"+": "co_plus", "-": "co_minus", "*": "co_times", "/": "co_div", "%": "co_mod"}[e.text]
	n := e.args[1]
	if name == "" || (e.text == "/" || e.text == "%") && out.Kind == Int && n.kind == exNumber && strings.Trim(n.text, "0.") != "" {
		return "(" + a + " " + e.text + " " + b + ")", out
	}
	return name + "(" + a + ", " + b + ", " + out.digits() + ")", out
}

// otherSum writes a sum or a difference whose operands are not both numbers, and reports whether it is one.
func (w *writer) otherSum(op string, x [2]string, t [2]Type) (string, Type, bool) {
	moment := func(k Kind) bool { return k == Time || k == Date }
	both := t[0].numeric() && t[1].numeric()
	switch {
	case op != "+" && op != "-" || both:
		return "", Type{}, false
	case op == "-" && moment(t[0].Kind) && moment(t[1].Kind):
		return "co_elapsed(" + x[0] + ", " + x[1] + ")", Type{Kind: Elapsed}, true
	case t[0].Kind == Time && t[1].Kind == Int:
		return "co_dateadd('day', " + op + "(" + x[1] + "), " + x[0] + ")", t[0], true
	case op == "-":
		return "", Type{}, false
	case t[0].Kind == Int && t[1].Kind == Time:
		return "co_dateadd('day', " + x[0] + ", " + x[1] + ")", t[1], true
	case t[0].Kind == Text && t[1].Kind == Text:
		return "(" + x[0] + " || " + x[1] + ")", Type{Kind: Text}, true
	case moment(t[0].Kind) || moment(t[1].Kind):
		panic(unsupported("+ with a time", "CONVERT(varchar(19), x, 120) makes a text of it, DATEADD adds to it"))
	case t[0].Kind == UUID || t[1].Kind == UUID:
		panic(unsupported("+ with a uuid", "CAST(x AS varchar(36)) makes a text of it"))
	case t[0].Kind == Elapsed || t[1].Kind == Elapsed || t[0].Kind == Clock || t[1].Kind == Clock:
		return "", Type{}, false // which is refused
	}
	out := Type{}
	switch {
	case t[0].Kind == Text && t[1].Kind == Null, t[0].Kind == Null && t[1].Kind == Text:
		out.Kind = Text
	case t[0].numeric() || t[1].numeric():
		out = calculated(wider(numericOf(t[0]), numericOf(t[1])))
	}
	return "co_add(" + x[0] + ", " + x[1] + ")", out, true
}

func numericOf(t Type) Type {
	if t.numeric() {
		return t
	}
	return Type{Kind: Int}
}
