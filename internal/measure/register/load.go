package register

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// Bounds of a register's history: the search of the judge grows fast with operations in doubt, so such a register is
// left alone and a fresh one takes its place.
const (
	registers = 20_000 // in the table
	inUse     = 4
	longest   = 400 // operations
	doubts    = 4
	looked    = 16 // registers that are still looked at
	none      = -1 // slot of such a register
)

// briefly is how often a watcher looks that ends its session then.
const briefly = 40

const appName = "coterie register"

// Options describe the clients and their operations.
type Options struct {
	ReadWrite []string      // libpq URIs; the clients take them in turn. Where one names several hosts, they are tried in turn
	ReadOnly  []string      // of replicas; each gets a watcher of the count, beside those of ReadWrite
	Brief     []string      // those of both whose watchers end their session after briefly looks, and begin another
	Clients   int           // of the registers
	Every     time.Duration // from one operation of a client to its next
	Timeout   time.Duration // after which the outcome of an operation is unknown
	Seed      uint64
}

// Load is the workload and its history. Its methods are safe for concurrent use; Run may run once.
type Load struct {
	o     Options
	group sync.WaitGroup

	mu       sync.Mutex
	ops      []Op
	seen     []Sighting
	sessions int
	keys     [inUse]struct {
		key, ops, doubts int
		last             int64 // the value that some client read or wrote last, for a swap to expect
	}
	retired   []int // no longer written, and read now and then: their values must stay
	nextKey   int
	nextValue int64
	done      int // operations that succeeded

	acknowledged atomic.Int64 // the count of the last increment that succeeded
}

// New makes a workload. Its registers are those of its own table, which Prepare makes.
func New(o Options) *Load {
	l := &Load{o: o}
	for i := range l.keys {
		l.renew(i)
	}
	return l
}

