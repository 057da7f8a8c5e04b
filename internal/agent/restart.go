package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/lease"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Budgets of a restart in place (docs/internals/safety.md, "Restart in place").
const (
	detachFor     = 3 * time.Second // how long the keeper waits for the successor
	restartBudget = 20 * time.Minute
	attachBudget  = 4 * time.Second
	// switchQuiet is how long the other cluster may take to have everything, while clients wait.
	switchQuiet = 5 * time.Second
)

// ErrRestart is returned by Run when the agent ends for a successor: the server keeps running, and nothing may be
// stopped. The keeper of a primary fences after three seconds if the successor has not taken over.
var ErrRestart = errors.New("the agent makes room for its successor")

// errJustBegun refuses what an agent is asked for before it may act under its name.
var errJustBegun = errors.New("this node has just begun and has decided nothing yet; try again in a few seconds")

// errFailedJustNow refuses an action that has failed less than retryPause ago.
var errFailedJustNow = errors.New("an attempt failed a moment ago; try again in a few seconds")

// restartTask is the name of the task of a restart in place.
const restartTask = "restart"

// The stages of a restart in place.
const (
	restartNone      = iota
	restartAnnounced // /lead announces it
	restartDetached  // the keeper knows of it, and nothing is renewed any more
)

// RestartOptions is what is done about running transactions.
type RestartOptions struct {
	Drain time.Duration // how long they may take to end; 0: 10 s
	Cut   bool          // end them afterwards, instead of giving up
}

type restartRequest struct {
	RestartOptions
	done chan error
}

// serverRequest asks for a restart of the server.
type serverRequest struct{ done chan error }

// awaited gives a request to the loop, and returns what comes of it. late says what a caller has to know whose context
// ends before that.
func awaited[R any](ctx context.Context, to chan<- R, r R, done <-chan error, late string) error {
	select {
	case to <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", late, ctx.Err())
	}
}

// RestartServer stops the server of a secondary in order, and returns when it has ended; the next plan starts it again.
// It refuses while this node is not a plain secondary of a primary that leads: a server that is stopped then might be
// the one that is to be promoted. Any goroutine may call it.
func (a *Agent) RestartServer(ctx context.Context) error {
	r := serverRequest{make(chan error, 1)}
	return awaited(ctx, a.serverRestarts, r, r.done, "the restart of the server goes on by itself")
}

// beginServerRestart is the loop's part of RestartServer.
func (a *Agent) beginServerRestart(ctx context.Context, r serverRequest) {
	v := a.view.Load()
	switch t := a.task.Load(); {
	case t != nil:
		r.done <- fmt.Errorf("this node is busy (%s); try again when that has ended", t.name)
		return
	case v == nil:
		r.done <- errJustBegun
		return
	case a.lease.Armed() != 0 || v.Record.Epoch.Leader == v.Self:
		r.done <- errors.New("this node is the primary")
		return
	case !v.Quorum || v.Record.Epoch.Phase != ag.PhaseLead:
		r.done <- errors.New("no primary leads at the moment: this server may be the next one's")
		return
	case v.Local.Server != ag.ServerRecovery:
		r.done <- fmt.Errorf("its server does not run as a secondary (%s)", v.Local.Server)
		return
	}
	a.work(ctx, job{"restart-server", v.Record.Epoch.Epoch, startBudget, func(ctx context.Context) (func(), error) {
		_, err := a.cfg.Keeper.Stop(ctx, stopBudget)
		r.done <- err
		return nil, err
	}})
	if a.task.Load() == nil {
		r.done <- errFailedJustNow
	}
}

// clusterTask is the name of the task of SwitchCluster.
const clusterTask = "switch-cluster"

// switchPassing is the stage of a switch during which the group passes to the other cluster: the loop decides nothing,
// as the record and this node's files may name different clusters.
const switchPassing = 1

