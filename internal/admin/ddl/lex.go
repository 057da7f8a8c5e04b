package ddl

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxText is the longest text that is parsed, in bytes.
const MaxText = 256 << 10

type tokenKind int

const (
	tokEnd     tokenKind = iota
	tokWord              // bare: a keyword or a name
	tokName              // [bracketed] or "quoted": always a name
	tokString            // 'text' or N'text'
	tokEscaped           // E'text' of PostgreSQL. The language has no such strings, but Split must know where one ends.
	tokNumber            // digits, perhaps with a fraction
	tokSign              // one character
)

type token struct {
	kind tokenKind
	text string // without quotes, doubled quotes undone
	pos  Pos
	from int // byte offset of its first byte
	end  int // byte offset behind its last byte
}

// what returns the token as an error message quotes it.
func (t token) what() string {
	switch t.kind {
	case tokEnd:
		return "the end"
	case tokString:
		return Literal(clip(t.text))
	case tokName:
		return Brackets(clip(t.text))
	default:
		return "'" + clip(t.text) + "'"
	}
}

func clip(s string) string {
	if utf8.RuneCountInString(s) <= 40 {
		return s
	}
	return string([]rune(s)[:40]) + "…"
}

// is reports whether the token is that keyword, in upper or lower case.
func (t token) is(word string) bool { return t.kind == tokWord && strings.EqualFold(t.text, word) }

func (t token) isSign(c string) bool { return t.kind == tokSign && t.text == c }

// lexer divides a text into tokens.
type lexer struct {
	text string
	at   int
	pos  Pos
}

func lex(text string) ([]token, *Error) {
	if len(text) > MaxText {
		return nil, errorf("54000", "the text has %d bytes; at most %d are parsed", len(text), MaxText)
	}
	if i := invalidUTF8(text); i >= 0 {
		return nil, errorf("22021", "the text is not valid UTF-8 from byte %d on", i)
	}
	l := &lexer{text: text, pos: Pos{1, 1, 0}}
	var out []token
	for {
		if bad := l.blank(); bad != nil {
			return nil, bad
		}
		from := l.at
		t, bad := l.next()
		if bad != nil {
			return nil, bad
		}
		t.from, t.end = from, l.at
		out = append(out, t)
		if t.kind == tokEnd {
			return out, nil
		}
	}
}

func invalidUTF8(s string) int {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n <= 1 || r == 0 {
			return i
		}
		i += n
	}
	return -1
}

func (l *lexer) peek() rune {
	r, _ := utf8.DecodeRuneInString(l.text[l.at:])
	return r
}

func (l *lexer) left(prefix string) bool { return strings.HasPrefix(l.text[l.at:], prefix) }

func (l *lexer) step() rune {
	r, n := utf8.DecodeRuneInString(l.text[l.at:])
	l.at += n
	l.pos.Offset++
	l.pos.Column++
	if r == '\n' {
		l.pos.Line, l.pos.Column = l.pos.Line+1, 1
	}
	return r
}

func (l *lexer) done() bool { return l.at >= len(l.text) }

// blank skips white space and comments. Block comments nest.
func (l *lexer) blank() *Error {
	for !l.done() {
		switch {
		case unicode.IsSpace(l.peek()) || l.peek() == '\ufeff':
			l.step()
		case l.left("--"):
			for !l.done() && l.peek() != '\n' {
				l.step()
			}
		case l.left("/*"):
			if bad := l.blockComment(); bad != nil {
				return bad
			}
		default:
			return nil
		}
	}
	return nil
}

// shellOptions are options of the shell's commands and of other tools, with what a statement has in their place. Typed
// in SQL they are remarks: FAILOVER --force would be a planned failover.
var shellOptions = func() map[string]string {
	out := map[string]string{}
	for names, hint := range map[string]string{
		"force forced force-failover allow-data-loss data-loss now": "ALTER AVAILABILITY GROUP [group] FORCE_FAILOVER_ALLOW_DATA_LOSS forces a failover; in the shell: coterie failover --allow-data-loss",
		"to target candidate":                            "FAILOVER TO N'name'",
		"nowait no-wait async":                           "WITH (NOWAIT)",
		"wait strict":                                    "WITH (STRICT)",
		"dry-run dryrun check what-if":                   "EXPLAIN FAILOVER changes nothing; in the shell: coterie failover --dry-run",
		"yes json node cut drain away timeout immediate": "coterie failover, in the shell, has options",
	} {
		for _, name := range strings.Fields(names) {
			out[name] = hint
		}
	}
	return out
}()

// optionBehind returns the name and the end of an option of the shell that is a remark behind the text up to at, on its
// line. A remark that begins with a blank is none.
func optionBehind(text string, at int) (name string, end int) {
	rest := strings.TrimLeft(text[at:], " \t")
	from := len(text) - len(rest)
	if !strings.HasPrefix(rest, "--") {
		return "", at
	}
	name = rest[2:]
	if i := strings.IndexFunc(name, func(r rune) bool { return r != '-' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }); i >= 0 {
		name = name[:i]
	}
	line, _, _ := strings.Cut(rest[2+len(name):], "\n")
	others := slices.DeleteFunc(strings.Fields(strings.ReplaceAll(line, ";", " ")), func(w string) bool { return strings.HasPrefix(w, "--") })
	if _, known := shellOptions[strings.ToLower(strings.ReplaceAll(name, "_", "-"))]; !known || len(others) > 1 { // more words are a sentence
		return "", at
	}
	return name, from + 2 + len(name)
}

