package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
)

// Action is an event that happens to the primary.
type Action string

// The actions.
const (
	Kill    Action = "kill"    // every process of its node, at one instant
	Pause   Action = "pause"   // every process of its node, stopped
	Cut     Action = "cut"     // its links to the other nodes let nothing through
	Planned Action = "planned" // a planned failover
)

// Actions lists every action.
var Actions = []Action{Kill, Pause, Cut, Planned}

// FailoverOptions are the fault of the primary and the load of the clients.
type FailoverOptions struct {
	Actions []Action
	Runs    int           // of each action
	Clients int           // writers
	Every   time.Duration // between two rows of a writer
	Before  time.Duration // of writing before the action
	After   time.Duration // of writing after the outage
	Dir     string        // directory of the ledgers
	Beside  *Workload     // a further workload; nil: none
}

// said names an action in an answer.
var said = map[Action]string{Kill: "Killed node", Pause: "Stopped node", Cut: "Node cut off", Planned: "Planned failover"}

func seconds(ms float64) string { return report.Number(ms / 1000) }

// step is the resolution of the chart.
const step = 100 * time.Millisecond

// Failover measures the outage of each client, and which acknowledged rows are still present.
func (b *Bed) Failover(ctx context.Context, o FailoverOptions) (report.Experiment, error) {
	e := report.Experiment{
		Name: "failover", Title: "The outage", Question: "How long is an outage?",
		Conditions: []string{fmt.Sprintf("%d writers, each a row every %v", o.Clients, o.Every), runsWord(o.Runs) + " of each action"},
	}
	if b.Group == nil || b.Faults == nil {
		return e, errors.New("it breaks nodes: it needs a lab (no target)")
	}
	if err := b.prepareBeside(ctx, &e, o.Beside); err != nil {
		return e, err
	}
	t := report.Table{Title: "By run", Columns: []report.Column{
		{Name: "action"},
		{Name: "run"},
		{Name: "outage of all", Unit: "ms"},
		{Name: "client p50", Unit: "ms"},
		{Name: "client max", Unit: "ms"},
		{Name: "back at 90 %", Unit: "ms"},
		{Name: "acknowledged", Unit: "rows"},
		{Name: "lost", Unit: "rows"},
		{Name: "unknown", Unit: "rows"},
		{Name: "duplicates", Unit: "rows"},
		{Name: "reconnects"},
	}}
	const each = 20 * time.Second
	b.Progress.Plan(time.Duration(len(o.Actions)*o.Runs) * each)
	outages := map[Action]*sample{}
	e.Errors = map[string]int64{}
	var lost int64
	for run := range o.Runs {
		for _, action := range o.Actions {
			b.Progress.Step(each, "failover, run %d of %d: %s", run+1, o.Runs, action)
			one, err := b.outage(ctx, o, action, filepath.Join(o.Dir, fmt.Sprintf("ledger-%s-%d", action, run+1)))
			if err != nil {
				return e, fmt.Errorf("%s, run %d: %w", action, run+1, err)
			}
			if outages[action] == nil {
				outages[action] = &sample{}
			}
			outages[action].values = append(outages[action].values, milli(one.Longest))
			lost += one.verdict.Lost
			t.Rows = append(t.Rows, one.row(action, run+1))
			one.account(&e)
			if run == 0 {
				one.draw(&e, action, o.Beside)
			}
		}
	}
	e.Tables = []report.Table{t}
	e.Metrics = append(e.Metrics, report.Metric{Name: "lost", Unit: "rows", Better: method.LowerIsBetter, Value: float64(lost), Low: float64(lost), High: float64(lost)})
	outageAnswer(&e, o, outages, lost)
	return e, nil
}

// prepareBeside loads the data of the workload beside the writers.
func (b *Bed) prepareBeside(ctx context.Context, e *report.Experiment, w *Workload) error {
	if w == nil {
		return nil
	}
	e.Conditions = append(e.Conditions, "beside them "+w.Name)
	if w.Prepare == nil {
		return nil
	}
	b.Progress.Say("loading")
	return w.Prepare(ctx, b.Group.ReadWrite())
}

func outageAnswer(e *report.Experiment, o FailoverOptions, outages map[Action]*sample, lost int64) {
	var words []string
	for _, action := range o.Actions {
		s := outages[action]
		one := fmt.Sprintf("%s %s s", said[action], seconds(method.Median(s.values)))
		if o.Runs > 1 {
			one += fmt.Sprintf(" (%s to %s)", seconds(slices.Min(s.values)), seconds(slices.Max(s.values)))
		}
		words = append(words, one)
		e.Metrics = append(e.Metrics, s.metric(string(action)+"/outage", "ms", method.LowerIsBetter))
	}
	runs := "one run of each"
	if o.Runs > 1 {
		runs = fmt.Sprintf("the median of %d runs of each, shortest and longest", o.Runs)
	}
	kept := "No acknowledged row was lost."
	if lost > 0 {
		kept = fmt.Sprintf("%s acknowledged rows were LOST.", thousands(int(lost)))
	}
	e.Answer = fmt.Sprintf("%s: %s. %s", strings.Join(words, "; "), runs, kept)
	e.Beside = "nothing; no source of published figures measures an outage."
	e.Notes = append(e.Notes, "An outage is the longest time between two acknowledged rows that the action touched; the ledger asks the new primary for every acknowledged row.")
}

