package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// Cell is one cell of the insert matrix: a number of transactions with a number of rows each.
type Cell struct{ Inserts, Rows int }

// String returns the cell as the published matrix writes it: transactions × rows.
func (c Cell) String() string { return fmt.Sprintf("%d × %d", c.Inserts, c.Rows) }

// PublishedCells are the cells of the published matrix.
var PublishedCells = []Cell{{1, 1_000_000}, {10, 100_000}, {100, 10_000}, {1_000, 1_000}, {10_000, 100}, {100_000, 10}, {1_000_000, 1}}

// CommitOptions are the rows that Commit inserts, and the links that it inserts them over.
type CommitOptions struct {
	Cells       []Cell
	Compression []string                             // values of LOG_COMPRESSION for every secondary, each in turn; empty: unchanged
	Link        string                               // shape of the links, in words
	Floor       func(context.Context) (Floor, error) // measures the floor, in every block; nil: Bed.Floor where links are known
}

// Commit measures what a synchronous commit costs: the same inserts, once with a wait for the primary alone and once
// with a wait for the secondaries, too.
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
		o.Floor = nil // the floor is that of one small commit
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

// compressionArms returns arms that set LOG_COMPRESSION on every secondary.
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
	for _, m := range members { // on all: the option belongs to a replica's link, whichever replica leads
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

// cell runs the inserts of one cell once.
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

// Floor is the minimum time that a synchronous commit can add now: a round trip to the nearest secondary, and a sync of
// its disk.
type Floor struct {
	RoundTrip, Disk time.Duration
	Member          string
}

func (f Floor) ms() float64 { return milli(f.RoundTrip + f.Disk) }

// Floor measures the floor. The secondaries sync at the same time, as they do at a commit: where they share a disk, one
// alone would be faster than in any commit.
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

// matrix holds the samples of every cell.
type matrix struct {
	kinds  []string
	cells  map[string]*sample
	floors []Floor // of every block; none: not measured
}

func newMatrix(o CommitOptions) *matrix {
	m := &matrix{kinds: o.Compression, cells: map[string]*sample{}}
	if len(m.kinds) == 0 {
		m.kinds = []string{""}
	}
	return m
}

func (m *matrix) at(kind, wait string, c Cell) *sample {
	k := fmt.Sprint(kind, wait, c)
	if m.cells[k] == nil {
		m.cells[k] = &sample{}
	}
	return m.cells[k]
}

// publishedMatrix returns the name of the published table that is nearest to a kind of compression.
func publishedMatrix(kind string) string {
	if kind == "" || strings.EqualFold(kind, "OFF") {
		return "insert_matrix_2016.csv"
	}
	return "insert_matrix_2016_compressed.csv"
}

func (b *Bed) commitReport(e *report.Experiment, o CommitOptions, m *matrix) error {
	for _, kind := range m.kinds {
		tables, sources, err := b.published(publishedMatrix(kind))
		if err != nil {
			return err
		}
		if !slices.Contains(e.Published, sources[0]) {
			e.Published = append(e.Published, sources...)
		}
		t := report.Table{Title: "Inserts", Columns: matrixColumns()}
		if kind != "" {
			t.Title = "LOG_COMPRESSION = " + kind
		}
		for _, c := range o.Cells {
			t.Rows = append(t.Rows, b.matrixRow(e, kind, m.both(kind, c), tables[0]))
		}
		e.Tables = append(e.Tables, t)
	}
	small := o.Cells[len(o.Cells)-1]
	for _, kind := range m.kinds {
		for _, wait := range []string{async, synchronous} {
			e.Percentiles = append(e.Percentiles, report.Distribution(strings.TrimSpace(kind+" "+wait)+", "+rowsWord(small.Rows), m.at(kind, wait, small).latency()))
		}
	}
	e.Tables = append(e.Tables, latencyTable(o, m), penaltyTable(e, o, m))
	b.commitAnswer(e, o, m)
	if len(m.kinds) > 1 {
		b.compressionGain(e, o, m)
	}
	return b.commitBeside(e)
}

// latencyTable shows the latency of one synchronous insert in every cell.
func latencyTable(o CommitOptions, m *matrix) report.Table {
	t := report.Table{Title: "Latency of one insert", Columns: []report.Column{
		{Name: "cell"}, {Name: "compression"}, {Name: "async p50", Unit: "ms"}, {Name: "sync p50", Unit: "ms"}, {Name: "sync p95", Unit: "ms"}, {Name: "sync p99", Unit: "ms"},
	}}
	for _, c := range o.Cells {
		for _, kind := range m.kinds {
			y := m.at(kind, synchronous, c)
			t.Rows = append(t.Rows, []any{c.String(), cmp.Or(kind, "as it is"), m.at(kind, async, c).ms(50), y.ms(50), y.ms(95), y.ms(99)})
		}
	}
	return t
}

// PenaltyTable is the title of the table that shows the penalty of one commit beside its floor.
const PenaltyTable = "What waiting adds to one commit, beside the floor"

// penalty returns how many ms the wait adds to the median insert of a cell, block by block.
func (m *matrix) penalty(kind string, c Cell) *sample {
	x, y, p := m.at(kind, async, c), m.at(kind, synchronous, c), &sample{}
	for i := range min(len(x.results), len(y.results)) {
		p.values = append(p.values, milli(method.Quantile(y.results[i].Latency, 50))-milli(method.Quantile(x.results[i].Latency, 50)))
	}
	return p
}

// floor returns the median of the blocks' floors.
func (m *matrix) floor() report.Metric {
	s := &sample{}
	for _, f := range m.floors {
		s.values = append(s.values, f.ms())
	}
	return s.metric("floor/ms", "ms", method.LowerIsBetter)
}

// penaltyTable compares medians with medians, because the floor is a median, too. It has a row for each kind of
// compression.
func penaltyTable(e *report.Experiment, o CommitOptions, m *matrix) report.Table {
	t := report.Table{Title: PenaltyTable, Columns: []report.Column{
		{Name: "compression"},
		{Name: "async p50", Unit: "ms"},
		{Name: "sync p50", Unit: "ms"},
		{Name: "penalty", Unit: "ms"},
		{Name: "interval", Unit: "ms"},
		{Name: "floor", Unit: "ms"},
		{Name: "penalty / floor", Unit: "x"},
	}}
	small := o.Cells[len(o.Cells)-1]
	if len(m.floors) > 0 {
		var trips, disks []float64
		for _, f := range m.floors {
			trips, disks = append(trips, milli(f.RoundTrip)), append(disks, milli(f.Disk))
		}
		e.Metrics = append(e.Metrics, m.floor())
		e.Notes = append(e.Notes, fmt.Sprintf("The floor is measured in every block: a round trip to the nearest secondary (median %s ms) and 8 kB written and synced to its disk while the other secondaries do the same (median %s ms).",
			report.Number(method.Median(trips)), report.Number(method.Median(disks))))
	}
	for _, kind := range m.kinds {
		p := m.penalty(kind, small)
		name := strings.TrimPrefix(kind+"/penalty", "/")
		metric := p.metric(name+"/ms", "ms", method.LowerIsBetter)
		e.Metrics = append(e.Metrics, metric)
		row := []any{
			cmp.Or(kind, "as it is"), m.at(kind, async, small).ms(50), m.at(kind, synchronous, small).ms(50), metric.Value,
			fmt.Sprintf("%s to %s", report.Number(metric.Low), report.Number(metric.High)), nil, nil,
		}
		if len(m.floors) > 0 {
			over := &sample{}
			for i, v := range p.values {
				over.values = append(over.values, v/m.floors[i].ms())
			}
			ratio := over.metric(name+" to floor/ratio", "x", method.LowerIsBetter)
			e.Metrics = append(e.Metrics, ratio)
			row[5], row[6] = m.floor().Value, ratio.Value
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (b *Bed) commitAnswer(e *report.Experiment, o CommitOptions, m *matrix) {
	kind, small, big := m.kinds[len(m.kinds)-1], o.Cells[len(o.Cells)-1], o.Cells[0]
	p := method.Median(m.penalty(kind, small).values)
	x, y := m.at(kind, async, small), m.at(kind, synchronous, small)
	if p > 0 {
		e.Answer = fmt.Sprintf("A commit of %s takes %s ms longer if it waits for a secondary: %s ms instead of %s.", rowsWord(small.Rows), report.Number(p), report.Number(y.ms(50)), report.Number(x.ms(50)))
	} else {
		e.Answer = fmt.Sprintf("A commit of %s takes no longer if it waits for a secondary: %s ms.", rowsWord(small.Rows), report.Number(y.ms(50)))
	}
	if c := compare(x, y, method.LowerIsBetter); c.Verdict == method.Withheld {
		e.Answer = strings.TrimSuffix(e.Answer, ".") + " (no verdict: " + c.Why + ")."
	}
	if len(m.floors) > 0 {
		e.Answer += fmt.Sprintf(" A round trip and a write to the other disk alone take %s ms.", report.Number(m.floor().Value))
	}
	if big != small {
		e.Answer += fmt.Sprintf(" %s in one transaction take %s times as long.", rowsWord(big.Rows), inWords(compare(m.at(kind, async, big), m.at(kind, synchronous, big), method.LowerIsBetter)))
	}
	if b.Group != nil {
		e.Notes = append(e.Notes, "asynchronous: synchronous_commit = local in the session, so that the same secondaries receive the same log and nobody waits for them.")
	}
}

// commitBeside adds the published penalty, in three versions.
func (b *Bed) commitBeside(e *report.Experiment) error {
	tables, _, err := b.published("insert_matrix_2014.csv", "insert_matrix_2016.csv", "insert_matrix_2016_compressed.csv")
	if err != nil {
		return err
	}
	var words []string
	for i, what := range []string{"2014", "2016, the stream not compressed", "2016, compressed"} {
		low, high := rangeOf(tables[i], "penalty_pct")
		words = append(words, fmt.Sprintf("%s to %s %% (%s)", report.Number(low), report.Number(high), what))
	}
	e.Beside = "a penalty of " + strings.Join(words, ", ") + ", SQL Server, by shape."
	return nil
}

// compressionGain compares synchronous inserts with the first and the last kind of compression.
func (b *Bed) compressionGain(e *report.Experiment, o CommitOptions, m *matrix) {
	first, last := m.kinds[0], m.kinds[len(m.kinds)-1]
	for _, c := range o.Cells {
		r := compare(m.at(first, synchronous, c), m.at(last, synchronous, c), method.LowerIsBetter)
		e.Comparisons = append(e.Comparisons, report.Comparison{
			Name: c.String() + ", synchronous", Metric: "time", Unit: "ms", A: first, B: last, Comparison: r,
		})
	}
}

func matrixColumns() []report.Column {
	columns := []report.Column{{Name: "inserts"}, {Name: "rows per insert"}}
	for _, published := range []bool{true, false} {
		columns = append(columns,
			report.Column{Name: "async", Unit: "ms", Published: published}, report.Column{Name: "sync", Unit: "ms", Published: published},
			report.Column{Name: "penalty", Unit: "ms", Published: published}, report.Column{Name: "penalty per insert", Unit: "ms", Published: published},
			report.Column{Name: "penalty", Unit: "%", Published: published}, report.Column{Name: "async", Unit: "inserts/s", Published: published},
			report.Column{Name: "sync", Unit: "inserts/s", Published: published}, report.Column{Name: "penalty", Unit: "inserts/s", Published: published})
	}
	return append(columns, report.Column{Name: "sync / async", Unit: "x"}, report.Column{Name: "interval"}, report.Column{Name: "verdict"})
}

// cellSamples are the samples of one cell, without and with the wait for a synchronous secondary.
type cellSamples struct {
	cell        Cell
	async, sync *sample
}

func (m *matrix) both(kind string, c Cell) cellSamples {
	return cellSamples{c, m.at(kind, async, c), m.at(kind, synchronous, c)}
}

func (b *Bed) matrixRow(e *report.Experiment, kind string, of cellSamples, pub report.Figures) []any {
	c, x, y := of.cell, of.async, of.sync
	key, n := strconv.Itoa(c.Inserts), float64(c.Inserts)
	row := []any{key, strconv.Itoa(c.Rows)}
	for _, column := range pub.Columns[2:] {
		row = append(row, b.figure(pub, key, column))
	}
	a, s := method.Median(x.values), method.Median(y.values)
	r := compare(x, y, method.LowerIsBetter)
	row = append(row, a, s, s-a, (s-a)/n, 100*(s-a)/a, 1000*n/a, 1000*n/s, 1000*n/a-1000*n/s,
		finite(r.Ratio), interval(r), verdict(r))
	e.Comparisons = append(e.Comparisons, report.Comparison{
		Name: strings.TrimSpace(kind + " " + c.String()), Metric: "time", Unit: "ms", A: async, B: synchronous, Comparison: r, Published: b.publishedRatio(pub, key, "sync_ms", "async_ms"),
	})
	name := strings.TrimPrefix(kind+"/"+c.String(), "/")
	e.Metrics = append(e.Metrics, x.metric(name+"/async/time", "ms", method.LowerIsBetter), y.metric(name+"/sync/time", "ms", method.LowerIsBetter), y.p99(name+"/sync/p99"))
	x.account(e)
	y.account(e)
	return row
}
