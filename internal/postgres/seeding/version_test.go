package seeding

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestRefusesAnotherVersion holds that nothing is copied from a source that the programs of this node could not start
// a copy of, and that the directory stays as it is.
func TestRefusesAnotherVersion(t *testing.T) {
	t.Parallel()
	for _, major := range []int{0, 15, 16} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
			t.Fatal(err)
		}
		s := &seeder{
			o:     Options{Target: filepath.Join(dir, "pgdata"), StateDir: filepath.Join(dir, "state"), Major: major},
			watch: progress.NewWatcher(nil, nil), info: wire.Window{SystemID: "7", Major: 16, Page: 8192},
			files: []wire.File{{Name: "base/1/112", Size: 8192}},
		}
		err := s.prepare()
		if refused := errors.Is(err, ErrVersion); refused != (major == 15) || refused && !strings.Contains(err.Error(), "runs PostgreSQL 16") {
			t.Errorf("programs of %d: %v", major, err)
		}
		if _, err := os.Stat(s.o.Target); major == 15 && err == nil {
			t.Error("the directory was touched")
		}
		s.close()
	}
}
