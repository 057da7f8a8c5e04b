package ddl

import "strings"

// Part is one statement of a file, as text.
type Part struct {
	Text string
	Line int // of the file, from 1, on which Text begins

	Offset int // in characters, of the beginning of Text
}

// Split cuts a text into statements at semicolons and at lines that hold GO alone. It looks only at quotes and comments, so that it
// cuts SQL of any kind. An unclosed quote or comment is an *Error.
func Split(text string) ([]Part, error) {
	tokens, bad := lex(text)
	if bad != nil {
		return nil, bad
	}
	var out []Part
	from, line, offset := 0, 0, 0 // line 0: nothing begun
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

// alone reports whether no other token is on the line of the one at i.
func alone(tokens []token, i int) bool {
	line := tokens[i].pos.Line
	return (i == 0 || tokens[i-1].pos.Line < line) && (tokens[i+1].kind == tokEnd || tokens[i+1].pos.Line > line)
}

func Brackets(s string) string { return "[" + strings.ReplaceAll(s, "]", "]]") + "]" }

func Literal(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }
