package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/lease"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/agent/preset"
	"github.com/coteriedb/coterie/internal/agent/recordguard"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// SealTimeout bounds how long a member takes to answer a seal; a candidate asks again.
const SealTimeout = 5 * time.Second

// sealer is the only place where this node's promise and its source of WAL change, one at a time. So no stream of an
// older epoch can begin AFTER a promise was given (S4).
type sealer struct {
	self     ag.ReplicaID
	marks    *marks.Marks
	instance Instance
	keeper   Keeper
	upstream Upstream
	lease    *lease.Lease
	log      *slog.Logger
	guard    *recordguard.Guard

	checked    func() bool   // the copy was checked: it is as far as the group last saw it
	distrusted func() bool   // the copy may hold the longest log, but must not be promoted
	turn       chan struct{} // holds one token; only its holder may change promise or source
	readers    readers
}

// readers is whether replay wins over this node's readers. It does from the first seal of an epoch until a replica
// leads, because one long read could delay a promotion without bound. The setting is sent to PostgreSQL in the
// background, and no seal waits for it.
type readers struct {
	lose atomic.Bool // as it should be
	mu   sync.Mutex  // guards told, and is held while PostgreSQL gets the setting
	told *bool       // as this agent last told PostgreSQL; nil: not yet
	work sync.WaitGroup
}

// readersLose sets whether replay wins over readers.
func (s *sealer) readersLose(on bool) {
	if s.readers.lose.Swap(on) == on && on {
		return
	}
	s.readers.work.Go(func() {
		s.readers.mu.Lock()
		defer s.readers.mu.Unlock()
		lose := s.readers.lose.Load() // as it should be by now
		if s.readers.told != nil && *s.readers.told == lose {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), SealTimeout)
		defer cancel()
		tell := s.instance.RestoreConflicts
		if lose {
			tell = s.instance.EndConflicts
		}
		if err := tell(ctx); err != nil {
			s.log.Warn("replay and readers are not told who wins", "readers_lose", lose, "err", err)
			return
		}
		s.readers.told = &lose
	})
}

func (s *sealer) enter(ctx context.Context) error {
	select {
	case <-s.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another seal or change of source is under way: %w", ctx.Err())
	}
}

func (s *sealer) leave() { s.turn <- struct{}{} }

// follow points the upstream at the leader of an epoch, unless a later one was promised. That it leads MUST be on disk
// BEFORE WAL is taken from it: a store that tells two stories may name another leader of the epoch later, which lacks
// what the first one acknowledged by this copy (docs/internals/safety.md, "Untrusted store").
func (s *sealer) follow(ctx context.Context, leader ag.Replica, e ag.Epoch) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	promised, err := s.marks.Promised()
	if err != nil {
		return err
	}
	if e < promised {
		return fmt.Errorf("epoch %d was promised to a candidate; WAL of epoch %d is not taken", promised, e)
	}
	if err := s.guard.Pin(e, leader.ID, s.marks.SetSeen); err != nil {
		return err
	}
	if e > promised {
		if err := s.marks.SetPromise(marks.Promise{Epoch: e, To: leader.ID}); err != nil { // no candidate of this epoch is sealed from now on
			return err
		}
	}
	promised, err = s.marks.Promised()
	assert.That(err != nil || promised >= e, "WAL of epoch %d is to be taken, and epoch %d is what was promised", e, promised)
	fault.Point("follow.promised") // the promise is on disk; the source is not changed
	s.upstream.Follow(leader, e)
	return nil
}

