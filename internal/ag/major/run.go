package major

import (
	"context"
	"errors"
	"fmt"
)

// Node is what the procedure does on a node and to its group. Each call may be repeated after an interruption, and is
// durable when it returns.
type Node interface {
	// Save stores the state of the upgrade.
	Save(u Upgrade) error
	// Facts reads the record, linearizably, and waits for the quorum as long as ctx allows.
	Facts(ctx context.Context, u Upgrade) (Facts, error)
	// Make makes the new cluster, and returns u with both clusters as they are then. Nothing else of the node or the
	// group changes. After an error the old cluster can be used as before once Remove has been called.
	Make(ctx context.Context, u Upgrade) (Upgrade, error)
	// Pass makes the transaction if nothing of what f shows has changed since.
	Pass(ctx context.Context, f Facts, p Passage) error
	// Void makes sure that no transaction of Pass takes effect any more whose outcome is not known. It ends the
	// maintenance of u.
	Void(ctx context.Context, u Upgrade) error
	// Adopt has this node's files name the cluster To.
	Adopt(u Upgrade) error
	// Remove removes the new cluster and gives the old one back what Make took from it.
	Remove(u Upgrade) error
	// Drop makes the copy of the old cluster unusable and has this node's files name the programs of To.
	Drop(ctx context.Context, u Upgrade) error
}

// maxSteps bounds the steps of one run. No upgrade has as many.
const maxSteps = 12

// Run goes on with an upgrade until this node can be started, on the one cluster or on the other. It returns the state
// that it has saved. After an error, or a crash, Run is to be called again before anything is started.
func Run(ctx context.Context, n Node, u Upgrade) (Upgrade, error) {
	for range maxSteps {
		if u.Phase == Done || u.Phase == GivenUp {
			return u, nil
		}
		f, err := n.Facts(ctx, u)
		if err != nil {
			return u, fmt.Errorf("look at the group: %w", err)
		}
		step, why := u.Next(f)
		if step == Rest {
			return u, nil
		}
		next, err := u.take(ctx, n, f, decision{step, why})
		if err != nil {
			return u, err
		}
		if next.Phase != u.Phase {
			if err := n.Save(next); err != nil {
				return u, err
			}
		}
		u = next
	}
	return u, errors.New("the upgrade does not end: the group changes all the time")
}

// decision is a step, and the reason of a GiveUp.
type decision struct {
	step Step
	why  string
}

// take takes one step, and returns the upgrade as it is to be saved then. The same phase means that the group is to be
// looked at again.
func (u Upgrade) take(ctx context.Context, n Node, f Facts, d decision) (Upgrade, error) {
	switch d.step {
	case Make:
		made, err := n.Make(ctx, u)
		if ctx.Err() != nil {
			return u, ctx.Err() // the node ends; the next one makes it again
		}
		if err != nil {
			return u.giveUp(ctx, n, err.Error())
		}
		u, u.Phase = made, Made
	case Pass:
		err := n.Pass(ctx, f, u.Passage(f))
		if ctx.Err() != nil {
			return u, ctx.Err()
		}
		if err == nil {
			u.Phase = Passed
		} // else the next look decides: it may have been made all the same
	case Adopt:
		if err := n.Adopt(u); err != nil {
			return u, err
		}
		u.Phase = Done
	case Drop:
		if err := n.Drop(ctx, u); err != nil {
			return u, err
		}
		u.Phase = Done
	case GiveUp:
		return u.giveUp(ctx, n, d.why)
	case Rest:
	}
	return u, nil
}

// giveUp has the group go on with the old cluster. A transaction whose outcome is not known is made void first; if it
// had been made, the upgrade is not given up.
func (u Upgrade) giveUp(ctx context.Context, n Node, why string) (Upgrade, error) {
	if u.Phase != Following {
		if err := n.Void(ctx, u); err != nil {
			return u, fmt.Errorf("give the upgrade up (%s): %w", why, err)
		}
		f, err := n.Facts(ctx, u)
		if err != nil {
			return u, fmt.Errorf("give the upgrade up (%s): %w", why, err)
		}
		if u.stands(f) == passed {
			return u, nil
		}
		if !u.Back {
			if err := n.Remove(u); err != nil {
				return u, fmt.Errorf("give the upgrade up (%s): %w", why, err)
			}
		}
	}
	u.Phase, u.Why = GivenUp, why
	return u, nil
}
