package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/bench"
	"github.com/coteriedb/coterie/internal/bench/method"
	"github.com/coteriedb/coterie/internal/bench/report"
	"github.com/coteriedb/coterie/internal/bench/workload"
)

// TunnelOptions says what goes through the tunnel.
type TunnelOptions struct {
	Tunnel   bench.Tunnel
	Payloads []bench.Payload                                    // each is measured; the tunnel's own is not looked at
	Link     string                                             // shape of the links, in words
	CSV      func(at time.Time, took time.Duration, arm string) // is told every run, as the published script logs it; may be nil
}

// Tunnel asks what the compression of the link gives: rows with one long column, a commit per so many, to synchronous secondaries over
// a narrow link.
func (b *Bed) Tunnel(ctx context.Context, o TunnelOptions) (report.Experiment, error) {
	e := report.Experiment{
		Name: "tunnel", Title: "The tunnel", Question: "What does compression give?", Scaled: !b.Published,
		Conditions: b.conditions(fmt.Sprintf("%d rows of %d bytes, a commit per %d", o.Tunnel.Rows, o.Tunnel.Bytes, o.Tunnel.Every)),
	}
	if o.Link != "" {
		e.Conditions = append(e.Conditions, "link between nodes "+o.Link)
	}
	arms := []arm{{name: armA, dsn: b.A}, {name: armB, dsn: b.B}}
	if b.Group != nil {
		arms = b.compressionArms([]string{"OFF", "AUTO"})
		for i := range arms {
			arms[i].dsn = b.Group.ReadWrite()
		}
	}
	samples := map[string]*sample{}
	const each = 4 * time.Second
	b.Progress.Plan(time.Duration(b.Blocks*len(arms)*len(o.Payloads)) * each)
	err := b.turns(ctx, e.Name, arms, func(ctx context.Context, block int, a arm) error {
		for _, p := range o.Payloads {
			b.Progress.Step(each, "tunnel, block %d of %d: %s, %s", block+1, b.Blocks, a.name, p.Rows())
			w := o.Tunnel
			w.Payload = p
			took, err := tunnelOnce(ctx, a.dsn, w)
			if err != nil {
				return err
			}
			if o.CSV != nil {
				o.CSV(time.Now(), took, a.name+", "+string(p))
			}
			k := a.name + string(p)
			if samples[k] == nil {
				samples[k] = &sample{}
			}
			samples[k].values = append(samples[k].values, took.Seconds())
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	return e, b.tunnelReport(&e, arms, o.Payloads, samples)
}

func tunnelOnce(ctx context.Context, dsn string, w bench.Tunnel) (time.Duration, error) {
	conn, err := workload.Open(ctx, dsn) // with nothing but our schema in its path: what Prepare drops is ours
	if err != nil {
		return 0, err
	}
	defer closeConn(conn)
	if err := w.Prepare(ctx, conn); err != nil {
		return 0, err
	}
	took, _, err := w.Run(ctx, conn)
	return took, err
}

func (b *Bed) tunnelReport(e *report.Experiment, arms []arm, payloads []bench.Payload, samples map[string]*sample) error {
	tables, sources, err := b.published("tunnel.csv")
	if err != nil {
		return err
	}
	e.Published = sources
	one, two := arms[0].name, arms[1].name
	for _, p := range payloads {
		x, y := samples[one+string(p)], samples[two+string(p)]
		t := report.Table{Title: p.Rows(), Columns: []report.Column{
			{Name: "run"},
			{Name: "standard", Unit: "min", Published: true},
			{Name: "boosted", Unit: "min", Published: true},
			{Name: "difference", Unit: "%", Published: true},
			{Name: one, Unit: "min"},
			{Name: two, Unit: "min"},
			{Name: "difference", Unit: "%"},
		}}
		var sumX, sumY float64
		for i := range x.values {
			key := fmt.Sprint(i + 1)
			pub := []any{nil, nil, nil}
			if p == bench.Constant {
				pub = []any{b.figure(tables[0], key, "standard_min"), b.figure(tables[0], key, "boosted_min"), b.figure(tables[0], key, "difference_pct")}
			}
			t.Rows = append(t.Rows, append(append([]any{key}, pub...), x.values[i]/60, y.values[i]/60, 100*(x.values[i]-y.values[i])/x.values[i]))
			sumX, sumY = sumX+x.values[i], sumY+y.values[i]
		}
		n := float64(len(x.values))
		t.Rows = append(t.Rows, []any{"average", nil, nil, nil, sumX / n / 60, sumY / n / 60, 100 * (sumX - sumY) / sumX})
		e.Tables = append(e.Tables, t)
		c := compare(x, y, method.LowerIsBetter)
		e.Comparisons = append(e.Comparisons, report.Comparison{Name: p.Rows(), Metric: "time", Unit: "s", A: one, B: two, Comparison: c})
		for i, s := range []*sample{x, y} {
			e.Metrics = append(e.Metrics, s.metric(string(p)+"/"+arms[i].name+"/time", "s", method.LowerIsBetter))
		}
		switch {
		case e.Answer != "":
			e.Answer += fmt.Sprintf(" With %s it is %s.", p.Rows(), inWords(c))
		case b.Group != nil:
			e.Answer = fmt.Sprintf("With compression %s take %s of the time.", p.Rows(), inWords(c))
		default:
			e.Answer = fmt.Sprintf("With %s, %s take %s of the time that they take with %s.", two, p.Rows(), inWords(c), one)
		}
	}
	e.Notes = append(e.Notes, "Constant rows and zeros shrink about a hundredfold and are the best case of any compression, rows of text shrink to a quarter or so, random rows not at all.")
	return nil
}
