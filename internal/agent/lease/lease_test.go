package lease

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// slowStore lets a test act while a renewal is on its way.
type slowStore struct {
	Store
	during func() error
}

func (s slowStore) Renew(context.Context, int64, ag.Lead) error { return s.during() }

func testLease(during func(l *Lease) error) *Lease {
	l := New(Config{
		Profile: func() ag.Profile { return ag.Profiles["default"] }, Log: slog.New(slog.DiscardHandler), Changed: func() {}, Answers: NewAnswers("a", nil),
	})
	l.c.Store = slowStore{during: func() error { return during(l) }}
	return l
}

func TestLeaseCountsFromBeforeTheRenewal(t *testing.T) {
	var during time.Duration
	l := testLease(func(*Lease) error { during = boottime.Now(); return nil })
	h := Holding{Epoch: 3, EpochRev: 7}
	l.Hold(&h)
	l.renew(t.Context(), h)
	if until, most := l.Until(), during+ag.Profiles["default"].Lease; until > most || until < most-time.Second {
		t.Errorf("until %v, at most %v", until, most)
	}
	if s := l.State(); !s.Valid || s.Epoch != 3 {
		t.Errorf("%+v", s)
	}
}

func TestVoidedLeaseStaysVoid(t *testing.T) {
	l := testLease(func(l *Lease) error { l.Void(); return nil })
	h := Holding{Epoch: 3}
	l.Hold(&h)
	l.renew(t.Context(), h)
	if l.State().Valid {
		t.Error("a renewal that was on its way brought a voided lease back")
	}
}

func TestLateRenewalOfAnOlderEpochDoesNotCount(t *testing.T) {
	l := testLease(func(l *Lease) error { l.Hold(&Holding{Epoch: 4}); return nil })
	h := Holding{Epoch: 3}
	l.Hold(&h)
	l.renew(t.Context(), h)
	if s := l.State(); s.Valid {
		t.Errorf("%+v", s)
	}
}

func TestConflictEndsALease(t *testing.T) {
	answer := error(nil)
	l := testLease(func(*Lease) error { return answer })
	h := Holding{Epoch: 3}
	l.Hold(&h)
	l.renew(t.Context(), h)
	answer = ErrConflict
	l.renew(t.Context(), h)
	if l.State().Valid || l.want.Load() != nil {
		t.Error("the epoch moved on and the lease holds")
	}
}

// This node's own change of the epoch's phase overtakes a renewal: the lease of that epoch is as good as before.
func TestOwnChangeOfTheEpochKeepsTheLease(t *testing.T) {
	overtaken := false
	l := testLease(func(l *Lease) error {
		if overtaken {
			l.Hold(nil) // as commit does before it changes the epoch
			return ErrConflict
		}
		return nil
	})
	h := Holding{Epoch: 3}
	l.Hold(&h)
	l.renew(t.Context(), h)
	overtaken = true
	l.renew(t.Context(), h)
	if s := l.State(); !s.Valid {
		t.Error("lost")
	}
}

// A restart is announced by a renewal that begins after it was asked for. The one before may have announced an earlier
// restart, and one that does not may be under way.
func TestAnnounceAfterAnEarlierRestart(t *testing.T) {
	var written atomic.Bool // the record announces a restart
	begun, goOn := make(chan struct{}), make(chan struct{})
	l := testLease(nil)
	l.c.Store = leadStore(func(lead ag.Lead) {
		if !lead.Restarting {
			close(begun)
			<-goOn
		}
		written.Store(lead.Restarting)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { l.Run(ctx) })
	l.Hold(&Holding{Epoch: 3, Lead: ag.Lead{Restarting: true}})
	await(t, written.Load)
	await(t, func() bool { return l.State().Valid })
	l.Hold(&Holding{Epoch: 3})
	<-begun
	var told atomic.Bool
	running.Go(func() {
		if err := l.Announce(ctx, 10*time.Second); err != nil {
			t.Error(err)
		}
		l.Rest()
		if !written.Load() {
			t.Error("the record does not announce the restart")
		}
		told.Store(true)
	})
	await(t, func() bool { h := l.want.Load(); return h == nil || h.Lead.Restarting })
	close(goOn)
	await(t, told.Load)
}

// await waits for a condition.
func await(t *testing.T, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := retry.Until(ctx, time.Millisecond, func() (bool, error) { return is(), nil }); err != nil {
		t.Fatal(err)
	}
}

// leadStore is told of each renewal.
type leadStore func(ag.Lead)

func (s leadStore) Renew(_ context.Context, _ int64, l ag.Lead) error { s(l); return nil }

// An answer lease has ended once a majority of its voters, its leader left out, has acknowledged a later epoch for
// long.
func TestSuperseded(t *testing.T) {
	three := ag.Outgoing{Leader: "a", Epoch: 2, Answer: ag.Answer{Voters: []ag.ReplicaID{"a", "b", "c"}, Lease: time.Second}}
	five := three
	five.Answer.Voters = []ag.ReplicaID{"a", "b", "c", "d", "e"}
	began := boottime.Now()
	for _, tt := range []struct {
		name string
		of   ag.Outgoing
		from []ag.ReplicaID
		want bool
	}{
		{"this node alone", three, nil, false},
		{"this node and another", three, []ag.ReplicaID{"c"}, true},
		{"the outgoing leader does not count", three, []ag.ReplicaID{"a"}, false},
		{"a node that did not vote does not count", three, []ag.ReplicaID{"d"}, false},
		{"one of five", five, []ag.ReplicaID{"c"}, false},
		{"two of five", five, []ag.ReplicaID{"c", "e"}, true},
		{"no answer lease", ag.Outgoing{Leader: "a"}, []ag.ReplicaID{"c", "e"}, false},
	} {
		a := NewAnswers("b", nil)
		for _, id := range tt.from {
			a.Acknowledged(3, id, began)
		}
		time.Sleep(time.Millisecond)
		if got := a.Superseded(3, tt.of); got > 0 != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
		if got := a.Superseded(4, tt.of); got != 0 {
			t.Errorf("%s: acknowledgements of another epoch count: %v", tt.name, got)
		}
	}
}
