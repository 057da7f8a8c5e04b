package listener

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// releasing returns routes of node b, a secondary, before and after it takes no readers, and those of its promotion.
func releasing() (before, after, during *ag.Routes) {
	before, during = promoting()
	before.ReadList = [][]ag.ReplicaID{{"b", "c"}}
	r := *before
	r.Targets = slices.Clone(before.Targets)
	r.Targets[1].Readable = false
	during.ReadList = before.ReadList
	return before, &r, during
}

// The readers of a server that will be promoted continue on another replica, with their state and what they have asked
// for. One that becomes idle in time does so, too. The others stay where they are, until the promotion ends them.
func TestReadersContinueElsewhere(t *testing.T) {
	g := movingGroup(t, nil)
	before, after, during := releasing()
	only := *before
	only.ReadList = [][]ag.ReplicaID{{"b"}}
	g.publish(&only)
	idle, slow, busy, bound := g.mustDial(g.ro, "user=postgres"), g.mustDial(g.ro, "user=postgres"), g.mustDial(g.ro, "user=postgres"), g.mustDial(g.ro, "user=postgres")
	g.do(idle, "set my.tenant = '42'", "prepare p (int) as select $1 + 1")
	g.do(bound, "create temp table t (x int)")
	g.do(slow, "begin")
	asked := later(busy, "select pg_sleep(60)")
	waitFor(t, "one runs", func() bool {
		return slices.ContainsFunc(g.srv.Sessions(), func(x SessionInfo) bool { return x.State == "active" })
	})
	g.publish(before)
	g.publish(after)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	released := make(chan struct{})
	go func() {
		defer close(released)
		g.srv.ContinueReaders(ctx)
	}()
	waitFor(t, "the idle one has moved", func() bool { return g.srv.Stats().Moved == 1 })
	g.do(slow, "commit")
	waitFor(t, "the slow one has moved", func() bool { return g.srv.Stats().Moved == 2 })
	waiting(t, asked)
	cancel()
	<-released
	for _, x := range []struct{ query, want string }{
		{"select current_setting('cluster_name')", "c"}, {"select current_setting('my.tenant')", "42"}, {"execute p(41)", "42"},
	} {
		var got string
		if err := idle.PgConn().Conn().SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if got = g.one(idle, x.query); got != x.want {
			t.Errorf("%s: %q, want %q", x.query, got, x.want)
		}
	}
	if got := g.one(bound, "select current_setting('cluster_name')"); got != "b" {
		t.Errorf("a reader that cannot be moved is on %q", got)
	}
	g.publish(during)
	if n := g.srv.CloseReplica("b", ag.ReadOnly, "this replica is being promoted"); n != 2 {
		t.Errorf("%d ended", n)
	}
	if err := <-asked; err == nil || !strings.Contains(err.Error(), "this replica is being promoted") {
		t.Errorf("a reader that was busy: %v", err)
	}
	if got := g.one(slow, "select current_setting('cluster_name')"); got != "c" {
		t.Errorf("the slow one is on %q", got)
	}
}
