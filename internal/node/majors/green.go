package majors

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/postgres/bluegreen"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// switchTime is the estimate of how long clients wait when the group passes to the new cluster.
const switchTime = 5 * time.Second

// pair returns the two clusters of an upgrade by blue/green.
func (s *Service) pair(u major.Upgrade) *bluegreen.Pair {
	j := s.job(u)
	return &bluegreen.Pair{
		Blue: s.Server.SessionIn, Sockets: s.Layout.Sockets(), Install: j.New.Install, Data: u.To.Data, Work: j.Work, HBA: j.HBA(),
		LogFile: filepath.Join(s.Layout.Log(), major.GreenLog), Superuser: s.superuser(), Logger: s.Logger, Keep: u.Return != nil && u.Return.Within > 0,
	}
}

// green looks at what concerns only an upgrade by blue/green.
func (l *look) green(ctx context.Context) error {
	f, err := l.s.pair(l.u).Look(ctx)
	if err != nil {
		return err
	}
	l.plan.Obstacles, l.plan.Notes = append(l.plan.Obstacles, f.Obstacles...), append(l.plan.Notes, f.Notes...)
	if n := l.s.Status().Required; n > 0 {
		l.obstacle("commits wait for at least %d of the other replicas, and none has a copy of the new cluster when the group passes: writes would wait for that copy. For the time of the upgrade: "+
			"ALTER AVAILABILITY GROUP %s SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 0)", n, l.s.Status().Group)
	}
	if len(l.plan.Obstacles) == 0 {
		if err := l.job.Try(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			l.obstacle("%s", err.Error())
		}
	}
	l.plan.Outage = switchTime
	l.note("objects get other numbers (OIDs): sessions in databases with types of their own end, and connect again")
	l.note("a change of definitions (DDL) while rows are copied gives the upgrade up")
	l.plan.Until = time.Now().Add(l.within()).Round(time.Second)
	l.plan.Steps = []string{
		fmt.Sprintf("an empty cluster of PostgreSQL %s is made in %s, with the roles and definitions of this one; its server runs beside that of %s", l.u.To.Version, l.u.To.Data, l.s.Self),
		fmt.Sprintf("logical replication copies the rows while clients go on, until %s at the latest; a failover meanwhile gives the upgrade up", l.plan.Until.UTC().Format(time.RFC3339)),
		"the statistics are made, and materialized views refreshed",
		"new transactions wait, running ones end; the new cluster gets the last changes and the sequences; both servers end in order",
		fmt.Sprintf("the group passes to the new cluster, in one transaction: copies of PostgreSQL %d do not count any more", l.u.From.Major),
		"PostgreSQL starts on it, sessions that can go on, and it takes writes, without another copy of them at first",
	}
	for _, id := range l.plan.Followers {
		l.plan.Steps = append(l.plan.Steps, fmt.Sprintf("%s drops its copy for one of the new cluster; pages that are the same are not sent", id))
	}
	return nil
}

// fill begins to fill the new cluster beside the agent.
func (s *Service) fill(u major.Upgrade) error {
	if !s.filling.CompareAndSwap(false, true) {
		return errors.New("a new cluster is being filled already")
	}
	if err := s.start(u); err != nil {
		s.filling.Store(false)
		return err
	}
	s.Background(func(ctx context.Context) {
		g := &greenNode{Service: s, pair: s.pair(u)}
		u, err := major.RunGreen(ctx, g, u)
		s.filling.Store(false)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.Logger.Error("the upgrade by blue/green cannot go on; the agent begins again and looks where it stands", "err", err)
			s.Restart()
			return
		}
		s.forget()
		s.Logger.Info("the upgrade by blue/green is over", "phase", u.Phase, "why", u.Why)
		if err := s.sweepBlue(ctx); err != nil {
			s.Logger.Debug("what the upgrade has left is still there", "err", err)
		}
	})
	return nil
}

// greenNode fills a new cluster. It implements major.GreenNode.
type greenNode struct {
	*Service
	pair    *bluegreen.Pair
	failed  int       // looks in a row
	printed time.Time // the last look at the definitions
	of      int       // tables that are copied
}

