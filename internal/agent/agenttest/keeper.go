package agenttest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Keeper returns the node's agent.Keeper.
func (n *Node) Keeper() agent.Keeper { return (*keeper)(n) }

type keeper Node

func (k *keeper) n() *Node { return (*Node)(k) }

func (k *keeper) Start(_ context.Context, generation uint64) (err error) {
	if err := k.n().begin(context.Background(), "start"); err != nil {
		return err
	}
	k.n().locked(func() {
		switch {
		case k.pid != 0:
			err = errors.New("a server runs already")
		case k.data != ag.DataPresent:
			err = errors.New("no data directory")
		case generation <= k.generation:
			err = fmt.Errorf("generation %d was used", generation)
		default:
			k.pids++
			k.starts++
			k.pid, k.generation, k.recovery, k.hung, k.streamed = 100+k.pids, generation, true, false, false
			k.announced, k.replayed = k.inside, boottime.Now()+k.redo
		}
	})
	return err
}

func (k *keeper) StartPrimary(ctx context.Context, generation uint64, e ag.Epoch) (err error) {
	if err := k.n().begin(ctx, "start-primary"); err != nil {
		return err
	}
	k.n().locked(func() {
		switch {
		case k.pid != 0:
			err = errors.New("a server runs already")
		case k.armed != e || boottime.Now() >= k.deadline:
			err = fmt.Errorf("not armed for epoch %d", e)
		default:
			k.pids++
			k.starts++
			k.pid, k.generation, k.recovery, k.hung = 100+k.pids, generation, false, false
		}
	})
	return err
}

func (k *keeper) bounds(e ag.Epoch, deadline time.Duration) error {
	switch {
	case e < k.seenEpoch:
		return fmt.Errorf("epoch %d is lower than %d", e, k.seenEpoch)
	case deadline <= boottime.Now():
		return errors.New("the deadline has passed")
	case k.armed != 0 && deadline < k.deadline:
		return errors.New("the deadline would move back")
	}
	return nil
}

func (k *keeper) Arm(ctx context.Context, e ag.Epoch, deadline time.Duration) (err error) {
	k.n().locked(func() {
		if err = errors.Join(k.bounds(e, deadline), ctx.Err()); err == nil {
			k.armed, k.seenEpoch = e, e
			k.until(deadline)
		}
	})
	return err
}

func (k *keeper) Extend(ctx context.Context, e ag.Epoch, deadline time.Duration) (err error) {
	if err := k.n().begin(ctx, "extend"); err != nil {
		return err
	}
	k.n().locked(func() {
		err = errors.Join(k.bounds(e, deadline), ctx.Err())
		if err == nil && k.armed != e {
			err = fmt.Errorf("not armed for epoch %d", e)
		}
		if err == nil {
			k.until(deadline)
			k.detached = false
		}
	})
	return err
}

func (k *keeper) until(deadline time.Duration) {
	k.deadline = deadline
	if k.timer != nil {
		k.timer.Stop()
	}
	k.timer = time.AfterFunc(boottime.Until(deadline), func() {
		k.n().locked(func() {
			if k.armed != 0 && boottime.Now() >= k.deadline {
				k.fence("the lease deadline passed")
			}
		})
	})
}

func (k *keeper) fence(reason string) {
	if k.pid != 0 {
		k.fences = append(k.fences, reason)
	}
	k.armed = 0
	if k.timer != nil {
		k.timer.Stop()
	}
	k.n().stopped("fenced: " + reason)
}

func (k *keeper) Detach(ctx context.Context, e ag.Epoch, until time.Duration) (err error) {
	if err := k.n().begin(ctx, "detach"); err != nil {
		return err
	}
	k.n().locked(func() {
		switch {
		case k.armed != e:
			err = fmt.Errorf("not armed for epoch %d", e)
		case until <= boottime.Now() || until > k.deadline:
			err = errors.New("the end of the detachment is out of bounds")
		default:
			k.detached = true
			k.until(until)
		}
	})
	return err
}

func (k *keeper) Disarm(_ context.Context, e ag.Epoch) (err error) {
	k.n().locked(func() {
		switch {
		case e < k.seenEpoch:
			err = fmt.Errorf("epoch %d is lower than %d", e, k.seenEpoch)
		case k.pid != 0 && !k.recovery:
			err = errors.New("the server is a primary; stop or fence it first")
		default:
			k.armed = 0
			if k.timer != nil {
				k.timer.Stop()
			}
		}
	})
	return err
}

func (k *keeper) Fence(ctx context.Context, reason string) error {
	if err := k.n().begin(ctx, "fence"); err != nil {
		return err
	}
	k.n().locked(func() { k.fence(reason) })
	return ctx.Err()
}

func (k *keeper) Stop(ctx context.Context, _ time.Duration) (clean bool, err error) {
	err = k.n().begin(ctx, "stop")
	if err != nil && !errors.Is(err, ErrAfterEffect) {
		return false, err
	}
	k.n().locked(func() {
		if k.pid == 0 {
			return
		}
		clean = err == nil && !k.hung
		if clean && !k.recovery {
			k.w.append(k.n()) // the shutdown checkpoint, sent while walsenders live
			k.w.settle()
		}
		k.n().stopped("stopped")
	})
	return clean, ctx.Err()
}

func (k *keeper) Status(ctx context.Context) (s agent.KeeperState, err error) {
	if err := k.n().begin(ctx, "status"); err != nil {
		return s, err
	}
	k.n().locked(func() {
		s = agent.KeeperState{KeeperPID: 1, ServerPID: k.pid, Generation: k.generation, Armed: k.armed}
	})
	return s, ctx.Err()
}

func (k *keeper) Exits() <-chan string { return k.exits }

// Detached is the end of the agent's process: an armed server is fenced at once, as by the end of the keeper's
// connection.
func (n *Node) Detached() {
	n.locked(func() {
		n.agent, n.source, n.sourceEp, n.leading, n.held = nil, "", 0, 0, false
		n.w.hangUp(n.ID)
		n.ended()
		if n.armed != 0 && !n.detached {
			(*keeper)(n).fence("the agent is gone")
		}
		for len(n.exits) > 0 {
			<-n.exits
		}
	})
}
