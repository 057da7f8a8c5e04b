package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Budgets of the long actions. A promotion replays what it received first, so its budget is long.
const (
	startBudget   = 30 * time.Second
	fenceBudget   = 10 * time.Second
	promoteBudget = 10 * time.Minute
	syncBudget    = 10 * time.Second
	rewindBudget  = 30 * time.Minute
	seedBudget    = 24 * time.Hour
	startBackoff  = 2 * time.Second
)

// job is a long action, which the worker performs for one action of a plan.
type job struct {
	name   string
	epoch  ag.Epoch // the job is cancelled when the record leaves this epoch; 0: never
	budget time.Duration
	// do runs on the worker. The loop runs what it returns, with or without an error, when the job has ended.
	do func(ctx context.Context) (applied func(), err error)
}

// jobOf returns the job of a long action. The loop calls it; do runs on the worker and MUST NOT read what the loop
// owns.
func (a *Agent) jobOf(v ag.View, act ag.Action) (job, bool) {
	e := v.Record.Epoch.Epoch
	switch act := act.(type) { //nolint:gochecksumtype // the other actions are short: act performs them
	case ag.Stop:
		return job{"stop", e, stopBudget, a.stopStuck}, true
	case ag.Promote:
		return job{"promote", act.Epoch, promoteBudget, a.promotion(v, act)}, true
	case ag.SetSync:
		return job{"sync", e, syncBudget, func(ctx context.Context) (func(), error) { return a.setSync(ctx, v, act.Sync) }}, true
	case ag.ProveSync:
		return job{"sync", e, syncBudget, a.settleSync(v)}, true
	case ag.Rewind:
		return job{"rewind", e, rewindBudget, func(ctx context.Context) (func(), error) { return a.rewind(ctx, v, act.Source) }}, true
	case ag.Seed:
		return job{"seed", e, seedBudget, func(ctx context.Context) (func(), error) { return a.reseed(ctx, v, act.Source) }}, true
	case ag.HandOver:
		return job{"hand-over", e, handOverBudget, a.carryOut(v, act.Op)}, true
	}
	return job{}, false
}

// act performs one action of a plan. Short actions are done here; the worker does the long ones (jobOf).
func (a *Agent) act(ctx context.Context, v ag.View, act ag.Action) {
	if a.cfg.Instance == nil && !votes(act) {
		return
	}
	switch act := act.(type) {
	case ag.Fence:
		a.fence(act.Reason, v.Record.Epoch.Epoch)
	case ag.EndStreams:
		a.endStreams(ctx, act.Members)
	case ag.Withhold:
		a.voter.Withhold(act.Epoch)
		a.pinger.NoteDead(v.Record.Epoch.Leader)
		a.Wake() // the vote may be due at once
	case ag.Acknowledge:
		a.voter.Resume()
	case ag.Start:
		a.start(ctx)
	case ag.AskSeals:
		a.askSeals(ctx, v, act)
	case ag.Follow:
		a.follow(ctx, v, act)
	case ag.Hold:
		a.cfg.Upstream.Hold()
	case ag.Prepare:
		a.prepare(ctx, v, act.Op)
	case ag.Stop, ag.Promote, ag.SetSync, ag.ProveSync, ag.Rewind, ag.Seed, ag.HandOver:
		j, ok := a.jobOf(v, act)
		assert.That(ok, "no job for action %T", act)
		a.work(ctx, j)
	}
}

// votes reports whether an action is one of a witness. Others are planned for a witness that was removed, because the
// configuration does not say any more that it holds no data.
func votes(act ag.Action) bool {
	switch act.(type) { //nolint:gochecksumtype // the others need a server
	case ag.Withhold, ag.Acknowledge:
		return true
	}
	return false
}

// stopStuck stops a standby that cannot read on. A later plan starts it again.
func (a *Agent) stopStuck(ctx context.Context) (func(), error) {
	_, err := a.cfg.Keeper.Stop(ctx, stopServer)
	return a.stuck.restarted, err
}

