package majors

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
)

// holding is a server that has a copy of the cluster with this system identifier.
type holding string

func (h holding) SystemID() (string, error) { return string(h), nil }

func (holding) Control(context.Context) (pgfiles.Control, error) {
	return pgfiles.Control{}, errors.ErrUnsupported
}

func (holding) SessionIn(context.Context, string) (*pgx.Conn, error) {
	return nil, errors.ErrUnsupported
}

// programsOf makes a directory with programs that say they are of this version.
func programsOf(t *testing.T, version string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, script := range map[string]string{"postgres": "echo 'postgres (PostgreSQL) " + version + "'", "initdb": "", "pg_controldata": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFollow has a replica drop its copy of the cluster that the group has left, and of no other: the files of a
// cluster that nobody here knows are left alone, as everywhere else.
func TestFollow(t *testing.T) {
	l, cfg := node(t)
	if err := os.MkdirAll(l.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg.PostgreSQL.BinDir = programsOf(t, "15.1")
	newer := programsOf(t, "16.1")
	g := ag.Group{SystemID: "16", Replicas: []ag.Replica{{ID: "n1", Major: 15}, {ID: "n2", Major: 16}}}
	members := membership.New("n1", l, slog.New(slog.DiscardHandler))
	members.Set(g)
	restarts, data := 0, ag.DataForeign
	s := New(Config{
		Self: "n1", Node: cfg, Layout: l, Members: members, Restart: func() { restarts++ },
		View: func() *ag.View {
			v := &ag.View{Quorum: true, Group: g, Record: ag.Record{Epoch: ag.EpochRecord{Phase: ag.PhaseLead, Leader: "n2"}}}
			v.Local.Data = data
			return v
		},
	})
	for _, c := range []struct {
		holds, left holding
		to          int
		says        string
	}{
		{"99", "15", 16, "not touched"},
		{"15", "", 16, "not touched"},
		{"15", "15", 17, "does not lead with PostgreSQL 17"},
		{"15", "15", 16, ""},
	} {
		s.Server = c.holds
		_, err := s.Follow(t.Context(), certs.Identity{}, api.MajorNeeds{To: c.to, BinDir: newer, Left: string(c.left)})
		u, bad := Read(l)
		if bad != nil {
			t.Fatal(bad)
		}
		if c.says == "" {
			if err != nil || restarts != 1 || u.Phase != major.Following || u.From.SystemID != "15" {
				t.Errorf("%+v: %v, %d restarts, %+v", c, err, restarts, u)
			}
			continue
		}
		if fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), c.says) || restarts != 0 || u.Phase != "" {
			t.Errorf("%+v: %v, %d restarts, %+v", c, err, restarts, u)
		}
	}
	s.Server, s.Node.PostgreSQL.BinDir = holding("16"), newer
	if _, err := s.Follow(t.Context(), certs.Identity{}, api.MajorNeeds{To: 16, BinDir: newer, Left: "15"}); fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), "nothing to drop") || restarts != 1 {
		t.Errorf("it has a copy of the new cluster: %v, %d restarts", err, restarts)
	}
}