// Seal answers a candidate. Its order: the promise MUST be on disk BEFORE older sources are closed. A server that still
// leads an older epoch is fenced. The walreceiver has ended BEFORE the end of WAL is read. The report stays true until
// a leader of that epoch or a later one feeds this node (docs/internals/safety.md, "Seal").
func (s *sealer) Seal(ctx context.Context, req SealRequest) (ag.SealReport, error) {
	ctx, cancel := context.WithTimeout(ctx, SealTimeout)
	defer cancel()
	if err := s.enter(ctx); err != nil {
		return ag.SealReport{}, err
	}
	defer s.leave()
	if !s.checked() {
		return ag.SealReport{}, errNotChecked
	}
	promised, err := s.marks.Promise()
	if err != nil {
		return ag.SealReport{}, err
	}
	switch to := promised.To; {
	case req.Epoch < promised.Epoch:
		return ag.SealReport{}, fmt.Errorf("epoch %d was already promised; %s asks for %d", promised.Epoch, req.Candidate, req.Epoch)
	case req.Epoch == promised.Epoch && to != "" && to != req.Candidate:
		return ag.SealReport{}, fmt.Errorf("epoch %d was already promised to %s; %s asks for it, too: the quorum's store shows them two records", req.Epoch, to, req.Candidate)
	case req.Epoch > promised.Epoch || to == "":
		if err := s.marks.SetPromise(marks.Promise{Epoch: req.Epoch, To: req.Candidate}); err != nil {
			return ag.SealReport{}, err
		}
	}
	fault.Point("seal.promised") // the promise is on disk; the sources of older epochs are open
	if err := s.upstream.Seal(ctx); err != nil {
		return ag.SealReport{}, fmt.Errorf("close older streams: %w", err)
	}
	fault.Point("seal.closed") // older sources are closed; the candidate has no answer
	if armed := s.lease.Armed(); armed != 0 && armed < req.Epoch {
		s.lease.Void() // the gate first: it takes no time
		if err := s.keeper.Fence(ctx, fmt.Sprintf("%s seals epoch %d", req.Candidate, req.Epoch)); err != nil {
			return ag.SealReport{}, fmt.Errorf("fence before sealing: %w", err)
		}
		s.lease.SetDisarmed()
	}
	up := s.upstream.Status()
	assert.That(up.Source == "" || up.Epoch >= req.Epoch, "WAL of epoch %d of %s is taken after the seal of epoch %d", up.Epoch, up.Source, req.Epoch)
	return s.report(ctx, req)
}

// report waits until the walreceiver has ended, then reads the end of WAL.
func (s *sealer) report(ctx context.Context, req SealRequest) (ag.SealReport, error) {
	c, err := s.marks.Copy()
	if err != nil {
		return ag.SealReport{}, err
	}
	r := ag.SealReport{Member: s.self, Copy: c.Copy, Epoch: req.Epoch}
	if s.instance.Data() != ag.DataPresent {
		return r, fmt.Errorf("this node's data directory is %s", s.instance.Data())
	}
	inside, err := s.instance.InsideCopy()
	if err != nil {
		return r, fmt.Errorf("read which copy is in the data directory: %w", err)
	}
	var known bool
	if r.Copy, known = c.Is(inside); !known { // it was put there behind the agent's back
		return r, fmt.Errorf("the data directory holds copy %s, and this node's is %s", inside, c.Copy)
	}
	for {
		obs, err := s.instance.Observe(ctx)
		gone := err == nil && !obs.Receiving
		switch {
		case err != nil: // down, or no answer: the files tell
			if r.Position, err = s.instance.EndOfWAL(ctx); err != nil {
				return r, fmt.Errorf("read the end of WAL: %w", err)
			}
			r.Promotable = !s.distrusted() // once it is started
			return r, nil
		case !obs.InRecovery:
			return r, fmt.Errorf("the server here is not in recovery")
		case gone: // WAL that is received but not replayed counts; replay may have ended within a record and is not waited for
			s.readersLose(true)
			r.Position, err = s.instance.EndOfWAL(ctx)
			r.Promotable, r.Late = err == nil && !s.distrusted(), late(obs, r.Position)
			return r, err
		}
		if retry.Sleep(ctx, 5*time.Millisecond) != nil {
			return r, fmt.Errorf("the walreceiver did not end: %w", ctx.Err())
		}
	}
}

// late reports whether a standby with so much WAL would have to replay for long before it is promoted.
func late(o Observation, end ag.Position) bool {
	return o.InRecovery && end.LSN > o.Replay+ag.LateReplay
}

// late returns the members that are not known to be ready: they report to have long to replay, or no standby that runs.
func (a *Agent) late(v ag.View) (out []ag.ReplicaID) {
	if snap := a.snapshot.Load(); snap != nil {
		for _, r := range v.Group.Replicas {
			if s := snap.Statuses[r.ID]; r.ID != v.Self && (s.Late || s.Server != ag.ServerRecovery) {
				out = append(out, r.ID)
			}
		}
	}
	return out
}

type sealAnswer struct {
	member ag.ReplicaID
	epoch  ag.Epoch
	report ag.SealReport
	err    error
}

// Pauses after a seal that was refused. The pause doubles each time, up to mostSealPause: a member that is being
// started is asked again soon, and one that stays away costs little, however long a candidate waits for it.
const (
	sealPause     = 100 * time.Millisecond
	mostSealPause = time.Second
)

// unsealed is a member that did not give its seal of an epoch.
type unsealed struct {
	epoch ag.Epoch
	pause time.Duration
	until time.Duration // boottime before which it is not asked again
	said  string        // its last error, which is logged when it changes
}

