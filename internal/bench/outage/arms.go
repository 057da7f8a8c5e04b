package outage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/method"
)

// Arm is one kind of fault that Measure repeats.
type Arm string

// The arms. The primary's node dies, or it falls silent (every process stops, and the network shows nothing). The
// leadership moves as planned. A synchronous secondary's node dies and returns. The witness dies.
const (
	ArmDeath     Arm = "death"
	ArmSilent    Arm = "silent"
	ArmPlanned   Arm = "planned"
	ArmSecondary Arm = "secondary"
	ArmWitness   Arm = "witness"
	ArmCost      Arm = "cost" // throughput beside plain PostgreSQL
	ArmLast      Arm = "last" // the only secondary of two replicas and a witness dies and returns

	ArmSilentFast Arm = "silent-fast" // silent, in a group of its own at the lease profile fast
)

// Arms lists them in the order in which they run.
var Arms = []Arm{ArmDeath, ArmPlanned, ArmSilent, ArmSecondary, ArmWitness, ArmLast, ArmCost, ArmSilentFast}

// gapFor is how long writes are watched after a fault that clients should not notice.
const gapFor = 3 * time.Second

// staysAway is how long a silent node stays away after another leads: longer than a lease of any profile that is
// measured.
const staysAway = 8 * time.Second

// impatience is how long the writer waits for a statement, and for one listener, while a primary is silent. A client of
// the silent node's own listener gets no answer at all: it sees the outage of the group and its own patience on top.
const impatience = time.Second

func (m *measurement) wants(a Arm) bool { return len(m.Only) == 0 || slices.Contains(m.Only, a) }

// round runs the arms of one repetition on the three replicas.
func (m *measurement) round(ctx context.Context, i int, s *Samples) error {
	line := fmt.Sprintf("run %d/%d:", i, m.Runs)
	if m.wants(ArmDeath) {
		one, err := m.death(ctx, i)
		if err != nil {
			return fmt.Errorf("run %d: %w", i, err)
		}
		s.Deaths = append(s.Deaths, one)
		line += fmt.Sprintf(" %s killed, outage %.0f ms, lost %d, came back %s after %.1f s;", one.From, one.OutageMS, one.Verdict.Lost, one.Rejoin.How, one.Rejoin.Seconds)
	}
	if m.wants(ArmPlanned) {
		one, err := m.planned(ctx, i)
		if err != nil {
			return fmt.Errorf("run %d, planned: %w", i, err)
		}
		s.Planned = append(s.Planned, one)
		line += fmt.Sprintf(" planned %s→%s, outage %.0f ms, lost %d;", one.From, one.To, one.OutageMS, one.Verdict.Lost)
	}
	if m.wants(ArmSilent) {
		one, err := m.silent(ctx, i, ArmSilent)
		if err != nil {
			return fmt.Errorf("run %d, silent: %w", i, err)
		}
		s.Silent = append(s.Silent, one)
		line += fmt.Sprintf(" %s silent, outage %.0f ms, lost %d;", one.From, one.OutageMS, one.Verdict.Lost)
	}
	if m.wants(ArmSecondary) {
		dies, returns, err := m.secondary(ctx, i, ArmSecondary, len(m.lab.Nodes()))
		if err != nil {
			return fmt.Errorf("run %d, secondary: %w", i, err)
		}
		s.Secondary, s.Return = append(s.Secondary, dies), append(s.Return, returns)
		line += fmt.Sprintf(" %s dies, gap %.0f ms, returns, gap %.0f ms;", dies.To, dies.OutageMS, returns.OutageMS)
	}
	m.Screen.Say("%s", line)
	return nil
}

// silent stops every process of the primary's node, and continues them when another node leads and its lease would have
// ended. A node that came back earlier would be one that had only paused, which makes the group more patient.
func (m *measurement) silent(ctx context.Context, run int, a Arm) (Sample, error) {
	m.Screen.Busy("run %d of %d: the primary falls silent", run, m.Runs)
	o := ledger.WriterOptions{DSN: m.lab.ReadWrite(), Timeout: impatience, PerHost: impatience}
	s, err := m.writerOn(ctx, fmt.Sprintf("ledger-%03d-%s", run, a), o, m.lab.DSN, func(ctx context.Context, l *ledger.Ledger) (s Sample, err error) {
		st, err := observe.Primary(ctx, m.lab)
		if err != nil {
			return Sample{}, err
		}
		s.From = string(st.Node)
		if err := m.lab.Pause(ctx, s.From); err != nil {
			return s, fmt.Errorf("pause %s: %w", s.From, err)
		}
		defer func() { err = errors.Join(err, m.lab.Resume(context.WithoutCancel(ctx), s.From)) }()
		if s.To, err = m.writesGoOn(ctx, l, s.From); err == nil {
			err = retry.Sleep(ctx, staysAway)
		}
		return s, err
	})
	if err != nil {
		return s, err
	}
	return s, m.all(ctx)
}

// fast repeats silent in a group with the lease profile fast.
func (m *measurement) fast(ctx context.Context, s *Samples) (err error) {
	m.Screen.Busy("lab up at the profile fast")
	m.lab, err = m.Fast(ctx, func(string) {})
	if err != nil {
		return err
	}
	defer func() { err = m.down(m.lab, err) }()
	for i := range m.Runs {
		one, err := m.silent(ctx, i+1, ArmSilentFast)
		if err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		s.SilentFast = append(s.SilentFast, one)
		m.Screen.Say("run %d/%d: profile fast: %s silent, outage %.0f ms, lost %d", i+1, m.Runs, one.From, one.OutageMS, one.Verdict.Lost)
	}
	return nil
}

