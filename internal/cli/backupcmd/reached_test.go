package backupcmd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// ended is a server whose recovery has ended.
type ended struct{ at, fetch string }

func (e ended) Ended(context.Context) (string, error) { return e.at, nil }
func (e ended) Fetch() string                         { return e.fetch }

// TestReached holds that a recovery to the end of the archive which ended before its last segment is no success where
// WAL was not read, or was removed meanwhile.
func TestReached(t *testing.T) {
	const last = "000000010000000000000005"
	f := found{Backup: backup.Backup{Label: "F"}, reach: last, reachAt: 5 << 24}
	has := backup.Catalog{WAL: []string{last}, Backups: []backup.Backup{{Label: "F"}}}
	for name, tt := range map[string]struct {
		f           found
		s           ended
		now         backup.Catalog
		doubt, fail string
	}{
		"it is reached":          {f, ended{"0/5000060", ""}, has, "", ""},
		"reached, and an error":  {f, ended{"0/5000060", "not there"}, has, "", ""},
		"another target":         {found{}, ended{"0/1", "x"}, has, "", ""},
		"it was not read":        {f, ended{"0/5000000", "unable to connect"}, has, "", "WAL could not be read: unable to connect"},
		"the segment is removed": {f, ended{"0/4FFF000", ""}, backup.Catalog{Backups: has.Backups}, "", "was removed from it meanwhile"},
		"the backup is removed":  {f, ended{"0/4FFF000", ""}, backup.Catalog{WAL: has.WAL}, "", "was removed from it meanwhile"},
		"a long record":          {f, ended{"0/4FFF000", ""}, has, "before the segment " + last, ""},
	} {
		doubt, err := reached(t.Context(), tt.s, tt.f, func(context.Context) (backup.Catalog, error) { return tt.now, nil })
		if (doubt == "") != (tt.doubt == "") || !strings.Contains(doubt, tt.doubt) || (err == nil) != (tt.fail == "") || err != nil && !strings.Contains(err.Error(), tt.fail) {
			t.Errorf("%s: %q, %v", name, doubt, err)
		}
	}
	bad := errors.New("unable to open missing file")
	if err := removed(t.Context(), "F", func(context.Context) (backup.Catalog, error) { return has, nil }, bad); !errors.Is(err, bad) || err.Error() != bad.Error() {
		t.Error(err)
	}
	if err := removed(t.Context(), "F", func(context.Context) (backup.Catalog, error) { return backup.Catalog{}, nil }, bad); !errors.Is(err, bad) || fail.KindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), "the backup F was removed") {
		t.Error(err)
	}
}

// TestWord holds that a printed command can be given to a shell as it is.
func TestWord(t *testing.T) {
	for in, want := range map[string]string{"/backup": "/backup", "s3://b/a%20b": "s3://b/a%20b", "/a b": "'/a b'", "/it's": `'/it'\''s'`, "/$x;y": "'/$x;y'", "": "''", "/é": "'/é'"} {
		if got := word(in); got != want {
			t.Errorf("%q: %s", in, got)
		}
	}
}
