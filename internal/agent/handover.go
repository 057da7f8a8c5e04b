package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Budgets of a planned failover (docs/internals/safety.md, "Planned failover"). handOverBudget is above their sum and
// the time of a restart.
const (
	handOverBudget = 15 * time.Minute
	drainBudget    = 10 * time.Second
	cutBudget      = time.Second
	releaseBudget  = time.Second
	aheadBudget    = 30 * time.Second
	stateBudget    = 2 * time.Second
	quietBudget    = 2 * time.Second
	stopServer     = time.Second
	flushBudget    = 2 * time.Second
	askBudget      = 2 * time.Second
	commitBudget   = 2 * time.Second
	maxReplayLag   = 16 << 20
	slowCheckpoint = 2 * time.Second // a slower checkpoint has left too much to do for the one of the shutdown
	staleStream    = 500 * time.Millisecond
)

// segmentBudget is how long the target may take to receive the rest of a WAL segment, which is empty.
const segmentBudget = 30 * time.Second

// prepareBudget bounds the checkpoints. A server that needs longer is too busy to be stopped within a second.
const prepareBudget = 10 * time.Minute

// preparation is the part of a planned failover during which the primary serves as before. The loop owns it.
type preparation struct {
	op    string // the request that is being prepared, or is prepared; "": none
	ready bool
}

// Outcome is the result of a planned failover that this node carried out or refused.
type Outcome struct {
	Op    string `json:"op"`
	Error string `json:"error,omitempty"` // "" if the leadership was handed over
	// Refused means that the failover had not begun.
	Refused bool `json:"refused,omitempty"`
}

// prepare begins the preparation of an operator's request, unless it is under way. It does not run on the worker: a
// checkpoint can take minutes, and the bookkeeping of commits must not wait for it.
func (a *Agent) prepare(ctx context.Context, v ag.View, op ag.Op) {
	if a.prep.op == op.ID {
		a.closeAgain(op)
		return
	}
	a.prep = preparation{op: op.ID}
	rev := a.snapshot.Load().OpRev
	a.log.Info("preparing a planned failover", "to", op.To, "drain", op.Drain, "cut", op.Cut)
	a.showProgress("preparing: checkpoint")
	a.children.Go(func() {
		life := ctx
		ctx, cancel := context.WithTimeout(ctx, prepareBudget)
		defer cancel()
		fault.Point("handover.asked") // the request is in the record; nothing is prepared
		err := a.checkTarget(ctx, v, op.To)
		if err == nil {
			err = a.freshSegment(ctx, v, op.To)
		}
		if err == nil {
			err = a.checkpoints(ctx)
		}
		if err == nil {
			a.readAhead(ctx, a.aheadTold)
			err = a.checkTarget(ctx, *a.view.Load(), op.To) // the conditions may have changed meanwhile
		}
		if life.Err() != nil {
			return // a successor of this agent prepares it anew; in another epoch it is void
		}
		if err != nil {
			a.progress.Store(nil)
			a.endOp(rev, Outcome{Op: op.ID, Error: err.Error(), Refused: true})
		}
		select {
		case a.prepared <- preparation{op.ID, err == nil}:
			a.Wake()
		case <-ctx.Done():
		}
	})
}

// checkTarget refuses a target that could not take over at once.
func (a *Agent) checkTarget(ctx context.Context, v ag.View, id ag.ReplicaID) error {
	to, ok := v.Group.Replica(id)
	own, _ := v.Group.Replica(a.cfg.Self)
	_, in := v.Record.State.InV(id)
	switch {
	case !ok:
		return fmt.Errorf("the group has no replica %s", id)
	case !in || v.Record.State.K == 0:
		return fmt.Errorf("%s is not SYNCHRONIZED; wait for it, or force the failover and accept loss", id)
	case to.Suspended:
		return fmt.Errorf("data movement of %s is suspended; coterie replica resume %s first", id, id)
	case to.Major != own.Major:
		return fmt.Errorf("%s has PostgreSQL %d and %s has %d", id, to.Major, own.ID, own.Major)
	}
	ctx, cancel := context.WithTimeout(ctx, askBudget)
	defer cancel()
	if err := a.cfg.Peers.PrepareTakeover(ctx, to, TakeoverRequest{Epoch: v.Record.Epoch.Epoch, From: a.cfg.Self}); err != nil {
		return fmt.Errorf("%s is not ready: %w", id, err)
	}
	pos, err := a.cfg.Peers.Position(ctx, to)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", id, err)
	}
	if lag := int64(pos.Flush.LSN) - int64(pos.Replay); lag > maxReplayLag {
		return fmt.Errorf("%s has %d MiB left to replay", id, lag>>20)
	}
	return nil
}

