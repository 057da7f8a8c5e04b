package batch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// Limits of a script.
const (
	maxTimes  = 100  // GO n
	maxParts  = 5000 // of a script, each as often as it is run
	maxNested = 32   // IF and BEGIN in one another
	maxValues = 20   // of RAISERROR
)

// Kind is the kind of a statement.
type Kind int

// The kinds. Plain is SQL or a statement of the language.
const (
	Plain Kind = iota
	Declare
	Assign
	If
	Print
	Raise
	Return
	While
	Break
	Continue
	Try
	Throw
)

// Statement is one statement of a batch.
type Statement struct {
	Kind      Kind
	Text      string // Plain: all of it; If and While: the condition; Print, Raise and Throw: the message; Assign: what follows the expressions
	Line      int    // of the text, from 1
	Offset    int    // characters of the text before the statement
	Variables []Variable
	Number    string      // of Throw: an expression; "": it passes on the error that was caught
	Severity  string      // of Raise: an expression
	State     string      // of Raise and Throw: an expression
	Logged    bool        // of Raise: WITH LOG
	Sets      bool        // of Raise: WITH SETERROR
	Values    []string    // of Raise: expressions for the places in the message
	Prefix    string      // of Assign by SELECT: TOP or DISTINCT
	Then      []Statement // of If and Try; of While: the body
	Else      []Statement // of If; of Try: what CATCH has
}

// Variable is a variable that is declared or assigned to. Its name is in lower case and without @.
type Variable struct {
	Name, Type string // Type is empty in an assignment
	Value      string // expression; "": none
}

// Split divides a script into parts: statements, and whole batches where one has variables or control flow. A batch is
// repeated as often as GO n says. Quotes and comments that do not end are an *ddl.Error.
func Split(text string) ([]ddl.Part, error) {
	tokens, err := ddl.Tokens(text)
	if err != nil {
		return nil, err
	}
	var out []ddl.Part
	for from := 0; from < len(tokens); {
		to, next, times := goLine(tokens, from)
		if times < 1 {
			count := tokens[next-1]
			return nil, &ddl.Error{Pos: count.Pos, State: "22023", Message: fmt.Sprintf("GO %.20s: a batch is run 1 to %d times", count.Text, maxTimes)}
		}
		parts, err := partsOf(text, tokens[from:to], beginning(text, tokens, from))
		if err != nil {
			return nil, err
		}
		for range times {
			if out = append(out, parts...); len(out) > maxParts {
				return nil, &ddl.Error{State: "54000", Message: "the script has more than " + strconv.Itoa(maxParts) + " statements"}
			}
		}
		from = next
	}
	return out, nil
}

// goLine returns the end of the batch that begins at from, the beginning of the next one, and how often it is run: 0
// if that is no number which is taken.
func goLine(t []ddl.Token, from int) (to, next, times int) {
	for i := from; i < len(t); i++ {
		if !t[i].Is("GO") || i > 0 && t[i-1].Pos.Line == t[i].Pos.Line {
			continue
		}
		end := i + 1
		times = 1
		if end < len(t) && t[end].Pos.Line == t[i].Pos.Line {
			n, err := strconv.Atoi(t[end].Text)
			number := strings.Trim(t[end].Text, "0123456789.") == "" && t[end].Text != ""
			if n > maxTimes || err != nil {
				n = 0 // which is refused
			}
			if !number || end+1 < len(t) && t[end+1].Pos.Line == t[i].Pos.Line && !t[end+1].Sign(";") {
				continue
			}
			times = n
			end++
		}
		return i, end, times
	}
	return len(t), len(t), 1
}

// beginning returns where the batch begins whose first token is at i: at the line below GO, as ERROR_LINE counts from
// there.
func beginning(text string, t []ddl.Token, i int) ddl.Token {
	first := t[i]
	if i == 0 {
		return ddl.Token{Pos: ddl.Pos{Line: 1}}
	}
	last := t[i-1]
	gap := text[last.To:first.From]
	end := strings.IndexByte(gap, '\n')
	if end < 0 || strings.Contains(gap, "/*") { // a comment may go on there
		return first
	}
	before := last.Pos.Offset + utf8.RuneCountInString(text[last.From:last.To+end+1])
	return ddl.Token{From: last.To + end + 1, Pos: ddl.Pos{Line: last.Pos.Line + 1, Offset: before}}
}