// The pauses between two looks at the rows, and at the definitions; and how often a look may fail.
const (
	fillAgain  = 500 * time.Millisecond
	printAgain = 5 * time.Second
	mayFail    = 5
)

// GreenFacts implements major.GreenNode.
func (g *greenNode) GreenFacts(ctx context.Context, u major.Upgrade) (f major.GreenFacts, err error) {
	v := g.View()
	for v == nil || !v.Quorum {
		if err := retry.Sleep(ctx, fillAgain); err != nil {
			return f, err
		}
		v = g.View()
	}
	e := v.Record.Epoch
	f = major.GreenFacts{Stopped: stopped(g.Layout), Now: time.Now(), Runs: g.pair.Runs()}
	f.Leads = e.Epoch == u.Epoch && e.Leader == g.Self && e.Phase == ag.PhaseLead && v.Record.State.Copy == u.From.Copy && v.Local.Server == ag.ServerWritable
	if !f.Leads || f.Stopped || !f.Runs || u.Stage == major.Nothing || u.Stage == major.Empty {
		return f, nil
	}
	if err = g.look(ctx, u, &f); err == nil {
		g.failed = 0
		return f, nil
	}
	if g.failed++; g.failed >= mayFail {
		f.Failed = err.Error()
		return f, nil
	}
	g.Logger.Warn("the copy of rows was not looked at", "err", err)
	f.Tables = 1 // not known
	return f, retry.Sleep(ctx, fillAgain)
}

func (g *greenNode) look(ctx context.Context, u major.Upgrade, f *major.GreenFacts) error {
	if time.Since(g.printed) > printAgain {
		databases, err := g.pair.Databases(ctx)
		if err != nil {
			return err
		}
		now, err := g.pair.Fingerprint(ctx, databases)
		if err != nil {
			return err
		}
		g.printed = time.Now()
		if err := bluegreen.Changed(u.Print, now); err != nil {
			f.Changed = err.Error()
		}
	}
	if u.Stage == major.Defined {
		return nil
	}
	p, err := g.pair.Progress(ctx)
	f.Tables, f.Lag, f.Failed, g.of = p.Tables, p.Lag, p.Failed, p.Of
	return err
}

// Empty implements major.GreenNode.
func (g *greenNode) Empty(ctx context.Context, u major.Upgrade) (major.Upgrade, error) {
	fault.Point("green.begun") // the upgrade is stored; nothing of the new cluster is there
	if err := g.job(u).Empty(ctx); err != nil {
		return u, err
	}
	fault.Point("green.empty") // the new cluster is empty; no server runs on it
	databases, err := g.pair.Databases(ctx)
	if err != nil {
		return u, err
	}
	to, err := g.instance(u.To)
	if err != nil {
		return u, err
	}
	defer func() { _ = to.Close() }()
	if u.To.SystemID, err = to.SystemID(); err != nil {
		return u, err
	}
	return u, g.pair.Start(ctx, len(databases))
}

// Define implements major.GreenNode.
func (g *greenNode) Define(ctx context.Context, u major.Upgrade) (_ major.Upgrade, err error) {
	u.Print, err = g.pair.Define(ctx)
	fault.Point("green.defined") // the new cluster has the definitions; nothing is replicated
	return u, err
}

// Subscribe implements major.GreenNode.
func (g *greenNode) Subscribe(ctx context.Context, _ major.Upgrade) error {
	if err := g.pair.Sweep(ctx, true); err != nil { // of an upgrade that was given up
		return err
	}
	err := g.pair.Subscribe(ctx)
	fault.Point("green.subscribed") // rows are copied, and the old cluster keeps WAL for that
	return err
}

// Wait implements major.GreenNode.
func (g *greenNode) Wait(ctx context.Context, u major.Upgrade, f major.GreenFacts) error {
	u.Progress = fmt.Sprintf("%d of %d tables are copied, and %d kB of WAL are to come", g.of-f.Tables, g.of, f.Lag>>10)
	if err := g.Save(u); err != nil {
		return err
	}
	return retry.Sleep(ctx, fillAgain)
}

