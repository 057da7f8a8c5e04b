package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Budgets of a planned failover (safety specification 9).
const (
	handOverBudget = 30 * time.Second
	quietBudget    = 2 * time.Second
	finishBudget   = time.Second
	askBudget      = 2 * time.Second
	maxReplayLag   = 16 << 20
)

// handOver moves the leadership to act.To without a loss. Every step before the commit can be abandoned: then this node goes on, or
// starts again, in the same epoch.
func (a *Agent) handOver(ctx context.Context, v ag.View, act ag.HandOver) (func(), error) {
	to, err := a.prepareHandOver(ctx, v, act.To)
	if err != nil {
		return nil, fmt.Errorf("planned failover to %s not begun: %w", act.To, err)
	}
	a.showProgress("gate shut, sessions closed")
	a.cfg.Sessions.Hold(true)
	defer a.cfg.Sessions.Hold(false)
	a.shut.Store(true) // from here on no client is told of a commit that quiet does not see
	defer a.shut.Store(false)
	a.Wake() // the others' routes
	a.cfg.Sessions.CloseLocal("planned failover to " + string(act.To))
	x, err := a.quiet(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("planned failover to %s abandoned: %w", act.To, err)
	}
	a.showProgress("stopping the server")
	clean, err := a.cfg.Keeper.Stop(ctx, finishBudget)
	if err != nil {
		return nil, fmt.Errorf("planned failover to %s abandoned while stopping: %w", act.To, err)
	}
	final, err := a.cfg.Instance.EndOfWAL(ctx)
	if err != nil {
		return nil, fmt.Errorf("planned failover to %s abandoned: read the final position: %w", act.To, err)
	}
	need := ag.Position{Timeline: final.Timeline, LSN: x}
	if clean {
		need = final
	}
	if err := a.awaitFlush(ctx, to, need, quietBudget); err != nil {
		return nil, fmt.Errorf("planned failover to %s abandoned, this node leads again: %w", act.To, err)
	}
	return nil, a.commitHandOver(ctx, v, act.To, need)
}

// prepareHandOver refuses a target that could not take over at once.
func (a *Agent) prepareHandOver(ctx context.Context, v ag.View, id ag.ReplicaID) (ag.Replica, error) {
	to, ok := v.Group.Replica(id)
	if !ok {
		return to, fmt.Errorf("the group has no replica %s", id)
	}
	if _, in := v.Record.State.InV(id); !in {
		return to, fmt.Errorf("%s is not SYNCHRONIZED; wait for it, or force the failover and accept loss", id)
	}
	a.showProgress("checkpoint")
	if err := a.cfg.Instance.Checkpoint(ctx); err != nil {
		return to, err
	}
	ask, cancel := context.WithTimeout(ctx, askBudget)
	defer cancel()
	pos, err := a.cfg.Peers.Position(ask, to)
	if err != nil {
		return to, fmt.Errorf("%s does not answer: %w", id, err)
	}
	if lag := int64(pos.Flush.LSN) - int64(pos.Replay); lag > maxReplayLag {
		return to, fmt.Errorf("%s has %d MiB left to replay", id, lag>>20)
	}
	return to, nil
}

// quiet waits until the target has flushed and replayed what this server has flushed.
func (a *Agent) quiet(ctx context.Context, to ag.Replica) (ag.LSN, error) {
	x, err := a.cfg.Instance.FlushLSN(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, quietBudget)
	defer cancel()
	for {
		pos, err := a.cfg.Peers.Position(ctx, to)
		if err == nil && pos.Flush.LSN >= x && pos.Replay >= x {
			return x, nil
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%s did not catch up to %s within %v", to.ID, x, quietBudget)
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func (a *Agent) awaitFlush(ctx context.Context, to ag.Replica, need ag.Position, budget time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for {
		pos, err := a.cfg.Peers.Position(ctx, to)
		if err == nil && pos.Flush.LSN >= need.LSN {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s has not flushed %s", to.ID, need)
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// commitHandOver is the step after which the target leads: the writer itself has stopped and released, so no seal is needed.
func (a *Agent) commitHandOver(ctx context.Context, v ag.View, to ag.ReplicaID, final ag.Position) error {
	e := v.Record.Epoch
	e.Epoch++
	e.Phase, e.Leader, e.From = ag.PhasePromote, to, final
	if m, in := v.Record.State.InV(to); in {
		e.Copy = m.Copy // no other copy than the one that was counted may be promoted
	}
	e.MaxTLI++
	e.TLI, e.Forced = e.MaxTLI, false
	e.Reason = fmt.Sprintf("planned failover from %s", a.cfg.Self)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := a.cfg.Store.Commit(ctx, ag.Commit{Guard: ag.Revisions{Epoch: v.Record.Revs.Epoch, State: v.Record.Revs.State, Lead: -1}, Epoch: &e}); err != nil {
		return fmt.Errorf("hand over to %s: %w", to, err)
	}
	a.lease.void()
	if err := a.cfg.Keeper.Disarm(ctx, v.Record.Epoch.Epoch); err != nil {
		a.log.Warn("keeper not disarmed", "err", err)
	}
	a.lease.armed.Store(0)
	return nil
}

func (a *Agent) closeOp(rev int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := a.cfg.Store.CloseOp(ctx, rev); err != nil {
		a.log.Debug("request not closed", "err", err)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
