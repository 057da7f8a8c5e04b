package seeding

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// standbyOf makes a streaming standby of a station by seeding it, and serves copies of it as a secondary.
func (s *station) standbyOf(t *testing.T) (second *station, sock string) {
	t.Helper()
	o := s.options(t)
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	sock = s.mustStream(t, s.sock, o)
	second = &station{bed: s.bed, sock: sock}
	second.serve(t, source.Config{
		Data: o.Target, Connect: connectTo(sock),
		Leads:   func() (ag.Epoch, bool) { return 0, false },
		Follows: func() (ag.Epoch, bool) { e := s.epoch.Load(); return ag.Epoch(e), e != 0 },
	})
	return second, sock
}

// TestSeedsFromASecondary copies a secondary while the primary changes, creates databases and only keeps the WAL.
func TestSeedsFromASecondary(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	s := b.station(t, sock)
	second, _ := s.standbyOf(t)
	o := second.options(t)
	o.Anchor = s.dial
	made := &atomic.Bool{}
	o.Compression, o.MaxRate = "OFF", slowUntil(made)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() { b.disturb(ctx, t, sock) })
	var create sync.Once
	o.Progress = func(p progress.Progress) {
		if p.Windows == 1 && p.Done > 1<<20 {
			create.Do(func() {
				b.must(t, sock, "CREATE DATABASE made"+b.strategies(t, sock)[0])
				made.Store(true)
			})
		}
	}
	r, err := Run(t.Context(), o)
	cancel()
	busy.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if r.Progress.Windows < 2 {
		t.Errorf("a database was created by copying files, and one window was thought to be enough: %+v", r.Progress)
	}
	b.mustStream(t, sock, o) // from the primary, which kept the WAL that it needs
}

// TestPrimaryTellsOfWhatIsUnderWay copies a secondary while an older transaction on the primary changes a database and
// does not end. The secondary does not know of it.
func TestPrimaryTellsOfWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	s := b.station(t, sock)
	s.impatient(t)
	second, _ := s.standbyOf(t)
	b.must(t, sock, "CREATE DATABASE spare")
	conn, err := connectTo(sock)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, sql := range []string{"BEGIN", "ALTER DATABASE spare RENAME TO spared"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	o := second.options(t)
	o.Anchor = s.dial
	said := ""
	o.Progress = func(p progress.Progress) {
		if said == "" && strings.Contains(p.Waiting, "one more") {
			said = p.Waiting
			if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
				t.Error(err)
			}
		}
	}
	r, err := Run(t.Context(), o)
	if err != nil || r.Progress.Windows < 2 || !strings.Contains(said, "a database is being created") {
		t.Fatalf("%d windows, %q: %v", r.Progress.Windows, said, err)
	}
	b.mustStream(t, sock, o)
}

// TestSecondaryRefusesOutOfEpoch asks a secondary for a copy in an epoch that it does not follow, and without the
// primary's help.
func TestSecondaryRefusesOutOfEpoch(t *testing.T) {
	t.Parallel()
	source := source.New(source.Config{
		Leads:   func() (ag.Epoch, bool) { return 0, false },
		Follows: func() (ag.Epoch, bool) { return 7, true },
	})
	for name, h := range map[string]wire.Hello{
		"another epoch":   {Version: wire.ProtocolVersion, Member: "n2", Epoch: 6, After: &wire.Anchor{}},
		"no anchor":       {Version: wire.ProtocolVersion, Member: "n2", Epoch: 7},
		"asked to anchor": {Version: wire.ProtocolVersion, Member: "n2", Epoch: 7, Anchor: true},
	} {
		here, there := net.Pipe()
		var served sync.WaitGroup
		served.Go(func() { source.Serve(t.Context(), "n2", there) })
		f := wire.NewConn(here)
		if err := f.WriteJSON(wire.FrameHello, h); err != nil {
			t.Fatal(err)
		}
		var info wire.Window
		if err := f.Expect(wire.FrameWindow, time.Minute, &info); err == nil {
			t.Errorf("%s: it answered with a window", name)
		}
		_ = here.Close()
		served.Wait()
		_ = there.Close()
	}
}

// TestBeginsFromADirectory makes a copy whose files are mostly in an older one; some of the older files are damaged.
func TestBeginsFromADirectory(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	s := b.station(t, sock)
	old := s.options(t)
	first, err := Run(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	damage(t, old.Target)
	b.must(t, sock, "UPDATE t SET x = 'mine' WHERE i % 5000 = 0")
	o := s.options(t)
	o.From = old.Target
	before := names(t, old.Target)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Progress.Wire > first.Progress.Wire/2 {
		t.Errorf("%d bytes came over the wire although most was at hand; %d for a whole copy", r.Progress.Wire, first.Progress.Wire)
	}
	if after := names(t, old.Target); len(after) != len(before) {
		t.Error("the starting point was changed")
	}
	b.mustStream(t, sock, o)

	o = s.options(t)
	for name, from := range map[string]string{"nothing": filepath.Join(b.dir, "nowhere"), "no cluster": b.dir, "itself": o.Target, "relative": "old"} {
		o.From = from
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s was taken for a starting point", name)
		}
	}
	if fileio.Exists(o.Target) {
		t.Error("something was begun")
	}
}

