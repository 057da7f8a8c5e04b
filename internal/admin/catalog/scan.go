package catalog

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind int

const (
	tokWord   tokenKind = iota // a bare name or keyword
	tokName                    // "quoted"
	tokString                  // 'text'
	tokNumber
	tokParam // $1
	tokSign  // an operator or a bracket
)

// token is a token of SQL, with its text for the engine.
type token struct {
	kind tokenKind
	text string
}

func (t token) is(w string) bool { return t.kind == tokWord && strings.EqualFold(t.text, w) }

func (t token) sign(s string) bool { return t.kind == tokSign && t.text == s }

// signs are operators of more than one character, longest first.
var signs = []string{"!~~*", "!~*", "!~~", "~~*", "::", "!~", "~*", "~~", "<>", "!=", "<=", ">=", "||", "@@", "->>", "->", "@>", "<@"}

// Limits of a query's text.
const (
	maxTokens = 4000
	maxDepth  = 50  // of brackets, and of casts of one operand
	maxQuoted = 256 // bytes of a name in [ ]
)

// maxSteps is how many tokens the passes of one rewrite look at beyond the one walk that each of them makes.
const maxSteps = 100 * maxTokens

// rewriter counts the work of a rewrite.
type rewriter struct{ steps int }

// step counts n tokens that are to be looked at or moved, and reports whether they may be.
func (w *rewriter) step(n int) bool {
	w.steps = min(w.steps+n, maxSteps+1)
	return w.steps <= maxSteps
}

func tooComplex() *Error {
	return &Error{State: "54001", Message: fmt.Sprintf("the query is too complex: at most %d words and signs, and %d nested brackets and casts, are taken", maxTokens, maxDepth)}
}

// scan divides the SQL of PostgreSQL and SQL Server clients into tokens. Comments and white space are dropped.
func scan(sql string) ([]token, error) {
	if strings.IndexByte(sql, 0) >= 0 {
		return nil, &Error{State: "22021", Message: "the text has a zero byte"}
	}
	var out []token
	depth := 0
	for i := 0; i < len(sql); {
		if n := len(out); n > 0 && out[n-1].sign("(") {
			depth++
		} else if n > 0 && out[n-1].sign(")") {
			depth--
		}
		if len(out) > maxTokens || depth > maxDepth {
			return nil, tooComplex()
		}
		r, n := utf8.DecodeRuneInString(sql[i:])
		rest := sql[i:]
		switch {
		case unicode.IsSpace(r):
			i += n
		case strings.HasPrefix(rest, "--"):
			i += lineEnd(rest)
		case strings.HasPrefix(rest, "/*"):
			i += commentEnd(rest)
		case r == '\'' || (r == 'N' || r == 'n' || r == 'E' || r == 'e') && strings.HasPrefix(rest[1:], "'"):
			t, used, err := stringToken(rest)
			if err != nil {
				return nil, err
			}
			out, i = append(out, t), i+used
		case r == '"' || r == '[' && bracketName(sql, i, out):
			t, used, err := nameToken(rest, r)
			if err != nil {
				return nil, err
			}
			out, i = append(out, t), i+used
		default:
			t, used := plainToken(rest, r, n)
			out, i = append(out, t), i+used
		}
	}
	return out, nil
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
// PostgreSQL. A name is separated from the text before it, and has the form of a name.
func bracketName(sql string, i int, before []token) bool {
	content, _, closed := strings.Cut(sql[i+1:min(len(sql), i+1+maxQuoted)], "]")
	if !closed || len(before) > 0 && before[len(before)-1].is("ARRAY") {
		return false
	}
	for k, r := range content {
		if !wordRune(r) && (k == 0 || !strings.ContainsRune(" .-", r)) || k == 0 && unicode.IsDigit(r) {
			return false
		}
	}
	if i == 0 {
		return content != ""
	}
	last, _ := utf8.DecodeLastRuneInString(sql[:i])
	return content != "" && !wordRune(last) && last != ']' && last != ')'
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
			b.WriteString(unescape(s[i+1]))
			i += 2
		case c == '\'' && i+1 < len(s) && s[i+1] == '\'':
			b.WriteByte('\'')
			i += 2
		case c == '\'':
			return token{tokString, "'" + strings.ReplaceAll(b.String(), "'", "''") + "'"}, i + 1, nil
		default:
			b.WriteByte(c)
			i++
		}
	}
	return token{}, 0, &Error{State: "42601", Message: "unterminated quoted string"}
}

func unescape(c byte) string {
	switch c {
	case 'n':
		return "\n"
	case 't':
		return "\t"
	case 'r':
		return "\r"
	}
	return string(rune(c))
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
		return token{tokName, `"` + strings.ReplaceAll(b.String(), `"`, `""`) + `"`}, i + 1, nil
	}
	return token{}, 0, &Error{State: "42601", Message: "unterminated quoted identifier"}
}

