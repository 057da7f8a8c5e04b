package scalar

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

var conversions = map[string]Function{
	"co_text": {2, strict(func(a []driver.Value) (driver.Value, error) { return shown(a[0], text(a[1])), nil }), false},
	"co_cut":  {4, strict(cut), false},
	"co_str":  {6, try(5, toString), false},
	"co_int":  {4, try(3, toInt), false},
	"co_dec":  {4, try(3, toDecimal), false},
	"co_float": {2, try(1, func(a []driver.Value) (driver.Value, error) {
		v, err := number(a[0])
		if err != nil {
			return nil, err
		}
		x, _ := real(v)
		return x, nil
	}), false},
	"co_bit": {3, try(2, toBit), false},
	"co_uuid": {2, try(1, func(a []driver.Value) (driver.Value, error) {
		u, err := uuid.Parse(strings.TrimSpace(text(a[0])))
		if err != nil || len(strings.TrimSpace(text(a[0]))) < 36 {
			return nil, fmt.Errorf("conversion failed when converting %.60q to a uniqueidentifier", text(a[0]))
		}
		return u.String(), nil
	}), false},
	"co_newid": {0, func([]driver.Value) (driver.Value, error) { return uuid.NewString(), nil }, true},
	"co_fixed": {-1, strict(fixed), false},
}

// try makes a function strict in its first argument, and its errors NULL if the argument i is 1: not those of values of
// which it is not known what they are to T-SQL.
func try(i int, f func([]driver.Value) (driver.Value, error)) func([]driver.Value) (driver.Value, error) {
	return func(a []driver.Value) (driver.Value, error) {
		if a[0] == nil {
			return nil, nil
		}
		v, err := f(a)
		if err != nil && integer(a[i]) == 1 && !errors.Is(err, errNotHere) {
			return nil, nil
		}
		return v, err
	}
}

// shown returns a value of the type as PostgreSQL shows it.
func shown(v driver.Value, code string) string {
	if digits, ok := strings.CutPrefix(code, "dec"); ok {
		if x, number := real(v); number {
			n, _ := strconv.Atoi(digits)
			return Decimal(x, n)
		}
	}
	if t, ok := parseTime(v); ok && (isTimeCode(code) || code == "") && len(text(v)) > len(dateLayout) {
		return shownTime(t)
	}
	return text(v)
}

// Decimal returns a number with so many digits of its fraction, rounded half away from zero.
func Decimal(x float64, digits int) string {
	if x = roundTo(x, digits, false); x == 0 {
		x = 0 // and not -0
	}
	return strconv.FormatFloat(x, 'f', digits, 64)
}

// cut is PostgreSQL's cast to varchar(n), or with 2 to char(n).
func cut(a []driver.Value) (driver.Value, error) {
	return sized(text(a[0]), int(integer(a[1])), integer(a[2])&2 != 0)
}

// sized cuts a text to n characters, or fills it up to them. n is -1: any number of them.
func sized(s string, n int, fill bool) (driver.Value, error) {
	n = min(n, maxResult)
	count := utf8.RuneCountInString(s)
	switch {
	case n >= 0 && count > n:
		s = string([]rune(s)[:n])
	case n >= 0 && fill:
		s += strings.Repeat(" ", n-count)
	}
	return bounded(s)
}

