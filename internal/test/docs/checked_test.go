package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// checked are the packages whose findings coterie check prints.
var checked = []string{"internal/check", "internal/check/posture", "internal/provision/preflight", "internal/backup"}

// TestEveryFindingOfCheckHasAnEntry holds that docs/troubleshooting.md has each finding of coterie check that is no
// good news, by pieceOf.
func TestEveryFindingOfCheckHasAnEntry(t *testing.T) {
	page, found := strings.ReplaceAll(pages(t)[troubleshooting], "`", ""), 0
	for _, dir := range checked {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				for _, text := range findingsOf(d) {
					piece := pieceOf(text)
					if len(piece) < 8 {
						continue
					}
					if found++; !strings.Contains(page, piece) {
						t.Errorf("%s says %q, and %s has no entry with %q", dir, text, troubleshooting, piece)
					}
				}
			}
		}
	}
	if found < 70 {
		t.Errorf("only %d findings found: they are written in another way now", found)
	}
}

// findingsOf returns the texts of the findings that a declaration makes. One that is good news when it is made counts
// where the same function may make it worse.
func findingsOf(d ast.Decl) (found []string) {
	worse := assigns(d, "Level")
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			good, what := false, positional(n)
			for _, e := range n.Elts {
				pair, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				switch name, _ := pair.Key.(*ast.Ident); {
				case name == nil:
				case name.Name == "Level":
					good = isGood(pair.Value)
				case name.Name == "What", name.Name == "what":
					what = literals(pair.Value)
				}
			}
			if !good || worse {
				found = append(found, what...)
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if s, ok := to.(*ast.SelectorExpr); ok && s.Sel.Name == "What" && n.Tok == token.ASSIGN {
					found = append(found, literals(n.Rhs[i])...)
				}
			}
		case *ast.CallExpr: // find(level, why, run, what, ...)
			if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "find" && len(n.Args) > 3 && !isGood(n.Args[0]) {
				found = append(found, literals(n.Args[3])...)
			}
		}
		return true
	})
	return found
}

// positional returns the texts of a finding that is written without the names of its fields: the level comes first.
func positional(n *ast.CompositeLit) []string {
	if len(n.Elts) > 1 {
		if level, ok := n.Elts[0].(*ast.Ident); ok && (level.Name == "Warning" || level.Name == "Failed" || level.Name == "Problem") {
			return literals(n.Elts[1])
		}
	}
	return nil
}

// isGood reports whether an expression is the level of good news.
func isGood(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "OK"
	case *ast.SelectorExpr:
		return e.Sel.Name == "OK"
	}
	return false
}

// assigns reports whether a declaration assigns to a field of that name.
func assigns(d ast.Decl, field string) (does bool) {
	ast.Inspect(d, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			for _, to := range a.Lhs {
				s, ok := to.(*ast.SelectorExpr)
				does = does || ok && s.Sel.Name == field
			}
		}
		return true
	})
	return does
}
