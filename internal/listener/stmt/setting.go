package stmt

import (
	"slices"
	"strings"
)

// Change is a statement that changes a setting beyond its own session: ALTER SYSTEM, ALTER ROLE, ALTER USER or ALTER
// DATABASE with SET or RESET. PostgreSQL runs ALTER SYSTEM only as a statement of its own: not in a function, a
// procedure or a DO, and not beside other statements of one Query. So a Query or a Parse shows each of them. The others
// may hide in a function or a DO.
type Change struct {
	Scope   Scope
	Setting string // in lower case, as PostgreSQL compares names; "": the spelling is not understood
	All     bool   // RESET ALL
	Reset   bool   // RESET, or SET to DEFAULT
	Value   string // in lower case; "" if it is not one plain value
}

// Scope is what a Change concerns.
type Scope string

// The scopes of a Change.
const (
	ScopeSystem   Scope = "SYSTEM"
	ScopeRole     Scope = "ROLE"
	ScopeDatabase Scope = "DATABASE"
)

// Changes looks for changes in the text of a Query or a Parse, piece by piece. It knows tokens, with comments, quotes
// and dollar quotes. Where standard_conforming_strings is off, a string that ends in a backslash can hide the
// statements behind it.
type Changes struct {
	state   lexState
	after   lexState // of lexQuote: the end of the quote
	depth   int      // of nested comments
	last    byte     // the byte before, within a comment
	skip    int      // NUL bytes before the text; -1: the text is over
	tag     []byte   // of a dollar quote, with both signs
	matched int      // bytes of tag that were just seen
	word    []byte   // the token that is being read, as far as it matters
	tokens  []token  // of the statement so far, if it begins with ALTER
	other   bool     // the statement begins with another word
	refused *Refusal
}

// The lengths that matter: no name or value that matters is longer, no statement has more tokens before its value.
const (
	tokenMost  = 64
	tokensMost = 24
	tagMost    = 256
)

type token struct {
	kind tokenKind
	text string
}

type tokenKind uint8

const (
	tokenWord tokenKind = iota
	tokenName           // in double quotes
	tokenText           // in single quotes or dollar quotes
	tokenSign           // one byte
)

func (t token) is(word string) bool { return t.kind == tokenWord && t.text == word }

type lexState uint8

const (
	lexBetween lexState = iota
	lexWord             //
	lexName             // in double quotes
	lexText             // in single quotes
	lexEscaped          // in single quotes after E
	lexEscape           // after a backslash in lexEscaped
	lexQuote            // behind a quote that ends the token, unless another quote follows
	lexDash             // behind one dash
	lexSlash            // behind one slash
	lexLine             // in a comment until the end of the line
	lexComment          //
	lexTag              // in the first tag of a dollar quote
	lexDollar           // in a dollar quote
)

// Begin begins a message of that type, 'Q' or 'P'.
func (c *Changes) Begin(typ byte) {
	*c = Changes{tag: c.tag[:0], word: c.word[:0], tokens: c.tokens[:0]}
	if typ == 'P' {
		c.skip = 1 // the name of the statement
	}
}

// Piece follows a piece of the message. judge returns why a change is refused; nil: it is not.
func (c *Changes) Piece(b []byte, judge func(Change) *Refusal) {
	for i := 0; i < len(b) && c.skip >= 0; i++ {
		switch {
		case b[i] == 0:
			if c.skip--; c.skip < 0 {
				c.endStatement(judge)
			}
		case c.skip > 0:
		default:
			c.next(b[i], judge)
		}
	}
}

// Refused returns why the message is refused, once all of it was seen; nil: it is not.
func (c *Changes) Refused() *Refusal { return c.refused }

// MentionsAlter reports whether a text may have a Change at all.
func MentionsAlter(text []byte) bool {
	for i := 0; i+5 <= len(text); i++ {
		if text[i]|0x20 == 'a' && equalFold(text[i:i+5], "alter") {
			return true
		}
	}
	return false
}

