package batch

import "github.com/coteriedb/coterie/internal/admin/ddl"

// block reports whether BEGIN begins a block, and not a transaction of PostgreSQL or T-SQL.
func (p *parser) block() bool {
	t := p.tok(1)
	switch {
	case t.Is("CATCH"):
		p.fail(p.tok(0).Pos, ddl.StateSyntax, "incorrect syntax near 'CATCH': expected END TRY before it", "BEGIN TRY ... END TRY BEGIN CATCH ... END CATCH")
		return false
	case t.Is("TRAN") || t.Is("TRANSACTION") || t.Is("WORK") || t.Is("DISTRIBUTED"):
		return false
	}
	return p.nested > 0 || p.begins(p.at+1, true) && !t.Is("BEGIN")
}

// beginEnd parses what is between BEGIN and END.
func (p *parser) beginEnd() []Statement {
	p.at++
	list := p.inside()
	if p.bad == nil && len(list) == 0 {
		p.at--
		p.expected("a statement")
	}
	return list
}

// inside parses the statements of a block up to its END, which it skips.
func (p *parser) inside() []Statement {
	defer p.nest()()
	list := p.statements(true)
	if p.bad == nil && !p.tok(0).Is("END") {
		p.expected("END")
	}
	p.at++
	return list
}

// nest counts a level of statements in one another, and returns what ends it.
func (p *parser) nest() (leave func()) {
	if p.nested++; p.nested > maxNested {
		p.fail(p.tok(-1).Pos, "54001", "too many statements are nested in one another", "")
	}
	return func() { p.nested-- }
}

// one parses the statement, or the block, that belongs to IF, ELSE or WHILE.
func (p *parser) one() []Statement {
	if p.done() {
		p.expected("a statement")
		return nil
	}
	p.opens = true
	return p.statement()
}

// condition parses IF … [ELSE …].
func (p *parser) condition(s *Statement) {
	s.Kind = If
	p.at++
	defer p.nest()()
	s.Text = p.expression("a condition")
	s.Then = p.one()
	if p.tok(0).Sign(";") && p.tok(1).Is("ELSE") {
		p.at++
	}
	if p.bad == nil && p.tok(0).Is("ELSE") {
		p.at++
		s.Else = p.one()
	}
}

// while parses WHILE ….
func (p *parser) while(s *Statement) {
	s.Kind = While
	p.at++
	defer p.nest()()
	s.Text = p.expression("a condition")
	p.loops++
	s.Then = p.one()
	p.loops--
}

// leave parses BREAK and CONTINUE.
func (p *parser) leave(s *Statement) {
	word := p.tok(0)
	if s.Kind = Continue; word.Is("BREAK") {
		s.Kind = Break
	}
	if p.loops == 0 {
		p.fail(word.Pos, ddl.StateSyntax, "a "+word.Text+" stands outside of WHILE", "RETURN ends the batch")
		return
	}
	p.at++
}

// try parses BEGIN TRY … END TRY BEGIN CATCH … END CATCH. Nothing is between the two blocks.
func (p *parser) try(s *Statement) {
	s.Kind = Try
	p.at += 2
	if s.Then = p.inside(); p.bad == nil && len(s.Then) == 0 {
		p.at--
		p.expected("a statement")
	}
	for _, word := range []string{"TRY", "BEGIN", "CATCH"} {
		if !p.tok(0).Is(word) {
			p.expected(map[string]string{"TRY": "END TRY", "BEGIN": "BEGIN CATCH", "CATCH": "BEGIN CATCH"}[word])
			return
		}
		p.at++
	}
	p.caught++
	s.Else = p.inside()
	p.caught--
	if p.bad == nil && !p.tok(0).Is("CATCH") {
		p.expected("END CATCH")
		return
	}
	p.at++
}