func wordRune(r rune) bool {
	return r == '_' || r == '#' || r == '$' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

func plainToken(s string, r rune, n int) (token, int) {
	run := func(in func(rune) bool) string {
		i := strings.IndexFunc(s[n:], func(r rune) bool { return !in(r) })
		if i < 0 {
			return s
		}
		return s[:n+i]
	}
	switch {
	case r == '$' && len(s) > 1 && s[1] >= '0' && s[1] <= '9':
		t := run(unicode.IsDigit)
		return token{tokParam, t}, len(t)
	case r == '_' || r == '#' || unicode.IsLetter(r):
		t := run(wordRune)
		return token{tokWord, t}, len(t)
	case r >= '0' && r <= '9':
		t := run(func(r rune) bool { return r >= '0' && r <= '9' || r == '.' || r == 'e' || r == 'E' })
		if strings.HasPrefix(s[len(t):], "'") {
			t = strings.TrimRight(t, "eE") // 1E'x' is a number and a string
		}
		return token{tokNumber, t}, len(t)
	}
	for _, op := range signs {
		if strings.HasPrefix(s, op) {
			return token{tokSign, op}, len(op)
		}
	}
	return token{tokSign, s[:n]}, n
}

// join returns the tokens as SQL.
func join(tokens []token) string {
	var b strings.Builder
	for i, t := range tokens {
		if i > 0 && !t.sign(".") && !tokens[i-1].sign(".") && !t.sign("(") {
			b.WriteByte(' ')
		}
		if i > 0 && t.sign("(") && tokens[i-1].kind != tokWord {
			b.WriteByte(' ')
		}
		b.WriteString(t.text)
	}
	return b.String()
}

// engineSigns are the signs that the engine gets. None of them begins or ends a statement, a quotation, a comment or a
// parameter there.
var engineSigns = []string{
	"(", ")", ",", ".", "+", "-", "*", "/", "%", "=", "<", ">", "<>", "!=", "<=", ">=", "||", "->", "->>", "&", "|", "~",
}

// check refuses tokens that the engine could read otherwise than scan did. It is the last step of the translation, so
// that no pass can bring one back. A ; is one of them: the engine gets one statement.
func check(t []token) error {
	if first := at(t, 0); !first.is("SELECT") && !first.is("WITH") && !first.is("VALUES") && !first.sign("(") {
		return &Error{State: "42601", Message: fmt.Sprintf("a query begins with SELECT, WITH, VALUES or TABLE, not with %.40q", first.text)}
	}
	for _, x := range t {
		ok := true
		switch x.kind {
		case tokSign:
			ok = slices.Contains(engineSigns, x.text)
		case tokWord: // # and $ begin a parameter of the engine's
			ok = x.text != "" && !strings.ContainsFunc(x.text, func(r rune) bool { return !wordRune(r) || r == '#' || r == '$' })
		case tokNumber:
			ok = strings.Trim(x.text, "0123456789.eE") == ""
		case tokParam:
			ok = strings.Trim(x.text[1:], "0123456789") == ""
		case tokString:
			ok = quoted(x.text, '\'')
		case tokName:
			ok = quoted(x.text, '"')
		}
		if !ok {
			return &Error{State: "42601", Message: fmt.Sprintf("syntax error at or near %.40q", x.text)}
		}
	}
	return nil
}

// quoted reports whether s is one quotation: every mark within it is doubled.
func quoted(s string, mark byte) bool {
	return len(s) >= 2 && endOfQuote(s, mark) == len(s)
}

// endOfQuote returns the index behind the quotation at the beginning of s; 0 if there is none, or it does not end.
func endOfQuote(s string, mark byte) int {
	if s[0] != mark {
		return 0
	}
	for i := 1; i < len(s); i++ {
		if s[i] != mark {
			continue
		}
		if i+1 == len(s) || s[i+1] != mark {
			return i + 1
		}
		i++
	}
	return 0
}

// oneStatement reports whether a text for the engine is one statement by the rules of the engine's own lexer. It does
// not rely on scan. Quotations and comments that scan never writes count as more than one.
func oneStatement(sql string) bool {
	for i := 0; i < len(sql); {
		switch c := sql[i]; {
		case c == '\'' || c == '"':
			n := endOfQuote(sql[i:], c)
			if n == 0 {
				return false
			}
			i += n
		case strings.IndexByte(";`[]\x00#@$:\\", c) >= 0, strings.HasPrefix(sql[i:], "--"), strings.HasPrefix(sql[i:], "/*"):
			return false
		default:
			i++
		}
	}
	return true
}
