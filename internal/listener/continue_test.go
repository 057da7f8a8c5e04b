package listener

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
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
	g.srv.readerPatience = time.Hour
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
		if got := g.one(idle, x.query); got != x.want {
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
	if err := <-asked; err == nil || !strings.Contains(err.Error(), "this replica is being promoted") || !strings.Contains(err.Error(), inquiry.Busy) {
		t.Errorf("a reader that was busy: %v", err)
	}
	if _, err := bound.Exec(t.Context(), "select 1"); err == nil || !strings.Contains(err.Error(), "57P01") || !strings.Contains(err.Error(), "temporary objects") {
		t.Errorf("a reader that could not be moved: %v", err)
	}
	if un := g.srv.Stats().Unmoved; len(un) != 2 || un[inquiry.Busy] != 1 {
		t.Errorf("counted as not moved: %v", un)
	}
	if got := g.one(slow, "select current_setting('cluster_name')"); got != "c" {
		t.Errorf("the slow one is on %q", got)
	}
}

// Readers that a given up failover left behind, and that end much later for another reason, are none that it ended.
func TestReadersOfAGivenUpFailover(t *testing.T) {
	g := movingGroup(t, nil)
	before, after, _ := releasing()
	only := *before
	only.ReadList = [][]ag.ReplicaID{{"b"}}
	g.publish(&only)
	bound := g.mustDial(g.ro, "user=postgres")
	g.do(bound, "create temp table t (x int)")
	g.publish(after)
	g.srv.ContinueReaders(t.Context())
	g.publish(before)
	for _, x := range g.srv.localSessions() {
		x.work.Lock()
		x.moving.stays -= promotedWithin + 1
		x.work.Unlock()
	}
	if n := g.srv.CloseReplica("b", ag.ReadOnly, "its copy may not be read"); n != 1 {
		t.Errorf("%d ended", n)
	}
	if _, err := bound.Exec(t.Context(), "select 1"); err == nil || strings.Contains(err.Error(), "temporary objects") {
		t.Errorf("%v", err)
	}
	if st := g.srv.Stats(); len(st.Unmoved) != 0 || st.Cut["replica"] != 1 {
		t.Errorf("%v, %v", st.Unmoved, st.Cut)
	}
}

// While the primary's agent restarts, the sessions of other nodes' clients wait at those nodes, and go on at the same
// server. The clients of the agent itself have to connect again.
func TestSessionsOfOtherNodesOutliveARestart(t *testing.T) {
	far, near := movingGroup(t, nil), movingGroup(t, nil)
	near.remote["a"] = far.srv
	led := &ag.Routes{Epoch: 1, Self: "b", Primary: "a", WriteOpen: true, Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true}}}
	shut := *led
	shut.Primary, shut.WriteOpen = "", false
	near.publish(led)
	conn, held, own := near.mustDial(near.rw, "user=postgres"), near.mustDial(near.rw, "user=postgres"), far.mustDial(far.rw, "user=postgres")
	near.do(conn, "set my.x = 'kept'", "prepare p as select 'prepared'")
	far.srv.ReadAhead(t.Context(), func(int, int) {})
	far.srv.Drain(true)
	far.drained()
	waits := later(held, "select 1")
	waiting(t, waits)
	far.srv.ReadRelayedStates(t.Context())
	near.publish(&shut)
	far.srv.CloseServer("the agent of a restarts; connect again")
	waiting(t, waits)
	if _, err := own.Exec(t.Context(), "select 1"); err == nil || !strings.Contains(err.Error(), "the agent of a restarts") {
		t.Errorf("a client of the agent that restarts: %v", err)
	}
	far.srv.Drain(false)
	near.publish(led)
	must(t, <-waits)
	for query, want := range map[string]string{
		"select current_setting('cluster_name')": "a", "select current_setting('my.x')": "kept", "execute p": "prepared",
	} {
		if got := near.one(conn, query); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

// An inquiry changes no session. A drain that begins meanwhile ends it, and reads the states itself.
func TestMovesDoNotDisturbAMove(t *testing.T) {
	g := movingGroup(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 4 { // more than one at a time asks
		all.Go(func() {
			for ctx.Err() == nil {
				g.srv.Moves(ctx)
			}
		})
	}
	for range 4 {
		var conns []*pgx.Conn
		for range 8 {
			c := g.mustDial(g.rw, "user=postgres")
			g.do(c, "set my.x = 'kept'")
			conns = append(conns, c)
		}
		g.failOver("b")
		for _, c := range conns {
			if got := g.one(c, "select current_setting('cluster_name') || current_setting('my.x')"); got != "bkept" {
				t.Errorf("%q", got)
			}
			_ = c.Close(t.Context())
		}
		waitFor(t, "sessions have ended", func() bool { return len(g.srv.Sessions()) == 0 })
		g.failOver("a")
	}
	cancel()
	all.Wait()
	if st := g.srv.Stats(); st.Moved != 4*8 || len(st.Unmoved) != 0 {
		t.Errorf("%+v", st)
	}
	g.srv.Drain(true)
	for _, m := range g.srv.Moves(t.Context()) {
		if m.Why != "a drain is under way" {
			t.Errorf("%+v", m)
		}
	}
	g.srv.Drain(false)
}

// A reader that moves sees nothing go back: its next copy has to reach what the primary had flushed when the session
// left the copy before. Without a primary that says so, and at a position of another epoch, it waits, too.
func TestMovedReaderSeesNothingGoBack(t *testing.T) {
	s := &standings{at: map[ag.ReplicaID]Progress{"b": {Epoch: 1, LSN: 1000}, "c": {Epoch: 1, LSN: 900}}}
	g := movingGroup(t, func(c *Config) { c.Position = s.of })
	before, after, _ := releasing()
	only := *before
	only.ReadList = [][]ag.ReplicaID{{"b"}}
	g.publish(&only)
	reader := g.mustDial(g.ro, "user=postgres")
	g.do(reader, "set my.tenant = '42'")
	g.publish(after)
	g.srv.ContinueReaders(t.Context())
	asked := later(reader, "select 1")
	waiting(t, asked)                         // the primary does not say how far it is
	s.set("a", Progress{Epoch: 1, LSN: 1000}) // c lacks 100 bytes of that
	waitFor(t, "the copy to be passed over", func() bool { return g.srv.Stats().Lagged > 0 })
	s.set("c", Progress{Epoch: 2, LSN: 5000}) // of another history, as far as is known
	waiting(t, asked)
	s.set("c", Progress{Epoch: 1, LSN: 1000})
	must(t, <-asked)
	for query, want := range map[string]string{"select current_setting('cluster_name')": "c", "select current_setting('my.tenant')": "42"} {
		if got := g.one(reader, query); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}
