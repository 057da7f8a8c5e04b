package provision

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
)

func TestDefaultSocket(t *testing.T) {
	dir, clusters := t.TempDir(), t.TempDir()
	if os.Getuid() == 0 {
		u, err := daemon.ServerUser()
		if err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		if err := os.Chown(dir, u.UID, -1); err != nil {
			t.Fatal(err)
		}
	}
	want := func(listen, path string) {
		t.Helper()
		if got := DefaultSocket(config.Address{Listen: listen}, dir, clusters); got != path {
			t.Errorf("%s: %q, want %q", listen, got, path)
		}
	}
	five, six := filepath.Join(dir, ".s.PGSQL.5432"), filepath.Join(dir, ".s.PGSQL.5433")
	want(":5432", five)
	want("0.0.0.0:5432", five)
	want("127.0.0.1:5432", "")
	want("", "")
	conf := filepath.Join(clusters, "15", "main", "postgresql.conf")
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		t.Fatal(err)
	}
	for text, port := range map[string]string{"port = 5433 # of it\n": "5433", "#port = 9\n": "5432", "port=1\n port '5433'\n": "5433"} {
		if got := portOfCluster(text); got != port {
			t.Errorf("%q: %s, want %s", text, got, port)
		}
	}
	if err := os.WriteFile(conf, []byte("port = 5433\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want(":5432", five)
	want(":5433", "") // a cluster of the distribution has the port, running or not
	if err := os.WriteFile(conf, []byte("#port = 5433\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want(":5433", six)
	want("10.0.0.1:5433, [::]:5433", six)
	want("10.0.0.1:5433,[fd00::1]:5433", "")
	want(":5432", "")
	if err := os.WriteFile(six+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(":5433", "") // a server runs there
}
