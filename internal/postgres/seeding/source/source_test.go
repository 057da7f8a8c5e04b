package source

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestSourceMakesOneHeavyCopyAtATime fills a source with a window that is heavy.
func TestSourceMakesOneHeavyCopyAtATime(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	w := &window{member: "n2", files: []wire.File{{Name: "big", Size: heavyBytes}}}
	s.windows["w"] = w
	if got := s.others("n3"); len(got) != 1 || got[0] != "n2" {
		t.Errorf("n3 waits for %v", got)
	}
	if got := s.others("n2"); got != nil {
		t.Errorf("n2 waits for itself: %v", got)
	}
	w.done = time.Now()
	if got := s.others("n3"); got != nil {
		t.Errorf("n3 waits for a copy that is finished: %v", got)
	}
	w.done, w.files = time.Time{}, nil
	if got := s.others("n3"); got != nil {
		t.Errorf("n3 waits for a small copy: %v", got)
	}
}

// TestEndedWindowIsNotLost checks that a window whose backup ended while it was looked at keeps its slot.
func TestEndedWindowIsNotLost(t *testing.T) {
	t.Parallel()
	w := &window{member: "n2", ended: &wire.Ending{}}
	if err := w.check(t.Context(), 1); err != nil {
		t.Error(err)
	}
	if err := (&window{member: "n2"}).check(t.Context(), 1); err == nil {
		t.Error("a window without a session may continue")
	}
}

// TestRoomForWALIsThatOfItsDisk checks that the WAL that a copy makes a server keep is bounded by the disk of WAL.
func TestRoomForWALIsThatOfItsDisk(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	wal, err := os.MkdirTemp("/dev/shm", "cotwal")
	if err != nil {
		t.Skipf("NOT RUN: there is no second file system: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(wal) })
	if err := os.Symlink(wal, filepath.Join(data, "pg_wal")); err != nil {
		t.Fatal(err)
	}
	of := func(dir string) int64 {
		n, err := fileio.FreeSpace(dir)
		if err != nil {
			t.Fatal(err)
		}
		return n / 2
	}
	got, right, wrong := New(Config{Data: data}).maxWAL(), of(wal), of(data)
	if diff := max(right, wrong) - min(right, wrong); diff < right/10 {
		t.Skip("NOT RUN: both file systems have about the same room")
	}
	if max(got, right)-min(got, right) > max(got, wrong)-min(got, wrong) {
		t.Errorf("%d bytes; the disk of WAL allows %d, that of data %d", got, right, wrong)
	}
}