// ClusterSwitch is how the cluster of a primary's node is replaced by another one while sessions wait.
type ClusterSwitch struct {
	RestartOptions
	// Quiet is called when no transaction runs, no answer leaves and nothing else writes. x is how far the server has
	// flushed, with every acknowledged commit. It returns when the other cluster has all of that.
	Quiet func(ctx context.Context, x ag.LSN) error
	// Pass is called when the server has ended in order, and has the group pass to the other cluster. If it has not
	// passed, and cannot any more, the server is started again in the same epoch. After an error it is not known, and
	// this agent decides nothing any more.
	Pass func() (passed bool, err error)
}

type switchRequest struct {
	ClusterSwitch
	again bool // the server is only restarted
	done  chan error
}

// SwitchCluster replaces the cluster of this node, which leads. After an error the group has the one before, unless the
// error is of Pass. Any goroutine may call it.
func (a *Agent) SwitchCluster(ctx context.Context, c ClusterSwitch) error {
	a.readAhead(ctx, func(int, int) {})
	r := switchRequest{c, false, make(chan error, 1)}
	return awaited(ctx, a.switches, r, r.done, "the switch goes on by itself")
}

// beginSwitch is the loop's part of SwitchCluster and RestartPrimary.
func (a *Agent) beginSwitch(ctx context.Context, r switchRequest) {
	v := a.view.Load()
	if err := a.maySwitch(v); err != nil {
		r.done <- err
		return
	}
	if t := a.task.Load(); t != nil {
		r.done <- fmt.Errorf("this node is busy (%s); try again when that has ended", t.name)
		return
	}
	generation, task := a.generation+1, clusterTask
	if r.again {
		task = againTask
	}
	a.work(ctx, job{task, v.Record.Epoch.Epoch, handOverBudget, func(ctx context.Context) (func(), error) {
		h := &handover{a: a, v: *v, op: ag.Op{To: v.Self, Drain: r.Drain, Cut: r.Cut}, generation: generation}
		act := h.switchCluster
		if r.again {
			act = h.restart
		}
		applied, err := act(ctx, r.ClusterSwitch)
		r.done <- err
		return applied, err
	}})
	if a.task.Load() == nil {
		r.done <- errFailedJustNow
	}
}

// maySwitch returns why the server of this node is not replaced or restarted as a primary's; nil: it may be.
func (a *Agent) maySwitch(v *ag.View) error {
	switch {
	case v == nil:
		return errJustBegun
	case !v.Quorum || v.Record.Epoch.Leader != v.Self || v.Record.Epoch.Phase != ag.PhaseLead || v.Local.Server != ag.ServerWritable || v.Op.ID != "":
		return errors.New("this node does not lead, or is about to hand over")
	}
	return nil
}

// switchCluster is a planned failover (see handover) to another cluster of the same node.
func (h *handover) switchCluster(ctx context.Context, c ClusterSwitch) (applied func(), err error) {
	a, v := h.a, h.v
	a.cfg.Sessions.Hold(true)
	defer a.cfg.Sessions.Hold(false)
	a.cfg.Sessions.Drain(true)
	defer a.cfg.Sessions.Drain(false)
	if err := h.drain(ctx); err != nil {
		return nil, err
	}
	h.readStates(ctx)
	fault.Point("switch.drained") // no transaction runs; the gate is open
	a.task.Load().shut.Store(true)
	a.cfg.Sessions.GateMoved()
	a.Wake()
	// Sessions leave before the end of the log is looked for: one with temporary tables drops them in a transaction.
	a.cfg.Sessions.CloseServer("the group passes to another cluster of " + string(v.Self))
	x, err := h.otherHasAll(ctx, c)
	if err != nil {
		return nil, err
	}
	fault.Point("switch.quiet") // the other cluster has everything; the server runs
	h.step("stopping the server")
	// The other streams stay: what such a transaction has committed waits for the secondaries.
	h.dropStale(x, "it does not keep up while the group passes to another cluster")
	h.killed = true
	clean, err := a.cfg.Keeper.Stop(ctx, stopBudget)
	if err == nil && !clean {
		err = errors.New("the server did not end in order")
	}
	h.killed = !clean
	fault.Point("switch.stopped") // the server is stopped; the record names it
	if err == nil {
		return h.passOn(ctx, c)
	}
	return h.goOn(ctx, err)
}

