package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
)

// Requests are executed once, in failovers between two nodes that follow each other at once, whatever their protocol.
func TestMoveExecutesOnce(t *testing.T) {
	cert, _ := certificate(t)
	for _, path := range []string{PathLoop, PathGoroutines} {
		for _, mode := range []string{"disable", "require"} {
			t.Run(path+" "+mode, func(t *testing.T) {
				change := func(c *Config) {
					if path == PathGoroutines {
						c.Loops = -1
					}
					c.Certificate = func() *tls.Certificate { return cert }
				}
				executesOnce(t, movingGroup(t, change), movingGroup(t, change), mode)
			})
		}
	}
}

// executesOnce has clients of the node near, which is b, work while the primary moves between it and the node far.
func executesOnce(t *testing.T, far, near *group, mode string) {
	t.Helper()
	near.remote["a"] = far.srv
	epoch := ag.Epoch(1)
	routes := func(self, primary ag.ReplicaID) *ag.Routes { return pairRoutes(epoch, self, primary) }
	far.publish(routes("a", "a"))
	near.publish(routes("b", "a"))
	hammer(t, near, mode, func(i int) {
		from, to := far, ag.ReplicaID("b")
		if i%2 == 1 {
			from, to = near, "a"
		}
		near.srv.HoldNew(true)
		from.srv.Drain(true)
		from.drained()
		from.srv.ReadStates(t.Context())
		closed := *from.routes.Load()
		closed.WriteOpen = false
		from.publish(&closed)
		from.srv.CloseServer("planned failover")
		epoch++
		far.publish(routes("a", to))
		near.publish(routes("b", to))
		far.srv.CloseEpoch(epoch, "the primary has changed")
		near.srv.CloseEpoch(epoch, "the primary has changed")
		from.srv.Drain(false)
		near.srv.HoldNew(false)
	})
	if n := len(far.srv.Sessions()); n != 0 {
		t.Errorf("%d sessions are left at the far node", n)
	}
}

// mark is a row that a client has inserted.
type mark struct{ client, row int }

// marks are the rows that were acknowledged, and those of a request that has failed.
type marks struct {
	mu            sync.Mutex
	acked, failed map[mark]bool
}

func (m *marks) note(client, from, to int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := from; k < to; k++ {
		if err == nil {
			m.acked[mark{client, k}] = true
		} else {
			m.failed[mark{client, k}] = true
		}
	}
}

// hammer has clients insert rows during failovers, and checks that each was inserted once.
func hammer(t *testing.T, g *group, mode string, failOver func(int)) {
	t.Helper()
	for _, s := range g.servers {
		s.sql(t, "drop table if exists public.once", "create table public.once (c int, i int)")
		defer s.sql(t, "drop table public.once")
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	seen := &marks{acked: make(map[mark]bool), failed: make(map[mark]bool)}
	for c := range 8 {
		all.Go(func() {
			for next := 0; !stop.Load(); {
				conn, err := g.dial(g.rw, "user=postgres sslmode="+mode)
				for err == nil && !stop.Load() {
					from := next
					next += 1 + c%4*3
					err = insertRows(conn, c, from, next)
					seen.note(c, from, next, err)
				}
				var pg *pgconn.PgError
				if errors.As(err, &pg) && pg.Code != "57P01" && pg.Code != "40001" && pg.Code != "08007" {
					t.Errorf("client %d: %v", c, err)
				}
				if conn != nil {
					_ = conn.Close(context.Background())
				}
			}
		})
	}
	for i := range 12 {
		time.Sleep(time.Duration(10+i%4*60) * time.Millisecond) // some failovers find the sessions of the last under way
		failOver(i)
	}
	stop.Store(true)
	all.Wait()
	g.insertedOnce(seen)
	waitFor(t, "sessions have ended, also those without a server", g.over)
	g.srv.mu.Lock()
	defer g.srv.mu.Unlock()
	if n := len(g.srv.keys); n != 0 {
		t.Errorf("%d cancel keys are left", n)
	}
}

// insertRows inserts rows, in a pipeline, each by a Query, or in a transaction.
func insertRows(conn *pgx.Conn, client, from, to int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if client%4 == 2 {
		for k := from; k < to; k++ {
			if _, err := conn.PgConn().Exec(ctx, fmt.Sprintf("insert into once values (%d, %d)", client, k)).ReadAll(); err != nil {
				return err
			}
		}
		return nil
	}
	if client%2 == 0 {
		p := conn.PgConn().StartPipeline(ctx)
		for k := from; k < to; k++ {
			p.SendQueryParams(fmt.Sprintf("insert into once values (%d, %d)", client, k), nil, nil, nil, nil)
			_ = p.Sync() // Close returns its error
		}
		_ = p.Flush() // and so does that of a connection that was lost
		return p.Close()
	}
	if _, err := conn.Exec(ctx, "begin", pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	for k := from; k < to; k++ {
		if _, err := conn.Exec(ctx, "insert into once values ($1, $2)", client, k); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, "commit", pgx.QueryExecModeSimpleProtocol)
	return err
}

// insertedOnce checks the rows of both servers.
func (g *group) insertedOnce(seen *marks) {
	g.t.Helper()
	got := map[mark]int{}
	for _, id := range []ag.ReplicaID{"a", "b"} {
		conn, err := g.servers[id].connect(context.Background(), "postgres")
		if err != nil {
			g.t.Fatal(err)
		}
		rows, _ := conn.Query(context.Background(), "select c, i from public.once") // ForEachRow returns its error
		var m mark
		_, err = pgx.ForEachRow(rows, []any{&m.client, &m.row}, func() error { got[m]++; return nil })
		_ = conn.Close(context.Background())
		if err != nil {
			g.t.Fatal(err)
		}
	}
	for m, n := range got {
		if n > 1 {
			g.t.Errorf("%v was executed %d times", m, n)
		}
	}
	for m := range seen.acked {
		if got[m] == 0 {
			g.t.Errorf("%v was acknowledged and is not there", m)
		}
	}
	st := g.srv.Stats()
	g.t.Logf("%d acknowledged, %d failed, moved %d, cut %v, unmoved %v", len(seen.acked), len(seen.failed), st.Moved, st.Cut, st.Unmoved)
	if st.Moved == 0 {
		g.t.Error("no session was moved")
	}
}