// partsOf returns the parts of a batch.
func partsOf(text string, tokens []ddl.Token, begin ddl.Token) ([]ddl.Part, error) {
	list, err := parse(text, tokens)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	if slices.ContainsFunc(list, func(s Statement) bool { return s.Kind != Plain }) || slices.ContainsFunc(tokens, looksBack) {
		return []ddl.Part{{Text: text[begin.From:ddl.WithOption(text, tokens[len(tokens)-1].To)], Line: begin.Pos.Line, Offset: begin.Pos.Offset}}, nil
	}
	var out []ddl.Part
	for _, s := range list {
		out = append(out, ddl.Part{Text: s.Text, Line: s.Line, Offset: s.Offset})
	}
	return out, nil
}

// looksBack reports whether a token is about the statement before it, or the transaction: then the batch is run in one
// piece, as the parts of a script may be run in sessions of their own.
func looksBack(t ddl.Token) bool {
	return t.Is("@@ROWCOUNT") || t.Is("@@ERROR") || t.Is("@@TRANCOUNT") || t.Is("XACT_STATE")
}

// Parse returns the statements of one batch.
func Parse(text string) ([]Statement, error) {
	tokens, err := ddl.Tokens(text)
	if err != nil {
		return nil, err
	}
	return parse(text, tokens)
}

// Compound reports whether a text has variables or control flow.
func Compound(text string) bool {
	list, err := Parse(text)
	if err != nil {
		return true // and Parse says what is wrong
	}
	for _, s := range list {
		if s.Kind != Plain {
			return true
		}
	}
	return len(list) > 1
}

func parse(text string, tokens []ddl.Token) ([]Statement, error) {
	p := &parser{text: text, t: tokens}
	list := p.statements(false)
	if p.bad != nil {
		return nil, p.bad
	}
	return list, nil
}

// parser reads tokens. After an error it reads nothing more.
type parser struct {
	text   string
	t      []ddl.Token
	at     int
	nested int
	loops  int  // WHILE around the statement
	caught int  // CATCH around the statement
	opens  bool // the statement is the first behind the condition of IF or WHILE
	bad    *ddl.Error
}

func (p *parser) done() bool { return p.bad != nil || p.at >= len(p.t) }

// tok returns the token n ahead; behind the end an empty one.
func (p *parser) tok(n int) ddl.Token {
	if p.at+n < 0 || p.at+n >= len(p.t) {
		return ddl.Token{}
	}
	return p.t[p.at+n]
}

func (p *parser) fail(pos ddl.Pos, state, message, hint string) {
	if p.bad == nil {
		p.bad = &ddl.Error{Pos: pos, State: state, Message: message, Hint: hint}
	}
	p.at = len(p.t)
}

func (p *parser) expected(what string) {
	shown := "the end"
	pos := ddl.Pos{Line: 1, Column: 1}
	if p.at < len(p.t) {
		shown, pos = "'"+p.t[p.at].Text+"'", p.t[p.at].Pos
	} else if len(p.t) > 0 {
		pos = p.t[len(p.t)-1].Pos
	}
	p.fail(pos, ddl.StateSyntax, "incorrect syntax near "+shown+": expected "+what, "")
}

// between returns the text of the tokens from i to the one before j.
func (p *parser) between(i, j int) string {
	if i >= j || j > len(p.t) {
		return ""
	}
	return p.text[p.t[i].From:p.t[j-1].To]
}

// statements parses statements up to the end or, in a block, up to END.
func (p *parser) statements(block bool) (out []Statement) {
	for !p.done() {
		switch {
		case p.tok(0).Sign(";"):
			p.at++
		case block && p.tok(0).Is("END"):
			return out
		default:
			out = append(out, p.statement()...)
		}
	}
	return out
}

// refused are statements of T-SQL that are refused by their name, with what to do instead.
var refused = map[string]string{
	"WAITFOR": "wait in the shell", "GOTO": "use IF and ELSE", "OPEN": "", "DEALLOCATE": "",
}

// over refuses a comma or a bracket behind a statement of the control flow.
func (p *parser) over() {
	if p.bad == nil && (p.tok(0).Sign(",") || p.tok(0).Sign(")")) {
		p.expected("the end of the statement")
	}
}

