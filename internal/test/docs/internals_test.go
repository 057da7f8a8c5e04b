package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ruled are the pages on which every numbered rule names its place in the code and its tests.
var ruled = []string{"docs/internals/safety.md", "docs/internals/postgresql.md", "docs/internals/protocol.md", "docs/internals/limits.md"}

// mostUntested is how many rules are marked as untested. It may only be lowered.
const mostUntested = 4

var (
	ruleStart = regexp.MustCompile(`^\d+\. \*\*`)
	heading   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	outside   = regexp.MustCompile(`(?i:\bsafety specification\b)|\b(?:SAFETY|POSTGRES) \d|\breliability (?:notes|catalogue)\b`)
	cited     = regexp.MustCompile(`docs/internals/([a-z]+\.md), "([^"]+)"`)
	wrapped   = regexp.MustCompile(`\n\s*//\s*`)
)

// rules returns the numbered rules of a page, each on one line, by the section they are in.
func rules(text string) map[string][]string {
	found := map[string][]string{}
	section := ""
	open := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "#"):
			section, open = strings.TrimLeft(line, "# "), false
		case ruleStart.MatchString(line):
			found[section] = append(found[section], line)
			open = true
		case open && strings.HasPrefix(line, "   "):
			list := found[section]
			list[len(list)-1] += " " + strings.TrimSpace(line)
		case strings.TrimSpace(line) != "":
			open = false
		}
	}
	return found
}

// TestNamesInInternalsExist checks that every rule of the pages about the program's inside names code and tests that
// exist, or is marked as untested.
func TestNamesInInternalsExist(t *testing.T) {
	all, there := pages(t), tests(t)
	known := map[string]map[string]bool{}
	count, untested := 0, 0
	for _, page := range ruled {
		for section, list := range rules(all[page]) {
			for _, rule := range list {
				count++
				where := page + ", \"" + section + "\": " + rule[:min(60, len(rule))]
				code := named.FindAllStringSubmatch(rule, -1)
				if len(code) == 0 {
					t.Errorf("%s: names no place in the code", where)
				}
				for _, m := range code {
					if known[m[2]] == nil {
						known[m[2]] = declared(t, m[2])
					}
					if !known[m[2]][m[1]] {
						t.Errorf("%s: package %s has no %s", where, m[2], m[1])
					}
				}
				held := testName.FindAllStringSubmatch(rule, -1)
				if strings.Contains(rule, "Test: none yet.") {
					untested++
				} else if len(held) == 0 {
					t.Errorf("%s: names no test", where)
				}
				for _, m := range held {
					if !there[m[1]] {
						t.Errorf("%s: there is no %s", where, m[1])
					}
				}
			}
		}
	}
	if untested > mostUntested {
		t.Errorf("%d rules have no test yet, at most %d may have none", untested, mostUntested)
	}
	if count < 100 {
		t.Errorf("only %d rules found: the pattern that finds them is wrong", count)
	}
}

// sources returns the Go files of the program by their path from the root.
func sources(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			found[name] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// TestNamesOfSectionsInComments checks that a comment which cites a section of a page about the program's inside cites
// one that exists, and that none cites a specification that is not in the repository.
func TestNamesOfSectionsInComments(t *testing.T) {
	all := pages(t)
	for file, text := range sources(t) {
		text = wrapped.ReplaceAllString(text, " ")
		if m := outside.FindString(text); m != "" && filepath.Base(file) != "internals_test.go" {
			t.Errorf("%s cites %q, which is not in the repository: cite a section of docs/internals", file, m)
		}
		for _, m := range cited.FindAllStringSubmatch(text, -1) {
			page := all["docs/internals/"+m[1]]
			titles := heading.FindAllStringSubmatch(page, -1)
			if !slices.ContainsFunc(titles, func(h []string) bool { return h[1] == m[2] }) {
				t.Errorf("%s cites %q of docs/internals/%s, which has no such section", file, m[2], m[1])
			}
		}
	}
}

var (
	methodRow = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (members|replicas) \\|")
	// registered is an entry of the table of methods in package rpc: a name and its callers.
	registered = regexp.MustCompile(`\bMethod\[.*\]\{"([a-z]+(?:-[a-z]+)*)", (members|replicas)\}`)
)

// TestInternalsListEveryMethod checks that the page about the protocol lists the remote calls that the program answers,
// with their callers, and no others.
func TestInternalsListEveryMethod(t *testing.T) {
	_, text, _ := strings.Cut(pages(t)["docs/internals/protocol.md"], "\n## Methods\n")
	text, _, _ = strings.Cut(text, "\n## ")
	listed := map[string]bool{}
	for _, m := range methodRow.FindAllStringSubmatch(text, -1) {
		listed[m[1]+" of "+m[2]] = true
	}
	inCode := map[string]bool{}
	for file, text := range sources(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range registered.FindAllStringSubmatch(text, -1) {
			inCode[m[1]+" of "+m[2]] = true
		}
	}
	for m := range inCode {
		if !listed[m] {
			t.Errorf("docs/internals/protocol.md does not list the method %q", m)
		}
	}
	for m := range listed {
		if !inCode[m] {
			t.Errorf("docs/internals/protocol.md lists the method %q, which is registered nowhere", m)
		}
	}
}

var (
	keeperRow = regexp.MustCompile("`([A-Z_]+)`")
	keeperOp  = regexp.MustCompile(`(?m)^\s+op[A-Z]\w*\s*=\s*"([A-Z_]+)"`)
)

// TestInternalsListEveryRequestToTheKeeper checks the same of what an agent asks its keeper.
func TestInternalsListEveryRequestToTheKeeper(t *testing.T) {
	_, text, _ := strings.Cut(pages(t)["docs/internals/protocol.md"], "\n## Agent and keeper\n")
	listed, inCode := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text) {
		row, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !ok || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range keeperRow.FindAllStringSubmatch(row, -1) {
			listed[m[1]] = true
		}
	}
	for file, text := range sources(t) {
		if strings.Contains(file, "/keeper/") {
			for _, m := range keeperOp.FindAllStringSubmatch(text, -1) {
				inCode[m[1]] = true
			}
		}
	}
	if len(inCode) < 5 {
		t.Errorf("only %d requests found: the pattern that finds them is wrong", len(inCode))
	}
	for op := range inCode {
		if !listed[op] {
			t.Errorf("docs/internals/protocol.md does not list the keeper's request %s", op)
		}
	}
	for op := range listed {
		if !inCode[op] {
			t.Errorf("docs/internals/protocol.md lists %s, which the keeper does not know", op)
		}
	}
}

var decision = regexp.MustCompile(`\b(?:ADR|decision) ([1-9]\d*)\b`)

// TestDecisionsAreIndexed checks that each decision and each note is in its index, and that a decision which is cited
// by its number can be found there.
func TestDecisionsAreIndexed(t *testing.T) {
	all := pages(t)
	for _, dir := range []string{"docs/adr", "docs/internals/notes"} {
		index := all[dir+"/README.md"]
		for page := range all {
			if filepath.Dir(page) == dir && !strings.HasSuffix(page, "README.md") && !strings.Contains(index, "("+filepath.Base(page)+")") {
				t.Errorf("%s/README.md does not list %s", dir, page)
			}
		}
	}
	texts := sources(t)
	for page, text := range all {
		texts[page] = text
	}
	index := all["docs/adr/README.md"]
	for name, text := range texts {
		for _, m := range decision.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^- ` + m[1] + `(?:\.| →) `).MatchString(index) {
				t.Errorf("%s cites decision %s, which docs/adr/README.md does not list", name, m[1])
			}
		}
	}
}
