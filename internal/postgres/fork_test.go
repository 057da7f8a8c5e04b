package postgres

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestKeepForkLeavesNoPart checks that a tail that could not be kept leaves nothing: each attempt has a directory of
// its own, and what a full disk took of it would keep the disk full.
func TestKeepForkLeavesNoPart(t *testing.T) {
	p := newPrimary(t, false)
	p.kill(syscall.SIGINT)
	unreadable := p.path("pg_wal", "x.history") // a directory is not copied as a file
	if err := os.Mkdir(unreadable, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "forked", "1")
	if err := p.KeepFork(t.Context(), ag.Position{Timeline: 1}, dir); err == nil || exists(dir) {
		t.Errorf("error %v, and %s is there: %v", err, dir, exists(dir))
	}
	if err := os.Remove(unreadable); err != nil {
		t.Fatal(err)
	}
	if err := p.KeepFork(t.Context(), ag.Position{Timeline: 1}, dir); err != nil || !exists(filepath.Join(dir, "summary.json")) {
		t.Errorf("the next attempt: %v", err)
	}
}
