package majors

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/bluegreen"
	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
)

// The bounds of a way back: for how long the old cluster follows if nothing else is said, and at most; how much WAL is
// kept for it at most, and which part of the free disk.
const (
	returnDefault = 24 * time.Hour
	returnMost    = 7 * 24 * time.Hour
	returnWAL     = 16 << 30
	returnPart    = 4
)

// The pauses between two looks at a cluster that follows, and between two notes of how far it is; how long the end of
// one may take.
const (
	returnAgain  = 500 * time.Millisecond
	returnTold   = 5 * time.Second
	returnLeaves = 2 * time.Minute
)

// returnWithin is for how long a way back is to be kept open; 0: it is not.
func returnWithin(asked *time.Duration) time.Duration {
	if asked == nil {
		return returnDefault
	}
	return *asked
}

// opened returns the way back as it is when the group passes to the new cluster, which keeps what was held for it.
func opened(u major.Upgrade, h bluegreen.Held, room int64) *major.Return {
	r := *u.Return
	if r.Within == 0 {
		return &r
	}
	if h.Why != nil {
		r.Why = h.Why.Error()
		return &r
	}
	r.Open, r.Epoch, r.Until = true, u.Epoch+1, time.Now().Add(r.Within).UTC().Truncate(time.Second)
	r.Most, r.Print, r.Slots = min(returnWAL, room/returnPart), h.Print, h.Slots
	return &r
}

// backPair returns the two clusters of an upgrade whose old one follows the new one.
func (s *Service) backPair(u major.Upgrade) *bluegreen.Pair {
	dir := filepath.Join(s.Layout.Run, "back")
	return &bluegreen.Pair{
		Back: true, Blue: s.Server.SessionIn, Sockets: s.Layout.Sockets(), Install: side(u.From).Install, Data: u.From.Data, Work: dir, HBA: filepath.Join(dir, "hba.conf"),
		LogFile: filepath.Join(s.Layout.Log(), major.BlueLog), Superuser: s.superuser(), Logger: s.Logger,
	}
}

// changeReturn changes the state of the way back, if there is one.
func (s *Service) changeReturn(change func(u *major.Upgrade, r *major.Return)) error {
	s.file.Lock()
	defer s.file.Unlock()
	u, err := Read(s.Layout)
	if err != nil || u.Return == nil || u.Phase != major.Done {
		return err
	}
	r := *u.Return
	u.Return = &r
	change(&u, &r)
	return s.Save(u)
}

// keepReturn has the old cluster follow the new one while the way back is open, and has the group pass back when that
// was asked for. When ctx ends, the server of the old cluster ends, and the next agent goes on.
func (s *Service) keepReturn(ctx context.Context) {
	u, err := Read(s.Layout)
	if err != nil || u.Phase != major.Done || u.Return == nil || s.filling.Load() {
		return
	}
	r := &returning{Service: s, pair: s.backPair(u)}
	defer func() { _ = r.pair.End(false) }()
	if u.Return.ToLeave() && s.leaving < maxLeaves { // the agent ended before
		s.leaving++
		if err := r.leave(ctx, u); err != nil {
			s.Logger.Warn("the old cluster is not as it was left", "err", err)
		}
		return
	}
	if !u.Return.Open {
		return
	}
	for r.turn(ctx) && retry.Sleep(ctx, returnAgain) == nil {
	}
}

// maxLeaves is how often an agent tries to end the server of an old cluster in order.
const maxLeaves = 5

// returning is an old cluster that follows.
type returning struct {
	*Service
	pair      *bluegreen.Pair
	following bool
	starts    int
	printed   time.Time // the last look at the definitions
	told      time.Time
}

// turn takes the next step, and reports whether the way back is still open.
func (r *returning) turn(ctx context.Context) bool {
	u, err := Read(r.Layout)
	if err != nil {
		r.Logger.Warn("the way back of the major upgrade waits", "err", err)
		return true
	}
	f := r.facts(ctx, u)
	switch step, why := u.NextReturn(f); step {
	case major.ReturnRest:
		return false
	case major.ReturnEnd:
		r.end(ctx, u, why)
		return ctx.Err() != nil
	case major.ReturnAgain:
		err = r.changeReturn(func(_ *major.Upgrade, b *major.Return) { b.Epoch = f.Record.Epoch.Epoch })
	case major.ReturnFollow:
		r.starts++
		err = r.follow(ctx, u)
	case major.ReturnSwitch:
		return r.passBack(ctx, u)
	case major.ReturnWait:
		err = r.tell(f)
	}
	if err != nil && ctx.Err() == nil {
		r.Logger.Warn("the way back of the major upgrade waits", "err", err)
	}
	return true
}