// account adds the failed operations of the writers and of the workload beside them.
func (t told) account(e *report.Experiment) {
	for _, errors := range []map[string]int64{t.Errors, t.beside.errors} {
		for state, n := range errors {
			e.Errors[state] += n
		}
	}
}

// told is the result of one failover.
type told struct {
	ledger.Outage
	verdict   ledger.Verdict
	series    []float64 // acknowledged rows per second, by step
	event     float64   // seconds after the series began
	at        time.Time // of the event
	beside    worked
	perClient []report.Bar
}

func (b *Bed) outage(ctx context.Context, o FailoverOptions, action Action, dir string) (res told, err error) {
	l, err := ledger.Open(dir)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, l.Close(), os.RemoveAll(dir)) }()
	dsn := b.Group.ReadWrite()
	if err := l.Prepare(ctx, dsn); err != nil {
		return res, err
	}
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wrote := make(chan error, 1)
	go func() { wrote <- l.Write(wctx, ledger.WriterOptions{DSN: dsn, Clients: o.Clients, Every: o.Every}) }()
	end := o.Beside.start(ctx, dsn)
	old, at, err := b.strike(ctx, l, o, action)
	ended := time.Now()
	cancel()
	res.at, res.beside = at, end()
	if err := errors.Join(err, <-wrote, res.beside.err); err != nil {
		return res, err
	}
	res.Outage = l.OutageBetween(at, ended)
	begin, counts := l.Timeline(step)
	if whole := int(ended.Sub(begin) / step); whole < len(counts) { // the writers ended in the last, incomplete step
		counts = counts[:max(whole, 0)]
	}
	for _, n := range counts {
		res.series = append(res.series, float64(n)/step.Seconds())
	}
	res.event = at.Sub(begin).Seconds()
	for client, d := range l.OutagesByClient(at, ended) {
		res.perClient = append(res.perClient, report.Bar{Name: fmt.Sprint(client + 1), Value: milli(d)})
	}
	if err := b.Faults.Mend(ctx, action); err != nil {
		return res, fmt.Errorf("mend %s after %s: %w", old, action, err)
	}
	if o.Beside != nil && o.Beside.Check != nil {
		if err := o.Beside.Check(ctx, b, dsn); err != nil {
			return res, err
		}
	}
	res.verdict, err = l.Verify(ctx, dsn)
	return res, err
}

// strike lets the writers write, does the action, and waits until rows are acknowledged again.
func (b *Bed) strike(ctx context.Context, l *ledger.Ledger, o FailoverOptions, action Action) (old string, at time.Time, err error) {
	if err := until(ctx, time.Minute, "the writers to begin", func(context.Context) (bool, error) { return l.Progress().Acknowledged > 0, nil }); err != nil {
		return "", at, err
	}
	if err := retry.Sleep(ctx, o.Before); err != nil {
		return "", at, err
	}
	if old, err = b.Group.Primary(ctx); err != nil {
		return "", at, err
	}
	at = time.Now()
	if err := b.Faults.Do(ctx, action); err != nil {
		return old, at, err
	}
	var since time.Time
	if err := until(ctx, 2*time.Minute, "another primary", func(ctx context.Context) (bool, error) {
		now, err := b.Group.Primary(ctx)
		since = time.Now()
		return err == nil && now != old, nil
	}); err != nil {
		return old, at, err
	}
	if err := until(ctx, 2*time.Minute, "an acknowledged row", func(context.Context) (bool, error) { return l.Progress().LastAck.After(since), nil }); err != nil {
		return old, at, err
	}
	return old, at, retry.Sleep(ctx, o.After)
}

func (t told) row(action Action, run int) []any {
	var back any
	if t.TimeTo90 >= 0 {
		back = milli(t.TimeTo90)
	}
	return []any{
		string(action), fmt.Sprint(run), milli(t.Longest), milli(t.PerClientP50), milli(t.PerClientMax), back,
		float64(t.verdict.Acknowledged), float64(t.verdict.Lost), float64(t.verdict.Unknown), float64(t.verdict.Duplicates), float64(t.Reconnects),
	}
}

// drawnFrom and drawnTo bound the chart, in seconds from the action.
const drawnFrom, drawnTo = -3.0, 15.0

// draw adds the run to the charts. The action is at 0 s.
func (t told) draw(e *report.Experiment, action Action, beside *Workload) {
	s := report.Series{Name: strings.ToLower(said[action]), Unit: "acknowledged rows/s", Points: [][2]float64{}}
	for i, v := range t.series {
		at := float64(i)*step.Seconds() - t.event
		if at >= drawnFrom && at <= drawnTo {
			s.Points = append(s.Points, [2]float64{at, v})
		}
	}
	e.Series = append(e.Series, s)
	if beside != nil {
		e.Series = append(e.Series, t.beside.series(s.Name, beside.Unit, t.at, [2]float64{drawnFrom, drawnTo}))
	}
	if len(e.Events) == 0 {
		e.Events = append(e.Events, report.Event{At: 0, Label: "the primary is hit, or asked to hand over"})
	}
	slices.SortFunc(t.perClient, func(a, b report.Bar) int { return len(a.Name)*100 + strings.Compare(a.Name, b.Name) - len(b.Name)*100 })
	e.Bars = append(e.Bars, report.Bars{Title: "Outage of each client: " + strings.ToLower(said[action]), Each: "client", Unit: "ms", Bars: t.perClient})
}

func runsWord(n int) string {
	if n == 1 {
		return "one run"
	}
	return fmt.Sprintf("%d runs", n)
}
