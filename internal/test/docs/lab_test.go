package docs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// labPage returns the blocks of docs/lab.md: those of "any" user, and those of "root".
func labPage(t *testing.T, kind string) []block {
	t.Helper()
	var found []block
	for _, b := range blocksOf(t, pages(t)["docs/lab.md"]) {
		switch b.kind {
		case kind:
			found = append(found, b)
		case "any", "root":
		default:
			t.Fatalf("a block of docs/lab.md is marked %q and would not be run", b.kind)
		}
	}
	return found
}

func TestLabPageCanBeRead(t *testing.T) {
	for kind, least := range map[string]int{"any": 7, "root": 7} {
		blocks := labPage(t, kind)
		if len(blocks) < least {
			t.Errorf("only %d blocks for %s", len(blocks), kind)
		}
		for _, b := range blocks {
			cmd := exec.CommandContext(t.Context(), "sh", "-n")
			cmd.Stdin = strings.NewReader(script(t, b.text))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("a block that the shell does not understand: %v\n%s\n%s", err, out, b.text)
			}
		}
	}
}

// TestLabPage runs the commands of docs/lab.md, and checks the output that it promises.
func TestLabPage(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("makes several labs; COTERIE_LONG=1 runs it")
	}
	for _, program := range []string{"psql", "curl", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: %s is not installed", program)
		}
	}
	for _, kind := range []string{"any", "root"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "root" && os.Geteuid() != 0 {
				t.Skip("NOT RUN: network namespaces need root")
			}
			r := newReader(t)
			for i, b := range labPage(t, kind) {
				if its := lookup.FindString(b.text); its != "" {
					r.prelude = its
				}
				start := time.Now()
				t.Logf("block %d:\n%s%s(%v)", i, b.text, r.run(script(t, b.text)), time.Since(start).Round(100*time.Millisecond))
			}
		})
	}
}
