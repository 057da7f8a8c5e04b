package console

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// epoch is the zero of PostgreSQL's binary timestamps.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

const timeLayout = "2006-01-02 15:04:05.999999-07"

// encodeText returns a value's text form; nil stays nil.
func encodeText(v any, t Type) []byte {
	switch x := v.(type) {
	case nil:
		return nil
	case bool:
		if t != Bool {
			return []byte(strconv.FormatBool(x))
		}
		return map[bool][]byte{true: []byte("t"), false: []byte("f")}[x]
	case int64:
		if t == Bool {
			return encodeText(x != 0, Bool)
		}
		return strconv.AppendInt(nil, x, 10)
	case float64:
		return []byte(floatText(x))
	case time.Time:
		return []byte(x.UTC().Format(timeLayout))
	case []byte:
		return []byte(`\x` + hex.EncodeToString(x))
	default:
		return fmt.Append([]byte{}, x) // an empty text is one: nil would be NULL
	}
}

func floatText(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 1):
		return "Infinity"
	case math.IsInf(x, -1):
		return "-Infinity"
	case x == 0 || math.Abs(x) >= 1e-4 && math.Abs(x) < 1e15: // as PostgreSQL does
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// encodeBinary returns a value in the binary form of the type. A value that does not fit the type is an error.
func encodeBinary(v any, t Type) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	switch t {
	case Text:
		return encodeText(v, t), nil
	case Bool:
		switch x := v.(type) {
		case bool:
			return map[bool][]byte{true: {1}, false: {0}}[x], nil
		case int64:
			return encodeBinary(x != 0, Bool)
		}
	case Int8, Int4, OID:
		if n, ok := v.(int64); ok {
			return encodeInteger(n, t)
		}
	case Float8:
		switch x := v.(type) {
		case float64:
			return binary.BigEndian.AppendUint64(nil, math.Float64bits(x)), nil
		case int64:
			return encodeBinary(float64(x), Float8)
		}
	case Timestamptz:
		if x, ok := v.(time.Time); ok {
			return binary.BigEndian.AppendUint64(nil, uint64(x.Sub(epoch).Microseconds())), nil
		}
	case UUID:
		if s, ok := v.(string); ok {
			if b, err := hex.DecodeString(strings.ReplaceAll(s, "-", "")); err == nil && len(b) == 16 {
				return b, nil
			}
		}
	case Date:
		if day, err := time.Parse(time.DateOnly, fmt.Sprint(v)); err == nil {
			return binary.BigEndian.AppendUint32(nil, uint32(int32(day.Sub(epoch).Hours()/24))), nil
		}
	case Numeric:
		if b, ok := encodeNumeric(fmt.Sprint(v)); ok {
			return b, nil
		}
	default:
		return encodeText(v, t), nil
	}
	return nil, Errorf("22P02", "the value %.40q is not of the type that was announced", fmt.Sprint(v))
}

// encodeNumeric returns a decimal in PostgreSQL's binary form: its digits to the base 10000, the weight of the first
// one, the sign, and the number of decimal digits behind the point.
func encodeNumeric(s string) ([]byte, bool) {
	sign := uint16(0)
	if s, _ = strings.CutPrefix(s, "+"); strings.HasPrefix(s, "-") {
		sign, s = 0x4000, s[1:]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	if strings.Trim(whole+fraction, "0123456789") != "" || whole+fraction == "" {
		return nil, false
	}
	scale := len(fraction)
	whole = strings.Repeat("0", (4-len(whole)%4)%4) + whole
	fraction += strings.Repeat("0", (4-len(fraction)%4)%4)
	weight := len(whole)/4 - 1
	digits := whole + fraction
	for strings.HasPrefix(digits, "0000") {
		digits, weight = digits[4:], weight-1
	}
	for strings.HasSuffix(digits, "0000") {
		digits = digits[:len(digits)-4]
	}
	if digits == "" {
		weight = 0
	}
	out := binary.BigEndian.AppendUint16(nil, uint16(len(digits)/4))
	out = binary.BigEndian.AppendUint16(out, uint16(int16(weight)))
	out = binary.BigEndian.AppendUint16(out, sign)
	out = binary.BigEndian.AppendUint16(out, uint16(scale))
	for i := 0; i < len(digits); i += 4 {
		n, _ := strconv.ParseUint(digits[i:i+4], 10, 16)
		out = binary.BigEndian.AppendUint16(out, uint16(n))
	}
	return out, true
}

func encodeInteger(n int64, t Type) ([]byte, error) {
	switch {
	case t == Int8:
		return binary.BigEndian.AppendUint64(nil, uint64(n)), nil
	case t == Int4 && n >= math.MinInt32 && n <= math.MaxInt32, t == OID && n >= 0 && n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(nil, uint32(n)), nil
	}
	return nil, Errorf("22003", "%d is out of range", n)
}

// OIDs of types that clients send and the console does not.
const (
	oidInt2    = 21
	oidFloat4  = 700
	oidVarchar = 1043
	oidUnknown = 705
	oidName    = 19
)

// decode returns the value of a parameter.
func decode(b []byte, t Type, isBinary bool) (any, error) {
	if b == nil {
		return nil, nil
	}
	if !isBinary {
		return decodeText(string(b), t)
	}
	bad := Errorf("22P03", "incorrect binary data format of a parameter of type %d", t)
	switch t {
	case Bool:
		if len(b) == 1 {
			return int64(b[0] & 1), nil
		}
	case oidInt2:
		if len(b) == 2 {
			return int64(int16(binary.BigEndian.Uint16(b))), nil
		}
	case Int4:
		if len(b) == 4 {
			return int64(int32(binary.BigEndian.Uint32(b))), nil
		}
	case OID:
		if len(b) == 4 {
			return int64(binary.BigEndian.Uint32(b)), nil
		}
	case Int8:
		if len(b) == 8 {
			return int64(binary.BigEndian.Uint64(b)), nil
		}
	case oidFloat4:
		if len(b) == 4 {
			return float64(math.Float32frombits(binary.BigEndian.Uint32(b))), nil
		}
	case Float8:
		if len(b) == 8 {
			return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
		}
	case Timestamptz:
		if len(b) == 8 {
			return epoch.Add(time.Duration(int64(binary.BigEndian.Uint64(b))) * time.Microsecond).Format(timeLayout), nil
		}
	case UUID:
		if len(b) == 16 {
			return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
		}
	case Text, oidVarchar, oidUnknown, oidName, 0:
		return string(b), nil
	case Date, Numeric: // clients send these as text
	}
	return nil, bad
}

func decodeText(s string, t Type) (any, error) {
	switch t {
	case Int8, Int4, oidInt2, OID:
		n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		if err != nil {
			return nil, Errorf("22P02", "invalid input syntax for type integer: %.40q", s)
		}
		return n, nil
	case Float8, oidFloat4, Numeric:
		f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil {
			return nil, Errorf("22P02", "invalid input syntax for type double precision: %.40q", s)
		}
		return f, nil
	case Bool:
		switch strings.ToLower(strings.TrimSpace(s)) {
		case "t", "true", "1", "on", "yes", "y":
			return int64(1), nil
		case "f", "false", "0", "off", "no", "n":
			return int64(0), nil
		}
		return nil, Errorf("22P02", "invalid input syntax for type boolean: %.40q", s)
	default:
		return s, nil
	}
}
