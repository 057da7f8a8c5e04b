package backups

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/planfile"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/postgres"
)

type world struct {
	archiver postgres.Archiver
	err      error // of the repository
	noServer error
	again    []ag.Timeline
	leads    bool
	none     bool
	hangs    bool // the repository does not answer
}

func (w *world) Archiver(ctx context.Context) (postgres.Archiver, error) {
	return w.archiver, errors.Join(w.noServer, ctx.Err())
}

func (w *world) Unarchived() (postgres.Unarchived, error) {
	return postgres.Unarchived{Files: 2, Since: time.Unix(50, 0), Free: 1 << 30}, nil
}

func (w *world) ArchiveAgain(before ag.Timeline) (int, error) {
	w.again = append(w.again, before)
	return 1, nil
}
func (w *world) Version(context.Context) (string, error)     { return "2.45", w.err }
func (w *world) ArchiveCommand() string                      { return "push" }
func (w *world) Reads(context.Context, string, string) error { return nil }

func (w *world) Backups(ctx context.Context) (backup.Catalog, error) {
	if w.hangs {
		<-ctx.Done()
		return backup.Catalog{}, ctx.Err()
	}
	return backup.Catalog{Backups: []backup.Backup{{Label: "F", Ended: time.Unix(100, 0)}}}, w.err
}

// start returns a service over a world in which this node is the primary of timeline 5 and archives.
func start(t *testing.T) (*world, *Service) {
	t.Helper()
	w := &world{archiver: postgres.Archiver{Mode: "on", Command: "push", Timeline: 5}, leads: true}
	l := config.Layout{Dir: t.TempDir()}
	if err := os.Mkdir(l.Backup(), 0o700); err != nil {
		t.Fatal(err)
	}
	return w, w.service(l)
}

func (w *world) service(l config.Layout) *Service {
	return New(Config{Layout: l, Server: w, Leads: func() bool { return w.leads }, Log: slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)), Open: func() (backup.Plan, Tool, error) {
		if w.none {
			return backup.Plan{}, nil, planfile.ErrNone
		}
		return backup.Plan{Tool: "pgbackrest", Repository: backup.Repository{Directory: "/backup"}}, w, nil
	}})
}

// TestArchivesAgainOnce holds that a primary archives the WAL of earlier timelines again once for each timeline that it
// writes, also over a restart of its agent, and never while another command archives or another node leads.
func TestArchivesAgainOnce(t *testing.T) {
	w, s := start(t)
	w.leads = false
	s.look(t.Context())
	w.leads, w.archiver.Command = true, "cp %p /elsewhere" // to which a file twice may be an error
	s.look(t.Context())
	w.archiver.Command, w.archiver.Recovery = "push", true
	s.look(t.Context())
	w.archiver.Recovery, w.archiver.Mode = false, "off"
	s.look(t.Context())
	if len(w.again) != 0 {
		t.Fatalf("archived again: %v", w.again)
	}
	w.archiver.Mode = "on"
	s.look(t.Context())
	s.look(t.Context())
	w.service(s.Layout).look(t.Context()) // the agent restarts
	if len(w.again) != 1 || w.again[0] != 5 {
		t.Errorf("archived again: %v", w.again)
	}
	w.archiver.Timeline = 7
	s.look(t.Context())
	if len(w.again) != 2 || w.again[1] != 7 {
		t.Errorf("archived again: %v", w.again)
	}
}

// TestGathering holds the rate at which WAL gathers: of the last minutes, and none before it has been seen for a while.
func TestGathering(t *testing.T) {
	var g gathering
	at := time.Unix(1000, 0)
	for _, x := range []struct {
		after       time.Duration
		bytes, want int64
	}{{0, 100, 0}, {5 * time.Second, 1000, 0}, {20 * time.Second, 2100, 100}, {5 * time.Minute, 2100, 6}, {12 * time.Minute, 2100, 0}, {13 * time.Minute, 0, 0}, {14 * time.Minute, 6000, 100}} {
		if got := g.add(at.Add(x.after), x.bytes); got != x.want {
			t.Errorf("%v: %d, want %d", x.after, got, x.want)
		}
	}
	if len(g) > 4 {
		t.Errorf("%d are kept", len(g))
	}
}

