package experiment

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// TunnelOptions are the rows that are inserted through the tunnel.
type TunnelOptions struct {
	Tunnel   workload.Tunnel
	Payloads []workload.Payload // each is measured; Tunnel.Payload is ignored
	Link     string             // shape of the links, in words
	// Called after every run with the values that the published script logs; may be nil.
	CSV func(at time.Time, took time.Duration, payload workload.Payload, arm string)
}

// Tunnel measures what compression of the link gives. It inserts rows with one long column, with a commit after a
// number of rows, while synchronous secondaries are behind a narrow link.
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
			meter := method.StartMeter()
			took, err := tunnelOnce(ctx, a.dsn, w)
			if err != nil {
				return err
			}
			r := method.Result{Elapsed: took, OK: int64(w.Rows), ClientCPU: meter.Share()}
			if o.CSV != nil {
				o.CSV(time.Now(), took, p, a.name)
			}
			k := a.name + string(p)
			if samples[k] == nil {
				samples[k] = &sample{}
			}
			samples[k].add(r, took.Seconds())
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	return e, b.tunnelReport(&e, arms, o.Payloads, samples)
}

func tunnelOnce(ctx context.Context, dsn string, w workload.Tunnel) (time.Duration, error) {
	conn, err := workload.Open(ctx, dsn) // only our schema is in its search_path, so Prepare drops only our table
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

func (b *Bed) tunnelReport(e *report.Experiment, arms []arm, payloads []workload.Payload, samples map[string]*sample) error {
	tables, sources, err := b.published("tunnel.csv")
	if err != nil {
		return err
	}
	e.Published = sources
	one, two := arms[0].name, arms[1].name
	var words []string
	for _, p := range payloads {
		x, y := samples[one+string(p)], samples[two+string(p)]
		e.Tables = append(e.Tables, b.tunnelTable(p, arms, [2]*sample{x, y}, tables[0]))
		c := compare(x, y, method.LowerIsBetter)
		e.Comparisons = append(e.Comparisons, report.Comparison{Name: p.Rows(), Metric: "time", Unit: "s", A: one, B: two, Comparison: c})
		for i, s := range []*sample{x, y} {
			e.Metrics = append(e.Metrics, s.metric(string(p)+"/"+arms[i].name+"/time", "s", method.LowerIsBetter))
		}
		words = append(words, p.Rows()+" take "+share(c))
	}
	with := "compression"
	if b.Group == nil {
		with = two + " instead of " + one
	}
	e.Answer = "With " + with + ", " + strings.Join(words, "; ") + "."
	e.Beside = fmt.Sprintf("constant rows take %.0f %% of the time through a vendor's tunnel, on a way of which neither round trip nor rate is known.",
		100*averageOf(tables[0], "boosted_min")/averageOf(tables[0], "standard_min"))
	e.Notes = append(e.Notes, "Constant rows and zeros shrink about a hundredfold and are the best case of any compression, rows of text shrink to a quarter or so, random rows not at all.")
	return nil
}

// tunnelTable shows every run of one payload. The published runs had constant rows.
func (b *Bed) tunnelTable(p workload.Payload, arms []arm, samples [2]*sample, pub report.Figures) report.Table {
	x, y := samples[0], samples[1]
	unit, per := "s", 1.0
	if b.Published {
		unit, per = "min", 60
	}
	t := report.Table{Title: strings.ToUpper(p.Rows()[:1]) + p.Rows()[1:], Columns: []report.Column{{Name: "run"}}}
	if p == workload.PayloadConstant {
		t.Columns = append(t.Columns, report.Column{Name: "standard", Unit: "min", Published: true}, report.Column{Name: "boosted", Unit: "min", Published: true}, report.Column{Name: "difference", Unit: "%", Published: true})
	}
	t.Columns = append(t.Columns, report.Column{Name: arms[0].name, Unit: unit}, report.Column{Name: arms[1].name, Unit: unit}, report.Column{Name: "difference", Unit: "%"})
	row := func(key string, standard, boosted float64) {
		r := []any{key}
		if p == workload.PayloadConstant {
			r = append(r, b.figure(pub, key, "standard_min"), b.figure(pub, key, "boosted_min"), b.figure(pub, key, "difference_pct"))
		}
		t.Rows = append(t.Rows, append(r, standard/per, boosted/per, 100*(standard-boosted)/standard))
	}
	var sumX, sumY float64
	for i := range x.values {
		row(fmt.Sprint(i+1), x.values[i], y.values[i])
		sumX, sumY = sumX+x.values[i], sumY+y.values[i]
	}
	n := float64(len(x.values))
	row("average", sumX/n, sumY/n)
	return t
}