// alone reports whether the word at p.at is all of its statement.
func (p *parser) alone() bool {
	next := p.tok(1)
	return p.at+1 >= len(p.t) || next.Sign(";") || next.Is("END") || next.Is("ELSE") || p.begins(p.at+1, true)
}

// statement parses one statement; a block is several.
func (p *parser) statement() []Statement {
	first, opens := p.tok(0), p.opens
	p.opens = false
	s := Statement{Line: first.Pos.Line, Offset: first.Pos.Offset}
	if hint, ok := refused[strings.ToUpper(first.Text)]; ok && hint != "" && first.Word() {
		p.fail(first.Pos, ddl.StateNotSupported, strings.ToUpper(first.Text)+" is not supported in the console", hint)
		return nil
	}
	switch {
	case first.Is("GO"): // one on a line of its own has ended its batch
		p.fail(first.Pos, ddl.StateSyntax, "incorrect syntax near 'GO': it is not alone on its line", "GO ends a batch on a line of its own, with or without a number; a semicolon ends a statement")
		return nil
	case first.Is("DECLARE") && strings.HasPrefix(p.tok(1).Text, "@"):
		p.declare(&s)
	case first.Is("DECLARE") && p.at+1 < len(p.t):
		p.fail(first.Pos, ddl.StateNotSupported, "DECLARE of a cursor is not supported in the console", "a SELECT returns its rows; the names of variables begin with @")
		return nil
	case first.Is("SET") && strings.HasPrefix(p.tok(1).Text, "@") && p.tok(1).Word():
		p.set(&s)
	case first.Is("IF"):
		p.condition(&s)
	case first.Is("WHILE"):
		p.while(&s)
	case first.Is("BREAK") && p.alone(), first.Is("CONTINUE") && p.alone():
		p.leave(&s)
	case first.Is("BEGIN") && p.tok(1).Is("TRY"):
		p.try(&s)
	case first.Is("BEGIN") && p.block():
		return p.beginEnd()
	case first.Is("PRINT"):
		s.Kind = Print
		p.at++
		s.Text = p.expression("an expression")
		p.over()
	case first.Is("RAISERROR"):
		p.raise(&s)
	case first.Is("THROW"):
		p.throw(&s, opens)
	case first.Is("RETURN") && p.alone():
		s.Kind = Return
		p.at++
	case first.Is("SELECT") && p.assigns():
		p.selectInto(&s)
	default:
		from := p.at
		p.at = p.end(first)
		if s.Text = p.between(from, p.at); s.Text != "" { // an option of the shell behind it is a remark, which is refused
			last := p.t[p.at-1].To
			s.Text += p.text[last:ddl.WithOption(p.text, last)]
		}
	}
	return []Statement{s}
}

func (p *parser) declare(s *Statement) {
	s.Kind = Declare
	p.at++
	for !p.done() {
		name := p.tok(0)
		if !name.Word() || !strings.HasPrefix(name.Text, "@") || strings.HasPrefix(name.Text, "@@") {
			p.expected("a variable's name, as @name")
			return
		}
		p.at++
		if p.tok(0).Is("AS") {
			p.at++
		}
		if t := p.tok(0); t.Is("TABLE") || t.Is("CURSOR") {
			p.fail(t.Pos, ddl.StateNotSupported, "DECLARE ... "+strings.ToUpper(t.Text)+" is not supported in the console", "WITH name AS (...) holds a result within a query")
			return
		}
		from := p.at
		for depth := 0; !p.done() && (depth > 0 || !p.tok(0).Sign(",") && !p.tok(0).Sign("=") && !p.tok(0).Sign(";") && !p.begins(p.at, true)); p.at++ {
			depth += bracket(p.tok(0))
		}
		v := Variable{Name: strings.ToLower(name.Text[1:]), Type: p.between(from, p.at)}
		if v.Type == "" {
			p.expected("a type")
			return
		}
		if p.tok(0).Sign("=") {
			p.at++
			v.Value = p.expression("an expression")
		}
		s.Variables = append(s.Variables, v)
		if !p.tok(0).Sign(",") {
			return
		}
		p.at++
	}
}