// toString is T-SQL's CAST and CONVERT to a string: value, its type, length, flags (1: a number that does not fit is an
// error and not *; 2: filled up with blanks), style, whether errors are NULL.
func toString(a []driver.Value) (driver.Value, error) {
	code, n, flags, style := text(a[1]), int(integer(a[2])), integer(a[3]), int(integer(a[4]))
	if a[4] == nil {
		return nil, nil
	}
	t, isTime := parseTime(a[0])
	isTime = isTime && (isTimeCode(code) || code == "date" || code == "" && len(text(a[0])) == len("2006-01-02 15:04:05.000000+00"))
	_, isText := a[0].(string)
	var s string
	switch {
	case isTime || code == "clock":
		shaped, ok := styled(t, text(a[0]), code, style)
		if !ok {
			return nil, fmt.Errorf("%d is not a style of CONVERT that is supported for a time", style)
		}
		s = shaped
	default:
		if style > 0 && !isText {
			return nil, fmt.Errorf("%d is not a style of CONVERT that is supported for a number", style)
		}
		s = shown(a[0], code)
		if x, isFloat := a[0].(float64); isFloat && code == "float" {
			s = strconv.FormatFloat(x, 'g', 6, 64) // T-SQL shows six digits
			if strings.Contains(s, "e") {
				s = exponent(s)
			}
		}
	}
	if !isText && n >= 0 && utf8.RuneCountInString(s) > n {
		i, whole := a[0].(int64)
		if !whole || flags&1 != 0 || i != int64(int32(i)) { // * stands for an int only
			return nil, fmt.Errorf("arithmetic overflow error converting the number %s to a string of %d characters", s, n)
		}
		s = "*"
	}
	return sized(s, n, flags&2 != 0)
}

// isTimeCode reports whether values of the type are times: datetime, datetime2 or datetimeoffset with its digits.
func isTimeCode(code string) bool {
	return code == "time" || len(code) == 4 && (strings.HasPrefix(code, "dt2") || strings.HasPrefix(code, "dto"))
}

// styled returns a time of the type in a style of CONVERT; below 0: in that which T-SQL takes without one. A date has
// no time of day, and a time of day no date; a datetime2 has the digits that its type says.
func styled(t time.Time, shown, code string, style int) (string, bool) {
	iso := style < 0 || style == 21 || style == 25 || style == 121
	switch {
	case code == "date" && style < 0:
		return t.Format(dateLayout), true
	case code == "date":
		layout, ok := dateStyles[style]
		if _, timed := timedStyles[style]; !ok && !timed {
			layout, ok = styles[style]
		}
		return t.Format(layout), ok
	case code == "clock" && (iso || style == 126):
		return shown, true
	case code == "clock":
		return shown[:min(len(shown), len("15:04:05"))], style == 8 || style == 108 || style == 24 || style == 20 || style == 120
	case strings.HasPrefix(code, "dt") && (iso || style == 126 && code[2] == '2'):
		layout := "2006-01-02 15:04:05"
		if style == 126 {
			layout = "2006-01-02T15:04:05"
		}
		s := t.Format(layout) + fraction(t, int(code[3]-'0'))
		if style == 126 && strings.Trim(s[len(layout):], ".0") == "" {
			s = s[:len(layout)]
		}
		if code[2] == 'o' {
			s += " +00:00"
		}
		return s, true
	case strings.HasPrefix(code, "dt"):
		if _, timed := timedStyles[style]; timed && (code[2] == 'o' || !slices.Contains([]int{0, 100, 20, 120, 8, 108, 24}, style)) {
			return "", false
		}
	}
	return timeStyle(t, max(style, 0))
}

// fraction returns the digits of a second's fraction, with a point before them.
func fraction(t time.Time, digits int) string {
	if digits == 0 {
		return ""
	}
	return fmt.Sprintf(".%09d", t.Nanosecond())[:digits+1]
}

// dateStyles are the styles of times as a date has them: without the time of day.
var dateStyles = map[int]string{
	0: "Jan _2 2006", 100: "Jan _2 2006", 9: "Jan _2 2006", 109: "Jan _2 2006", 13: "02 Jan 2006", 113: "02 Jan 2006",
	20: dateLayout, 120: dateLayout, 21: dateLayout, 25: dateLayout, 121: dateLayout, 126: dateLayout,
}

// timedStyles are the styles that have a time of day.
var timedStyles = func() map[int]string {
	out := map[int]string{}
	for n, layout := range styles {
		if strings.Contains(layout, ":") {
			out[n] = layout
		}
	}
	return out
}()

