package ddl

import (
	"strings"
)

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
