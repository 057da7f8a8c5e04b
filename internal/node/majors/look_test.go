package majors

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
)

// TestPlaceOfTheWAL has the WAL of the new cluster beside that of the old one where pg_wal is a link, and refuses where
// that could not be.
func TestPlaceOfTheWAL(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(dir, wal string) error // wal is the path of pg_wal
		to   string                      // in dir
		says string
	}{
		{"a directory", func(_, wal string) error { return os.Mkdir(wal, 0o700) }, "", ""},
		{"a link", func(dir, wal string) error {
			return errors.Join(os.Mkdir(dir+"/wal", 0o700), os.Symlink(dir+"/wal", wal))
		}, "wal-16", ""},
		{"a relative link", func(dir, wal string) error {
			return errors.Join(os.Mkdir(dir+"/wal", 0o700), os.Symlink("../wal", wal))
		}, "wal-16", ""},
		{"after an upgrade before", func(dir, wal string) error {
			return errors.Join(os.Mkdir(dir+"/wal-15", 0o700), os.Symlink(dir+"/wal-15", wal))
		}, "wal-16", ""},
		{"there is such a directory", func(dir, wal string) error {
			return errors.Join(os.MkdirAll(dir+"/wal", 0o700), os.Mkdir(dir+"/wal-16", 0o700), os.Symlink(dir+"/wal", wal))
		}, "wal-16", "exists already"},
		{"a link into the data directory", func(_, wal string) error {
			return errors.Join(os.Mkdir(wal+"-here", 0o700), os.Symlink(wal+"-here", wal))
		}, "data/pg_wal-here-16", "in the data directory itself"},
		{"a link at which a file system is", func(_, wal string) error { return os.Symlink("/proc", wal) }, "/proc-16", "a file system is mounted"},
		{"a link to nothing", func(dir, wal string) error { return os.Symlink(dir+"/none", wal) }, "", "not known"},
		{"none", func(string, string) error { return nil }, "", "not known"},
	} {
		dir := t.TempDir()
		data := filepath.Join(dir, "data")
		if err := errors.Join(os.Mkdir(data, 0o700), c.make(dir, filepath.Join(data, "pg_wal"))); err != nil {
			t.Fatal(err)
		}
		l := &look{u: major.Upgrade{From: major.Cluster{Major: 15, Data: data}, To: major.Cluster{Major: 16, Data: data + "-16"}}}
		l.wal()
		want := c.to
		if want != "" && !filepath.IsAbs(want) {
			want = filepath.Join(dir, want)
		}
		if all := strings.Join(l.plan.Obstacles, "\n"); l.u.To.WAL != want || (all == "") != (c.says == "") || !strings.Contains(all, c.says) {
			t.Errorf("%s: WAL in %q, obstacles %q", c.name, l.u.To.WAL, all)
		}
	}
}

// TestRoomForTheWAL looks at the file system of the WAL, which may be another one than that of the data.
func TestRoomForTheWAL(t *testing.T) {
	for _, c := range []struct {
		wal     string
		need    int64
		refused bool
	}{{"", math.MaxInt64, false}, {t.TempDir() + "/wal", 1, false}, {t.TempDir() + "/wal", math.MaxInt64, true}} {
		l := &look{u: major.Upgrade{To: major.Cluster{WAL: c.wal}}}
		if l.roomForWAL(c.need); (len(l.plan.Obstacles) > 0) != c.refused {
			t.Errorf("%+v: %q", c, l.plan.Obstacles)
		}
	}
}

// archived is an archive with this command.
type archived string

func (a archived) ArchiveCommand() string { return string(a) }

func (archived) Reads(context.Context, string, string) error { return nil }

// TestArchive lets the archive of the group's backups be, and refuses any other: its command may mix the WAL of both
// clusters.
func TestArchive(t *testing.T) {
	for _, c := range []struct {
		archive pgupgrade.Archive
		ours    string
		kept    bool
		says    string
	}{
		{pgupgrade.Archive{Mode: "off", Command: "(disabled)"}, "", false, ""},
		{pgupgrade.Archive{Mode: "on", Command: "push %p"}, "push %p", true, ""},
		{pgupgrade.Archive{Mode: "on", Command: "cp %p /archive/%f"}, "push %p", false, "not that of coterie backup enable"},
		{pgupgrade.Archive{Mode: "on", Command: ""}, "", false, "not that of coterie backup enable"},
		{pgupgrade.Archive{Mode: "always", Command: "push %p"}, "push %p", false, "archive_mode = always"},
		{pgupgrade.Archive{Mode: "off", Pending: true}, "push %p", false, "waits for a restart"},
	} {
		l := &look{s: New(Config{Archive: archived(c.ours)}), old: pgupgrade.Cluster{Archive: c.archive}}
		l.archive()
		if all := strings.Join(l.plan.Obstacles, "\n"); (all == "") != (c.says == "") || !strings.Contains(all, c.says) || l.u.Archive != c.kept || (len(l.plan.Notes) > 0) != c.kept {
			t.Errorf("%+v: %+v", c, l.plan)
		}
	}
}

// TestOwnersAreNamed holds that a look names the roles whose functions the superuser may run, and not without end.
func TestOwnersAreNamed(t *testing.T) {
	for _, n := range []int{0, 1, 50, 70} {
		l := &look{}
		for i := range n {
			l.old.Owners = append(l.old.Owners, fmt.Sprint("r", i))
		}
		l.owners()
		all := strings.Join(l.plan.Notes, "\n")
		if (all == "") != (n == 0) || n > 0 && !strings.Contains(all, "r0") || strings.Contains(all, "and 20 more") != (n == 70) || strings.Contains(all, "r50") {
			t.Errorf("%d owners: %s", n, all)
		}
	}
}
