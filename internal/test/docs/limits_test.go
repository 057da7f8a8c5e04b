package docs

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/node/metrics"
)

// limit is a value in docs/internals/limits.md: a package, a constant, variable or default in it, and its expression.
var limit = regexp.MustCompile("`([a-z]+)\\.([A-Za-z.]+)` = `([^`]+)`")

// TestLimitsAreThoseOfTheCode compares each value in the page about limits with the code.
func TestLimitsAreThoseOfTheCode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "internals", "limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	values, byPackage := limit.FindAllStringSubmatch(string(text), -1), map[string]map[string]string{}
	for _, m := range values {
		pkg, name, want := m[1], m[2], m[3]
		if byPackage[pkg] == nil {
			byPackage[pkg] = valuesOf(t, pkg)
		}
		if got, ok := byPackage[pkg][name]; !ok || got != want {
			t.Errorf("%s.%s is %q in the code, %q on the page", pkg, name, got, want)
		}
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| message") {
			rows++
		}
	}
	if rows != len(values) || rows < 30 {
		t.Errorf("%d rows have %d values", rows, len(values))
	}
}

// valuesOf returns the expressions of a package: of its constants and variables by their names, and of its defaults by
// the names of their fields without the variable. A default is set by setDefault, or by an assignment in an if.
func valuesOf(t *testing.T, pkg string) map[string]string {
	t.Helper()
	found, set := map[string]string{}, token.NewFileSet()
	show := func(e ast.Expr) string {
		var b strings.Builder
		if err := printer.Fprint(&b, set, e); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	field := func(e ast.Expr) string {
		_, name, _ := strings.Cut(show(e), ".")
		return name
	}
	for path, text := range sources(t) {
		if filepath.Base(filepath.Dir(path)) != pkg || strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, path, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, v := range n.Values {
					found[n.Names[i].Name] = show(v)
				}
			case *ast.CallExpr:
				if of, ok := n.Fun.(*ast.Ident); ok && of.Name == "setDefault" && len(n.Args) == 2 {
					found[field(n.Args[0])] = show(n.Args[1])
				}
			case *ast.IfStmt:
				for _, s := range n.Body.List {
					if a, ok := s.(*ast.AssignStmt); ok && a.Tok == token.ASSIGN && strings.HasPrefix(show(a.Lhs[0]), "c.") {
						found[field(a.Lhs[0])] = show(a.Rhs[0])
					}
				}
			}
			return true
		})
	}
	return found
}

// TestMetricsOfTheDocumentationExist holds that a node has every counter and gauge that a page names by its whole
// name.
func TestMetricsOfTheDocumentationExist(t *testing.T) {
	name := regexp.MustCompile(`\bcoterie_[a-z_]+_(?:total|seconds|bytes|second|open|waiting|sound|pct|ratio|epoch|quorum|state|role|ready|survived|blocked)\b`)
	known := map[string]bool{}
	for _, s := range metrics.Definitions() {
		for _, d := range s.Metrics {
			known[d.Name] = true
		}
	}
	named := 0
	for page, text := range pages(t) {
		for _, m := range name.FindAllString(text, -1) {
			if named++; !known[m] {
				t.Errorf("%s: there is no %s", page, m)
			}
		}
	}
	if named < 20 {
		t.Errorf("only %d names found: the pattern that finds them is wrong", named)
	}
}
