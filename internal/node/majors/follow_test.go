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
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
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
	restarts := 0
	s := New(Config{
		Self: "n1", Node: cfg, Layout: l, Members: members, Restart: func() { restarts++ },
		View: func() *ag.View {
			return &ag.View{Quorum: true, Group: g, Record: ag.Record{Epoch: ag.EpochRecord{Phase: ag.PhaseLead, Leader: "n2"}}}
		},
	})
	for _, c := range []struct {
		holds, left holding
		to          int
		says        string
	}{
		{"16", "15", 16, "nothing to drop"},
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