// WithOption returns the end of an option of the shell that is written as a remark behind the text up to at; at if
// there is none. Parse refuses it.
func WithOption(text string, at int) int {
	_, end := optionBehind(text, at)
	return end
}

// lexStatement divides a statement into tokens. One with an option of the shell, which would be a remark without an
// effect, is refused.
func lexStatement(text string) ([]token, *Error) {
	tokens, bad := lex(text)
	if bad != nil {
		return nil, bad
	}
	for i, t := range tokens {
		if t.kind == tokEnd || t.isSign(";") && tokens[i+1].kind == tokEnd {
			break
		}
		if name, _ := optionBehind(text, t.end); name != "" {
			hint := shellOptions[strings.ToLower(strings.ReplaceAll(name, "_", "-"))]
			return nil, t.pos.errorf(StateSyntax, "--%s behind %s is a remark in SQL, and has no effect", name, t.what()).
				WithHint("%s. A remark is written with a blank: -- %s", hint, name)
		}
	}
	return tokens, nil
}

func (l *lexer) blockComment() *Error {
	start, depth := l.pos, 0
	for !l.done() {
		switch {
		case l.left("/*"):
			l.step()
			l.step()
			depth++
		case l.left("*/"):
			l.step()
			l.step()
			if depth--; depth == 0 {
				return nil
			}
		default:
			l.step()
		}
	}
	return start.messagef(NumberUnclosedComment, "missing end comment mark '*/'")
}

func (l *lexer) next() (token, *Error) {
	if l.done() {
		return token{kind: tokEnd, pos: l.pos}, nil
	}
	start := l.pos
	switch r := l.peek(); {
	case r == '\'':
		return l.quoted(tokString, '\'')
	case (r == 'N' || r == 'n') && strings.HasPrefix(l.text[l.at+1:], "'"):
		l.step()
		t, bad := l.quoted(tokString, '\'')
		t.pos = start
		return t, bad
	case (r == 'E' || r == 'e') && strings.HasPrefix(l.text[l.at+1:], "'"):
		return l.escaped()
	case r == '[':
		return l.quoted(tokName, ']')
	case r == '"':
		return l.quoted(tokName, '"')
	case r == '_' || r == '@' || r == '#' || unicode.IsLetter(r):
		return l.run(tokWord, func(r rune) bool {
			return r == '_' || r == '@' || r == '#' || r == '$' || unicode.IsLetter(r) || unicode.IsDigit(r)
		}), nil
	case r >= '0' && r <= '9':
		return l.run(tokNumber, func(r rune) bool { return r >= '0' && r <= '9' || r == '.' }), nil
	default:
		return token{kind: tokSign, text: string(l.step()), pos: start}, nil
	}
}

func (l *lexer) run(kind tokenKind, in func(rune) bool) token {
	start, from := l.pos, l.at
	for !l.done() && in(l.peek()) {
		l.step()
	}
	return token{kind: kind, text: l.text[from:l.at], pos: start}
}

// quoted reads up to the closing mark. A doubled mark stands for the mark itself.
func (l *lexer) quoted(kind tokenKind, closing rune) (token, *Error) {
	start := l.pos
	l.step()
	var b strings.Builder
	for !l.done() {
		r := l.step()
		if r != closing {
			b.WriteRune(r)
			continue
		}
		if l.done() || l.peek() != closing {
			return token{kind: kind, text: b.String(), pos: start}, nil
		}
		b.WriteRune(l.step())
	}
	return token{}, start.messagef(NumberUnclosedQuote, "unclosed quotation mark, expected %c", closing)
}

// escaped reads E'text', in which a backslash takes its meaning from the next character.
func (l *lexer) escaped() (token, *Error) {
	start, from := l.pos, l.at
	l.step()
	l.step()
	for !l.done() {
		switch r := l.step(); {
		case r == '\\' && !l.done():
			l.step()
		case r == '\'' && l.left("'"):
			l.step()
		case r == '\'':
			return token{kind: tokEscaped, text: l.text[from:l.at], pos: start}, nil
		}
	}
	return token{}, start.messagef(NumberUnclosedQuote, "unclosed quotation mark, expected '")
}

// Literal returns s as a string of the language.
func Literal(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }

// Brackets returns s as a name of the language.
func Brackets(s string) string { return "[" + strings.ReplaceAll(s, "]", "]]") + "]" }

// Token is a word, a name, a string, a number or a sign of a text.
type Token struct {
	Text     string // without quotes
	Pos      Pos
	From, To int // byte offsets
	kind     tokenKind
}

// Is reports whether the token is that keyword, in upper or lower case.
func (t Token) Is(word string) bool {
	return t.kind == tokWord && t.To > 0 && strings.EqualFold(t.Text, word)
}

