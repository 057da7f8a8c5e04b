package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/measure/session"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
)

// load is clients at work through the listener.
type load struct {
	cancel context.CancelFunc
	done   chan struct{}
	result tpcc.Result
	err    error
}

// startLoad starts the TPC-C clients; each second of it goes to tick.
func startLoad(ctx context.Context, l observe.Lab, clients int, seed uint64, tick func(tpcc.Interval)) *load {
	ctx, cancel := context.WithCancel(ctx)
	w := &load{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.result, w.err = tpcc.Run(ctx, tpcc.RunOptions{DSN: l.ReadWrite(), ReadDSN: l.ReadOnly(), Clients: clients, Seed: seed, Tick: tick})
	}()
	return w
}

// stop ends the load and returns its result.
func (w *load) stop() (tpcc.Result, error) {
	w.cancel()
	<-w.done
	return w.result, w.err
}

// meter keeps the last second of the load and where reads went.
type meter struct {
	mu    sync.Mutex
	last  tpcc.Interval
	peak  float64
	stage string
	reads map[string]map[string]int64 // by stage, then by server as the server calls itself
	names map[string]string           // of a server, the node
}

func newMeter() *meter {
	return &meter{reads: map[string]map[string]int64{}, names: map[string]string{}}
}

func (m *meter) tick(i tpcc.Interval) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.peak = i, max(m.peak, i.TPS)
	if m.stage == "" {
		return
	}
	at := m.reads[m.stage]
	if at == nil {
		at = map[string]int64{}
		m.reads[m.stage] = at
	}
	for server, n := range i.Reads {
		at[server] += n
	}
}

// in names the stage that reads are counted under from now on; empty: not counted.
func (m *meter) in(stage string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stage = stage
}

// learn asks every server for its name, since a restarted one has another name. A dead one is left out.
func (m *meter) learn(ctx context.Context, l observe.Lab) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, n := range l.Nodes() {
		name, err := serverName(ctx, l.DSN(n))
		if err != nil {
			continue
		}
		m.mu.Lock()
		m.names[name] = n
		m.mu.Unlock()
	}
}

func serverName(ctx context.Context, dsn string) (name string, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	return name, conn.QueryRow(ctx, "select tpcc.server()").Scan(&name)
}

// byNode is a stage's reads by node.
func (m *meter) byNode(stage string) map[string]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.translate(m.reads[stage])
}

func (m *meter) translate(by map[string]int64) map[string]int64 {
	out := map[string]int64{}
	for server, n := range by {
		if node, ok := m.names[server]; ok {
			server = node
		}
		out[server] += n
	}
	return out
}

// line describes the current load.
func (m *meter) line(since time.Duration, acknowledged int64) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	bar := 0
	if m.peak > 0 {
		bar = int(math.Round(10 * m.last.TPS / m.peak))
	}
	s := fmt.Sprintf("%s %s%s %s tx/s   ledger %s rows", observe.Clock(since)[:5], strings.Repeat("█", bar), strings.Repeat("░", 10-bar),
		observe.Thousands(int64(m.last.TPS)), observe.Thousands(acknowledged))
	if r := m.translate(m.last.Reads); len(r) > 0 {
		s += "   reads on " + shares(r)
	}
	return s
}

// shares prints counts as per cent.
func shares(by map[string]int64) string {
	var total int64
	for _, n := range by {
		total += n
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%s %.0f %%", k, 100*float64(by[k])/float64(max(total, 1))))
	}
	return strings.Join(parts, " ")
}

// caughtUp waits until every replica has replayed what the primary has flushed, and returns that position.
func caughtUp(ctx context.Context, l observe.Lab, leader string) (lsn string, err error) {
	err = query(ctx, l.DSN(leader), `select pg_current_wal_flush_lsn()::text`, nil, &lsn)
	if err != nil {
		return "", fmt.Errorf("position of %s: %w", leader, err)
	}
	for _, n := range l.Nodes() {
		if n == leader {
			continue
		}
		what := fmt.Sprintf("%s to replay up to %s", n, lsn)
		err := observe.Await(ctx, time.Minute, what, func(ctx context.Context) (bool, error) {
			var there bool
			err := query(ctx, l.DSN(n), `select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, true)`, []any{lsn}, &there)
			return there, err
		})
		if err != nil {
			return lsn, err
		}
	}
	return lsn, nil
}

func query(ctx context.Context, dsn, sql string, args []any, into any) error {
	conn, err := session.Open(ctx, dsn, "coterie demo")
	if err != nil {
		return err
	}
	defer func() {
		c, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(c)
	}()
	return conn.QueryRow(ctx, sql, args...).Scan(into)
}

// finding is the state of one replica's database.
type finding struct {
	node       string
	conditions []tpcc.Condition
	digest     string
	err        error
}

// inspect checks the conditions on every replica, and with digests what it holds, two replicas at a time.
func inspect(ctx context.Context, l observe.Lab, digests bool) ([]finding, error) {
	nodes := l.Nodes()
	out := make([]finding, len(nodes))
	slots := make(chan struct{}, 2)
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			f := finding{node: n}
			f.conditions, f.err = tpcc.Check(ctx, l.DSN(n))
			if f.err == nil && digests {
				f.digest, f.err = tpcc.Digest(ctx, l.DSN(n))
			}
			if f.err != nil {
				f.err = fmt.Errorf("check %s: %w", n, f.err)
			}
			out[i] = f
		})
	}
	wg.Wait()
	var errs []error
	for _, f := range out {
		errs = append(errs, f.err)
	}
	return out, errors.Join(errs...)
}
