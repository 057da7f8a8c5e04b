package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// ErrConflict is the error of a Store whose guarded key has changed: the caller must read again.
var ErrConflict = errors.New("the record was changed by another member")

// Store writes the renewals.
type Store interface {
	// Renew writes /lead if /epoch is still at that revision, or returns ErrConflict.
	Renew(ctx context.Context, epochRev int64, l ag.Lead) error
}

// Keeper gets each new deadline, and fences when it passes.
type Keeper interface {
	Extend(ctx context.Context, e ag.Epoch, deadline time.Duration) error
}

// Holding is what is renewed while a node holds an epoch, or is about to hold it.
type Holding struct {
	Epoch      ag.Epoch
	EpochRev   int64
	Lead       ag.Lead
	ByProgress bool // renewed only when Lead.Progress changes
}

// term reports whether two holdings are of the same hold on the same epoch, whatever their renewals contain.
func (h Holding) term(o Holding) bool { return h.Epoch == o.Epoch && h.EpochRev == o.EpochRev }

// same reports whether two holdings differ in their progress at most.
func (h Holding) same(o Holding) bool {
	return h.term(o) && h.ByProgress == o.ByProgress && h.Lead.Incarnation == o.Lead.Incarnation &&
		h.Lead.Restarting == o.Lead.Restarting && h.Lead.Settled == o.Lead.Settled && h.Lead.Answer.Same(o.Lead.Answer)
}

// Config is what a lease depends on. Moved and Alive may be nil.
type Config struct {
	Store   Store
	Keeper  Keeper
	Profile func() ag.Profile
	Log     *slog.Logger
	Answers *Answers
	// Changed is called when the lease became valid, and when the epoch turns out to have moved on.
	Changed func()
	// Moved is called when less may be answered than before.
	Moved func()
	// Alive reports whether the loop that decides still turns. Nothing is renewed while it does not. nil: always.
	Alive func() bool
}

// Lease renews /lead and knows until when this node may act. Make it with New and run Run. Other methods may be called
// from any goroutine.
//
// The deadline is counted from BEFORE a renewal is sent, and only from a renewal that succeeded
// (docs/internals/safety.md, "Lease"). A lease that was voided MUST NOT come back with a renewal that was on its way:
// only a renewal of what is still held counts.
type Lease struct {
	c Config

	// change makes "still wanted" and "counts from now on" one step.
	change   sync.Mutex
	want     atomic.Pointer[Holding] // nil: do not renew
	epoch    atomic.Uint64           // of the last successful renewal
	deadline atomic.Int64            // boottime nanoseconds
	armed    atomic.Uint64           // epoch that the keeper is armed for; 0: none
	anew     atomic.Bool             // held again after it was not: renew at once
	kick     chan struct{}

	renewing  sync.Mutex    // held while a renewal is under way
	begun     atomic.Uint64 // number of renewals that have begun
	announced atomic.Uint64 // which of them was the last, if that announced a restart of the agent; 0: it did not
}

// New returns a lease that is not held.
func New(c Config) *Lease { return &Lease{c: c, kick: make(chan struct{}, 1)} }

// Hold makes Run renew h from now on; nil stops it.
func (l *Lease) Hold(h *Holding) {
	l.change.Lock()
	old := l.want.Swap(h)
	l.change.Unlock()
	if h != nil && old == nil {
		l.anew.Store(true)
	}
	if h != nil && (old == nil || !old.same(*h) || old.Lead.Progress != h.Lead.Progress) {
		select {
		case l.kick <- struct{}{}:
		default:
		}
	}
}

// State returns the lease as a view carries it.
func (l *Lease) State() ag.Lease {
	return ag.Lease{Epoch: ag.Epoch(l.epoch.Load()), Valid: boottime.Now() < l.Until()}
}

// Until returns the boottime until which this node may act.
func (l *Lease) Until() time.Duration { return time.Duration(l.deadline.Load()) }

// AnswersUntil returns the boottime until which answers may reach clients: the lease's, or the answer lease's where
// that is earlier.
func (l *Lease) AnswersUntil() time.Duration { return min(l.Until(), l.c.Answers.until()) }

// Armed returns the epoch that the keeper is armed for; 0 if it is not armed.
func (l *Lease) Armed() ag.Epoch { return ag.Epoch(l.armed.Load()) }

// SetArmed records that the keeper was armed for an epoch, whose deadline Run extends from then on.
func (l *Lease) SetArmed(e ag.Epoch) {
	l.armed.Store(uint64(e))
	l.tell()
}

// SetDisarmed records that the keeper is not armed any more.
func (l *Lease) SetDisarmed() { l.armed.Store(0) }

// SetDisarmedOf is SetDisarmed, unless the keeper was armed for another epoch meanwhile.
func (l *Lease) SetDisarmedOf(e ag.Epoch) { l.armed.CompareAndSwap(uint64(e), 0) }

