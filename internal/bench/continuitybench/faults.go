package continuitybench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/ledger"
)

const (
	warmUp = 2 * time.Second // of load before a fault
	after  = time.Second     // of load after every client is back
	// settleIn is how long the states of the sessions may take to become known.
	settleIn = 20 * time.Second
)

// newLoad returns the load of one run on the group, with a ledger of its own.
func (m *measurement) newLoad(ctx context.Context, name string) (*load, error) {
	l, err := ledger.Open(filepath.Join(m.Dir, name))
	if err != nil {
		return nil, err
	}
	if err := l.Prepare(ctx, m.lab.ReadWrite()); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &load{lab: m.lab, ledger: l, origin: time.Now(), pace: m.Pace}, nil
}

// others returns the replicas other than the primary.
func (m *measurement) others(primary string) []string {
	return slices.DeleteFunc(slices.Clone(m.lab.Nodes()), func(n string) bool { return n == primary })
}

// planned moves the leadership between two nodes, again and again, under one load: its clients never leave.
func (m *measurement) planned(ctx context.Context, s *Samples) (err error) {
	st, err := observe.Primary(ctx, m.lab)
	if err != nil {
		return err
	}
	from := string(st.Node)
	to := m.others(from)[0]
	l, err := m.newLoad(ctx, "planned")
	if err != nil {
		return err
	}
	first := len(s.Runs)
	err = func() error {
		if err := l.open(ctx, placesOf(m.Clients, from, []string{to}), placesOf(m.Sessions, from, []string{to})); err != nil {
			return err
		}
		if err := m.allSynchronized(ctx); err != nil {
			return err
		}
		l.run(ctx)
		for i := range m.Runs {
			one, err := m.plannedOnce(ctx, l, i+1, from, to)
			if err != nil {
				return fmt.Errorf("run %d: %w", i+1, err)
			}
			s.Runs = append(s.Runs, one)
			m.step("planned %d/%d: %s to %s in %.2f s, held %s, %d errors, %d connections lost, %d states differ", i+1, m.Runs, from, to,
				one.TookS, one.holds(), one.failed(), one.LostConnections, len(one.Broken))
			from, to = to, from
		}
		return nil
	}()
	err = errors.Join(err, l.stop())
	if len(s.Runs) > first {
		last := &s.Runs[len(s.Runs)-1]
		err = errors.Join(err, m.judge(ctx, l, last))
	}
	return errors.Join(err, l.ledger.Close())
}

func (m *measurement) plannedOnce(ctx context.Context, l *load, run int, from, to string) (Run, error) {
	r := Run{Arm: ArmPlanned, Run: run, From: from, To: to}
	m.busy("run %d of %d: planned failover", run, m.Runs)
	if err := retry.Sleep(ctx, warmUp); err != nil {
		return r, err
	}
	w := window{from: l.now()}
	began := time.Now()
	c, cancel := context.WithTimeout(ctx, observe.FailoverBudget)
	defer cancel()
	if _, err := m.lab.Agent(from).Failover(c, api.FailoverRequest{To: ag.ReplicaID(to)}); err != nil {
		return r, fmt.Errorf("failover to %s: %w", to, err)
	}
	r.TookS = time.Since(began).Seconds()
	if err := l.back(ctx, l.now()); err != nil {
		return r, err
	}
	r.Broken = l.check(ctx)
	// The return of the old primary belongs to this failover, too: it may end connections.
	if err := m.allSynchronized(ctx); err != nil {
		return r, err
	}
	w.to = l.now()
	r.see(l, w)
	return r, nil
}

