package experiment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/bench/method"
	"github.com/coteriedb/coterie/internal/bench/report"
	"github.com/coteriedb/coterie/internal/bench/workload"
)

// Cell is one shape of the insert matrix: so many transactions of so many rows.
type Cell struct{ Inserts, Rows int }

// PublishedCells are those of the published matrix.
var PublishedCells = []Cell{{1, 1_000_000}, {10, 100_000}, {100, 10_000}, {1_000, 1_000}, {10_000, 100}, {100_000, 10}, {1_000_000, 1}}

// CommitOptions says what Commit inserts.
type CommitOptions struct {
	Cells       []Cell
	Compression []string // LOG_COMPRESSION of every secondary, each in turn; empty: as it is
	Link        string   // shape of the links, in words
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
	floor, note := b.floor(ctx)
	m := newMatrix(o)
	each := time.Duration(len(o.Cells)) * 2 * time.Second
	b.Progress.Plan(time.Duration(b.Blocks*len(m.kinds)*2) * each)
	err := b.turns(ctx, e.Name, b.compressionArms(m.kinds), func(ctx context.Context, block int, a arm) error {
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
	if note != "" {
		e.Notes = append(e.Notes, note)
	}
	return e, b.commitReport(&e, o, m, floor)
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

// floor is the least that a synchronous commit can take longer: a round trip to the nearest secondary, and its disk.
func (b *Bed) floor(ctx context.Context) (ms float64, note string) {
	if b.Links == nil {
		return 0, ""
	}
	primary, err1 := b.Group.Primary(ctx)
	members, err2 := b.Group.Members(ctx)
	if err1 != nil || err2 != nil {
		return 0, ""
	}
	best := time.Duration(0)
	for _, m := range members {
		if m == primary {
			continue
		}
		rtt, err := b.Links.RoundTrip(ctx, primary, m)
		if err != nil {
			return 0, "the floor could not be measured: " + err.Error()
		}
		disk, err := b.Links.SyncTime(ctx, m, 50)
		if err != nil {
			return 0, "the floor could not be measured: " + err.Error()
		}
		if best == 0 || rtt+disk < best {
			best = rtt + disk
			note = fmt.Sprintf("Physical floor of the penalty, measured before: round trip %.2f ms + disk of %s %.2f ms = %.2f ms",
				milli(rtt), m, milli(disk), milli(best))
		}
	}
	return milli(best), note
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// matrix holds the samples of every cell.
type matrix struct {
	kinds []string
	cells map[string]*sample
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

// publishedMatrix is the published table that is nearest to a kind of compression.
func publishedMatrix(kind string) string {
	if kind == "" || strings.EqualFold(kind, "OFF") {
		return "insert_matrix_2016.csv"
	}
	return "insert_matrix_2016_compressed.csv"
}

func (b *Bed) commitReport(e *report.Experiment, o CommitOptions, m *matrix, floor float64) error {
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
			t.Rows = append(t.Rows, b.matrixRow(e, m, kind, c, tables[0]))
		}
		e.Tables = append(e.Tables, t)
	}
	small := o.Cells[len(o.Cells)-1]
	for _, kind := range m.kinds {
		for _, wait := range []string{async, synchronous} {
			e.Percentiles = append(e.Percentiles, report.Distribution(strings.TrimSpace(kind+" "+wait)+", single rows", m.at(kind, wait, small).latency()))
		}
	}
	kind := m.kinds[len(m.kinds)-1]
	x, y := m.at(kind, async, small), m.at(kind, synchronous, small)
	per := (method.Median(y.values) - method.Median(x.values)) / float64(small.Inserts)
	e.Answer = fmt.Sprintf("A commit of %s takes %s ms longer than %s", rowsWord(small.Rows), report.Number(per), "when it is not waited for")
	if floor > 0 {
		over := &sample{}
		for i := range x.values {
			over.values = append(over.values, (y.values[i]-x.values[i])/float64(small.Inserts)/floor)
		}
		e.Metrics = append(e.Metrics, over.metric("penalty to floor/ratio", "x", method.LowerIsBetter))
		e.Answer += fmt.Sprintf("; the wire and the other disk alone take %s ms, %s of it", report.Number(floor), percentOf(floor, per))
		e.Metrics = append(e.Metrics, report.Metric{Name: "floor/ms", Unit: "ms", Better: method.LowerIsBetter, Value: floor, Low: floor, High: floor})
	}
	big := o.Cells[0]
	x, y = m.at(kind, async, big), m.at(kind, synchronous, big)
	e.Answer += fmt.Sprintf(". %s in one transaction take %s times as long.", rowsWord(big.Rows), inWords(compare(x, y, method.LowerIsBetter)))
	if b.Group != nil {
		e.Notes = append(e.Notes, "asynchronous: synchronous_commit = local in the session, so that the same secondaries receive the same log and nobody waits for them.")
	}
	if len(m.kinds) > 1 {
		e.Notes = append(e.Notes, b.compressionGain(e, o, m))
	}
	return nil
}

func percentOf(part, whole float64) string {
	if whole <= 0 {
		return "more than all"
	}
	return strconv.Itoa(int(100*part/whole+0.5)) + " %"
}

func rowsWord(n int) string {
	if n == 1 {
		return "one row"
	}
	return strconv.Itoa(n) + " rows"
}

// compressionGain compares synchronous inserts with the first and the last kind of compression.
func (b *Bed) compressionGain(e *report.Experiment, o CommitOptions, m *matrix) string {
	first, last := m.kinds[0], m.kinds[len(m.kinds)-1]
	var words []string
	for _, c := range o.Cells {
		r := compare(m.at(first, synchronous, c), m.at(last, synchronous, c), method.LowerIsBetter)
		e.Comparisons = append(e.Comparisons, report.Comparison{
			Name: cellWord(c) + ", synchronous", Metric: "time", Unit: "ms", A: first, B: last, Comparison: r,
		})
		words = append(words, fmt.Sprintf("%s %s", cellWord(c), inWords(r)))
	}
	return fmt.Sprintf("Time of synchronous inserts with %s over that with %s: %s.", last, first, strings.Join(words, "; "))
}

func cellWord(c Cell) string { return fmt.Sprintf("%d × %d", c.Inserts, c.Rows) }

func matrixColumns() []report.Column {
	columns := []report.Column{{Name: "inserts"}, {Name: "rows per insert"}}
	for _, published := range []bool{true, false} {
		columns = append(columns,
			report.Column{Name: "async", Unit: "ms", Published: published}, report.Column{Name: "sync", Unit: "ms", Published: published},
			report.Column{Name: "penalty", Unit: "ms", Published: published}, report.Column{Name: "penalty per insert", Unit: "ms", Published: published},
			report.Column{Name: "penalty", Unit: "%", Published: published}, report.Column{Name: "async", Unit: "inserts/s", Published: published},
			report.Column{Name: "sync", Unit: "inserts/s", Published: published}, report.Column{Name: "penalty", Unit: "inserts/s", Published: published})
	}
	return append(columns, report.Column{Name: "sync over async"}, report.Column{Name: "interval"}, report.Column{Name: "verdict"},
		report.Column{Name: "sync p50", Unit: "ms"}, report.Column{Name: "sync p95", Unit: "ms"}, report.Column{Name: "sync p99", Unit: "ms"})
}

func (b *Bed) matrixRow(e *report.Experiment, m *matrix, kind string, c Cell, pub report.Figures) []any {
	x, y, key, n := m.at(kind, async, c), m.at(kind, synchronous, c), strconv.Itoa(c.Inserts), float64(c.Inserts)
	row := []any{key, strconv.Itoa(c.Rows)}
	for _, column := range pub.Columns[2:] {
		row = append(row, b.figure(pub, key, column))
	}
	a, s := method.Median(x.values), method.Median(y.values)
	r := compare(x, y, method.LowerIsBetter)
	row = append(row, a, s, s-a, (s-a)/n, 100*(s-a)/a, 1000*n/a, 1000*n/s, 1000*n/a-1000*n/s,
		finite(r.Ratio), fmt.Sprintf("%s to %s", report.Number(r.Low), report.Number(r.High)), string(r.Verdict), y.ms(50), y.ms(95), y.ms(99))
	e.Comparisons = append(e.Comparisons, report.Comparison{
		Name: strings.TrimSpace(kind + " " + cellWord(c)), Metric: "time", Unit: "ms", A: async, B: synchronous, Comparison: r, Published: b.publishedRatio(pub, key, "sync_ms", "async_ms"),
	})
	name := strings.TrimPrefix(kind+"/"+cellWord(c), "/")
	e.Metrics = append(e.Metrics, x.metric(name+"/async/time", "ms", method.LowerIsBetter), y.metric(name+"/sync/time", "ms", method.LowerIsBetter), y.p99(name+"/sync/p99"))
	x.account(e)
	y.account(e)
	return row
}
