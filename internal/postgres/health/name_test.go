package health

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestPlaceOfAnyName holds that a directory is well whose name would be a pattern.
func TestPlaceOfAnyName(t *testing.T) {
	for _, has := range []string{"PG_VERSION", "PG_*"} {
		dir := filepath.Join(t.TempDir(), "db[1]*")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "PG_VERSION"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := try(testPlace(t, Place{Name: "the data directory", Dir: dir, Has: has}), 1); err != nil {
			t.Errorf("%s: %v", has, err)
		}
		if err := try(testPlace(t, Place{Name: "the data directory", Dir: dir, Has: "x" + has}), 1); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("x%s: %v", has, err)
		}
	}
}
