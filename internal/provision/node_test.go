package provision

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/membership"
)

const testGroup = ag.GroupID("0d9c6d8e-7e47-4b8a-8a4e-0123456789ab")

// layoutIn returns the layout of a directory, whose run directory is removed at the end of the test.
func layoutIn(t *testing.T, dir string) config.Layout {
	t.Helper()
	l, err := config.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(l.Run) })
	return l
}

// members are n1, which is the primary, n2 and the witness w. Nothing answers at their addresses.
func members() ag.Group {
	r := func(id ag.ReplicaID) ag.Replica {
		return ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true, EtcdID: 7, Endpoint: "127.0.0.1:1"}
	}
	w := ag.Replica{ID: "w", AvailabilityMode: ag.ConfigurationOnly, Voter: true, EtcdID: 9, Endpoint: "127.0.0.1:1"}
	return ag.Group{ID: testGroup, Name: "orders", Replicas: []ag.Replica{r("n1"), r("n2"), w}}
}

// witnessNode makes the directory of the witness w, as it is after its agent was stopped.
func witnessNode(t *testing.T) config.Layout {
	t.Helper()
	l := layoutIn(t, t.TempDir())
	cfg := config.Config{Node: "w", Kind: "witness", Group: string(testGroup), GroupName: "orders", Endpoint: config.Address{Listen: "127.0.0.1:0"}}
	if err := errors.Join(l.Make(), cfg.Save(l.Dir), membership.SaveGroup(l, members())); err != nil {
		t.Fatal(err)
	}
	return l
}

// stoppedServer returns a cluster whose server was killed.
func stoppedServer(t *testing.T) *pgtest.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: it makes a database cluster")
	}
	s, err := pgtest.New()
	if errors.Is(err, pgtest.ErrNoServer) {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func kindOf(err error) fail.Kind { return fail.KindOf(err) }