// next takes a byte of the text.
func (c *Changes) next(b byte, judge func(Change) *Refusal) {
	switch c.state {
	case lexBetween:
		c.begin(b, judge)
	case lexWord:
		if wordByte(b) {
			c.add(b)
			return
		}
		if b == '\'' && len(c.word) == 1 && strings.IndexByte("eEnNbBxX", c.word[0]) >= 0 {
			c.state = lexText
			if c.word[0]|0x20 == 'e' {
				c.state = lexEscaped
			}
			c.word = c.word[:0]
			return
		}
		c.emit(tokenWord)
		c.begin(b, judge)
	case lexDash:
		if b == '-' {
			c.state = lexLine
			return
		}
		c.sign('-')
		c.begin(b, judge)
	case lexSlash:
		if b == '*' {
			c.state, c.depth, c.last = lexComment, 1, 0
			return
		}
		c.sign('/')
		c.begin(b, judge)
	case lexLine:
		if b == '\n' || b == '\r' {
			c.state = lexBetween
		}
	case lexComment:
		c.comment(b)
	default:
		c.inQuotes(b, judge)
	}
}

// comment takes a byte of a comment, which may contain comments.
func (c *Changes) comment(b byte) {
	switch {
	case c.last == '/' && b == '*':
		c.depth++
		c.last = 0
	case c.last == '*' && b == '/':
		c.last = 0
		if c.depth--; c.depth == 0 {
			c.state = lexBetween
		}
	default:
		c.last = b
	}
}

// inQuotes takes a byte of a quoted token.
func (c *Changes) inQuotes(b byte, judge func(Change) *Refusal) {
	switch c.state { //nolint:exhaustive // the others are not quoted
	case lexName, lexText, lexEscaped:
		quote := byte('\'')
		if c.state == lexName {
			quote = '"'
		}
		switch {
		case b == quote:
			c.after, c.state = c.state, lexQuote
		case b == '\\' && c.state == lexEscaped:
			c.add(b) // such a value is not plain
			c.state = lexEscape
		default:
			c.add(b)
		}
	case lexEscape:
		c.add(b)
		c.state = lexEscaped
	case lexQuote:
		switch {
		case c.after == lexName && b == '"', c.after != lexName && b == '\'':
			c.add(b)
			c.state = c.after
			return
		case c.after == lexName:
			c.emit(tokenName)
		default:
			c.emit(tokenText)
		}
		c.begin(b, judge)
	case lexTag:
		switch {
		case b == '$':
			c.tag = append(c.tag, b)
			c.state, c.matched = lexDollar, 0
		case wordByte(b) && len(c.tag) < tagMost && (len(c.tag) > 1 || b < '0' || b > '9'):
			c.tag = append(c.tag, b)
		default: // a parameter
			c.sign('$')
			c.begin(b, judge)
		}
	case lexDollar:
		c.inDollars(b)
	}
}

// inDollars takes a byte of a dollar quote, which its tag ends. A tag has no sign but its first and its last byte.
func (c *Changes) inDollars(b byte) {
	c.add(b)
	switch {
	case b == c.tag[c.matched]:
		c.matched++
	case b == '$':
		c.matched = 1
	default:
		c.matched = 0
	}
	if c.matched == len(c.tag) {
		c.word = c.word[:max(0, len(c.word)-len(c.tag))]
		c.emit(tokenText)
	}
}

// begin takes a byte between two tokens.
func (c *Changes) begin(b byte, judge func(Change) *Refusal) {
	c.state, c.word = lexBetween, c.word[:0]
	switch {
	case strings.IndexByte(" \t\n\r\f\v", b) >= 0:
	case b == '$':
		c.state, c.tag = lexTag, append(c.tag[:0], b)
	case wordByte(b):
		c.state = lexWord
		c.add(b)
	case b == '"':
		c.state = lexName
	case b == '\'':
		c.state = lexText
	case b == '-':
		c.state = lexDash
	case b == '/':
		c.state = lexSlash
	case b == ';':
		c.endStatement(judge)
	default:
		c.sign(b)
	}
}