// exponent writes an exponent with three digits, as T-SQL does.
func exponent(s string) string {
	mantissa, e, _ := strings.Cut(s, "e")
	return mantissa + "e" + e[:1] + strings.Repeat("0", max(0, 4-len(e))) + e[1:]
}

// toInt converts to a whole number: value, bits (0: tinyint, -1: oid), whether to round, whether errors are NULL.
func toInt(a []driver.Value) (driver.Value, error) {
	var n int64
	_, isText := a[0].(string)
	v, err := number(a[0])
	if err != nil {
		return nil, fmt.Errorf("conversion failed when converting the value %.40q to an integer", text(a[0]))
	}
	switch x := v.(type) {
	case int64:
		n = x
	case float64:
		if isText {
			return nil, fmt.Errorf("conversion failed when converting the value %.40q to an integer", text(a[0]))
		}
		if x = math.Trunc(x); integer(a[2]) == 1 {
			f, _ := real(a[0])
			x = roundTo(f, 0, false)
		}
		if math.IsNaN(x) || x >= math.MaxInt64 || x <= math.MinInt64 {
			return nil, fmt.Errorf("integer out of range: %s", floatText(x))
		}
		n = int64(x)
	}
	low, high := int64(math.MinInt64), int64(math.MaxInt64)
	switch bits := integer(a[1]); bits {
	case 0:
		low, high = 0, 255
	case -1:
		low, high = 0, math.MaxUint32
	case 16, 32:
		low, high = -1<<(bits-1), 1<<(bits-1)-1
	}
	if n < low || n > high {
		return nil, fmt.Errorf("integer out of range: %d", n)
	}
	return n, nil
}

// toDecimal converts to a decimal: value, precision, scale, whether errors are NULL.
func toDecimal(a []driver.Value) (driver.Value, error) {
	v, err := number(a[0])
	if err != nil {
		return nil, err
	}
	x, _ := real(v)
	precision, scale := int(integer(a[1])), int(integer(a[2]))
	if s, isText := a[0].(string); isText && (strings.TrimSpace(s) == "" || strings.ContainsAny(s, "eE")) {
		return nil, fmt.Errorf("conversion failed when converting the value %.40q to a decimal", s)
	}
	out := roundTo(x, scale, false)
	if math.Abs(out) >= math.Pow10(precision-scale) {
		return nil, fmt.Errorf("numeric field overflow: %s does not fit decimal(%d, %d)", floatText(x), precision, scale)
	}
	if math.Abs(out)*math.Pow10(scale) >= largest && len(strings.Trim(strings.SplitN(strconv.FormatFloat(math.Abs(out), 'e', -1, 64), "e", 2)[0], ".")) > 15 {
		return nil, fmt.Errorf("the decimal(%d, %d) %s has more than the 15 digits that are calculated with: CAST it to a float, or to fewer digits", precision, scale, floatText(x))
	}
	return out, nil
}

// toBit converts to a truth value: value, whether PostgreSQL's words are taken, whether errors are NULL. T-SQL takes
// TRUE, FALSE and whole numbers.
func toBit(a []driver.Value) (driver.Value, error) {
	if s, isText := a[0].(string); isText {
		s = strings.ToLower(strings.TrimSpace(s))
		words := integer(a[1]) == 1
		switch {
		case s == "true" || words && slices.Contains([]string{"t", "yes", "y", "on"}, s):
			return int64(1), nil
		case s == "false" || s == "" || words && slices.Contains([]string{"f", "no", "n", "off"}, s):
			return int64(0), nil
		}
		if _, err := strconv.ParseInt(s, 10, 64); err != nil && !words {
			return nil, fmt.Errorf("conversion failed when converting the value %.40q to a bit", s)
		}
	}
	v, err := number(a[0])
	if err != nil {
		return nil, err
	}
	x, _ := real(v)
	return bit(x != 0), nil
}

