package source

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
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
	s.opening["n4"] = false
	if got := s.others("n3"); got != nil {
		t.Errorf("n3 waits for a copy that is made elsewhere: %v", got)
	}
	s.opening["n4"] = true
	if got := s.others("n3"); len(got) != 1 || got[0] != "n4" {
		t.Errorf("beside one whose size is not known yet, n3 waits for %v", got)
	}
}

// join opens a connection of the window w of n2, which is answered like that, and returns it with what ends the
// source's part of it.
func join(t *testing.T, s *Source, h wire.Hello) (f *wire.Conn, end func()) {
	t.Helper()
	here, there := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(t.Context(), "n2", there)
		_ = there.Close()
	}()
	f = wire.NewConn(here)
	h.Version, h.Member, h.Epoch, h.Window = wire.ProtocolVersion, "n2", 1, "w"
	if err := f.WriteJSON(wire.FrameHello, h); err != nil {
		t.Fatal(err)
	}
	return f, func() { _ = here.Close(); <-served }
}

// leading is a source that leads epoch 1, with an open window of n2.
func leading() *Source {
	s := New(Config{Leads: func() (ag.Epoch, bool) { return 1, true }})
	s.windows["w"] = &window{member: "n2", info: wire.Window{ID: "w"}}
	return s
}

// TestSilentTargetIsNotRefused checks that a target which asks nothing for long, since its disk is busy, finds its
// connection ended and dials again. A refusal would end its copy.
func TestSilentTargetIsNotRefused(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]wire.Hello{"data": {Data: true}, "control": {Listed: true}} {
		synctest.Test(t, func(t *testing.T) {
			f, end := join(t, leading(), h)
			defer end()
			if err := f.Expect(wire.FrameWindow, time.Second, nil); err != nil {
				t.Fatal(err)
			}
			if kind, body, err := f.Read(2 * wire.Silence); !errors.Is(err, io.EOF) {
				t.Errorf("%s: a frame %q with %q, error %v", name, kind, body, err)
			}
		})
	}
}

// TestConnectionsThatWereCutOff opens more data connections than a copy has, as a target does whose network drops
// packets in silence. The window goes on.
func TestConnectionsThatWereCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := leading()
		var r *wire.RefusedError
		for range 2 * wire.MaxStreams {
			f, end := join(t, s, wire.Hello{Data: true})
			defer end()
			if err := f.Expect(wire.FrameWindow, time.Second, nil); err == nil {
				continue
			} else if !errors.As(err, &r) || r.Code != wire.CodeBusy {
				t.Fatal(err)
			}
		}
		if r == nil {
			t.Fatal("nothing bounds the connections")
		}
		time.Sleep(2 * wire.Silence)
		f, end := join(t, s, wire.Hello{Data: true})
		defer end()
		if err := f.Expect(wire.FrameWindow, time.Second, nil); err != nil {
			t.Errorf("after the others were noticed: %v", err)
		}
	})
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

// TestDirectoriesOfDatabases checks that the directories of databases are seen below directories of any name, also of
// one that would be a pattern: else a database that is being created goes unnoticed.
func TestDirectoriesOfDatabases(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "db[1]")
	data, space := filepath.Join(root, "data"), filepath.Join(root, "space")
	for _, dir := range []string{filepath.Join(data, "base", "5"), filepath.Join(data, "base", "pgsql_tmp"), filepath.Join(space, datadir.VersionPrefix(15)+"1", "7"), filepath.Join(space, "other", "8")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w := &window{data: data, info: wire.Window{Major: 15}, spaces: map[uint32]string{9: space}}
	want := filepath.Join(data, "base", "5") + " " + filepath.Join(space, datadir.VersionPrefix(15)+"1", "7")
	if got := w.directories(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
