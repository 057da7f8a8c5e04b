package docs

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const root = "../../.."

// elsewhere are documents that this package does not check: results are data.
func elsewhere(path string) bool { return strings.HasPrefix(path, "docs/results/") }

// pages returns every document by its path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"*.md", ".github/*.md", ".github/*/*.md", "examples/*.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			text, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, p)
			if err != nil {
				t.Fatal(err)
			}
			if !elsewhere(name) {
				found[name] = string(text)
			}
		}
	}
	if len(found) < 3 {
		t.Fatalf("only %d documents found below %s", len(found), root)
	}
	return found
}

// soon are parts of the program that the documentation may name before they exist.
var soon = []string{"lab", "demo", "bench", "agsim", "adopt", "e2e"}

// build compiles the program once.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "coterie-docs-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // user postgres executes what is in it
		return "", err
	}
	bin := filepath.Join(dir, "coterie")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/coteriedb/coterie/cmd/coterie").CombinedOutput()
	if err != nil {
		return dir, fmt.Errorf("build: %w\n%s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built {
		if bin, err := build(); err == nil {
			_ = os.RemoveAll(filepath.Dir(bin))
		}
	}
	os.Exit(code)
}

var built bool // no test here runs in parallel

func program(t *testing.T) string {
	t.Helper()
	built = true
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// tool asks the program for its commands and flags.
type tool struct {
	bin  string
	help map[string]string
}

func (c *tool) ask(t *testing.T, path ...string) string {
	t.Helper()
	key := strings.Join(path, " ")
	if h, ok := c.help[key]; ok {
		return h
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.bin, append(slices.Clone(path), "--help")...).CombinedOutput()
	if err != nil {
		out = nil // no such command
	}
	c.help[key] = string(out)
	return c.help[key]
}

// knows reports whether the path names a command: the usage line of its help repeats it.
func (c *tool) knows(t *testing.T, path ...string) bool {
	t.Helper()
	h := c.ask(t, path...)
	return strings.Contains(h, "Usage:\n  coterie "+strings.Join(path, " ")+" ") || strings.Contains(h, "Usage:\n  coterie "+strings.Join(path, " ")+"\n")
}

var word = regexp.MustCompile(`^[a-z][a-z-]*$`)

// check returns what is wrong with a command line, or "".
func (c *tool) check(t *testing.T, line string) string {
	t.Helper()
	fields := strings.Fields(line)[1:]
	var path []string
	for len(fields) > 0 && word.MatchString(fields[0]) && c.knows(t, append(slices.Clone(path), fields[0])...) {
		path, fields = append(path, fields[0]), fields[1:]
	}
	help := c.ask(t, path...)
	if len(path) == 0 && len(fields) > 0 && !strings.HasPrefix(fields[0], "-") {
		return "no such command"
	}
	if len(path) > 0 && strings.Contains(help, " [command]\n") && !strings.Contains(help, " [AREA...] ") && len(fields) > 0 && word.MatchString(fields[0]) {
		return "no such command below coterie " + strings.Join(path, " ")
	}
	for _, f := range fields {
		name, _, _ := strings.Cut(f, "=")
		if strings.HasPrefix(name, "--") && name != "--help" && !regexp.MustCompile(regexp.QuoteMeta(name)+`[ \n]`).MatchString(help) {
			return "no such flag: " + name
		}
	}
	return ""
}

var (
	fence    = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")
	inline   = regexp.MustCompile("`(coterie [^`]+)`")
	atPrompt = regexp.MustCompile(`^(?:sudo (?:-u \w+ )?)?(?:/usr/local/bin/)?(coterie .*)$`)
	remark   = regexp.MustCompile(`\s+#.*$`)
	inQuotes = regexp.MustCompile(`"[^"]*"`)
)

// said is a command with flags in a message of the program. Prose may follow it, and punctuation ends it.
var said = regexp.MustCompile(`coterie [a-z]+(?: [\w%.=\'-]+)* --[a-z][a-z0-9-]*`)

// TestFlagsInMessagesExist holds that a command which the program tells its reader to run has the flags that are said.
func TestFlagsInMessagesExist(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	c := &tool{program(t), map[string]string{}}
	checked := 0
	for path, text := range sources(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			for _, line := range said.FindAllString(lit.Value, -1) {
				checked++
				if bad := c.check(t, line); bad != "" {
					t.Errorf("%s: %s: %s", set.Position(lit.Pos()), line, bad)
				}
			}
			return true
		})
	}
	if checked < 20 {
		t.Errorf("only %d commands found: the pattern that finds them is wrong", checked)
	}
}

// TestFormerNamesAreNotSaid holds that neither a message nor a page tells its reader to run a command by a name that it
// had before, which help does not list.
func TestFormerNamesAreNotSaid(t *testing.T) {
	former := regexp.MustCompile(`coterie (?:token|remove|resume|seed) [^\n]{0,40}`)
	looked := 0
	for path, text := range sources(t) {
		if looked++; strings.HasSuffix(path, "_test.go") {
			continue
		}
		if line := former.FindString(text); line != "" {
			t.Errorf("%s says %q: it is below coterie member or coterie replica", path, line)
		}
	}
	for page, text := range pages(t) {
		if line := former.FindString(text); line != "" && page != "CHANGELOG.md" {
			t.Errorf("%s says %q: it is below coterie member or coterie replica", page, line)
		}
	}
	if looked < 500 {
		t.Errorf("only %d files read", looked)
	}
}

