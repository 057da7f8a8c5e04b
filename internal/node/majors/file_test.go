package majors

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/config"
)

// node makes a node directory with a configuration file in which a person has written.
func node(t *testing.T) (config.Layout, config.Config) {
	t.Helper()
	dir := t.TempDir()
	text := `# ours
node: n1
kind: replica
group: 6f1c0b1e-3f0e-4e0c-9a55-3f1f6a3b1a11
group_name: orders
endpoint: {listen: "127.0.0.1:5022", advertise: "127.0.0.1:5022"}
read_write: {listen: "127.0.0.1:5432", advertise: "127.0.0.1:5432"}
read_only: {listen: "127.0.0.1:5433", advertise: "127.0.0.1:5433"}
http: {listen: "127.0.0.1:8008", advertise: "127.0.0.1:8008"}
postgresql:
  bin_dir: /usr/lib/postgresql/15/bin # by the distribution
  data: "/srv/data"
  superuser: postgres
`
	if err := os.WriteFile(filepath.Join(dir, config.File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l, cfg
}

// TestName has the configuration file name another cluster, whatever its lines look like, and keep what a person wrote.
func TestName(t *testing.T) {
	l, cfg := node(t)
	for range 2 { // again after an interruption
		if err := name(l.Dir, cfg, "/usr/lib/postgresql/17/bin", "/srv/data-17"); err != nil {
			t.Fatal(err)
		}
		now, err := config.Load(l.Dir)
		if err != nil || now.PostgreSQL.BinDir != "/usr/lib/postgresql/17/bin" || now.PostgreSQL.Data != "/srv/data-17" || now.Node != "n1" || now.PostgreSQL.Superuser != "postgres" {
			t.Fatalf("%+v %v", now.PostgreSQL, err)
		}
		cfg = now
	}
	l, cfg = node(t)
	path := filepath.Join(l.Dir, config.File)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.Replace(string(b), " # by the distribution", "", 1)
	if err := os.WriteFile(path, []byte(plain), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := name(l.Dir, cfg, "/opt/17", "/srv/data-17"); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(path); err != nil || !strings.Contains(string(b), "# ours") || !strings.Contains(string(b), `data: "/srv/data-17"`) {
		t.Errorf("what a person wrote is gone: %v\n%s", err, b)
	}
}

func TestBeside(t *testing.T) {
	for _, c := range []struct {
		data     string
		from, to int
		want     string
	}{
		{"/srv/pgdata", 15, 16, "/srv/pgdata-16"},
		{"/srv/pgdata-16/", 16, 17, "/srv/pgdata-17"},
		{"/srv/pgdata-15", 16, 17, "/srv/pgdata-15-17"},
	} {
		if got := beside(c.data, c.from, c.to); got != c.want {
			t.Errorf("beside %s: %s, want %s", c.data, got, c.want)
		}
	}
}

// TestRead holds what a state on disk is read as: none, what was saved, and an error for what is damaged
// or was written by a later program.
func TestRead(t *testing.T) {
	l, _ := node(t)
	if err := os.MkdirAll(l.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	if u, err := Read(l); err != nil || u.Phase != "" {
		t.Fatalf("%+v %v", u, err)
	}
	if err := save(l, major.Upgrade{Phase: major.Made, Self: "n1"}); err != nil {
		t.Fatal(err)
	}
	if u, err := Read(l); err != nil || u.Phase != major.Made || u.Self != "n1" {
		t.Fatalf("%+v %v", u, err)
	}
	for _, text := range []string{`{"phase": "MA`, "", "{}", `{"phase": "VERIFIED", "node": "n1"}`} { // the last one by a later program
		if err := os.WriteFile(l.MajorFile(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if u, err := Read(l); err == nil {
			t.Errorf("%q was read as %+v", text, u)
		}
	}
}

// TestFixed refuses an upgrade where the configuration file could not name the other cluster, before anything changes.
func TestFixed(t *testing.T) {
	for _, c := range []struct {
		name, says string
		make       func(path string) error
	}{
		{"a plain file", "", func(string) error { return nil }},
		{"a link", "no plain file", func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		}},
		{"nothing can be written beside it", "cannot be replaced", func(path string) error { return os.Mkdir(path+".probe", 0o700) }},
		{"none", "cannot be read", os.Remove},
	} {
		l, _ := node(t)
		if err := errors.Join(os.MkdirAll(l.State(), 0o700), c.make(filepath.Join(l.Dir, config.File))); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadDir(l.Dir)
		err := New(Config{Layout: l}).start(major.Upgrade{Phase: major.Following})
		u, read := Read(l)
		if c.says == "" {
			if err != nil || u.Phase != major.Following {
				t.Errorf("%s: %v, %+v", c.name, err, u)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.says) || u.Phase != "" || read != nil {
			t.Errorf("%s: %v, %+v, %v", c.name, err, u, read)
		}
		if after, _ := os.ReadDir(l.Dir); len(after) > len(before) {
			t.Errorf("%s: it has left something behind: %v", c.name, after)
		}
	}
}
