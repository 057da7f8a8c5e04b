package experiment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// RoutingOptions are the queries of Routing and their number.
type RoutingOptions struct {
	Threads    []int
	SQL        string // default: an aggregate over 2,000 rows of our own table
	Params     *workload.Params
	Format     workload.Format
	Connect    bool          // a connection for every operation
	Duration   time.Duration // of one run
	Iterations int64         // of each thread, instead of Duration
	WarmUp     time.Duration
	Rate       float64
	Rows       int // of our own table
}

// PublishedThreads are the numbers of threads in the published table.
var PublishedThreads = []int{1, 2, 4, 8, 10, 12}

// ownQuery is the default query: much work for the server, and little for the client.
const ownQuery = `select count(*), sum(amount), max(pad) from coterie_bench.rows where id between $1 and $1 + 1999`

// Routing measures whether read-only routing pays. Clients declare read intent in both arms: the primary alone serves
// them in one, every replica in turn in the other.
func (b *Bed) Routing(ctx context.Context, o RoutingOptions) (report.Experiment, error) {
	e := report.Experiment{
		Name: "routing", Title: "Read-only routing", Question: "Does read-only routing pay?", Scaled: !b.Published,
		Conditions: b.conditions("read intent declared in both arms"),
	}
	if err := method.MustBeCapped(e.Name, b.Capped != "" || b.Apart || b.Group == nil); err != nil {
		return e, err
	}
	arms, end, err := b.readArms(ctx, true)
	if err != nil {
		return e, err
	}
	defer end()
	if err := b.routingData(ctx, &o); err != nil {
		return e, err
	}
	if err := (workload.Query{DSN: arms[0].dsn, SQL: o.SQL, Params: o.Params, Format: o.Format}).Try(ctx); err != nil {
		return e, err
	}
	samples := [2]map[int]*sample{{}, {}}
	for _, threads := range o.Threads {
		b.Progress.Plan(time.Duration(b.Blocks*2) * o.runTime(threads))
	}
	reads := newDiskReads(ctx, b)
	err = b.turns(ctx, e.Name, arms, func(ctx context.Context, block int, a arm) error {
		side := samples[index(arms, a)]
		for _, threads := range o.Threads {
			b.Progress.Step(o.runTime(threads), "routing, block %d of %d: %s, %s", block+1, b.Blocks, a.name, threadsWord(threads))
			q := workload.Query{DSN: a.dsn, SQL: o.SQL, Params: o.Params, Format: o.Format, Connect: o.Connect, Dial: b.Dial, Retries: 3}
			before, load := reads.now(ctx), b.load(o, threads)
			load.Ended = reads.follow(a.name, threads)
			r, err := method.Run(ctx, load, q.Worker)
			if err != nil {
				return err
			}
			reads.note(a.name+strconv.Itoa(threads), before, reads.now(ctx), r)
			if side[threads] == nil {
				side[threads] = &sample{}
			}
			side[threads].add(r, r.Rate())
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	return e, b.routingReport(&e, o, routingSamples{arms, samples, reads})
}

func index(arms []arm, a arm) int {
	for i := range arms {
		if arms[i].name == a.name {
			return i
		}
	}
	return 0
}

func (b *Bed) load(o RoutingOptions, threads int) method.Load {
	did := int64(0)
	return method.Load{
		Clients: threads, Rate: o.Rate, WarmUp: o.WarmUp, Duration: o.Duration, Iterations: o.Iterations, Seed: b.Seed,
		Tick: func(p method.Point) {
			if did += p.OK + p.Errors; o.Iterations > 0 {
				b.Progress.Within(float64(did) / float64(int64(threads)*o.Iterations))
			}
			b.Progress.Live("%.0f/s, p99 %v, %d errors", p.Rate(), p.P99.Round(10*time.Microsecond), p.Errors)
		},
	}
}

// runTime returns roughly how long one run takes. With a fixed number of queries, more threads take longer.
func (o RoutingOptions) runTime(threads int) time.Duration {
	if o.Iterations > 0 {
		return o.WarmUp + time.Duration(int64(threads)*o.Iterations)*5*time.Millisecond
	}
	return o.WarmUp + o.Duration
}

// readArms returns the arms for readers: the primary alone and all replicas, or all replicas but the primary, or the
// two of a pair. For a client at a node, all but the primary are that node and the others. end restores the group's own
// routing.
func (b *Bed) readArms(ctx context.Context, all bool) (arms []arm, end func(), err error) {
	if b.Group == nil {
		return []arm{{name: armA, dsn: b.A}, {name: armB, dsn: b.B}}, func() {}, nil
	}
	if !all && b.Near != "" {
		return b.nearArms(ctx)
	}
	members, err := b.Group.Members(ctx)
	if err != nil {
		return nil, nil, err
	}
	routed := "(('" + strings.Join(members, "','") + "'))"
	if !all {
		routed = "DEFAULT"
	}
	secondary := func(answered []string, primary string) bool {
		return slices.ContainsFunc(answered, func(name string) bool { return name != primary })
	}
	alone := func(answered []string, primary string) bool { return !secondary(answered, primary) }
	return []arm{b.routed("primary", "NONE", alone), b.routed("routed", routed, secondary)}, b.unroute(ctx), nil
}

// nearArms returns two arms: the member at which the client runs, and the others in turn.
func (b *Bed) nearArms(ctx context.Context) (arms []arm, end func(), err error) {
	members, err := b.Group.Members(ctx)
	if err != nil {
		return nil, nil, err
	}
	far := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == b.Near })
	all := func(near bool) func([]string, string) bool {
		return func(answered []string, _ string) bool {
			return !slices.ContainsFunc(answered, func(name string) bool { return (name == b.Near) != near })
		}
	}
	return []arm{b.routed("local", "('"+b.Near+"')", all(true)), b.routed("remote", "(('"+strings.Join(far, "','")+"'))", all(false))}, b.unroute(ctx), nil
}

// unroute returns a function that restores the group's own routing.
func (b *Bed) unroute(ctx context.Context) func() {
	return func() {
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := b.setRoute(c, "DEFAULT"); err != nil {
			b.Progress.Say("the routing list could not be set back to DEFAULT: %v", err)
		}
	}
}

// routed returns an arm with read intent and a routing list. The list is in force when new readers are answered by the
// servers that follow from it.
func (b *Bed) routed(name, list string, follows func(answered []string, primary string) bool) arm {
	return arm{name: name, dsn: b.Group.ReadOnly(), prepare: func(ctx context.Context) error {
		names := b.names(ctx)
		if err := b.setRoute(ctx, list); err != nil {
			return err
		}
		return until(ctx, time.Minute, "the routing list to be followed", func(ctx context.Context) (bool, error) {
			primary, err := text(ctx, b.Group.ReadWrite(), workload.ServerName)
			if err != nil {
				return false, err
			}
			var answered []string
			for range 4 {
				server, err := text(ctx, b.Group.ReadOnly(), workload.ServerName)
				if err != nil {
					return false, err
				}
				answered = append(answered, cmp.Or(names[server], server))
			}
			return follows(answered, cmp.Or(names[primary], primary)), nil
		})
	}}
}

func (b *Bed) setRoute(ctx context.Context, list string) error {
	primary, err := b.Group.Primary(ctx)
	if err != nil {
		return err
	}
	return b.Group.Statement(ctx, fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] MODIFY REPLICA ON N'%s' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = %s))", b.Group.Name(), primary, list))
}

