package api

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/unixuser"
)

// TestSocketIsForTheNodesUser holds that another user of the machine gets no answer at the management socket, even
// where the modes of its file and directory let that user connect.
func TestSocketIsForTheNodesUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root, to connect as another user")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- NewServer(&refusing{}, slog.New(slog.DiscardHandler)).ServeAdmin(ctx, socket) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(socket); err == nil || time.Now().After(end) {
			break
		}
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // the check of the user is all that there is then
			t.Fatal(err)
		}
	}
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		user    int
		answers bool
	}{{65534, false}, {0, true}} {
		if got, err := asks(socket, tt.user); (got != "") != tt.answers {
			t.Errorf("user %d hears %q, %v", tt.user, got, err)
		}
	}
}

// asks returns what the socket answers to a request of that user.
func asks(socket string, user int) (string, error) {
	c, err := unixuser.Dial(socket, user)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "GET /nothing HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}
