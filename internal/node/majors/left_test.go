package majors

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// TestLeft holds that a directory of the new cluster which cannot be removed does not keep the upgrade from being given
// up, that it is told of, and that the next start removes it.
func TestLeft(t *testing.T) {
	l := config.Layout{Dir: t.TempDir(), Run: t.TempDir()}
	old, made := filepath.Join(l.Dir, "pgdata"), filepath.Join(l.Dir, "pgdata-16")
	stuck := filepath.Join(made, "stuck")
	for _, dir := range []string{l.State(), filepath.Join(old, "global"), stuck} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(old, "PG_VERSION"), filepath.Join(stuck, "file")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, made, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		t.Fatal(err)
	}
	id := map[string]any{"inode": st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id["born"] = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	if err := durable.ReplaceJSON(madeFile(l), map[string]any{made: id}); err != nil {
		t.Fatal(err)
	}
	heal := func() { _ = os.Chmod(stuck, 0o700) }
	if os.Getuid() != 0 {
		if err := os.Chmod(stuck, 0o500); err != nil {
			t.Fatal(err)
		}
	} else if err := unix.Mount("tmpfs", stuck, "tmpfs", 0, "size=1m"); err == nil {
		heal = func() { _ = unix.Unmount(stuck, unix.MNT_DETACH) }
	} else {
		t.Skipf("NOT RUN: a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { heal() })
	s := New(Config{Layout: l, Logger: slog.New(slog.DiscardHandler), Node: config.Config{PostgreSQL: &config.PostgreSQL{Data: old}}})
	u := major.Upgrade{Phase: major.Made, From: major.Cluster{Data: old}, To: major.Cluster{Data: made}}
	if err := s.Remove(u); err != nil {
		t.Fatalf("the upgrade is not given up: %v", err)
	}
	if _, err := os.Stat(filepath.Join(old, "standby.signal")); err != nil {
		t.Error(err)
	}
	u.Phase = major.GivenUp
	if err := s.Save(u); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(t.Context()); err != nil || Left(l, u) != made {
		t.Errorf("%v, left: %q", err, Left(l, u))
	}
	heal()
	if err := s.Resume(t.Context()); err != nil || Left(l, u) != "" {
		t.Errorf("%v, left: %q", err, Left(l, u))
	}
	if _, err := os.Stat(made); !os.IsNotExist(err) {
		t.Error(err)
	}
}
