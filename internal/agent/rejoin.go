package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

const stopBudget = 10 * time.Second

// rewind brings this diverged copy back to the leader's history, keeping the diverged tail. A failure makes the next plan a reseed.
func (a *Agent) rewind(ctx context.Context, v ag.View, source ag.ReplicaID) (func(), error) {
	was := v.Local.Copy
	failed := func() { a.noRewind = was }
	if err := a.stopForRepair(ctx, v, source); err != nil {
		return nil, err
	}
	if err := a.keepFork(ctx, v); err != nil {
		return nil, err
	}
	a.showProgress("rewinding")
	if err := a.cfg.Marks.SetRepairing(source); err != nil {
		return nil, err
	}
	if err := a.cfg.Instance.Rewind(ctx, a.showProgress); err != nil {
		return failed, fmt.Errorf("rewind: %w; this copy will be made anew from %s", err, source)
	}
	fresh := a.repaired(boottime.Now())
	return func() { fresh(); a.rewoundIn = v.Record.Epoch.Epoch }, a.newCopy("", v)
}

// repaired forgets what was known of the copy before: where it ended, and that a source refused it.
func (a *Agent) repaired(at time.Duration) func() {
	return func() { a.noRewind, a.observed, a.repairedAt = "", Observation{}, at }
}

// reseed makes a new copy from the source.
func (a *Agent) reseed(ctx context.Context, v ag.View, source ag.ReplicaID) (func(), error) {
	from, ok := v.Group.Replica(source)
	if !ok {
		return nil, fmt.Errorf("%s is not a replica of this group", source)
	}
	if err := a.stopForRepair(ctx, v, source); err != nil {
		return nil, err
	}
	if v.Local.Data == ag.DataPresent {
		if err := a.keepFork(ctx, v); err != nil {
			return nil, err
		}
	}
	if err := a.cfg.Marks.SetRepairing(source); err != nil {
		return nil, err
	}
	id, err := a.cfg.Seeder.Seed(ctx, from, v.Record.Epoch.Epoch, a.showProgress)
	if err != nil {
		return nil, fmt.Errorf("seed from %s: %w", source, err)
	}
	return a.repaired(boottime.Now()), a.newCopy(id, v)
}

// stopForRepair stops the server and points the upstream at the source, through which the repair reads.
func (a *Agent) stopForRepair(ctx context.Context, v ag.View, source ag.ReplicaID) error {
	leader, ok := v.Group.Replica(source)
	if !ok {
		return fmt.Errorf("%s is not a replica of this group", source)
	}
	if _, err := a.cfg.Keeper.Stop(ctx, stopBudget); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	return a.seal.follow(ctx, leader, v.Record.Epoch.Epoch)
}

// keepFork sets the diverged tail aside before anything overwrites it (S5).
func (a *Agent) keepFork(ctx context.Context, v ag.View) error {
	dir, err := a.cfg.Instance.KeepFork(ctx, v.ForkPoint())
	if err != nil {
		return fmt.Errorf("keep the diverged tail: %w", err)
	}
	a.log.Info("diverged tail kept", "dir", dir, "from", v.ForkPoint().String(), "to", v.Local.Position.String())
	return nil
}

// newCopy gives the copy its new identity, inside the data directory and outside.
func (a *Agent) newCopy(id ag.CopyID, v ag.View) error {
	if id == "" {
		id = NewCopyID()
	}
	if err := a.cfg.Instance.WriteCopy(id); err != nil {
		return fmt.Errorf("mark the copy: %w", err)
	}
	if err := a.cfg.Marks.SetCopy(CopyMark{Copy: id, Epoch: v.Record.Epoch.Epoch, Seq: v.Record.State.Seq}); err != nil {
		return err
	}
	if err := a.cfg.Marks.ClearPromoting(); err != nil {
		return err
	}
	return a.cfg.Marks.ClearRepairing()
}

// NewCopyID makes the identity of a new copy: a random UUID.
func NewCopyID() ag.CopyID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return ag.CopyID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}
