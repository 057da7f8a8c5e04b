package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
)

// desk is where operators' wishes about this node's copy arrive, and where what became of them is remembered. It implements
// agent.SeedRequests.
type desk struct {
	n       *node
	journal *seeding.Journal
	verify  chan string // ids of verifications to run

	mu       sync.Mutex
	wish     wish
	open     string                  // the operation that is not over; "": none
	cancel   context.CancelCauseFunc // of the attempt, or the verification, under way
	failures int                     // in a row, in epoch
	epoch    ag.Epoch
	retryAt  time.Time
	failed   string // why the last attempt failed
}

// wish is what an operator wants, on disk until it is done.
type wish struct {
	Asked     bool      `json:"asked,omitempty"`
	Copy      ag.CopyID `json:"copy,omitempty"` // the one to be replaced
	From      string    `json:"from,omitempty"` // a starting point
	Because   string    `json:"because,omitempty"`
	Cancelled string    `json:"cancelled,omitempty"` // when; no copy is made until somebody asks for one
}

// How long a failed copy waits before it is tried again: doubled each time.
const (
	retryFirst = 300 * time.Millisecond
	retryMost  = time.Minute
)

func openDesk(n *node) (*desk, error) {
	j, err := seeding.OpenJournal(filepath.Join(n.layout.State(), "seedings.json"))
	if err != nil {
		n.log.Warn("the history of seedings begins anew", "err", err)
	}
	d := &desk{n: n, journal: j, verify: make(chan string, 1)}
	if op, ok := j.Last(); ok && !op.State.Ended() {
		d.open = op.ID
	}
	b, err := os.ReadFile(d.file())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return d, nil
	case err == nil:
		err = json.Unmarshal(b, &d.wish)
	}
	if err != nil {
		return nil, fmt.Errorf("what was asked of this node's copy: %w", err)
	}
	return d, nil
}

func (d *desk) file() string { return filepath.Join(d.n.layout.State(), "seed-wish.json") }

// want stores a wish. d.mu is held.
func (d *desk) want(w wish) error {
	if w == (wish{}) {
		if err := durable.Remove(d.file()); err != nil {
			return fmt.Errorf("forget what was asked: %w", err)
		}
		d.wish = w
		return nil
	}
	if err := durable.ReplaceJSON(d.file(), w); err != nil {
		return fmt.Errorf("remember what was asked: %w", err)
	}
	d.wish = w
	return nil
}

// ReseedReason implements agent.SeedRequests.
func (d *desk) ReseedReason(cp ag.CopyID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wish.Asked && d.wish.Cancelled == "" && d.wish.Copy == cp {
		return d.wish.Because
	}
	return ""
}

// BlockedReason implements agent.SeedRequests.
func (d *desk) BlockedReason(e ag.Epoch) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.wish.Cancelled != "":
		return fmt.Sprintf("seeding was cancelled at %s; coterie seed %s goes on with it", d.wish.Cancelled, d.n.self)
	case d.epoch == e && time.Now().Before(d.retryAt):
		return fmt.Sprintf("copy attempt %d failed: %s; next at %s", d.failures, d.failed, d.retryAt.Format(time.TimeOnly))
	}
	return ""
}

// firstViewPatience bounds how long a question waits for an agent's first turn. It is well below seedCall, so that who asks from another
// node gets the answer and not its own deadline.
const firstViewPatience = 5 * time.Second

