package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndSessionsSurvive holds that a planned failover is no error for sessions of any node's listener, whether
// they write or read: each keeps its connection, its settings and its prepared statements, and no statement fails.
func TestEndToEndSessionsSurvive(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	sql(t, g.ReadWrite(), "CREATE TABLE counted (session text, n int, PRIMARY KEY (session, n))")
	nodes := append(secondaries(s), *s.Primary)
	var sessions []*survivor
	for _, node := range nodes {
		for i := range 3 {
			sessions = append(sessions, g.survivor(t, node, fmt.Sprintf("%s-%d", node, i)))
		}
		for i := range 3 {
			sessions = append(sessions, g.survivingReader(t, node, fmt.Sprintf("%s-reader-%d", node, i)))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, x := range sessions {
		all.Go(func() { x.work(ctx, t) })
	}
	for range 2 {
		for _, to := range nodes {
			was := g.ready(t)
			if *was.Primary == to {
				continue
			}
			must(t, "failover", "--to", to, "--node", g.node(to))
			g.ready(t)
			for _, x := range sessions {
				x.advances(t)
			}
		}
	}
	cancel()
	all.Wait()
	for _, x := range sessions {
		if x.reads {
			continue
		}
		if got, want := sql(t, g.ReadWrite(), "SELECT count(*) FROM counted WHERE session = '"+x.name+"'"), fmt.Sprint(x.done.Load()); got != want {
			t.Errorf("%s: %s rows of %s acknowledged ones", x.name, got, want)
		}
	}
	g.down(t)
}

// survivor is a session that writes, or reads, and looks at its own state.
type survivor struct {
	name  string
	reads bool
	conn  *pgx.Conn
	done  atomic.Int64
}

func (g *group) survivor(t *testing.T, node, name string) *survivor {
	t.Helper()
	return survive(t, g.DSN(node), name)
}

// survivingReader is a survivor on a secondary.
func (g *group) survivingReader(t *testing.T, node, name string) *survivor {
	t.Helper()
	x := survive(t, g.DSN(node)+"&options=-c%20coterie.intent%3DREAD_ONLY", name)
	x.reads = true
	return x
}

func survive(t *testing.T, dsn, name string) *survivor {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err == nil {
		_, err = c.Exec(ctx, "SET my.name = '"+name+"'; SET work_mem = '5MB'")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return &survivor{name: name, conn: c}
}

func (x *survivor) work(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		var name, mem string
		query, args := "INSERT INTO counted VALUES ($1, $2) RETURNING current_setting('my.name'), current_setting('work_mem')", []any{x.name, x.done.Load() + 1}
		if x.reads {
			query, args = "SELECT current_setting('my.name'), current_setting('work_mem') WHERE pg_is_in_recovery()", nil
		}
		err := x.conn.QueryRow(c, query, args...).Scan(&name, &mem)
		cancel()
		if err != nil || name != x.name || mem != "5MB" {
			t.Errorf("%s after %d statements: %q, %q, %v", x.name, x.done.Load(), name, mem, err)
			return
		}
		x.done.Add(1)
		time.Sleep(2 * time.Millisecond)
	}
}

// advances waits until the session has written again.
func (x *survivor) advances(t *testing.T) {
	t.Helper()
	was := x.done.Load()
	for end := time.Now().Add(patience); x.done.Load() == was; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) || t.Failed() {
			t.Fatalf("%s does not go on", x.name)
		}
	}
}