// askSeals asks each member that has not answered, is not being asked, and did not refuse a moment ago. This node's own
// seal takes the same way.
func (a *Agent) askSeals(ctx context.Context, v ag.View, act ag.AskSeals) {
	for _, id := range act.Members {
		if _, have := a.seals[id]; have || a.sealing[id] == act.Epoch {
			continue
		}
		if u := a.unsealed[id]; u.epoch == act.Epoch && boottime.Now() < u.until {
			continue
		}
		r, ok := v.Group.Replica(id)
		if !ok {
			continue
		}
		a.sealing[id] = act.Epoch
		a.children.Go(func() {
			call, cancel := context.WithTimeout(ctx, SealTimeout)
			defer cancel()
			req := SealRequest{Epoch: act.Epoch, Candidate: a.cfg.Self}
			ans := sealAnswer{member: id, epoch: act.Epoch}
			if id == a.cfg.Self {
				ans.report, ans.err = a.Seal(call, req)
			} else {
				ans.report, ans.err = a.cfg.Peers.Seal(call, r, req)
			}
			if ans.err == nil && (ans.report.Member != id || ans.report.Epoch != act.Epoch) {
				ans.err = fmt.Errorf("it answered for %s in epoch %d", ans.report.Member, ans.report.Epoch)
			}
			select {
			case a.reports <- ans:
			case <-ctx.Done(): // no loop reads them any more
			}
		})
	}
}

func (a *Agent) sealAnswered(ans sealAnswer) {
	if a.sealing[ans.member] == ans.epoch {
		delete(a.sealing, ans.member)
	}
	if ans.err != nil {
		a.noSeal(ans)
		return
	}
	delete(a.unsealed, ans.member)
	a.log.Info("sealed", "member", ans.member, "epoch", ans.epoch, "position", ans.report.Position.String())
	a.seals[ans.member] = ans.report
}

// noSeal notes when the member is asked again.
func (a *Agent) noSeal(ans sealAnswer) {
	u := a.unsealed[ans.member]
	if u.epoch != ans.epoch {
		u = unsealed{epoch: ans.epoch}
	}
	level := slog.LevelDebug
	if u.said != ans.err.Error() {
		level = slog.LevelInfo
	}
	u.pause = min(max(2*u.pause, sealPause), mostSealPause)
	u.until, u.said = boottime.Now()+u.pause, ans.err.Error()
	a.unsealed[ans.member] = u
	a.log.Log(context.Background(), level, "no seal", "member", ans.member, "epoch", ans.epoch, "again_in", u.pause, "err", ans.err)
}

// promotion returns a job that promotes this node's server.
func (a *Agent) promotion(v ag.View, act ag.Promote) func(context.Context) (func(), error) {
	from, at := v.Record.Epoch.From, v.Local.Position
	return func(ctx context.Context) (func(), error) { return a.promote(ctx, act, from, at) }
}

// replayRest has the chosen server replay the rest of its log BEFORE the keeper gets a deadline for it. The claim is
// renewed only when replay moves, and one record may take longer than the lease. Without a deadline another candidate
// may bid more meanwhile; with one the server would be killed, and begin again where it began, each time.
func (a *Agent) replayRest(ctx context.Context, end ag.Position, tli ag.Timeline) error {
	a.showProgress("replaying")
	if err := a.cfg.Instance.CatchUp(ctx, end, tli); err != nil {
		return fmt.Errorf("replay before the promotion: %w", err)
	}
	return nil
}

// protect puts the setting in force with which the epoch of a promotion begins.
func (a *Agent) protect(ctx context.Context, act ag.Promote) error {
	a.showProgress("protecting")
	if a.preset.Is(ctx, act.Epoch, act.Sync) {
		return nil
	}
	if err := a.preset.Put(ctx, act.Epoch, act.Sync); err != nil {
		return fmt.Errorf("put the synchronous setting in force before promotion: %w", err)
	}
	return nil
}

// PrepareTakeover answers the primary that prepares a planned failover to this node; the endpoint calls it. It puts the
// synchronous setting of the next epoch before the server now. In recovery the setting has no effect, and the promotion
// need not wait for it.
func (a *Agent) PrepareTakeover(ctx context.Context, req TakeoverRequest) error {
	v := a.view.Load()
	switch {
	case a.cfg.Instance == nil || v == nil:
		return fail.Refusedf("it has no data, or has just started")
	case v.Record.Epoch.Epoch != req.Epoch || v.Record.Epoch.Leader != req.From:
		return fail.Refusedf("it knows of epoch %d of %s", v.Record.Epoch.Epoch, v.Record.Epoch.Leader)
	case v.Local.Server != ag.ServerRecovery || v.Local.Source != req.From:
		return fail.Refusedf("its server is %s and does not follow %s; try again when it does", v.Local.Server, req.From)
	case v.Local.Quarantine != "":
		return fail.Refusedf("its copy is quarantined: %s", v.Local.Quarantine)
	case v.Local.Health.Database != "":
		return fail.Refusedf("%s; coterie replica seed %s --full, or SEED REPLICA, makes its copy anew", v.Local.Health.Database, v.Self)
	case v.Busy != "":
		return fail.Refusedf("it is busy: %s; try again when that has ended", v.Busy)
	}
	if err := a.seal.enter(ctx); err != nil {
		return err
	}
	defer a.seal.leave()
	promised, err := a.cfg.Marks.Promised()
	if err != nil || promised > req.Epoch {
		return errors.Join(fmt.Errorf("it has promised epoch %d", promised), err)
	}
	return a.preset.Put(ctx, req.Epoch+1, v.FirstSync())
}

