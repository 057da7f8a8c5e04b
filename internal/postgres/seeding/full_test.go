package seeding

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
)

// TestTargetDiskFills makes the target's disk run full half way. The seeding ends with a clear reason, and the partial
// copy cannot be started. The next seeding, once there is room, fetches only the rest. A disk that is too small from
// the start is refused before anything is copied.
func TestTargetDiskFills(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: mounting a small file system needs root")
	}
	t.Parallel()
	b := newBed(t)
	s := b.station(t, b.source(t))
	disk := func(size string) Options {
		o := s.options(t)
		dir := filepath.Dir(o.Target)
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size="+size); err != nil {
			t.Skipf("NOT RUN: no small file system can be mounted here: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		b.give(t, dir)
		o.Compression = "OFF"
		return o
	}
	o := disk("8m")
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "make room") {
		t.Errorf("a disk that is too small: %v", err)
	}

	o = disk("64m")
	o.MaxRate = func() int64 { return 16 << 20 }
	ballast := filepath.Join(filepath.Dir(o.Target), "ballast")
	var fill sync.Once
	o.Progress = func(p progress.Progress) {
		if p.Total > 0 && p.Done > p.Total/2 {
			fill.Do(func() {
				f, err := os.Create(ballast)
				if err != nil {
					return
				}
				for err == nil {
					_, err = f.Write(make([]byte, 64<<10))
				}
				_ = f.Close()
			})
		}
	}
	if _, err := Run(t.Context(), o); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk ran full, and the seeding ended with %v", err)
	}
	if !tree.HalfSeeded(o.Target, o.StateDir) || fileio.Exists(filepath.Join(o.Target, datadir.ControlFile)) {
		t.Error("what is there is not known to be half seeded")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	o.Progress, o.MaxRate = nil, nil
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Progress.Same < r.Progress.Total/4 {
		t.Errorf("only %d of %d bytes were found there", r.Progress.Same, r.Progress.Total)
	}
	b.mustStream(t, s.sock, o)
}

// TestSourceServerDies stops the source's server half way: a window does not outlive its session, and the partial copy
// cannot be started.
func TestSourceServerDies(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	o.Compression, o.MaxRate = "OFF", func() int64 { return 16 << 20 }
	var once sync.Once
	o.Progress = func(p progress.Progress) {
		if p.Total > 0 && p.Done > p.Total/2 {
			once.Do(func() { b.stop(sock) })
		}
	}
	if r, err := Run(t.Context(), o); err == nil {
		t.Fatalf("a copy of a server that died in the middle counts as whole: %+v", r)
	}
	b.mustRefuse(t, o)

	sock = b.start(t, filepath.Join(b.dir, "source"), "fsync=off")
	o.Dial, o.Progress, o.MaxRate = b.station(t, sock).dial, nil, nil
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	b.mustStream(t, sock, o)
}

// TestLimitIsOfWhatIsRead holds that a limit applies to bytes read at the source. Data that compress well do not come
// faster.
func TestLimitIsOfWhatIsRead(t *testing.T) {
	t.Parallel()
	_, _, _, o := begin(t)
	const rate = 40 << 20
	o.Compression, o.MaxRate = "LZ4", func() int64 { return rate }
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if p := r.Progress; p.Wire > p.Total/2 || p.Took.Seconds() < 0.9*float64(p.Total)/rate {
		t.Errorf("%d bytes of files, %d on the wire, took %v at %d a second", p.Total, p.Wire, p.Took, rate)
	}
}

// TestSpreadCheckpoint holds that a copy that spares its source does not make it write everything at once. A spread
// checkpoint pauses for a tenth of a second after each page (CheckpointWriteDelay), an immediate one does not.
func TestSpreadCheckpoint(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	b.must(t, sock, "CREATE TABLE dirty AS SELECT repeat('x', 1000) FROM generate_series(1, 120)")
	b.must(t, sock, "CHECKPOINT")
	b.must(t, sock, "UPDATE dirty SET repeat = 'y'") // 18 pages and more
	o.Spread = true
	var waited time.Duration // until the copying began
	o.Progress = func(p progress.Progress) {
		if p.Phase == progress.PhaseCheckpoint {
			waited = p.Took
		}
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if waited < time.Second {
		t.Errorf("the checkpoint took less than %v", waited)
	}
}
