package scalar

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

var texts = map[string]Function{
	"co_len": {1, strict(func(a []driver.Value) (driver.Value, error) {
		return int64(utf8.RuneCountInString(strings.TrimRight(text(a[0]), " "))), nil
	}), false},
	"co_length":    {1, strict(func(a []driver.Value) (driver.Value, error) { return int64(utf8.RuneCountInString(text(a[0]))), nil }), false},
	"co_upper":     {1, strict(func(a []driver.Value) (driver.Value, error) { return strings.ToUpper(text(a[0])), nil }), false},
	"co_lower":     {1, strict(func(a []driver.Value) (driver.Value, error) { return strings.ToLower(text(a[0])), nil }), false},
	"co_left":      {2, strict(func(a []driver.Value) (driver.Value, error) { return end(text(a[0]), integer(a[1]), true), nil }), false},
	"co_right":     {2, strict(func(a []driver.Value) (driver.Value, error) { return end(text(a[0]), integer(a[1]), false), nil }), false},
	"co_substring": {-1, strict(substring), false},
	"co_charindex": {-1, strict(func(a []driver.Value) (driver.Value, error) {
		if text(a[0]) == "" { // in PostgreSQL it is at the beginning
			return int64(0), nil
		}
		return charIndex(a)
	}), false},
	"co_position": {2, strict(charIndex), false},
	"co_strpos": {2, strict(func(a []driver.Value) (driver.Value, error) {
		return charIndex([]driver.Value{a[1], a[0]})
	}), false},
	"co_ltrim":   {-1, strict(func(a []driver.Value) (driver.Value, error) { return trimmed(a, strings.TrimLeftFunc), nil }), false},
	"co_rtrim":   {-1, strict(func(a []driver.Value) (driver.Value, error) { return trimmed(a, strings.TrimRightFunc), nil }), false},
	"co_trim":    {-1, strict(func(a []driver.Value) (driver.Value, error) { return trimmed(a, strings.TrimFunc), nil }), false},
	"co_replace": {3, strict(replace), false},
	"co_pgrepeat": {2, strict(func(a []driver.Value) (driver.Value, error) {
		return repeat(text(a[0]), max(integer(a[1]), 0))
	}), false},
	"co_patindex": {2, strict(patIndex), false},
	"co_repeat":   {2, strict(func(a []driver.Value) (driver.Value, error) { return replicate("REPLICATE", text(a[0]), integer(a[1])) }), false},
	"co_space":    {1, strict(func(a []driver.Value) (driver.Value, error) { return replicate("SPACE", " ", integer(a[0])) }), false},
	"co_reverse": {1, strict(func(a []driver.Value) (driver.Value, error) {
		r := []rune(text(a[0]))
		for i, j := 0, len(r)-1; i < j; i, j = i+1, j-1 {
			r[i], r[j] = r[j], r[i]
		}
		return string(r), nil
	}), false},
	"co_stuff":     {4, stuff, false},
	"co_translate": {3, strict(translate), false},
	"co_ascii": {1, strict(func(a []driver.Value) (driver.Value, error) {
		if text(a[0]) == "" {
			return nil, nil
		}
		r, _ := utf8.DecodeRuneInString(text(a[0]))
		return int64(r), nil
	}), false},
	"co_chr":       {1, strict(chr), false},
	"co_char":      {1, strict(char), false},
	"co_quotename": {-1, strict(quoteName), false},
	"co_parsename": {2, strict(parseName), false},
	"co_lpad":      {-1, strict(func(a []driver.Value) (driver.Value, error) { return pad(a, true) }), false},
	"co_rpad":      {-1, strict(func(a []driver.Value) (driver.Value, error) { return pad(a, false) }), false},
	"co_initcap": {1, strict(func(a []driver.Value) (driver.Value, error) {
		before := ' '
		return strings.Map(func(r rune) rune {
			inner := unicode.IsLetter(before) || unicode.IsDigit(before)
			if before = r; inner {
				return unicode.ToLower(r)
			}
			return unicode.ToUpper(r)
		}, text(a[0])), nil
	}), false},
	"co_concat":      {-1, concat, false},
	"co_xml":         {1, strict(func(a []driver.Value) (driver.Value, error) { return bounded(xmlText.Replace(text(a[0]))) }), false},
	"co_like":        {4, like, false},
	"regexp":         {2, strict(regularExpression), false},
	"co_servicename": {0, func([]driver.Value) (driver.Value, error) { return "MSSQLSERVER", nil }, false},
	"co_language":    {0, func([]driver.Value) (driver.Value, error) { return "us_english", nil }, false},
}