// freshSegment lets the failover take place near the beginning of a WAL segment. Every standby fetches the segment of
// the switch again, and the new primary's commits wait for the first that has it. The target has the end of the old
// segment BEFORE any commit waits for it.
func (a *Agent) freshSegment(ctx context.Context, v ag.View, id ag.ReplicaID) error {
	begins, err := a.cfg.Instance.FreshSegment(ctx)
	if err != nil || begins == 0 {
		return err
	}
	to, _ := v.Group.Replica(id)
	return a.awaitFlush(ctx, to, begins, segmentBudget)
}

// awaitFlush waits until a member has flushed up to a position.
func (a *Agent) awaitFlush(ctx context.Context, r ag.Replica, to ag.LSN, budget time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for {
		pos, err := a.cfg.Peers.Position(ctx, r)
		if err == nil && pos.Flush.LSN >= to {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%s has not flushed %s within %v", r.ID, to, budget), err)
		}
		_ = retry.Sleep(ctx, 2*time.Millisecond)
	}
}

// checkpoints make the checkpoint of the shutdown short.
func (a *Agent) checkpoints(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareBudget)
	defer cancel()
	for range 2 {
		began := boottime.Now()
		if err := a.cfg.Instance.Checkpoint(ctx); err != nil {
			return err
		}
		if boottime.Now()-began <= slowCheckpoint {
			return nil
		}
		a.showProgress("preparing: second checkpoint")
	}
	return nil
}

// readAhead has the states of sessions read while they go on: a drain holds their requests, and has stateBudget for
// all of them. Only a primary has such sessions.
func (a *Agent) readAhead(ctx context.Context, told func(asked, of int)) {
	if a.lease.Armed() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, aheadBudget)
	defer cancel()
	a.cfg.Sessions.ReadAhead(ctx, told)
}

func (a *Agent) aheadTold(asked, of int) {
	a.showProgress(fmt.Sprintf("preparing: reading the state of sessions, %d of %d", asked, of))
}

// notePrepared takes over the result of a preparation. The loop calls it.
func (a *Agent) notePrepared(p preparation) {
	if a.prep.op == p.op {
		a.prep.ready = p.ready
	}
}

// ready returns the request for which this node is prepared; "" if there is none.
func (a *Agent) ready() string {
	if a.prep.ready {
		return a.prep.op
	}
	return ""
}

// handover is one planned failover under way on the primary (docs/internals/safety.md, "Planned failover"). Its order:
// new transactions wait (drain), the gate is shut, the target MUST have everything (quiet) BEFORE the server is
// stopped, and the leadership is given away AFTER the server has stopped. Until the stop of the server begins, the
// failover can be abandoned without a trace. From then until the commit it is abandoned by starting the server again.
type handover struct {
	a          *Agent
	v          ag.View // the view that was decided upon
	op         ag.Op
	to         ag.Replica
	generation uint64        // of the server's next start
	released   chan struct{} // closed when the target has released its readers, or does not
	killed     bool          // the server was not stopped in order, as far as is known
}

