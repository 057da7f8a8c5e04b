package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestPruneExes checks that pruning keeps the copies that were requested recently and those that run.
func TestPruneExes(t *testing.T) {
	cache := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("needs sleep")
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-48 * time.Hour)
	for _, name := range []string{"old", "running", "new"} {
		dir := filepath.Join(cache, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "coterie"), program, 0o755); err != nil {
			t.Fatal(err)
		}
		if name != "new" {
			if err := os.Chtimes(dir, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command(filepath.Join(cache, "running", "coterie"), "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pruneExes(cache, time.Now().Add(-copyLife))
	for name, stays := range map[string]bool{"old": false, "running": true, "new": true} {
		if _, err := os.Stat(filepath.Join(cache, name)); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}
