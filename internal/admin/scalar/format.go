package scalar

import (
	"database/sql/driver"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// format is FORMAT of T-SQL: a time or a number in a format of .NET, in the culture en-US. Its values are the time or
// the number, the format, the culture, and the digits of a decimal's fraction.
func format(a []driver.Value) (driver.Value, error) {
	if len(a) > 2 && a[2] != nil && !strings.EqualFold(text(a[2]), "en-US") {
		return nil, fmt.Errorf("FORMAT with the culture %.20q is not supported: leave it out, or write 'en-US'", text(a[2]))
	}
	if a[0] == nil || a[1] == nil {
		return nil, nil
	}
	f := text(a[1])
	if len(f) > maxPattern {
		return nil, fmt.Errorf("a format of %d bytes; at most %d are taken", len(f), maxPattern)
	}
	if _, isText := a[0].(string); isText {
		t, ok := parseTime(a[0])
		if !ok {
			return nil, fmt.Errorf("FORMAT of the text %.40q: it takes a number or a time", text(a[0]))
		}
		return formatTime(t, f)
	}
	x, _ := real(a[0])
	if len(a) > 3 && (f == "" || f == "G" || f == "g") {
		switch digits := integer(a[3]); {
		case digits == quotient:
			return nil, fmt.Errorf("FORMAT of a quotient with %q is not supported, as its digits are not known: CAST it to a decimal(p, s)", f)
		case digits >= 0:
			return Decimal(x, int(min(digits, 38))), nil
		}
	}
	return formatNumber(x, a[0], f)
}

// standardTimes are the formats of one letter.
var standardTimes = map[string]string{
	"d": "M/d/yyyy", "D": "dddd, MMMM d, yyyy", "f": "dddd, MMMM d, yyyy h:mm tt", "F": "dddd, MMMM d, yyyy h:mm:ss tt", "g": "M/d/yyyy h:mm tt",
	"G": "M/d/yyyy h:mm:ss tt", "M": "MMMM d", "m": "MMMM d", "o": "yyyy-MM-ddTHH:mm:ss.fffffff", "O": "yyyy-MM-ddTHH:mm:ss.fffffff",
	"R": "ddd, dd MMM yyyy HH:mm:ss 'GMT'", "r": "ddd, dd MMM yyyy HH:mm:ss 'GMT'", "s": "yyyy-MM-ddTHH:mm:ss", "t": "h:mm tt", "T": "h:mm:ss tt",
	"U": "dddd, MMMM d, yyyy h:mm:ss tt", "u": "yyyy-MM-dd HH:mm:ss'Z'", "Y": "MMMM yyyy", "y": "MMMM yyyy",
}

func formatTime(t time.Time, f string) (driver.Value, error) {
	if f == "" {
		f = "G"
	}
	if len(f) == 1 {
		standard, ok := standardTimes[f]
		if !ok {
			return nil, nil // as T-SQL does for a format that there is not
		}
		f = standard
	}
	var b strings.Builder
	r := []rune(f)
	for i := 0; i < len(r); {
		n := 1
		for i+n < len(r) && r[i+n] == r[i] {
			n++
		}
		switch c := r[i]; {
		case c == '\'' || c == '"':
			end := i + 1
			for end < len(r) && r[end] != c {
				end++
			}
			b.WriteString(string(r[i+1 : min(end, len(r))]))
			i = end + 1
			continue
		case c == '\\' && i+1 < len(r):
			b.WriteRune(r[i+1])
			i += 2
			continue
		case c == '%' && i+1 < len(r):
			i++
			continue
		case strings.ContainsRune("dMyhHmsfFtzK", c):
			part, err := timePart(t, c, n)
			if err != nil {
				return nil, err
			}
			if c == 'F' && part == "" && strings.HasSuffix(b.String(), ".") { // of a fraction that is zero
				whole := strings.TrimSuffix(b.String(), ".")
				b.Reset()
				b.WriteString(whole)
			}
			b.WriteString(part)
		case c == 'g':
			b.WriteString("A.D.")
		default:
			b.WriteString(strings.Repeat(string(c), n))
		}
		i += n
	}
	return bounded(b.String())
}

// timePart returns n letters of a format.
func timePart(t time.Time, c rune, n int) (string, error) {
	two := func(v int) string {
		if n == 1 {
			return strconv.Itoa(v)
		}
		return fmt.Sprintf("%02d", v)
	}
	switch c {
	case 'd':
		if n > 2 {
			return t.Format([]string{"Mon", "Monday"}[min(n-3, 1)]), nil
		}
		return two(t.Day()), nil
	case 'M':
		if n > 2 {
			return t.Format([]string{"Jan", "January"}[min(n-3, 1)]), nil
		}
		return two(int(t.Month())), nil
	case 'y':
		if n <= 2 {
			return two(t.Year() % 100), nil
		}
		return fmt.Sprintf("%0*d", min(n, 8), t.Year()), nil
	case 'h':
		return two((t.Hour()+11)%12 + 1), nil
	case 'H':
		return two(t.Hour()), nil
	case 'm':
		return two(t.Minute()), nil
	case 's':
		return two(t.Second()), nil
	case 't':
		return t.Format("PM")[:min(n, 2)], nil
	case 'z':
		return []string{"+0", "+00", "+00:00"}[min(n, 3)-1], nil
	case 'K':
		return "", nil // a datetime of T-SQL has no zone
	}
	if n > 7 {
		return "", fmt.Errorf("FORMAT: at most 7 digits of a second are there")
	}
	s := fmt.Sprintf("%09d", t.Nanosecond())[:n]
	if c == 'F' {
		s = strings.TrimRight(s, "0")
	}
	return s, nil
}

// fixedDigits returns a number with so many digits of its fraction: of a whole number all of its own.
func fixedDigits(x float64, v driver.Value, digits int) string {
	n, whole := v.(int64)
	if !whole {
		return Decimal(x, digits)
	}
	s := strconv.FormatInt(n, 10)
	if digits > 0 {
		s += "." + strings.Repeat("0", digits)
	}
	return s
}

// lettered reports whether a format is a letter and perhaps two digits, as the standard formats are.
func lettered(f string) bool {
	return f != "" && len(f) <= 3 && (f[0] >= 'a' && f[0] <= 'z' || f[0] >= 'A' && f[0] <= 'Z') && strings.Trim(f[1:], "0123456789") == ""
}

// formatNumber formats a number, by a standard format of a letter and digits or by a picture of 0 and #.
func formatNumber(x float64, v driver.Value, f string) (driver.Value, error) {
	letter, digits := byte(0), -1
	if lettered(f) {
		if letter = f[0] &^ 0x20; !strings.ContainsRune("CDEFGNPRX", rune(letter)) {
			return nil, nil // as T-SQL does for a format that there is not
		}
		if len(f) > 1 {
			digits, _ = strconv.Atoi(f[1:])
		}
	}
	n, whole := v.(int64)
	fraction := func(otherwise int) int {
		if digits < 0 {
			return otherwise
		}
		return digits
	}
	switch letter {
	case 0:
		if f == "" {
			return text(v), nil
		}
		shown := strconv.FormatFloat(math.Abs(x), 'f', -1, 64)
		if whole {
			shown = strings.TrimPrefix(strconv.FormatInt(n, 10), "-")
		}
		return picture(x, shown, f)
	case 'N':
		return grouped(fixedDigits(x, v, fraction(2))), nil
	case 'F':
		return fixedDigits(x, v, fraction(2)), nil
	case 'P':
		return grouped(Decimal(x*100, fraction(2))) + "%", nil
	case 'C':
		s := grouped(fixedDigits(x, v, fraction(2)))
		if strings.HasPrefix(s, "-") {
			return "($" + s[1:] + ")", nil
		}
		return "$" + s, nil
	case 'D', 'X':
		if !whole {
			return nil, nil // as T-SQL does
		}
		return formatWhole(n, f, fraction(0))
	case 'G', 'R':
		if digits > 0 {
			return nil, fmt.Errorf("FORMAT with %q is not supported", f)
		}
		return text(v), nil
	}
	return nil, fmt.Errorf("FORMAT with %q is not supported", f)
}

// formatWhole formats a whole number with at least so many digits, of base ten or, with X, of base 16.
func formatWhole(n int64, f string, digits int) (driver.Value, error) {
	letter := f[0] &^ 0x20
	if letter == 'X' && n < 0 {
		return nil, fmt.Errorf("FORMAT of a negative number with %q is not supported: its digits depend on the type", f)
	}
	if letter == 'X' {
		s := strconv.FormatUint(uint64(n), 16)
		if f[0] == 'X' {
			s = strings.ToUpper(s)
		}
		return strings.Repeat("0", max(digits-len(s), 0)) + s, nil
	}
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	return sign + strings.Repeat("0", max(digits-len(s), 0)) + s, nil
}

// grouped puts a comma between thousands.
func grouped(s string) string {
	sign, whole := "", s
	if strings.HasPrefix(s, "-") {
		sign, whole = "-", s[1:]
	}
	whole, fraction, dot := strings.Cut(whole, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if dot {
		whole += "." + fraction
	}
	return sign + whole
}
