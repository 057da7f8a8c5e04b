package suite

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/bench/endpointbench"
	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/bench/linkbench"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// plainCommit runs the same inserts on plain PostgreSQL with one synchronous standby behind the same kind of link.
func plainCommit(ctx context.Context, b *experiment.Bed, e *benchreport.Experiment, o experiment.CommitOptions) (err error) {
	shape, err := linkem.ParseShape(o.Link)
	if err != nil {
		return err
	}
	net, stop, err := linkbench.StartBenchNetwork(b.Seed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	at := func(node string) endpointbench.Site {
		return endpointbench.Site{In: func(f func() error) error { return net.Do(node, f) }, Addr: net.Addr(node), Port: 5432, End: 5022}
	}
	s, err := endpointbench.NewPair(ctx, at("n1"), at("n2"), "fsync=on")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
	if err := errors.Join(net.Set("n1", "n2", shape), net.Set("n2", "n1", shape), s.Join(ctx, endpointbench.WayCubic)); err != nil {
		return err
	}
	plain := *b
	plain.Group, plain.Faults, plain.Links, plain.Dial, plain.Published = nil, nil, nil, nil, false
	plain.A, plain.B = s.Primary.DSN()+"&synchronous_commit=local", s.Primary.DSN()+"&synchronous_commit=on"
	o.Compression = nil
	o.Floor = b.Floor // the links of the lab have the same shape
	b.Progress.Say("the same on plain PostgreSQL with one synchronous standby")
	p, err := plain.Commit(ctx, o)
	if err != nil {
		return err
	}
	for _, t := range p.Tables {
		mine := slices.IndexFunc(e.Tables, func(one benchreport.Table) bool { return one.Title == t.Title && t.Title == experiment.PenaltyTable })
		if mine < 0 {
			t.Title = "Plain PostgreSQL with one synchronous standby, the same link, afterwards: " + strings.ToLower(t.Title[:1]) + t.Title[1:]
			e.Tables = append(e.Tables, t)
			continue
		}
		for _, row := range t.Rows {
			row[0] = "plain PostgreSQL"
			e.Tables[mine].Rows = append(e.Tables[mine].Rows, row)
		}
	}
	for _, c := range p.Comparisons {
		c.Name = "plain PostgreSQL, " + c.Name
		e.Comparisons = append(e.Comparisons, c)
	}
	for _, m := range p.Metrics {
		m.Name = "plain PostgreSQL/" + m.Name
		e.Metrics = append(e.Metrics, m)
	}
	e.Notes = append(e.Notes, "Plain PostgreSQL on the same link: "+p.Answer)
	return nil
}