// add adds a byte to the token, if it can still matter.
func (c *Changes) add(b byte) {
	if len(c.word) <= tokenMost+tagMost {
		c.word = append(c.word, b)
	}
}

func (c *Changes) sign(b byte) {
	c.word = append(c.word[:0], b)
	c.emit(tokenSign)
}

// emit ends a token.
func (c *Changes) emit(kind tokenKind) {
	c.state = lexBetween
	if c.other || len(c.tokens) >= tokensMost {
		return
	}
	t := token{kind, strings.ToLower(string(c.word[:min(len(c.word), tokenMost)]))}
	if len(c.tokens) == 0 && !t.is("alter") {
		c.other = true
		return
	}
	c.tokens = append(c.tokens, t)
}

// endStatement judges a statement that is complete.
func (c *Changes) endStatement(judge func(Change) *Refusal) {
	switch c.state { //nolint:exhaustive // the others are no token, or one that does not end
	case lexWord:
		c.emit(tokenWord)
	case lexQuote:
		if c.after == lexName {
			c.emit(tokenName)
		} else {
			c.emit(tokenText)
		}
	}
	if found, ok := changeOf(c.tokens); ok && c.refused == nil {
		c.refused = judge(found)
	}
	c.state, c.tokens, c.other = lexBetween, c.tokens[:0], false
}

// changeOf returns the change that a statement makes, if it makes one.
func changeOf(t []token) (Change, bool) {
	if len(t) < 3 {
		return Change{}, false
	}
	var c Change
	switch {
	case t[1].is("system"):
		c.Scope, t = ScopeSystem, t[2:]
	case t[1].is("role"), t[1].is("user"):
		c.Scope, t = ScopeRole, afterName(t[2:])
		if len(t) > 3 && t[0].is("in") && t[1].is("database") {
			t = afterName(t[2:])
		}
	case t[1].is("database"):
		c.Scope, t = ScopeDatabase, afterName(t[2:])
	default:
		return Change{}, false
	}
	if len(t) < 2 || !t[0].is("set") && !t[0].is("reset") {
		return Change{}, false
	}
	c.Reset = t[0].is("reset")
	if t = t[1:]; c.Reset && len(t) == 1 && t[0].is("all") {
		c.All = true
		return c, true
	}
	name, t := settingName(t)
	switch {
	case name == "":
	case c.Reset:
		if len(t) == 0 {
			c.Setting = name
		}
	case len(t) == 0:
	case t[0].is("to"), t[0].kind == tokenSign && t[0].text == "=":
		c.Setting = name
		if len(t) == 2 && t[1].is("default") {
			c.Reset = true
		} else if len(t) == 2 && t[1].kind != tokenSign && !strings.ContainsRune(t[1].text, '\\') {
			c.Value = t[1].text
		}
	case t[0].is("from"): // FROM CURRENT
		c.Setting = name
	}
	return c, true
}

// afterName returns the tokens behind the name of a role or a database at the beginning of t. The name may have Unicode
// escapes: U&"x", or U&"x" UESCAPE '!'.
func afterName(t []token) []token {
	if len(t) < 3 || !t[0].is("u") || t[1].kind != tokenSign || t[1].text != "&" {
		return t[min(1, len(t)):]
	}
	if t = t[3:]; len(t) > 1 && t[0].is("uescape") {
		t = t[2:]
	}
	return t
}

// settingName returns the name at the beginning of t, and what follows it. It returns "" for a name with Unicode
// escapes.
func settingName(t []token) (string, []token) {
	var name strings.Builder
	for len(t) > 0 && t[0].kind != tokenSign && t[0].kind != tokenText {
		name.WriteString(t[0].text)
		t = t[1:]
		if len(t) == 0 || t[0].kind != tokenSign || t[0].text != "." {
			break
		}
		name.WriteByte('.')
		t = t[1:]
	}
	if slices.ContainsFunc(t[:min(len(t), 1)], func(t token) bool { return t.kind == tokenSign && t.text == "&" }) {
		return "", nil
	}
	return name.String(), t
}
