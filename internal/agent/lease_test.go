package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// slowStore lets a test act while a renewal is on its way.
type slowStore struct {
	Store
	during func() error
}

func (s slowStore) Renew(context.Context, int64, ag.Lead) error { return s.during() }

func testLease(during func(l *lease) error) *lease {
	l := &lease{profile: func() ag.Profile { return ag.Profiles["default"] }, log: slog.New(slog.DiscardHandler), lost: func() {}, kick: make(chan struct{}, 1), answers: &answers{}}
	l.store = slowStore{during: func() error { return during(l) }}
	return l
}

func TestLeaseCountsFromBeforeTheRenewal(t *testing.T) {
	var during time.Duration
	l := testLease(func(*lease) error { during = boottime.Now(); return nil })
	h := holding{epoch: 3, epochRev: 7}
	l.hold(&h)
	l.renew(t.Context(), h)
	if until, most := l.until(), during+ag.Profiles["default"].Lease; until > most || until < most-time.Second {
		t.Errorf("until %v, at most %v", until, most)
	}
	if s := l.state(); !s.Valid || s.Epoch != 3 {
		t.Errorf("%+v", s)
	}
}

func TestVoidedLeaseStaysVoid(t *testing.T) {
	l := testLease(func(l *lease) error { l.void(); return nil })
	h := holding{epoch: 3}
	l.hold(&h)
	l.renew(t.Context(), h)
	if l.state().Valid {
		t.Error("a renewal that was on its way brought a voided lease back")
	}
}

func TestLateRenewalOfAnOlderEpochDoesNotCount(t *testing.T) {
	l := testLease(func(l *lease) error { l.hold(&holding{epoch: 4}); return nil })
	h := holding{epoch: 3}
	l.hold(&h)
	l.renew(t.Context(), h)
	if s := l.state(); s.Valid {
		t.Errorf("%+v", s)
	}
}

func TestConflictEndsALease(t *testing.T) {
	answer := error(nil)
	l := testLease(func(*lease) error { return answer })
	h := holding{epoch: 3}
	l.hold(&h)
	l.renew(t.Context(), h)
	answer = ErrConflict
	l.renew(t.Context(), h)
	if l.state().Valid || l.want.Load() != nil {
		t.Error("the epoch moved on and the lease holds")
	}
}

// This node's own change of the epoch's phase overtakes a renewal: the lease of that epoch is as good as before.
func TestOwnChangeOfTheEpochKeepsTheLease(t *testing.T) {
	overtaken := false
	l := testLease(func(l *lease) error {
		if overtaken {
			l.hold(nil) // as commit does before it changes the epoch
			return ErrConflict
		}
		return nil
	})
	h := holding{epoch: 3}
	l.hold(&h)
	l.renew(t.Context(), h)
	overtaken = true
	l.renew(t.Context(), h)
	if s := l.state(); !s.Valid {
		t.Error("lost")
	}
}
