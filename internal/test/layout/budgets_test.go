package layout

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	root       = "../../.."
	module     = "github.com/coteriedb/coterie/internal/"
	exceptions = "testdata/exceptions.txt"

	maxFiles      = 12  // production files per package, its doc.go and files for other platforms included
	maxLines      = 500 // per production file
	maxBody       = 70  // lines of a function, its comments not counted
	maxParameters = 4   // of a function, its context not counted
)

var update = flag.Bool("update", false, "lower the exceptions to what is measured")

// pkg is a package of the tree as its production files have it.
type pkg struct {
	dir        string // from the root of the repository
	files      []string
	imports    []string // of this module, below internal/
	documented bool
	lines      map[string]int // by path of the file
	bodies     map[string]int // by name of the function
	parameters map[string]int // by name of the function
}

// packages parses every production file of the repository once.
func packages(t *testing.T) []*pkg {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var parsed = sync.OnceValues(func() ([]*pkg, error) {
	found := map[string]*pkg{}
	for _, top := range []string{"cmd", "internal", "scripts"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testdata/") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			dir := filepath.Dir(name)
			if found[dir] == nil {
				found[dir] = &pkg{dir: dir, lines: map[string]int{}, bodies: map[string]int{}, parameters: map[string]int{}}
			}
			return found[dir].add(path, name)
		})
		if err != nil {
			return nil, err
		}
	}
	var all []*pkg
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		p := found[dir]
		slices.Sort(p.imports)
		p.imports = slices.Compact(p.imports)
		all = append(all, p)
	}
	return all, nil
})

func (p *pkg) add(path, name string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p.files = append(p.files, filepath.Base(name))
	p.lines[name] = bytes.Count(text, []byte("\n"))
	p.documented = p.documented || f.Doc != nil && strings.HasPrefix(f.Doc.Text(), "Package "+f.Name.Name+" ")
	for _, i := range f.Imports {
		imported, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return err
		}
		if below, ours := strings.CutPrefix(imported, module); ours {
			p.imports = append(p.imports, below)
		}
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			name := p.dir + "." + receiver(fn) + fn.Name.Name
			p.parameters[name] = parameters(fn.Type)
			if fn.Body != nil {
				p.bodies[name] = body(set, f, fn)
			}
		}
	}
	return nil
}

func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	typ := fn.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

// parameters counts the parameters of a function, its context left out.
func parameters(f *ast.FuncType) (n int) {
	for _, field := range f.Params.List {
		if sel, ok := field.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Context" {
			continue
		}
		n += max(1, len(field.Names))
	}
	return n
}

// body counts the lines between a function's braces that are not comments of their own.
func body(set *token.FileSet, f *ast.File, fn *ast.FuncDecl) int {
	from, to := set.Position(fn.Body.Lbrace).Line, set.Position(fn.Body.Rbrace).Line
	n := to - from - 1
	for _, c := range f.Comments {
		if c.Pos() > fn.Body.Lbrace && c.End() < fn.Body.Rbrace && set.Position(c.Pos()).Column <= 1+indent(set, fn, c) {
			n -= set.Position(c.End()).Line - set.Position(c.Pos()).Line + 1
		}
	}
	return n
}

// indent is a bound for the column of a comment that has a line of its own: code never starts further right than it
// nests.
func indent(set *token.FileSet, fn *ast.FuncDecl, c *ast.CommentGroup) int {
	depth := 0
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if n == nil || n.Pos() > c.Pos() || n.End() < c.End() {
			return n != nil && n.Pos() <= c.Pos() && n.End() >= c.End()
		}
		switch n.(type) {
		case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause, *ast.CompositeLit, *ast.CallExpr:
			depth++
		}
		return true
	})
	return depth + 1
}

// known are the exceptions by "kind name"; each may be as large as its number.
var known = sync.OnceValues(func() (map[string]int, error) {
	text, err := os.ReadFile(exceptions)
	if err != nil {
		return nil, err
	}
	list := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rule, number, ok := cutLast(line)
		n, err := strconv.Atoi(number)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s: %q: want KIND NAME NUMBER", exceptions, line)
		}
		list[rule] = n
	}
	return list, lines.Err()
})

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ' ')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// needed collects the exceptions that were asked for, with what was measured.
var needed = map[string]int{} // tests of this package do not run in parallel

// excepted reports whether the list allows name to measure n.
func excepted(t *testing.T, kind, name string, n int) bool {
	t.Helper()
	list, err := known()
	if err != nil {
		t.Fatal(err)
	}
	needed[kind+" "+name] = n
	return n <= list[kind+" "+name]
}

func TestBudgets(t *testing.T) {
	for _, p := range packages(t) {
		if n := len(p.files); n > maxFiles && !excepted(t, "files", p.dir, n) {
			t.Errorf("%s has %d production files; a package has at most %d and one reason to change: make another package", p.dir, n, maxFiles)
		}
		over(t, "lines", p.lines, maxLines, "a file has at most %d lines")
		over(t, "body", p.bodies, maxBody, "a function has at most %d lines")
		over(t, "parameters", p.parameters, maxParameters, "a function has at most %d parameters beside its context")
	}
}

func over(t *testing.T, kind string, measured map[string]int, limit int, says string) {
	t.Helper()
	for name, n := range measured {
		if n > limit && !excepted(t, kind, name, n) {
			t.Errorf("%s: %d; "+says, name, n, limit)
		}
	}
}

// TestMain lowers the exceptions with -update, and otherwise fails where one is larger than it has to be.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	all := flag.Lookup("test.run").Value.String() == "" // a part of the tests does not ask for every exception
	if code == 0 && all {
		code = settle()
	}
	os.Exit(code)
}

func settle() int {
	list, err := known()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stale := false
	for name, n := range list {
		if needed[name] < n {
			stale = true
			if !*update {
				fmt.Fprintf(os.Stderr, "%s allows %q %d, and %d is enough: go test ./internal/test/layout -update\n", exceptions, name, n, needed[name])
			}
		}
	}
	if !stale {
		return 0
	}
	if !*update {
		return 1
	}
	if err := rewrite(list); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// rewrite keeps the order and the comments of the list.
func rewrite(list map[string]int) error {
	text, err := os.ReadFile(exceptions)
	if err != nil {
		return err
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		name, _, _ := cutLast(strings.TrimSpace(line))
		if _, ok := list[name]; !ok {
			out = append(out, line)
		} else if n := min(needed[name], list[name]); n > 0 {
			out = append(out, fmt.Sprintf("%s %d\n", name, n))
		}
	}
	return os.WriteFile(exceptions, []byte(strings.Join(out, "")), 0o600)
}
