package underway

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/config"
)

// TestMain is also the process that TestKilled kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("UNDERWAY_TEST"); dir != "" {
		_, err := Begin(dir, backup.Run{ID: "killed", Kind: backup.Full, Started: time.Now()})
		if _, bad := BeginRestore(dir, backup.Restore{ID: "killed", Dir: filepath.Join(dir, "target"), Started: time.Now()}); errors.Join(err, bad) != nil {
			os.Exit(1)
		}
		if _, _, err := Scratch("coterie-underway-test-"); err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("begun\n")
		time.Sleep(time.Minute)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestRun holds what is told of a run while it is under way and after it, and that a second one is refused meanwhile.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if r := Read(dir); r.ID != "" || r.UnderWay() {
		t.Errorf("before: %+v", r)
	}
	r, err := Begin(dir, backup.Run{ID: "one", Kind: backup.Full, Started: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	r.Tell(backup.Progress{Percent: 43})
	if now := Read(dir); !now.UnderWay() || now.Percent != 43 || now.Err() != nil {
		t.Errorf("%+v", now)
	}
	if _, err := Begin(dir, backup.Run{ID: "two"}); err == nil || !strings.Contains(err.Error(), "a backup is under way on this node (full, since ") {
		t.Error(err)
	}
	r.End(backup.Backup{Label: "F"}, nil)
	if now := Read(dir); now.UnderWay() || now.Made.Label != "F" || now.Err() != nil || now.Percent != 100 {
		t.Errorf("%+v", now)
	}
	if r, err = Begin(dir, backup.Run{ID: "two"}); err != nil {
		t.Fatal(err)
	}
	r.End(backup.Backup{}, errors.New("no room"))
	if now := Read(dir); now.UnderWay() || now.Err() == nil || now.Err().Error() != "no room" {
		t.Errorf("%+v", now)
	}
}

// TestKilled holds that a run, a restore and a directory with secrets are those of an interrupted process once it is
// killed, that the restore can be taken back, and that the next process removes the secrets.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	target := filepath.Join(dir, "target")
	if err := os.MkdirAll(filepath.Join(target, "pgdata", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), "UNDERWAY_TEST="+dir)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if now := Read(dir); !now.UnderWay() {
		t.Errorf("%+v", now)
	}
	if all := Restores(dir); len(all) != 1 || all[0].Interrupted || all[0].Dir != target {
		t.Errorf("%+v", all)
	}
	if _, err := Undo(target); err == nil || !strings.Contains(err.Error(), "is under way") {
		t.Error(err)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if now := Read(dir); now.UnderWay() || now.Failure != Interrupted {
		t.Errorf("%+v", now)
	}
	if all := Restores(dir); len(all) != 1 || !all[0].Interrupted {
		t.Errorf("%+v", all)
	}
	if r, err := Undo(target); err != nil || r.ID != "killed" {
		t.Errorf("%+v, %v", r, err)
	}
	if left, err := os.ReadDir(target); err != nil || len(left) != 0 || len(Restores(dir)) != 0 {
		t.Errorf("%v, %v, %v", left, err, Restores(dir))
	}
	left, remove, err := Scratch("coterie-underway-test-")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := filepath.Glob(filepath.Join(filepath.Dir(left), "coterie-underway-test-*")); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	if err := errors.Join(remove(), remove()); err != nil {
		t.Error(err)
	}
}

// TestUndoIsRefused holds that nothing is removed which no interrupted restore has left.
func TestUndoIsRefused(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(dir string) error{
		"no mark": func(string) error { return nil },
		"a mark of nothing": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, MarkFile), []byte(`{"id":"../x"}`), 0o600)
		},
		"a node that is whole": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, MarkFile), []byte(`{"id":"x"}`), 0o600), os.WriteFile(filepath.Join(dir, config.File), nil, 0o600))
		},
		"a link": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "m"), []byte(`{"id":"x"}`), 0o600), os.Symlink("m", filepath.Join(dir, MarkFile)))
		},
	} {
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "data"), nil, 0o600), make(dir)); err != nil {
			t.Fatal(err)
		}
		if _, err := Undo(dir); err == nil {
			t.Errorf("%s: it is removed", name)
		}
		if _, err := os.Stat(filepath.Join(dir, "data")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUndoOfAnother holds that root removes nothing by a mark which another user has put into its directory.
func TestUndoOfAnother(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: giving a file to another user takes root")
	}
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, MarkFile)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "data"), nil, 0o600), os.WriteFile(path, []byte(`{"id":"x"}`), 0o600), os.Chown(path, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if _, err := Undo(dir); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err != nil {
		t.Error(err)
	}
}

// TestDrill holds that the end of a drill that was interrupted removes its directory, and that a node forgets one whose
// directory is gone.
func TestDrill(t *testing.T) {
	t.Parallel()
	at, dir := t.TempDir(), filepath.Join(t.TempDir(), "drill")
	for range 2 {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		m, err := BeginRestore(at, backup.Restore{ID: "d", Dir: dir, Drill: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range m.files { // as the kernel does for a process that is killed
			_ = f.Close()
		}
		if r, err := Undo(dir); err != nil || !r.Drill {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := BeginRestore(at, backup.Restore{ID: "d", Dir: dir, Drill: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.files {
		_ = f.Close()
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if all := Restores(at); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	if all, _ := filepath.Glob(nodeFile(at, "*")); len(all) != 0 {
		t.Errorf("%v", all)
	}
}
