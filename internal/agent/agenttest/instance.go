package agenttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

type instance Node

func (i *instance) n() *Node { return (*Node)(i) }

func (i *instance) Data() (d ag.DataState) {
	i.n().locked(func() { d = i.data })
	return d
}

func (i *instance) InsideCopy() (c ag.CopyID, err error) {
	i.n().locked(func() { c = i.inside })
	return c, nil
}

func (i *instance) WriteCopy(id ag.CopyID) error {
	if err := i.n().begin(context.Background(), "write-copy"); err != nil {
		return err
	}
	i.n().locked(func() { i.inside = id })
	return nil
}

func (i *instance) running(ctx context.Context) error {
	i.w.mu.Lock()
	pid, hung := i.pid, i.hung
	i.w.mu.Unlock()
	switch {
	case pid == 0:
		return errors.New("no server answers")
	case hung:
		_ = retry.Sleep(ctx, time.Second)
		return errors.New("the server does not answer")
	}
	return ctx.Err()
}

func (i *instance) Observe(ctx context.Context) (o agent.Observation, err error) {
	if err := i.running(ctx); err != nil {
		return o, err
	}
	i.n().locked(func() {
		o = agent.Observation{
			InRecovery: i.recovery, Position: i.n().position(), Flushed: i.n().flushed(), Replay: i.n().end(), Receiving: i.n().receiving(), Streamed: i.recovery && i.streamed,
			P: slices.Clone(i.syncP), N: i.syncN, SyncEpoch: i.syncEpoch, Doubled: slices.Clone(i.doubled), Waiters: len(i.waits),
		}
		if i.written != nil {
			w := *i.written
			o.Written = &w
		}
		if i.torn || i.recovery && boottime.Now() < i.replayed {
			o.Replay--
		}
	})
	return o, nil
}

func (i *instance) EndOfWAL(ctx context.Context) (p ag.Position, err error) {
	i.n().locked(func() { p = i.n().position() })
	if p.Timeline == 0 {
		err = errors.New("no WAL here")
	}
	return p, errors.Join(err, ctx.Err())
}

func (i *instance) Holds(ctx context.Context, pos ag.Position) (held bool, err error) {
	if err := i.n().begin(ctx, "holds"); err != nil {
		return false, err
	}
	i.n().locked(func() {
		at := i.n().flushed()
		held = at.Timeline >= pos.Timeline && at.LSN >= pos.LSN
	})
	return held, ctx.Err()
}

func (i *instance) History(_ context.Context, tli ag.Timeline) (h []ag.TimelineEntry, err error) {
	if err := i.n().begin(context.Background(), "history"); err != nil {
		return nil, err
	}
	i.n().locked(func() { h = slices.Clone(i.tls) })
	if len(h) == 0 || h[len(h)-1].TLI != tli {
		return nil, fmt.Errorf("no history of timeline %d", tli)
	}
	return h, nil
}

// CatchUp waits for replay. It ends with the server, as a session does.
func (i *instance) CatchUp(ctx context.Context, _ ag.Position, _ ag.Timeline) error {
	i.w.mu.Lock()
	was := i.pid
	i.w.mu.Unlock()
	for {
		if err := i.running(ctx); err != nil {
			return err
		}
		i.w.mu.Lock()
		pid, waits := i.pid, i.recovery && boottime.Now() < i.replayed
		i.w.mu.Unlock()
		switch {
		case pid != was:
			return errors.New("the server has ended")
		case !waits:
			return nil
		}
		_ = retry.Sleep(ctx, 5*time.Millisecond)
	}
}