// commands lists the command lines of a page: lines of its code blocks, and code within sentences.
func commands(text string) []string {
	var found []string
	for _, block := range fence.FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(block[2]) {
			line = remark.ReplaceAllString(strings.TrimSpace(line), "")
			if m := atPrompt.FindStringSubmatch(line); m != nil && strings.HasPrefix(block[1], "sh") {
				own, _, _ := strings.Cut(inQuotes.ReplaceAllString(m[1], "text"), " && ") // another program's command may follow
				found = append(found, own)
			}
		}
	}
	for _, m := range inline.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		found = append(found, m[1])
	}
	return found
}

func TestCommandsOfTheDocumentationExist(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	c := &tool{program(t), map[string]string{}}
	checked := 0
	for page, text := range pages(t) {
		for _, line := range commands(text) {
			if verb := strings.Fields(line)[1]; slices.Contains(soon, verb) && !c.knows(t, verb) {
				t.Logf("not checked, because this program has no %s yet: %s", verb, line)
				continue
			}
			checked++
			if bad := c.check(t, line); bad != "" {
				t.Errorf("%s: %s: %s", page, line, bad)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d commands found: the pattern that finds them is wrong", checked)
	}
	for _, line := range []string{"coterie frobnicate", "coterie token frobnicate", "coterie status --frobnicate"} {
		if c.check(t, line) == "" {
			t.Errorf("%s passes as a command", line)
		}
	}
}

var (
	named = regexp.MustCompile("`([A-Za-z]+(?:\\.[A-Za-z]+)?)` in package `([a-z]+)`")
	dirs  = regexp.MustCompile("`((?:internal|cmd|docs|packaging)/[a-z/.]+)`")
)

func TestNamesInArchitectureExist(t *testing.T) {
	text := pages(t)["ARCHITECTURE.md"]
	known := map[string]map[string]bool{}
	found := named.FindAllStringSubmatch(text, -1)
	if len(found) < 20 {
		t.Errorf("only %d names found: the pattern that finds them is wrong", len(found))
	}
	for _, m := range found {
		name, pkg := m[1], m[2]
		if known[pkg] == nil {
			known[pkg] = declared(t, pkg)
		}
		if !known[pkg][name] {
			t.Errorf("ARCHITECTURE.md names %s in package %s, which has no such function, method or type", name, pkg)
		}
	}
	for _, m := range dirs.FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil && !slices.Contains(soon, filepath.Base(m[1])) {
			t.Errorf("ARCHITECTURE.md: %v", err)
		}
	}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if files, _ := filepath.Glob(filepath.Join(path, "*.go")); len(files) > 0 && !strings.Contains(text, "`"+name+"`") {
			t.Errorf("ARCHITECTURE.md has no line for %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// folders finds the directories of a package by its name: "main" is the program.
func folders(t *testing.T, pkg string) (found []string) {
	t.Helper()
	if pkg == "main" {
		return []string{filepath.Join(root, "cmd", "coterie")}
	}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == pkg {
			if files, _ := filepath.Glob(filepath.Join(path, "*.go")); len(files) > 0 {
				found = append(found, path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// declared lists what the packages of a name declare: functions and types by name, methods by name and as Type.Name.
func declared(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	var files []string
	for _, dir := range folders(t, pkg) {
		of, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, of...)
	}
	if len(files) == 0 {
		t.Errorf("there is no package %s", pkg)
	}
	names := map[string]bool{}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			note(names, d)
		}
	}
	return names
}

func note(names map[string]bool, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		names[d.Name.Name] = true
		if d.Recv == nil {
			return
		}
		typ := d.Recv.List[0].Type
		if p, ok := typ.(*ast.StarExpr); ok {
			typ = p.X
		}
		if id, ok := typ.(*ast.Ident); ok {
			names[id.Name+"."+d.Name.Name] = true
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if ts, ok := s.(*ast.TypeSpec); ok {
				names[ts.Name.Name] = true
			}
		}
	}
}

// TestOptionsChangeInARunningGroup holds that no page takes back what the statements do: the profile, and the modes of
// a replica, are changed in a running group.
func TestOptionsChangeInARunningGroup(t *testing.T) {
	denied := regexp.MustCompile(`(?i)cannot be changed in a running group|cannot be changed while the group runs|cannot be changed yet`)
	for file, text := range pages(t) {
		if said := denied.FindString(text); said != "" {
			t.Errorf("%s says %q, and MODIFY REPLICA and SET change them", file, said)
		}
	}
	language := pages(t)["docs/language.md"]
	for _, option := range []string{"LEASE_PROFILE", "AVAILABILITY_MODE", "FAILOVER_MODE"} {
		if !strings.Contains(language, option) {
			t.Errorf("docs/language.md has no %s", option)
		}
	}
}
