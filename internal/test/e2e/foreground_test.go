package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
)

// TestEndToEndForeground restarts a node whose agent coterie init runs in the foreground, as the README has it. The
// command's process becomes the new agent, and PostgreSQL goes on.
func TestEndToEndForeground(t *testing.T) {
	long(t)
	n := newFirst(t)
	process, stop := n.runs(t, slices.DeleteFunc(slices.Clone(n.args), func(a string) bool { return a == "--no-start" })...)
	server := n.server(t)
	for range 2 { // the second time it is coterie agent that restarts
		a := must(t, "restart", "--node", n.dir)
		if !strings.Contains(a.err, "the agent of n1 was restarted") {
			t.Errorf("it says %q", a.err)
		}
		n.accepts(t)
		words, err := os.ReadFile("/proc/" + strconv.Itoa(process) + "/cmdline")
		if err != nil || !strings.Contains(string(words), "\x00agent\x00--node\x00"+n.dir) {
			t.Errorf("the process that init was is %q, %v", strings.ReplaceAll(string(words), "\x00", " "), err)
		}
		if now := n.server(t); now != server {
			t.Errorf("PostgreSQL is process %d, was %d", now, server)
		}
	}
	if err := syscall.Kill(process, 0); err != nil {
		t.Errorf("the process that init was: %v", err)
	}
	stop()
}

// server returns the process of the node's PostgreSQL.
func (n *first) server(t *testing.T) int {
	t.Helper()
	l, err := config.NewLayout(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(l.Data(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	number, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	return number
}
