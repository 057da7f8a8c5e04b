package scalar

import (
	"database/sql/driver"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// TimeLayout is the form of times in the engine.
const TimeLayout = "2006-01-02 15:04:05.000000-07"

const dateLayout = "2006-01-02"

// maxResult is the maximum length of a text that a function makes, in bytes.
const maxResult = 64 << 10

// Function is a function with its number of arguments; -1: any number.
type Function struct {
	Args int32
	F    func(args []driver.Value) (driver.Value, error)
	Free bool // it may return another value for the same arguments
}

// Functions are all functions, by name.
var Functions = func() map[string]Function {
	out := map[string]Function{}
	for _, part := range []map[string]Function{numbers, arithmetic, texts, conversions, times} {
		for name, f := range part {
			out[name] = f
		}
	}
	return out
}()

// strict returns NULL if an argument is NULL.
func strict(f func([]driver.Value) (driver.Value, error)) func([]driver.Value) (driver.Value, error) {
	return func(args []driver.Value) (driver.Value, error) {
		for _, a := range args {
			if a == nil {
				return nil, nil
			}
		}
		return f(args)
	}
}

// text returns a value as a text, a number as PostgreSQL shows it.
func text(v driver.Value) string {
	switch x := v.(type) {
	case nil:
		return ""
	case string:
		return x
	case []byte:
		return string(x)
	case float64:
		return floatText(x)
	case time.Time:
		return shownTime(x)
	}
	return fmt.Sprint(v)
}

func floatText(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 1):
		return "Infinity"
	case math.IsInf(x, -1):
		return "-Infinity"
	case x == 0 || math.Abs(x) >= 1e-4 && math.Abs(x) < 1e15:
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// shownTime returns a time as PostgreSQL shows it in UTC.
func shownTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999-07") }

// integer returns a value that is a whole number in this package's calls.
func integer(v driver.Value) int64 {
	switch x := v.(type) {
	case int64:
		return x
	case float64:
		switch {
		case x >= math.MaxInt64:
			return math.MaxInt64
		case x <= math.MinInt64:
			return math.MinInt64
		}
		return int64(x)
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(text(v)), 10, 64)
	return n
}

// real returns a number.
func real(v driver.Value) (float64, bool) {
	switch x := v.(type) {
	case int64:
		return float64(x), true
	case float64:
		return x, true
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(text(v)), 64)
	return x, err == nil
}

// number converts a text to a number. Both languages do so where a text meets a number, and refuse what is none.
func number(v driver.Value) (driver.Value, error) {
	switch x := v.(type) {
	case nil, int64, float64:
		return x, nil
	}
	s := strings.TrimSpace(text(v))
	if s == "" {
		return int64(0), nil // as in T-SQL; PostgreSQL refuses it
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if decimalText(s) {
		if f, err := strconv.ParseFloat(s, 64); err == nil {
			return f, nil
		}
	}
	return nil, fmt.Errorf("conversion failed when converting the value %.40q to a number", text(v))
}

// decimalText reports whether s is a number as SQL writes it.
func decimalText(s string) bool {
	return s != "" && strings.Trim(s, "0123456789.eE+-") == "" && strings.ContainsAny(s, "0123456789")
}

var numbers = map[string]Function{
	"co_number":    {1, func(a []driver.Value) (driver.Value, error) { return number(a[0]) }, false},
	"co_add":       {2, strict(add), false},
	"co_div":       {-1, strict(func(a []driver.Value) (driver.Value, error) { return divide(a, false) }), false},
	"co_mod":       {-1, strict(func(a []driver.Value) (driver.Value, error) { return divide(a, true) }), false},
	"co_round":     {-1, strict(round), false},
	"co_square":    {1, strict(square), false},
	"co_greatest":  {-1, func(a []driver.Value) (driver.Value, error) { return extreme(a, 1), nil }, false},
	"co_least":     {-1, func(a []driver.Value) (driver.Value, error) { return extreme(a, -1), nil }, false},
	"co_isnumeric": {1, func(a []driver.Value) (driver.Value, error) { return isNumeric(a[0]), nil }, false},
	"co_rows":      {1, rows, false},
}

// add is + where the types are known only now: two texts are joined, numbers are added.
func add(a []driver.Value) (driver.Value, error) {
	_, text1 := a[0].(string)
	_, text2 := a[1].(string)
	if text1 && text2 {
		return bounded(text(a[0]) + text(a[1]))
	}
	x, err := number(a[0])
	if err != nil {
		return nil, fmt.Errorf("%w: CAST the number, or use CONCAT", err)
	}
	y, err := number(a[1])
	if err != nil {
		return nil, fmt.Errorf("%w: CAST the number, or use CONCAT", err)
	}
	_, whole1 := x.(int64)
	_, whole2 := y.(int64)
	if text1 && whole2 && !whole1 || text2 && whole1 && !whole2 { // both languages convert the text to a whole number
		return nil, fmt.Errorf("conversion failed when converting %.40q + %.40q to an integer: CAST the text to a decimal", text(a[0]), text(a[1]))
	}
	return calculate('+', []driver.Value{x, y, int64(asItIs)})
}

// roundTo rounds half away from zero, by the digits of the number's shortest text.
func roundTo(x float64, digits int, cut bool) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) || math.Abs(x) >= 1e15 && digits >= 0 {
		return x
	}
	s := strconv.FormatFloat(math.Abs(x), 'f', -1, 64)
	whole, fraction, _ := strings.Cut(s, ".")
	point := len(whole)
	all := whole + fraction
	keep := point + digits
	if keep >= len(all) {
		return x
	}
	if keep < 0 {
		return 0
	}
	up := !cut && all[keep] >= '5'
	kept, _ := strconv.ParseFloat(all[:keep]+strings.Repeat("0", max(point-keep, 0)), 64)
	if keep == 0 {
		kept = 0
	}
	scale := math.Pow10(max(digits, 0))
	if up {
		kept += math.Pow10(max(point-keep, 0))
	}
	if kept == 0 {
		return 0 // and not -0
	}
	return math.Copysign(kept/scale, x)
}