func (a *Agent) handOver(ctx context.Context, v ag.View, op ag.Op, generation uint64) (applied func(), err error) {
	to, ok := v.Group.Replica(op.To)
	if !ok {
		return nil, fmt.Errorf("the group has no replica %s", op.To)
	}
	h := &handover{a: a, v: v, op: op, to: to, generation: generation, released: make(chan struct{})}
	a.cfg.Sessions.Hold(true)
	defer a.cfg.Sessions.Hold(false)
	a.cfg.Sessions.Drain(true)
	defer a.cfg.Sessions.Drain(false)
	if err := h.drain(ctx); err != nil {
		return nil, fmt.Errorf("given up, %s serves on: %w", v.Self, err)
	}
	defer h.releaseReaders(ctx)()
	h.readStates(ctx)
	fault.Point("handover.drained") // no transaction runs; the gate is open
	a.task.Load().shut.Store(true)
	a.cfg.Sessions.GateMoved() // from here on no client learns of a commit that quiet does not see
	a.Wake()                   // publishes the routes
	x, err := h.quiet(ctx)
	if err != nil {
		return nil, fmt.Errorf("given up, %s serves on: %w", v.Self, err)
	}
	fault.Point("handover.quiet") // the target has everything; the server runs
	if err = h.finish(ctx, x); err == nil {
		return nil, nil //nolint:nilnil // nothing to apply
	}
	unsure := func() { a.sync.Proven = false }
	if errors.Is(err, ErrUnknown) {
		return unsure, fmt.Errorf("it is not known whether %s leads now; the record will tell: %w", op.To, err)
	}
	end, again := h.leadAgain(ctx)
	if again != nil {
		return unsure, fmt.Errorf("%w; %s could not go on either: %w", err, v.Self, again)
	}
	return func() {
		a.sync, a.tried = ag.Sync{P: v.Local.Sync.P, N: v.Local.Sync.N}, nil
		a.restart = end // BEFORE the gate opens: no client may read a commit that is not replicated (S6)
		a.answered.Store(0)
	}, fmt.Errorf("given up, %s leads again in the same epoch: %w", v.Self, err)
}

// step publishes the progress of the failover.
func (h *handover) step(s string) {
	h.a.log.Info("planned failover", "to", h.op.To, "step", s)
	h.a.showProgress(s)
	h.a.Wake()
}

// drain waits until no transaction runs on the server. New ones wait in the listener meanwhile.
func (h *handover) drain(ctx context.Context) error {
	budget := h.op.Drain
	if budget <= 0 {
		budget = drainBudget
	}
	h.step("draining: new transactions wait, running ones end")
	busy := h.awaitIdle(ctx, budget)
	if busy > 0 && h.op.Cut && ctx.Err() == nil {
		h.step("draining: ending what still runs")
		h.a.cfg.Sessions.CutBusy("planned failover to " + string(h.op.To))
		busy = h.awaitIdle(ctx, cutBudget)
	}
	if busy > 0 {
		return fmt.Errorf("%d transactions still run after %v; end them and ask again, or from a shell: coterie failover with --drain allows longer, with --cut it ends them", busy, budget)
	}
	return nil
}

// readStates has the state of the idle sessions read, with which they are continued on the new primary.
func (h *handover) readStates(ctx context.Context) {
	h.step("reading the state of sessions")
	ctx, cancel := context.WithTimeout(ctx, stateBudget)
	defer cancel()
	h.a.cfg.Sessions.ReadStates(ctx)
}

// readRelayedStates has the state of the sessions read that other nodes can continue while this agent restarts.
func (h *handover) readRelayedStates(ctx context.Context) {
	h.a.showProgress("reading the state of sessions of other nodes")
	ctx, cancel := context.WithTimeout(ctx, stateBudget)
	defer cancel()
	h.a.cfg.Sessions.ReadRelayedStates(ctx)
}

// releaseReaders asks the target, which is about to be promoted, to move its readers. It does so while this server is
// stopped, which takes longer as a rule. A reader that has not left by then is ended, as in any failover. The caller
// calls end, which takes the request back.
func (h *handover) releaseReaders(ctx context.Context) (end func()) {
	ctx, cancel := context.WithTimeout(ctx, releaseBudget)
	go func() { // returns when the target has answered, when its time is over, or when end was called
		defer close(h.released)
		req := TakeoverRequest{Epoch: h.v.Record.Epoch.Epoch, From: h.v.Self}
		if err := h.a.cfg.Peers.ReleaseReaders(ctx, h.to, req); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			h.a.log.Info("the target did not release its readers", "to", h.op.To, "err", err)
		}
	}()
	return func() {
		cancel()
		<-h.released
	}
}

