package docs

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// labPages are the pages that a reader follows with a lab, and how many blocks they have: for "any" user, for "root".
// Blocks of "build" have been done before the test.
var labPages = []struct {
	page      string
	any, root int
}{
	{"docs/lab.md", 7, 7},
	{"docs/tutorials/quick-start.md", 7, 0},
	{"docs/tutorials/from-sql-server.md", 7, 0},
}

// labPage returns the blocks of a page that are for a kind of user.
func labPage(t *testing.T, page, kind string) []block {
	t.Helper()
	var found []block
	for _, b := range blocksOf(t, pages(t)[page]) {
		switch {
		case b.kind == kind:
			found = append(found, b)
		case !slices.Contains([]string{"any", "root", "build"}, b.kind):
			t.Fatalf("a block of %s is marked %q and would not be run", page, b.kind)
		}
	}
	return found
}

func TestLabPageCanBeRead(t *testing.T) {
	for _, p := range labPages {
		for kind, least := range map[string]int{"any": p.any, "root": p.root} {
			blocks := labPage(t, p.page, kind)
			if len(blocks) < least {
				t.Errorf("%s: only %d blocks for %s", p.page, len(blocks), kind)
			}
			for _, b := range blocks {
				cmd := exec.CommandContext(t.Context(), "sh", "-n")
				cmd.Stdin = strings.NewReader(script(t, b.text))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: a block that the shell does not understand: %v\n%s\n%s", p.page, err, out, b.text)
				}
			}
		}
	}
}

// TestLabPage runs the commands of these pages, and checks the output that they promise.
func TestLabPage(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("makes several labs; COTERIE_LONG=1 runs it")
	}
	for _, program := range []string{"psql", "curl", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: %s is not installed", program)
		}
	}
	for _, p := range labPages {
		for _, kind := range []string{"any", "root"} {
			blocks := labPage(t, p.page, kind)
			if len(blocks) == 0 {
				continue
			}
			t.Run(strings.TrimSuffix(path.Base(p.page), ".md")+"/"+kind, func(t *testing.T) {
				if kind == "root" && os.Geteuid() != 0 {
					t.Skip("NOT RUN: network namespaces need root")
				}
				walk(t, blocks)
			})
		}
	}
}

// function is a definition in one line, which later blocks use.
var function = regexp.MustCompile(`(?m)^\w+\(\) .*$`)

// walk runs blocks one after the other, as in one shell: functions, and the node P that was broken, stay known.
func walk(t *testing.T, blocks []block) {
	t.Helper()
	r := newReader(t)
	r.prelude = "if test -e broken; then P=$(cat broken); fi"
	for i, b := range blocks {
		for _, f := range function.FindAllString(b.text, -1) {
			r.prelude += "\n" + f
		}
		start := time.Now()
		out := r.run(script(t, b.text) + "echo \"$P\" > broken\n")
		t.Logf("block %d:\n%s%s(%v)", i, b.text, out, time.Since(start).Round(100*time.Millisecond))
	}
}