func (p *parser) set(s *Statement) {
	s.Kind = Assign
	v := Variable{Name: strings.ToLower(p.tok(1).Text[1:])}
	name := p.tok(1).Text
	p.at += 2
	op := ""
	if t := p.tok(0); t.Sign(t.Text) && strings.Contains("+-*/%&|", t.Text) && p.tok(1).Sign("=") {
		op = t.Text
		p.at++
	}
	if !p.tok(0).Sign("=") {
		p.expected("'='")
		return
	}
	p.at++
	v.Value = p.expression("an expression")
	p.over()
	if op != "" {
		v.Value = name + " " + op + " (" + v.Value + ")"
	}
	s.Variables = []Variable{v}
}

// assigns reports whether a SELECT assigns to variables.
func (p *parser) assigns() bool {
	i := p.prefix()
	t := p.tok(i)
	return t.Word() && strings.HasPrefix(t.Text, "@") && !strings.HasPrefix(t.Text, "@@") && (p.tok(i+1).Sign("=") || p.tok(i+2).Sign("=") && !p.tok(i+1).Sign("<") && !p.tok(i+1).Sign(">") && !p.tok(i+1).Sign("!") && p.tok(i+1).Sign("+"))
}

// prefix returns the number of tokens of SELECT with DISTINCT and TOP.
func (p *parser) prefix() int {
	i := 1
	if p.tok(i).Is("DISTINCT") {
		i++
	}
	if p.tok(i).Is("TOP") {
		i++
		if !p.tok(i).Sign("(") {
			return i + 1
		}
		for depth := 0; p.at+i < len(p.t); i++ {
			if depth += bracket(p.tok(i)); depth == 0 {
				return i + 1
			}
		}
	}
	return i
}

// selectInto parses SELECT @a = x, @b = y FROM ….
func (p *parser) selectInto(s *Statement) {
	s.Kind = Assign
	i := p.prefix()
	s.Prefix = p.between(p.at+1, p.at+i)
	p.at += i
	var reads [][]ddl.Token // of each value
	for !p.done() {
		name := p.tok(0)
		if !name.Word() || !strings.HasPrefix(name.Text, "@") {
			p.fail(name.Pos, ddl.StateNotSupported, "a SELECT that assigns to variables and returns columns is not supported in the console", "write two of them")
			return
		}
		p.at++
		op := ""
		if p.tok(0).Sign("+") {
			op = "+"
			p.at++
		}
		if !p.tok(0).Sign("=") {
			p.fail(name.Pos, ddl.StateNotSupported, "a SELECT that assigns to variables and returns columns is not supported in the console", "write two of them")
			return
		}
		if op != "" {
			p.fail(name.Pos, ddl.StateNotSupported, "SELECT @variable += ... is not supported in the console", "STRING_AGG joins the texts of several rows")
			return
		}
		p.at++
		begin := p.at
		v := Variable{Name: strings.ToLower(name.Text[1:]), Value: p.item()}
		reads = append(reads, p.t[begin:min(p.at, len(p.t))])
		s.Variables = append(s.Variables, v)
		if !p.tok(0).Sign(",") {
			break
		}
		p.at++
	}
	from := p.at
	rows := p.at < len(p.t) && p.tok(0).Is("FROM")
	p.inTurn(s, reads, rows)
	if p.at < len(p.t) && (rows || p.tok(0).Is("WHERE")) {
		p.at = p.end(ddl.Token{Text: "SELECT"})
		s.Text = p.between(from, p.at)
	}
}

// inTurn refuses a SELECT whose values read variables that it has assigned: in T-SQL one value sees those before it,
// and a row those of the row before. Here all of them see what the variables were.
func (p *parser) inTurn(s *Statement, reads [][]ddl.Token, rows bool) {
	for i, tokens := range reads {
		for _, t := range tokens {
			k := slices.IndexFunc(s.Variables, func(v Variable) bool { return t.Word() && strings.EqualFold(t.Text, "@"+v.Name) })
			if k >= 0 && (rows || k < i) {
				p.fail(t.Pos, ddl.StateNotSupported, "a SELECT that reads "+t.Text+", which it assigns, is not supported in the console",
					"STRING_AGG joins the texts of several rows, SUM adds their numbers; else write two statements")
				return
			}
		}
	}
}