// awaitIdle returns how many sessions are busy at the end of the budget, or 0 as soon as none is.
func (h *handover) awaitIdle(ctx context.Context, budget time.Duration) int {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for {
		busy := h.a.cfg.Sessions.Busy()
		if busy == 0 || ctx.Err() != nil {
			return busy
		}
		_ = retry.Sleep(ctx, 2*time.Millisecond)
	}
}

// quiet ends everything else that writes here, then waits until the target has flushed and replayed what this server
// has flushed.
func (h *handover) quiet(ctx context.Context) (ag.LSN, error) {
	h.step("waiting until " + string(h.op.To) + " has everything")
	ctx, cancel := context.WithTimeout(ctx, quietBudget)
	defer cancel()
	x, err := h.endWriters(ctx)
	if err != nil {
		return 0, err
	}
	for {
		pos, err := h.a.cfg.Peers.Position(ctx, h.to)
		if err == nil && pos.Flush.LSN >= x && pos.Replay >= x {
			return x, nil
		}
		if ctx.Err() != nil {
			return 0, errors.Join(fmt.Errorf("%s has not flushed and replayed %s within %v", h.to.ID, x, quietBudget), err)
		}
		_ = retry.Sleep(ctx, 2*time.Millisecond)
	}
}

// finish stops the server and gives the leadership away. Every acknowledged commit ends before x.
func (h *handover) finish(ctx context.Context, x ag.LSN) error {
	a := h.a
	h.step("stopping the server")
	a.cfg.Sessions.CloseServer("planned failover to " + string(h.op.To))
	h.dropStale(x, "it does not keep up with a planned failover")
	h.killed = true
	clean, err := a.cfg.Keeper.Stop(ctx, stopServer)
	if err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	h.killed = !clean
	fault.Point("handover.stopped") // the server is stopped; the record names this node
	final, err := a.cfg.Instance.EndOfWAL(ctx)
	if err != nil {
		return fmt.Errorf("read the final position: %w", err)
	}
	need := final
	if !clean { // nothing beyond x was acknowledged; it is rewound
		need.LSN = x
	}
	if err := a.awaitFlush(ctx, h.to, need.LSN, flushBudget); err != nil {
		return err
	}
	<-h.released // within releaseBudget
	h.step("handing over to " + string(h.op.To))
	fault.Point("handover.flushed") // the target has the end of the log; the record names this node
	return h.commit(ctx, need, clean)
}

// dropStale drops the streams of members that do not come to x: a shutdown waits for every stream.
func (h *handover) dropStale(x ag.LSN, why string) {
	now := boottime.Now()
	for _, s := range h.a.cfg.Downstream.Streams() {
		if s.Member != h.op.To && s.Flush < x && now-s.LastFeedback > staleStream {
			h.a.cfg.Downstream.Drop(s.Member, why)
		}
	}
}

// commit is the step after which the target leads. It needs no seal, because the writer itself has stopped and
// released. A server that had to be killed may have more than the target, so its copy is not counted.
func (h *handover) commit(ctx context.Context, final ag.Position, clean bool) error {
	a, e := h.a, h.v.Record.Epoch
	e.Epoch++
	e.Phase, e.Leader, e.From = ag.PhasePromote, h.op.To, final
	m, in := h.v.Record.State.InV(h.op.To)
	if !in {
		return fmt.Errorf("%s is not SYNCHRONIZED", h.op.To)
	}
	e.Copy = m.Copy // no other copy than the counted one may be promoted
	e.MaxTLI++
	e.TLI, e.Forced, e.Outgoing, e.Unheard = e.MaxTLI, false, h.v.Pending(), ag.Evidence{}
	if clean {
		e.V, e.K = h.v.HandoverSyncSet(h.op.To)
	}
	e.Reason = ag.PlannedFrom(a.cfg.Self)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitBudget) // the new epoch cancels this action, maybe before the answer
	defer cancel()
	guard := ag.Revisions{Epoch: h.v.Record.Revs.Epoch, State: h.v.Record.Revs.State, Lead: -1}
	if err := a.cfg.Store.Commit(ctx, ag.Commit{Guard: guard, Epoch: &e}); err != nil {
		return fmt.Errorf("write that %s leads: %w", h.op.To, err)
	}
	fault.Point("handover.named") // the record names the target; the keeper here is armed
	a.lease.Void()
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), commitBudget)
	defer cancel()
	if err := a.cfg.Keeper.Disarm(ctx, h.v.Record.Epoch.Epoch); err != nil {
		a.log.Warn("keeper not disarmed", "err", err)
	}
	fault.Point("handover.disarmed") // the keeper is disarmed; the agent believes itself armed
	a.lease.SetDisarmed()
	return nil
}

