package postgres

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLongestMount(t *testing.T) {
	const info = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / /data rw - ext4 /dev/sdb rw\n3 1 8:3 / /data\\040two rw - ext4 /dev/sdc rw\n4 2 8:4 / /data/pg rw - xfs /dev/sdd rw\n"
	for path, want := range map[string]string{
		"/": "/", "/database": "/", "/data": "/data", "/data/pgx": "/data", "/data/pg/main": "/data/pg", "/data two/pg": "/data two",
	} {
		if got := longestMount(info, path); got != want {
			t.Errorf("%s is on %s, want %s", path, got, want)
		}
	}
}

func TestMountLost(t *testing.T) {
	dir := t.TempDir()
	i := New(Config{PGData: filepath.Join(dir, "not", "there"), StateDir: dir})
	if why := i.MountLost(); why != "" {
		t.Errorf("nothing was noted: %s", why)
	}
	if err := i.RememberMount(); err != nil {
		t.Fatal(err)
	}
	if why := i.MountLost(); why != "" {
		t.Errorf("the same file system: %s", why)
	}
	if err := os.WriteFile(i.mountFile(), []byte(`{"mount_point":"/volumes/pg"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if why := i.MountLost(); why == "" {
		t.Error("another file system is under the data directory, and it does not matter")
	}
}
