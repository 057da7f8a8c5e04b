package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
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

// TestPrepareForForeignDirectory checks that a directory of something else keeps its owner.
func TestPrepareForForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "passwd"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := prepareFor(dir, os.Getuid()+1, os.Getgid()+1); !strings.Contains(fmt.Sprint(err), "not a node directory") {
		t.Fatalf("error %v", err)
	}
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != os.Getuid() {
		t.Fatalf("the directory was given to user %d", owner)
	}
}

// TestPrepareForPlaceOfOthers checks that root gives no new or empty directory away that another user could change, and
// follows no link that has taken its place.
func TestPrepareForPlaceOfOthers(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"all may write to it":   func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) },
		"all may write above":   func(dir string) error { return os.Chmod(filepath.Dir(dir), 0o777) },
		"a link to a wide open": func(dir string) error { return os.Symlink("/tmp", dir) },
	} {
		base := t.TempDir()
		if err := os.Chmod(base, 0o755); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(base, "node")
		if err := make(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := prepareFor(dir, os.Getuid(), os.Getgid()); !strings.Contains(fmt.Sprint(err), "every user may write to") && !strings.Contains(fmt.Sprint(err), "not a node directory") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
