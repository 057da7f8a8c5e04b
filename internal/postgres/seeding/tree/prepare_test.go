package tree

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// oldCopy makes an imitation of a data directory. A cluster of another version shares its tablespace, and its WAL is on
// another disk.
func oldCopy(t *testing.T, dir string) (target, state string) {
	t.Helper()
	target, state = filepath.Join(dir, "pgdata"), filepath.Join(dir, "state")
	for name, text := range map[string]string{
		"PG_VERSION": "15\n", "global/pg_control": "control", "base/5/1": "one", "base/5/2": "two", "base/6/9": "dropped", "postmaster.pid": "999999999\n",
		"coterie.copy": "copy", "log/old.log": "log", "pg_xact/0000": "xact", "standby.signal": "", "pg_replslot/s/state": "slot", "postgresql.auto.conf": "a = 1\n",
		"pg_tblspc/x": "",
	} {
		writeFile(t, filepath.Join(target, name), text)
	}
	writeFile(t, filepath.Join(dir, "space", "PG_15_2022", "5"), "ours")
	writeFile(t, filepath.Join(dir, "space", "PG_16_2023", "5"), "not ours")
	writeFile(t, filepath.Join(dir, "wal", "000000010000000000000001"), "wal")
	for link, to := range map[string]string{"pg_tblspc/16384": "space", "pg_wal": "wal"} {
		if err := os.Symlink(filepath.Join(dir, to), filepath.Join(target, link)); err != nil {
			t.Fatal(err)
		}
	}
	return target, state
}

func TestPrepareAndShapeKeepWhatCanBeCompared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, state := oldCopy(t, dir)
	if HalfSeeded(target, state) {
		t.Error("a whole copy counts as half seeded")
	}
	fresh, err := Prepare(target, state, nil, 15)
	if err != nil || fresh {
		t.Fatalf("fresh %v, error %v", fresh, err)
	}
	if !HalfSeeded(target, state) || fileio.Exists(filepath.Join(target, datadir.ControlFile)) {
		t.Error("a copy under way does not count as half seeded")
	}
	if fileio.Exists(filepath.Join(dir, "space", "PG_15_2022")) || !fileio.Exists(filepath.Join(dir, "space", "PG_16_2023", "5")) {
		t.Error("of the tablespace that is not used any more, the wrong part is left")
	}
	tree, err := Open(target, nil, 15)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	files := []wire.File{
		{Name: "base", Dir: true},
		{Name: "base/5", Dir: true},
		{Name: "base/5/1", Size: 7},
		{Name: "base/5/new", Size: 4},
		{Name: "PG_VERSION", Size: 3},
		{Name: "pg_wal", Dir: true},
		{Name: "pg_wal/archive_status", Dir: true},
		{Name: "pg_replslot", Dir: true},
		{Name: "pg_tblspc", Dir: true},
		{Name: "pg_xact", Dir: true},
		{Name: "pg_xact/0000", Size: 2},
		{Name: "global", Dir: true},
		{Name: "postgresql.auto.conf", Size: 99},
	}
	had, err := tree.Shape(files, true)
	if err != nil {
		t.Fatal(err)
	}
	if had[2] != 3 || had[3] != 0 || had[10] != 2 {
		t.Errorf("lengths %v", had)
	}
	if err := tree.Finish(files, true, map[int]int64{2: 2}, map[int]bool{3: true}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PG_VERSION", "base/5/1", "coterie.copy", "global/pg_control.reseeding", "pg_wal", "pg_xact/0000", "postgresql.auto.conf",
	}
	if got := leaves(t, target); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("left: %q, want %q", got, want)
	}
	if b, _ := os.ReadFile(filepath.Join(target, "base/5/1")); string(b) != "on" {
		t.Errorf("the file that was cut holds %q", b)
	}
	if got := leaves(t, filepath.Join(dir, "wal")); len(got) != 0 {
		t.Errorf("left of the WAL: %q", got)
	}
	if !fileio.Exists(filepath.Join(dir, "wal", "archive_status")) {
		t.Error("archive_status was not made on the other disk")
	}
}

