package experiment

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
)

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

// publishedMatrix is the published table that is nearest to a kind of compression.
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
			t.Rows = append(t.Rows, b.matrixRow(e, m, kind, c, tables[0]))
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

// latencyTable is of one synchronous insert, in every cell.
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

// PenaltyTable is the title of the table that sets the penalty of one commit beside what physics asks for.
const PenaltyTable = "What waiting adds to one commit, beside the floor"

// penalty is what waiting adds to the median insert of a cell, in ms, block by block.
func (m *matrix) penalty(kind string, c Cell) *sample {
	x, y, p := m.at(kind, async, c), m.at(kind, synchronous, c), &sample{}
	for i := range min(len(x.results), len(y.results)) {
		p.values = append(p.values, milli(method.Quantile(y.results[i].Latency, 50))-milli(method.Quantile(x.results[i].Latency, 50)))
	}
	return p
}

// floor is the median of the blocks' floors.
func (m *matrix) floor() report.Metric {
	s := &sample{}
	for _, f := range m.floors {
		s.values = append(s.values, f.ms())
	}
	return s.metric("floor/ms", "ms", method.LowerIsBetter)
}

// penaltyTable compares medians with medians, since the floor is one, too. It has a row for each kind of compression.
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

// commitBeside is the penalty that was published, in three versions.
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

func (b *Bed) matrixRow(e *report.Experiment, m *matrix, kind string, c Cell, pub report.Figures) []any {
	x, y, key, n := m.at(kind, async, c), m.at(kind, synchronous, c), strconv.Itoa(c.Inserts), float64(c.Inserts)
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