// routingData makes our own table unless o has a query, and waits until every reader can see it.
func (b *Bed) routingData(ctx context.Context, o *RoutingOptions) error {
	if o.SQL != "" {
		return nil
	}
	o.SQL = ownQuery
	write := b.A
	if b.Group != nil {
		write = b.Group.ReadWrite()
	}
	b.Progress.Say("loading %d rows", o.Rows)
	if _, err := workload.LoadRows(ctx, write, o.Rows, b.loading("loading rows")); err != nil {
		return err
	}
	if o.Params == nil {
		var rows [][]any
		for i := range 997 {
			rows = append(rows, []any{1 + i*7919%max(o.Rows-2000, 1)})
		}
		o.Params = workload.ParamRows(rows)
	}
	return b.replayed(ctx, "select count(*)::float8 from coterie_bench.rows", float64(o.Rows))
}

// routingSamples are the measurements of Routing: each arm by threads, and the reads from the disks.
type routingSamples struct {
	arms  []arm
	side  [2]map[int]*sample
	reads *diskReads
}

func (b *Bed) routingReport(e *report.Experiment, o RoutingOptions, r routingSamples) error {
	arms, samples, reads := r.arms, r.side, r.reads
	tables, sources, err := b.published("read_only_routing_2016.csv")
	if err != nil {
		return err
	}
	e.Published = sources
	pub, one, two := tables[0], arms[0].name, arms[1].name
	t := report.Table{Title: "By threads", Columns: []report.Column{
		{Name: "threads"},
		{Name: "primary", Unit: "s", Published: true},
		{Name: "primary", Unit: "MB/s", Published: true},
		{Name: "routed", Unit: "s", Published: true},
		{Name: "routed", Unit: "MB/s", Published: true},
		{Name: one, Unit: "s"},
		{Name: two, Unit: "s"},
		{Name: one, Unit: "queries/s"},
		{Name: two, Unit: "queries/s"},
		{Name: "ratio", Unit: two + " / " + one},
		{Name: "interval"},
		{Name: "verdict"},
		{Name: two + ": by secondaries", Unit: "%"},
	}}
	took := func(r method.Result) float64 { return r.Elapsed.Seconds() }
	for _, n := range o.Threads {
		x, y, key := samples[0][n], samples[1][n], strconv.Itoa(n)
		c := compare(x, y, method.HigherIsBetter)
		t.Rows = append(t.Rows, []any{
			key, b.figure(pub, key, "primary_s"), b.figure(pub, key, "primary_mb_s"), b.figure(pub, key, "routed_s"), b.figure(pub, key, "routed_mb_s"),
			x.mean(took), y.mean(took), method.Median(x.values), method.Median(y.values),
			finite(c.Ratio), interval(c), verdict(c), y.mean(method.Result.RoutedPct),
		})
		e.Comparisons = append(e.Comparisons, report.Comparison{
			Name: threadsWord(n), Metric: "rate", Unit: "1/s", A: one, B: two, Comparison: c, Published: b.publishedRatio(pub, key, "routed_mb_s", "primary_mb_s"),
		})
		for i, s := range []*sample{x, y} {
			name := threadsWord(n) + "/" + arms[i].name
			e.Metrics = append(e.Metrics, s.metric(name+"/rate", "1/s", method.HigherIsBetter), s.p99(name+"/p99"))
			s.account(e)
		}
	}
	e.Tables = append(e.Tables, t, costTable(o, arms, samples), reads.table(o, arms, samples))
	n := o.Threads[len(o.Threads)-1]
	for i, a := range arms {
		e.Percentiles = append(e.Percentiles, report.Distribution(fmt.Sprintf("%s, %s", a.name, threadsWord(n)), samples[i][n].latency()))
	}
	b.routingAnswer(e, pub)
	return nil
}

