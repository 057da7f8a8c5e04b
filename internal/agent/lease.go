package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/boottime"
)

// holding is what the renewer writes while this node holds (or is about to hold) an epoch.
type holding struct {
	epoch    ag.Epoch
	epochRev int64
	lead     ag.Lead
}

// lease renews /lead and knows until when this node may act. The deadline is counted from before a renewal was sent, on
// CLOCK_BOOTTIME, and only ever from a renewal that succeeded (reliability notes, "The inequality").
type lease struct {
	store   Store
	keeper  Keeper
	profile func() ag.Profile
	log     *slog.Logger
	lost    func() // called when the epoch turns out to have moved on

	// change makes "still wanted" and "counts from now on" one step: a renewal that was on its way when the lease was voided
	// must not bring it back.
	change   sync.Mutex
	want     atomic.Pointer[holding] // nil: do not renew
	epoch    atomic.Uint64           // of the last successful renewal
	deadline atomic.Int64            // boottime nanoseconds
	armed    atomic.Uint64           // epoch the keeper is armed for; 0: none
	kick     chan struct{}
}

// hold makes the renewer renew h from now on; nil stops it.
func (l *lease) hold(h *holding) {
	l.change.Lock()
	old := l.want.Swap(h)
	l.change.Unlock()
	if h != nil && (old == nil || *old != *h) {
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
}

// run renews until ctx is done.
func (l *lease) run(ctx context.Context) {
	for {
		wait := l.profile().Heart
		if h := l.want.Load(); h != nil {
			if !l.renew(ctx, *h) {
				wait /= 4
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
	p := l.profile()
	ctx, cancel := context.WithTimeout(ctx, p.Request)
	defer cancel()
	t0 := boottime.Now()
	err := l.store.Renew(ctx, h.epochRev, h.lead)
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
	deadline := t0 + p.Lease
	first, counts := l.renewed(h, deadline)
	if !counts {
		return true
	}
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

func (l *lease) wants(h holding) bool {
	now := l.want.Load()
	return now != nil && *now == h
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
	return first, true
}
