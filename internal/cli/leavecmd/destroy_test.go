package leavecmd

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/postgres/adopt"
	"github.com/coteriedb/coterie/internal/provision"
)

// replica makes the node directory that of a replica with keys and a data directory.
func replica(t *testing.T, l config.Layout, data string) config.Config {
	t.Helper()
	c := config.Config{
		Node: "n2", Kind: "replica", Group: "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", GroupName: "orders", Endpoint: config.Address{Listen: ":5022", Advertise: "n2:5022"},
		PostgreSQL: &config.PostgreSQL{BinDir: "/nowhere", Data: data, Superuser: "postgres"},
	}
	err := errors.Join(c.Save(l.Dir), os.MkdirAll(filepath.Join(data, "global"), 0o700), os.WriteFile(filepath.Join(data, "global", "pg_control"), nil, 0o600),
		os.WriteFile(filepath.Join(l.PKI(), "node.key"), []byte("secret"), 0o600), os.MkdirAll(filepath.Join(l.Etcd(), "member"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// unchanged fails if the node directory is not whole.
func unchanged(t *testing.T, l config.Layout, what string) {
	t.Helper()
	for _, path := range []string{filepath.Join(l.Dir, config.File), l.PKI()} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Stat(l.LeavingFile()); err == nil {
		t.Errorf("%s: it was begun", what)
	}
}

// TestDestroyChangesNothing holds which runs are refused, what each says to run instead, and that nothing is changed.
func TestDestroyChangesNothing(t *testing.T) {
	a := clitest.NewAgent(t)
	witness(t, a.Layout)
	alone := func(st *api.Status) { st.Node = "w"; drop(st, "n1", "n2", "n3") }
	for name, tt := range map[string]struct {
		st   api.Status
		args []string
		code int
		says string
	}{
		"other members live":         {seenBy("w", nil), []string{"--yes"}, 4, "other members: n1, n2, n3; nothing was changed. To end this node alone: coterie destroy --node "},
		"one that does not answer":   {seenBy("w", func(st *api.Status) { st.Replicas[2].Connected = "DISCONNECTED" }), []string{"--yes"}, 4, "n3 (does not answer)"},
		"the primary":                {seenBy("n1", nil), []string{"--yes", "--this-node"}, 4, "coterie failover --to n2"},
		"the only other copy":        {seenBy("n2", func(st *api.Status) { drop(st, "n3") }), []string{"--yes", "--this-node"}, 4, " --leave-one-copy"},
		"no quorum":                  {seenBy("w", func(st *api.Status) { st.Quorum = false }), []string{"--yes", "--this-node"}, 3, " --this-node --force"},
		"nobody can be asked":        {seenBy("w", nil), []string{"--this-node"}, 4, "say --yes"},
		"nobody can be asked, alone": {seenBy("w", alone), nil, 4, "say --yes"},
		"data of a witness":          {seenBy("w", alone), []string{"--yes", "--keep-data", "/srv/data"}, 2, "holds no data"},
	} {
		a.SetStatus(tt.st)
		clitest.Run(t, Destroy(), a.Layout.Dir, tt.args...).Refused(t, tt.code, tt.says)
		unchanged(t, a.Layout, name)
	}
	a.SetStatus(seenBy("w", alone))
	r := clitest.Run(t, Destroy(), a.Layout.Dir, "--dry-run")
	for _, want := range []string{"w is the only member: the group orders ends", "removed for good: keys and certificates: " + a.Layout.PKI()} {
		if r.Code != 0 || !strings.Contains(r.Out, want) {
			t.Errorf("a dry run does not say %q: %+v", want, r)
		}
	}
	unchanged(t, a.Layout, "a dry run")
}

// TestDestroyErases holds that no file of the node is left, in its data directory behind a symbolic link neither, that
// a file of somebody else is, and that the command can be run again.
func TestDestroyErases(t *testing.T) {
	l := clitest.NewNode(t)
	disk := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.Mkdir(disk, 0o700), os.Symlink(disk, l.Data())); err != nil {
		t.Fatal(err)
	}
	replica(t, l, l.Data())
	notes := filepath.Join(l.Dir, "notes.txt")
	space := t.TempDir()
	if err := errors.Join(os.WriteFile(notes, nil, 0o600), os.Mkdir(filepath.Join(disk, "pg_tblspc"), 0o700), os.Symlink(space, filepath.Join(disk, "pg_tblspc", "1")),
		os.WriteFile(filepath.Join(space, "row"), nil, 0o600), os.Mkdir(l.Backup(), 0o700), os.WriteFile(filepath.Join(l.Backup(), "pgbackrest.conf"), []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	r := clitest.Run(t, Destroy(), l.Dir, "--yes", "--force", "--json")
	var out destroyed
	if err := json.Unmarshal([]byte(r.Out), &out); err != nil || r.Code != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if !out.Completed || !out.Last || !slices.Equal(out.Left, []string{notes}) || !slices.Equal(out.Remaining, []string{space}) {
		t.Errorf("%+v", out)
	}
	entries, _ := os.ReadDir(l.Dir)
	if len(entries) != 1 {
		t.Errorf("left in the node directory: %v", entries)
	}
	if _, err := os.Stat(filepath.Join(disk, "global")); err == nil {
		t.Error("the data is left")
	}
	if _, err := os.Stat(filepath.Join(space, "row")); err != nil {
		t.Errorf("a file outside the node is gone: %v", err)
	}
	clitest.Run(t, Destroy(), l.Dir, "--yes").Refused(t, 2, "there is no node in")
	if err := os.Remove(notes); err != nil {
		t.Fatal(err)
	}
	if r := clitest.Run(t, Destroy(), l.Dir, "--yes"); r.Code != 0 || !strings.Contains(r.Said, "nothing of a node") {
		t.Errorf("%+v", r)
	}
}

// TestDestroyGoesOn holds that a node whose destruction has begun is not asked about again, and that coterie leave does
// not touch it.
func TestDestroyGoesOn(t *testing.T) {
	l := clitest.NewNode(t)
	replica(t, l, l.Data())
	d := &provision.Departure{Node: "n2", Group: "orders", Last: true, Destroy: true}
	if err := d.Save(l); err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, Leave(), l.Dir, "--yes").Refused(t, 4, "coterie destroy --node "+l.Dir)
	r := clitest.Run(t, Destroy(), l.Dir)
	if r.Code != 0 || !strings.Contains(r.Said, "the group orders has ended") {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(l.Dir); err == nil {
		t.Error("the node directory is left")
	}
}

// TestDestroyAfterLeave holds that the data of a node that has left by coterie leave stays where that said it is.
func TestDestroyAfterLeave(t *testing.T) {
	l := clitest.NewNode(t)
	replica(t, l, l.Data())
	d := &provision.Departure{Node: "n2", Group: "orders", Data: l.Data(), Start: "pg_ctl start", Completed: true}
	if err := errors.Join(d.Save(l), os.Rename(filepath.Join(l.Dir, config.File), filepath.Join(l.Dir, provision.LeftConfig))); err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, Destroy(), l.Dir).Refused(t, 4, "say --yes")
	r := clitest.Run(t, Destroy(), l.Dir, "--yes")
	if r.Code != 0 || !strings.Contains(r.Said, "its data is in "+l.Data()) {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(l.Data(), "global", "pg_control")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(l.PKI()); err == nil {
		t.Error("the keys are left")
	}
}

// TestDestroySpares holds that the data of an adopted cluster, and data outside the node directory, is never chosen for
// deletion.
func TestDestroySpares(t *testing.T) {
	l := clitest.NewNode(t)
	elsewhere := filepath.Join(t.TempDir(), "main")
	cfg := replica(t, l, elsewhere)
	x := &destroying{leaving: leaving{layout: l, cfg: cfg}}
	d := &provision.Departure{Data: elsewhere}
	if data, err := x.spared(d); data != elsewhere || err != nil {
		t.Errorf("data outside the node directory: %q, %v", data, err)
	}
	x.cfg.PostgreSQL.Data = l.Data()
	if data, err := x.spared(d); data != "" || err != nil {
		t.Errorf("the node's own data: %q, %v", data, err)
	}
	if err := os.WriteFile(filepath.Join(l.State(), adopt.RecordFile), []byte(`{"data":"`+l.Data()+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := x.spared(&provision.Departure{Data: l.Data()}); data != l.Data() || err != nil {
		t.Errorf("an adopted cluster: %q, %v", data, err)
	}
	if _, err := x.spared(&provision.Departure{}); err == nil {
		t.Error("an adopted cluster that is no whole copy")
	}
}

// TestDestroySparesWhatItKeeps holds that the data which is said to be kept is not deleted under another name: as that
// to which the node's own data directory is a link, in a place that is named when the command is run again, and where
// coterie leave has moved it.
func TestDestroySparesWhatItKeeps(t *testing.T) {
	control := filepath.Join("global", "pg_control")
	departed := func(t *testing.T, l config.Layout, data string) {
		t.Helper()
		d := &provision.Departure{Node: "n2", Group: "orders", Data: data, Completed: true}
		if err := errors.Join(d.Save(l), os.Rename(filepath.Join(l.Dir, config.File), filepath.Join(l.Dir, provision.LeftConfig))); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a link to it", func(t *testing.T) {
		l := clitest.NewNode(t)
		disk := filepath.Join(t.TempDir(), "disk")
		replica(t, l, disk)
		if err := os.Symlink(disk, l.Data()); err != nil {
			t.Fatal(err)
		}
		departed(t, l, disk)
		r := clitest.Run(t, Destroy(), l.Dir, "--yes")
		if _, err := os.Stat(filepath.Join(disk, control)); err != nil || r.Code != 0 {
			t.Errorf("%v, %+v", err, r)
		}
	})
	t.Run("a place inside, when it goes on", func(t *testing.T) {
		l := clitest.NewNode(t)
		replica(t, l, l.Data())
		link := filepath.Join(t.TempDir(), "link")
		if err := errors.Join((&provision.Departure{Node: "n2", Group: "orders", Last: true, Destroy: true}).Save(l), os.Symlink(l.Log(), link)); err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{filepath.Join(l.Log(), "kept"), filepath.Join(link, "kept")} {
			clitest.Run(t, Destroy(), l.Dir, "--yes", "--keep-data", to).Refused(t, 2, "is in the node directory, which is removed")
		}
		if _, err := os.Stat(filepath.Join(l.Data(), control)); err != nil {
			t.Error(err)
		}
	})
	t.Run("in the logs, after coterie leave", func(t *testing.T) {
		l := clitest.NewNode(t)
		replica(t, l, l.Data())
		kept := filepath.Join(l.Log(), "kept")
		if err := os.Rename(l.Data(), kept); err != nil {
			t.Fatal(err)
		}
		departed(t, l, kept)
		clitest.Run(t, Destroy(), l.Dir, "--yes").Refused(t, 4, "is in "+l.Log()+", which is removed; nothing was removed: move it elsewhere")
		for _, path := range []string{filepath.Join(kept, control), l.PKI()} {
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestDestroyLeavesTheNextNodeAlone holds that a second run, which waits for the first one, ends when that has come to
// the end: the node directory may have another node then, and an agent that must not be stopped.
func TestDestroyLeavesTheNextNodeAlone(t *testing.T) {
	l := clitest.NewNode(t)
	replica(t, l, l.Data())
	unlock, err := config.Lock(l) // as the next node's agent has it
	if err != nil {
		t.Fatal(err)
	}
	d := &provision.Departure{Node: "n2", Group: "orders", Last: true, Destroy: true}
	x := &destroying{leaving: leaving{layout: l, destroy: true}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := x.stop(ctx, Destroy(), d); ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), "another run of coterie destroy") {
		t.Errorf("it waits, or goes on: %v", err)
	}
	unlock()
	err1 := provision.Depart(t.Context(), l, d, func(string) {})
	d.Completed = true
	_, err2 := provision.Erase(l, d, func(string) {})
	if err1 == nil || err2 == nil {
		t.Errorf("%v, %v", err1, err2)
	}
	unchanged(t, l, "the next node")
}

// TestRemoveEmptyRemovesNothingElse holds that root, who removes the emptied node directory of another user, removes no
// file that this user has put in its place.
func TestRemoveEmptyRemovesNothingElse(t *testing.T) {
	dir := t.TempDir()
	l := config.Layout{Dir: filepath.Join(dir, "node"), Run: filepath.Join(dir, "run")}
	file := filepath.Join(dir, "passwd")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.WriteFile(filepath.Join(dir, "state"), nil, 0o600), os.MkdirAll(filepath.Join(l.Run, "pg"), 0o700)); err != nil {
		t.Fatal(err)
	}
	provision.RemoveEmpty(config.Layout{Dir: file, Run: l.Run})
	provision.RemoveEmpty(config.Layout{Dir: dir, Run: l.Run})
	for _, path := range []string{file, filepath.Join(dir, "state"), l.Run} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
