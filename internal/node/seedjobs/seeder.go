package seedjobs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// attempt is one attempt to fill the data directory.
type attempt struct {
	op           string // the operation
	request      Request
	epoch        ag.Epoch
	from, leader ag.Replica // from is leader, or a secondary
}

// Seed fills the data directory from the primary that the job names, or from a secondary in its place, and returns the
// id of the copy. note gets a line of progress now and then. It implements agent.Seeder.
func (c *Controller) Seed(ctx context.Context, job agent.SeedJob, note func(string)) (ag.CopyID, error) {
	from, why := c.chooseSource(job.From)
	ctx, a, err := c.start(ctx, from, why, job.Because)
	if err != nil {
		return "", err
	}
	a.epoch, a.leader = job.Epoch, job.From
	var r seeding.Result
	if err = context.Cause(ctx); err == nil {
		err = job.Begins()
	}
	if err == nil {
		r, err = c.copy(ctx, a, func(p progress.Progress) {
			c.show(a.op, p)
			note(Line(p))
		})
	}
	c.finish(a, ctx.Err() != nil && !errors.Is(context.Cause(ctx), seeding.ErrCancelled), err)
	if err != nil {
		return "", err
	}
	p := r.Progress
	c.Logger.Info("seeded", "from", from.ID, "bytes", p.Done, "same", p.Same, "wire", p.Wire, "took", p.Took.Round(time.Millisecond), "codec", p.Codec,
		"windows", p.Windows, "cuts", p.Cuts)
	fault.Point("seed.unforgotten") // the copy is whole; the mark of an older rewind may be there
	return r.Copy, c.ForgetRewind() // a rewind of the copy that was replaced is void
}

// start records that an attempt begins. The context that it returns is cancelled by Cancel. It fails where because is
// a request that was withdrawn after the agent decided: the agent stops the server meanwhile, and that takes a while.
func (c *Controller) start(ctx context.Context, from ag.Replica, why, because string) (context.Context, attempt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if because != "" && because == c.withdrawn {
		return ctx, attempt{}, fmt.Errorf("the request for a new copy was %w, and nothing of this one was changed", seeding.ErrCancelled)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c.begin("the data directory held no copy that could be used")
	c.cancel = cancel
	if c.request.Cancelled != "" { // after the agent decided and before now
		cancel(seeding.ErrCancelled)
	}
	c.journal.Change(c.open, func(o *seeding.Operation) {
		o.State, o.Source, o.Chosen, o.Next = seeding.Seeding, from.ID, why, time.Time{}
		o.Attempts++
		o.Progress = progress.Progress{}
	})
	return ctx, attempt{op: c.open, request: c.request, from: from}, nil
}

// show records the progress of an operation.
func (c *Controller) show(id string, p progress.Progress) {
	c.journal.Change(id, func(o *seeding.Operation) { o.Progress, o.ETA = p, p.ETA().Seconds() })
}

// finish records the end of an attempt. interrupted reports whether the agent ended it: such an end is not a failure,
// and the next attempt begins at once.
func (c *Controller) finish(a attempt, interrupted bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel(nil)
	c.cancel = nil
	if err == nil {
		if err := c.save(Request{}); err != nil {
			c.Logger.Warn("a request that was met was not removed", "err", err)
		}
		c.failures, c.open = 0, ""
		c.journal.Change(a.op, func(o *seeding.Operation) {
			o.State, o.Ended, o.Failure, o.FailedAt, o.ETA = seeding.Completed, time.Now(), nil, time.Time{}, 0
		})
		return
	}
	f := seeding.Explain(err)
	if interrupted {
		f.Code, f.State = 207, "INTERRUPTED"
	}
	if c.epoch != a.epoch || interrupted {
		c.failures = 0
	}
	c.epoch, c.failed = a.epoch, f.Text
	if !interrupted {
		c.retryAt = time.Now().Add(min(retryFirst<<min(c.failures, 10), retryMost))
		c.failures++
	}
	c.journal.Change(a.op, func(o *seeding.Operation) {
		o.Failure, o.FailedAt = &f, time.Now()
		if !o.State.Ended() {
			o.State, o.Next = seeding.Retrying, c.retryAt
		}
	})
}

// copy makes one attempt. It is refused where the replica's SEEDING_MODE forbids it.
func (c *Controller) copy(ctx context.Context, a attempt, show func(progress.Progress)) (seeding.Result, error) {
	me, _ := c.Replica(c.Self)
	if me.Options.NoSeeding || me.Options.ManualSeeding && !a.request.Asked {
		return seeding.Result{}, fmt.Errorf("%w (SEEDING_MODE = MANUAL, or denied); allow it, or ask for a copy with coterie replica seed %s", seeding.ErrForbidden, c.Self)
	}
	dial := func(to ag.Replica) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) { return c.Dial(ctx, to) }
	}
	var anchor func(context.Context) (net.Conn, error)
	if a.from.ID != a.leader.ID {
		anchor = dial(a.leader)
	}
	return c.run(ctx, seeding.Options{
		Dial: dial(a.from), Anchor: anchor,
		Member: c.Self, Epoch: a.epoch, Target: c.place().data, StateDir: c.StateDir, Major: c.place().major, From: a.request.From,
		Compression: me.Options.SeedCompression, Spread: spreadCheckpoint(me.Options.SeedMaxRate, c.Routes()),
		MaxRate: c.maxRate,
		TablespaceMap: func(_ uint32, location string) (string, error) {
			if place, ok := c.Tablespaces[location]; ok {
				return place, nil
			}
			return location, nil // CREATE TABLESPACE is replayed with the same path everywhere
		},
		NodeFiles: c.NodeFiles,
		Progress:  show,
	})
}

