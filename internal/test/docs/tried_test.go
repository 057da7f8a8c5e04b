package docs

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

const tried = "docs/internals/tried.md"

// commitName is the short name of a commit in a page.
var commitName = regexp.MustCompile("`([0-9a-f]{8})`")

// TestWhatWasTried holds that each row of the page says what became of an attempt and by which test or record, and that
// each commit it names is in the history of this source. That the tests exist is checked for all pages.
func TestWhatWasTried(t *testing.T) {
	rows := 0
	for line := range strings.Lines(pages(t)[tried]) {
		attempt, outcome, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !isRow || attempt == "tried" || !strings.HasPrefix(line, "| ") {
			continue
		}
		if rows++; !heldBy.MatchString(outcome) && !strings.Contains(outcome, "](") {
			t.Errorf("no test and no record shows what became of: %s", attempt)
		}
		if strings.Contains(outcome, "mended") && !commitName.MatchString(outcome) && !strings.Contains(outcome, "](") {
			t.Errorf("no commit mended: %s", attempt)
		}
	}
	if rows < 60 {
		t.Errorf("only %d rows found", rows)
	}
	history := exec.CommandContext(t.Context(), "git", "rev-list", "HEAD")
	history.Dir = root
	out, err := history.Output()
	if err != nil || strings.Count(string(out), "\n") < 1000 {
		t.Skipf("NOT RUN: the history of the source is not here: %v", err)
	}
	commits := "\n" + string(out)
	for _, m := range commitName.FindAllStringSubmatch(pages(t)[tried], -1) {
		if !strings.Contains(commits, "\n"+m[1]) {
			t.Errorf("%s names the commit %s, which is not in the history", tried, m[1])
		}
	}
}