// againTask is the name of the task of RestartPrimary.
const againTask = "restart-primary"

// againBudget is how long the server may take to come back, while this node holds the lease and nobody else can lead.
const againBudget = time.Minute

// RestartPrimary restarts the server of this node, which leads, in the same epoch: as a planned failover that is given
// up when the server has stopped. New transactions wait meanwhile. After an error the server runs as before, or was
// restarted, unless the error says otherwise. Any goroutine may call it.
//
// The checkpoints before it run here and not on the worker: they can take minutes, and the bookkeeping of commits, the
// probes of the server and a failover must not wait for them.
func (a *Agent) RestartPrimary(ctx context.Context, o RestartOptions) error {
	if err := a.maySwitch(a.view.Load()); err != nil {
		return err
	}
	a.log.Info("preparing a restart of the primary's server", "drain", o.Drain, "cut", o.Cut)
	a.showProgress("preparing: checkpoint")
	defer a.endPreparing()
	if err := a.checkpoints(ctx); err != nil {
		return fmt.Errorf("checkpoint before the restart: %w", err)
	}
	a.readAhead(ctx, a.aheadTold)
	r := switchRequest{ClusterSwitch{RestartOptions: o}, true, make(chan error, 1)}
	return awaited(ctx, a.switches, r, r.done, "the restart of the server goes on by itself")
}

// restart stops the server in order and starts it again. Checkpoints were made before, while it served.
func (h *handover) restart(ctx context.Context, _ ClusterSwitch) (applied func(), err error) {
	a := h.a
	a.cfg.Sessions.Hold(true)
	defer a.cfg.Sessions.Hold(false)
	a.cfg.Sessions.Drain(true)
	defer a.cfg.Sessions.Drain(false)
	if err := h.drain(ctx); err != nil {
		return nil, err
	}
	h.readStates(ctx)
	fault.Point("again.drained") // no transaction runs; the gate is open
	a.task.Load().shut.Store(true)
	a.cfg.Sessions.GateMoved()
	a.Wake()
	a.cfg.Sessions.CloseServer("the server of " + string(h.v.Self) + " restarts; connect again")
	ending, cancel := context.WithTimeout(ctx, quietBudget)
	defer cancel()
	x, err := h.endWriters(ending)
	if err != nil {
		return nil, err
	}
	fault.Point("again.quiet") // the gate is shut and nothing writes; the server runs
	h.step("stopping the server")
	h.dropStale(x, "it does not keep up while the server of the primary restarts")
	h.killed = true
	clean, err := a.cfg.Keeper.Stop(ctx, stopBudget)
	if err == nil && !clean {
		err = errors.New("the server did not end in order, and was started again")
	}
	h.killed = !clean
	fault.Point("again.stopped") // the server is stopped; the record says that it leads
	ctx, cancel = context.WithTimeout(ctx, againBudget)
	defer cancel()
	return h.goOn(ctx, err)
}

// endWriters ends what else writes here, and returns how far the server has flushed.
func (h *handover) endWriters(ctx context.Context) (ag.LSN, error) {
	if err := h.a.cfg.Instance.EndWriters(ctx); err != nil {
		return 0, err
	}
	return h.a.cfg.Instance.FlushLSN(ctx)
}

// goOn starts the server again in the same epoch. why is returned where that succeeds.
func (h *handover) goOn(ctx context.Context, why error) (applied func(), err error) {
	a, v := h.a, h.v
	end, again := h.leadAgain(ctx)
	if again != nil {
		if why == nil {
			why = errors.New("the server was stopped")
		}
		return func() { a.sync.Proven = false }, fmt.Errorf("%w; %s could not go on: %w", why, v.Self, again)
	}
	return func() {
		a.sync, a.tried = ag.Sync{P: v.Local.Sync.P, N: v.Local.Sync.N}, nil
		a.restart = end
		a.answered.Store(0)
	}, why
}