var xmlText = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// end returns the first or the last n characters; with a negative n all but so many at the other end, as PostgreSQL
// does. T-SQL refuses a negative n.
func end(s string, n int64, first bool) string {
	r := []rune(s)
	size := int64(len(r))
	if n < 0 {
		n = max(size+max(n, -size), 0)
	}
	n = min(n, size)
	if first {
		return string(r[:n])
	}
	return string(r[size-n:])
}

// substring counts characters from 1. Those before the first one count and are none.
func substring(a []driver.Value) (driver.Value, error) {
	r := []rune(text(a[0]))
	size := int64(len(r))
	from := min(max(integer(a[1]), -1<<40), 1<<40)
	to := size + 1
	if len(a) > 2 {
		n := min(integer(a[2]), 1<<40)
		if n < 0 {
			return nil, fmt.Errorf("negative substring length not allowed")
		}
		to = min(from+n, to)
	}
	if from = max(from, 1); from >= to {
		return "", nil
	}
	return string(r[from-1 : to-1]), nil
}

// charIndex returns where a text is in another one, from 1; 0: it is not there.
func charIndex(a []driver.Value) (driver.Value, error) {
	r := []rune(text(a[1]))
	from := int64(1)
	if len(a) > 2 {
		from = max(integer(a[2]), 1)
	}
	if from > int64(len(r)) {
		return int64(0), nil
	}
	rest := string(r[from-1:])
	i := strings.Index(rest, text(a[0]))
	if i < 0 {
		return int64(0), nil
	}
	return from + int64(utf8.RuneCountInString(rest[:i])), nil
}

// replicate repeats a text as T-SQL does, which has NULL for a number below 0, and cuts what is longer than 8000 bytes.
func replicate(name, s string, n int64) (driver.Value, error) {
	switch {
	case n < 0:
		return nil, nil
	case len(s) > 0 && n > 8000/int64(len(s)):
		return nil, fmt.Errorf("%s of more than 8000 bytes is not supported, as T-SQL cuts it there: use repeat()", name)
	}
	return repeat(s, n)
}

func repeat(s string, n int64) (driver.Value, error) {
	if int64(len(s)) > 0 && n > maxResult/int64(len(s)) {
		return nil, fmt.Errorf("string or blob too big: at most %d bytes are taken", maxResult)
	}
	return strings.Repeat(s, int(min(n, maxResult))), nil
}

func stuff(a []driver.Value) (driver.Value, error) {
	if a[0] == nil || a[1] == nil || a[2] == nil {
		return nil, nil
	}
	r := []rune(text(a[0]))
	from, n := integer(a[1]), integer(a[2])
	if from < 1 || from > int64(len(r)) || n < 0 {
		return nil, nil
	}
	to := min(from-1+min(n, int64(len(r))), int64(len(r)))
	return bounded(string(r[:from-1]) + text(a[3]) + string(r[to:]))
}

func translate(a []driver.Value) (driver.Value, error) {
	from, to := []rune(text(a[1])), []rune(text(a[2]))
	if len(from) != len(to) {
		return nil, fmt.Errorf("TRANSLATE needs as many characters to replace as replacements")
	}
	by := map[rune]rune{}
	for i, r := range from {
		if _, twice := by[r]; !twice {
			by[r] = to[i]
		}
	}
	return strings.Map(func(r rune) rune {
		if x, ok := by[r]; ok {
			return x
		}
		return r
	}, text(a[0])), nil
}

// trimmed removes the characters of a[1], or blanks, from the ends of a[0]. The engine's own functions take the product
// of both lengths, and nothing interrupts them.
func trimmed(a []driver.Value, trim func(string, func(rune) bool) string) string {
	if len(a) < 2 {
		return trim(text(a[0]), func(r rune) bool { return r == ' ' })
	}
	set := map[rune]bool{}
	for _, r := range text(a[1]) {
		set[r] = true
	}
	return trim(text(a[0]), func(r rune) bool { return set[r] })
}

// replace is REPLACE: text, what, with what.
func replace(a []driver.Value) (driver.Value, error) {
	s, old, with := text(a[0]), text(a[1]), text(a[2])
	if old == "" {
		return s, nil
	}
	if n := strings.Count(s, old); n > 0 && len(s)+n*(len(with)-len(old)) > maxResult {
		return nil, fmt.Errorf("string or blob too big: at most %d bytes are taken", maxResult)
	}
	return strings.ReplaceAll(s, old, with), nil
}