// settleSync returns a job that proves the setting in force. A setting of unknown outcome is put before PostgreSQL
// again first: otherwise the proof would be about whatever setting PostgreSQL has.
func (a *Agent) settleSync(v ag.View) func(context.Context) (func(), error) {
	unsure, voided := a.tried != nil || a.rewrite, a.voided
	return func(ctx context.Context) (func(), error) {
		if unsure {
			if applied, err := a.setSync(ctx, v, v.Local.Sync); err != nil {
				return applied, err
			}
		}
		return a.proveSync(ctx, v, voided)
	}
}

// carryOut returns a job that hands the leadership over, and reports how that ended.
func (a *Agent) carryOut(v ag.View, op ag.Op) func(context.Context) (func(), error) {
	rev, generation := a.snapshot.Load().OpRev, a.generation+1
	return func(ctx context.Context) (func(), error) {
		applied, err := a.handOver(ctx, v, op, generation)
		o := Outcome{Op: op.ID}
		if err != nil {
			o.Error = err.Error()
			a.givenUp(v, op.To, err)
		}
		a.children.Go(func() { a.endOp(rev, o) }) // the next plan does not wait for it
		return func() {
			a.prep.ready = false // once is enough, however long it takes until the request is closed
			if applied != nil {
				applied()
			}
		}, err
	}
}

// fence makes writes impossible here. It shuts the gate BEFORE it fences the server, because the gate takes no time.
func (a *Agent) fence(reason string, now ag.Epoch) {
	a.cancelTask("fenced")
	a.fencing = true // until no process of the server is left: no renewal may open the gate again
	a.lease.Void()
	a.publishClosed(reason)
	fault.Point("fence.shut") // the gate is shut; the server runs
	ctx, cancel := context.WithTimeout(context.Background(), fenceBudget)
	defer cancel()
	if err := a.cfg.Keeper.Fence(ctx, reason); err != nil {
		a.log.Error("fence not confirmed; the keeper's deadline still holds", "err", err)
		return
	}
	fault.Point("fence.fenced") // the server is fenced; the agent believes itself armed
	a.running = running{}
	a.lease.SetDisarmed()
	a.log.Warn("fenced", "reason", reason, "epoch", now)
}

// start starts the server as a standby, no more often than backoff allows. The worker does it: preparing a start reads
// files and runs programs, which may take seconds, and meanwhile the loop must keep a lease, a claim or a promotion
// alive.
func (a *Agent) start(ctx context.Context) {
	now := boottime.Now()
	if now < a.startRetry || now < a.cond.autopsy || a.task.Load() != nil {
		return // while it is not known why the last one ended, its storage may have lost a write
	}
	a.startRetry = now + a.backoff()
	if !a.mayStart() {
		return
	}
	a.cond.liveFrom = now
	a.generation++
	generation := a.generation
	a.work(ctx, job{"start", 0, startBudget, func(ctx context.Context) (func(), error) { return nil, a.cfg.Keeper.Start(ctx, generation) }})
}

func (a *Agent) follow(ctx context.Context, v ag.View, act ag.Follow) {
	leader, ok := v.Group.Replica(act.Leader)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := a.seal.follow(ctx, leader, act.Epoch); err != nil {
		a.log.Info("not following yet", "leader", act.Leader, "err", err)
		return
	}
	a.Wake()
}

// strayEvery is how often a primary looks for walsenders that its agent did not open. It looks at the instants of the
// heartbeats, for which the agent wakes anyway.
const strayEvery = 100 * time.Millisecond

