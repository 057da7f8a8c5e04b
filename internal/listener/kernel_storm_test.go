package listener

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/known"
)

// storming is a client of TestKernelPathInAStorm, and what its session must be like.
type storming struct {
	g        *group
	n        int
	r        *rand.Rand
	conn     *pgconn.PgConn
	own      string         // my.own
	prepared bool           // the statement named is
	counted  map[string]int // the last number of its sequence, by server
	asked    int
	ended    map[string]int // sessions, by the SQLSTATE
}

// TestKernelPathInAStorm: sessions go to the kernel and come back while they are asked for their states, listed and
// moved, and lose their servers, all at once. Each client gets its own answers, in order, of a session that is as it
// has made it. Nothing is executed twice, and an end names its reason.
func TestKernelPathInAStorm(t *testing.T) {
	g := offloadGroup(t, func(c *Config) { c.Continuity, c.keepTick = always, time.Millisecond })
	const clients = 8
	for n := range clients {
		g.both(fmt.Sprintf("create sequence storm%d", n))
		defer g.both(fmt.Sprintf("drop sequence storm%d", n))
	}
	lasts := 2 * time.Second
	if !testing.Short() {
		lasts = 20 * time.Second
	}
	over, end := context.WithTimeout(t.Context(), lasts)
	defer end()
	seed := uint64(time.Now().UnixNano())
	var all sync.WaitGroup
	var list []*storming
	for n := range clients {
		c := &storming{g: g, n: n, r: rand.New(rand.NewPCG(seed, uint64(n))), ended: map[string]int{}}
		list = append(list, c)
		all.Go(func() {
			for over.Err() == nil && !t.Failed() {
				if err := c.step(); err != nil {
					t.Errorf("seed %d, client %d after %d requests: %v", seed, n, c.asked, err)
				}
			}
		})
	}
	g.storm(over, seed, &all)
	all.Wait()
	asked, ended := 0, map[string]int{}
	for _, c := range list {
		asked += c.asked
		for why, n := range c.ended {
			ended[why] += n
		}
	}
	st := g.srv.Stats()
	t.Logf("%d requests, %d by the kernel, %d times lent, %d moved; ended: %v; came back: %v", asked, st.RelayedByKernel, st.Offloaded, st.Moved, ended, st.KernelPath)
	if st.RelayedByKernel == 0 || st.Moved == 0 {
		t.Error("the kernel has relayed nothing, or nothing was moved")
	}
}

// storm troubles the sessions until over ends. The failovers to b move them, those back to a take their server away.
func (g *group) storm(over context.Context, seed uint64, all *sync.WaitGroup) {
	every := func(pause time.Duration, f func(x *session, r *rand.Rand)) {
		r := rand.New(rand.NewPCG(seed, uint64(pause)))
		all.Go(func() {
			for over.Err() == nil {
				if list := g.srv.localSessions(); len(list) > 0 {
					f(list[r.IntN(len(list))], r)
				}
				time.Sleep(time.Duration(r.Int64N(int64(2 * pause))))
			}
		})
	}
	every(3*time.Millisecond, func(x *session, _ *rand.Rand) { x.reclaim() })
	every(5*time.Millisecond, func(x *session, r *rand.Rand) {
		ctx, cancel := context.WithTimeout(over, time.Duration(r.IntN(20))*time.Millisecond)
		defer cancel()
		inquiry.Keep(ctx, x, known.Times{Tick: time.Millisecond, Pause: time.Millisecond, Idle: time.Millisecond})
	})
	every(20*time.Millisecond, func(*session, *rand.Rand) { g.srv.Moves(over) })
	every(30*time.Millisecond, func(*session, *rand.Rand) { g.srv.ReadAhead(over, func(int, int) {}) })
	every(10*time.Millisecond, func(*session, *rand.Rand) { g.srv.GateMoved() })
	all.Go(func() {
		for i := 0; over.Err() == nil; i++ {
			time.Sleep(100 * time.Millisecond)
			g.failOver([]ag.ReplicaID{"b", "a"}[i%2])
		}
	})
}

// step is one request of the client. An error is one that the client may not get.
func (c *storming) step() error {
	if c.conn == nil {
		c.conn, c.own, c.prepared, c.counted = c.g.mustDial(c.g.rw, "user=postgres").PgConn(), "", false, map[string]int{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c.asked++
	wrong, err := c.request(ctx)
	if wrong != "" || err == nil {
		if wrong != "" {
			return fmt.Errorf("%s", wrong)
		}
		return nil
	}
	for _, state := range []string{"57P01", "40001", "08007"} {
		if strings.Contains(err.Error(), state) {
			c.ended[state]++
			_ = c.conn.Close(ctx)
			c.conn = nil
			return nil
		}
	}
	return err
}

// request sends a request, and returns what is wrong with the answer, or its error.
func (c *storming) request(ctx context.Context) (wrong string, err error) {
	mark := fmt.Sprint("m", c.asked)
	ask := func(sql string) (err error) { _, err = c.conn.Exec(ctx, sql).ReadAll(); return err }
	shows := func(r *pgconn.Result, want string) (string, error) {
		if r.Err == nil && string(r.Rows[0][0]) != want {
			return fmt.Sprintf("it shows %q, not %q", r.Rows[0][0], want), nil
		}
		return "", r.Err
	}
	switch c.r.IntN(11) {
	case 0:
		if err = ask("set my.own = '" + mark + "'"); err == nil {
			c.own = mark
		}
	case 1:
		if !c.prepared {
			_, err = c.conn.Prepare(ctx, "named", "select $1::text || coalesce(current_setting('my.own', true), '')", nil)
			c.prepared = err == nil
		}
	case 2:
		if c.prepared {
			return shows(c.conn.ExecPrepared(ctx, "named", [][]byte{[]byte(mark)}, nil, nil).Read(), mark+c.own)
		}
	case 3:
		return shows(c.conn.ExecParams(ctx, "select coalesce(current_setting('my.own', true), '')", nil, nil, nil, nil).Read(), c.own)
	case 4:
		time.Sleep(time.Duration(c.r.IntN(12)) * time.Millisecond)
	case 5:
		for _, sql := range []string{"begin", "select 1", "commit"} {
			if err = ask(sql); err != nil {
				break
			}
		}
	default:
		return c.count(ctx, mark)
	}
	return "", err
}

// count has the server count the request.
func (c *storming) count(ctx context.Context, mark string) (wrong string, err error) {
	sql := fmt.Sprintf("select '%s', current_setting('cluster_name'), nextval('storm%d'), coalesce(current_setting('my.own', true), '')", mark, c.n)
	results, err := c.conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	row := results[0].Rows[0]
	var is int
	_, _ = fmt.Sscan(string(row[2]), &is)
	server := string(row[1])
	if was, counted := c.counted[server]; counted && is != was+1 {
		return fmt.Sprintf("%s counts %d after %d", server, is, was), nil
	}
	if c.counted[server] = is; string(row[0]) != mark || string(row[3]) != c.own {
		return fmt.Sprintf("it returns %q; want %q, %q", row, mark, c.own), nil
	}
	return "", nil
}
