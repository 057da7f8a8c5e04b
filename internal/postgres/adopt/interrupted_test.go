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

// TestUndoKeepsTheAdministrators holds that a setting which the administrator made with ALTER SYSTEM after the adoption
// stays, and that one of the agent does not.
func TestUndoKeepsTheAdministrators(t *testing.T) {
	t.Parallel()
	data, state := t.TempDir(), t.TempDir()
	auto := filepath.Join(data, "postgresql.auto.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(auto, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("hot_standby_feedback = 'off'\n")
	none := func() error { return nil }
	a, err := Take(&Report{Cluster: Cluster{Data: data, ConfigFile: filepath.Join(data, "postgresql.conf")}}, "", state, none)
	if err != nil {
		t.Fatal(err)
	}
	const after = "hot_standby_feedback = 'on'\nwork_mem = '9MB'\n"
	write(after + "synchronous_standby_names = 'x'\n")
	if err := a.Undo(none); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(auto); err != nil || string(now) != after {
		t.Errorf("postgresql.auto.conf has %q, %v; it should have %q", now, err, after)
	}
}

// TestMembersSlotsAreRemoved holds that no slot of a member stays in a cluster that is given back, whatever the name of
// its directory is: it would keep all WAL from then on.
func TestMembersSlotsAreRemoved(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "db[1]")
	for _, slot := range []string{"cot_n2", "cot_seed_x", "own"} {
		if err := os.MkdirAll(filepath.Join(data, "pg_replslot", slot), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeMemberSlots(data); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(data, "pg_replslot")); err != nil || len(left) != 1 || left[0].Name() != "own" {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := removeMemberSlots(t.TempDir()); err != nil && !errors.Is(err, os.ErrNotExist) { // Undo takes that for done
		t.Error(err)
	}
}
