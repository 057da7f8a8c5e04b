package postgres

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestArchiveAgain holds which files are noted as to be archived: whole segments of earlier timelines that are still
// there.
func TestArchiveAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	i := New(Config{PGData: dir})
	status := filepath.Join(dir, "pg_wal", "archive_status")
	if err := os.MkdirAll(status, 0o700); err != nil {
		t.Fatal(err)
	}
	touch := func(path string) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		"000000030000000000000007", "000000010000000000000006", "000000030000000000000008.partial", "00000004.history", "000000040000000000000008", "000000030000000000000004.00000028.backup",
	} {
		touch(filepath.Join(dir, "pg_wal", name))
		touch(filepath.Join(status, name+".done"))
	}
	touch(filepath.Join(status, "000000030000000000000002.done")) // its segment is gone
	touch(filepath.Join(status, "000000030000000000000005.ready"))
	n, err := i.ArchiveAgain(4)
	entries, _ := os.ReadDir(status)
	var ready []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".ready"); ok {
			ready = append(ready, name)
		}
	}
	if want := []string{"000000010000000000000006", "000000030000000000000005", "000000030000000000000007"}; err != nil || n != 2 || !slices.Equal(ready, want) {
		t.Errorf("%d, %v: %q", n, err, ready)
	}
	long := time.Now().Add(-3 * time.Hour).Truncate(time.Second)
	if err := os.Chtimes(filepath.Join(status, "000000010000000000000006.ready"), long, long); err != nil {
		t.Fatal(err)
	}
	if u, err := i.Unarchived(); u.Files != 3 || !u.Since.Equal(long) || u.Free <= 0 || err != nil {
		t.Errorf("%+v wait, %v", u, err)
	}
	if n, err = i.ArchiveAgain(4); n != 0 || err != nil {
		t.Errorf("a second time: %d, %v", n, err)
	}
}
