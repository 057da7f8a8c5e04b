package docs

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/mirror"
)

const storagePage = "docs/how-to/storage.md"

// TestStoragePageCanBeRead holds that a shell understands the blocks of the page, and which of them the long test runs.
func TestStoragePageCanBeRead(t *testing.T) {
	count := map[string]int{}
	for _, b := range blocksOf(t, pages(t)[storagePage]) {
		if count[b.kind]++; b.kind == "sql" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(script(t, b.text))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("a block that the shell does not understand: %v\n%s\n%s", err, out, b.text)
		}
	}
	if count["node"] != 1 || count["sql"] != 1 || count["btrfs"] != 3 || count["lab"] != 1 || count["md"] != 2 || count["lvm"] != 2 || count["zfs"] != 2 {
		t.Errorf("blocks of the page: %v", count)
	}
}

// onLoops lets the blocks for btrfs have three devices over files, in a directory of their own. The devices free
// themselves when the mount is gone, which is this shell's alone.
const onLoops = `set -e
mkdir data
for i in 1 2 3; do truncate -s 1G "file$i"; done
first=$(losetup -f --show file1) second=$(losetup -f --show file2) third=$(losetup -f --show file3) data=$PWD/data
trap 'umount data; losetup -d "$first" "$second" "$third" 2>/dev/null; sleep 0.2' EXIT
set -x
`

// TestStoragePage runs the commands of the page for btrfs and for the lab. Those for md, LVM and ZFS are not run: they
// need what most kernels of test machines lack.
func TestStoragePage(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("breaks a lab on mirrors; COTERIE_LONG=1 runs it")
	}
	if err := mirror.Possible(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	blocks, btrfs := blocksOf(t, pages(t)[storagePage]), onLoops
	for _, b := range blocks {
		if b.kind == "btrfs" {
			btrfs += b.text
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-c", btrfs)
	c.Dir = t.TempDir()
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := newReader(t)
	r.prelude = lookup.FindString(pages(t)[breakIt])
	for _, kind := range []string{"lab", "node", "sql"} {
		for _, b := range blocks {
			if b.kind != kind {
				continue
			}
			text := script(t, b.text)
			if kind != "lab" {
				text = "export COTERIE_NODE=$(its dir)/n2\n" + text
			}
			if kind == "sql" {
				text = "export COTERIE_NODE=$(its dir)/n2\ncoterie sql -f - <<'END'\n" + b.text + "END\n"
			}
			start := time.Now()
			t.Logf("%s:\n%s%s(%v)", kind, b.text, r.run(text), time.Since(start).Round(100*time.Millisecond))
		}
	}
}
