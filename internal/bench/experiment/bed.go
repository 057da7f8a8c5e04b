package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// Group is the availability group to measure.
type Group interface {
	Name() string
	Members(ctx context.Context) ([]string, error) // names of the replicas, the primary included
	Primary(ctx context.Context) (string, error)
	ReadWrite() string                               // connection string of the listeners
	ReadOnly() string                                // the same listeners with read intent
	Own(member string) string                        // connection string of the member's own server; empty: it cannot be reached
	Statement(ctx context.Context, sql string) error // an availability-group statement
}

// Faults are the faults that a lab can give its nodes.
type Faults interface {
	Do(ctx context.Context, action Action) error   // does the action to the primary
	Mend(ctx context.Context, action Action) error // undoes the action, and waits until every replica is synchronized
}

// Links are the network of a lab.
type Links interface {
	Shape(ctx context.Context, shape string) error                             // changes every link between nodes
	RoundTrip(ctx context.Context, from, to string) (time.Duration, error)     // measures the first packets of a connection
	Reconnected(ctx context.Context, patience time.Duration) error             // waits until every replica is synchronized again
	SyncTime(ctx context.Context, member string, n int) (time.Duration, error) // measures n small writes to the disk of a member, each synced
}

// Bed is the system on which the experiments run: a group, or two connection strings to compare.
type Bed struct {
	Group  Group  // nil: a pair
	Faults Faults // nil: faults are not possible
	Links  Links  // nil: links cannot be shaped
	A, B   string // connection strings of a pair
	Capped string // the limit of each node on its machine, in words; empty: not limited
	Small  bool   // the memory of each node is limited
	Apart  bool   // every node is a machine of its own

	Patience      time.Duration // how long replicas may take to replay the loaded data; 0: replayPatience
	Seed          uint64
	Blocks        int
	Published     bool // the published sizes instead of scaled ones
	Progress      *report.Progress
	Dial          pgconn.DialFunc                    // connects from where the client runs; nil: from this host
	ClientAt      string                             // in words
	Near          string                             // the member at which the client runs; empty: none
	ReadBytes     func() map[string]map[string]int64 // bytes that each process of each member's server has read from the disk so far; nil: unknown
	DropPageCache func(ctx context.Context) error    // drops the servers' files from the page caches of their machines; nil: not possible
}

// Pair names the arms of a pair of connection strings.
const (
	armA = "a"
	armB = "b"
)

// arm is one alternative of a comparison.
type arm struct {
	name    string
	dsn     string
	prepare func(context.Context) error // puts the arm in force; nil: it always is
}

// errNoGroup is the error of an experiment that two connection strings do not suffice for.
var errNoGroup = errors.New("it needs a group: a lab (no target), or --group with the listeners' connection string")

// turns runs each arm once in each block, in balanced order. run measures every point of the arm in turn and keeps the
// results.
func (b *Bed) turns(ctx context.Context, what string, arms []arm, run func(ctx context.Context, block int, a arm) error) error {
	for i, order := range method.Blocks(b.Seed, len(arms), b.Blocks) {
		for _, k := range order {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			a := arms[k]
			if a.prepare != nil {
				if err := a.prepare(ctx); err != nil {
					return fmt.Errorf("%s, %s: %w", what, a.name, err)
				}
			}
			if err := run(ctx, i, a); err != nil {
				return fmt.Errorf("%s, block %d, %s: %w", what, i+1, a.name, err)
			}
		}
	}
	return nil
}

// sample is one arm at one point, over all blocks.
type sample struct {
	results []method.Result
	values  []float64 // the compared values, one per block
}

func (s *sample) add(r method.Result, value float64) {
	s.results = append(s.results, r)
	s.values = append(s.values, value)
}

// latency returns the merged distributions of the blocks.
func (s *sample) latency() *hdrhistogram.Histogram {
	h := method.NewHistogram()
	for _, r := range s.results {
		if r.Latency != nil {
			h.Merge(r.Latency)
		}
	}
	return h
}

func (s *sample) ms(q float64) float64 {
	return float64(method.Quantile(s.latency(), q).Microseconds()) / 1000
}

// mean returns the mean of a figure over the blocks.
func (s *sample) mean(f func(method.Result) float64) float64 {
	sum := 0.0
	for _, r := range s.results {
		sum += f(r)
	}
	return sum / float64(max(len(s.results), 1))
}

// bound returns why the client may have been the limit in a block; empty: in none.
func (s *sample) bound() string {
	for _, r := range s.results {
		if why := r.ClientBound(); why != "" {
			return why
		}
	}
	return ""
}

// account adds errors and retries to the experiment.
func (s *sample) account(e *report.Experiment) {
	if e.Errors == nil {
		e.Errors, e.Retries = map[string]int64{}, map[string]int64{}
	}
	for _, r := range s.results {
		for state, n := range r.Errors {
			e.Errors[state] += n
		}
		for state, n := range r.Retries {
			e.Retries[state] += n
		}
	}
}

// metric returns the sample as a metric of the report, with its interval.
func (s *sample) metric(name, unit string, better method.Better) report.Metric {
	low, high := method.MedianInterval(s.values)
	return report.Metric{Name: name, Unit: unit, Better: better, Value: method.Median(s.values), Low: low, High: high}
}

// p99 returns the blocks' 99th percentiles as a metric of the report.
func (s *sample) p99(name string) report.Metric {
	var v []float64
	for _, r := range s.results {
		v = append(v, float64(method.Quantile(r.Latency, 99).Microseconds())/1000)
	}
	low, high := method.MedianInterval(v)
	return report.Metric{Name: name, Unit: "ms", Better: method.LowerIsBetter, Value: method.Median(v), Low: low, High: high}
}

