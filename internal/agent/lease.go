package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// holding is what the renewer writes while this node holds (or is about to hold) an epoch.
type holding struct {
	epoch      ag.Epoch
	epochRev   int64
	lead       ag.Lead
	byProgress bool // it is renewed when its progress changes, and not else
}

// term reports whether two holdings are of the same hold on the same epoch, whatever they say of it.
func (h holding) term(o holding) bool { return h.epoch == o.epoch && h.epochRev == o.epochRev }

// same reports whether nothing about them differs but, perhaps, their progress.
func (h holding) same(o holding) bool {
	return h.term(o) && h.byProgress == o.byProgress && h.lead.Incarnation == o.lead.Incarnation &&
		h.lead.Restarting == o.lead.Restarting && h.lead.Answer.Same(o.lead.Answer)
}

// lease renews /lead and knows until when this node may act. The deadline is counted from before a renewal was sent, on
// CLOCK_BOOTTIME, and only ever from a renewal that succeeded (docs/internals/safety.md, "Lease").
type lease struct {
	store   Store
	keeper  Keeper
	profile func() ag.Profile
	log     *slog.Logger
	lost    func() // called when the epoch turns out to have moved on
	answers *answers
	moved   func()      // called when less may be answered than before; nil: nobody wants to know
	alive   func() bool // the loop that decides turns; nil: always

	// change makes "still wanted" and "counts from now on" one step: a renewal that was on its way when the lease was voided
	// must not bring it back.
	change   sync.Mutex
	want     atomic.Pointer[holding] // nil: do not renew
	epoch    atomic.Uint64           // of the last successful renewal
	deadline atomic.Int64            // boottime nanoseconds
	armed    atomic.Uint64           // epoch the keeper is armed for; 0: none
	anew     atomic.Bool             // held again after it was not: renew at once
	kick     chan struct{}

	renewing  sync.Mutex  // held while a renewal is under way
	announced atomic.Bool // the last renewal said that the agent restarts
}

// hold makes the renewer renew h from now on; nil stops it.
func (l *lease) hold(h *holding) {
	l.change.Lock()
	old := l.want.Swap(h)
	l.change.Unlock()
	if h != nil && old == nil {
		l.anew.Store(true)
	}
	if h != nil && (old == nil || !old.same(*h) || old.lead.Progress != h.lead.Progress) {
		select {
		case l.kick <- struct{}{}:
		default:
		}
	}
}

// state returns the lease as a view carries it.
func (l *lease) state() ag.Lease {
	return ag.Lease{Epoch: ag.Epoch(l.epoch.Load()), Valid: boottime.Now() < l.until()}
}

func (l *lease) until() time.Duration { return time.Duration(l.deadline.Load()) }

// void ends the lease at once: nothing may be answered under it.
func (l *lease) void() {
	l.change.Lock()
	defer l.change.Unlock()
	l.want.Store(nil)
	l.deadline.Store(0)
	l.tell()
}

func (l *lease) tell() {
	if l.moved != nil {
		l.moved()
	}
}

// run renews until ctx is done.
func (l *lease) run(ctx context.Context) {
	var last holding       // the last one renewed
	var sent time.Duration // and when, by boottime
	for {
		heart := l.profile().Heart
		wait := heart
		if h := l.want.Load(); h != nil && (l.alive == nil || l.alive()) {
			now := boottime.Now()
			again := !l.anew.Swap(false) && h.same(last)
			switch {
			case again && now < sent+heart:
				wait = sent + heart - now
			case again && h.byProgress && h.lead.Progress == last.lead.Progress:
			case l.renew(ctx, *h):
				last, sent = *h, now
			default:
				wait /= 4
				last = holding{}
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

func (l *lease) renew(ctx context.Context, h holding) bool {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	p := l.profile()
	ctx, cancel := context.WithTimeout(ctx, p.Request)
	defer cancel()
	l.answers.declaring(h.epoch, h.lead.Answer)
	t0 := boottime.Now()
	held := l.held(h.epoch)
	lead := h.lead
	lead.Observer = p.Declared(held - t0)
	err := l.store.Renew(ctx, h.epochRev, lead)
	switch {
	case errors.Is(err, ErrConflict):
		if l.wants(h) { // not a renewal that this node's own change of the epoch overtook
			l.void()
			l.log.Warn("lease lost: the epoch moved on", "epoch", h.epoch)
		}
		l.lost()
		return true
	case err != nil:
		l.log.Warn("lease not renewed", "epoch", h.epoch, "left", boottime.Until(l.until()).Round(time.Millisecond), "err", err)
		return false
	}
	deadline := max(t0+p.Lease, held) // it never moves back, also when the profile has become a shorter one
	first, counts := l.renewed(h, deadline)
	if !counts {
		return true
	}
	l.announced.Store(h.lead.Restarting)
	if e := ag.Epoch(l.armed.Load()); e == h.epoch {
		if err := l.keeper.Extend(ctx, e, deadline); err != nil {
			l.log.Warn("keeper did not take the new deadline", "epoch", e, "err", err)
		}
	}
	if first {
		l.lost() // a fresh lease is news for the loop as well
	}
	return true
}

// held returns the deadline of the epoch that is in force; 0 if there is none.
func (l *lease) held(e ag.Epoch) time.Duration {
	if ag.Epoch(l.epoch.Load()) != e {
		return 0
	}
	return l.until()
}

func (l *lease) wants(h holding) bool {
	now := l.want.Load()
	return now != nil && now.term(h)
}

// renewed takes the new deadline over, unless the lease was voided or is of another epoch by now.
func (l *lease) renewed(h holding, deadline time.Duration) (first, counts bool) {
	l.change.Lock()
	defer l.change.Unlock()
	if !l.wants(h) {
		return false, false
	}
	if first = ag.Epoch(l.epoch.Load()) != h.epoch; first {
		l.deadline.Store(0) // the old epoch's does not become the new one's
		l.epoch.Store(uint64(h.epoch))
	}
	l.deadline.Store(int64(deadline))
	l.answers.declares(h.epoch, h.lead.Answer)
	return first, true
}