// MakeReady implements major.GreenNode.
func (g *greenNode) MakeReady(ctx context.Context, _ major.Upgrade) error {
	err := g.pair.MakeReady(ctx)
	fault.Point("green.ready") // the new cluster has what it can have while clients go on
	return err
}

// Discard implements major.GreenNode.
func (g *greenNode) Discard(u major.Upgrade) error {
	if err := g.pair.End(false); err != nil {
		return err
	}
	return g.job(u).Discard(context.Background()) // it has waits of its own
}

// Switch implements major.GreenNode.
func (g *greenNode) Switch(ctx context.Context, u major.Upgrade) (major.Upgrade, error) {
	databases, err := g.pair.Databases(ctx)
	if err != nil {
		return u, err
	}
	if err := fixed(g.Layout.Dir); err != nil {
		return u, err
	}
	if err := g.checkpoint(ctx); err != nil { // else the end of the old server would write it while clients wait
		return u, err
	}
	pass := passage{greenNode: g, u: u}
	err = g.Service.Switch(ctx, agent.ClusterSwitch{
		Quiet: func(ctx context.Context, x ag.LSN) error {
			next, err := g.pair.Finish(ctx, x.String(), bluegreen.Shape{Print: u.Print, Databases: databases})
			pass.next = next
			return err
		},
		Pass: pass.do,
	})
	switch {
	case pass.unknown != nil:
		return u, fmt.Errorf("%w: %w", major.ErrUnknown, pass.unknown)
	case pass.over:
		return pass.u, nil
	case g.pair.Over():
		return u, errors.Join(err, pass.failed)
	case errors.Is(err, bluegreen.ErrChanged):
		return u, err
	}
	u.Tries++
	u.Why = fmt.Sprint(err)
	g.Logger.Warn("the group did not pass to the new cluster yet", "try", u.Tries, "err", err)
	return u, retry.Sleep(ctx, printAgain)
}

// passage is the part of a switch during which no server runs.
type passage struct {
	*greenNode
	u       major.Upgrade
	next    uint64           // number of the transaction that would have written next when the new cluster had everything
	new     programs.Install // of the new cluster, with all that is known of it
	over    bool             // the upgrade is done, or given up
	failed  error            // it had not begun
	unknown error            // it is not known
}

// passLimit bounds a passage. Afterwards another agent goes on with it.
const passLimit = 20 * time.Second

// do has the group pass, and reports whether it has.
func (p *passage) do() (passed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), passLimit)
	defer cancel()
	u, err := p.seal(ctx, p.u)
	if err == nil {
		err = p.Save(u)
	}
	if err != nil {
		p.failed = err
		return false, nil //nolint:nilerr // nothing has passed
	}
	if u, err = major.Run(ctx, p.Service, u); err != nil {
		p.unknown = err
		p.Restart()
		return false, err
	}
	u.Progress = ""
	p.u, p.over = u, true
	if err := p.Save(u); err != nil {
		p.Logger.Warn("the state of the major upgrade was not stored", "err", err)
	}
	if u.Phase != major.Done {
		return false, nil
	}
	p.Replaced(p.new, u.To.Data)
	_ = os.RemoveAll(p.job(u).Work)
	return true, nil
}