// facts looks at both clusters. A look that fails leaves the rest as it is: the bounds of WAL and disk are looked at
// first.
func (r *returning) facts(ctx context.Context, u major.Upgrade) (f major.ReturnFacts) {
	f = major.ReturnFacts{Now: time.Now(), Free: -1, Lag: math.MaxInt64, Runs: r.following && r.pair.Runs(), Starts: r.starts}
	v := r.View()
	if v == nil || !v.Quorum {
		return f
	}
	f.Record = v.Record
	if f.Serves = v.Role() == ag.RolePrimary && v.Local.Server == ag.ServerWritable; !f.Serves || u.Return == nil {
		return f
	}
	f.Free = min(free(filepath.Join(u.To.Data, "pg_wal")), free(u.From.Data))
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	kept, slots, err := r.pair.Retained(ctx)
	if err == nil {
		if f.Kept = kept; slots != u.Return.Slots {
			f.Failed = "a replication slot of the old cluster is gone: somebody has dropped it"
		}
	}
	if err == nil && f.Runs && f.Failed == "" {
		err = r.look(ctx, u, &f)
	}
	if err != nil {
		f.Lag = math.MaxInt64
		r.Logger.Debug("the way back of the major upgrade was not looked at", "err", err)
	}
	return f
}

func (r *returning) look(ctx context.Context, u major.Upgrade, f *major.ReturnFacts) error {
	if time.Since(r.printed) > printAgain || u.Return.Asked {
		databases, err := r.pair.Databases(ctx)
		if err != nil {
			return err
		}
		now, err := r.pair.Fingerprint(ctx, databases)
		if err != nil {
			return err
		}
		r.printed = time.Now()
		switch err := bluegreen.Changed(u.Return.Print, now); {
		case errors.Is(err, bluegreen.ErrChanged):
			f.Changed = "definitions of tables, roles or other objects have changed since the group passed"
			return nil
		case err != nil:
			f.Changed = err.Error()
			return nil
		}
	}
	p, err := r.pair.Progress(ctx)
	if err == nil {
		f.Lag, f.Failed, r.starts = p.Lag, p.Failed, 0
	}
	return err
}

// tell notes how far the old cluster is.
func (r *returning) tell(f major.ReturnFacts) error {
	if time.Since(r.told) < returnTold {
		return nil
	}
	r.told = time.Now()
	text := "the old cluster does not follow at the moment"
	if f.Lag != math.MaxInt64 {
		text = fmt.Sprintf("the old cluster follows: %d kB of WAL are to come", f.Lag>>10)
	}
	return r.changeReturn(func(_ *major.Upgrade, b *major.Return) {
		b.Progress = fmt.Sprintf("%s; %d MB of WAL are kept for it, of %d at most", text, f.Kept>>20, b.Most>>20)
	})
}