// TestVerifyFindsDamage verifies a running server before and after a page of it is damaged on disk.
func TestVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	b.must(t, sock, "CHECKPOINT")
	v := source.VerifyOptions{Data: filepath.Join(b.dir, "source"), Connect: connectTo(sock)}
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() { b.disturb(ctx, t, sock) })
	r, err := source.Verify(t.Context(), v)
	cancel()
	busy.Wait()
	if err != nil || r.Damaged != 0 || r.Pages < 500 || !r.Checksums {
		t.Fatalf("a good server under load: %+v, %v", r, err)
	}
	b.must(t, sock, "CHECKPOINT")
	file := b.must(t, sock, "SELECT pg_relation_filepath('marked')")
	flip(t, filepath.Join(v.Data, file), 4000)
	r, err = source.Verify(t.Context(), v)
	if err != nil || r.Damaged != 1 || len(r.First) != 1 || r.First[0].File != file || r.First[0].Block != 0 {
		t.Fatalf("one damaged page: %+v, %v", r, err)
	}
}

func connectTo(sock string) func(context.Context) (*pgx.Conn, error) {
	return func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.Connect(ctx, "host="+sock+" port=5432 user=postgres dbname=postgres sslmode=disable")
	}
}

// TestWindowKeepsLittleWAL holds that a window is closed, with the reason, when its server keeps more WAL for it than
// allowed. Its slot is dropped, so that a copy that makes no progress does not fill the disk.
func TestWindowKeepsLittleWAL(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	s := &station{bed: b, sock: sock}
	s.epoch.Store(1)
	log := &lineLog{}
	s.serve(t, source.Config{
		Data: filepath.Join(b.dir, "source"), Connect: connectTo(sock), MaxWAL: func() int64 { return 4 << 20 },
		Leads: func() (ag.Epoch, bool) { return 1, true }, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	o := s.options(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var written sync.Once
	o.Compression, o.MaxRate = "OFF", func() int64 { return 1 << 20 }
	o.Progress = func(p progress.Progress) {
		if p.Done > 0 {
			written.Do(func() {
				b.must(t, sock, "SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1000000)))::text FROM generate_series(1, 8)")
			})
		}
	}
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = Run(ctx, o) }) // this begins another window, until it is ended
	const why = "has made this server keep"
	waitFor(t, "the window to be closed", func() error {
		if said := log.String(); !strings.Contains(said, why) {
			return errors.New(said)
		}
		return nil
	})
	cancel()
	copying.Wait()
	b.mustRefuse(t, o)
}

// TestWindowWhoseWALIsGone holds that a window is closed, with the reason, when the server has removed WAL that the
// copy needs: it could be finished, and never followed.
func TestWindowWhoseWALIsGone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	b.must(t, sock, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
	b.must(t, sock, "ALTER SYSTEM SET max_wal_size = '32MB'")
	b.must(t, sock, "SELECT pg_reload_conf()::text")
	s := &station{bed: b, sock: sock}
	s.epoch.Store(1)
	log := &lineLog{}
	s.serve(t, source.Config{
		Data: filepath.Join(b.dir, "source"), Connect: connectTo(sock), Logger: slog.New(slog.NewTextHandler(log, nil)),
		Leads: func() (ag.Epoch, bool) { return 1, true },
	})
	o := s.options(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var written sync.Once
	o.Compression, o.MaxRate = "OFF", func() int64 { return 1 << 20 }
	o.Progress = func(p progress.Progress) {
		if p.Done > 0 {
			written.Do(func() {
				for range 4 { // each is a segment, and each checkpoint removes what is beyond the limit
					b.must(t, sock, "SELECT pg_logical_emit_message(true, 'x', repeat('x', 1000000))::text")
					b.must(t, sock, "SELECT pg_switch_wal()::text")
					b.must(t, sock, "CHECKPOINT")
				}
			})
		}
	}
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = Run(ctx, o) }) // this begins another window, until it is ended
	waitFor(t, "the window to be closed", func() error {
		if said := log.String(); !strings.Contains(said, "max_slot_wal_keep_size is 1MB") {
			return errors.New(said)
		}
		return nil
	})
	cancel()
	copying.Wait()
	b.mustRefuse(t, o)
}

// lineLog keeps the logged lines.
type lineLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lineLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestSourceThatCannotOpenAWindow returns the reason, keeps nothing, and continues to serve.
func TestSourceThatCannotOpenAWindow(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	pages := func(set string) {
		b.must(t, sock, "ALTER SYSTEM "+set)
		b.must(t, sock, "SELECT pg_reload_conf()::text")
	}
	pages("SET full_page_writes = off")
	waitFor(t, "full_page_writes to be off", func() error {
		if s, err := b.query(t, sock, "SELECT current_setting('full_page_writes')"); err != nil || s != "off" {
			return fmt.Errorf("it is %s (%w)", s, err)
		}
		return nil
	})
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "full_page_writes is off") {
		t.Errorf("error %v", err)
	}
	if n := b.must(t, sock, "SELECT count(*)::text FROM pg_replication_slots"); n != "0" {
		t.Errorf("%s slots are left", n)
	}
	pages("RESET full_page_writes")
	waitFor(t, "a copy", func() error {
		_, err := Run(t.Context(), o)
		return err
	})
}

// names lists all entries except directories.
func names(t *testing.T, dir string) (out []string) {
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
