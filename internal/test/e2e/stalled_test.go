package e2e

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
)

// TestEndToEndStalledDisk stalls the disk of the primary, and then that of a secondary: fault F31 of
// docs/internals/faults.md. On a stalled disk every change and every sync waits in the kernel, where not even SIGKILL
// ends it. PostgreSQL, the agent and the member of the quorum are all on it.
func TestEndToEndStalledDisk(t *testing.T) {
	long(t)
	if err := faultfs.Possible(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	g := newGroup(t, lab.Options{Disks: true})
	stall := func(node string) {
		t.Helper()
		if _, err := g.Disk(t.Context(), node, faultfs.Fault{Kind: faultfs.Stalled}); err != nil {
			t.Fatal(err)
		}
	}
	heal := func(node string) {
		t.Helper()
		if _, err := g.Disk(t.Context(), node, faultfs.Fault{}); err != nil {
			t.Fatal(err)
		}
		g.revive(t, node)
		g.judgeAndGoOn(t)
	}
	for range 2 {
		was := g.ready(t)
		time.Sleep(12 * time.Second) // until the node knows which probes are usual
		g.acknowledged(t, 50)
		began := time.Now()
		stall(*was.Primary)
		now := g.newPrimary(t, was)
		took := time.Since(began)
		t.Logf("%s leads %v after the disk of %s stalled", *now.Primary, took.Round(time.Millisecond), *was.Primary)
		if took > stalledMost {
			t.Errorf("it took %v, want at most %v", took, stalledMost)
		}
		g.acknowledged(t, 50)
		heal(*was.Primary)
	}
	was := g.ready(t)
	victim := secondaries(was)[0]
	began := time.Now()
	stall(victim)
	g.acknowledged(t, 50)
	t.Logf("commits went on %v after the disk of %s stalled", time.Since(began).Round(time.Millisecond), victim)
	if s, err := g.status(t, *was.Primary); err != nil || s.Epoch != was.Epoch {
		t.Errorf("a secondary's disk cost a failover: epoch %d after %d, %v", s.Epoch, was.Epoch, err)
	}
	heal(victim)
	g.down(t)
}

// stalledMost is how long the failover from a stalled disk may take, on a busy machine. The disk has no counters, so
// five seconds are unusual at the soonest, and HEALTH_CHECK_TIMEOUT is ten.
const stalledMost = 9 * time.Second
