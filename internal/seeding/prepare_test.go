package seeding

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
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

func writeCluster(t *testing.T, target string) {
	t.Helper()
	for _, e := range cluster() {
		if e.kind == 0 {
			writeFile(t, filepath.Join(target, e.name), e.body)
		}
	}
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, state := filepath.Join(dir, "pgdata"), filepath.Join(dir, "state")
	writeCluster(t, target)
	// A tablespace, shared with a cluster of another version, and WAL on another disk.
	space, wal := filepath.Join(dir, "space"), filepath.Join(dir, "wal")
	writeFile(t, filepath.Join(space, "PG_15_2022", "5"), "ours")
	writeFile(t, filepath.Join(space, "PG_16_2023", "5"), "not ours")
	writeFile(t, filepath.Join(wal, "000000010000000000000001"), "wal")
	writeFile(t, filepath.Join(target, "pg_tblspc", "x"), "")
	for link, to := range map[string]string{"pg_tblspc/16384": space, "pg_wal": wal} {
		if err := os.Symlink(to, filepath.Join(target, link)); err != nil {
			t.Fatal(err)
		}
	}
	if HalfSeeded(target, state) {
		t.Error("a whole copy counts as half seeded")
	}
	if err := Prepare(target, state); err != nil {
		t.Fatal(err)
	}
	if !HalfSeeded(target, state) {
		t.Error("a removed copy does not count as half seeded")
	}
	left, err := os.ReadDir(target)
	if err != nil || len(left) != 1 || left[0].Name() != "pg_wal" {
		t.Errorf("left in the directory: %v (%v)", left, err)
	}
	if l, err := os.ReadDir(wal); err != nil || len(l) != 0 {
		t.Errorf("left in pg_wal: %v (%v)", l, err)
	}
	if exists(filepath.Join(space, "PG_15_2022")) || !exists(filepath.Join(space, "PG_16_2023", "5")) {
		t.Error("the tablespace was not cleared of exactly its own")
	}
	if err := Prepare(target, state); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestPrepareInterrupted stops Prepare after each of its steps in turn: nothing may be startable, and it can be repeated.
func TestPrepareInterrupted(t *testing.T) {
	t.Parallel()
	for name, upTo := range map[string]func(t *testing.T, target, state string){
		"pg_control renamed": func(*testing.T, string, string) {},
		"mark written": func(t *testing.T, target, state string) {
			if err := writeMark(state, mark{Target: target}); err != nil {
				t.Fatal(err)
			}
		},
		"PG_VERSION gone": func(t *testing.T, target, state string) {
			if err := writeMark(state, mark{Target: target}); err != nil {
				t.Fatal(err)
			}
			for _, f := range []string{"PG_VERSION", controlOld} {
				if err := os.Remove(filepath.Join(target, f)); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			target, state := filepath.Join(dir, "pgdata"), filepath.Join(dir, "state")
			writeCluster(t, target)
			if err := disable(target); err != nil {
				t.Fatal(err)
			}
			upTo(t, target, state)
			if exists(filepath.Join(target, controlName)) || !HalfSeeded(target, state) {
				t.Error("it could be started, or is not known to be half seeded")
			}
			if err := Prepare(target, state); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(target); err != nil || len(left) > 0 {
				t.Errorf("left: %v (%v)", left, err)
			}
		})
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setup func(t *testing.T, target string)
		want  string
	}{
		"foreign contents": {func(t *testing.T, target string) {
			writeFile(t, filepath.Join(target, "thesis.tex"), "years of work")
		}, "holds no PostgreSQL cluster"},
		"a file": {func(t *testing.T, target string) { writeFile(t, target, "") }, "not a directory"},
		"running server": {func(t *testing.T, target string) {
			writeCluster(t, target)
			cmd := exec.CommandContext(t.Context(), "sleep", "60")
			cmd.Dir = target
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			writeFile(t, filepath.Join(target, "postmaster.pid"), strconv.Itoa(cmd.Process.Pid)+"\n"+target+"\n")
		}, "stop it first"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			target, state := filepath.Join(dir, "pgdata"), filepath.Join(dir, "state")
			c.setup(t, target)
			before := listing(t, target)
			if err := Prepare(target, state); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if after := listing(t, target); after != before {
				t.Errorf("changed:\n%s\nto\n%s", before, after)
			}
			if exists(filepath.Join(state, markName)) {
				t.Error("a refusal left a mark")
			}
		})
	}
	dir := t.TempDir()
	for _, places := range [][2]string{{"pgdata", dir}, {dir, "state"}, {dir, filepath.Join(dir, "state")}, {"/", dir}} {
		if err := Prepare(places[0], places[1]); err == nil {
			t.Errorf("Prepare(%q, %q) was accepted", places[0], places[1])
		}
	}
}

func TestPrepareKeepsStalePidAndMode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "pgdata")
	writeCluster(t, target)
	writeFile(t, filepath.Join(target, "postmaster.pid"), strconv.Itoa(os.Getpid())+"\n") // the id lives, elsewhere
	if err := os.Chmod(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Prepare(target, filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(target); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v (%v), want 0700", st.Mode(), err)
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		b.WriteString(path + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPrepareDisablesFirst lets Prepare fail right before it removes anything: the copy is whole, and cannot be started.
func TestPrepareDisablesFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, state := filepath.Join(dir, "pgdata"), filepath.Join(dir, "state")
	writeCluster(t, target)
	if err := os.MkdirAll(filepath.Join(state, markName+".tmp"), 0o700); err != nil { // in the way of the mark
		t.Fatal(err)
	}
	if err := Prepare(target, state); err == nil {
		t.Fatal("Prepare went on without its mark")
	}
	if exists(filepath.Join(target, controlName)) || !exists(filepath.Join(target, controlOld)) {
		t.Error("the copy can still be started")
	}
	if !exists(filepath.Join(target, "base/1/1259")) {
		t.Error("something was removed before the mark was written")
	}
	if !HalfSeeded(target, state) {
		t.Error("it does not count as half seeded")
	}
}
