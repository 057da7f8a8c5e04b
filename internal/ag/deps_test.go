package ag

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// impure are the packages the core must not know, with the reason.
var impure = map[string]string{
	"os":           "files and processes are an adapter's",
	"os/exec":      "files and processes are an adapter's",
	"net":          "the network is an adapter's",
	"net/http":     "the network is an adapter's",
	"log":          "a plan carries its reason; whoever performs it logs",
	"log/slog":     "a plan carries its reason; whoever performs it logs",
	"context":      "a decision does not wait, hence cannot be cancelled",
	"sync":         "a view is a value: nothing to lock",
	"math/rand":    "the same view must give the same plan",
	"math/rand/v2": "the same view must give the same plan",
	"crypto/rand":  "the same view must give the same plan",
}

// core are the packages of the core, from the folder of package ag.
var core = []string{".", "planguard", "recovery", "silence"}

// self is the path of package ag, which its satellites import.
const self = "github.com/coteriedb/coterie/internal/ag"

func TestCoreIsPure(t *testing.T) {
	for _, dir := range core {
		checkPure(t, dir)
	}
}

func checkPure(t *testing.T, dir string) {
	t.Helper()
	for name, f := range sources(t, dir) {
		for _, path := range imports(t, f) {
			if reason, ok := impure[path]; ok {
				t.Errorf("%s imports %s: %s", name, path, reason)
			}
			if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") && path != self {
				t.Errorf("%s imports %s: the core uses the standard library only, so that its meaning depends on nothing that moves", name, path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}, sel.Sel.Name) {
				t.Errorf("%s calls time.%s: what the time is, a view says", name, sel.Sel.Name)
			}
			return true
		})
	}
}

// sources parses the files of a package, its tests left out.
func sources(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = f
	}
	return files
}

func imports(t *testing.T, f *ast.File) []string {
	t.Helper()
	var paths []string
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}