// fixed is STR: number, length, digits of the fraction.
func fixed(a []driver.Value) (driver.Value, error) {
	length, digits := int64(10), int64(0)
	if len(a) > 1 {
		length = min(max(integer(a[1]), 1), 8000)
	}
	if len(a) > 2 {
		digits = min(max(integer(a[2]), 0), 16)
	}
	x, ok := real(a[0])
	if !ok {
		return nil, fmt.Errorf("STR of %.40q, which is no number", text(a[0]))
	}
	s := Decimal(x, int(digits))
	if whole, _, _ := strings.Cut(s, "."); int64(len(whole)) > length {
		return strings.Repeat("*", int(length)), nil
	}
	if int64(len(s)) > length {
		room := max(length-int64(strings.Index(s, "."))-1, 0)
		s = Decimal(x, int(room))
	}
	return strings.Repeat(" ", int(max(length-int64(len(s)), 0))) + s, nil
}

// parseTime reads a time in the forms of ISO 8601, and in that of the engine. One without a zone is UTC.
func parseTime(v driver.Value) (time.Time, bool) {
	if t, ok := v.(time.Time); ok {
		return t.UTC(), true
	}
	s, ok := v.(string)
	if !ok || len(s) > 40 {
		return time.Time{}, false
	}
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, strings.TrimSpace(s)); err == nil {
			return t.UTC(), true
		}
	}
	return time.Time{}, false
}

var timeLayouts = []string{
	"2006-01-02 15:04:05.999999999-07", "2006-01-02 15:04:05.999999999-07:00", "2006-01-02 15:04:05.999999999 -07:00", "2006-01-02T15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04", "2006-01-02T15:04", dateLayout, "20060102", "20060102 15:04:05.999999999", "20060102 15:04",
}

// timeStyle returns a time in a style of CONVERT.
func timeStyle(t time.Time, style int) (string, bool) {
	layout, ok := styles[style]
	if !ok {
		return "", false
	}
	s := t.Format(layout)
	if style == 126 || style == 127 { // without a fraction that is zero
		s = strings.Replace(s, ".000", "", 1)
	}
	if slices.Contains([]int{9, 109, 13, 113, 14, 114}, style) { // a colon before the fraction
		i := strings.LastIndex(s, ".")
		s = s[:i] + ":" + s[i+1:]
	}
	if style == 0 || style == 100 || style == 9 || style == 109 { // a day and an hour of one digit have a blank before them
		s = strings.Replace(s, "~", blankBefore(t), 1)
	}
	return s, true
}

// blankBefore returns the hour of twelve in two places.
func blankBefore(t time.Time) string { return fmt.Sprintf("%2d", (t.Hour()+11)%12+1) }

// styles are the styles of CONVERT, as layouts of times; ~ is the hour of twelve.
var styles = map[int]string{
	0: "Jan _2 2006 ~:04PM", 100: "Jan _2 2006 ~:04PM", 1: "01/02/06", 101: "01/02/2006", 2: "06.01.02", 102: "2006.01.02", 3: "02/01/06", 103: "02/01/2006",
	4: "02.01.06", 104: "02.01.2006", 5: "02-01-06", 105: "02-01-2006", 6: "02 Jan 06", 106: "02 Jan 2006", 7: "Jan 02, 06", 107: "Jan 02, 2006",
	8: "15:04:05", 108: "15:04:05", 24: "15:04:05", 9: "Jan _2 2006 ~:04:05.000PM", 109: "Jan _2 2006 ~:04:05.000PM", 10: "01-02-06", 110: "01-02-2006",
	11: "06/01/02", 111: "2006/01/02", 12: "060102", 112: "20060102", 13: "02 Jan 2006 15:04:05.000", 113: "02 Jan 2006 15:04:05.000", 14: "15:04:05.000", 114: "15:04:05.000",
	20: "2006-01-02 15:04:05", 120: "2006-01-02 15:04:05", 21: "2006-01-02 15:04:05.000", 25: "2006-01-02 15:04:05.000", 121: "2006-01-02 15:04:05.000",
	23: "2006-01-02", 126: "2006-01-02T15:04:05.000", 127: "2006-01-02T15:04:05.000", // without Z, as a datetime has no zone
}