// TestFailing holds what is told of an archive that takes nothing: since when, how much is kept, how long the disk
// lasts.
func TestFailing(t *testing.T) {
	w, s := start(t)
	name := "000000050000000000000007"
	failed, archived := time.Unix(90, 0), time.Unix(70, 0)
	w.archiver.LastArchived, w.archiver.ArchivedAt, w.archiver.LastFailed, w.archiver.FailedAt, w.archiver.SegmentSize = &name, &archived, &name, &failed, 16<<20
	s.gathered.add(time.Now().Add(-32*time.Second), 0)
	s.look(t.Context())
	b := s.Latest()
	if b.Kept != 32<<20 || !b.Since.Equal(time.Unix(50, 0)) || b.Rate < 1<<19 || b.Rate > 1<<20 || b.FullIn == nil || *b.FullIn < 1000 || *b.FullIn > 2048 || b.Reason != "the repository /backup is not there" {
		t.Errorf("%+v", b)
	}
}

// TestAHangingRepository holds that a repository which does not answer hides nothing of the server, and that another
// one is looked at all the same.
func TestAHangingRepository(t *testing.T) {
	w, s := start(t)
	s.look(t.Context())
	name, failed := "000000050000000000000007", time.Unix(90, 0)
	w.archiver.LastFailed, w.archiver.FailedAt = &name, &failed
	w.hangs, s.asked = true, time.Unix(1, 0)
	ctx, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	s.look(ctx)
	if b := s.Latest(); !b.Primary || b.Waiting != 2 || b.LastFailed != name || b.Problem != context.DeadlineExceeded.Error() || b.LastLabel != "F" {
		t.Errorf("%+v", b)
	}
	s.asking, s.askedOf = make(chan string), "/share" // for ever
	if got := s.lookAt(filepath.Join(t.TempDir(), "gone"), 1); !strings.HasSuffix(got, "gone is not there") {
		t.Error(got)
	}
}

// TestWhy looks at a real file system that is full, healed, and can only be read.
func TestWhy(t *testing.T) {
	dir := t.TempDir()
	if got := why(filepath.Join(dir, "gone"), 1); !strings.HasSuffix(got, "gone is not there") {
		t.Error(got)
	}
	if got := why(dir, 1); got != "" {
		t.Error(got)
	}
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: mounting a file system takes root")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("NOT RUN: a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	const segment = 1 << 20
	if got := why(dir, segment); got != "" {
		t.Error(got)
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("8 MB are not full: %v", err)
	}
	if got := why(dir, segment); !strings.Contains(got, "is full: 0 B are free") {
		t.Error(got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if got := why(dir, segment); got != "" {
		t.Errorf("healed: %s", got)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if got := why(dir, segment); !strings.Contains(got, "can only be read") {
		t.Error(got)
	}
}

// TestLatest holds what is told of a primary, of a secondary, of a repository that does not answer and of no plan.
func TestLatest(t *testing.T) {
	w, s := start(t)
	if s.Latest() != nil {
		t.Error("something is known before the first look")
	}
	s.look(t.Context())
	if b := s.Latest(); !b.Enabled || !b.Primary || !b.On || !b.Ours || b.Waiting != 2 || b.LastLabel != "F" || b.Version != "2.45" || b.Problem != "" || b.Repository != "/backup" {
		t.Errorf("%+v", b)
	}
	w.archiver.Recovery, w.err, s.asked = true, errors.New("no answer"), time.Time{}
	s.look(t.Context())
	if b := s.Latest(); b.Primary || b.Problem != "no answer" || b.LastLabel != "F" {
		t.Errorf("%+v", b)
	}
	w.noServer, w.archiver.Recovery = errors.New("no server"), false
	s.look(t.Context())
	if b := s.Latest(); b.Primary || !b.Enabled {
		t.Errorf("%+v", b)
	}
	w.none = true
	s.look(t.Context())
	if b := s.Latest(); b == nil || b.Enabled {
		t.Errorf("%+v", b)
	}
}
