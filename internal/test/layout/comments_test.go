package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is the width of a line that is a comment. A tab counts as four columns.
const maxColumns = 120

// words are the phrases that CONTRIBUTING.md ("Words") rules out and that have no other meaning in a comment.
var words = []struct {
	phrase  *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bwho(m)?ever\b`), "name the subject: the client, the member, the caller"},
	{regexp.MustCompile(`(^|[.!?] )Who [^?]*(\.|$)`), "name the subject: the client, the member, the caller"},
	{regexp.MustCompile(`(^|[.!?] )What(ever)? [^?]*(\.|$)`), "name the subject: the bytes, the state, the setting"},
	{regexp.MustCompile(`^\w+ (says|tells) (that|whether|if|why|what|how|which|when|where)\b`), "a predicate reports whether; a function returns"},
}

// TestComments holds the rules of CONTRIBUTING.md ("Words") that a program can check.
func TestComments(t *testing.T) {
	for _, top := range []string{"cmd", "internal", "scripts"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.Contains(path, "/testdata/") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return checkComments(t, name, text)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func checkComments(t *testing.T, name string, text []byte) error {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, group := range f.Comments {
		line := set.Position(group.Pos()).Line
		said := strings.Join(strings.Fields(group.Text()), " ")
		for _, w := range words {
			if found := w.phrase.FindString(said); found != "" {
				t.Errorf("%s:%d: %q in a comment; %s", name, line, found, w.instead)
			}
		}
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if width := commentWidth(line); width > maxColumns {
			t.Errorf("%s:%d: a comment line of %d columns; wrap it at %d", name, n, width, maxColumns)
		}
	}
	if strings.HasSuffix(name, "_test.go") {
		return nil // the comment of a test may state what it proves
	}
	for _, d := range f.Decls {
		if doc, names := documented(d); doc != nil && !beginsWith(doc.Text(), names) {
			t.Errorf("%s:%d: the comment of %s begins with its name", name, set.Position(doc.Pos()).Line, names[0])
		}
	}
	return nil
}

// commentWidth returns the columns of a line that is nothing but a comment, and 0 for any other. An address cannot be
// wrapped, and a directive must not be.
func commentWidth(line string) int {
	line = strings.TrimRight(line, "\r\n")
	body, comment := strings.CutPrefix(strings.TrimLeft(line, "\t "), "//")
	if !comment || strings.Contains(body, "://") || body != "" && body[0] != ' ' && body[0] != '\t' {
		return 0
	}
	return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
}

// documented returns the comment of a function, a type, or an exported constant or variable, with the names that it may
// begin with. A comment above several constants or variables describes the block.
func documented(d ast.Decl) (doc *ast.CommentGroup, names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Doc, []string{d.Name.Name}
	case *ast.GenDecl:
		if len(d.Specs) != 1 {
			return nil, nil
		}
		switch s := d.Specs[0].(type) {
		case *ast.TypeSpec:
			return d.Doc, []string{s.Name.Name}
		case *ast.ValueSpec:
			for _, n := range s.Names {
				names = append(names, n.Name)
			}
			if ast.IsExported(names[0]) {
				return d.Doc, names
			}
		}
	}
	return nil, nil
}

// beginsWith reports whether the first word of a comment is one of the names. A comment of directives has no words.
func beginsWith(text string, names []string) bool {
	if text == "" {
		return true
	}
	for _, n := range names {
		if rest, ok := strings.CutPrefix(text, n); ok && (rest == "" || !isNameByte(rest[0])) {
			return true
		}
	}
	return false
}

func isNameByte(b byte) bool {
	return b == '_' || '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// TestCommentRules holds that each rule finds what it is for, and nothing else.
func TestCommentRules(t *testing.T) {
	phrase := func(said string) bool {
		for _, w := range words {
			if w.phrase.MatchString(said) {
				return true
			}
		}
		return false
	}
	for said, wrong := range map[string]bool{
		"closed says whether the gate is shut.":                       true,
		"closed reports whether the gate is shut.":                    false,
		"Read reads the file. What is not there is zero.":             true,
		"Read reads the file. Who writes it must wait.":               true,
		"It serves whoever connects.":                                 true,
		"It records who connects, and what each client may do.":       false,
		"The answers to two questions. Who leads? What may it serve?": false,
	} {
		if phrase(said) != wrong {
			t.Errorf("%q: found %t", said, !wrong)
		}
	}
	for line, width := range map[string]int{
		"\t// " + strings.Repeat("ä", 113):                   120,
		"\t\t// " + strings.Repeat("a", 120):                 131,
		"//go:generate " + strings.Repeat("a", 120):          0,
		"// https://example.org/" + strings.Repeat("a", 120): 0,
		"x := 1 // " + strings.Repeat("a", 120):              0,
	} {
		if got := commentWidth(line); got != width {
			t.Errorf("%.20q: %d columns, want %d", line, got, width)
		}
	}
}
