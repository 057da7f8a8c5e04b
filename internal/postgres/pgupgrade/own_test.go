package pgupgrade_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// TestForeignDirectories holds that no look and no upgrade removes a directory that it has not made, or ends a process
// there: one that came between the look and the upgrade, one in the place of a look, or one behind a link.
func TestForeignDirectories(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(j pgupgrade.Job, at, theirs string) error // at is a place of the job
	}{
		{"a directory", func(_ pgupgrade.Job, at, theirs string) error { return os.Rename(theirs, at) }},
		{"a link", func(_ pgupgrade.Job, at, theirs string) error { return os.Symlink(theirs, at) }},
		{"in the place of our own", func(j pgupgrade.Job, at, theirs string) error {
			return errors.Join(j.Mkdir(at), os.Rename(at, at+".ours"), os.Rename(theirs, at))
		}},
	} {
		for _, place := range []string{"new", "wal", "t"} {
			dir := t.TempDir()
			j := pgupgrade.Job{
				Old: pgupgrade.Side{Data: filepath.Join(dir, "data"), WAL: filepath.Join(dir, "wal-old")}, New: pgupgrade.Side{Data: filepath.Join(dir, "new"), WAL: filepath.Join(dir, "wal")},
				Work: filepath.Join(dir, "w"), Tried: filepath.Join(dir, "t"), Made: filepath.Join(dir, "made"),
			}
			at, theirs := filepath.Join(dir, place), filepath.Join(dir, "theirs")
			if err := errors.Join(os.MkdirAll(j.Old.Data+"/pg_tblspc", 0o700), os.Mkdir(j.Old.Data+"/pg_replslot", 0o700), os.Mkdir(theirs, 0o700), os.WriteFile(theirs+"/file", nil, 0o600), c.make(j, at, theirs)); err != nil {
				t.Fatal(err)
			}
			process := exec.CommandContext(t.Context(), "sleep", "60")
			if process.Dir = at; process.Start() != nil {
				t.Fatal("sleep did not start")
			}
			err := j.Undo(t.Context())
			if place == "t" {
				err = nil
				if err := j.Clear(t.Context()); err == nil || !strings.Contains(err.Error(), "move it away") {
					t.Errorf("%s at %s: a look clears it: %v", c.name, place, err)
				}
			} else if err := j.Make(t.Context()); err == nil || !strings.Contains(err.Error(), "move it away") {
				t.Errorf("%s at %s: the upgrade was made there: %v", c.name, place, err)
			}
			if err != nil {
				t.Errorf("%s at %s: the old cluster is not given back: %v", c.name, place, err)
			}
			if _, err := os.Stat(at + "/file"); err != nil {
				t.Errorf("%s at %s: %v", c.name, place, err)
			}
			_ = process.Process.Signal(syscall.SIGTERM)
			if _ = process.Wait(); process.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
				t.Errorf("%s at %s: a process was ended there: %v", c.name, place, process.ProcessState)
			}
		}
	}
}

// TestUnsafePrograms holds that programs are refused whose pg_dump lets the owner of an object run commands.
func TestUnsafePrograms(t *testing.T) {
	for version, unsafe := range map[programs.Install]bool{
		{Major: 15, Num: 150013}: true, {Major: 15, Num: 150014}: false, {Major: 16, Num: 160009}: true, {Major: 16, Num: 160010}: false,
		{Major: 17, Num: 170000}: true, {Major: 17, Num: 170005}: true, {Major: 17, Num: 170006}: false, {Major: 18, Num: 180000}: false, {}: false,
	} {
		if why := pgupgrade.Unsafe(version); (why != "") != unsafe {
			t.Errorf("%d: %q", version.Num, why)
		}
	}
}