// firstView returns a node's view. An agent that has just begun has none before its first turn, for which it waits: who has just been told
// that the node is up would be refused without a reason that is theirs. It returns nil when patience or ctx ends.
func firstView(ctx context.Context, view func() *ag.View) *ag.View {
	ctx, cancel := context.WithTimeout(ctx, firstViewPatience)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		if v := view(); v != nil {
			return v
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// ask takes an operator's wish for a copy, or a verification of the one that is there.
func (d *desk) ask(ctx context.Context, req api.SeedRequest) (seeding.Operation, error) {
	v := firstView(ctx, d.n.agent.View)
	if v == nil {
		return seeding.Operation{}, api.Unhealthy(fmt.Sprintf("%s has just begun and does not know the group yet; ask again", d.n.self))
	}
	if req.Verify {
		return d.askVerify(v)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if op, ok := d.journal.Last(); ok && op.ID == d.open && d.cancel != nil {
		if req.From != "" || req.Full {
			return op, api.Unhealthy(fmt.Sprintf("a copy to %s is under way; watch it with coterie seed %s --watch, or end it first with --cancel", d.n.self, d.n.self))
		}
		return op, nil
	}
	if err := d.refusal(v, req); err != nil {
		return seeding.Operation{}, err
	}
	w := wish{Asked: true, Copy: v.Local.Copy, From: req.From, Because: "an operator asked for a new copy"}
	if req.From != "" {
		w.Because += ", beginning with what is in " + req.From
	}
	if err := d.want(w); err != nil {
		return seeding.Operation{}, err
	}
	d.failures, d.retryAt = 0, time.Time{}
	d.begin(w.Because)
	d.n.agent.Wake()
	op, _ := d.journal.Last()
	return op, nil
}

// begin opens an operation unless one is open. d.mu is held.
func (d *desk) begin(why string) {
	if d.open == "" {
		d.open = d.journal.Begin(seeding.Operation{Target: d.n.self, State: seeding.Pending, Because: why})
	}
}

// refusal says why a copy cannot be asked for here.
func (d *desk) refusal(v *ag.View, req api.SeedRequest) error {
	me, self := d.n.self, ag.Replica{}
	if r, ok := v.Group.Replica(me); ok {
		self = r
	}
	switch {
	case v.Record.Epoch.Leader == me:
		return api.Refused(fmt.Sprintf("%s is the primary: there is nothing to copy from; coterie failover first", me))
	case self.Suspended:
		return api.Refused(fmt.Sprintf("%s is suspended; coterie resume %s first", me, me))
	case self.Options.NoSeeding:
		return api.Refused(fmt.Sprintf("%s does not consent to being seeded; there: ALTER AVAILABILITY GROUP [%s] GRANT CREATE ANY DATABASE", me, v.Group.Name))
	case v.Local.Data == ag.DataForeign:
		return api.Refused(fmt.Sprintf("the data directory of %s does not hold the copy it was given; nothing touches it: move it away yourself", me))
	case v.Local.Data == ag.DataPresent && !req.Full && d.open == "":
		return api.Refused(fmt.Sprintf("%s holds a whole copy; --full compares every byte of it with the source and replaces what differs, --verify only reads it", me))
	}
	if req.From != "" {
		if st, err := os.Stat(filepath.Join(req.From, "PG_VERSION")); !filepath.IsAbs(req.From) || err != nil || !st.Mode().IsRegular() {
			return fail.Usagef("%s: on %s that is not the absolute path of a data directory that its agent can read", req.From, me)
		}
	}
	return nil
}

// stop ends what is under way, and keeps it from being begun again where a copy is still needed.
func (d *desk) stop() (seeding.Operation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op, ok := d.journal.Last()
	if !ok || op.State.Ended() {
		return op, api.Refused(fmt.Sprintf("nothing is being copied to %s, or verified there", d.n.self))
	}
	next := d.wish
	if op.Report == nil {
		next = wish{}
	}
	if v := d.n.agent.View(); op.Report == nil && (v == nil || v.Local.Data != ag.DataPresent || d.cancel != nil || !d.wish.Asked) {
		next.Cancelled = time.Now().Format(time.DateTime)
	}
	if err := d.want(next); err != nil {
		return op, err
	}
	if d.cancel != nil {
		d.cancel(seeding.ErrCancelled)
	}
	d.journal.Change(op.ID, func(o *seeding.Operation) { o.State, o.Ended = seeding.Cancelled, time.Now() })
	d.open = ""
	d.n.agent.Wake()
	op, _ = d.journal.Last()
	return op, nil
}

// attempt notes that a copy begins, and returns the context that stop ends.
func (d *desk) attempt(ctx context.Context, from ag.Replica, why string) (context.Context, string, wish) {
	ctx, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begin("the data directory held no copy that could be used")
	d.cancel = cancel
	if d.wish.Cancelled != "" { // between the decision and now
		cancel(seeding.ErrCancelled)
	}
	d.journal.Change(d.open, func(o *seeding.Operation) {
		o.State, o.Source, o.Chosen, o.Next = seeding.Seeding, from.ID, why, time.Time{}
		o.Attempts++
		o.Progress = progress.Progress{}
	})
	return ctx, d.open, d.wish
}

// show notes how far an operation is.
func (d *desk) show(id string, p progress.Progress) {
	d.journal.Change(id, func(o *seeding.Operation) { o.Progress, o.ETA = p, p.ETA().Seconds() })
}

// ended notes the end of an attempt.
func (d *desk) ended(id string, e ag.Epoch, interrupted bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cancel(nil)
	d.cancel = nil
	if err == nil {
		if err := d.want(wish{}); err != nil {
			d.n.log.Warn("a wish that was fulfilled is still there", "err", err)
		}
		d.failures, d.open = 0, ""
		d.journal.Change(id, func(o *seeding.Operation) {
			o.State, o.Ended, o.Failure, o.FailedAt, o.ETA = seeding.Completed, time.Now(), nil, time.Time{}, 0
		})
		return
	}
	f := seeding.Explain(err)
	if interrupted {
		f.Code, f.State = 207, "INTERRUPTED"
	}
	if d.epoch != e || interrupted {
		d.failures = 0
	}
	d.epoch, d.failed = e, f.Text
	if !interrupted {
		d.retryAt = time.Now().Add(min(retryFirst<<min(d.failures, 10), retryMost))
		d.failures++
	}
	d.journal.Change(id, func(o *seeding.Operation) {
		o.Failure, o.FailedAt = &f, time.Now()
		if !o.State.Ended() {
			o.State, o.Next = seeding.Retrying, d.retryAt
		}
	})
}

// operations is what this node tells of its copies, oldest first.
func (d *desk) operations() []seeding.Operation { return d.journal.List() }

// copying implements agent.Config.Copying.
func (d *desk) copying() json.RawMessage {
	op, ok := d.journal.Last()
	if !ok || op.State.Ended() || op.Report != nil {
		return nil
	}
	b, err := json.Marshal(op)
	if err != nil {
		return nil // others tell less
	}
	return b
}

// askVerify begins a verification unless something is under way.
func (d *desk) askVerify(v *ag.View) (seeding.Operation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op, _ := d.journal.Last()
	switch {
	case op.State == seeding.Verifying:
		return op, nil
	case d.open != "":
		return op, api.Unhealthy(fmt.Sprintf("a copy to %s is under way: what is there is not whole", d.n.self))
	case v.Local.Server != ag.ServerRecovery && v.Local.Server != ag.ServerWritable:
		return op, api.Unhealthy(fmt.Sprintf("the server of %s does not run, and only a running one is verified; coterie status says what it waits for: ask again then", d.n.self))
	}
	id := d.journal.Begin(seeding.Operation{Target: d.n.self, State: seeding.Verifying, Because: "an operator asked", Attempts: 1, Report: &pagesum.Report{}})
	select {
	case d.verify <- id:
	default:
		return op, api.Unhealthy("another verification is about to begin")
	}
	op, _ = d.journal.Last()
	return op, nil
}

// Run runs verifications until ctx is done, and forgets wishes that events have overtaken.
func (d *desk) Run(ctx context.Context) error {
	t := time.NewTicker(2 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-d.verify:
			d.verifyOnce(ctx, id)
		case <-t.C:
			d.overtaken()
		}
	}
}

// overtaken gives up a wish for a new copy where this node leads by now: the others copy from it.
func (d *desk) overtaken() {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.n.agent.View()
	if v == nil || v.Record.Epoch.Leader != d.n.self || d.wish == (wish{}) {
		return
	}
	if err := d.want(wish{}); err != nil {
		d.n.log.Warn("a wish for a new copy is still there", "err", err)
		return
	}
	d.journal.Change(d.open, func(o *seeding.Operation) {
		o.State, o.Ended, o.FailedAt = seeding.Failed, time.Now(), time.Now()
		o.Failure = &seeding.Failure{Code: 207, State: "INTERRUPTED", Text: "this node has become the primary"}
	})
	d.open = ""
}

func (d *desk) verifyOnce(ctx context.Context, id string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.mu.Lock()
	d.cancel = cancel
	ended := !slices.ContainsFunc(d.journal.List(), func(o seeding.Operation) bool { return o.ID == id && !o.State.Ended() })
	d.mu.Unlock()
	if ended {
		cancel(seeding.ErrCancelled)
	}
	r, err := source.Verify(ctx, source.VerifyOptions{
		Data: d.n.pg.Config().PGData, Connect: d.n.pg.Session,
		MaxRate:  func() int64 { return d.n.members.Options(d.n.self).SeedMaxRate },
		Progress: func(p progress.Progress) { d.show(id, p) },
	})
	d.mu.Lock()
	d.cancel = nil
	d.mu.Unlock()
	if r.Damaged > 0 {
		d.n.log.Error("damaged pages found", "pages", r.Damaged, "first", r.First[0].Error())
	}
	d.journal.Change(id, func(o *seeding.Operation) {
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
