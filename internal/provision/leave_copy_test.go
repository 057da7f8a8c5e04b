package provision

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
)

// TestHoldsCopy checks that a copy from which no server could start is not one to be kept: leaving would end with it
// after the group has removed the node.
func TestHoldsCopy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files []string
		want  bool
	}{
		"nothing":                          {nil, false},
		"a copy under way":                 {[]string{"pgdata/PG_VERSION"}, false},
		"a whole one":                      {[]string{"pgdata/global/pg_control"}, true},
		"one that was not started yet":     {[]string{"pgdata/global/pg_control", "pgdata/backup_label"}, false},
		"one whose rewind was interrupted": {[]string{"pgdata/global/pg_control", "state/rewinding.json"}, false},
	} {
		l := config.Layout{Dir: t.TempDir()}
		for _, f := range tt.files {
			path := filepath.Join(l.Dir, f)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got := HoldsCopy(l, config.Config{PostgreSQL: &config.PostgreSQL{Data: l.Data()}}); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if HoldsCopy(config.Layout{Dir: t.TempDir()}, config.Config{}) {
		t.Error("a witness holds a copy")
	}
}

// TestMarksOfLostTablespaces checks that the marks go where there are any, and that a tablespace whose disk is gone
// does not keep a node from leaving.
func TestMarksOfLostTablespaces(t *testing.T) {
	t.Parallel()
	data, space := t.TempDir(), t.TempDir()
	marks := []string{filepath.Join(data, "coterie.probe"), filepath.Join(data, "coterie.copy"), filepath.Join(data, "pg_wal", "coterie.probe"), filepath.Join(space, "coterie.probe")}
	for _, dir := range []string{"pg_wal", "pg_tblspc", "global"} {
		if err := os.Mkdir(filepath.Join(data, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range append(marks, filepath.Join(data, "pg_tblspc", "note")) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for oid, place := range map[string]string{"16384": space, "16385": filepath.Join(space, "gone")} {
		if err := os.Symlink(place, filepath.Join(data, "pg_tblspc", oid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeMarks(data); err != nil {
		t.Error(err)
	}
	for _, path := range marks {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

// TestDataThatWasMoved checks that a data directory that is not there counts as moved only if it is in its new place.
func TestDataThatWasMoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := config.Config{PostgreSQL: &config.PostgreSQL{Data: filepath.Join(dir, "old")}}
	d := &Departure{Data: filepath.Join(dir, "new")}
	say := func(s string) { t.Errorf("said: %s", s) }
	if err := departData(t.Context(), config.Layout{Dir: dir}, cfg, d, say); err == nil || !strings.Contains(err.Error(), cfg.PostgreSQL.Data) {
		t.Errorf("it is in neither place: %v", err)
	}
	if err := os.Mkdir(d.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := departData(t.Context(), config.Layout{Dir: dir}, cfg, d, say); err != nil {
		t.Errorf("it was moved: %v", err)
	}
}