// presets returns what puts settings before this node's server in advance.
func (a *Agent) presets() *preset.Preset {
	return preset.New(preset.Server{
		Put: func(ctx context.Context, e ag.Epoch, s ag.Sync) error {
			return a.cfg.Instance.SetSync(ctx, s.P, s.N, e)
		},
		InForce: func(ctx context.Context) (ag.Epoch, ag.Sync, error) {
			o, err := a.cfg.Instance.Observe(ctx)
			return o.SyncEpoch, ag.Sync{P: o.P, N: o.N}, err
		},
	}, a.log)
}

// expectPromotion puts the setting of an epoch that this node may soon lead before its server, in the background.
func (a *Agent) expectPromotion(v ag.View) {
	if e, s, ok := v.Expected(); ok && a.cfg.Instance != nil {
		a.preset.Expect(e, s)
	}
}

// departure is how the readers of a node leave before it is promoted as planned.
type departure struct {
	op     atomic.Pointer[string] // the request for the failover in which the node was asked; nil: never
	mu     sync.Mutex             // guards what follows
	cancel context.CancelFunc
	ended  chan struct{} // nil: none is under way
}

// begin returns false if a release is under way. The caller calls end.
func (r *departure) begin(cancel context.CancelFunc) (end func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return nil, false
	}
	r.cancel, r.ended = cancel, make(chan struct{})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(r.ended)
		r.ended = nil
	}, true
}

// stop ends a release under way and waits until it has ended.
func (r *departure) stop() {
	r.mu.Lock()
	cancel, ended := r.cancel, r.ended
	r.mu.Unlock()
	if ended != nil {
		cancel()
		<-ended
	}
}

// ReleaseReaders answers the primary that hands over to this node; the endpoint calls it. Readers of this node's server
// continue elsewhere, and no reader comes here while the request for the failover stands. It returns when those that
// can be moved have left, or at the end of its budget.
func (a *Agent) ReleaseReaders(ctx context.Context, req TakeoverRequest) error {
	ctx, cancel := context.WithTimeout(ctx, releaseBudget)
	defer cancel()
	end, ok := a.readers.begin(cancel)
	if !ok {
		return errors.New("it releases its readers already")
	}
	defer end()
	v := a.view.Load() // AFTER begin: a promotion that the view does not show has not stopped this yet, and will
	switch {
	case v == nil || v.Record.Epoch.Epoch != req.Epoch || v.Record.Epoch.Leader != req.From || v.Local.Server != ag.ServerRecovery:
		return fmt.Errorf("this node does not follow %s in epoch %d", req.From, req.Epoch)
	case !plannedTo(v):
		return errors.New("this node knows of no planned failover to it")
	}
	a.readers.op.Store(&v.Op.ID)
	a.Wake()
	for a.takesReaders() { // BEFORE readers leave: none comes back
		if err := retry.Sleep(ctx, time.Millisecond); err != nil {
			return errors.New("its routes did not change in time")
		}
	}
	a.cfg.Sessions.ContinueReaders(ctx)
	return nil
}

// takesReaders reports whether readers may come to this node's server, by its own routes.
func (a *Agent) takesReaders() bool {
	r := a.routes.Load()
	if r == nil {
		return false
	}
	t, _ := r.Target(a.cfg.Self)
	return t.Readable
}

// releasing reports whether this node takes no readers because it is about to be promoted as planned.
func (a *Agent) releasing(v *ag.View) bool {
	op := a.readers.op.Load()
	return op != nil && *op == v.Op.ID && plannedTo(v)
}

// plannedTo reports whether a planned failover to this node is requested in the present epoch.
func plannedTo(v *ag.View) bool {
	return v.Op.Kind == ag.OpPlanned && v.Op.To == v.Self && v.Op.Epoch == v.Record.Epoch.Epoch
}
