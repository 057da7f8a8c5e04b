package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/mirror"
)

// TestEndToEndMirror loses sides of the mirror under a primary, under load. While one side serves, there is no
// failover, every member tells of it, and nothing is lost, also when the other side is lost once the first was healed.
// Blocks that are wrong on one side are repaired from the other. When both are lost, another replica leads.
func TestEndToEndMirror(t *testing.T) {
	long(t)
	if err := mirror.Possible(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	g := newGroup(t, lab.Options{Storage: lab.StorageMirror})
	t.Run("one side", func(t *testing.T) { oneSide(t, g) })
	t.Run("wrong blocks", func(t *testing.T) { wrongBlocks(t, g) })
	t.Run("both sides", func(t *testing.T) { bothSides(t, g) })
	g.down(t)
}

// storageProblem waits until a node tells of a problem with the mirror of another one, or of none if says is empty. It
// returns the time that took.
func (g *group) storageProblem(t *testing.T, by, of, says string) time.Duration {
	t.Helper()
	began := time.Now()
	g.await(t, by+" tells of "+of+": "+says, func(lab.Status) bool {
		st, err := g.status(t, by)
		if err != nil {
			return false
		}
		found := ""
		for _, p := range st.Availability.Problems {
			if p.Target == of && strings.Contains(p.Finding, "mirror under") {
				found += p.Finding
			}
		}
		if says == "" {
			return found == ""
		}
		if found != "" && st.Availability.Level == availability.Healthy {
			t.Errorf("%s calls the group healthy with %q", by, found)
		}
		return strings.Contains(found, says)
	})
	return time.Since(began)
}

func (g *group) mirror(t *testing.T, node string, do func(d mirror.Disk) error) {
	t.Helper()
	if _, err := g.Mirror(t.Context(), node, func(_ context.Context, d mirror.Disk) error { return do(d) }); err != nil {
		t.Fatal(err)
	}
}

func (g *group) healMirror(t *testing.T, node string) {
	t.Helper()
	s, err := g.HealMirror(t.Context(), node)
	if err != nil || s.String() != "mirror whole" {
		t.Fatalf("%s: %s, %v", node, s, err)
	}
}

// sideSeen is the time in which every node tells that a side of a mirror under load is lost.
const sideSeen = 10 * time.Second

func oneSide(t *testing.T, g *group) {
	was := g.ready(t)
	primary, other := *was.Primary, secondaries(was)[0]
	views := strings.Replace(g.ReadWrite(), "/postgres?", "/coterie?", 1)
	for _, side := range []string{"second", "first"} { // what one side lacked, it has when the other is lost
		g.mirror(t, primary, func(d mirror.Disk) error { return d.Break(side) })
		took := g.storageProblem(t, primary, primary, "is degraded: ")
		more := g.storageProblem(t, other, primary, "the other side serves")
		t.Logf("the loss of the %s side was seen by its node after %v, by another one after %v more", side, took, more)
		if took+more > sideSeen {
			t.Errorf("the loss of the %s side was seen by another node after %v, allowed are %v", side, took+more, sideSeen)
		}
		g.acknowledged(t, 100)
		if a := coterie(t, "check", "storage", "--node", g.node(primary)); a.code != 3 || !strings.Contains(a.out, "lacks writes that failed") {
			t.Errorf("check storage: exit code %d\n%s%s", a.code, a.out, a.err)
		}
		if n := sql(t, views, "SELECT count(*) FROM coterie.storage WHERE node = '"+primary+"' AND state = 'degraded' AND device_state = 'behind' AND write_errors > 0"); n != "1" {
			t.Errorf("coterie.storage has %s lines of a side that lacks writes", n)
		}
		g.healMirror(t, primary)
		g.storageProblem(t, other, primary, "")
	}
	g.same(t, was)
	g.judgeAndGoOn(t)
}

func wrongBlocks(t *testing.T, g *group) {
	was := g.ready(t)
	primary := *was.Primary
	sql(t, g.ReadWrite(), "CREATE TABLE wrong WITH (autovacuum_enabled = off) AS SELECT i, md5(i::text) FROM generate_series(1, 10000) i")
	file := filepath.Join(g.node(primary), "pgdata", sql(t, g.ReadWrite(), "SELECT pg_relation_filepath('wrong')"))
	sql(t, g.ReadWrite(), "CHECKPOINT")
	right, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g.mirror(t, primary, func(d mirror.Disk) error {
		n, err := d.Flip(file, 32)
		if n < 16 {
			t.Errorf("only %d blocks were made wrong", n)
		}
		return err
	})
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, right) {
		t.Errorf("a reader got wrong blocks: %v", err)
	}
	t.Logf("told after %v", g.storageProblem(t, secondaries(was)[0], primary, "returned errors: "))
	if n := sql(t, g.ReadWrite(), "SELECT count(*) FROM wrong WHERE md5 = md5(i::text)"); n != "10000" {
		t.Errorf("%s of 10000 rows", n)
	}
	if a := coterie(t, "check", "storage", "--node", g.node(primary)); a.code != 0 || !strings.Contains(a.out, "checksum error") {
		t.Errorf("check storage: exit code %d\n%s%s", a.code, a.out, a.err)
	}
	g.healMirror(t, primary)
	g.storageProblem(t, primary, primary, "")
	g.same(t, was)
}

func bothSides(t *testing.T, g *group) {
	was := g.ready(t)
	victim := *was.Primary
	g.mirror(t, victim, func(d mirror.Disk) error { return d.Break(mirror.Sides...) })
	is := g.newPrimary(t, was)
	g.await(t, victim+" under quarantine", func(lab.Status) bool {
		st, err := g.status(t, *is.Primary)
		return err == nil && member(st, victim).Quarantine != ""
	})
	g.acknowledged(t, 50)
	g.healMirror(t, victim)
	g.start(t, victim)
	must(t, "resume", victim, "--node", g.node(*is.Primary))
	g.revive(t, victim)
	g.storageProblem(t, *is.Primary, victim, "")
	g.judgeAndGoOn(t)
}
