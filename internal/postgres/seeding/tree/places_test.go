package tree

import (
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
	other := filepath.Join(t.TempDir(), "place")
	ask := func(uint32, string) (string, error) { return other, nil }
	if places, err := MapTablespaces(target, ask, []wire.Space{mine}); err == nil || !strings.Contains(err.Error(), "remove its link") {
		t.Errorf("%v, error %v", places, err)
	}
	mine.Machine = "another"
	if places, err := MapTablespaces(target, ask, []wire.Space{mine}); err != nil || places[16384] != other {
		t.Errorf("of another machine: %v, error %v", places, err)
	}
}