// watchStrays holds every answer as soon as a walsender runs in a member's name that this agent did not open. The loop
// ends it (endStreams). If it ended by itself, its acknowledgements are doubtful all the same.
func (a *Agent) watchStrays(ctx context.Context) {
	for {
		if v := a.view.Load(); v == nil || !acknowledged(*v) {
			select {
			case <-ctx.Done():
				return
			case <-a.acknowledged:
			}
			continue
		}
		if retry.Sleep(ctx, boottime.UntilNext(strayEvery)) != nil {
			return
		}
		if found, err := a.cfg.Instance.Strays(ctx); err == nil && len(found) > 0 {
			a.suspect()
			a.Wake()
		}
	}
}

// acknowledged reports whether members acknowledge the commits of this node's server.
func acknowledged(v ag.View) bool {
	return v.Local.Server == ag.ServerWritable && (v.Local.Sync.N > 0 || v.Record.State.K > 0)
}

// suspect holds every answer until the setting is proven again.
func (a *Agent) suspect() {
	a.suspected.Add(1)
	a.cfg.Sessions.GateMoved()
}

// endStreams holds every answer from now on, and ends the walsenders of members that acknowledged twice, or in whose
// names another program did. Too few members may have acknowledged the last commits. So the setting is proven again,
// and its barrier flushed, BEFORE any answer leaves.
func (a *Agent) endStreams(ctx context.Context, members []ag.ReplicaID) {
	a.suspect()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, id := range members {
		a.log.Error("a walsender runs in the name of a member and is not the member's; answers are held, and all walsenders of that name are ended", "member", id)
		a.cfg.Downstream.Drop(id, "another walsender of its name runs")
		if err := a.cfg.Instance.EndWalsenders(ctx, id); err != nil {
			a.log.Error("walsenders not ended", "member", id, "err", err)
		}
	}
}

// promote carries out ag.Promote, whose doc states the order. from is where the chosen log ends, and at where it ends
// here.
func (a *Agent) promote(ctx context.Context, act ag.Promote, from, at ag.Position) (func(), error) {
	if !a.checked.Load() { // it may be older than the copy that was chosen
		return nil, errNotChecked
	}
	a.readers.stop() // readers that have not left are ended below
	if err := a.seal.enter(ctx); err != nil {
		return nil, err
	}
	defer a.seal.leave()
	promised, err := a.cfg.Marks.Promised()
	if err != nil {
		return nil, err
	}
	if promised > act.Epoch {
		return nil, fmt.Errorf("epoch %d was promised since", promised)
	}
	if promised < act.Epoch {
		if err := a.cfg.Marks.SetPromise(marks.Promise{Epoch: act.Epoch, To: a.cfg.Self}); err != nil {
			return nil, err
		}
	}
	fault.Point("promote.promised") // the promise is on disk; older sources are open
	if err := a.cfg.Upstream.Seal(ctx); err != nil {
		return nil, err
	}
	fault.Point("promote.sealed") // older sources are closed; readers are still here
	a.cfg.Sessions.CloseReaders("this replica is being promoted; the readers' place is on a secondary")
	if err := a.replayRest(ctx, from, act.TLI); err != nil {
		return nil, err
	}
	if err := a.protect(ctx, act); err != nil {
		return nil, err
	}
	fault.Point("promote.protected") // PostgreSQL has the synchronous setting; the keeper is not armed
	a.showProgress("arming")
	if err := a.arm(ctx, act.Epoch); err != nil {
		return nil, err
	}
	fault.Point("promote.armed") // the keeper is armed; no mark says that the promotion began
	began, err := a.cfg.Marks.Promoting()
	if err == nil {
		err = a.cfg.Marks.SetPromoting(began.Next(act.Epoch, act.TLI, at))
	}
	if err != nil {
		return nil, err
	}
	fault.Point("promote.marked") // the mark is on disk; PostgreSQL is still a standby
	a.showProgress("promoting")
	end, xids, err := a.cfg.Instance.Promote(ctx, act.TLI)
	if err != nil {
		return nil, fmt.Errorf("promote to timeline %d: %w", act.TLI, err)
	}
	fault.Point("promote.promoted") // PostgreSQL accepts writes; the record says PROMOTE
	a.showProgress("promoted")
	h, err := a.cfg.Instance.History(ctx, act.TLI)
	if err != nil {
		return nil, fmt.Errorf("read the history of timeline %d: %w", act.TLI, err)
	}
	return func() {
		a.endOfRec, a.timelines, a.xids = end, h, xids
		a.sync, a.tried = ag.Sync{P: act.Sync.P, N: act.Sync.N}, nil
	}, nil
}

