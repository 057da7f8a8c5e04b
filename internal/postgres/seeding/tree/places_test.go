package tree

import (
	"os"
	"path/filepath"
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
