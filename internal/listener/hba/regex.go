package hba

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// byteSet is a set of bytes. PostgreSQL matches rules before it knows an encoding, so a character is one byte there.
type byteSet [256]bool

func (s *byteSet) add(first, last byte) {
	for b := int(first); b <= int(last); b++ {
		s[b] = true
	}
}

// classes are the character classes of PostgreSQL's regular expressions in the collation C, which rules have.
var classes = map[string][][2]byte{
	"alpha": {{'A', 'Z'}, {'a', 'z'}}, "upper": {{'A', 'Z'}}, "lower": {{'a', 'z'}}, "digit": {{'0', '9'}},
	"alnum": {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}, "word": {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
	"xdigit": {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, "space": {{'\t', '\r'}, {' ', ' '}}, "blank": {{'\t', '\t'}, {' ', ' '}},
	"punct": {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}, "print": {{' ', '~'}}, "graph": {{'!', '~'}},
}

// shorthands are the escapes of classes that have the same meaning here.
var shorthands = map[byte]string{'d': "digit", 's': "space", 'w': "word"}

func (s *byteSet) addClass(name string) {
	for _, r := range classes[name] {
		s.add(r[0], r[1])
	}
}

// write appends the set as a class of package regexp.
func (s *byteSet) write(b *strings.Builder, complement bool) {
	b.WriteByte('[')
	if complement {
		b.WriteByte('^')
	}
	for i := 0; i < 256; i++ {
		if !s[i] {
			continue
		}
		first := i
		for i < 255 && s[i+1] {
			i++
		}
		fmt.Fprintf(b, `\x{%x}-\x{%x}`, first, i)
	}
	b.WriteByte(']')
}

// latin1 returns a text with one character for each byte.
func latin1(text string) string {
	var b strings.Builder
	for i := range len(text) {
		b.WriteRune(rune(text[i]))
	}
	return b.String()
}

// Pattern is a regular expression of a rule, with the meaning that PostgreSQL gives it.
type Pattern struct{ re *regexp.Regexp }

// Matches reports whether the pattern matches somewhere in a name.
func (p *Pattern) Matches(name string) bool { return p.re.MatchString(latin1(name)) }

// compile reads a pattern. One that may mean something else in PostgreSQL, or nothing here, is an error that says what
// to write instead.
func compile(pattern string) (*Pattern, error) {
	t := translation{in: pattern}
	if strings.HasPrefix(pattern, "***") {
		return nil, errors.New("the regular expression begins with ***, which is not supported: write it without")
	}
	for t.i < len(t.in) {
		if err := t.next(); err != nil {
			return nil, fmt.Errorf("regular expression, position %d: %w", t.i+1, err)
		}
	}
	if t.depth > 0 {
		return nil, errors.New("the regular expression has a ( that is not closed")
	}
	re, err := regexp.Compile("(?s)" + t.out.String())
	if err != nil {
		return nil, fmt.Errorf("regular expression: %w", err)
	}
	return &Pattern{re}, nil
}

// translation is the way through a pattern.
type translation struct {
	in       string
	i        int // the next byte
	out      strings.Builder
	depth    int  // of open parentheses
	repeated bool // a quantifier may follow: what comes before is an atom
}

func (t *translation) at(text string) bool { return strings.HasPrefix(t.in[t.i:], text) }

// next translates one sign, with what belongs to it.
func (t *translation) next() error {
	c := t.in[t.i]
	switch c {
	case '*', '+', '?', '{':
		return t.quantifier()
	case '(':
		return t.open()
	case ')':
		if t.depth == 0 {
			return errors.New(`) without (: write \) for the sign`)
		}
		t.depth--
		t.emit(")", true)
	case '|', '^', '$':
		t.emit(string(c), false) // without (?m) they are the beginning and the end of the name, as in PostgreSQL
	case '.':
		t.emit(".", true)
	case '[':
		return t.bracket()
	case '\\':
		return t.escape()
	default:
		t.emit(regexp.QuoteMeta(string(rune(c))), true)
	}
	return nil
}

func (t *translation) emit(text string, atom bool) {
	t.out.WriteString(text)
	t.i++
	t.repeated = atom
}

func (t *translation) open() error {
	switch {
	case t.at("(?:"):
		t.i += 2
	case t.at("(?=") || t.at("(?!") || t.at("(?<"):
		return errors.New("conditions on what comes before or after, as (?=…), are not supported: use a second rule before this one")
	case t.at("(?"):
		return errors.New("options in the pattern, as (?i), are not supported: write both cases, as [aA]")
	}
	t.depth++
	t.emit("(?:", false)
	return nil
}

// maxRepeat is the largest number in braces that PostgreSQL allows.
const maxRepeat = 255

var bound = regexp.MustCompile(`^\{([0-9]{1,3})(,([0-9]{0,3}))?\}`)

// quantifier translates * + ? and numbers in braces, each with the ? that makes it match as little as possible.
func (t *translation) quantifier() error {
	if !t.repeated {
		return fmt.Errorf("%c without something before it that it repeats: write \\%[1]c for the sign", t.in[t.i])
	}
	q := t.in[t.i : t.i+1]
	if q == "{" {
		m := bound.FindStringSubmatch(t.in[t.i:])
		if m == nil {
			return errors.New(`{ without a number of repetitions: write \{ for the sign`)
		}
		least, _ := strconv.Atoi(m[1])
		most, err := strconv.Atoi(m[3])
		if err != nil {
			most = least
		}
		if least > maxRepeat || most > maxRepeat || most < least {
			return fmt.Errorf("%s is no number of repetitions from 0 to %d", m[0], maxRepeat)
		}
		q = m[0]
	}
	t.i += len(q)
	if t.at("?") {
		q += "?"
		t.i++
	}
	t.out.WriteString(q)
	t.repeated = false
	return nil
}

// insteadOf has the text to write instead of an escape that PostgreSQL knows.
var insteadOf = map[byte]string{
	'A': "write ^", 'Z': "write $", 'b': `it is a backspace in PostgreSQL and the edge of a word elsewhere; write (^|[^[:word:]]) or ($|[^[:word:]]) for an edge`,
	'B': `it is a backslash in PostgreSQL; write \\`, 'm': "write (^|[^[:word:]])", 'M': "write ($|[^[:word:]])",
	'y': "write (^|[^[:word:]]) or ($|[^[:word:]])", 'Y': "write out what may be there",
}

func (t *translation) escape() error {
	if t.i+1 == len(t.in) {
		return errors.New(`the pattern ends with \: write \\ for the sign`)
	}
	c := t.in[t.i+1]
	var set byteSet
	switch {
	case shorthands[c] != "":
		set.addClass(shorthands[c])
		set.write(&t.out, false)
	case shorthands[c|0x20] != "": // \D \S \W
		set.addClass(shorthands[c|0x20])
		set.write(&t.out, true)
	default:
		if err := literal(c); err != nil {
			return err
		}
		t.out.WriteString(regexp.QuoteMeta(string(rune(c))))
	}
	t.i += 2
	t.repeated = true
	return nil
}

// literal returns an error unless a backslash makes c an ordinary sign.
func literal(c byte) error {
	switch {
	case c >= '1' && c <= '9':
		return fmt.Errorf(`references back, as \%c, are not supported: write what it may be`, c)
	case insteadOf[c] != "":
		return fmt.Errorf(`\%c is not supported: %s`, c, insteadOf[c])
	case c >= 0x80, c < ' ', c == 0x7f, c >= '0' && c <= '9', c|0x20 >= 'a' && c|0x20 <= 'z':
		return fmt.Errorf(`\%c is not supported: write the character itself`, c)
	}
	return nil
}

// bracket translates an expression in brackets.
func (t *translation) bracket() error {
	var set byteSet
	t.i++
	complement := t.at("^")
	if complement {
		t.i++
	}
	for first := true; ; first = false {
		if t.i >= len(t.in) {
			return errors.New("a [ is not closed")
		}
		if t.in[t.i] == ']' && !first {
			break
		}
		if err := t.element(&set, first); err != nil {
			return err
		}
	}
	set.write(&t.out, complement)
	t.i++
	t.repeated = true
	return nil
}

// element reads a class, a sign or a range of an expression in brackets.
func (t *translation) element(set *byteSet, first bool) error {
	if t.at("[:") {
		name, _, closed := strings.Cut(t.in[t.i+2:], ":]")
		if classes[name] == nil || !closed {
			return errors.New("a class [:name:] that is not supported: write the characters")
		}
		set.addClass(name)
		t.i += len(name) + 4
		return t.noRange()
	}
	if t.at("[.") || t.at("[=") {
		return errors.New("[. and [= are not supported: write the characters")
	}
	if t.at(`\`) && t.i+1 < len(t.in) && shorthands[t.in[t.i+1]] != "" {
		set.addClass(shorthands[t.in[t.i+1]])
		t.i += 2
		return t.noRange()
	}
	from, err := t.sign(first)
	if err != nil {
		return err
	}
	if !t.at("-") || t.at("-]") {
		set.add(from, from)
		return nil
	}
	t.i++
	if t.at("[") {
		return errors.New(`a range that ends with [: write \[ for the sign`)
	}
	to, err := t.sign(false)
	if err != nil {
		return err
	}
	if to < from {
		return fmt.Errorf("the range %c-%c is empty", from, to)
	}
	set.add(from, to)
	return t.noRange()
}

// noRange returns an error where a - follows that neither begins a range nor ends the brackets.
func (t *translation) noRange() error {
	if t.at("-") && !t.at("-]") {
		return errors.New(`a - between two ranges or classes: put it at the end of the brackets`)
	}
	return nil
}

// sign reads one sign of an expression in brackets.
func (t *translation) sign(first bool) (byte, error) {
	if t.i >= len(t.in) {
		return 0, errors.New("a [ is not closed")
	}
	c := t.in[t.i]
	switch {
	case c == '\\':
		if t.i+1 >= len(t.in) {
			return 0, errors.New(`the pattern ends with \`)
		}
		if c = t.in[t.i+1]; literal(c) != nil || c|0x20 >= 'a' && c|0x20 <= 'z' {
			return 0, fmt.Errorf(`\%c in brackets is not supported: write the characters`, c)
		}
		t.i++
	case c == '-' && !first && !t.at("-]"):
		return 0, errors.New("a - that is no range: put it at the end of the brackets")
	case c == '[' && !first:
		return 0, errors.New(`[ in brackets: write \[ for the sign`)
	}
	t.i++
	return c, nil
}
