package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const examples = "examples/README.md"

// onLab returns the blocks of the page that are typed in one terminal, in the clone of the repository.
func onLab(t *testing.T) string {
	t.Helper()
	text, blocks := "", 0
	for _, b := range blocksOf(t, pages(t)[examples]) {
		if b.kind != "lab" {
			t.Fatalf("a block of the page is marked %q and would not be run", b.kind)
		}
		text, blocks = text+b.text, blocks+1
	}
	if blocks != 2 {
		t.Fatalf("%s has %d blocks for a lab", examples, blocks)
	}
	return text
}

// TestExamplesCanBeRead holds that a shell understands the blocks of the page.
func TestExamplesCanBeRead(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-n")
	cmd.Stdin = strings.NewReader(onLab(t))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the shell does not understand: %v\n%s", err, out)
	}
}

// TestExamples types the blocks of the page on a lab, and compares the numbers that it promises to be the same.
func TestExamples(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("makes a lab and kills its primary under an application; COTERIE_LONG=1 runs it")
	}
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("NOT RUN: psql is not installed")
	}
	clone, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(t)
	text := strings.ReplaceAll(onLab(t), "printed", filepath.Join(r.dir, "printed"))
	out := strings.Fields(r.run("cd " + clone + "\n" + text))
	if n := len(out); n < 3 || out[n-3] != "300" || out[n-2] != "300" || out[n-1] != "300" {
		t.Errorf("the page ends with %q, not with 300 three times", out[max(0, len(out)-12):])
	}
}