// death kills the primary's node, or its PostgreSQL alone, under a load of its own.
func (m *measurement) death(ctx context.Context, a Arm, run int) (r Run, err error) {
	st, err := observe.Primary(ctx, m.lab)
	if err != nil {
		return r, err
	}
	r = Run{Arm: a, Run: run, From: string(st.Node)}
	l, err := m.newLoad(ctx, fmt.Sprintf("%s-%03d", a, run))
	if err != nil {
		return r, err
	}
	err = func() error {
		others := m.others(r.From)
		if err := l.open(ctx, placesOf(m.Clients, r.From, others), placesOf(m.Sessions, r.From, others)); err != nil {
			return err
		}
		m.busy("run %d of %d: %s: the states of the sessions become known", run, m.Runs, a)
		if err := m.settle(ctx, &r); err != nil {
			return err
		}
		m.busy("run %d of %d: %s", run, m.Runs, a)
		l.run(ctx)
		if err := retry.Sleep(ctx, warmUp); err != nil {
			return err
		}
		if r.Before, err = m.outlook(ctx); err != nil {
			return err
		}
		return m.kill(ctx, l, &r)
	}()
	if err = errors.Join(err, l.stop()); err != nil {
		return r, errors.Join(err, l.ledger.Close())
	}
	m.busy("run %d of %d: %s comes back", run, m.Runs, r.From)
	if a == ArmNode {
		err = m.lab.Start(ctx, r.From)
	}
	if err = errors.Join(err, m.allSynchronized(ctx)); err == nil {
		err = m.judge(ctx, l, &r)
	}
	return r, errors.Join(err, l.ledger.Close(), os.RemoveAll(filepath.Join(m.Dir, fmt.Sprintf("%s-%03d", a, run))))
}

// kill is the fault of a death, until every client is back.
func (m *measurement) kill(ctx context.Context, l *load, r *Run) error {
	w := window{from: l.now()}
	kill := m.lab.Kill
	if r.Arm == ArmServer {
		kill = m.lab.KillServer
	}
	if err := kill(ctx, r.From); err != nil {
		return fmt.Errorf("kill %s: %w", r.From, err)
	}
	began := time.Now()
	if err := l.back(ctx, l.now()); err != nil {
		return err
	}
	r.TookS = time.Since(began).Seconds()
	if err := retry.Sleep(ctx, after); err != nil {
		return err
	}
	r.Broken = l.check(ctx)
	w.to = l.now()
	r.see(l, w)
	if st, err := observe.Primary(ctx, m.lab); err == nil {
		r.To = string(st.Node)
	}
	return nil
}

// settle waits until the view of sessions says of all that may outlive the fault that they would. Sessions that it does
// not say so of take part all the same.
func (m *measurement) settle(ctx context.Context, r *Run) error {
	want := m.Clients + m.Sessions
	if r.Arm == ArmNode {
		want /= 2
	}
	began := time.Now()
	for time.Since(began) < settleIn {
		o, err := m.outlook(ctx)
		if err == nil && o.kept(r.Arm) >= want {
			break
		}
		if err := retry.Sleep(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
	r.SettledS = time.Since(began).Seconds()
	return nil
}

func (m *measurement) allSynchronized(ctx context.Context) error {
	return observe.Await(ctx, observe.RejoinBudget, "all replicas to be SYNCHRONIZED", func(ctx context.Context) (bool, error) {
		return observe.Synchronized(ctx, m.lab, len(m.lab.Nodes()), "")
	})
}

// judge holds every answer against the rows of the primary, and the four sums of TPC-B and the
// numbers of rows against each other.
func (m *measurement) judge(ctx context.Context, l *load, r *Run) error {
	st, err := observe.Primary(ctx, m.lab)
	if err != nil {
		return err
	}
	dsn := m.lab.DSN(string(st.Node))
	if r.Verdict, err = l.ledger.Verify(ctx, dsn); err != nil {
		return err
	}
	if err := r.readSums(ctx, dsn); err != nil {
		return err
	}
	r.Wrong, r.Judged = r.refuted(), true
	if r.Wrong > 0 {
		m.Screen.Say("WRONG ANSWERS: %v; sums %v; rows %v; lost %v", r.Verdict, r.Sums, r.Rows, r.Verdict.LostIDs)
	}
	return nil
}
