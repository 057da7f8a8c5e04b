package tree

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestTablespaceOfTheSourceItself refuses a place for a tablespace that is the source's own, under whatever name.
func TestTablespaceOfTheSourceItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	mine := wire.Space{OID: 16400, Location: dir}
	mine.Identify()
	for place, refused := range map[string]bool{dir: true, link: true, t.TempDir(): false, filepath.Join(dir, "none"): false} {
		ask := func(uint32, string) (string, error) { return place, nil }
		if _, err := MapTablespaces("/nowhere/pgdata", ask, []wire.Space{mine}); (err != nil) != refused {
			t.Errorf("%s: %v", place, err)
		}
	}
}

// TestOldCopyInTheTablespaceOfTheSource refuses a data directory that was copied by hand beside its source: its links
// lead to the source's own tablespaces, which would be removed with the old copy.
func TestOldCopyInTheTablespaceOfTheSource(t *testing.T) {
	t.Parallel()
	target, _ := oldCopy(t, t.TempDir())
	space, err := os.Readlink(filepath.Join(target, "pg_tblspc", "16384"))
	if err != nil {
		t.Fatal(err)
	}
	mine := wire.Space{OID: 16384, Location: space}
	mine.Identify()
	if err := CheckLinks(target, wire.Window{Spaces: []wire.Space{mine}}); err == nil || !strings.Contains(err.Error(), "remove its link") {
		t.Errorf("error %v", err)
	}
	mine.Machine = "another"
	if err := CheckLinks(target, wire.Window{Spaces: []wire.Space{mine}}); err != nil {
		t.Errorf("of another machine: error %v", err)
	}
}

// TestOldCopyWithTheWALOfTheSource refuses such a data directory whose pg_wal is a link to that of its source.
func TestOldCopyWithTheWALOfTheSource(t *testing.T) {
	t.Parallel()
	target, _ := oldCopy(t, t.TempDir())
	real := filepath.Join(filepath.Dir(target), "wal")
	mine := wire.Space{Location: real}
	mine.Identify()
	if err := CheckLinks(target, wire.Window{WAL: mine}); err == nil || !strings.Contains(err.Error(), "the source has its own WAL") {
		t.Errorf("error %v", err)
	}
	other := wire.Space{Location: t.TempDir()}
	other.Identify()
	for name, wal := range map[string]wire.Space{"another": other, "of a source of an earlier version": {}} {
		if err := CheckLinks(target, wire.Window{WAL: wal}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTablespacesOfACopyOfAnyName finds the tablespaces of an old copy in a directory whose name would be a pattern:
// what is in them is removed with the copy.
func TestTablespacesOfACopyOfAnyName(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "db[1]")
	links := filepath.Join(target, "pg_tblspc")
	err := errors.Join(os.MkdirAll(links, 0o700), os.WriteFile(filepath.Join(target, "PG_VERSION"), []byte("15\n"), 0o600),
		os.Symlink("/ours", filepath.Join(links, "16384")), os.Symlink("/theirs", filepath.Join(links, "elsewhere")))
	if err != nil {
		t.Fatal(err)
	}
	if got := linkedTablespaces(target); len(got) != 1 || got[0].Location != "/ours" {
		t.Errorf("%+v", got)
	}
}