// arm waits for a lease of the epoch, then gives its deadline to the keeper.
func (a *Agent) arm(ctx context.Context, e ag.Epoch) error {
	for {
		if l := a.lease.State(); l.Valid && l.Epoch == e {
			assert.That(a.lease.Armed() <= e, "to be armed for epoch %d after epoch %d", e, a.lease.Armed())
			if err := a.cfg.Keeper.Arm(ctx, e, a.lease.Until()); err != nil {
				return fmt.Errorf("arm the keeper: %w", err)
			}
			a.lease.SetArmed(e)
			return nil
		}
		if retry.Sleep(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("no lease of epoch %d: %w", e, ctx.Err())
		}
	}
}

// setSync puts a setting before PostgreSQL. If that fails, the setting may be in force or not. Until one is known to
// be, the old setting and this one both count as the agent's own, and nothing is proven.
func (a *Agent) setSync(ctx context.Context, v ag.View, s ag.Sync) (func(), error) {
	assert.That(v.Record.State.Epoch == v.Record.Epoch.Epoch && v.Record.State.Holds(s),
		"commits would wait for %d of %v, which does not keep (V %v, k %d) true", s.N, s.P, v.Record.State.V, v.Record.State.K)
	fault.Point("sync.announced") // the record knows of the setting; PostgreSQL does not
	err := a.cfg.Instance.SetSync(ctx, s.P, s.N, v.Record.Epoch.Epoch)
	if err != nil {
		return func() { a.sync.Proven, a.tried = false, &s }, err
	}
	fault.Point("sync.inforce") // PostgreSQL has the setting; nothing is proven
	return func() { a.sync, a.tried, a.rewrite = ag.Sync{P: s.P, N: s.N}, nil, false }, nil
}

// proveSync establishes that no backend and no walsender uses an older setting, and samples the barrier AFTER that.
// Every commit that an older setting could have acknowledged ends before the barrier (docs/internals/safety.md, "Proof
// of a setting").
func (a *Agent) proveSync(ctx context.Context, v ag.View, voided uint64) (func(), error) {
	s := v.Local.Sync
	if s.N > 0 {
		streaming := slices.DeleteFunc(slices.Clone(s.P), func(id ag.ReplicaID) bool {
			return !slices.ContainsFunc(v.Streams, func(st ag.Stream) bool { return st.Member == id && st.Open })
		})
		if len(streaming) == 0 {
			return nil, fmt.Errorf("none of %v streams yet", s.P)
		}
		if err := a.proveWaiting(ctx); err != nil {
			return nil, err
		}
		fault.Point("sync.waiting") // commits were seen to wait; the walsenders are not asked yet
		if err := a.cfg.Downstream.Prove(ctx, streaming); err != nil {
			return nil, fmt.Errorf("a walsender did not take the setting over: %w", err)
		}
	}
	fault.Point("sync.proven") // the setting is proven; the barrier is not known
	barrier, err := a.cfg.Instance.FlushLSN(ctx)
	if err != nil {
		return nil, err
	}
	return func() {
		assert.That(barrier >= a.endOfRec, "the barrier %s lies before the end of recovery, %s", barrier, a.endOfRec)
		if a.sync.Same(s) && a.voided == voided {
			a.sync.Proven, a.sync.Barrier, a.tried, a.attached = true, barrier, nil, false
		}
	}, nil
}

