package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// Cell is one shape of the insert matrix: so many transactions of so many rows.
type Cell struct{ Inserts, Rows int }

func (c Cell) String() string { return fmt.Sprintf("%d × %d", c.Inserts, c.Rows) }

// PublishedCells are those of the published matrix.
var PublishedCells = []Cell{{1, 1_000_000}, {10, 100_000}, {100, 10_000}, {1_000, 1_000}, {10_000, 100}, {100_000, 10}, {1_000_000, 1}}

// CommitOptions says what Commit inserts.
type CommitOptions struct {
	Cells       []Cell
	Compression []string                             // LOG_COMPRESSION of every secondary, each in turn; empty: as it is
	Link        string                               // shape of the links, in words
	Floor       func(context.Context) (Floor, error) // measures the floor, in every block; nil: Bed.Floor where links are known
}

// Commit asks what a synchronous commit costs: the same inserts, waited for on the primary alone and on the secondaries, too.
func (b *Bed) Commit(ctx context.Context, o CommitOptions) (report.Experiment, error) {
	e := report.Experiment{
		Name: "commit", Title: "The insert matrix", Question: "What does a synchronous commit cost?", Scaled: !b.Published,
		Conditions: b.conditions("INSERT INTO … SELECT on the server, one client, a transaction per insert"),
	}
	if o.Link != "" {
		e.Conditions = append(e.Conditions, "link between nodes "+o.Link)
	}
	write := b.A
	if b.Group != nil {
		write = b.Group.ReadWrite()
	}
	if err := b.commitData(ctx, write, o); err != nil {
		return e, err
	}
	if o.Floor == nil && b.Links != nil {
		o.Floor = b.Floor
	}
	if o.Cells[len(o.Cells)-1].Rows != 1 {
		o.Floor = nil // it is that of one small commit
	}
	m := newMatrix(o)
	each := time.Duration(len(o.Cells)) * 2 * time.Second
	b.Progress.Plan(time.Duration(b.Blocks*len(m.kinds)*2) * each)
	err := b.turns(ctx, e.Name, b.compressionArms(m.kinds), func(ctx context.Context, block int, a arm) error {
		if o.Floor != nil && len(m.floors) <= block {
			f, err := o.Floor(ctx)
			if err != nil {
				return fmt.Errorf("measure the floor of the penalty: %w", err)
			}
			m.floors = append(m.floors, f)
		}
		waits := []string{async, synchronous}
		if block%2 == 1 {
			slices.Reverse(waits)
		}
		for _, wait := range waits {
			b.Progress.Step(each, "commit, block %d of %d: %s, %s", block+1, b.Blocks, cmp.Or(a.name, "as it is"), wait)
			for _, c := range o.Cells {
				r, err := b.cell(ctx, c, wait)
				if err != nil {
					return err
				}
				m.at(a.name, wait, c).add(r, float64(r.Elapsed.Microseconds())/1000)
			}
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	return e, b.commitReport(&e, o, m)
}

const (
	async       = "asynchronous"
	synchronous = "synchronous"
)

func (b *Bed) commitData(ctx context.Context, write string, o CommitOptions) error {
	most := 0
	for _, c := range o.Cells {
		most = max(most, c.Rows)
	}
	b.Progress.Say("loading %d rows to copy from", most)
	if _, err := workload.LoadRows(ctx, write, most, nil); err != nil {
		return err
	}
	conn, err := workload.Open(ctx, write)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	_, err = conn.Exec(ctx, "create table if not exists target (id int not null, grp int not null, amount numeric(8,2) not null, pad text not null)")
	return err
}

// compressionArms set LOG_COMPRESSION on every secondary.
func (b *Bed) compressionArms(kinds []string) []arm {
	var arms []arm
	for _, kind := range kinds {
		a := arm{name: kind}
		if kind != "" {
			a.prepare = func(ctx context.Context) error { return b.compress(ctx, kind) }
		}
		arms = append(arms, a)
	}
	return arms
}

func (b *Bed) compress(ctx context.Context, kind string) error {
	if b.Group == nil {
		return errNoGroup
	}
	members, err := b.Group.Members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members { // on all: the option speaks for a replica's link, whoever leads
		sql := fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] MODIFY REPLICA ON N'%s' WITH (LOG_COMPRESSION = %s)", b.Group.Name(), m, kind)
		if err := b.Group.Statement(ctx, sql); err != nil {
			return err
		}
	}
	if b.Links != nil {
		return b.Links.Reconnected(ctx, time.Minute)
	}
	return nil
}

// cell does the inserts of one cell once.
func (b *Bed) cell(ctx context.Context, c Cell, wait string) (method.Result, error) {
	dsn, setup := b.A, ""
	if b.Group != nil {
		dsn, setup = b.Group.ReadWrite(), "set synchronous_commit = on"
		if wait == async {
			setup = "set synchronous_commit = local"
		}
	} else if wait == synchronous {
		dsn = b.B
	}
	conn, err := workload.Open(ctx, dsn)
	if err != nil {
		return method.Result{}, err
	}
	defer closeConn(conn)
	if _, err := conn.Exec(ctx, "truncate target"); err != nil {
		return method.Result{}, err
	}
	s := workload.Statement{
		DSN: dsn, Setup: setup, Timeout: 10 * time.Minute, Dial: b.Dial,
		SQL: fmt.Sprintf("insert into coterie_bench.target select id, grp, amount, pad from coterie_bench.rows where id <= %d", c.Rows),
	}
	r, err := method.Run(ctx, method.Load{Clients: 1, Iterations: int64(c.Inserts)}, s.Worker)
	if err == nil && r.Rows != int64(c.Inserts*c.Rows) {
		err = fmt.Errorf("%d rows of %d were inserted: %v", r.Rows, c.Inserts*c.Rows, r.Errors)
	}
	return r, err
}

// Floor is the least that a synchronous commit can take longer, now: a round trip to the nearest secondary, and its disk.
type Floor struct {
	RoundTrip, Disk time.Duration
	Member          string
}

func (f Floor) ms() float64 { return milli(f.RoundTrip + f.Disk) }

// Floor measures it. The secondaries sync at the same time, as they do at a commit: where they share a disk, one alone would be faster than
// any commit finds it.
func (b *Bed) Floor(ctx context.Context) (best Floor, err error) {
	primary, err := b.Group.Primary(ctx)
	if err != nil {
		return best, err
	}
	members, err := b.Group.Members(ctx)
	if err != nil {
		return best, err
	}
	secondaries := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == primary })
	disks, errs := make([]time.Duration, len(secondaries)), make([]error, len(secondaries))
	var wg sync.WaitGroup
	for i, m := range secondaries {
		wg.Go(func() { disks[i], errs[i] = b.Links.SyncTime(ctx, m, 30) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return best, err
	}
	for i, m := range secondaries {
		one := Floor{Member: m, Disk: disks[i]}
		if one.RoundTrip, err = b.Links.RoundTrip(ctx, primary, m); err != nil {
			return best, err
		}
		if best.Member == "" || one.RoundTrip+one.Disk < best.RoundTrip+best.Disk {
			best = one
		}
	}
	return best, nil
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
