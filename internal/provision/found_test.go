package provision

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/pgserver"
)

// TestFreshDir checks that a node directory is made only where nothing is, and that a refusal changes nothing.
func TestFreshDir(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "deep", "node")
	l, err := FreshDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(l.Run) })
	for _, d := range []string{l.Dir, l.PKI(), l.State()} {
		if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, st, err)
		}
	}
	if _, err := FreshDir(dir); kindOf(err) != fail.Refused || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("a second node in the same directory: %v", err)
	}
	for name, prepare := range map[string]func(path string) error{
		"somebody's file": func(p string) error {
			return errors.Join(os.Mkdir(p, 0o700), os.WriteFile(filepath.Join(p, "thesis"), nil, 0o600))
		},
		"a hidden file": func(p string) error {
			return errors.Join(os.Mkdir(p, 0o700), os.WriteFile(filepath.Join(p, ".x"), nil, 0o600))
		},
		"a half-made node": func(p string) error { return os.MkdirAll(filepath.Join(p, "state"), 0o700) },
		"lost+found":       func(p string) error { return os.MkdirAll(filepath.Join(p, "lost+found"), 0o700) },
		"a file":           func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) },
	} {
		path := filepath.Join(base, name)
		if err := prepare(path); err != nil {
			t.Fatal(err)
		}
		before := tree(t, path)
		if _, err := EmptyLayout(path); err == nil {
			t.Errorf("%s is taken for an empty directory", name)
		}
		if l, err := FreshDir(path); err == nil {
			t.Errorf("a node was made in %s", l.Dir)
		}
		if after := tree(t, path); after != before {
			t.Errorf("%s: %s, was %s", name, after, before)
		}
	}
}

// TestFreshDirOfAFormerNode checks that no node is made where the keeper of one lives whose directory was moved away:
// it would serve the new one, and know nothing of it.
func TestFreshDirOfAFormerNode(t *testing.T) {
	l, err := FreshDir(filepath.Join(t.TempDir(), "n1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(l.Run) }()
	keeper, err := net.Listen("unix", l.KeeperSock())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(l.Dir, l.Dir+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := FreshDir(l.Dir); kindOf(err) != fail.Refused || !strings.Contains(err.Error(), fmt.Sprintf("still runs (process %d); nothing was changed: end it with kill", os.Getpid())) {
		t.Errorf("its keeper lives: %v", err)
	}
	if _, err := os.Stat(l.Dir); err == nil {
		t.Error("a directory was made")
	}
	if err := keeper.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := FreshDir(l.Dir); err != nil {
		t.Errorf("its keeper has ended: %v", err)
	}
}

// TestFreshDirOfAnotherUser checks that a directory which belongs to another user is not used.
func TestFreshDirOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: only root can give a directory away")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 65534, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := FreshDir(dir); err == nil || !strings.Contains(err.Error(), "belongs to user ") {
		t.Errorf("%v", err)
	}
}

// TestUnreadableDirIsNotEmpty checks that a directory whose content cannot be listed counts as used.
func TestUnreadableDirIsNotEmpty(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("SKIPPED: root can list every directory")
	}
	dir := filepath.Join(t.TempDir(), "node")
	put(t, filepath.Join(dir, "coterie.yaml"), "precious")
	if err := os.Chmod(dir, 0o300); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(dir, 0o700) }()
	if _, err := FreshDir(dir); err == nil {
		t.Error("a node was made in it")
	}
}

