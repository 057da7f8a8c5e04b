package docs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/faketime"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
)

func faultBlocks(t *testing.T) []string {
	t.Helper()
	var blocks []string
	for _, m := range fence.FindAllStringSubmatch(pages(t)["docs/lab-faults.md"], -1) {
		if m[1] != "sh faults" {
			t.Fatalf("a block of the page is marked %q and would not be run", m[1])
		}
		blocks = append(blocks, m[2])
	}
	if len(blocks) < 5 {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	return blocks
}

func TestLabFaultsCanBeRead(t *testing.T) {
	for _, b := range faultBlocks(t) {
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(script(t, b))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("a block that the shell does not understand: %v\n%s\n%s", err, out, b)
		}
	}
}

// TestLabFaults runs the commands of the page on disks, clocks and small machines, and checks that nothing stays
// behind.
func TestLabFaults(t *testing.T) {
	switch {
	case os.Getenv("COTERIE_LONG") == "":
		t.Skip("breaks a lab in seven ways; COTERIE_LONG=1 runs it")
	case os.Geteuid() != 0:
		t.Skip("limits of processors and memory, and the clocks of other users' processes, need root: run it as root")
	}
	for _, err := range []error{faultfs.Possible(), faketime.Possible()} {
		if err != nil {
			t.Skip(err)
		}
	}
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("psql is not installed")
	}
	r := newReader(t)
	r.prelude = lookup.FindString(pages(t)[breakIt])
	for i, b := range faultBlocks(t) {
		start := time.Now()
		t.Logf("block %d:\n%s%s(%v)", i, b, r.run(script(t, b)), time.Since(start).Round(100*time.Millisecond))
	}
	r.run("coterie lab clock n1 --offset 1h; coterie lab disk n1 --stall; coterie lab logs >logged; coterie lab down; coterie lab up --empty")
	for what, look := range map[string]string{"mounts": "mount", "control groups": "find /sys/fs/cgroup -name 'coterie-lab-*'"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", look).CombinedOutput()
		if err != nil || strings.Contains(string(out), r.dir) {
			t.Errorf("%s are left: %v\n%s", what, err, out)
		}
	}
}