// TestFollowWithoutData has a replica follow whose data directory somebody has removed: it needs the programs of the
// new version only, and a copy is made. Nothing is done again where it has them.
func TestFollowWithoutData(t *testing.T) {
	for _, removed := range []bool{true, false} { // or what is in it
		l, cfg := node(t)
		older := programsOf(t, "15.1")
		cfg.PostgreSQL.BinDir, cfg.PostgreSQL.Data = older, filepath.Join(l.Dir, "data")
		if err := errors.Join(os.MkdirAll(l.State(), 0o700), cfg.Save(l.Dir)); err != nil {
			t.Fatal(err)
		}
		if !removed {
			if err := os.Mkdir(cfg.PostgreSQL.Data, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		newer := programsOf(t, "16.1")
		g := ag.Group{SystemID: "16", Replicas: []ag.Replica{{ID: "n1", Major: 15}, {ID: "n2", Major: 16}}}
		members := membership.New("n1", l, slog.New(slog.DiscardHandler))
		members.Set(g)
		restarts, data := 0, ag.DataEmpty
		s := New(Config{
			Self: "n1", Node: cfg, Layout: l, Members: members, Restart: func() { restarts++ }, Server: holding(""),
			Update: func(_ context.Context, change func(*ag.Group) error) error { return change(&g) },
			View: func() *ag.View {
				v := &ag.View{Quorum: true, Group: g, Record: ag.Record{Epoch: ag.EpochRecord{Phase: ag.PhaseLead, Leader: "n2"}}}
				v.Local.Data = data
				return v
			},
		})
		s.last.Group = g
		needs := api.MajorNeeds{To: 16, BinDir: newer, Left: "15"}
		if _, err := s.Follow(t.Context(), certs.Identity{}, needs); err != nil || restarts != 1 {
			t.Fatalf("%v, %d restarts", err, restarts)
		}
		u, err := Read(l)
		if err != nil || u.Phase != major.Following {
			t.Fatalf("%+v %v", u, err)
		}
		if err := s.Drop(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		now, err := config.Load(l.Dir)
		if err != nil || now.PostgreSQL.BinDir != newer || now.PostgreSQL.Data != cfg.PostgreSQL.Data || g.Replicas[0].Major != 16 {
			t.Errorf("%+v %v, %+v", now.PostgreSQL, err, g)
		}
		if _, err := s.Follow(t.Context(), certs.Identity{}, needs); err != nil || restarts != 1 {
			t.Errorf("asked again: %v, %d restarts", err, restarts)
		}
		// The agent has had a copy made before it was asked, which the programs of the old version cannot start.
		data, s.Server, s.Node.PostgreSQL.BinDir = ag.DataPresent, holding("16"), older
		version := filepath.Join(cfg.PostgreSQL.Data, "PG_VERSION")
		if err := errors.Join(os.MkdirAll(cfg.PostgreSQL.Data, 0o700), os.WriteFile(version, []byte("16\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Follow(t.Context(), certs.Identity{}, needs); err != nil || restarts != 2 {
			t.Errorf("with a copy of the new cluster: %v, %d restarts", err, restarts)
		}
		if u, err = Read(l); err != nil || u.Phase != major.Following {
			t.Fatalf("%+v %v", u, err)
		}
		if err := s.Drop(t.Context(), u); err != nil || !exists(version) || s.Node.PostgreSQL.BinDir != newer {
			t.Errorf("the copy of the new cluster was dropped: %v", err)
		}
	}
}

// TestDropWhatIsLeft makes a copy unusable of which somebody has removed a part, or all.
func TestDropWhatIsLeft(t *testing.T) {
	l, _ := node(t)
	data := filepath.Join(l.Dir, "data")
	if err := errors.Join(os.MkdirAll(l.State(), 0o700), os.MkdirAll(data, 0o700), os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("15\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{data, filepath.Join(l.Dir, "removed"), t.TempDir()} {
		if err := New(Config{Layout: l}).disable(dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if exists(filepath.Join(data, "PG_VERSION")) || !tree.HalfSeeded(data, l.State()) {
		t.Error("it still looks like a cluster of the old version")
	}
}

// TestProgramsByRelativePath refuses a directory of programs that means another one in each process.
func TestProgramsByRelativePath(t *testing.T) {
	if _, _, err := find(t.Context(), programs.Install{}, api.MajorNeeds{To: 16, BinDir: "pg/bin"}); fail.KindOf(err) != fail.Usage || !strings.Contains(err.Error(), "absolute") {
		t.Error(err)
	}
}

// TestAnUpgradeThatCannotBeStored ends the maintenance of an upgrade whose state does not get onto the disk. That of
// somebody else stays.
func TestAnUpgradeThatCannotBeStored(t *testing.T) {
	l, _ := node(t)
	if err := os.MkdirAll(filepath.Join(l.MajorFile(), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, was := range []*ag.Maintenance{nil, {Reason: "new switches"}} {
		g := ag.Group{Maintenance: was}
		updates := 0
		s := New(Config{Layout: l, Update: func(_ context.Context, change func(*ag.Group) error) error { updates++; return change(&g) }})
		err := s.announce(t.Context(), major.Upgrade{Phase: major.Asked, Until: time.Now().Add(time.Hour)})
		if err == nil || g.Maintenance != was || updates != 2 {
			t.Errorf("%v after %d updates: %v, maintenance %+v", was, updates, err, g.Maintenance)
		}
	}
}
