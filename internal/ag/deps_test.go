package ag

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/coteriedb/coterie/internal/"

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

// adapters never import each other, nor the agent that joins them: each can be read, tested and replaced alone.
var adapters = []string{
	"etcd", "postgres", "keeper", "endpoint", "link", "listener", "replication", "seeding", "health", "adopt", "console", "catalog", "api", "bench",
	"linkem", "faultfs", "cgroup", "wallclock",
}

func TestCoreIsPure(t *testing.T) {
	for name, f := range sources(t, ".") {
		for _, path := range imports(t, f) {
			if reason, ok := impure[path]; ok {
				t.Errorf("%s imports %s: %s", name, path, reason)
			}
			if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") {
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

func TestAdaptersAreStrangers(t *testing.T) {
	for _, pkg := range adapters {
		err := filepath.WalkDir(filepath.Join("..", pkg), func(dir string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() || d.Name() == "testdata" {
				return err
			}
			for name, f := range sources(t, dir) {
				for _, path := range imports(t, f) {
					if stranger(pkg, path) {
						t.Errorf("%s imports %s: adapters are joined in cmd and agent, through interfaces their consumers declare", filepath.Join(dir, name), path)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// stranger reports whether an adapter must not import that path.
func stranger(adapter, path string) bool {
	other, ours := strings.CutPrefix(path, module)
	other, _, _ = strings.Cut(other, "/")
	return ours && other != adapter && (other == "agent" || slices.Contains(adapters, other))
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() == "testdata" {
			return err
		}
		files := sources(t, path)
		if len(files) == 0 {
			return nil
		}
		for _, f := range files {
			if f.Doc != nil && strings.HasPrefix(f.Doc.Text(), "Package "+f.Name.Name+" ") {
				return nil
			}
		}
		t.Errorf("%s has no package comment: what it owns, what it must not know, where to start reading", path)
		return nil
	})
	if err != nil {
		t.Error(err)
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
