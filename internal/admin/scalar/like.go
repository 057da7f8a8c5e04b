package scalar

import (
	"database/sql/driver"
	"fmt"
	"strings"
	"unicode"
)

// maxPattern is the maximum length of a pattern in bytes.
const maxPattern = 1000

// maxWork is the maximum number of steps of PATINDEX, which nothing interrupts.
const maxWork = 100_000_000

// unit is an element of a pattern: % (any), a class of characters, or one character.
type unit struct {
	any, one bool // % and _
	r        rune
	class    []rune // pairs: from, to; nil: no class
	not      bool
}

func (u unit) matches(r rune, fold bool) bool {
	switch {
	case u.one:
		return true
	case u.class == nil:
		return u.r == r || fold && unicode.ToLower(u.r) == unicode.ToLower(r)
	}
	in := false
	for i := 0; i < len(u.class); i += 2 {
		in = in || u.class[i] <= r && r <= u.class[i+1]
		if fold && !in {
			l, up := unicode.ToLower(r), unicode.ToUpper(r)
			in = u.class[i] <= l && l <= u.class[i+1] || u.class[i] <= up && up <= u.class[i+1]
		}
	}
	return in != u.not
}

// like implements LIKE. A pattern with [ is one of T-SQL, in which [a-c] and [^x] are classes of characters. In others,
// and with ILIKE and ~~ in all, a backslash takes the meaning of the %, _ or \ behind it away, as in PostgreSQL.
func like(a []driver.Value) (driver.Value, error) {
	if a[0] == nil || a[1] == nil {
		return nil, nil
	}
	units, err := pattern(text(a[1]), a[2], text(a[3]))
	if err != nil {
		return nil, err
	}
	fold := text(a[3]) == "ILIKE" || text(a[3]) == "LIKE NOCASE"
	return bit(match(units, []rune(text(a[0])), fold)), nil
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func pattern(p string, escape driver.Value, operator string) ([]unit, error) {
	if len(p) > maxPattern {
		return nil, fmt.Errorf("LIKE or GLOB pattern too complex: %d bytes; at most %d are taken", len(p), maxPattern)
	}
	classes := strings.HasPrefix(operator, "LIKE") && strings.Contains(p, "[")
	mark := '\\'
	switch {
	case escape != nil:
		e := []rune(text(escape))
		if len(e) > 1 {
			return nil, fmt.Errorf("the ESCAPE of LIKE must be one character")
		}
		if mark = -1; len(e) == 1 {
			mark = e[0]
		}
	case classes:
		mark = -1
	}
	r := []rune(p)
	var out []unit
	for i := 0; i < len(r); i++ {
		switch c := r[i]; {
		case c == mark:
			if i++; i == len(r) {
				return nil, fmt.Errorf("LIKE pattern must not end with escape character")
			}
			if escape == nil && !strings.ContainsRune(`%_\`, r[i]) {
				return nil, fmt.Errorf(`a backslash before %q in LIKE is an ordinary character in T-SQL and none in PostgreSQL: double it, or add ESCAPE`, string(r[i]))
			}
			out = append(out, unit{r: r[i]})
		case c == '%':
			if len(out) == 0 || !out[len(out)-1].any {
				out = append(out, unit{any: true})
			}
		case c == '_':
			out = append(out, unit{one: true})
		case c == '[' && classes:
			u, next := class(r, i)
			if next < 0 {
				return []unit{{class: []rune{}}}, nil // no text matches, as in T-SQL
			}
			out, i = append(out, u), next
		default:
			out = append(out, unit{r: c})
		}
	}
	return out, nil
}

// class reads a class of characters, and returns the index of its ]; -1: it has none.
func class(r []rune, i int) (unit, int) {
	u := unit{class: []rune{}}
	if i++; i < len(r) && r[i] == '^' {
		u.not = true
		i++
	}
	for first := true; i < len(r); first = false {
		switch {
		case r[i] == ']' && !first:
			return u, i
		case i+2 < len(r) && r[i+1] == '-' && r[i+2] != ']':
			u.class = append(u.class, r[i], r[i+2])
			i += 3
		default:
			u.class = append(u.class, r[i], r[i])
			i++
		}
	}
	return u, -1
}

// match reports whether a text has the pattern. Its work is at most the product of both lengths.
func match(p []unit, s []rune, fold bool) bool {
	i, k, star, from := 0, 0, -1, 0
	for k < len(s) {
		switch {
		case i < len(p) && p[i].any:
			star, from = i, k
			i++
		case i < len(p) && p[i].matches(s[k], fold):
			i++
			k++
		case star >= 0:
			from++
			i, k = star+1, from
		default:
			return false
		}
	}
	for i < len(p) && p[i].any {
		i++
	}
	return i == len(p)
}

// patIndex returns where a pattern of T-SQL begins in a text, from 1; 0: it is not there.
func patIndex(a []driver.Value) (driver.Value, error) {
	p := text(a[0])
	units, err := pattern(p, "", "LIKE[")
	if err != nil {
		return nil, err
	}
	s := []rune(text(a[1]))
	steps := 1
	for _, u := range units {
		steps += 1 + len(u.class)/2
	}
	if len(s)*len(s)*steps > maxWork {
		return nil, fmt.Errorf("PATINDEX of a text of %d characters, by a pattern of %d: both are too long", len(s), steps-1)
	}
	if len(units) == 1 && units[0].any {
		return bit(len(s) > 0), nil
	}
	if len(units) == 0 || !units[0].any {
		return bit(match(units, s, false)), nil
	}
	for i := range s {
		if match(units[1:], s[i:], false) {
			return int64(i + 1), nil
		}
	}
	return int64(0), nil
}
