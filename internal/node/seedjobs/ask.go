package seedjobs

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
)

// firstViewPatience bounds how long a request waits for the agent's first turn. It is well below callTimeout, so that a
// request from another node gets the answer and does not run into its own deadline.
const firstViewPatience = 5 * time.Second

// firstView returns the agent's view. An agent that has just started has none before its first turn, and firstView
// waits for that turn. Otherwise an operator who sees that the node is up would be refused without a reason of their
// own. It returns nil when patience or ctx ends.
func firstView(ctx context.Context, view func() *ag.View) *ag.View {
	ctx, cancel := context.WithTimeout(ctx, firstViewPatience)
	defer cancel()
	var v *ag.View
	_ = retry.Until(ctx, 50*time.Millisecond, func() (bool, error) { // it fails only by the end of ctx
		v = view()
		return v != nil, nil
	})
	return v
}

// Ask takes an operator's request for a new copy, or for a verification of the present one. It returns the operation
// once the request is on disk. A request that cannot be met is a fail.Error.
func (c *Controller) Ask(ctx context.Context, req api.SeedRequest) (seeding.Operation, error) {
	v := firstView(ctx, c.View)
	if v == nil {
		return seeding.Operation{}, fail.Unhealthyf("%s has just begun and does not know the group yet; ask again", c.Self)
	}
	if req.Verify {
		return c.askVerify(v)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if op, ok := c.journal.Last(); ok && op.ID == c.open && c.cancel != nil {
		if req.From != "" || req.Full {
			return op, fail.Unhealthyf("a copy to %s is under way; watch it with coterie replica seed %s --watch, or end it first with --cancel", c.Self, c.Self)
		}
		return op, nil
	}
	if err := c.refusal(v, req); err != nil {
		return seeding.Operation{}, err
	}
	r := Request{Asked: true, Copy: v.Local.Copy, From: req.From, Because: "an operator asked for a new copy"}
	if req.From != "" {
		r.Because += ", beginning with what is in " + req.From
	}
	if err := c.save(r); err != nil {
		return seeding.Operation{}, err
	}
	fault.Point("seed.asked") // the operator's request is on disk; the agent does not know of it
	c.failures, c.retryAt, c.withdrawn = 0, time.Time{}, ""
	c.begin(r.Because)
	c.Wake()
	op, _ := c.journal.Last()
	return op, nil
}

// begin opens an operation unless one is open. c.mu is held.
func (c *Controller) begin(why string) {
	if c.open == "" {
		c.open = c.journal.Begin(seeding.Operation{Target: c.Self, State: seeding.Pending, Because: why})
	}
}

// refusal returns why a copy cannot be asked for here; nil: it can. c.mu is held.
func (c *Controller) refusal(v *ag.View, req api.SeedRequest) error {
	me := c.Self
	self, _ := v.Group.Replica(me)
	switch {
	case v.Record.Epoch.Leader == me:
		return fail.Refusedf("%s is the primary: there is nothing to copy from; coterie failover first", me)
	case self.Suspended:
		return fail.Refusedf("%s is suspended; coterie replica resume %s first", me, me)
	case self.Options.NoSeeding:
		return fail.Refusedf("%s does not consent to being seeded; there: ALTER AVAILABILITY GROUP [%s] GRANT CREATE ANY DATABASE", me, v.Group.Name)
	case v.Local.Data == ag.DataForeign:
		return fail.Refusedf("the data directory of %s does not hold the copy it was given; nothing touches it: move it away yourself", me)
	case v.Local.Data == ag.DataPresent && !req.Full && c.open == "":
		return fail.Refusedf("%s holds a whole copy; --full compares every byte of it with the source and replaces what differs, --verify only reads it", me)
	}
	if req.From != "" {
		if st, err := os.Stat(filepath.Join(req.From, "PG_VERSION")); !filepath.IsAbs(req.From) || err != nil || !st.Mode().IsRegular() {
			return fail.Usagef("%s: on %s that is not the absolute path of a data directory that its agent can read", req.From, me)
		}
	}
	return nil
}

// Cancel ends the copy or the verification under way. Where a copy is still needed, none begins before an operator
// requests one. It is refused where nothing is under way.
func (c *Controller) Cancel() (seeding.Operation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	op, ok := c.journal.Last()
	if !ok || op.State.Ended() {
		return op, fail.Refusedf("nothing is being copied to %s, or verified there", c.Self)
	}
	next := c.request
	if op.Report == nil {
		next = Request{}
	}
	if v := c.View(); op.Report == nil && (v == nil || v.Local.Data != ag.DataPresent || c.cancel != nil || !c.request.Asked) {
		next.Cancelled = time.Now().Format(time.DateTime)
	}
	withdrawn := c.withdrawn
	if op.Report == nil && next.Cancelled == "" {
		withdrawn = c.request.Because
	}
	if err := c.save(next); err != nil {
		return op, err
	}
	c.withdrawn = withdrawn
	end := c.cancel
	if op.Report != nil {
		end = c.stop
	}
	if end != nil {
		end(seeding.ErrCancelled)
	}
	c.journal.Change(op.ID, func(o *seeding.Operation) { o.State, o.Ended = seeding.Cancelled, time.Now() })
	c.open = ""
	c.Wake()
	op, _ = c.journal.Last()
	return op, nil
}

// askVerify begins a verification unless a copy or another verification is under way.
func (c *Controller) askVerify(v *ag.View) (seeding.Operation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	op, _ := c.journal.Last()
	switch {
	case op.State == seeding.Verifying:
		return op, nil
	case c.open != "":
		return op, fail.Unhealthyf("a copy to %s is under way: what is there is not whole", c.Self)
	case v.Local.Server != ag.ServerRecovery && v.Local.Server != ag.ServerWritable:
		return op, fail.Unhealthyf("the server of %s does not run, and only a running one is verified; coterie status says what it waits for: ask again then", c.Self)
	}
	if len(c.verify) == cap(c.verify) { // with one that was cancelled; only askVerify adds, and c.mu is held
		return op, fail.Unhealthyf("another verification is about to begin")
	}
	c.verify <- c.journal.Begin(seeding.Operation{Target: c.Self, State: seeding.Verifying, Because: "an operator asked", Attempts: 1, Report: &pagesum.Report{}})
	op, _ = c.journal.Last()
	return op, nil
}

// verifyOnce runs the verification with that id, unless it was cancelled before it began.
func (c *Controller) verifyOnce(ctx context.Context, id string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.mu.Lock()
	c.stop = cancel
	ended := !slices.ContainsFunc(c.journal.List(), func(o seeding.Operation) bool { return o.ID == id && !o.State.Ended() })
	c.mu.Unlock()
	if ended {
		cancel(seeding.ErrCancelled)
	}
	r, err := c.check(ctx, source.VerifyOptions{
		Data: c.place().data, Connect: c.Connect, MaxRate: c.maxRate,
		Progress: func(p progress.Progress) { c.show(id, p) },
	})
	c.mu.Lock()
	c.stop = nil
	c.mu.Unlock()
	if r.Damaged > 0 {
		c.Logger.Error("damaged pages found", "pages", r.Damaged, "first", r.First[0].Error())
	}
	c.journal.Change(id, func(o *seeding.Operation) {
		o.Report, o.ETA = &r, 0
		if o.State.Ended() {
			return
		}
		o.State, o.Ended = seeding.Completed, time.Now()
		if err != nil {
			f := seeding.Explain(err)
			o.State, o.Failure, o.FailedAt = seeding.Failed, &f, time.Now()
		}
	})
}
