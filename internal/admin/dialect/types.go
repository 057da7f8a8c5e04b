package dialect

import (
	"fmt"
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
)

// Type is the type of an expression.
type Type struct {
	Kind  Kind
	OID   uint32 // of a column; 0: follows from the kind
	Scale int    // of a Decimal; of a Time the digits that its text has: 7 of datetime2, else 3
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
		if t.Scale == 7 {
			return "time7"
		}
		return "time"
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

// common returns the type of an expression that has values of all the types, as CASE has.
func common(types ...Type) Type {
	var out Type
	out.Kind = Null
	for _, t := range types {
		switch {
		case t.Kind == Null:
		case out.Kind == Null:
			out = t
		case out.Kind == Unknown || t.Kind == Unknown:
			out = Type{}
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
		default:
			return Type{}
		}
	}
	out.Len = 0
	return out
}

// wider returns the type of numbers of two types.
func wider(a, b Type) Type {
	switch {
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
		return target{typ: Type{Kind: Bit}, conv: "co_bit"}, nil
	case "date":
		return target{typ: Type{Kind: Date}, conv: "co_date"}, nil
	case "datetime", "datetime2", "timestamptz", "timestamp", "datetimeoffset", "smalldatetime":
		out := target{typ: Type{Kind: Time, Scale: 3}, conv: "co_time"}
		if t.name == "datetime2" || t.name == "datetimeoffset" {
			out.typ.Scale = 7
		}
		if t.name == "smalldatetime" {
			out.a = 1
		}
		return out, nil
	case "time":
		if postgres {
			return target{}, unsupported("::time", "to_char is not there; FORMAT(x, 'HH:mm:ss') gives the time of day")
		}
		n := arg(0, 7)
		if n < 0 || n > 7 {
			return target{}, Errorf("22023", "time(%d): the digits are 0 to 7", n)
		}
		return target{typ: Type{Kind: Text}, conv: "co_clock", a: n}, nil
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
	out := target{typ: Type{Kind: Text, Len: max(n, 0)}, conv: "co_str", a: n}
	switch {
	case postgres:
		out.conv = "co_cut"
	case t.name == "nvarchar" || t.name == "nchar" || t.name == "sysname":
		out.b = 1 // a number that does not fit is an error and not *
	}
	if t.name == "char" || t.name == "nchar" || t.name == "character" {
		out.b |= 2 // filled up with blanks
	}
	return out, nil
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
	if from.Kind == Elapsed {
		panic(unsupported("a cast of the difference of two times", "use DATEDIFF"))
	}
	if e.args[0].kind == exParam {
		w.guess(e.args[0], to.typ)
		from = Type{}
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
	case "co_int", "co_dec":
		return fmt.Sprintf("%s(%s, %d, %d, %s)", to.conv, text, to.a, to.b, try), to.typ
	case "co_time", "co_clock":
		return fmt.Sprintf("%s(%s, %d, %s)", to.conv, text, to.a, try), to.typ
	}
	return to.conv + "(" + text + ", " + try + ")", to.typ
}

// asString writes an argument that is to be a text as T-SQL converts it. PostgreSQL refuses there what is none.
func (w *writer) asString(text string, t Type) string {
	switch t.Kind {
	case Text, Unknown, Null, UUID:
		return text
	case Elapsed:
		return w.asText(text, t) // which refuses it
	default:
		return "co_str(" + text + ", " + quoteText(t.code()) + ", -1, 0, -1, 0)"
	}
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
