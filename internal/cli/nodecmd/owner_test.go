package nodecmd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
)

// ownerEnv makes this test binary tell which user runs it.
const ownerEnv = "COTERIE_NODECMD_OWNER"

// TestOwnerChild is that user's process.
func TestOwnerChild(t *testing.T) {
	if os.Getenv(ownerEnv) == "" {
		t.Skip("it is a part of TestAsOwner")
	}
	exe, err := os.Executable()
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	fmt.Printf("ran as %d %d from %s %v\n", os.Getuid(), os.Getgid(), exe, err)
	if os.Getenv(ownerEnv) == "wait" {
		select {
		case <-told:
			fmt.Println("ended in order")
		case <-time.After(time.Minute):
		}
	}
}

// TestAsOwnerIsInterrupted holds that the process of the owner is not killed when this one is told to end: a restore
// removes what it has begun, and the file with the repository's key.
func TestAsOwnerIsInterrupted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: only root runs programs as another user")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 54321, 54322); err != nil {
		t.Fatal(err)
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(ownerEnv, "wait")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- AsOwner(ctx, l, out, out, []string{"-test.run", "^TestOwnerChild$", "-test.v"}) // ends as its test does
		_ = out.Close()
	}()
	var all strings.Builder
	for lines := bufio.NewScanner(said); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "ran as") {
			cancel()
			if _, exe, ok := strings.Cut(lines.Text(), " from "); ok && strings.HasPrefix(exe, "/var/cache/coterie/") {
				defer os.RemoveAll(filepath.Dir(strings.Fields(exe)[0]))
			}
		}
	}
	if err := <-ended; err != nil || !strings.Contains(all.String(), "ended in order") {
		t.Errorf("%v, although it did what it was to do: %s", err, all.String())
	}
}

// TestAsOwner checks that root has what it leaves to the user of a node done as the owner of that node directory, and
// not as the user that runs a node which root has made.
func TestAsOwner(t *testing.T) {
	const uid, gid = 54321, 54322 // of nobody here
	dir := t.TempDir()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: only root runs programs as another user")
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(ownerEnv, "1")
	var out strings.Builder
	err = AsOwner(t.Context(), l, &out, &out, []string{"-test.run", "^TestOwnerChild$", "-test.v"})
	_, said, _ := strings.Cut(out.String(), "ran as ")
	var gotUID, gotGID int
	var exe string
	if n, _ := fmt.Sscanf(said, "%d %d from %s", &gotUID, &gotGID, &exe); err != nil || n != 3 || gotUID != uid || gotGID != gid {
		t.Errorf("error %v: %s", err, out.String())
	}
	if copied := filepath.Dir(exe); filepath.Dir(copied) == "/var/cache/coterie" {
		_ = os.RemoveAll(copied)
	}
}
