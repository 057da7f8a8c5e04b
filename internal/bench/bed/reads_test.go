package bed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestServerReads: a process reports its reads from the disk, and for a server its children are counted.
func TestServerReads(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "coterie-reads-") // on a disk, as /tmp need not be
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	const size = 4 << 20
	file, self := filepath.Join(dir, "file"), strconv.Itoa(os.Getpid())
	if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dropFile(file); err != nil {
		t.Skipf("NOT RUN: no file can be dropped from the page cache here: %v", err)
	}
	before, ok := processReads(self)
	if _, err := os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	after, _ := processReads(self)
	switch {
	case !ok || after == before:
		t.Skip("NOT RUN: the kernel does not tell what this disk reads")
	case after-before < size:
		t.Errorf("%d bytes of %d were read from the disk", after-before, size)
	}
	if err := os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(self+"\n"+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), "sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	if _, ok := serverReads(dir)[strconv.Itoa(child.Process.Pid)]; !ok {
		t.Errorf("the server's process %d is not among %v", child.Process.Pid, serverReads(dir))
	}
}