// Word reports whether the token is a bare word, such as a keyword or @variable.
func (t Token) Word() bool { return t.kind == tokWord && t.To > 0 }

// Sign reports whether the token is that sign.
func (t Token) Sign(s string) bool { return t.kind == tokSign && t.Text == s }

// Tokens divides a text into tokens, without the end. The error is an *Error.
func Tokens(text string) ([]Token, error) {
	list, bad := lex(text)
	if bad != nil {
		return nil, bad
	}
	var out []Token
	for _, t := range list {
		if t.kind != tokEnd {
			out = append(out, Token{Text: t.text, Pos: t.pos, From: t.from, To: t.end, kind: t.kind})
		}
	}
	return out, nil
}

// Part is one statement of a file, as text.
type Part struct {
	Text string
	Line int // line of the file on which Text begins, from 1

	Offset int // characters of the file before Text
}

// Split divides a text into statements at semicolons and at lines that contain only GO. It interprets nothing but
// quotes and comments, so it divides SQL of any kind. An unclosed quote or comment is an *Error.
func Split(text string) ([]Part, error) {
	tokens, bad := lex(text)
	if bad != nil {
		return nil, bad
	}
	var out []Part
	from, line, offset := 0, 0, 0 // line 0: no statement has begun
	cut := func(to int) {
		if t := strings.TrimSpace(text[from:to]); line != 0 && t != "" {
			out = append(out, Part{t, line, offset})
		}
		line = 0
	}
	for i, t := range tokens {
		switch {
		case t.kind == tokEnd:
			cut(len(text))
		case t.isSign(";"):
			cut(t.from)
			from = t.end
		case t.is("GO") && alone(tokens, i):
			cut(t.from)
			from = t.end
		case line == 0:
			line, from, offset = t.pos.Line, t.from, t.pos.Offset
		}
	}
	return out, nil
}

// alone reports whether the token at i is the only one on its line.
func alone(tokens []token, i int) bool {
	line := tokens[i].pos.Line
	return (i == 0 || tokens[i-1].pos.Line < line) && (tokens[i+1].kind == tokEnd || tokens[i+1].pos.Line > line)
}

type parser struct {
	tokens []token
	at     int
}

func (p *parser) tok() token { return p.tokens[p.at] }

func (p *parser) ahead(n int) token { return p.tokens[min(p.at+n, len(p.tokens)-1)] }

// expected returns the error of a token that the grammar does not allow at its place.
func (p *parser) expected(what string) *Error {
	return p.tok().pos.messagef(102, "incorrect syntax near %s: expected %s", p.tok().what(), what)
}

// take skips the keywords if all of them follow, and reports whether they do.
func (p *parser) take(words ...string) bool {
	for i, w := range words {
		if !p.ahead(i).is(w) {
			return false
		}
	}
	p.at += len(words)
	return true
}

func (p *parser) takeSign(c string) bool {
	if !p.tok().isSign(c) {
		return false
	}
	p.at++
	return true
}

func (p *parser) need(words ...string) *Error {
	for _, w := range words {
		if !p.take(w) {
			return p.expected(strings.Join(words, " "))
		}
	}
	return nil
}

func (p *parser) needSign(c string) *Error {
	if !p.takeSign(c) {
		return p.expected("'" + c + "'")
	}
	return nil
}

// name parses a name: bare, in brackets or in double quotes.
func (p *parser) name(what string) (string, *Error) {
	t := p.tok()
	if t.kind != tokWord && t.kind != tokName {
		return "", p.expected(what)
	}
	if t.text == "" {
		return "", t.pos.messagef(1038, "a name must not be empty")
	}
	if n := len([]rune(t.text)); n > maxName {
		return "", t.pos.messagef(103, "%s has %d characters; at most %d are allowed", what, n, maxName)
	}
	if bad := printable(t, what); bad != nil {
		return "", bad
	}
	p.at++
	return t.text, nil
}

// server parses a replica's name: a string, or a name without the quotes.
func (p *parser) server() (string, *Error) {
	t := p.tok()
	if t.kind != tokString && t.kind != tokWord && t.kind != tokName {
		return "", p.expected("a replica's name, as N'SRV1'")
	}
	return p.short(t, "a replica's name", maxServer)
}

func (p *parser) short(t token, what string, most int) (string, *Error) {
	if n := len([]rune(t.text)); n == 0 || n > most {
		return "", t.pos.errorf(StateInvalid, "%s must have 1 to %d characters", what, most)
	}
	if bad := printable(t, what); bad != nil {
		return "", bad
	}
	p.at++
	return t.text, nil
}

func printable(t token, what string) *Error {
	for _, r := range t.text {
		if r < ' ' || r == 0x7f || r == 0xfeff || r == 0x2028 || r == 0x2029 {
			return t.pos.errorf(StateInvalid, "%s must not have control characters in it", what)
		}
	}
	return nil
}

func (p *parser) tooMany(what string) *Error {
	return p.tok().pos.errorf(StateInvalid, "too many %s in one statement", what)
}
