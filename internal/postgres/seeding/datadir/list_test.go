package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestListBehindLinks checks that nothing is missing because it is behind a symbolic link: the data directory and a
// tablespace themselves, files, and directories that are empty in a copy. A directory of data behind a link is refused.
func TestListBehindLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"real/base/5/1", "conf/postgresql.conf", "space/PG_15_1/5/2", "elsewhere/3", "spaces/note", "real/pg_wal/1"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("text"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"data": "real", "ts": "space", "real/pg_stat_tmp": "elsewhere", "real/postgresql.conf": "conf/postgresql.conf", "real/nowhere": "none",
		"real/extra": "elsewhere", "real/pg_xlog": "real/pg_wal", "real/pg_tblspc": "spaces", "spaces/7": "elsewhere",
	} {
		if err := os.Symlink(filepath.Join(dir, to), filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (names []string, err error) {
		l := &Lister{Version: "PG_15_"}
		files, err := l.List(filepath.Join(dir, "data"), []wire.Space{{OID: 7, Location: filepath.Join(dir, "ts")}})
		for _, f := range files {
			names = append(names, fmt.Sprintf("%d:%s:%d", f.Space, f.Name, f.Size))
		}
		return names, err
	}
	got, err := list()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0:base/5/1:4", "0:postgresql.conf:4", "0:pg_stat_tmp:0", "0:pg_tblspc:0", "7:PG_15_1/5/2:4"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not in the list: %q", want, got)
		}
	}
	for _, name := range got {
		if strings.Contains(name, "nowhere") || strings.Contains(name, "extra") || strings.Contains(name, "pg_xlog") || strings.Contains(name, "pg_tblspc/") || strings.Contains(name, "pg_stat_tmp/") {
			t.Errorf("%s is in the list", name)
		}
	}
	for _, link := range []string{"real/base/6", "real/pg_xact", "space/PG_15_1/6"} {
		path := filepath.Join(dir, link)
		if err := os.Symlink(filepath.Join(dir, "elsewhere"), path); err != nil {
			t.Fatal(err)
		}
		if got, err := list(); err == nil || !strings.Contains(err.Error(), link) {
			t.Errorf("%s: %v, %q", link, err, got)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestListLinksThatCannotBeRead checks that a file behind a link that the user of the server cannot read ends no copy,
// unless it is one of data. The error then says what to do.
func TestListLinksThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	for _, name := range []string{"data/base/5/1", "data/PG_VERSION", "secret/key"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("text"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"loop": "loop", "server.crt": "PG_VERSION/x", "server.key": filepath.Join(secret, "key"), "pg_stat_tmp": "pg_stat_tmp"} {
		if err := os.Symlink(to, filepath.Join(dir, "data", link)); err != nil {
			t.Fatal(err)
		}
	}
	want := "PG_VERSION base base/5 base/5/1 pg_stat_tmp"
	if os.Getuid() == 0 { // which reads everything
		want += " server.key"
	} else if err := os.Chmod(filepath.Join(secret, "key"), 0); err != nil {
		t.Fatal(err)
	}
	list := func() (string, error) {
		files, err := (&Lister{}).List(filepath.Join(dir, "data"), nil)
		var names []string
		for _, f := range files {
			names = append(names, f.Name)
		}
		return strings.Join(names, " "), err
	}
	if got, err := list(); err != nil || got != want {
		t.Errorf("%q, error %v; want %q", got, err, want)
	}
	if err := os.Symlink("2", filepath.Join(dir, "data", "base", "5", "2")); err != nil {
		t.Fatal(err)
	}
	if got, err := list(); err == nil || !strings.Contains(err.Error(), "base/5/2") || !strings.Contains(err.Error(), "make that readable") {
		t.Errorf("a file of data: %q, error %v", got, err)
	}
}