// Restart makes this agent end with ErrRestart while its server keeps running. A secondary's agent ends at once; a
// primary's ends AFTER no transaction runs and the record and the keeper know of the restart. After an error everything
// is as before. Any goroutine may call it.
func (a *Agent) Restart(ctx context.Context, o RestartOptions) error {
	a.readAhead(ctx, func(int, int) {})
	r := restartRequest{o, make(chan error, 1)}
	select {
	case a.restarts <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the restart goes on by itself: %w", ctx.Err())
	}
}

// beginRestart is the loop's part of Restart. It returns true if the loop may end.
func (a *Agent) beginRestart(ctx context.Context, r restartRequest) (leave bool) {
	v := a.view.Load()
	switch {
	case a.task.Load() != nil:
		r.done <- fmt.Errorf("this node is busy (%s); try again when that has ended", a.task.Load().name)
		return false
	case a.lease.Armed() == 0: // its server, if there is one, may run without an agent
		r.done <- nil
		return true
	case v == nil:
		r.done <- errJustBegun
		return false
	case !v.Quorum || v.Record.Epoch.Leader != v.Self || v.Record.Epoch.Phase != ag.PhaseLead || v.Local.Server != ag.ServerWritable:
		r.done <- errors.New("this node is becoming or ceasing to be the primary; try again in a moment")
		return false
	}
	a.work(ctx, job{restartTask, v.Record.Epoch.Epoch, restartBudget, func(ctx context.Context) (func(), error) {
		err := a.detach(ctx, *v, r.RestartOptions)
		r.done <- err
		return nil, err
	}})
	if a.task.Load() == nil { // nothing was begun, and nobody else would answer
		r.done <- errFailedJustNow
	}
	return false
}

// restarting returns the stage of the restart under way.
func (a *Agent) restarting() int32 {
	if t := a.task.Load(); t != nil && t.name == restartTask {
		return t.stage.Load()
	}
	return restartNone
}

// detach drains the server, then announces the restart in the record, then stops renewing, then tells the keeper.
// Nothing is renewed afterwards.
func (a *Agent) detach(ctx context.Context, v ag.View, o RestartOptions) (err error) {
	a.cfg.Sessions.Hold(true)
	a.cfg.Sessions.Drain(true)
	defer func() {
		if err != nil {
			a.cfg.Sessions.Drain(false)
			a.cfg.Sessions.Hold(false)
			a.Wake()
		}
	}()
	h := &handover{a: a, v: v, op: ag.Op{To: v.Self, Drain: o.Drain, Cut: o.Cut}}
	if err := h.drain(ctx); err != nil {
		return err
	}
	h.readRelayedStates(ctx)
	t := a.task.Load()
	t.shut.Store(true)
	a.cfg.Sessions.GateMoved()
	a.showProgress("announcing the restart")
	t.stage.Store(restartAnnounced)
	if err := a.lease.Announce(ctx, commitBudget); err != nil {
		return fmt.Errorf("announce the restart: %w", err)
	}
	fault.Point("restart.announced") // the record announces the restart; sessions are open
	a.cfg.Sessions.CloseServer("the agent of " + string(v.Self) + " restarts; connect again")
	t.stage.Store(restartDetached)
	a.lease.Rest()
	fault.Point("restart.rested") // nothing is renewed any more; the keeper knows of no restart
	until := min(boottime.Now()+detachFor, a.lease.Until())
	if err := a.cfg.Keeper.Detach(ctx, v.Record.Epoch.Epoch, until); err != nil {
		return fmt.Errorf("tell the keeper: %w", err)
	}
	fault.Point("restart.detached") // the keeper waits for a successor; this process has not made room
	return nil
}

// attach takes over a server that the previous agent left running as primary. If anything differs from the
// announcement, the server is fenced, and this node starts as usual.
func (a *Agent) attach(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attachBudget)
	defer cancel()
	ks, err := a.cfg.Keeper.Status(ctx)
	if err != nil || ks.Armed == 0 {
		return
	}
	began := boottime.Now()
	if err := a.takeOver(ctx, ks); err != nil {
		a.log.Warn("the server that was left running is not taken over", "epoch", ks.Armed, "err", err)
		a.attached = false
		a.fence("its agent restarted and may not lead on: "+err.Error(), ks.Armed)
		return
	}
	a.log.Info("took over the server that was left running", "epoch", ks.Armed, "took", boottime.Now()-began)
}

