package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName  = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	testFunc  = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
	bold      = regexp.MustCompile(`(?s)\*\*.*?\*\*`)
	italic    = regexp.MustCompile(`\*([^*]+)\*`)
	notMutant = map[string]bool{"To whom": true} // other text in italics
)

// tests lists every test of the program.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
		}
		return err
	})
	if err != nil || len(found) < 100 {
		t.Fatalf("only %d tests found: %v", len(found), err)
	}
	return found
}

// TestGuaranteesAreHeld: every test that a document names exists, and every mistake that the guarantees name is in the
// table of those that were made and found.
func TestGuaranteesAreHeld(t *testing.T) {
	all, there := pages(t), tests(t)
	for page, text := range all {
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if !there[m[1]] {
				t.Errorf("%s names %s, and there is no such test", page, m[1])
			}
		}
	}
	text := all["docs/guarantees.md"]
	if n := len(testName.FindAllString(text, -1)); n < 60 {
		t.Errorf("the guarantees name only %d tests: the pattern that finds them is wrong", n)
	}
	mutants := 0
	for _, m := range italic.FindAllStringSubmatch(bold.ReplaceAllString(text, ""), -1) {
		name := strings.Join(strings.Fields(m[1]), " ")
		if notMutant[name] {
			continue
		}
		if mutants++; !strings.Contains(all["docs/mutants.md"], "| "+name+" |") {
			t.Errorf("docs/guarantees.md names the mistake %q, which is not in docs/mutants.md", name)
		}
	}
	if mutants < 30 {
		t.Errorf("only %d mistakes found: the pattern that finds them is wrong", mutants)
	}
}