// maxRate returns the limit in force, in bytes per second; 0: none. It may be changed while a copy is made.
func (c *Controller) maxRate() int64 {
	me, _ := c.Replica(c.Self)
	return me.Options.SeedMaxRate
}

// spreadCheckpoint reports whether a copy begins with a checkpoint that takes its time, most of checkpoint_timeout. A
// copy with a limit must not disturb the work of the source. While writes are not open the source has no such work, and
// writes may wait for this very copy.
func spreadCheckpoint(limit int64, r *ag.Routes) bool { return limit > 0 && r != nil && r.WriteOpen }

// chooseSource returns the replica to copy from, and why. That is the primary, unless a healthy secondary has a higher
// BACKUP_PRIORITY. After a copy from a secondary that failed, the next one is from the primary.
func (c *Controller) chooseSource(leader ag.Replica) (ag.Replica, string) {
	v, snap := c.View(), c.Snapshot()
	if v == nil || snap == nil {
		return leader, "the primary"
	}
	if op, ok := c.journal.Last(); ok && !op.State.Ended() && op.Failure != nil && op.Source != "" && op.Source != leader.ID {
		return leader, fmt.Sprintf("the primary: the copy from %s failed", op.Source)
	}
	return bestSource(v, snap.Statuses, c.Self, leader)
}

// bestSource returns the healthy secondary with the highest BACKUP_PRIORITY above the primary's, or else the primary,
// and why.
func bestSource(v *ag.View, statuses map[ag.ReplicaID]agent.Status, self ag.ReplicaID, leader ag.Replica) (ag.Replica, string) {
	if v.Group.Options.BackupPreference == ag.BackupPrimary {
		return leader, "the primary: AUTOMATED_BACKUP_PREFERENCE is PRIMARY"
	}
	best, most := leader, backupPriority(leader)
	for _, r := range v.Group.Replicas {
		st := statuses[r.ID]
		healthy := r.HasData() && !r.Suspended && st.Stream && st.Server == ag.ServerRecovery && st.Busy == "" && st.Ill == "" && st.Quarantine == "" &&
			slices.Contains(v.Reach, r.ID)
		if r.ID != self && r.ID != leader.ID && healthy && backupPriority(r) > most {
			best, most = r, backupPriority(r)
		}
	}
	if best.ID == leader.ID {
		return leader, fmt.Sprintf("the primary: no healthy secondary has a higher BACKUP_PRIORITY than its %d", most)
	}
	return best, fmt.Sprintf("its BACKUP_PRIORITY %d is above the primary's %d", most, backupPriority(leader))
}

// backupPriority returns a replica's BACKUP_PRIORITY, 50 unless it is set.
func backupPriority(r ag.Replica) int {
	if r.Options.BackupPriority == nil {
		return 50
	}
	return *r.Options.BackupPriority
}
