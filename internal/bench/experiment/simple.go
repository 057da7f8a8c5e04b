package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/bench/method"
	"github.com/coteriedb/coterie/internal/bench/report"
	"github.com/coteriedb/coterie/internal/bench/workload"
)

// ReadOptions says how much Read reads, and how.
type ReadOptions struct {
	Rows    int
	Formats []workload.Format
}

// PublishedRows are read in the published experiment.
const PublishedRows = 1_000_000

// Read asks how long one client takes to read many rows, in each format.
func (b *Bed) Read(ctx context.Context, o ReadOptions) (report.Experiment, error) {
	e := report.Experiment{
		Name: "read", Title: "Reading rows", Question: fmt.Sprintf("How long does one client take to read %d rows?", o.Rows), Scaled: !b.Published,
		Conditions: b.conditions("one client, rows of about 220 bytes"),
	}
	arms, end, err := b.readArms(ctx, false)
	if err != nil {
		return e, err
	}
	defer end()
	if err := b.routingData(ctx, &RoutingOptions{Rows: o.Rows}); err != nil {
		return e, err
	}
	tables, sources, err := b.published("read_1m_rows.csv")
	if err != nil {
		return e, err
	}
	e.Published = sources
	samples := map[string]*sample{}
	const each = 2 * time.Second
	b.Progress.Plan(time.Duration(b.Blocks*2*len(o.Formats)) * each)
	err = b.turns(ctx, e.Name, arms, func(ctx context.Context, block int, a arm) error {
		for _, f := range o.Formats {
			b.Progress.Step(each, "read, block %d of %d: %s, %s", block+1, b.Blocks, a.name, f)
			q := workload.Query{DSN: a.dsn, SQL: fmt.Sprintf("select * from coterie_bench.rows where id <= %d", o.Rows), Format: f, Timeout: 10 * time.Minute, Dial: b.Dial}
			r, err := method.Run(ctx, method.Load{Iterations: 1}, q.Worker)
			if err != nil {
				return err
			}
			if r.Rows != int64(o.Rows) {
				return fmt.Errorf("%d rows of %d came: %v", r.Rows, o.Rows, r.Errors)
			}
			k := a.name + string(f)
			if samples[k] == nil {
				samples[k] = &sample{}
			}
			samples[k].add(r, r.Elapsed.Seconds())
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	b.readReport(&e, o, arms, samples, tables[0])
	return e, nil
}

func (b *Bed) readReport(e *report.Experiment, o ReadOptions, arms []arm, samples map[string]*sample, figures report.Figures) {
	one, two := arms[0].name, arms[1].name
	t := report.Table{Title: fmt.Sprintf("%d rows", o.Rows), Columns: []report.Column{
		{Name: "format"},
		{Name: "2016 primary", Unit: "s", Published: true},
		{Name: "2016 routed", Unit: "s", Published: true},
		{Name: one, Unit: "s"},
		{Name: two, Unit: "s"},
		{Name: "ratio"},
		{Name: "interval"},
		{Name: "verdict"},
		{Name: two, Unit: "MB/s"},
		{Name: two + ": routed", Unit: "%"},
	}}
	for _, f := range o.Formats {
		x, y := samples[one+string(f)], samples[two+string(f)]
		c := compare(x, y, method.LowerIsBetter)
		var pub [2]any
		if b.Published {
			pub = [2]any{figures.Rows[0][2], figures.Rows[1][2]}
		}
		t.Rows = append(t.Rows, []any{
			string(f), pub[0], pub[1], method.Median(x.values), method.Median(y.values), finite(c.Ratio),
			interval(c), string(c.Verdict),
			y.mean(func(r method.Result) float64 { return float64(r.Bytes) / 1e6 / r.Elapsed.Seconds() }), y.mean(method.Result.RoutedPct),
		})
		e.Comparisons = append(e.Comparisons, report.Comparison{Name: string(f), Metric: "time", Unit: "s", A: one, B: two, Comparison: c})
		e.Metrics = append(e.Metrics, x.metric(string(f)+"/"+one+"/time", "s", method.LowerIsBetter), y.metric(string(f)+"/"+two+"/time", "s", method.LowerIsBetter))
		x.account(e)
		y.account(e)
		if e.Answer == "" {
			e.Answer = fmt.Sprintf("%s s by %s (%s); by %s %s times as long.", report.Number(method.Median(x.values)), one, f, two, inWords(c))
		}
	}
	e.Tables = []report.Table{t}
}

// ConnectOptions says who logs in.
type ConnectOptions struct {
	Clients  []int
	Duration time.Duration
	WarmUp   time.Duration
}

// Connect asks how many logins a second there are: connect, ask who answers, leave.
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
			b.Progress.Step(each, "connect, block %d of %d: %s, %d clients", block+1, b.Blocks, a.name, n)
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
		t.Rows = append(t.Rows, []any{fmt.Sprint(n), method.Median(x.values), method.Median(y.values), x.ms(50), x.ms(99), finite(c.Ratio), string(c.Verdict)})
		e.Comparisons = append(e.Comparisons, report.Comparison{Name: fmt.Sprintf("%d clients", n), Metric: "rate", Unit: "1/s", A: arms[0].name, B: arms[1].name, Comparison: c})
		for i, s := range []*sample{x, y} {
			e.Metrics = append(e.Metrics, s.metric(fmt.Sprintf("%d clients/%s/rate", n, arms[i].name), "1/s", method.HigherIsBetter), s.p99(fmt.Sprintf("%d clients/%s/p99", n, arms[i].name)))
			s.account(&e)
		}
		e.Answer = fmt.Sprintf("%s per second with %d clients (%s).", report.Number(method.Median(x.values)), n, arms[0].name)
		e.Percentiles = append(e.Percentiles, report.Distribution(fmt.Sprintf("%s, %d clients", arms[0].name, n), x.latency()))
	}
	e.Tables = []report.Table{t}
	return e, nil
}
