package adopt

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestUndoBeforeTheListing takes back an adoption that ended when the reserved settings were away and the record did
// not list them yet.
func TestUndoBeforeTheListing(t *testing.T) {
	t.Parallel()
	data, state := t.TempDir(), t.TempDir()
	auto := filepath.Join(data, "postgresql.auto.conf")
	const was = "# ALTER SYSTEM\nwork_mem = '7MB'\nrestore_command = 'cp'\nhot_standby_feedback = 'on'\n"
	if err := os.WriteFile(auto, []byte(was), 0o600); err != nil {
		t.Fatal(err)
	}
	clean := func() error {
		b, err := os.ReadFile(auto)
		text := strings.ReplaceAll(string(b), "restore_command = 'cp'\n", "")
		return errors.Join(err, os.WriteFile(auto, []byte(text), 0o600))
	}
	crash := errors.New("the power is gone")
	_, err := Take(&Report{Cluster: Cluster{Data: data, ConfigFile: filepath.Join(data, "postgresql.conf")}}, "", state, func() error { return errors.Join(clean(), crash) })
	if !errors.Is(err, crash) {
		t.Fatal(err)
	}
	for range 2 { // it may be interrupted as well
		a, err := Load(state)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Undo(clean); err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(auto)
		have, want := slices.Sorted(strings.Lines(string(now))), slices.Sorted(strings.Lines(was))
		if err != nil || !slices.Equal(have, want) {
			t.Errorf("postgresql.auto.conf has %q, %v; it had %q", have, err, want)
		}
	}
}