// seal notes where both clusters end. Each of their servers has ended in order.
func (p *passage) seal(ctx context.Context, u major.Upgrade) (major.Upgrade, error) {
	from, err := p.instance(u.From)
	if err != nil {
		return u, err
	}
	defer func() { _ = from.Close() }()
	to, err := p.instance(u.To)
	if err != nil {
		return u, err
	}
	defer func() { _ = to.Close() }()
	p.new = to.Config().Install
	if now, err := from.Control(ctx); err != nil || now.NextXID != p.next {
		return u, errors.Join(err, fmt.Errorf("something has written to the cluster of PostgreSQL %d while the group was to pass to that of %d, which does not have that: transactions %d to %d", u.From.Major, u.To.Major, p.next, now.NextXID))
	}
	if u.From.End, err = from.EndOfWAL(ctx); err != nil {
		return u, err
	}
	if err := durable.Replace(filepath.Join(u.To.Data, "standby.signal"), nil, 0o600); err != nil {
		return u, err
	}
	if u.To.End, err = to.EndOfWAL(ctx); err != nil {
		return u, err
	}
	u.To.Copy = agent.NewCopyID()
	if !u.Back { // else it has a history
		u.To.Timelines = []ag.TimelineEntry{{TLI: u.To.End.Timeline}}
	}
	if u.Phase = major.Made; u.Return != nil {
		u.Return = opened(u, p.pair.Held(), free(u.To.Data))
	}
	return u, durable.Replace(filepath.Join(u.To.Data, pgserver.CopyFile), []byte(string(u.To.Copy)+"\n"), 0o600)
}

// unchanged reports whether the old cluster is as it was when the new one had everything.
func (s *Service) unchanged(ctx context.Context, u major.Upgrade) (bool, error) {
	pg, err := s.instance(u.From)
	if err != nil {
		return false, err
	}
	defer func() { _ = pg.Close() }()
	end, err := pg.EndOfWAL(ctx)
	return err == nil && end == u.From.End, nil //nolint:nilerr // an end that is not known is another one
}

// sweepAgain is the pause between two looks for what an upgrade by blue/green has left. sweptWithin is how long another
// look at an upgrade waits for that.
const (
	sweepAgain  = 3 * time.Second
	sweptWithin = 10 * time.Second
)

// Run has the old cluster follow after an upgrade by blue/green, for the way back. And it removes what an upgrade that
// was given up, or a way back that has ended, has left on the cluster of the group: the slots wherever this node's copy
// is, the publications once this node leads.
func (s *Service) Run(ctx context.Context) error {
	for {
		if err := s.sweepBlue(ctx); err != nil {
			s.Logger.Debug("what an upgrade has left is still there", "err", err)
		}
		s.keepReturn(ctx)
		if retry.Sleep(ctx, sweepAgain) != nil {
			return nil
		}
	}
}

func (s *Service) sweepBlue(ctx context.Context) error {
	if !s.asked.TryLock() {
		return nil
	}
	defer s.asked.Unlock()
	return s.sweepNow(ctx)
}

// awaitSwept waits until what an upgrade by blue/green has left is removed, which would be found in the way of another
// one, and no longer than sweptWithin.
func (s *Service) awaitSwept(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweptWithin)
	defer cancel()
	for {
		_, leads := s.leads()
		if u, err := Read(s.Layout); err != nil || leads != nil || !leaves(u) || s.filling.Load() || retry.Sleep(ctx, fillAgain) != nil {
			return
		}
	}
}

// leaves reports whether something of an upgrade by blue/green, or of the way back from it, may be left on the cluster
// that the group has.
func leaves(u major.Upgrade) bool {
	switch {
	case u.Mode != major.Green || u.Swept:
		return false
	case u.Phase == major.Done && !u.Back:
		return u.Return != nil && !u.Return.Open
	case u.Phase == major.Done, u.Phase == major.GivenUp:
		return !u.Back || u.Whole
	}
	return false
}

// sweepNow is sweepBlue with s.asked held.
func (s *Service) sweepNow(ctx context.Context) error {
	u, err := Read(s.Layout)
	if err != nil || !leaves(u) || s.filling.Load() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	_, leads := s.leads()
	switch returned := u.Phase == major.Done && u.Back; {
	case returned && leads != nil:
		return nil
	case returned:
		err = bluegreen.Leave(ctx, s.Server.SessionIn)
	case u.Phase == major.Done || u.Back: // the group has the new cluster
		err = s.backPair(u).Sweep(ctx, leads == nil)
	default:
		err = s.pair(u).Sweep(ctx, leads == nil)
	}
	if err != nil || leads != nil {
		return err
	}
	if u.Return != nil && u.Phase == major.Done {
		return s.changeReturn(func(u *major.Upgrade, _ *major.Return) { u.Swept = true })
	}
	u.Swept = true
	return s.Save(u)
}
