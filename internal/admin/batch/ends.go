package batch

import (
	"strings"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// beginners are the words with which a statement begins. Within the line of a query they may be names of PostgreSQL,
// which follows tells.
var beginners = words("SELECT DECLARE SET PRINT EXEC EXECUTE IF BEGIN WHILE BREAK CONTINUE RETURN RAISERROR THROW USE WAITFOR GOTO ALTER CREATE DROP INSERT DELETE DBCC BACKUP RESTORE COMMIT ROLLBACK")

// begins reports whether a statement begins at the token i.
func (p *parser) begins(i int, anywhere bool) bool {
	if i >= len(p.t) {
		return false
	}
	t := p.t[i]
	if !t.Word() || !beginners[strings.ToUpper(t.Text)] {
		return false
	}
	var before, next ddl.Token
	if i > 0 {
		before = p.t[i-1]
	}
	if i+1 < len(p.t) {
		next = p.t[i+1]
	}
	switch {
	case before.Sign(".") || before.Is("AS") || next.Sign(".") || next.Sign("(") && !t.Is("IF") && !t.Is("SELECT") && !t.Is("PRINT") && !t.Is("RAISERROR") && !t.Is("EXEC"):
		return false
	case t.Is("SELECT"):
		return true
	case t.Is("CREATE") && next.Is("ANY"), t.Is("SET") && !strings.HasPrefix(next.Text, "@") && before.Pos.Line == t.Pos.Line && !anywhere:
		return false
	}
	return anywhere || before.Pos.Line != t.Pos.Line
}

// within are statements that may end without a semicolon.
var within = map[string]bool{
	"SELECT": true, "WITH": true, "VALUES": true, "(": true, "USE": true, "SET": true, "EXEC": true, "EXECUTE": true, "ALTER": true, "CREATE": true, "DROP": true,
	"GRANT": true, "DENY": true, "DBCC": true, "BACKUP": true, "BEGIN": true, "COMMIT": true, "ROLLBACK": true, "SAVE": true,
}

// short are statements of a few words, behind which another one may begin on the same line.
var short = map[string]bool{"USE": true, "BEGIN": true, "COMMIT": true, "ROLLBACK": true, "SAVE": true}

// end returns the end of the plain statement that begins at p.at.
func (p *parser) end(first ddl.Token) int {
	word := strings.ToUpper(first.Text)
	query := word == "SELECT" || word == "WITH" || word == "VALUES" || word == "("
	main := word != "WITH" // whether the SELECT of a query has been seen
	depth, cases := 0, 0
	i := p.at
	for ; i < len(p.t); i++ {
		t := p.t[i]
		if t.Sign(";") && (depth == 0 || !within[word]) {
			return i
		}
		if depth == 0 && cases == 0 && i > p.at && within[word] {
			if query && t.Is("SELECT") && (!main || joins(p.t[i-1])) {
				main = true
			} else if p.ended(i, word, query) || query && p.follows(i) {
				return i
			}
			if query && p.ambiguous(i) {
				return len(p.t)
			}
		}
		depth += bracket(t)
		cases += caseOf(t, cases)
	}
	return i
}

// ended reports whether a statement that begins with the word ends before the token i, which is outside of brackets.
func (p *parser) ended(i int, word string, query bool) bool {
	t := p.t[i]
	switch {
	case p.nested > 0 && (t.Is("ELSE") || t.Is("END")):
		return true
	case word == "ALTER" && t.Is("SET") && (i+1 >= len(p.t) || !strings.HasPrefix(p.t[i+1].Text, "@")): // else it is one of a variable
		return false
	}
	return p.begins(i, query && (t.Is("SELECT") || p.nested > 0) || short[word] || word == "SET" && p.switches(i))
}

// open are words behind which an operand comes, so that a statement does not begin there.
var open = words(`SELECT DISTINCT ALL TOP FROM WHERE AND OR NOT IN LIKE ILIKE BETWEEN BY ON HAVING CASE WHEN THEN ELSE AS JOIN APPLY UNION EXCEPT INTERSECT USING LIMIT OFFSET WITH
	GROUP ORDER COLLATE ESCAPE OVER SET INTO VALUES ANY SOME EXISTS LATERAL`)

// behindName are words that come behind a name of a column or of a table.
var behindName = words(`FROM WHERE GROUP HAVING ORDER LIMIT OFFSET FETCH UNION EXCEPT INTERSECT WINDOW FOR INTO OPTION JOIN INNER LEFT RIGHT FULL CROSS OUTER NATURAL ON USING AS
	TABLESAMPLE PIVOT UNPIVOT WITH AND OR END ELSE WHEN THEN ASC DESC NULLS COLLATE IS IN LIKE BETWEEN NOT`)

func words(text string) map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.Fields(text) {
		out[w] = true
	}
	return out
}