// tree describes the files below a path.
func tree(t *testing.T, path string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		text := []byte(nil)
		if d.Type().IsRegular() {
			text, err = os.ReadFile(p)
		}
		_, _ = fmt.Fprintf(&b, "%s %v %s\n", strings.TrimPrefix(p, path), d.Type(), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestRollback checks that a failed init leaves the directory itself, and touches nothing that a link in it leads to.
func TestRollback(t *testing.T) {
	t.Parallel()
	l := layoutIn(t, filepath.Join(t.TempDir(), "node"))
	outside := filepath.Join(t.TempDir(), "outside")
	put(t, filepath.Join(outside, "kept"), "x")
	if err := errors.Join(l.Make(), os.Symlink(outside, filepath.Join(l.Dir, "pgdata"))); err != nil {
		t.Fatal(err)
	}
	Rollback(l)
	if entries, err := os.ReadDir(l.Dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if exists(t, l.Run) || !exists(t, filepath.Join(outside, "kept")) {
		t.Error("the run directory is left, or a file outside is gone")
	}
	if _, err := FreshDir(l.Dir); err != nil {
		t.Errorf("init cannot be run again: %v", err)
	}
	Rollback(l)
	Rollback(l) // nothing is there any more
}

// firstNode returns the first node of a group over the data of a server that does not run.
func firstNode(t *testing.T, s *pgtest.Server) FirstNode {
	t.Helper()
	l, err := FreshDir(filepath.Join(t.TempDir(), "n1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(l.Run) })
	cfg := config.Config{
		Node: "n1", Kind: "replica", Group: string(testGroup), GroupName: "orders",
		Endpoint: config.Address{Listen: "127.0.0.1:7022", Advertise: "127.0.0.1:7022"}, ReadWrite: config.Address{Listen: "127.0.0.1:7432", Advertise: "db1:7432"},
		PostgreSQL: &config.PostgreSQL{BinDir: s.Bin(), Data: s.Data(), Superuser: "postgres"},
	}
	pg, err := pgserver.NewInstance(cfg, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Close() })
	return FirstNode{Layout: l, Config: cfg, PostgreSQL: pg, Major: 15, Profile: "wan"}
}

// TestFoundGroup checks the files of a first node: the founding record, certificates that only the node's user can use,
// and the configuration, which is written last.
func TestFoundGroup(t *testing.T) {
	s := stoppedServer(t)
	n := firstNode(t, s)
	n.Config.HBA = filepath.Join(n.Layout.Dir, "pg_hba.conf")
	if err := FoundGroup(t.Context(), n); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("without the rules of the adopted cluster: %v", err)
	}
	if exists(t, filepath.Join(n.Layout.Dir, config.File)) || exists(t, n.Layout.FoundingFile()) {
		t.Fatal("an agent could start what is half made")
	}
	put(t, n.Config.HBA, "host all all 10.0.0.0/8 scram-sha-256\n")
	if err := FoundGroup(t.Context(), n); err != nil { // what the first attempt left does not matter
		t.Fatal(err)
	}
	var f membership.Founding
	readJSON(t, n.Layout.FoundingFile(), &f)
	if f.Epoch.Epoch != 1 || f.Epoch.Leader != "n1" || f.Epoch.Phase != ag.PhasePromote || f.Epoch.TLI != 2 || len(f.State.V) != 0 || f.State.Timelines[0].TLI != 1 {
		t.Errorf("record %+v %+v", f.Epoch, f.State)
	}
	if f.Group.HBA != "host all all 10.0.0.0/8 scram-sha-256\n" || f.Group.SystemID == "" || f.Group.Draft || len(f.Group.Replicas) != 1 || f.Group.External != 0 {
		t.Errorf("group %+v", f.Group)
	}
	if r := f.Group.Replicas[0]; r.Listener != "db1:7432" || !r.Voter || r.KeyPin == "" || r.Join != "" {
		t.Errorf("replica %+v", r)
	}
	inside, err := (&pgserver.Instance{Instance: n.PostgreSQL, Layout: n.Layout}).InsideCopy()
	if err != nil || inside == "" || inside != f.State.Copy {
		t.Errorf("copy %q in the data, %q in the record: %v", inside, f.State.Copy, err)
	}
	if cfg, err := config.Load(n.Layout.Dir); err != nil || cfg.Node != "n1" {
		t.Errorf("%+v, %v", cfg, err)
	}
	keys, err := filepath.Glob(filepath.Join(n.Layout.PKI(), "*.key"))
	if err != nil || len(keys) < 3 { // of the authority, the node and the listener
		t.Fatalf("%v, %v", keys, err)
	}
	for _, key := range keys {
		if st, err := os.Stat(key); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", key, st.Mode(), err)
		}
	}
	n = firstNode(t, s)
	n.Draft = true
	if err := FoundGroup(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	readJSON(t, n.Layout.FoundingFile(), &f)
	if !f.Group.Draft || f.Group.Replicas[0].Join != ag.Detached {
		t.Errorf("nodes without a group: %+v", f.Group)
	}
}

// TestFoundGroupNeedsItsParts checks that a node is not founded without a quorum that answers, or on data that is none.
func TestFoundGroupNeedsItsParts(t *testing.T) {
	s := stoppedServer(t)
	for name, break1 := range map[string]func(*FirstNode){
		"the external quorum does not answer": func(n *FirstNode) { n.Config.Quorum = &config.Quorum{Endpoints: []string{"http://127.0.0.1:1"}} },
		"pg_control": func(n *FirstNode) {
			n.Config.PostgreSQL = &config.PostgreSQL{BinDir: s.Bin(), Data: n.Layout.State(), Superuser: "postgres"}
			pg, err := pgserver.NewInstance(n.Config, n.Layout, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = pg.Close() })
			n.PostgreSQL = pg
		},
	} {
		n := firstNode(t, s)
		break1(&n)
		if err := FoundGroup(t.Context(), n); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %s", err, name)
		}
		if exists(t, n.Layout.FoundingFile()) || exists(t, filepath.Join(n.Layout.Dir, config.File)) {
			t.Errorf("%s: the node was made", name)
		}
	}
}

// grant returns what a group gives to a node that it admits. A replica gets the authority's key.
func grant(t *testing.T, l config.Layout, kind string) (endpoint.JoinGrant, func() (*certs.Node, error)) {
	t.Helper()
	ca, err := certs.NewCA(testGroup, "orders")
	if err != nil {
		t.Fatal(err)
	}
	id := certs.Identity{Group: testGroup, Kind: kind, ID: "n2"}
	return endpoint.JoinGrant{Group: members()}, func() (*certs.Node, error) {
		if kind == certs.KindReplica {
			if err := ca.Save(l.PKI()); err != nil {
				return nil, err
			}
		}
		return certs.CreateNode(l.PKI(), ca, id, []string{"127.0.0.1"})
	}
}

// TestWriteJoined checks the files of an admitted node. Without any one of its parts the directory is no node.
func TestWriteJoined(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, kind string
		breaks     func(l config.Layout, install func() (*certs.Node, error)) func() (*certs.Node, error)
		says       string
	}{
		{name: "a replica", kind: certs.KindReplica},
		{name: "a witness", kind: certs.KindWitness},
		{name: "no certificate", kind: certs.KindReplica, says: "disk full", breaks: func(config.Layout, func() (*certs.Node, error)) func() (*certs.Node, error) {
			return func() (*certs.Node, error) { return nil, errors.New("disk full") }
		}},
		{name: "no authority's key", kind: certs.KindReplica, says: "ca.key", breaks: func(l config.Layout, install func() (*certs.Node, error)) func() (*certs.Node, error) {
			return func() (*certs.Node, error) {
				n, err := install()
				return n, errors.Join(err, os.Remove(filepath.Join(l.PKI(), "ca.key")))
			}
		}},
		{name: "no state directory", kind: certs.KindWitness, says: "group.json", breaks: func(l config.Layout, install func() (*certs.Node, error)) func() (*certs.Node, error) {
			return func() (*certs.Node, error) {
				n, err := install()
				return n, errors.Join(err, os.RemoveAll(l.State()))
			}
		}},
	} {
		l := layoutIn(t, t.TempDir())
		if err := l.Make(); err != nil {
			t.Fatal(err)
		}
		cfg := config.Config{
			Node: "n2", Kind: tt.kind, Group: string(testGroup), GroupName: "orders",
			Endpoint: config.Address{Listen: "127.0.0.1:7022"}, ReadWrite: config.Address{Listen: "127.0.0.1:7432"}, ReadOnly: config.Address{Listen: "127.0.0.1:7433"},
		}
		if tt.kind == certs.KindReplica {
			cfg.PostgreSQL = &config.PostgreSQL{BinDir: "/nowhere", Data: l.Data()}
		}
		g, install := grant(t, l, tt.kind)
		if tt.breaks != nil {
			install = tt.breaks(l, install)
		}
		err := WriteJoined(l, cfg, g, install)
		made := exists(t, filepath.Join(l.Dir, config.File))
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) || made {
				t.Errorf("%s: %v, made %v", tt.name, err, made)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		saved, err := config.Load(l.Dir)
		if err != nil || (saved.ReadWrite.Listen == "") != (tt.kind == certs.KindWitness) {
			t.Errorf("%s: %+v, %v", tt.name, saved, err)
		}
		if got, err := membership.ReadGroup(l); err != nil || len(got.Replicas) != 3 {
			t.Errorf("%s: group %+v, %v", tt.name, got, err)
		}
		if exists(t, filepath.Join(l.PKI(), "listener.crt")) != (tt.kind == certs.KindReplica) {
			t.Errorf("%s: the listener's certificate", tt.name)
		}
	}
}

func TestReachQuorum(t *testing.T) {
	t.Parallel()
	if n, err := ReachQuorum(t.Context(), config.Config{}, testGroup, true); n != 0 || err != nil {
		t.Errorf("an embedded quorum: %d, %v", n, err)
	}
	cfg := config.Config{Quorum: &config.Quorum{Endpoints: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}}}
	for _, founds := range []bool{true, false} {
		_, err := ReachQuorum(t.Context(), cfg, testGroup, founds)
		for _, part := range []string{"127.0.0.1:1", "127.0.0.1:2", "--quorum-endpoints"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%v: %v lacks %s", founds, err, part)
			}
		}
	}
}

func TestPortFree(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	if err := PortFree(t.Context(), at); err == nil {
		t.Errorf("%s is in use", at)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := PortFree(t.Context(), at); err != nil {
		t.Error(err)
	}
	if err := PortFree(t.Context(), at); err != nil { // the check itself leaves it free
		t.Error(err)
	}
	if OwnAddress(t.Context()) == "" {
		t.Error("this host has no address")
	}
}