// start starts the server of the old cluster, which only this node's agents reach.
func (r *returning) start(ctx context.Context, u major.Upgrade) error {
	if pids := (pgupgrade.Job{Old: side(u.From)}).Running(); len(pids) > 0 {
		return fmt.Errorf("a server still runs in %s (processes %v)", u.From.Data, pids)
	}
	if err := os.MkdirAll(r.pair.Work, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(r.pair.HBA, []byte("local all all trust\n"), 0o600); err != nil {
		return err
	}
	if err := ignoreMissing(durable.Remove(filepath.Join(u.From.Data, "standby.signal"))); err != nil {
		return err
	}
	return r.pair.Start(ctx, max(u.Return.Slots, 1))
}

// follow has the old cluster follow.
func (r *returning) follow(ctx context.Context, u major.Upgrade) error {
	r.following = false
	if err := r.pair.End(false); err != nil {
		return err
	}
	if err := r.start(ctx, u); err != nil {
		return err
	}
	fault.Point("return.started") // the server of the old cluster runs; it may not follow yet
	n, err := r.pair.Follow(ctx)
	if err == nil && n != u.Return.Slots {
		err = fmt.Errorf("%d of %d databases of the old cluster can follow", n, u.Return.Slots)
	}
	if err != nil {
		return err
	}
	r.following = true
	fault.Point("return.following") // the old cluster follows
	r.Logger.Info("the old cluster follows the new one, for a way back that loses nothing", "until", u.Return.Until)
	return nil
}

// passBack has the group pass to the old cluster, and reports whether the way back is still open.
func (r *returning) passBack(ctx context.Context, u major.Upgrade) bool {
	pass := passage{greenNode: &greenNode{Service: r.Service, pair: r.pair}}
	err := r.trySwitch(ctx, u, &pass)
	switch {
	case ctx.Err() != nil || pass.unknown != nil:
		return false
	case pass.over && pass.u.Phase == major.Done:
		r.Note("the group has passed back to the old cluster", fmt.Sprintf("PostgreSQL %s in place of %s", pass.u.To.Version, pass.u.From.Version))
		return false
	case pass.over:
		r.Note("the way back of the major upgrade has ended", pass.u.Why)
		return false
	case errors.Is(err, bluegreen.ErrChanged):
		r.end(ctx, u, err.Error()+", which the old cluster does not get")
		return false
	}
	err = errors.Join(err, pass.failed)
	r.following = false // it may be halted, and its server may have ended: it goes on where it was
	r.Logger.Warn("the group did not pass back to the old cluster", "err", err)
	if err := r.changeReturn(func(_ *major.Upgrade, b *major.Return) { b.Asked, b.Why = false, fmt.Sprint(err) }); err != nil {
		r.Logger.Warn("the way back of the major upgrade waits", "err", err)
	}
	return true
}

func (r *returning) trySwitch(ctx context.Context, u major.Upgrade, pass *passage) (err error) {
	if pass.u, err = u.ReturnWhole(time.Now().UTC()); err != nil {
		return err
	}
	if err := fixed(r.Layout.Dir); err != nil {
		return err
	}
	databases, err := r.pair.Databases(ctx)
	if err != nil {
		return err
	}
	if err := r.pair.Carried(ctx, databases); err != nil {
		return err
	}
	if err := r.pair.MakeReady(ctx); err != nil {
		return err
	}
	if err := r.checkpoint(ctx); err != nil {
		return err
	}
	fault.Point("return.ready") // the old cluster has what it can have while clients go on
	return r.Switch(ctx, agent.ClusterSwitch{
		Quiet: func(ctx context.Context, x ag.LSN) (err error) {
			pass.next, err = r.pair.Finish(ctx, x.String(), bluegreen.Shape{Print: u.Return.Print, Databases: databases})
			return err
		},
		Pass: pass.do,
	})
}

// end ends the way back: what the new cluster keeps for it goes first, then the old one stops following, and its server
// ends in order.
func (r *returning) end(ctx context.Context, u major.Upgrade, why string) {
	r.Logger.Warn("the way back that loses nothing has ended", "because", why)
	err := r.changeReturn(func(u *major.Upgrade, b *major.Return) {
		b.Open, b.Asked, b.Why, b.Progress, u.Swept = false, false, why, "", false
	})
	if err != nil {
		r.Logger.Warn("the end of the way back was not stored", "err", err)
		return
	}
	r.Note("the way back of the major upgrade has ended", why)
	fault.Point("return.ended") // the way back is over; the new cluster may still keep WAL for it
	if err := r.sweepBlue(ctx); err != nil {
		r.Logger.Debug("what the way back has left is still there", "err", err)
	}
	if err := r.leave(ctx, u); err != nil {
		r.Logger.Warn("the old cluster is not as it was left", "err", err)
	}
}

// leave has the old cluster follow no more, and its server end in order.
func (r *returning) leave(ctx context.Context, u major.Upgrade) error {
	ctx, cancel := context.WithTimeout(ctx, returnLeaves)
	defer cancel()
	if !r.pair.Runs() {
		if err := r.start(ctx, u); err != nil {
			return err
		}
	}
	err := bluegreen.Leave(ctx, r.pair.Green)
	if err = errors.Join(err, r.pair.End(err == nil)); err != nil {
		return err
	}
	return r.changeReturn(func(_ *major.Upgrade, b *major.Return) { b.Left = true })
}

// wish notes what an administrator wants of the way back that is open: that it is taken, or that it ends.
func (s *Service) wish(was major.Upgrade, end bool) error {
	if !end && s.Status().Required > 0 {
		return fail.Refusedf("commits wait for at least %d of the other replicas, and none has a copy of the old cluster as it is when the group passes back. For the time of the way back: "+
			"ALTER AVAILABILITY GROUP %s SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 0)", s.Status().Required, s.Status().Group)
	}
	if was.Return == nil || !was.Return.Open {
		why := "there was none"
		if was.Return != nil && was.Return.Why != "" {
			why = was.Return.Why
		}
		return fail.Refusedf("no way back that loses nothing is open: %s", why)
	}
	return s.changeReturn(func(_ *major.Upgrade, b *major.Return) { b.Asked, b.Ended, b.Why = !end, end, "" })
}
