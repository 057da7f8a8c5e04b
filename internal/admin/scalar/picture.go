package scalar

import (
	"database/sql/driver"
	"fmt"
	"math"
	"strings"
)

// picture formats a number as a custom format of .NET does: by digits that are always there (0) or only if needed (#),
// a comma, a point and a percent sign; other characters stay, also between the digits. A second part after ; is for
// negative numbers, a third for zero.
func picture(x float64, shown, f string) (driver.Value, error) {
	if strings.Contains(f, "‰") || strings.Contains(f, "E0") || strings.Contains(f, "e0") || strings.Contains(f, "E+") || strings.Contains(f, "e+") || !finite(x) {
		return nil, fmt.Errorf("FORMAT with %q is not supported", f)
	}
	parts := sections(f)
	part := func(i int) (string, bool) {
		if i < len(parts) && parts[i] != "" {
			return parts[i], true
		}
		return parts[0], false
	}
	section, negative := parts[0], x < 0
	if own, ok := part(1); x < 0 && ok {
		section, negative = own, false
	}
	digits, point := digitsOf(shown)
	shape := shapeOf(section)
	digits, point = shape.round(digits, point)
	if digits == "" { // it is zero, or has become so
		section, _ = part(2)
		shape, negative = shapeOf(section), false
		point = 0
	}
	sign := ""
	if negative {
		sign = "-"
	}
	return bounded(sign + shape.write(section, digits, point))
}

// sections divides a picture at the semicolons outside of quotes.
func sections(f string) []string {
	out, from := []string{}, 0
	for i := 0; i < len(f); i++ {
		switch c := f[i]; {
		case c == '\\':
			i++
		case c == '\'' || c == '"':
			i += quotedLength(f[i:]) - 1
		case c == ';':
			out, from = append(out, f[from:i]), i+1
		}
	}
	return append(out, f[min(from, len(f)):])
}

// quotedLength returns the length of the quotation at the beginning of s, with its marks.
func quotedLength(s string) int {
	if i := strings.IndexByte(s[1:], s[0]); i >= 0 {
		return i + 2
	}
	return len(s)
}

// digitsOf returns the digits of a number without zeros at their ends, and how many of them stand before the point:
// less than 0 for zeros behind it. The number is shown without its sign.
func digitsOf(shown string) (digits string, point int) {
	whole, fraction, _ := strings.Cut(shown, ".")
	whole = strings.TrimLeft(whole, "0")
	point = len(whole)
	digits = whole + fraction
	if whole == "" {
		digits = strings.TrimLeft(fraction, "0")
		point = len(digits) - len(fraction)
	}
	return strings.TrimRight(digits, "0"), point
}

// shape is what a picture says of digits.
type shape struct {
	places      int  // all of them
	point       int  // those before the point
	first, last int  // that are always there: before the point, and behind it as a number below 0
	group       bool // thousands are separated
	shift       int  // by how many places the point moves
}

// shapeOf reads the places of a picture.
func shapeOf(f string) shape {
	s := shape{point: -1, first: math.MaxInt}
	comma, commas := -1, 0
	for i := 0; i < len(f); i++ {
		switch c := f[i]; c {
		case '0':
			s.first = min(s.first, s.places)
			s.places++
			s.last = s.places
		case '#':
			s.places++
		case '.':
			if s.point < 0 {
				s.point = s.places
			}
		case ',':
			switch {
			case s.places == 0 || s.point >= 0:
			case comma == s.places:
				commas++
			default:
				s.group = s.group || comma >= 0
				comma, commas = s.places, 1
			}
		case '%':
			s.shift += 2
		case '\\':
			i++
		case '\'', '"':
			i += quotedLength(f[i:]) - 1
		}
	}
	if s.point < 0 {
		s.point = s.places
	}
	if comma == s.point && comma >= 0 {
		s.shift -= 3 * commas
	} else if comma >= 0 {
		s.group = true
	}
	s.first = max(s.point-s.first, 0)
	s.last = min(s.point-s.last, 0)
	return s
}

// round moves the point, and rounds the digits to the places behind it.
func (s shape) round(digits string, point int) (string, int) {
	if digits == "" {
		return "", 0
	}
	point += s.shift
	keep := point + s.places - s.point
	if keep >= len(digits) {
		return digits, point
	}
	up := keep >= 0 && digits[max(keep, 0)] >= '5'
	kept := []byte(digits[:max(keep, 0)])
	for up && len(kept) > 0 {
		if kept[len(kept)-1] < '9' {
			kept[len(kept)-1]++
			break
		}
		kept = kept[:len(kept)-1]
	}
	if up && len(kept) == 0 {
		return "1", point + 1
	}
	return strings.TrimRight(string(kept), "0"), point
}

// literal writes a character of the picture that stands for itself, or a quoted text. It returns how long that is in
// the picture.
func literal(b *strings.Builder, f string) int {
	switch c := f[0]; c {
	case '\\':
		n := min(2, len(f))
		b.WriteString(f[1:n])
		return n
	case '\'', '"':
		n := quotedLength(f)
		b.WriteString(strings.Trim(f[:n], string(c)))
		return n
	default:
		b.WriteByte(c)
		return 1
	}
}

// write fills the picture with digits, of which so many stand before the point.
func (s shape) write(f, digits string, point int) string {
	var b strings.Builder
	place, more := max(point, s.point), point-s.point // the place that is next, and digits beyond those of the picture
	put := func(c byte) {
		b.WriteByte(c)
		if s.group && place > 1 && (place-1)%3 == 0 {
			b.WriteByte(',')
		}
	}
	next := func() (c byte, ok bool) {
		if digits == "" {
			return '0', false
		}
		c, digits = digits[0], digits[1:]
		return c, true
	}
	for i := 0; i < len(f); i++ {
		c := f[i]
		for more > 0 && (c == '0' || c == '#' || c == '.') {
			d, _ := next()
			put(d)
			place, more = place-1, more-1
		}
		switch c {
		case '0', '#':
			d, there := byte('0'), place <= s.first
			if more < 0 {
				more++
			} else if d, there = next(); !there {
				there = place > s.last
			}
			if there {
				put(d)
			}
			place--
		case '.':
			if place == 0 && (s.last < 0 || s.point < s.places && digits != "") {
				b.WriteByte('.')
			}
		case ',':
		default:
			i += literal(&b, f[i:]) - 1
		}
	}
	return b.String()
}