// char is CHAR of T-SQL, whose characters are those of a code page: the first 128, and the 160th to the 255th of Latin.
func char(a []driver.Value) (driver.Value, error) {
	switch n := integer(a[0]); {
	case n < 0 || n > 255:
		return nil, nil
	case n >= 128 && n < 160:
		return nil, fmt.Errorf("CHAR(%d) depends on the code page: use NCHAR", n)
	}
	return chr(a)
}

func chr(a []driver.Value) (driver.Value, error) {
	n := integer(a[0])
	if n == 0 {
		return nil, errors.New("a text has no character 0")
	}
	if n < 1 || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
		return nil, nil
	}
	return string(rune(n)), nil
}

// quoteMarks are the marks of QUOTENAME, with that which ends the quotation and is doubled within.
var quoteMarks = map[rune][2]string{
	'[': {"[", "]"}, ']': {"[", "]"}, '(': {"(", ")"}, ')': {"(", ")"}, '<': {"<", ">"}, '>': {"<", ">"}, '{': {"{", "}"}, '}': {"{", "}"},
	'\'': {"'", "'"}, '"': {`"`, `"`}, '`': {"`", "`"},
}

// quoteName is QUOTENAME. NULL: the mark is none, or the name is too long for one.
func quoteName(a []driver.Value) (driver.Value, error) {
	mark := '['
	if len(a) > 1 {
		mark, _ = utf8.DecodeRuneInString(text(a[1]))
	}
	s := text(a[0])
	marks, ok := quoteMarks[mark]
	if !ok || utf8.RuneCountInString(s) > 128 {
		return nil, nil
	}
	return marks[0] + strings.ReplaceAll(s, marks[1], marks[1]+marks[1]) + marks[1], nil
}

// parseName returns a part of a name with dots, which may be in brackets or quotes: 1 is the last one.
func parseName(a []driver.Value) (driver.Value, error) {
	var parts []string
	for rest, more := text(a[0]), true; more; {
		var part string
		var ok bool
		if part, rest, more, ok = namePart(rest); !ok || len(parts) == 4 {
			return nil, nil
		}
		parts = append(parts, part)
	}
	n := integer(a[1])
	if n < 1 || n > int64(len(parts)) || parts[len(parts)-int(n)] == "" {
		return nil, nil
	}
	return parts[len(parts)-int(n)], nil
}

// namePart returns the first part of a name, what follows its dot, and whether there is a dot. It is no name if a
// quotation does not end before a dot or the end.
func namePart(s string) (part, rest string, more, ok bool) {
	end := map[byte]string{'[': "]", '"': `"`}
	if s == "" || end[s[0]] == "" {
		part, rest, more = strings.Cut(s, ".")
		return part, rest, more, true
	}
	mark := end[s[0]]
	for s = s[1:]; ; {
		i := strings.Index(s, mark)
		if i < 0 {
			return "", "", false, false
		}
		part, s = part+s[:i], s[i+1:]
		if !strings.HasPrefix(s, mark) {
			break
		}
		part, s = part+mark, s[1:]
	}
	if s == "" {
		return part, "", false, true
	}
	return part, s[1:], true, s[0] == '.'
}

func pad(a []driver.Value, left bool) (driver.Value, error) {
	r, n, fill := []rune(text(a[0])), integer(a[1]), []rune(" ")
	if len(a) > 2 {
		fill = []rune(text(a[2]))
	}
	if n <= int64(len(r)) || len(fill) == 0 {
		return string(r[:max(min(n, int64(len(r))), 0)]), nil
	}
	if n > maxResult/4 {
		return nil, fmt.Errorf("string or blob too big: at most %d bytes are taken", maxResult)
	}
	more := make([]rune, 0, n)
	for i := 0; int64(len(r)+len(more)) < n; i++ {
		more = append(more, fill[i%len(fill)])
	}
	if left {
		return string(more) + string(r), nil
	}
	return string(r) + string(more), nil
}

// concat joins texts: a[0] separates them, a[1] is the function. CONCAT takes NULL as an empty text, CONCAT_WS as none.
func concat(a []driver.Value) (driver.Value, error) {
	var parts []string
	separated := text(a[1]) == "concat_ws"
	for _, v := range a[2:] {
		if v != nil {
			parts = append(parts, text(v))
		}
	}
	if !separated {
		return bounded(strings.Join(parts, ""))
	}
	return bounded(strings.Join(parts, text(a[0])))
}