// compare compares b with a, and gives no verdict where a client was the limit.
func compare(a, b *sample, better method.Better) method.Comparison {
	c := method.Compare(a.values, b.values, better)
	why := a.bound()
	if why == "" {
		why = b.bound()
	}
	return c.Withhold(why)
}

// finite returns v for a report, or nothing if v is NaN or infinite, which a report cannot hold.
func finite(v float64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return v
}

// conditions returns the properties of the bed that every experiment reports.
func (b *Bed) conditions(more ...string) []string {
	out := slices.Clone(more)
	switch {
	case b.Capped != "":
		out = append(out, "every node may use "+b.Capped)
	case b.Group != nil && !b.Apart:
		out = append(out, "nodes not limited")
	}
	if b.ClientAt != "" {
		out = append(out, "client "+b.ClientAt)
	}
	return append(out, fmt.Sprintf("%d blocks", b.Blocks))
}

// published returns the source of a published table for a report, or none if the experiment was scaled.
func (b *Bed) published(files ...string) (all []report.Figures, sources []report.Source, err error) {
	for _, name := range files {
		f, err := report.Published(name)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, f)
		sources = append(sources, f.Source)
	}
	return all, sources, nil
}

// figure returns a published cell, or nothing in a scaled run.
func (b *Bed) figure(f report.Figures, key, column string) any {
	if !b.Published {
		return nil
	}
	return f.Value(key, column)
}

// publishedRatio returns the ratio of two published figures.
func (b *Bed) publishedRatio(f report.Figures, key, over, under string) *float64 {
	r, ok := ratioOf(f, key, over, under)
	if !b.Published || !ok {
		return nil
	}
	return &r
}

// number returns the number that a query of one row returns.
func number(ctx context.Context, dsn, sql string) (float64, error) {
	return ask[float64](ctx, dsn, sql)
}

// text returns the text that a query of one row returns.
func text(ctx context.Context, dsn, sql string) (string, error) { return ask[string](ctx, dsn, sql) }

func ask[T any](ctx context.Context, dsn, sql string) (v T, err error) {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return v, err
	}
	defer closeConn(conn)
	if err := conn.QueryRow(ctx, sql).Scan(&v); err != nil {
		return v, fmt.Errorf("%s: %w", sql, err)
	}
	return v, nil
}

const appName = "coterie bench"

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx) // the connection is not used again
}

// until waits at most patience until f returns true. The error names the condition by what.
func until(ctx context.Context, patience time.Duration, what string, f func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for %s", patience, what))
	defer cancel()
	var last error
	err := retry.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		ok, err := f(ctx)
		if ctx.Err() == nil || last == nil { // the last error is more useful than the end of the time
			last = err
		}
		return ok && err == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// Follower is a group that reports how far its members have replayed, for a group whose servers cannot be reached.
type Follower interface {
	// Behind returns the secondaries that may get readers and have not replayed up to lsn, each with its position.
	Behind(ctx context.Context, lsn string) ([]string, error)
}

// replayPatience is how long replicas may take to replay the loaded data, unless the bed has its own bound. A load can
// be many gigabytes.
const replayPatience = 10 * time.Minute

// replayed waits until every server that may get readers can see the loaded data: until every member, or the second of
// a pair, answers a query with at least that value. Where the members cannot be reached, it waits until the group
// reports that they have replayed all WAL written until now.
func (b *Bed) replayed(ctx context.Context, sql string, least float64) error {
	servers := map[string]string{}
	if b.Group == nil {
		servers["the second target"] = b.B
	} else {
		members, err := b.Group.Members(ctx)
		if err != nil {
			return err
		}
		for _, m := range members {
			if dsn := b.Group.Own(m); dsn != "" {
				servers[m] = dsn
			}
		}
		if f, ok := b.Group.(Follower); ok && len(servers) < len(members) {
			return b.followed(ctx, f)
		}
	}
	for name, dsn := range servers {
		if err := until(ctx, cmp.Or(b.Patience, replayPatience), name+" to replay what was loaded", func(ctx context.Context) (bool, error) {
			v, err := number(ctx, dsn, sql)
			return v >= least, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// followed waits until every server that takes readers has replayed a record that is written now. It writes a record of
// its own, because the end of the WAL may be inside a record.
func (b *Bed) followed(ctx context.Context, f Follower) error {
	lsn, err := text(ctx, b.Group.ReadWrite(), "select pg_logical_emit_message(true, 'coterie bench', '')::text")
	if err != nil {
		return err
	}
	said := false
	return until(ctx, cmp.Or(b.Patience, replayPatience), "the readable secondaries to replay what was loaded", func(ctx context.Context) (bool, error) {
		behind, err := f.Behind(ctx, lsn)
		if err != nil || len(behind) == 0 {
			return err == nil, err
		}
		if !said {
			b.Progress.Say("waiting for %s to replay up to %s", strings.Join(behind, ", "), lsn)
			said = true
		}
		return false, fmt.Errorf("it goes up to %s, and behind are %s; see whether replay is paused there, or held up by a query", lsn, strings.Join(behind, ", "))
	})
}

// loading returns Progress.Loading for a load of one table.
func (b *Bed) loading(what string) func(done, total int) {
	tell, begun := b.Progress.Loading(what), false
	return func(done, total int) {
		if !begun { // such a load reports progress for the first time when its first part is done
			tell(0, int64(total))
		}
		begun = true
		tell(int64(done), int64(total))
	}
}