// operand reports whether the token ends an operand or a table of a query.
func operand(t ddl.Token) bool {
	if t.Word() {
		return !open[strings.ToUpper(t.Text)]
	}
	return !t.Sign(t.Text) || !strings.Contains("+-*/%=<>!~|&^,(.:", t.Text)
}

// follows reports whether a statement begins at the token i of a query, on its line. The word of a statement is the
// name of a column or of a table there, unless something comes behind it that is never behind a name.
func (p *parser) follows(i int) bool {
	if i == 0 || i+1 >= len(p.t) || !p.begins(i, true) || !operand(p.t[i-1]) {
		return false
	}
	next := p.t[i+1]
	switch {
	case next.Word():
		return !behindName[strings.ToUpper(next.Text)]
	case next.Sign(",") || next.Sign(")") || next.Sign(";") || next.Sign("="):
		return false
	}
	return true
}

// ambiguous refuses a word behind a query that ends a batch or a transaction in T-SQL, and is the name of a column in
// PostgreSQL.
func (p *parser) ambiguous(i int) bool {
	t := p.t[i]
	last := i+1 >= len(p.t) || p.t[i+1].Sign(";")
	if !last || !t.Is("RETURN") && !t.Is("COMMIT") && !t.Is("ROLLBACK") || !operand(p.t[i-1]) {
		return false
	}
	word := strings.ToUpper(t.Text)
	p.fail(t.Pos, ddl.StateNotSupported, word+" behind a query on its line is not supported in the console, as it is a statement in T-SQL and a name in PostgreSQL",
		"put a semicolon before the statement, or AS before the name")
	return true
}

// switches reports whether the SET at p.at, up to the token i, is one of T-SQL such as SET NOCOUNT ON: it has a name
// and a value, and neither = nor TO between them.
func (p *parser) switches(i int) bool {
	for _, t := range p.t[p.at:i] {
		if t.Sign("=") || t.Is("TO") {
			return false
		}
	}
	return i-p.at > 2
}

// joins reports whether a SELECT behind the token belongs to the same query.
func joins(t ddl.Token) bool {
	return t.Is("UNION") || t.Is("ALL") || t.Is("DISTINCT") || t.Is("EXCEPT") || t.Is("INTERSECT")
}

// item parses an expression of a SELECT list, which also ends at FROM and WHERE.
func (p *parser) item() string {
	from, depth, cases := p.at, 0, 0
	for ; p.at < len(p.t); p.at++ {
		t := p.tok(0)
		if depth == 0 && cases == 0 && (t.Sign(",") || t.Is("FROM") || t.Is("WHERE") || p.ends(p.at, true)) {
			break
		}
		depth += bracket(t)
		cases += caseOf(t, cases)
	}
	if p.at == from {
		p.expected("an expression")
	}
	return p.between(from, p.at)
}

// expression parses an expression: it ends at a comma, a closing bracket, or where a statement ends.
func (p *parser) expression(what string) string {
	from, depth, cases := p.at, 0, 0
	for ; p.at < len(p.t); p.at++ {
		t := p.tok(0)
		if depth == 0 && cases == 0 && p.at > from && (t.Sign(",") || t.Sign(")") || p.ends(p.at, true)) {
			break
		}
		depth += bracket(t)
		cases += caseOf(t, cases)
	}
	if p.bad == nil && p.at == from {
		p.expected(what)
	}
	return p.between(from, p.at)
}

func bracket(t ddl.Token) int {
	switch {
	case t.Sign("("):
		return 1
	case t.Sign(")"):
		return -1
	}
	return 0
}

// caseOf returns by how much a token changes the number of open CASE.
func caseOf(t ddl.Token, open int) int {
	switch {
	case t.Is("CASE"):
		return 1
	case t.Is("END") && open > 0:
		return -1
	}
	return 0
}

// ends reports whether a statement ends before the token i: at a semicolon, ELSE or END of a block, or where another
// one begins.
func (p *parser) ends(i int, anywhere bool) bool {
	t := p.t[i]
	return t.Sign(";") || t.Is("ELSE") || t.Is("END") && p.nested > 0 || p.begins(i, anywhere)
}
