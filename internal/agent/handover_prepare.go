package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// segmentBudget is how long the target may take for the rest of a WAL segment, which is empty.
const segmentBudget = 30 * time.Second

// prepareBudget bounds the checkpoints: a server that is not done by then is too busy to be stopped within a second.
const prepareBudget = 10 * time.Minute

// preparation is the part of a planned failover that takes place while the primary serves as before. It is the loop's.
type preparation struct {
	op    string // being prepared, or prepared; "": none
	ready bool
}

// Outcome is how a planned failover that this node carried out, or refused, has ended.
type Outcome struct {
	Op    string `json:"op"`
	Error string `json:"error,omitempty"` // "" when it was handed over
	// Refused says that nothing had been begun.
	Refused bool `json:"refused,omitempty"`
}

// prepare begins the preparation of an operator's request, unless it is under way. It does not take the worker's place: a checkpoint
// can take minutes, and the bookkeeping of commits must not wait for it.
func (a *Agent) prepare(ctx context.Context, v ag.View, op ag.Op) {
	if a.prep.op == op.ID {
		return
	}
	a.prep = preparation{op: op.ID}
	rev := a.snapshot.Load().OpRev
	a.log.Info("preparing a planned failover", "to", op.To, "drain", op.Drain, "cut", op.Cut)
	a.showProgress("preparing: checkpoint")
	a.children.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, prepareBudget)
		defer cancel()
		err := a.checkTarget(ctx, v, op.To)
		if err == nil {
			err = a.freshSegment(ctx, v, op.To)
		}
		if err == nil {
			err = a.checkpoints(ctx)
		}
		if err == nil { // what was true before the checkpoint may not be any more
			err = a.checkTarget(ctx, *a.view.Load(), op.To)
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
		return fmt.Errorf("data movement of %s is suspended; coterie resume %s first", id, id)
	case to.Major != own.Major:
		return fmt.Errorf("%s has PostgreSQL %d and %s has %d", id, to.Major, own.ID, own.Major)
	}
	ctx, cancel := context.WithTimeout(ctx, askBudget)
	defer cancel()
	if err := a.cfg.Peers.StandReady(ctx, to, ReadyRequest{Epoch: v.Record.Epoch.Epoch, From: a.cfg.Self}); err != nil {
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

// preset is a synchronous setting that was put before a secondary's server for the epoch that it may be about to lead.
type preset struct {
	epoch ag.Epoch
	sync  ag.Sync
}

// StandReady answers the primary that prepares a planned failover to this node; the endpoint calls it. The synchronous setting of the
// next epoch is put there now: in recovery it means nothing, and the promotion need not wait for it.
func (a *Agent) StandReady(ctx context.Context, req ReadyRequest) error {
	v := a.view.Load()
	switch {
	case a.cfg.Instance == nil || v == nil:
		return errors.New("this node has no data, or has just started")
	case v.Record.Epoch.Epoch != req.Epoch || v.Record.Epoch.Leader != req.From:
		return fmt.Errorf("this node knows of epoch %d of %s", v.Record.Epoch.Epoch, v.Record.Epoch.Leader)
	case v.Local.Server != ag.ServerRecovery || v.Local.Source != req.From:
		return fmt.Errorf("its server is %s and does not follow %s", v.Local.Server, req.From)
	case v.Local.Quarantine != "":
		return errors.New("its copy is quarantined: " + v.Local.Quarantine)
	case v.Busy != "":
		return errors.New("it is busy: " + v.Busy)
	}
	if err := a.seal.enter(ctx); err != nil {
		return err
	}
	defer a.seal.leave()
	promised, err := a.cfg.Marks.Promised()
	if err != nil || promised > req.Epoch {
		return errors.Join(fmt.Errorf("it has promised epoch %d", promised), err)
	}
	p := preset{req.Epoch + 1, v.FirstSync()}
	if err := a.cfg.Instance.SetSync(ctx, p.sync.P, p.sync.N, p.epoch); err != nil {
		return err
	}
	a.preset.Store(&p)
	return nil
}

// isPreset reports whether the setting was put there beforehand and still is.
func (a *Agent) isPreset(ctx context.Context, e ag.Epoch, s ag.Sync) bool {
	p := a.preset.Load()
	if p == nil || p.epoch != e || p.sync.N != s.N || !sameMembers(p.sync.P, s.P) {
		return false
	}
	o, err := a.cfg.Instance.Observe(ctx)
	return err == nil && o.SyncEpoch == e && o.N == s.N && sameMembers(o.P, s.P)
}

// freshSegment lets the failover take place near the beginning of a WAL segment: every standby draws the segment of the switch anew, and the
// new primary's commits wait for the first that has it. The target has the end of the old segment before anybody waits for it.
func (a *Agent) freshSegment(ctx context.Context, v ag.View, id ag.ReplicaID) error {
	begins, err := a.cfg.Instance.FreshSegment(ctx)
	if err != nil || begins == 0 {
		return err
	}
	to, _ := v.Group.Replica(id)
	return a.awaitFlush(ctx, to, begins, segmentBudget)
}

// awaitFlush waits until a member has flushed up to there.
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
		pause(ctx, 2*time.Millisecond)
	}
}

// checkpoints leave little to write for the one that the shutdown makes.
func (a *Agent) checkpoints(ctx context.Context) error {
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

// notePrepared takes over how a preparation ended. The loop calls it.
func (a *Agent) notePrepared(p preparation) {
	if a.prep.op == p.op {
		a.prep.ready = p.ready
	}
}

// ready is the request this node is prepared for.
func (a *Agent) ready() string {
	if a.prep.ready {
		return a.prep.op
	}
	return ""
}

// endOp says how a request has ended, then takes it back. What it says is published by the loop; whoever asked waits for both.
func (a *Agent) endOp(rev int64, o Outcome) {
	a.outcome.Store(&o)
	if o.Error != "" {
		a.log.Warn("planned failover ended", "err", o.Error)
	}
	a.Wake()
	ctx, cancel := context.WithTimeout(context.Background(), commitBudget)
	defer cancel()
	for {
		err := a.cfg.Store.CloseOp(ctx, rev)
		if err == nil || errors.Is(err, ErrConflict) { // or somebody else's request by now
			return
		}
		if ctx.Err() != nil {
			a.log.Warn("the request was not closed", "err", err)
			return
		}
		pause(ctx, 50*time.Millisecond)
	}
}
