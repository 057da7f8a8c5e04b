package listener

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// TestPortOfAnother holds that a listener does not begin beside another program that has one of its ports, says which
// it is, and leaves that program's port as it was and its own free.
func TestPortOfAnother(t *testing.T) {
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	own, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free, taken := own.Addr().String(), other.Addr().String()
	_ = own.Close()
	cfg := newGroup(t, nil).srv.cfg
	cfg.ReadWrite, cfg.ReadOnly = free, taken
	if _, err := New(cfg); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), taken) {
		t.Errorf("a port of another program: %v", err)
	}
	for addr, want := range map[string]bool{taken: true, free: false} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if (err == nil) != want {
			t.Errorf("%s answers: %t, want %t", addr, err == nil, want)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// A socket in a shared directory: local users are admitted by default, and the server that has the name keeps it.
func TestUsualSocket(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "cotls") // a name of at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, ".s.PGSQL.5432")
	lock := path + ".lock"
	g := newGroup(t, nil) // the rules that hold without a file
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf("%d\n/var/lib/postgresql/15/main\n", os.Getppid())) // a postmaster that lives
	if failed := g.srv.SetNamed([]string{path}); failed[path] == nil || !strings.Contains(failed[path].Error(), fmt.Sprintf("process %d", os.Getppid())) {
		t.Fatalf("failed: %v", failed)
	}
	if b, err := os.ReadFile(lock); err != nil || !strings.Contains(string(b), "15/main") {
		t.Fatalf("the other server's lock is %q: %v", b, err)
	}
	write("2147480000\n/var/lib/postgresql/15/main\n") // one that has ended
	if failed := g.srv.SetNamed([]string{path}); len(failed) != 0 {
		t.Fatalf("failed: %v", failed)
	}
	if b, err := os.ReadFile(lock); err != nil || !strings.HasPrefix(string(b), fmt.Sprintf("%d\n", os.Getpid())) {
		t.Errorf("the lock is %q: %v", b, err)
	}
	me := "somebody"
	if os.Getuid() == 0 {
		me = "root"
		g.role(me, "login")
		conn, err := pgx.Connect(t.Context(), "host="+dir+" user=root dbname=postgres")
		if err != nil {
			t.Fatal(err)
		}
		if got := value[string](t, conn, "select session_user::text || ' ' || current_setting('coterie.client_addr')"); got != "root local" {
			t.Errorf("the peer is %s", got)
		}
		_ = conn.Close(t.Context())
	}
	if _, err := pgx.Connect(t.Context(), "host="+dir+" user=postgres dbname=postgres"); sqlstate(err) != "28000" {
		t.Errorf("%s came in as postgres: %v", me, err)
	}
	g.srv.SetNamed(nil)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
