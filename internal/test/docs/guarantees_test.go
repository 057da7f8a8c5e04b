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

// TestGuaranteesAreHeld: every test that a document names exists, and every mistake that the evidence names is in the
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
	text := all["docs/internals/evidence.md"]
	if n := len(testName.FindAllString(text, -1)); n < 60 {
		t.Errorf("the evidence names only %d tests: the pattern that finds them is wrong", n)
	}
	mutants := 0
	for _, m := range italic.FindAllStringSubmatch(bold.ReplaceAllString(text, ""), -1) {
		name := strings.Join(strings.Fields(m[1]), " ")
		if notMutant[name] {
			continue
		}
		if mutants++; !strings.Contains(all["docs/mutants.md"], "| "+name+" |") {
			t.Errorf("docs/internals/evidence.md names the mistake %q, which is not in docs/mutants.md", name)
		}
	}
	if mutants < 30 {
		t.Errorf("only %d mistakes found: the pattern that finds them is wrong", mutants)
	}
	if m := testName.FindString(all["docs/guarantees.md"]); m != "" {
		t.Errorf("docs/guarantees.md is for administrators and names %s: docs/internals/evidence.md is for that", m)
	}
}

var (
	promise  = regexp.MustCompile(`(?m)^\d+\. \*\*`)
	evidence = regexp.MustCompile(`(?m)^   Rule: \[([^\]]+)\]\(safety\.md#[a-z-]+\)\. Code: (.+)\.$`)
	codeIn   = regexp.MustCompile("((?:`[A-Za-z.]+`(?: and )?)+) in package `([a-z]+)`")
)

// TestEvidenceNamesRuleAndCode checks that each promise names a section of the rules, and code that exists.
func TestEvidenceNamesRuleAndCode(t *testing.T) {
	all := pages(t)
	text := all["docs/internals/evidence.md"]
	titles := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(all["docs/internals/safety.md"], -1) {
		titles[h[1]] = true
	}
	found := evidence.FindAllStringSubmatch(text, -1)
	if n := len(promise.FindAllString(text, -1)); n != len(found) || n < 35 {
		t.Errorf("%d promises, of which %d name a rule and code", n, len(found))
	}
	known := map[string]map[string]bool{}
	for _, m := range found {
		if !titles[m[1]] {
			t.Errorf("docs/internals/safety.md has no section %q", m[1])
		}
		places := codeIn.FindAllStringSubmatch(m[2], -1)
		if len(places) == 0 {
			t.Errorf("%q names no code", m[2])
		}
		for _, p := range places {
			if known[p[2]] == nil {
				known[p[2]] = declared(t, p[2])
			}
			for name := range strings.SplitSeq(p[1], " and ") {
				if name = strings.Trim(name, "`"); !known[p[2]][name] {
					t.Errorf("package %s has no %s", p[2], name)
				}
			}
		}
	}
}

// TestEachPromiseHasAMistake checks that each promise names a deliberate mistake that its tests find.
func TestEachPromiseHasAMistake(t *testing.T) {
	text := pages(t)["docs/internals/evidence.md"]
	begins := promise.FindAllStringIndex(text, -1)
	for i, at := range begins {
		end := len(text)
		if i+1 < len(begins) {
			end = begins[i+1][0]
		}
		item, _, _ := strings.Cut(text[at[0]:end], "\n## ")
		named := false
		for _, m := range italic.FindAllStringSubmatch(bold.ReplaceAllString(item, ""), -1) {
			named = named || !notMutant[strings.Join(strings.Fields(m[1]), " ")]
		}
		if !named {
			first, _, _ := strings.Cut(item, "\n")
			t.Errorf("no mistake shows that the tests of this promise can fail: %s", first)
		}
	}
}