func (a *Agent) takeOver(ctx context.Context, ks KeeperState) error {
	asked := boottime.Now()
	snap, err := a.firstRead(ctx)
	if err != nil {
		return err
	}
	if err := a.guard.CheckMonotonic(a.seenOf(snap), snap.Record.State.Timelines, asked); err != nil {
		return err
	}
	e, l := snap.Record.Epoch, snap.Record.Lead
	if e.Epoch != ks.Armed || e.Leader != a.cfg.Self || e.Phase != ag.PhaseLead || snap.Record.State.Epoch != e.Epoch ||
		l.Epoch != e.Epoch || l.Holder != a.cfg.Self || !l.Restarting {
		return fmt.Errorf("the record says %s of epoch %d by %s, held by %s (restart announced: %t)", e.Phase, e.Epoch, e.Leader, l.Holder, l.Restarting)
	}
	// The heartbeat is compared too, so that of two successors one wins.
	p := profileOf(snap.Group)
	l.Incarnation, l.Observer = a.cfg.Incarnation, p.Declared(0)
	a.answers.Declaring(e.Epoch, l.Answer)
	t0 := boottime.Now()
	guard := ag.Revisions{Epoch: snap.Record.Revs.Epoch, State: -1, Lead: snap.Record.Revs.Lead}
	if err := a.cfg.Store.Commit(ctx, ag.Commit{Guard: guard, Lead: &l}); err != nil {
		return fmt.Errorf("renew in the name of the agent before: %w", err)
	}
	fault.Point("attach.renewed") // the lease is renewed by the successor; the keeper still waits
	a.snapshot.Store(&snap)
	h := &lease.Holding{Epoch: e.Epoch, EpochRev: snap.Record.Revs.Epoch, Lead: l}
	a.lease.Hold(h)
	a.lease.Renewed(*h, t0+p.Lease)
	if err := a.cfg.Keeper.Extend(ctx, e.Epoch, a.lease.Until()); err != nil {
		return err
	}
	fault.Point("attach.extended") // the keeper has the new deadline; the setting is not written again
	a.lease.SetArmed(e.Epoch)
	a.generation, a.attached = ks.Generation, true
	return a.rewriteSync(ctx, snap.Record)
}

// firstRead reads the record until it answers.
func (a *Agent) firstRead(ctx context.Context) (Snapshot, error) {
	for {
		c, cancel := context.WithTimeout(ctx, a.profile().Request)
		snap, err := a.cfg.Store.Read(c)
		cancel()
		if err == nil || ctx.Err() != nil {
			return snap, err
		}
		_ = retry.Sleep(ctx, 20*time.Millisecond)
	}
}

// rewriteSync puts a setting before the server: the server's own, if that keeps the record true, or else what the
// record says. It counts as unproven (docs/internals/safety.md, "Restart in place").
func (a *Agent) rewriteSync(ctx context.Context, r ag.Record) error {
	o, err := a.cfg.Instance.Observe(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("the server does not answer: %w", err)
	case o.InRecovery:
		return errors.New("the server is in recovery")
	}
	now := ag.Sync{P: o.P, N: o.N}
	if !r.State.Holds(now) || slices.Contains(o.P, "") {
		now = ag.Sync{N: r.State.K}
		for _, m := range r.State.V {
			now.P = append(now.P, m.ID)
		}
	}
	if err := a.cfg.Instance.SetSync(ctx, now.P, now.N, r.Epoch.Epoch); err != nil {
		return fmt.Errorf("rewrite the synchronous setting: %w", err)
	}
	fault.Point("attach.rewritten") // the setting is written again; it is not proven
	a.sync, a.tried = now, nil
	return nil
}
