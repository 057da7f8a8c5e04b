package dialect

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error is the error of a query.
type Error struct {
	State   string
	Message string
	Hint    string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Errorf returns an error with that SQLSTATE.
func Errorf(state, format string, a ...any) *Error {
	return &Error{State: state, Message: fmt.Sprintf(format, a...)}
}

// unsupported returns the error of a construct that is known and not supported.
func unsupported(what, hint string) *Error {
	return &Error{State: "0A000", Message: what + " is not supported in the console", Hint: hint}
}

type tokenKind int

const (
	tokEnd    tokenKind = iota
	tokWord             // a bare name or keyword
	tokName             // "quoted" or [bracketed]
	tokString           // 'text'
	tokNumber
	tokParam    // $1
	tokVariable // @name
	tokGlobal   // @@name
	tokSign     // an operator or a bracket
)

// token is a token of SQL: its value without quotes, and the byte offsets of its text.
type token struct {
	kind     tokenKind
	text     string
	from, to int
}

func (t token) is(w string) bool { return t.kind == tokWord && strings.EqualFold(t.text, w) }

func (t token) sign(s string) bool { return t.kind == tokSign && t.text == s }

// shown returns the token as an error message quotes it.
func (t token) shown() string {
	if t.kind == tokEnd {
		return "the end of the query"
	}
	return fmt.Sprintf("%.40q", t.text)
}

// signs are operators of more than one character, longest first.
var signs = []string{"!~~*", "!~*", "!~~", "~~*", "->>", "#>>", "::", "!~", "~*", "~~", "<>", "!=", "<=", ">=", "!<", "!>", "||", "->", "@>", "<@", "#>"}

// single are the operators and brackets of one character.
const single = "()[],.;+-*/%=<>&|^~:"

// Limits of a query's text.
const (
	maxText   = 256 << 10 // bytes
	maxTokens = 4000
	maxDepth  = 50  // of brackets, and of casts of one operand
	maxNested = 150 // of expressions and queries in one another
	maxQuoted = 256 // bytes of a name in [ ]
)

func tooComplex() *Error {
	return Errorf("54001", "the query is too complex: at most %d words and signs, and %d nested brackets and casts, are taken", maxTokens, maxDepth)
}

// scan divides a query into tokens. The last one is the end. Comments and white space are dropped.
func scan(sql string) ([]token, error) {
	switch {
	case len(sql) > maxText:
		return nil, Errorf("54000", "the text has %d bytes; at most %d are parsed", len(sql), maxText)
	case strings.IndexByte(sql, 0) >= 0:
		return nil, Errorf("22021", "the text has a zero byte")
	case !utf8.ValidString(sql):
		return nil, Errorf("22021", "the text is not valid UTF-8")
	}
	var out []token
	depth := 0
	for i := 0; i < len(sql); {
		rest := sql[i:]
		r, n := utf8.DecodeRuneInString(rest)
		switch {
		case unicode.IsSpace(r) || r == '\ufeff':
			i += n
			continue
		case strings.HasPrefix(rest, "--"):
			i += lineEnd(rest)
			continue
		case strings.HasPrefix(rest, "/*"):
			i += commentEnd(rest)
			continue
		}
		t, used, err := next(sql, i, out)
		if err != nil {
			return nil, err
		}
		t.from, t.to = i, i+used
		out, i = append(out, t), i+used
		if t.sign("(") {
			depth++
		} else if t.sign(")") {
			depth--
		}
		if len(out) > maxTokens || depth > maxDepth {
			return nil, tooComplex()
		}
	}
	return append(out, token{kind: tokEnd, from: len(sql), to: len(sql)}), nil
}

// next returns the token at i and its length.
func next(sql string, i int, before []token) (token, int, error) {
	rest := sql[i:]
	r, _ := utf8.DecodeRuneInString(rest)
	switch {
	case r == '\'' || strings.ContainsRune("NnEe", r) && strings.HasPrefix(rest[1:], "'"):
		return stringToken(rest)
	case r == '"' || r == '[' && bracketName(sql, i, before):
		return nameToken(rest, r)
	case r == '$' && len(rest) > 1 && digit(rune(rest[1])):
		t := rest[:runLength(rest, 1, digit)]
		return token{kind: tokParam, text: t[1:]}, len(t), nil
	case r == '@' && strings.HasPrefix(rest, "@@") && len(rest) > 2 && wordRune(rune(rest[2])):
		t := rest[:runLength(rest, 2, wordRune)]
		return token{kind: tokGlobal, text: t[2:]}, len(t), nil
	case r == '@' && len(rest) > 1 && wordRune(rune(rest[1])):
		t := rest[:runLength(rest, 1, wordRune)]
		return token{kind: tokVariable, text: t[1:]}, len(t), nil
	case r == '_' || r == '#' || unicode.IsLetter(r):
		t := rest[:runLength(rest, 0, wordRune)]
		return token{kind: tokWord, text: t}, len(t), nil
	case digit(r) || r == '.' && len(rest) > 1 && digit(rune(rest[1])) && !dotted(before, i):
		return numberToken(rest)
	}
	for _, op := range signs {
		if strings.HasPrefix(rest, op) {
			return token{kind: tokSign, text: op}, len(op), nil
		}
	}
	if strings.ContainsRune(single, r) {
		return token{kind: tokSign, text: string(r)}, 1, nil
	}
	if r == '{' {
		return token{}, 0, unsupported("an escape of ODBC ({...})", "write the function, or the time as a string, without it")
	}
	return token{}, 0, Errorf("42601", "syntax error at or near %q", string(r))
}

// dotted reports whether the token before i touches it, so that a dot separates names.
func dotted(before []token, i int) bool {
	if len(before) == 0 {
		return false
	}
	last := before[len(before)-1]
	return last.to == i && (last.kind == tokWord || last.kind == tokName || last.sign("."))
}

func digit(r rune) bool { return r >= '0' && r <= '9' }

func wordRune(r rune) bool {
	return r == '_' || r == '#' || r == '$' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

// runLength returns the length of the prefix of s whose characters from the byte from on are all in.
func runLength(s string, from int, in func(rune) bool) int {
	if i := strings.IndexFunc(s[from:], func(r rune) bool { return !in(r) }); i >= 0 {
		return from + i
	}
	return len(s)
}

// numberToken reads digits, a fraction and an exponent.
func numberToken(s string) (token, int, error) {
	n := runLength(s, 0, digit)
	if n < len(s) && s[n] == '.' {
		n = runLength(s, n+1, digit)
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		k := n + 1
		if k < len(s) && (s[k] == '+' || s[k] == '-') {
			k++
		}
		if k < len(s) && digit(rune(s[k])) {
			n = runLength(s, k, digit)
		}
	}
	text := s[:n]
	if strings.HasPrefix(text, ".") {
		text = "0" + text
	}
	if text == "0" && n < len(s) && (s[n] == 'x' || s[n] == 'X') {
		return token{}, 0, unsupported("a binary constant (0x...)", "write the number")
	}
	if n < len(s) && (s[n] == '.' || s[n] == '_' || unicode.IsLetter(rune(s[n])) && !(strings.ContainsRune("NnEe", rune(s[n])) && strings.HasPrefix(s[n+1:], "'"))) {
		return token{}, 0, Errorf("42601", "trailing junk after the number %.40q", text)
	}
	return token{kind: tokNumber, text: text}, n, nil
}

func lineEnd(s string) int {
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		return i + 1
	}
	return len(s)
}

func commentEnd(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "/*"):
			depth++
			i++
		case strings.HasPrefix(s[i:], "*/"):
			i++
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// bracketName reports whether a [ begins a name, as in SQL Server, rather than an array or a subscript, as in
// PostgreSQL. A subscript follows a word, a name or a bracket without a space.
func bracketName(sql string, i int, before []token) bool {
	content, _, closed := strings.Cut(sql[i+1:min(len(sql), i+1+maxQuoted)], "]")
	if !closed || content == "" || len(before) > 0 && before[len(before)-1].is("ARRAY") {
		return false
	}
	if first, _ := utf8.DecodeRuneInString(content); unicode.IsDigit(first) || strings.ContainsRune("'$[(", first) {
		return false
	}
	if len(before) == 0 {
		return true
	}
	last := before[len(before)-1]
	return last.to < i || last.kind == tokSign && last.text != ")" && last.text != "]"
}

func stringToken(s string) (token, int, error) {
	escapes := s[0] == 'E' || s[0] == 'e'
	i := 1
	if s[0] != '\'' {
		i = 2
	}
	var b strings.Builder
	for i < len(s) {
		switch c := s[i]; {
		case c == '\\' && escapes && i+1 < len(s):
			r, n := utf8.DecodeRuneInString(s[i+1:])
			text, ok := unescape(r)
			if !ok {
				return token{}, 0, unsupported(`the escape \`+string(r)+` of E'...'`, "write the character itself, or CHR(n)")
			}
			b.WriteString(text)
			i += 1 + n
		case c == '\'' && i+1 < len(s) && s[i+1] == '\'':
			b.WriteByte('\'')
			i += 2
		case c == '\'':
			return token{kind: tokString, text: b.String()}, i + 1, nil
		default:
			b.WriteByte(c)
			i++
		}
	}
	return token{}, 0, Errorf("42601", "unterminated quoted string")
}

// unescape returns what a backslash and a character stand for in E'...'; false: a character by its number.
func unescape(c rune) (string, bool) {
	switch c {
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'r':
		return "\r", true
	case 'b':
		return "\b", true
	case 'f':
		return "\f", true
	}
	return string(c), !strings.ContainsRune("01234567xuU", c)
}

func nameToken(s string, open rune) (token, int, error) {
	closing := byte('"')
	if open == '[' {
		closing = ']'
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != closing {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == closing {
			b.WriteByte(closing)
			i++
			continue
		}
		if b.Len() == 0 {
			return token{}, 0, Errorf("42601", "a name must not be empty")
		}
		return token{kind: tokName, text: b.String()}, i + 1, nil
	}
	return token{}, 0, Errorf("42601", "unterminated quoted identifier")
}
