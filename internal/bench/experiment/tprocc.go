package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
)

// TproccOptions are the sizes of a run of the TPC-C-derived mix.
type TproccOptions struct {
	Users        []int
	Warehouses   int
	Duration     time.Duration // of one run
	WarmUp       time.Duration // before each run, not counted
	Transactions int64         // of each user, instead of Duration
	Mode         tpcc.Mode     // default tpcc.Functions
	KeyAndThink  bool          // users wait as people do, by tpcc.KeyAndThink
}

// Tprocc measures whether the mix is faster when its read-only transactions are routed to the secondaries. Then it
// checks the twelve consistency conditions on every replica.
func (b *Bed) Tprocc(ctx context.Context, o TproccOptions) (report.Experiment, error) {
	waits := "no keying or thinking time"
	if o.KeyAndThink {
		waits = "keying and thinking times"
	}
	e := report.Experiment{
		Name: "tprocc", Title: "TPC-C-derived transactions", Question: "Is the mix faster with its read-only transactions routed?", Scaled: !b.Published,
		Conditions: b.conditions(fmt.Sprintf("%d warehouses, mode %s, %s", o.Warehouses, cmp.Or(o.Mode, tpcc.Functions), waits)),
	}
	if err := method.MustBeCapped(e.Name, b.Capped != "" || b.Apart || b.Group == nil); err != nil {
		return e, err
	}
	write, read := b.A, b.B
	if b.Group != nil {
		write, read = b.Group.ReadWrite(), b.Group.ReadOnly()
	}
	b.Progress.Say("loading warehouses: %d", o.Warehouses)
	if _, err := tpcc.Load(ctx, write, tpcc.LoadOptions{Warehouses: o.Warehouses, Seed: b.Seed, Resume: true, Progress: b.Progress.Loading("loading warehouses")}); err != nil {
		return e, err
	}
	if err := b.replayed(ctx, "select count(loaded_at)::float8 from tpcc.coterie_bench", 1); err != nil {
		return e, err
	}
	primary, err := text(ctx, write, "select tpcc.server()")
	if err != nil {
		return e, err
	}
	users, err := b.tproccTurns(ctx, o, write, primary, []arm{{name: "primary"}, {name: "routed", dsn: read}})
	if err != nil {
		return e, err
	}
	b.Progress.Say("checking the consistency of every replica")
	held, err := b.conditionsHold(ctx, write)
	if err != nil {
		return e, err
	}
	e.Notes = append(e.Notes, held)
	return e, b.tproccReport(&e, o, users)
}

// runTime returns roughly how long one run takes. With a fixed number of transactions, more users take longer.
func (o TproccOptions) runTime(users int) time.Duration {
	if o.Transactions > 0 {
		return o.WarmUp + time.Duration(int64(users)*o.Transactions)*2*time.Millisecond
	}
	return o.WarmUp + o.Duration + time.Second
}