// leaves lists all entries except directories.
func leaves(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestShapeBehindALink checks that the old copy in a tablespace that is behind a symbolic link is seen: what the source
// lacks goes, and what it has is compared.
func TestShapeBehindALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, place := filepath.Join(dir, "pgdata"), filepath.Join(dir, "place")
	writeFile(t, filepath.Join(target, "PG_VERSION"), "15\n")
	writeFile(t, filepath.Join(dir, "far", "PG_15_1", "5", "1"), "one")
	writeFile(t, filepath.Join(dir, "far", "PG_15_1", "5", "2"), "dropped")
	if err := os.Symlink(filepath.Join(dir, "far"), place); err != nil {
		t.Fatal(err)
	}
	tree, err := Open(target, map[uint32]string{7: place}, 15)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	had, err := tree.Shape([]wire.File{{Space: 7, Name: "PG_15_1", Dir: true}, {Space: 7, Name: "PG_15_1/5", Dir: true}, {Space: 7, Name: "PG_15_1/5/1", Size: 9}}, true)
	if err != nil || had[2] != 3 {
		t.Errorf("lengths %v, error %v", had, err)
	}
	if got := leaves(t, filepath.Join(dir, "far")); strings.Join(got, " ") != "PG_15_1/5/1" {
		t.Errorf("left in the tablespace: %q", got)
	}
}

// TestShapeRefusesAnUnknownTablespace checks that a list cannot end the agent.
func TestShapeRefusesAnUnknownTablespace(t *testing.T) {
	t.Parallel()
	tree, err := Open(t.TempDir(), nil, 15)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if _, err := tree.Shape([]wire.File{{Space: 9, Name: "PG_15_1", Dir: true}}, true); err == nil || !strings.Contains(err.Error(), "did not name") {
		t.Errorf("error %v", err)
	}
}

func TestPrepareRemembersThatNothingWasThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, state := filepath.Join(dir, "pgdata"), filepath.Join(dir, "state")
	for try := range 2 {
		fresh, err := Prepare(target, state, nil, 15)
		if err != nil || !fresh {
			t.Fatalf("try %d: fresh %v, error %v", try, fresh, err)
		}
		writeFile(t, filepath.Join(target, "PG_VERSION"), "15\n") // half of a copy, received before an interruption
	}
}

// TestMarkOfAnInstalledCopy kills a target between the installation of its copy and the end of its mark. By the next
// copy the place of a tablespace that was dropped is somebody else's.
func TestMarkOfAnInstalledCopy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, state, place := filepath.Join(dir, "pgdata"), filepath.Join(dir, "state"), filepath.Join(dir, "place")
	installed := func() {
		t.Helper()
		if fresh, err := Prepare(target, state, map[uint32]string{7: place}, 15); err != nil || !fresh {
			t.Fatalf("fresh %v, error %v", fresh, err)
		}
		for _, name := range []string{"PG_VERSION", datadir.ControlFile, datadir.ControlOld} {
			writeFile(t, filepath.Join(target, name), "15\n")
		}
	}
	installed()
	writeFile(t, filepath.Join(place, "PG_15_1", "5"), "somebody's")
	fresh, err := Prepare(target, state, nil, 15)
	if err != nil || fresh {
		t.Errorf("fresh %v, error %v", fresh, err)
	}
	if !fileio.Exists(filepath.Join(place, "PG_15_1", "5")) {
		t.Error("what is somebody else's was removed")
	}
	if m, err := ReadUnfinished(state); err != nil || len(m.Tablespaces) > 0 {
		t.Errorf("%+v, %v", m, err)
	}
	if err := errors.Join(os.RemoveAll(target), os.RemoveAll(place), os.RemoveAll(state)); err != nil {
		t.Fatal(err)
	}
	installed()
	if err := Tidy(target, state); err != nil {
		t.Error(err)
	}
	if _, err := ReadUnfinished(state); !errors.Is(err, os.ErrNotExist) || fileio.Exists(filepath.Join(target, datadir.ControlOld)) {
		t.Errorf("the mark is there (%v), or the old pg_control", err)
	}
}

// TestMarkForgetsWhatIsRemoved interrupts a copy that has removed the tablespace of the one before. When it goes on,
// the place is somebody else's.
func TestMarkForgetsWhatIsRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, state := oldCopy(t, dir)
	prepare := func() {
		t.Helper()
		if _, err := Prepare(target, state, nil, 15); err != nil {
			t.Fatal(err)
		}
	}
	prepare()
	if err := os.RemoveAll(filepath.Join(target, "pg_tblspc")); err != nil { // as Shape does
		t.Fatal(err)
	}
	somebodys := filepath.Join(dir, "space", "PG_15_2022", "6")
	writeFile(t, somebodys, "")
	prepare()
	if !fileio.Exists(somebodys) {
		t.Error("what is somebody else's was removed")
	}
}

