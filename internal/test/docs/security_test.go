package docs

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var heldBy = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`")

// TestProtectionsAreHeld checks that each threat of the table at the beginning of SECURITY.md names a test.
func TestProtectionsAreHeld(t *testing.T) {
	_, text, _ := strings.Cut(pages(t)["SECURITY.md"], "## What is protected")
	text, _, _ = strings.Cut(text, "\n## ")
	rows := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| threat ") {
			continue
		}
		if rows++; !heldBy.MatchString(line) {
			t.Errorf("no test: %s", line)
		}
	}
	if rows < 10 {
		t.Errorf("%d threats", rows)
	}
}

// TestThreatModel checks that SECURITY.md says of every adversary how far it gets and where it ends, and that each
// *cannot* names a test. That the tests exist is checked for all pages.
func TestThreatModel(t *testing.T) {
	_, text, found := strings.Cut(pages(t)["SECURITY.md"], "## Who could attack")
	if !found {
		t.Fatal("SECURITY.md has no threat model")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	adversaries := strings.Split(text, "\n### ")[1:]
	if len(adversaries) != 8 {
		t.Errorf("%d adversaries, want the stranger, the viewer, the operator, the role, the member, two thieves and the local user", len(adversaries))
	}
	for _, a := range adversaries {
		name, list, _ := strings.Cut(a, "\n")
		if !strings.Contains(list, "\n- Can: ") || !strings.Contains(list, "\n- Cannot: ") {
			t.Errorf("%s: what it can, or what it cannot, is missing", name)
		}
		for line := range strings.Lines(list) {
			if strings.HasPrefix(line, "- Cannot: ") && !heldBy.MatchString(line) {
				t.Errorf("%s: no test holds that it %s", name, strings.TrimSpace(line))
			}
		}
	}
}

var (
	fuzzRow  = regexp.MustCompile("(?m)^\\| [^|]+ \\| `(Fuzz[A-Za-z0-9]+)` in `([a-z0-9/]+)` \\|")
	fuzzFunc = regexp.MustCompile(`^\./(internal/[a-z0-9/]+)/[a-z_0-9]+_test\.go:func (Fuzz[A-Za-z0-9]+)\(`)
)

// TestFuzzTargetsAreListed checks that the table of fuzz targets has those that exist and no others.
func TestFuzzTargetsAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, m := range fuzzRow.FindAllStringSubmatch(pages(t)["docs/internals/fuzzing.md"], -1) {
		listed[m[2]+"."+m[1]] = true
	}
	cmd := exec.CommandContext(t.Context(), "grep", "-r", "--include=*_test.go", "^func Fuzz", "./internal")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		m := fuzzFunc.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("not understood: %s", line)
		}
		name := m[1] + "." + m[2]
		if !listed[name] {
			t.Errorf("docs/internals/fuzzing.md lacks %s", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/internals/fuzzing.md names %s, which does not exist", name)
	}
}
