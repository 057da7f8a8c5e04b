package listener

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The socket in a directory that is not ours alone: peers come in by default, and whoever has the name keeps it.
func TestUsualSocket(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "cotls") // a name of at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, ".s.PGSQL.5432")
	lock := path + ".lock"
	g := newGroup(t, nil) // the rules that hold where there is no file
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
	write("2147480000\n/var/lib/postgresql/15/main\n") // one that is gone
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