// secondary kills a synchronous secondary's node and starts it again. Both results are the longest gap between two
// acknowledged writes. replicas is the number of synchronized replicas at the end.
func (m *measurement) secondary(ctx context.Context, run int, a Arm, replicas int) (dies, returns Sample, err error) {
	m.Screen.Busy("run %d of %d: a secondary dies", run, m.Runs)
	st, err := observe.Primary(ctx, m.lab)
	if err != nil {
		return dies, returns, err
	}
	from, to := string(st.Node), string(observe.Target(st, ""))
	if to == "" {
		return dies, returns, errors.New("no synchronized secondary")
	}
	gap := func(name string, fault func(context.Context, string) error) (Sample, error) {
		s, err := m.writer(ctx, fmt.Sprintf("ledger-%03d-%s-%s", run, a, name), func(ctx context.Context, _ *ledger.Ledger) (Sample, error) {
			if err := fault(ctx, to); err != nil {
				return Sample{}, fmt.Errorf("%s of %s: %w", name, to, err)
			}
			return Sample{From: from, To: from}, retry.Sleep(ctx, gapFor)
		})
		s.To = to
		return s, err
	}
	if dies, err = gap("death", m.lab.Kill); err != nil {
		return dies, returns, err
	}
	if returns, err = gap("return", m.lab.Start); err != nil {
		return dies, returns, err
	}
	return dies, returns, m.allOf(ctx, replicas)
}

// lastSecondary kills the only secondary of a group several times. The group then degrades and records it.
func (m *measurement) lastSecondary(ctx context.Context, s *Samples) error {
	if !m.wants(ArmLast) {
		return nil
	}
	for i := range m.Runs {
		dies, returns, err := m.secondary(ctx, i+1, ArmLast, 2)
		if err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		s.LastDeath, s.LastReturn = append(s.LastDeath, dies), append(s.LastReturn, returns)
		m.Screen.Say("run %d/%d: %s, the only secondary, dies, gap %.0f ms, returns, gap %.0f ms", i+1, m.Runs, dies.To, dies.OutageMS, returns.OutageMS)
	}
	return nil
}

// witnessDeath kills the witness of a group under one writer, several times.
func (m *measurement) witnessDeath(ctx context.Context, witness string) (out []Sample, err error) {
	if !m.wants(ArmWitness) {
		return nil, nil
	}
	for i := range m.Runs {
		m.Screen.Busy("run %d of %d: the witness dies", i+1, m.Runs)
		s, err := m.writer(ctx, fmt.Sprintf("ledger-%03d-witness", i+1), func(ctx context.Context, _ *ledger.Ledger) (Sample, error) {
			st, err := observe.Primary(ctx, m.lab)
			if err != nil {
				return Sample{}, err
			}
			s := Sample{From: string(st.Node), To: string(st.Node)}
			if err := m.lab.Kill(ctx, witness); err != nil {
				return s, fmt.Errorf("kill %s: %w", witness, err)
			}
			return s, retry.Sleep(ctx, gapFor)
		})
		if err != nil {
			return out, err
		}
		out = append(out, s)
		m.Screen.Say("run %d/%d: %s dies, gap %.0f ms, lost %d", i+1, m.Runs, witness, s.OutageMS, s.Verdict.Lost)
		if err := m.lab.Start(ctx, witness); err != nil {
			return out, err
		}
		if err := retry.Sleep(ctx, settleIn); err != nil {
			return out, err
		}
	}
	return out, nil
}

// armFigures are the figures of the arms beside node death and planned failover.
func (s Samples) armFigures(why string) []goals.Figure {
	lost := 0.0
	for _, list := range [][]Sample{s.Silent, s.SilentFast, s.Secondary, s.Return, s.WitnessDeath, s.LastDeath, s.LastReturn} {
		for _, one := range list {
			lost += float64(one.Verdict.Lost)
		}
	}
	seconds := func(list []Sample) (out []float64) {
		for _, one := range list {
			out = append(out, one.OutageMS/1000)
		}
		return out
	}
	fig := func(name string, list []Sample, of func(string, []float64, string) goals.Figure) goals.Figure {
		return of(name, seconds(list), why)
	}
	all := goals.Figure{Name: "other-faults-rows-lost", Measured: lost}
	if len(s.Silent)+len(s.SilentFast)+len(s.Secondary)+len(s.Return)+len(s.WitnessDeath)+len(s.LastDeath) == 0 {
		all = goals.Figure{Name: all.Name, NotRun: why}
	}
	return []goals.Figure{
		fig("node-death-outage-p95", s.Deaths, high), fig("node-silent-outage-p50", s.Silent, median), fig("node-silent-fast-outage-p50", s.SilentFast, median),
		fig("secondary-death-gap-p50", s.Secondary, median), fig("secondary-return-gap", s.Return, most), fig("witness-death-gap", s.WitnessDeath, most), fig("last-secondary-death-gap-p50", s.LastDeath, median), all,
	}
}

// high returns the figure of the 95th percentile, most that of the largest value.
func high(name string, v []float64, why string) goals.Figure { return at(name, v, why, 95) }
func most(name string, v []float64, why string) goals.Figure { return at(name, v, why, 100) }

func at(name string, v []float64, why string, percent int) goals.Figure {
	if len(v) == 0 {
		return goals.Figure{Name: name, NotRun: why}
	}
	return goals.Figure{Name: name, Measured: method.Nearest(v, percent)}
}

// witnessName returns the name of the member without data.
func witnessName(ctx context.Context, l observe.Lab) (string, error) {
	for _, n := range l.Nodes() {
		st, err := observe.Status(ctx, l, n)
		if err == nil && observe.Own(st).Mode == ag.ConfigurationOnly && observe.Own(st).Local != nil {
			return n, nil
		}
	}
	return "", errors.New("the lab has no witness")
}
