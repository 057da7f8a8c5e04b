package backups

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

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
}

func (w *world) Archiver(context.Context) (postgres.Archiver, error) { return w.archiver, w.noServer }

func (w *world) Unarchived() (int, error) { return 2, nil }

func (w *world) ArchiveAgain(before ag.Timeline) (int, error) {
	w.again = append(w.again, before)
	return 1, nil
}
func (w *world) Version(context.Context) (string, error)     { return "2.45", w.err }
func (w *world) ArchiveCommand() string                      { return "push" }
func (w *world) Reads(context.Context, string, string) error { return nil }

func (w *world) Backups(context.Context) (backup.Catalog, error) {
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