// Prepare makes the tables anew.
func (l *Load) Prepare(ctx context.Context) error {
	conn, err := session.Open(ctx, l.o.ReadWrite[0], appName)
	if err != nil {
		return fmt.Errorf("prepare registers: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, fmt.Sprintf(`
		drop schema if exists coterie_register cascade;
		create schema coterie_register;
		create table coterie_register.value (k int primary key, v bigint not null) with (fillfactor = 50);
		insert into coterie_register.value select k, 0 from generate_series(0, %d) k;
		create table coterie_register.count (n bigint not null);
		insert into coterie_register.count values (0)`, registers))
	if err != nil {
		return fmt.Errorf("prepare registers: %w", err)
	}
	return nil
}

// Run runs the clients until ctx ends.
func (l *Load) Run(ctx context.Context) error {
	var errs []error
	start := func(i int, dsn string, f func(context.Context, *session.Session, int) func(context.Context) bool) {
		s, err := session.New(session.Options{DSN: dsn, Start: i, Timeout: l.o.Timeout, Name: appName})
		if err != nil {
			errs = append(errs, err)
			return
		}
		l.group.Go(func() { l.repeat(ctx, s, f(ctx, s, i)) })
	}
	for i := range l.o.Clients {
		start(i, l.o.ReadWrite[i%len(l.o.ReadWrite)], l.client)
	}
	start(0, l.o.ReadWrite[0], l.counter)
	for i, dsn := range slices.Concat(l.o.ReadWrite, l.o.ReadOnly) {
		if slices.Contains(l.o.Brief, dsn) {
			start(i, dsn, l.briefWatcher)
			continue
		}
		start(i, dsn, l.watcher)
	}
	l.group.Wait()
	return errors.Join(errs...)
}

// History returns what was done so far.
func (l *Load) History() ([]Op, []Sighting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Op{}, l.ops...), append([]Sighting{}, l.seen...)
}

// Done returns how many operations have succeeded.
func (l *Load) Done() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done
}

// repeat connects when it has no connection, and does one step after the other.
func (l *Load) repeat(ctx context.Context, s *session.Session, step func(context.Context) bool) {
	defer s.Close()
	for ctx.Err() == nil {
		if s.Conn() == nil && s.Connect(ctx) != nil {
			session.Pause(ctx) // a refused login may be accepted later: the primary is elsewhere, or none exists now
			continue
		}
		if !step(ctx) {
			session.Pause(ctx)
			continue
		}
		t := time.NewTimer(l.o.Every)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// client is one that reads, writes and swaps.
func (l *Load) client(_ context.Context, s *session.Session, id int) func(context.Context) bool {
	rng := rand.New(rand.NewPCG(l.o.Seed, uint64(id))) //nolint:gosec // it chooses operations, and guards nothing
	return func(ctx context.Context) bool {
		slot, o := l.choose(rng, id)
		o.Host, o.Call = s.Host(), boottime.Now()
		o.Outcome, _, _ = s.Do(ctx, o.run)
		o.Return = boottime.Now()
		l.note(slot, o)
		return o.Outcome == session.OK
	}
}

// run is the operation on the server.
func (o *Op) run(ctx context.Context, conn *pgx.Conn) error {
	switch o.Kind {
	case Read:
		return conn.QueryRow(ctx, "select v from coterie_register.value where k = $1", o.Key).Scan(&o.Value)
	case Write:
		_, err := conn.Exec(ctx, "update coterie_register.value set v = $2 where k = $1", o.Key, o.Value)
		return err
	case Swap:
	}
	tag, err := conn.Exec(ctx, "update coterie_register.value set v = $3 where k = $1 and v = $2", o.Key, o.Expect, o.Value)
	o.Swapped = tag.RowsAffected() == 1
	return err
}

func (l *Load) choose(rng *rand.Rand, id int) (slot int, o Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.retired); n > 0 && rng.IntN(8) == 0 {
		return none, Op{Client: id, Key: l.retired[rng.IntN(n)], Kind: Read}
	}
	slot = rng.IntN(inUse)
	k := &l.keys[slot]
	k.ops++
	o = Op{Client: id, Key: k.key, Kind: Kind(rng.IntN(4)), Expect: k.last}
	if o.Kind > Swap {
		o.Kind = Read
	}
	if o.Kind != Read {
		l.nextValue++
		o.Value = l.nextValue
	}
	return slot, o
}

func (l *Load) note(slot int, o Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, o)
	if slot == none {
		return
	}
	k := &l.keys[slot]
	switch {
	case o.Outcome == session.OK:
		l.done++
		if k.key == o.Key && (o.Kind != Swap || o.Swapped) {
			k.last = o.Value
		}
	case o.Outcome == session.Unknown && o.Kind != Read && k.key == o.Key:
		k.doubts++
	}
	if k.ops >= longest || k.doubts >= doubts {
		l.renew(slot)
	}
}

func (l *Load) renew(slot int) {
	k := &l.keys[slot]
	if l.nextKey >= inUse {
		l.retired = append(l.retired, k.key)
		l.retired = l.retired[max(0, len(l.retired)-looked):]
	}
	k.key, k.ops, k.doubts, k.last = l.nextKey%registers, 0, 0, 0
	l.nextKey++
}

// counter counts.
func (l *Load) counter(_ context.Context, s *session.Session, _ int) func(context.Context) bool {
	return func(ctx context.Context) bool {
		var n int64
		out, _, _ := s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, "update coterie_register.count set n = n + 1 returning n").Scan(&n)
		})
		if out == session.OK {
			l.acknowledged.Store(n)
		}
		return out == session.OK
	}
}

// briefWatcher is a watcher whose sessions are brief.
func (l *Load) briefWatcher(ctx context.Context, s *session.Session, id int) func(context.Context) bool {
	look, looks := l.watcher(ctx, s, id), 0
	return func(ctx context.Context) bool {
		if looks++; looks%briefly == 0 {
			s.Drop()
			return true
		}
		return look(ctx)
	}
}

// watcher watches the count. Each connection is a session of its own.
func (l *Load) watcher(_ context.Context, s *session.Session, _ int) func(context.Context) bool {
	connects, id := 0, 0
	return func(ctx context.Context) bool {
		if n := s.Connects(); n != connects {
			l.mu.Lock()
			l.sessions++
			connects, id = n, l.sessions
			l.mu.Unlock()
		}
		saw := Sighting{Session: id, Host: s.Host()}
		out, _, _ := s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			const look = "select n, current_setting('cluster_name') || ' since ' || pg_postmaster_start_time() from coterie_register.count"
			return conn.QueryRow(ctx, look).Scan(&saw.Count, &saw.Server)
		})
		if out != session.OK {
			return false
		}
		saw.At, saw.Acknowledged = boottime.Now(), l.acknowledged.Load()
		l.mu.Lock()
		l.seen = append(l.seen, saw)
		l.mu.Unlock()
		return true
	}
}
