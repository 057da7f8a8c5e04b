package listener

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// Requests that arrive while a session is about to leave its backend go to the next one, in however many pieces they
// come.
func TestALeavingSessionKeepsWhatItsClientSends(t *testing.T) {
	g := movingGroup(t, nil)
	conn, err := net.Dial("tcp", g.rw)
	must(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, conn, 'Z')
	g.srv.Drain(true)
	g.srv.ReadStates(t.Context())
	x := g.srv.localSessions()[0]
	x.work.Lock()
	x.startLeaving() // its carrier is not told yet
	x.work.Unlock()
	for _, piece := range []string{"select 'first'", "select 'second'", "select 'third'"} {
		was, b := x.bytesIn.Load(), query(piece)
		_, _ = conn.Write(b)
		waitFor(t, "the piece has arrived", func() bool { return x.bytesIn.Load() == was+uint64(len(b)) })
	}
	r := *g.routes.Load()
	r.Epoch, r.Primary = 2, "b"
	x.Wake()
	g.srv.CloseServer("planned failover to b")
	g.publish(&r)
	g.srv.CloseEpoch(2, "the primary has changed")
	g.srv.Drain(false)
	var heard []string
	for range 3 {
		for {
			typ, body, err := pgwire.ReadMessage(conn, 1<<20)
			if err != nil {
				t.Fatalf("heard %q, then %v", heard, err)
			}
			if typ == 'D' {
				heard = append(heard, string(body[6:]))
			}
			if typ == 'Z' {
				break
			}
		}
	}
	if got := strings.Join(heard, " "); got != "first second third" {
		t.Errorf("heard %q", got)
	}
}

// A client that leaves while states are read, or while sessions leave, is not waited for.
func TestClientsThatLeaveHoldNobodyUp(t *testing.T) {
	for _, loops := range []int{0, -1} {
		g := movingGroup(t, func(c *Config) { c.Loops = loops })
		conn := g.mustDial(g.rw, "user=postgres")
		g.srv.Drain(true)
		list := g.srv.localSessions()
		must(t, conn.Close(t.Context()))
		waitFor(t, "it has left", func() bool { return len(g.srv.Sessions()) == 0 })
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		began := time.Now()
		g.srv.readStates(ctx, list)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("with %d loops, it was waited for, for %v", loops, took)
		}
		cancel()
		g.srv.Drain(false)
	}
}

// A session that is to leave its backend and cannot ends at once: nobody waits for it, and its client does not wait for
// ever if the failover is given up.
func TestASessionThatCannotLeaveEnds(t *testing.T) {
	g := movingGroup(t, nil)
	conn := g.mustDial(g.rw, "user=postgres")
	x := g.srv.localSessions()[0]
	p := x.onLoop.Load()
	if p == nil {
		t.Skip("no loop carries sessions")
	}
	g.srv.Drain(true)
	g.srv.ReadStates(t.Context())
	p.loop.Post(func() { p.awaiting = true }) // as if an answer had to be confirmed
	g.srv.moveServer(t.Context())
	p.loop.Post(func() { p.awaiting = false; p.checkEnded(); p.updateInterest() })
	g.srv.Drain(false) // given up
	if err := <-later(conn, "select 1"); err == nil || !strings.Contains(err.Error(), "its client does not take") {
		t.Errorf("%v", err)
	}
}

// In a group of two, a reader of the replica that takes over does not go to the primary that is about to hand over,
// where it would be lost: it waits until one of both serves it.
func TestReadersDoNotMoveToAPrimaryThatLeaves(t *testing.T) {
	far, near := movingGroup(t, nil), movingGroup(t, nil)
	near.remote["a"] = far.srv
	list := [][]ag.ReplicaID{{"b"}, {"a"}}
	two := func(epoch ag.Epoch, primary ag.ReplicaID, readable bool) *ag.Routes {
		return &ag.Routes{
			Epoch: epoch, Self: "b", Primary: primary, WriteOpen: primary != "", ReadList: list,
			Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true, Readable: readable}},
		}
	}
	near.publish(two(1, "a", true))
	conn := near.mustDial(near.ro, "user=postgres")
	near.do(conn, "set my.x = 'kept'")
	far.srv.Drain(true)
	far.srv.ReadStates(t.Context())
	near.publish(two(1, "a", false))
	near.srv.ContinueReaders(t.Context())
	asked := laterOne(conn, "select current_setting('cluster_name') || current_setting('my.x')")
	select {
	case got := <-asked:
		t.Fatalf("it is answered: %q", got)
	case <-time.After(300 * time.Millisecond):
	}
	if n := len(far.srv.localSessions()); n != 0 {
		t.Errorf("%d readers have moved to the primary that leaves", n)
	}
	far.srv.CloseServer("planned failover to b")
	promotion := two(2, "", false)
	promotion.Promoting = true
	near.publish(promotion)
	near.srv.CloseReplica("b", ag.ReadOnly, "this replica is being promoted")
	near.publish(two(2, "b", false))
	if got := <-asked; got != "bkept" {
		t.Errorf("%q", got)
	}
}

// laterOne runs a query in the background, and returns its value or its error.
func laterOne(conn *pgx.Conn, query string) <-chan string {
	heard := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		var got string
		if err := conn.QueryRow(ctx, query, pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil {
			got = err.Error()
		}
		heard <- got
	}()
	return heard
}
