package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndPaused pauses the replay of every secondary, and kills the primary. One of them leads, with everything
// that was acknowledged. The other one, whose stream broke, is started again, and the log says why.
func TestEndToEndPaused(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	for _, n := range secondaries(was) {
		g.privately1(t, n, "select pg_wal_replay_pause()")
	}
	g.acknowledged(t, 50)
	g.kill(t, *was.Primary)
	began := time.Now()
	now := g.newPrimary(t, was)
	t.Logf("%s leads %v after the death of %s", *now.Primary, time.Since(began).Round(time.Millisecond), *was.Primary)
	g.acknowledged(t, 50)
	g.revive(t, *was.Primary)
	for _, n := range secondaries(was) {
		if n != *now.Primary && !strings.Contains(g.log(n, "agent.log"), "has its replay paused since its stream broke") {
			t.Errorf("%s does not say why its server was started again", n)
		}
	}
	g.down(t)
}
