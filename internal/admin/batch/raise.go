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
	var args []string
	for !p.done() {
		args = append(args, p.expression("an expression"))
		if p.tok(0).Sign(")") {
			break
		}
		if !p.tok(0).Sign(",") {
			p.expected("')'")
			return
		}
		p.at++
	}
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
	s.Text, s.Severity, s.Values = args[0], args[1], args[3:]
	for more := p.tok(0).Is("WITH"); more; more = p.tok(0).Sign(",") {
		if o := p.tok(1); !o.Is("NOWAIT") && !o.Is("LOG") && !o.Is("SETERROR") {
			p.at++
			p.expected("NOWAIT, LOG or SETERROR")
			return
		}
		p.at += 2
	}
}
