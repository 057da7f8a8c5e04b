package docs

import (
	"regexp"
	"strings"
	"testing"
)

// TestVersionsPage holds that the page names the pairs of versions that tests try, and no others.
func TestVersionsPage(t *testing.T) {
	page := pages(t)["docs/versions.md"]
	list := regexp.MustCompile(`var earlier = \[\]string\{([^}]*)\}`).FindStringSubmatch(source(t, "internal/test/e2e/upgrade_test.go"))
	if list == nil {
		t.Fatal("the test of upgrades names no commits")
	}
	want := strings.ReplaceAll(strings.ReplaceAll(list[1], `"`, ""), ", ", " and ")
	if !strings.Contains(page, "| commits "+want+", each with the current commit |") {
		t.Errorf("the page does not name commits %s as those that are upgraded", want)
	}
	for _, m := range regexp.MustCompile(`(?m)^PostgreSQL (\d+\.\d+) .*end-to-end: passed`).FindAllStringSubmatch(source(t, "docs/results/test-majors.txt"), -1) {
		if !strings.Contains(page, m[1]) {
			t.Errorf("the page does not name PostgreSQL %s, which the record has", m[1])
		}
	}
	tried := regexp.MustCompile(`It was tried from (\d+) to (\d+)(?: and from (\d+) to (\d+))?`).FindAllStringSubmatch(pages(t)["docs/how-to/upgrade.md"], -1)
	if len(tried) != 2 || !strings.Contains(page, "| "+tried[0][1]+" to "+tried[0][2]+" | tried | tried |") || !strings.Contains(page, "| "+tried[1][3]+" to "+tried[1][4]+" | not tried | tried |") {
		t.Errorf("the pages tell other major upgrades: %v", tried)
	}
}