// proveWaiting holds the members' feedback back and observes that a probe commit waits. That shows that commits wait at
// all: the shared flag for it is set by the checkpointer, at a time of its own.
func (a *Agent) proveWaiting(ctx context.Context) error {
	a.cfg.Downstream.HoldFeedback(true)
	defer a.cfg.Downstream.HoldFeedback(false)
	for {
		done, waiting, err := a.cfg.Instance.ProbeCommit(ctx)
		if err != nil {
			return fmt.Errorf("probe commit: %w", err)
		}
		for range 400 {
			if waiting(ctx) {
				return nil
			}
			select {
			case err := <-done:
				if err != nil {
					return fmt.Errorf("probe commit: %w", err)
				}
			case <-ctx.Done():
				return fmt.Errorf("probe commit: %w", ctx.Err())
			case <-time.After(5 * time.Millisecond):
				continue
			}
			break // it did not wait: the setting is not in force yet
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("commits do not wait for the members yet: %w", err)
		}
	}
}

// retryPause separates two attempts of an action that failed.
const retryPause = 300 * time.Millisecond

// task is the one long action under way, with what holds only as long as it is. The loop makes and ends it. The action
// itself, on the worker, finds it in Agent.task.
type task struct {
	name   string
	epoch  ag.Epoch // the task is cancelled when the record leaves this epoch
	cancel context.CancelCauseFunc
	since  time.Duration

	shut  atomic.Bool  // set by the action: no answer leaves until the task has ended
	stage atomic.Int32 // of a restart in place; set by the action
}

type taskResult struct {
	name    string
	applied func() // applies the result of the action; the loop runs it
	err     error
}

// work starts a long action, unless one is under way or it failed a moment ago.
func (a *Agent) work(ctx context.Context, j job) {
	if a.task.Load() != nil || a.failed[j.name] > boottime.Now() {
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	a.task.Store(&task{name: j.name, epoch: j.epoch, cancel: cancel, since: boottime.Now()})
	a.children.Go(func() {
		ctx, stop := context.WithTimeoutCause(ctx, j.budget, fmt.Errorf("%s did not end within %v", j.name, j.budget))
		defer stop()
		var applied func()
		err := assert.Guard(func() (err error) {
			applied, err = j.do(ctx)
			return err
		})
		if err != nil && ctx.Err() != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		a.done <- taskResult{j.name, applied, err}
	})
}

func (a *Agent) cancelTask(why string) {
	if t := a.task.Load(); t != nil {
		t.cancel(errors.New(why))
	}
}

// isShut reports whether the action under way has shut the gate. Any goroutine may call it.
func (a *Agent) isShut() bool {
	t := a.task.Load()
	return t != nil && t.shut.Load()
}

// taskEnded takes over what the worker's action learned, and ends the task AFTER that: its end may open the gate. The
// loop calls it. It returns true if the loop must end for a successor. The task of that restart never ends, so that
// nothing is renewed and no answer leaves any more.
func (a *Agent) taskEnded(r taskResult) (leave bool) {
	t := a.task.Load()
	assert.That(t != nil && t.name == r.name, "%s ended, and was not under way", r.name)
	assert.That(!assert.Violated(r.err), "%s: %v", r.name, r.err)
	took := boottime.Now() - t.since
	t.cancel(nil)
	a.progress.Store(nil)
	if r.err != nil {
		a.log.Warn("action failed", "action", r.name, "after", took.Round(time.Millisecond), "err", r.err)
		pause := retryPause
		if r.name == "sync" { // a stream that has just begun cannot prove anything yet, and clients wait for it
			pause = retryPause / 10
		}
		a.failed[r.name] = boottime.Now() + pause
	} else if r.name != "sync" {
		a.log.Info("action done", "action", r.name, "took", took.Round(time.Millisecond))
	}
	if r.applied != nil {
		r.applied()
	}
	if r.name == restartTask && r.err == nil {
		return true
	}
	a.task.Store(nil)
	if t.shut.Load() {
		a.cfg.Sessions.GateMoved()
	}
	return false
}