// tproccTurns measures every number of users in both arms. It returns the samples by arm and number of users.
func (b *Bed) tproccTurns(ctx context.Context, o TproccOptions, write, primary string, arms []arm) (users map[string]map[int]*userSample, err error) {
	for _, n := range o.Users {
		b.Progress.Plan(time.Duration(b.Blocks*2) * o.runTime(n))
	}
	allow, err := tpcc.ForbidAutovacuum(ctx, write)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, allow()) }()
	users = map[string]map[int]*userSample{}
	for _, a := range arms {
		users[a.name] = map[int]*userSample{}
		for _, n := range o.Users {
			users[a.name][n] = &userSample{}
		}
	}
	for _, n := range o.Users { // the arms of one number of users follow each other, so that the growth of the tables affects both alike
		err := b.turns(ctx, "tprocc", arms, func(ctx context.Context, block int, a arm) error {
			b.Progress.Step(o.runTime(n), "tprocc, %s, block %d of %d: %s", usersWord(n), block+1, b.Blocks, a.name)
			if err := tpcc.Vacuum(ctx, write); err != nil {
				return err
			}
			r, counted, client, err := b.mix(ctx, o, write, a.dsn, n)
			if err != nil {
				return err
			}
			users[a.name][n].add(r, counted, client, primary)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return users, nil
}

// userSample is one arm at one number of users.
type userSample struct {
	sample  // of NOPM
	tpm     []float64
	minutes []float64
	routed  []float64 // percent of the read-only transactions
	p95     []float64 // of New-Order, ms
	counted []float64 // NOPM according to the order numbers in the database
	client  []float64 // share of this machine's processors that this process used
}

func (s *userSample) add(r tpcc.Result, counted, client float64, primary string) {
	s.client = append(s.client, client)
	s.results = append(s.results, method.Result{ClientCPU: client, Errors: r.Errors, Retries: r.Retries})
	s.values = append(s.values, r.NOPM)
	s.tpm = append(s.tpm, 60*r.TPS)
	s.minutes = append(s.minutes, r.Elapsed.Minutes())
	s.p95 = append(s.p95, milli(r.Types[0].P95))
	s.counted = append(s.counted, counted)
	var all, away int64
	for server, n := range r.Reads {
		all += n
		if server != primary {
			away += n
		}
	}
	s.routed = append(s.routed, 100*float64(away)/float64(max(all, 1)))
}

// mix runs the mix once. counted is the number of orders that the database numbered, client the share of its machine
// that the client used.
func (b *Bed) mix(ctx context.Context, o TproccOptions, write, read string, users int) (r tpcc.Result, counted, client float64, err error) {
	did := 0.0
	run := tpcc.RunOptions{
		DSN: write, ReadDSN: read, Clients: users, Mode: o.Mode, Seed: b.Seed, WarmUp: o.WarmUp, Duration: o.Duration, Dial: b.Dial,
		Tick: func(i tpcc.Interval) {
			if did += i.TPS * i.Length.Seconds(); o.Transactions > 0 {
				b.Progress.Within(did / float64(int64(users)*o.Transactions))
			}
			b.Progress.Live("%.0f transactions/s, p99 %v", i.TPS, i.P99.Round(10*time.Microsecond))
		},
	}
	if o.Transactions > 0 {
		run.Duration, run.Transactions = 0, o.Transactions
	}
	if o.KeyAndThink {
		run.Waits = tpcc.KeyAndThink
	}
	var before float64
	var meter method.Meter
	var failed error
	orders := func() (float64, error) {
		return number(ctx, write, "select sum(d_next_o_id)::float8 from tpcc.district")
	}
	run.Begin = func() {
		before, failed = orders()
		meter = method.StartMeter()
	}
	r, err = tpcc.Run(ctx, run)
	client = meter.Share()
	if err := cmp.Or(err, failed, context.Cause(ctx)); err != nil {
		return r, 0, 0, err
	}
	after, err := orders()
	return r, (after - before) / r.Elapsed.Minutes(), client, err
}

func (b *Bed) tproccReport(e *report.Experiment, o TproccOptions, users map[string]map[int]*userSample) error {
	tables, sources, err := b.published("oltp_2016.csv")
	if err != nil {
		return err
	}
	e.Published = sources
	pub := tables[0]
	t := report.Table{Title: "By users", Columns: []report.Column{
		{Name: "users"},
		{Name: "primary", Unit: "min", Published: true},
		{Name: "routed", Unit: "min", Published: true},
		{Name: "primary", Unit: "TPM", Published: true},
		{Name: "routed", Unit: "TPM", Published: true},
		{Name: "primary", Unit: "min"},
		{Name: "routed", Unit: "min"},
		{Name: "primary", Unit: "TPM"},
		{Name: "routed", Unit: "TPM"},
		{Name: "primary", Unit: "NOPM"},
		{Name: "routed", Unit: "NOPM"},
		{Name: "ratio of NOPM"},
		{Name: "interval"},
		{Name: "verdict"},
	}}
	more := report.Table{Title: "Who answered, and how fast", Columns: []report.Column{
		{Name: "users"},
		{Name: "reads by secondaries", Unit: "%"},
		{Name: "primary: counted by the database", Unit: "NOPM"},
		{Name: "routed: counted by the database", Unit: "NOPM"},
		{Name: "primary: New-Order p95", Unit: "ms"},
		{Name: "routed: New-Order p95", Unit: "ms"},
		{Name: "client", Unit: "% of its processors"},
	}}
	for _, n := range o.Users {
		x, y, key := users["primary"][n], users["routed"][n], strconv.Itoa(n)
		c := compare(&x.sample, &y.sample, method.HigherIsBetter)
		t.Rows = append(t.Rows, []any{
			key, b.figure(pub, key, "primary_min"), b.figure(pub, key, "routed_min"), b.figure(pub, key, "primary_tpm"), b.figure(pub, key, "routed_tpm"),
			method.Median(x.minutes), method.Median(y.minutes), method.Median(x.tpm), method.Median(y.tpm), method.Median(x.values), method.Median(y.values),
			finite(c.Ratio), interval(c), verdict(c),
		})
		more.Rows = append(more.Rows, []any{
			key, method.Median(y.routed), method.Median(x.counted), method.Median(y.counted), method.Median(x.p95), method.Median(y.p95),
			100 * max(method.Median(x.client), method.Median(y.client)),
		})
		e.Comparisons = append(e.Comparisons, report.Comparison{
			Name: usersWord(n), Metric: "NOPM", Unit: "1/min", A: "primary", B: "routed", Comparison: c, Published: b.publishedRatio(pub, key, "routed_tpm", "primary_tpm"),
		})
		e.Metrics = append(e.Metrics, x.metric(usersWord(n)+"/primary/nopm", "1/min", method.HigherIsBetter), y.metric(usersWord(n)+"/routed/nopm", "1/min", method.HigherIsBetter))
		x.account(e)
		y.account(e)
		e.Answer = fmt.Sprintf("With %s, routed reads give %s times the new orders per minute.", usersWord(n), inWords(c))
	}
	one, _ := ratioOf(pub, "1", "routed_tpm", "primary_tpm")
	twelve, _ := ratioOf(pub, "12", "routed_tpm", "primary_tpm")
	e.Beside = fmt.Sprintf("%s times the transactions per minute with 12 users, %s with one; that program declares no read intent.", report.Number(twelve), report.Number(one))
	e.Tables = []report.Table{t, more}
	e.Notes = append(e.Notes, "TPC-C-derived, not TPC-C: NOPM is not comparable with a published tpmC. Two of the five transactions, 8.7 % of the mix, only read; that is all that routing can move.",
		"The tables are vacuumed before each run, and autovacuum is kept from them meanwhile: it would meet one arm or the other by chance.")
	return nil
}

func usersWord(n int) string {
	if n == 1 {
		return "1 user"
	}
	return strconv.Itoa(n) + " users"
}