// routingAnswer answers with the largest and with the smallest number of threads.
func (b *Bed) routingAnswer(e *report.Experiment, pub report.Figures) {
	last := e.Comparisons[len(e.Comparisons)-1]
	if b.Group == nil {
		e.Answer = fmt.Sprintf("With %s, %s answers %s times as many queries as %s.", last.Name, last.B, inWords(last.Comparison), last.A)
	} else {
		yes := map[method.Verdict]string{method.Faster: "Yes: with", method.Slower: "No: with"}[last.Verdict]
		e.Answer = fmt.Sprintf("%s %s, all replicas together answer %s times as many queries as the primary alone.", cmp.Or(yes, "With"), last.Name, inWords(last.Comparison))
		e.Notes = append(e.Notes, "routed: all replicas in turn, the primary among them. wire: bytes of the rows' messages. asked its kernel for: blocks that the server had not in its own cache, in the page cache or not; read from disk: what was in neither, where the servers run on this machine.")
	}
	if first := e.Comparisons[0]; first.Name != last.Name {
		e.Answer += fmt.Sprintf(" With %s it is %s.", first.Name, inWords(first.Comparison))
	}
	one, _ := ratioOf(pub, "1", "routed_mb_s", "primary_mb_s")
	twelve, _ := ratioOf(pub, "12", "routed_mb_s", "primary_mb_s")
	e.Beside = fmt.Sprintf("%s times at 12 threads, %s at one (MB/s from disk, SQL Server 2016).", report.Number(twelve), report.Number(one))
}

// costTable shows what the runs cost besides time.
func costTable(o RoutingOptions, arms []arm, samples [2]map[int]*sample) report.Table {
	one, two := arms[0].name, arms[1].name
	t := report.Table{Title: "Latency, bytes and the client", Columns: []report.Column{
		{Name: "threads"},
		{Name: one + ": p50", Unit: "ms"},
		{Name: two + ": p50", Unit: "ms"},
		{Name: one + ": p99", Unit: "ms"},
		{Name: two + ": p99", Unit: "ms"},
		{Name: one + ": wire", Unit: "MB/s"},
		{Name: two + ": wire", Unit: "MB/s"},
		{Name: "client", Unit: "% of its processors"},
	}}
	wire := func(r method.Result) float64 { return float64(r.Bytes) / 1e6 / r.Elapsed.Seconds() }
	cpu := func(r method.Result) float64 { return 100 * r.ClientCPU }
	for _, n := range o.Threads {
		x, y := samples[0][n], samples[1][n]
		t.Rows = append(t.Rows, []any{strconv.Itoa(n), x.ms(50), y.ms(50), x.ms(99), y.ms(99), x.mean(wire), y.mean(wire), max(x.mean(cpu), y.mean(cpu))})
	}
	return t
}

func threadsWord(n int) string {
	if n == 1 {
		return "1 thread"
	}
	return strconv.Itoa(n) + " threads"
}
