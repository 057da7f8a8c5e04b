package batch

import "github.com/coteriedb/coterie/internal/admin/ddl"

// block reports whether BEGIN begins a block, and not a transaction of PostgreSQL or T-SQL.
func (p *parser) block() bool {
	t := p.tok(1)
	if t.Is("TRY") || t.Is("CATCH") {
		p.fail(p.tok(0).Pos, ddl.StateNotSupported, "TRY ... CATCH is not supported in the console", "a script ends at its first error")
		return false
	}
	return p.nested > 0 || p.begins(p.at+1, true) && !t.Is("BEGIN")
}

func (p *parser) beginEnd() []Statement {
	p.at++
	if p.nested++; p.nested > maxNested {
		p.fail(p.tok(-1).Pos, "54001", "too many statements are nested in one another", "")
		return nil
	}
	list := p.statements(true)
	p.nested--
	if p.bad == nil && !p.tok(0).Is("END") {
		p.expected("END")
	}
	p.at++
	return list
}

// condition parses IF … [ELSE …].
func (p *parser) condition(s *Statement) {
	s.Kind = If
	p.at++
	if p.nested++; p.nested > maxNested {
		p.fail(p.tok(-1).Pos, "54001", "too many statements are nested in one another", "")
		return
	}
	defer func() { p.nested-- }()
	s.Text = p.expression("a condition")
	if p.done() {
		p.expected("a statement")
		return
	}
	s.Then = p.statement()
	if p.tok(0).Sign(";") && p.tok(1).Is("ELSE") {
		p.at++
	}
	if p.bad == nil && p.tok(0).Is("ELSE") {
		if p.at++; p.done() {
			p.expected("a statement")
			return
		}
		s.Else = p.statement()
	}
}