// Void ends the lease at once: nothing may be answered under it.
func (l *Lease) Void() {
	l.change.Lock()
	defer l.change.Unlock()
	l.want.Store(nil)
	l.deadline.Store(0)
	l.tell()
}

func (l *Lease) tell() {
	if l.c.Moved != nil {
		l.c.Moved()
	}
}

// Run renews until ctx is done.
func (l *Lease) Run(ctx context.Context) {
	var last Holding       // the last one renewed
	var sent time.Duration // boottime of that renewal
	for {
		heart := l.c.Profile().Heart
		h, wait := l.want.Load(), heart
		if h == nil {
			wait = boottime.UntilNext(heart) // nothing to renew; Hold kicks
		}
		if h != nil && (l.c.Alive == nil || l.c.Alive()) {
			now := boottime.Now()
			again := !l.anew.Swap(false) && h.same(last)
			switch {
			case again && now < sent+heart:
				wait = sent + heart - now
			case again && h.ByProgress && h.Lead.Progress == last.Lead.Progress:
			case l.renew(ctx, *h):
				last, sent = *h, now
			default:
				wait /= 4
				last = Holding{}
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-l.kick:
			t.Stop()
		case <-t.C:
		}
	}
}

// renew makes one renewal. It returns false if the renewal should be repeated soon.
func (l *Lease) renew(ctx context.Context, h Holding) bool {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	p := l.c.Profile()
	ctx, cancel := context.WithTimeout(ctx, p.Request)
	defer cancel()
	number := l.begun.Add(1)
	l.c.Answers.Declaring(h.Epoch, h.Lead.Answer)
	t0 := boottime.Now()
	held := l.held(h.Epoch)
	lead := h.Lead
	lead.Observer = p.Declared(held - t0)
	err := l.c.Store.Renew(ctx, h.EpochRev, lead)
	switch {
	case errors.Is(err, ErrConflict):
		if l.wants(h) { // otherwise this node's own change of the epoch overtook the renewal
			l.Void()
			l.c.Log.Warn("lease lost: the epoch moved on", "epoch", h.Epoch)
		}
		l.c.Changed()
		return true
	case err != nil:
		l.c.Log.Warn("lease not renewed", "epoch", h.Epoch, "left", boottime.Until(l.Until()).Round(time.Millisecond), "err", err)
		return false
	}
	deadline := max(t0+p.Lease, held)               // it never moves back, even if the profile has become a shorter one
	if e := l.Armed(); e == h.Epoch && l.wants(h) { // BEFORE the deadline counts: without a keeper that fences there is no lease
		if err := l.c.Keeper.Extend(ctx, e, deadline); err != nil {
			l.c.Log.Warn("the keeper did not take the new deadline, so the lease is not extended", "epoch", e, "left", boottime.Until(l.Until()).Round(time.Millisecond), "err", err)
			return false
		}
	}
	first, counts := l.Renewed(h, deadline)
	if !counts {
		return true
	}
	if !h.Lead.Restarting {
		number = 0
	}
	l.announced.Store(number)
	if first {
		l.c.Changed()
	}
	return true
}

// held returns the deadline of the epoch that is in force; 0 if none is.
func (l *Lease) held(e ag.Epoch) time.Duration {
	if ag.Epoch(l.epoch.Load()) != e {
		return 0
	}
	return l.Until()
}

func (l *Lease) wants(h Holding) bool {
	now := l.want.Load()
	return now != nil && now.term(h)
}

// Renewed puts a new deadline in force after a renewal of h was written. counts is false if the lease was voided, or
// belongs to another epoch by now; first is true if it is the first renewal of its epoch.
func (l *Lease) Renewed(h Holding, deadline time.Duration) (first, counts bool) {
	l.change.Lock()
	defer l.change.Unlock()
	if !l.wants(h) {
		return false, false
	}
	if first = ag.Epoch(l.epoch.Load()) != h.Epoch; first {
		l.deadline.Store(0) // the deadline of the old epoch does not become that of the new one
		l.epoch.Store(uint64(h.Epoch))
	}
	l.deadline.Store(int64(deadline))
	l.c.Answers.Declared(h.Epoch, h.Lead.Answer)
	return first, true
}

// Announce makes the next renewal say that the agent restarts, and returns once it is written.
func (l *Lease) Announce(ctx context.Context, budget time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	h := l.want.Load()
	if h == nil {
		return errors.New("this node does not lead")
	}
	next := *h
	next.Lead.Restarting = true
	l.Hold(&next)
	// One under way may be without the announcement, although the last one had that of an earlier restart.
	before := l.begun.Load()
	l.anew.Store(true)
	select {
	case l.kick <- struct{}{}:
	default:
	}
	for l.announced.Load() <= before {
		if retry.Sleep(ctx, 2*time.Millisecond) != nil {
			return errors.New("the record was not written in time")
		}
	}
	return nil
}

// Rest stops renewing and waits until no renewal is under way: a late one would revoke the next order to the keeper.
func (l *Lease) Rest() {
	l.Hold(nil)
	l.renewing.Lock()
	defer l.renewing.Unlock()
}
