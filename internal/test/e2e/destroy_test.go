package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndDestroy ends a group of two replicas and a witness for good, node by node: what would hurt the group is
// refused with the command to run instead, and nothing of a node is left.
func TestEndToEndDestroy(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Replicas: 2, Witness: true})
	was := g.ready(t)
	primary, other := *was.Primary, secondaries(was)[0]
	refused := func(node, says string, args ...string) {
		t.Helper()
		a := coterie(t, append([]string{"destroy", "--yes", "--node", g.node(node)}, args...)...)
		if a.code != exitRefused || !strings.Contains(a.err, says) {
			t.Errorf("%s %v: exit code %d: %s; want %q", node, args, a.code, a.err, says)
		}
	}
	refused(primary, "coterie destroy --node "+g.node(primary)+" --this-node")
	refused(primary, "coterie failover --to "+other, "--this-node")
	refused(other, "coterie destroy --node "+g.node(other)+" --leave-one-copy", "--this-node")
	g.acknowledged(t, 20)
	sql(t, g.ReadWrite(), "CREATE TABLE kept AS SELECT n FROM generate_series(1, 5000) n")

	a := must(t, "destroy", "--yes", "--this-node", "--leave-one-copy", "--node", g.node(other))
	t.Log(a.err)
	g.gone(t, other)
	g.acknowledged(t, 20)
	g.goesOn(t, primary, 2)
	t.Log(must(t, "destroy", "--yes", "--this-node", "--node", g.node("w")).err)
	g.gone(t, "w")
	g.acknowledged(t, 20)
	g.judge(t)

	kept := filepath.Join(filepath.Dir(g.Dir()), "kept")
	if err := os.Mkdir(kept, 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, kept)
	t.Log(must(t, "destroy", "--yes", "--keep-data", filepath.Join(kept, primary), "--node", g.node(primary)).err)
	g.gone(t, primary)
	g.alone(t, filepath.Join(kept, primary), 5000)
}

// gone checks that no process and no file of a node is left.
func (g *group) gone(t *testing.T, node string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(g.node(node), "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if left := processesOf(g.node(node)); len(left) > 0 {
		t.Errorf("left running: %v", left)
	}
}