// Promote replays what there is first, however long it takes.
func (i *instance) Promote(ctx context.Context, tli ag.Timeline) (end ag.LSN, xids ag.Xids, err error) {
	if err := i.n().begin(ctx, "promote"); err != nil {
		return 0, ag.Xids{}, err
	}
	if err := i.CatchUp(ctx, ag.Position{}, 0); err != nil {
		return 0, ag.Xids{}, err
	}
	i.n().locked(func() {
		at := i.n().position()
		switch {
		case !i.recovery && at.Timeline == tli:
			end = i.n().end() // already done
		case !i.recovery:
			err = errors.New("the server is not in recovery")
		case at.Timeline >= tli:
			err = fmt.Errorf("timeline %d is not above %d", tli, at.Timeline)
		default:
			i.tls = append(i.tls, ag.TimelineEntry{TLI: tli, Parent: at.Timeline, Switch: at.LSN})
			i.recovery, xids = false, ag.Xids{Kept: uint64(at.LSN), Lost: uint64(at.LSN) + 1}
			end = i.w.append(i.n()).LSN
		}
	})
	return end, xids, err
}

func (i *instance) SetSync(ctx context.Context, p []ag.ReplicaID, k int, e ag.Epoch) error {
	if err := i.running(ctx); err != nil {
		return err
	}
	err := i.n().begin(ctx, "set-sync")
	if err != nil && !errors.Is(err, ErrAfterEffect) {
		return err
	}
	i.n().locked(func() {
		i.syncP, i.syncN, i.syncEpoch, i.written = slices.Clone(p), k, e, nil
		if k == 0 {
			i.syncP, i.syncEpoch = nil, 0
		}
	})
	return err
}

func (i *instance) FlushLSN(ctx context.Context) (l ag.LSN, err error) {
	i.n().locked(func() { l = i.n().end() })
	return l, i.running(ctx)
}

func (i *instance) Strays(context.Context) (found []ag.ReplicaID, err error) {
	i.n().locked(func() { found = slices.Clone(i.doubled) })
	return found, nil
}

func (i *instance) EndWalsenders(ctx context.Context, member ag.ReplicaID) error {
	if err := i.n().begin(ctx, "end-walsenders"); err != nil {
		return err
	}
	i.n().locked(func() { i.doubled = slices.DeleteFunc(i.doubled, func(id ag.ReplicaID) bool { return id == member }) })
	return nil
}

func (i *instance) Checkpoint(ctx context.Context) error {
	return errors.Join(i.n().begin(ctx, "checkpoint"), i.running(ctx))
}

func (i *instance) FreshSegment(ctx context.Context) (ag.LSN, error) {
	return 0, errors.Join(i.n().begin(ctx, "fresh-segment"), i.running(ctx))
}

func (i *instance) EndWriters(ctx context.Context) error {
	return errors.Join(i.n().begin(ctx, "end-writers"), i.running(ctx))
}

func (i *instance) EndConflicts(context.Context) error { return nil }

func (i *instance) RestoreConflicts(context.Context) error { return nil }

func (i *instance) ProbeCommit(ctx context.Context) (<-chan error, func(context.Context) bool, error) {
	if err := i.n().begin(ctx, "probe-commit"); err != nil {
		return nil, nil, err
	}
	if err := i.running(ctx); err != nil {
		return nil, nil, err
	}
	var done <-chan error
	var at ag.LSN
	i.n().locked(func() {
		var c Entry
		c, done = i.n().commit()
		at = c.LSN
	})
	return done, func(context.Context) (waits bool) {
		i.n().locked(func() { waits = slices.ContainsFunc(i.waits, func(x *waiting) bool { return x.at == at }) })
		return waits
	}, nil
}

func (i *instance) EnsureSlots(context.Context, map[ag.ReplicaID]ag.LSN) error { return nil }

func (i *instance) KeepFork(_ context.Context, from ag.Position) (string, error) {
	i.n().locked(func() { i.forks = append(i.forks, from) })
	return "forked", nil
}

func (i *instance) Rewind(ctx context.Context, progress func(string)) error {
	i.n().locked(func() { i.rewind++ })
	if err := i.n().begin(ctx, "rewind"); err != nil {
		return err
	}
	progress("copying")
	return i.n().copyFrom(ctx, i.source)
}
