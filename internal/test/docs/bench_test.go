package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const benchPage = "docs/bench.md"

// TestBenchPage types the commands of the page that take no minutes: before and after are the results on record. The
// others are of the kind "minutes", and make results does what they do.
func TestBenchPage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	record, err := filepath.Abs(filepath.Join(root, "docs/results/bench-all"))
	if err != nil {
		t.Fatal(err)
	}
	dir, bin := t.TempDir(), program(t)
	for _, name := range []string{"before", "after"} {
		if err := os.Symlink(record, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var kinds []string
	for _, b := range blocksOf(t, pages(t)[benchPage]) {
		if kinds = append(kinds, b.kind); b.kind != "bench" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", "coterie() { "+bin+" \"$@\"; }\n"+b.text)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "\n") < 5 {
			t.Errorf("%s%v\n%s", b.text, err, out)
		}
	}
	if got := strings.Join(kinds, " "); got != "minutes bench bench" {
		t.Errorf("%s has the blocks %q", benchPage, got)
	}
}