// TestMarkOfACopyUnderWay checks that nothing is tidied of a copy that is not installed.
func TestMarkOfACopyUnderWay(t *testing.T) {
	t.Parallel()
	target, state := oldCopy(t, t.TempDir())
	if err := Tidy(target, state); err != nil || !fileio.Exists(filepath.Join(target, datadir.ControlFile)) {
		t.Error(err)
	}
	if _, err := Prepare(target, state, nil, 15); err != nil {
		t.Fatal(err)
	}
	if err := Tidy(target, state); err != nil || !HalfSeeded(target, state) || !fileio.Exists(filepath.Join(target, datadir.ControlOld)) {
		t.Error(err)
	}
	if m, err := ReadUnfinished(state); err != nil || m.Target != target {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestDiskThatLostAWrite checks that files of which the disk has failed to write a part are not compared: what is read
// of them may be in the page cache only. The node's own files stay.
func TestDiskThatLostAWrite(t *testing.T) {
	dir := t.TempDir()
	target, state := oldCopy(t, dir)
	place := filepath.Join(dir, "space")
	spaces := map[uint32]string{16384: place}
	if _, err := Prepare(target, state, spaces, 15); err != nil {
		t.Fatal(err)
	}
	tree, err := Open(target, spaces, 15)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	syncfs = func(int) error { return unix.EIO }
	err = tree.Sync()
	syncfs = unix.Syncfs
	if !errors.Is(err, ErrUnwritten) || !errors.Is(err, unix.EIO) {
		t.Fatalf("error %v", err)
	}
	if err := MarkUnwritten(state); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if fresh, err := Prepare(target, state, spaces, 15); err != nil || fresh {
			t.Fatalf("fresh %v, error %v", fresh, err)
		}
		want := []string{"coterie.copy", "global/pg_control.reseeding", "pg_wal", "postgresql.auto.conf"}
		if got := leaves(t, target); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("left: %q, want %q", got, want)
		}
		if fileio.Exists(filepath.Join(place, "PG_15_2022")) || !fileio.Exists(filepath.Join(place, "PG_16_2023", "5")) {
			t.Error("of the tablespace the wrong part is left")
		}
	}
	writeFile(t, filepath.Join(target, "base", "5", "1"), "again")
	if _, err := Prepare(target, state, spaces, 15); err != nil || !fileio.Exists(filepath.Join(target, "base", "5", "1")) {
		t.Errorf("later files are gone, too: %v", err)
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	t.Run("somebody's files", func(t *testing.T) {
		target := filepath.Join(dir, "photos")
		writeFile(t, filepath.Join(target, "holiday.jpg"), "jpg")
		if _, err := Prepare(target, filepath.Join(dir, "s"), nil, 15); err == nil || !strings.Contains(err.Error(), "holiday.jpg") || !fileio.Exists(filepath.Join(target, "holiday.jpg")) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a running server", func(t *testing.T) {
		target, state := oldCopy(t, filepath.Join(dir, "running"))
		cmd := exec.Command("sleep", "60")
		cmd.Dir = target
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		for _, pid := range []int{cmd.Process.Pid, -cmd.Process.Pid} { // the latter as a single-user server writes it
			writeFile(t, filepath.Join(target, "postmaster.pid"), strconv.Itoa(pid)+"\n")
			if _, err := Prepare(target, state, nil, 15); err == nil || !strings.Contains(err.Error(), "stop it first") || !fileio.Exists(filepath.Join(target, datadir.ControlFile)) {
				t.Errorf("process %d: error %v", pid, err)
			}
		}
	})
	t.Run("a tablespace in use", func(t *testing.T) {
		target, state := filepath.Join(dir, "new"), filepath.Join(dir, "newstate")
		place := filepath.Join(dir, "occupied")
		writeFile(t, filepath.Join(place, "PG_15_2022", "5"), "somebody's")
		if _, err := Prepare(target, state, map[uint32]string{7: place}, 15); err == nil || !strings.Contains(err.Error(), "is in use") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("state inside the data directory", func(t *testing.T) {
		if _, err := CheckPlaces(filepath.Join(dir, "d"), filepath.Join(dir, "d", "state")); err == nil {
			t.Error("taken")
		}
	})
	t.Run("another cluster", func(t *testing.T) {
		target, _ := oldCopy(t, filepath.Join(dir, "other"))
		if err := CheckOldCopy(target, "1", 16); err == nil || !strings.Contains(err.Error(), "PostgreSQL 15") {
			t.Errorf("error %v", err)
		}
		writeFile(t, filepath.Join(target, datadir.ControlFile), "12345678")
		if err := CheckOldCopy(target, "1", 15); err == nil || !strings.Contains(err.Error(), "another cluster") {
			t.Errorf("error %v", err)
		}
	})
}

func TestStripAutoConf(t *testing.T) {
	t.Parallel()
	in := "# comment\nwork_mem = '7MB'\nprimary_conninfo = 'host=x'\n Recovery_Target_Timeline='latest'\nsynchronous_standby_names = 'ANY 1 (a)'\nrestore_command=''\nprimary_slot_name 'x'\n"
	if got := string(stripAutoConf([]byte(in))); got != "# comment\nwork_mem = '7MB'\n" {
		t.Errorf("left: %q", got)
	}
}
