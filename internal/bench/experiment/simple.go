package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// ReadOptions are the number of rows that Read reads, and how it reads them.
type ReadOptions struct {
	Rows    int
	Formats []workload.Format
}

// PublishedRows is the number of rows of the published experiment.
const PublishedRows = 1_000_000

// temperature names the place of the rows: in the memory of the machine that reads them, or not.
type temperature string

const (
	cold temperature = "cold" // the page cache was emptied before the read
	warm temperature = "warm" // the same rows were read just before
)

// Read measures how long one client takes to read many rows, in each format, cold where that is possible and warm. A
// client that runs at a node reads from that node and from the others.
func (b *Bed) Read(ctx context.Context, o ReadOptions) (report.Experiment, error) {
	e := report.Experiment{
		Name: "read", Title: "Reading rows", Question: fmt.Sprintf("How long does one client take to read %s rows?", thousands(o.Rows)), Scaled: !b.Published,
		Conditions: b.conditions("one client, rows of TPC-C's table customer, about 560 bytes"),
	}
	if err := method.MustBeCapped(e.Name, !b.Published || b.Small || b.Apart || b.Group == nil); err != nil {
		return e, err
	}
	arms, end, err := b.readArms(ctx, false)
	if err != nil {
		return e, err
	}
	defer end()
	if err := b.customers(ctx, o.Rows); err != nil {
		return e, err
	}
	temperatures, note, err := b.temperatures(ctx)
	if err != nil {
		return e, err
	}
	if note != "" {
		e.Notes = append(e.Notes, note)
	}
	samples := map[string]*sample{}
	const each = 2 * time.Second
	b.Progress.Plan(time.Duration(b.Blocks*2*len(o.Formats)*len(temperatures)) * each)
	err = b.turns(ctx, e.Name, arms, func(ctx context.Context, block int, a arm) error {
		for _, f := range o.Formats {
			for _, t := range temperatures {
				b.Progress.Step(each, "read, block %d of %d: %s, %s, %s", block+1, b.Blocks, a.name, f, t)
				r, err := b.readOnce(ctx, o, a, f, t)
				if err != nil {
					return err
				}
				k := a.name + string(f) + string(t)
				if samples[k] == nil {
					samples[k] = &sample{}
				}
				samples[k].add(r, r.Elapsed.Seconds())
			}
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	return e, b.readReport(&e, o, readSamples{arms, temperatures, samples})
}

// customers makes the table to read, and waits until every reader can see it.
func (b *Bed) customers(ctx context.Context, rows int) error {
	write := b.A
	if b.Group != nil {
		write = b.Group.ReadWrite()
	}
	b.Progress.Say("loading %d rows", rows)
	if _, err := workload.LoadCustomers(ctx, write, rows, b.loading("loading rows")); err != nil {
		return err
	}
	return b.replayed(ctx, "select count(*)::float8 from coterie_bench.customer", float64(rows))
}

func (b *Bed) readOnce(ctx context.Context, o ReadOptions, a arm, f workload.Format, t temperature) (method.Result, error) {
	if t == cold {
		if err := b.DropPageCache(ctx); err != nil {
			return method.Result{}, err
		}
	}
	q := workload.Query{DSN: a.dsn, SQL: fmt.Sprintf("select * from coterie_bench.customer limit %d", o.Rows), Format: f, Timeout: 10 * time.Minute, Dial: b.Dial}
	r, err := method.Run(ctx, method.Load{Iterations: 1}, q.Worker)
	if err == nil && r.Rows != int64(o.Rows) {
		err = fmt.Errorf("%d rows of %d came: %v", r.Rows, o.Rows, r.Errors)
	}
	return r, err
}

// temperatures returns the possible temperatures. A table smaller than a quarter of the server's own cache stays there,
// even when its files are dropped from the page cache.
func (b *Bed) temperatures(ctx context.Context) (all []temperature, note string, err error) {
	if b.DropPageCache == nil {
		return []temperature{warm}, "", nil
	}
	large, err := ask[bool](ctx, b.Group.ReadWrite(),
		"select pg_relation_size('coterie_bench.customer') > setting::int8 * current_setting('block_size')::int8 / 4 from pg_settings where name = 'shared_buffers'")
	if err != nil {
		return nil, "", err
	}
	if !large {
		return []temperature{warm}, "Read from memory only: a table of less than a quarter of shared_buffers cannot be made cold. More --rows can.", nil
	}
	return []temperature{cold, warm}, "cold: the files of every server were dropped from the page cache before. warm: the same rows were read just before.", nil
}

// readSamples are the measurements of Read, by arm, format and temperature together.
type readSamples struct {
	arms         []arm
	temperatures []temperature
	of           map[string]*sample
}

func (b *Bed) readReport(e *report.Experiment, o ReadOptions, r readSamples) error {
	tables, sources, err := b.published("read_1m_rows.csv")
	if err != nil {
		return err
	}
	e.Published = sources
	one, two := r.arms[0].name, r.arms[1].name
	t := report.Table{Title: thousands(o.Rows) + " rows", Columns: []report.Column{
		{Name: "format"},
		{Name: "2016 primary", Unit: "s", Published: true},
		{Name: "2016 routed", Unit: "s", Published: true},
		{Name: "cache"},
		{Name: one, Unit: "s"},
		{Name: two, Unit: "s"},
		{Name: "ratio", Unit: two + " / " + one},
		{Name: "interval"},
		{Name: "verdict"},
		{Name: two, Unit: "MB/s"},
		{Name: two + ": by secondaries", Unit: "%"},
	}}
	for _, f := range o.Formats {
		for _, temp := range r.temperatures {
			k := string(f) + string(temp)
			x, y := r.of[one+k], r.of[two+k]
			c := compare(x, y, method.LowerIsBetter)
			var pub [2]any
			if b.Published {
				pub = [2]any{tables[0].Rows[0][2], tables[0].Rows[1][2]}
			}
			t.Rows = append(t.Rows, []any{
				string(f), pub[0], pub[1], string(temp), method.Median(x.values), method.Median(y.values), finite(c.Ratio),
				interval(c), verdict(c),
				y.mean(func(r method.Result) float64 { return float64(r.Bytes) / 1e6 / r.Elapsed.Seconds() }), y.mean(method.Result.RoutedPct),
			})
			name := string(f) + ", " + string(temp)
			e.Comparisons = append(e.Comparisons, report.Comparison{Name: name, Metric: "time", Unit: "s", A: one, B: two, Comparison: c})
			e.Metrics = append(e.Metrics, x.metric(name+"/"+one+"/time", "s", method.LowerIsBetter), y.metric(name+"/"+two+"/time", "s", method.LowerIsBetter))
			x.account(e)
			y.account(e)
			if e.Answer == "" {
				e.Answer = fmt.Sprintf("%s s as %s, %s (%s); %s %s.", report.Number(method.Median(x.values)), f, temp, one, two, share(c))
			}
		}
	}
	e.Beside = "19 s by the primary and 19 s routed (2016); 5.1 and 4.9 s (2022, a fifth of other cells of 2016, to the digit)."
	e.Tables = []report.Table{t}
	return nil
}

// ConnectOptions are the number of clients and how they log in.
type ConnectOptions struct {
	Clients  []int
	Duration time.Duration
	WarmUp   time.Duration
}

// Connect measures how many logins per second are possible: connect, ask for the server's name, disconnect.
func (b *Bed) Connect(ctx context.Context, o ConnectOptions) (report.Experiment, error) {
	e := report.Experiment{
		Name: "connect", Title: "Logging in", Question: "How many logins per second?",
		Conditions: b.conditions("password login, one statement, leave"),
	}
	arms := []arm{{name: armA, dsn: b.A}, {name: armB, dsn: b.B}}
	if b.Group != nil {
		arms = []arm{{name: "to write", dsn: b.Group.ReadWrite()}, {name: "to read", dsn: b.Group.ReadOnly()}}
	}
	samples := [2]map[int]*sample{{}, {}}
	each := o.WarmUp + o.Duration
	b.Progress.Plan(time.Duration(b.Blocks*2*len(o.Clients)) * each)
	err := b.turns(ctx, e.Name, arms, func(ctx context.Context, block int, a arm) error {
		for _, n := range o.Clients {
			b.Progress.Step(each, "connect, block %d of %d: %s, %s", block+1, b.Blocks, a.name, clientsWord(n))
			l := method.Load{Clients: n, WarmUp: o.WarmUp, Duration: o.Duration, Seed: b.Seed}
			r, err := method.Run(ctx, l, workload.Login{DSN: a.dsn, Dial: b.Dial}.Worker)
			if err != nil {
				return err
			}
			side := samples[index(arms, a)]
			if side[n] == nil {
				side[n] = &sample{}
			}
			side[n].add(r, r.Rate())
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	t := report.Table{Title: "Logins", Columns: []report.Column{
		{Name: "clients"},
		{Name: arms[0].name, Unit: "1/s"},
		{Name: arms[1].name, Unit: "1/s"},
		{Name: arms[0].name + " p50", Unit: "ms"},
		{Name: arms[0].name + " p99", Unit: "ms"},
		{Name: "ratio"},
		{Name: "verdict"},
	}}
	for _, n := range o.Clients {
		x, y := samples[0][n], samples[1][n]
		c := compare(x, y, method.HigherIsBetter)
		t.Rows = append(t.Rows, []any{fmt.Sprint(n), method.Median(x.values), method.Median(y.values), x.ms(50), x.ms(99), finite(c.Ratio), verdict(c)})
		e.Comparisons = append(e.Comparisons, report.Comparison{Name: clientsWord(n), Metric: "rate", Unit: "1/s", A: arms[0].name, B: arms[1].name, Comparison: c})
		for i, s := range []*sample{x, y} {
			e.Metrics = append(e.Metrics, s.metric(clientsWord(n)+"/"+arms[i].name+"/rate", "1/s", method.HigherIsBetter), s.p99(clientsWord(n)+"/"+arms[i].name+"/p99"))
			s.account(&e)
		}
		e.Answer = fmt.Sprintf("%s per second with %s (%s).", report.Number(method.Median(x.values)), clientsWord(n), arms[0].name)
		e.Percentiles = append(e.Percentiles, report.Distribution(arms[0].name+", "+clientsWord(n), x.latency()))
	}
	e.Tables = []report.Table{t}
	return e, nil
}

func clientsWord(n int) string {
	if n == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients", n)
}