func square(a []driver.Value) (driver.Value, error) {
	x, _ := real(a[0])
	return x * x, nil
}

// extreme returns the greatest or the least value that is not NULL.
func extreme(a []driver.Value, sign int) driver.Value {
	var out driver.Value
	for _, v := range a {
		if b, ok := v.([]byte); ok {
			v = string(b)
		}
		if v != nil && (out == nil || compare(v, out)*sign > 0) {
			out = v
		}
	}
	return out
}

func compare(a, b driver.Value) int {
	_, text1 := a.(string)
	_, text2 := b.(string)
	if text1 || text2 {
		return strings.Compare(text(a), text(b))
	}
	x, _ := real(a)
	y, _ := real(b)
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// moneyText is a number as T-SQL takes it for money: with a sign, the symbol of a currency and commas, which may be
// all.
var moneyText = regexp.MustCompile(`^[-+]?\s*[$£¢¤¥€]?\s*[-+]?[0-9,]*\.?[0-9]*$`)

// isNumeric is ISNUMERIC: whether a text can be converted to some type of numbers.
func isNumeric(v driver.Value) driver.Value {
	if v == nil {
		return int64(0)
	}
	s := strings.TrimSpace(text(v))
	plain := strings.NewReplacer("d", "e", "D", "e").Replace(s)
	if _, err := strconv.ParseFloat(plain, 64); err == nil && decimalText(plain) {
		return int64(1)
	}
	return bit(s != "" && len(s) < maxPattern && moneyText.MatchString(s))
}

func rows(a []driver.Value) (driver.Value, error) {
	n, whole := a[0].(int64)
	if !whole || n < 0 {
		return nil, fmt.Errorf("a number of rows must be a whole number that is not negative, not %.40q", text(a[0]))
	}
	return n, nil
}

// bounded returns a text, or the error of one that is too long.
func bounded(s string) (driver.Value, error) {
	if len(s) > maxResult {
		return nil, fmt.Errorf("string or blob too big: a text of %d bytes; at most %d are taken", len(s), maxResult)
	}
	return s, nil
}
