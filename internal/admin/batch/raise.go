package batch

import (
	"strconv"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// raise parses RAISERROR (message, severity, state) [WITH option].
func (p *parser) raise(s *Statement) {
	s.Kind = Raise
	p.at++
	if !p.tok(0).Sign("(") {
		p.expected("'('")
		return
	}
	p.at++
	args := p.values()
	switch {
	case !p.tok(0).Sign(")"):
		p.expected("')'")
		return
	case len(args) < 3:
		p.expected("a message, a severity and a state")
		return
	case len(args) > 3+maxValues:
		p.fail(p.tok(-1).Pos, ddl.StateNotSupported, "RAISERROR with more than "+strconv.Itoa(maxValues)+" values is not supported", "")
		return
	}
	p.at++
	s.Text, s.Severity, s.State, s.Values = args[0], args[1], args[2], args[3:]
	for more := p.tok(0).Is("WITH"); more; more = p.tok(0).Sign(",") {
		switch o := p.tok(1); {
		case o.Is("LOG"):
			s.Logged = true
		case o.Is("SETERROR"):
			s.Sets = true
		case !o.Is("NOWAIT"):
			p.at++
			p.expected("NOWAIT, LOG or SETERROR")
			return
		}
		p.at += 2
	}
}

// values parses expressions with commas between them.
func (p *parser) values() (out []string) {
	for !p.done() {
		out = append(out, p.expression("an expression"))
		if !p.tok(0).Sign(",") {
			break
		}
		p.at++
	}
	return out
}

// throw parses THROW [number, message, state]. The statement before it must end with a semicolon: without one, T-SQL
// takes THROW for a name there.
func (p *parser) throw(s *Statement, opens bool) {
	s.Kind = Throw
	word, before := p.tok(0), p.tok(-1)
	first := p.at == 0 || before.Sign(";") || before.Is("BEGIN") || before.Is("ELSE") || (before.Is("TRY") || before.Is("CATCH")) && p.tok(-2).Is("BEGIN")
	switch {
	case !first && !opens:
		p.fail(word.Pos, ddl.StateSyntax, "incorrect syntax near 'THROW'", "the statement before THROW must end with a semicolon")
		return
	case p.alone() && p.caught == 0:
		p.fail(word.Pos, ddl.StateSyntax, "a THROW without values stands outside of CATCH", "THROW number, 'message', state raises a new error")
		return
	case p.alone():
		p.at++
		return
	}
	p.at++
	begin := p.at
	args := p.values()
	switch {
	case p.bad != nil:
	case len(args) != 3:
		p.expected("a number, a message and a state")
	case p.at-begin != 5: // three values and two commas
		p.fail(word.Pos, ddl.StateSyntax, "THROW takes constants and variables, and no expressions", "SET a variable to the value, and THROW that")
	default:
		s.Number, s.Text, s.State = args[0], args[1], args[2]
	}
}