// leadAgain starts the server where it stopped, in the same epoch and on the same timeline. No other replica has led,
// and none can before this node's lease has run out, which was renewed throughout. It returns the end of WAL: clients
// are let in again AFTER that is replicated (Local.Restart in package ag).
func (h *handover) leadAgain(ctx context.Context) (end ag.LSN, err error) {
	a, was := h.a, h.v.Local.Sync
	h.step("given up; starting the server again")
	if err := h.stillLeads(ctx); err != nil {
		return 0, err
	}
	if err := a.cfg.Keeper.StartPrimary(ctx, h.generation, h.v.Record.Epoch.Epoch); err != nil {
		return 0, fmt.Errorf("start the server again: %w", err)
	}
	for {
		o, err := a.cfg.Instance.Observe(ctx)
		if err == nil && o.InRecovery {
			return 0, errors.New("the server came back in recovery")
		}
		if err == nil {
			break
		}
		if st, serr := a.cfg.Keeper.Status(ctx); serr == nil && st.ServerPID == 0 {
			return 0, errors.New("the server ended while it started; see its log")
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("the server does not answer: %w", err)
		}
		_ = retry.Sleep(ctx, 5*time.Millisecond)
	}
	fault.Point("again.started") // the server writes again; the gate is shut, and the setting is not known to be in force
	if err := a.cfg.Instance.SetSync(ctx, was.P, was.N, h.v.Record.Epoch.Epoch); err != nil {
		return 0, err
	}
	fault.Point("again.inforce") // PostgreSQL has the setting; where the log ends that must be replicated is not known
	return a.cfg.Instance.FlushLSN(ctx)
}

// stillLeads reads the record until it answers, or until the lease has run out. A server that was killed may have lost
// transactions whose numbers it gives again. The record says so BEFORE it starts: the outcome of a commit is judged by
// that (package indoubt).
func (h *handover) stillLeads(ctx context.Context) error {
	for {
		c, cancel := context.WithTimeout(ctx, h.v.Profile.Request)
		snap, err := h.a.cfg.Store.Read(c)
		held := h.a.lease.State()
		switch {
		case !held.Valid || held.Epoch != h.v.Record.Epoch.Epoch:
			cancel()
			return errors.Join(errors.New("the lease has run out"), err)
		case err == nil && snap.Record.Revs.Epoch != h.v.Record.Revs.Epoch:
			cancel()
			return fmt.Errorf("epoch %d of %s has begun", snap.Record.Epoch.Epoch, snap.Record.Epoch.Leader)
		case err == nil:
			err = h.noteKilled(c, snap.Record)
		}
		cancel()
		if err == nil {
			return nil
		}
		_ = retry.Sleep(ctx, 20*time.Millisecond)
	}
}

// noteKilled has the record say that numbers of transactions may be given again, if that may be.
func (h *handover) noteKilled(ctx context.Context, r ag.Record) error {
	n := len(r.State.Timelines)
	if !h.killed || n == 0 || r.State.Timelines[n-1].Reused {
		return nil
	}
	st := r.State.Clone()
	st.Timelines[n-1].Reused = true
	st.Seq++
	return h.a.cfg.Store.Commit(ctx, ag.Commit{Guard: ag.Revisions{Epoch: r.Revs.Epoch, State: r.Revs.State, Lead: -1}, State: &st})
}
