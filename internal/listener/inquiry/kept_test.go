package inquiry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/offload"
)

// drains is a drain of those sessions, as a listener has it.
func drains(i *Inquirer[*fake], now time.Duration, sessions ...*fake) {
	for _, f := range sessions {
		f.session.Drained(&f.work, true, now)
	}
	i.ReadStates(context.Background(), sessions)
}

// TestReadAhead holds which sessions a drain asks that were asked ahead: those only of which something may have
// changed since.
func TestReadAhead(t *testing.T) {
	temporary := []string{"refusal", "it has temporary objects"}
	for _, c := range []struct {
		name  string
		rows  [][]string
		since func(f *fake) // between the two
		later time.Duration // how much later the drain is
		why   string
		sent  int // questions in all
	}{
		{"idle", nil, func(*fake) {}, 0, "", 1},
		{"a request was forwarded", nil, func(f *fake) { f.session.Forwarded() }, 0, "", 2},
		{"it cannot be moved", [][]string{temporary}, func(*fake) {}, 0, temporary[1], 1},
		{"it could not be moved", [][]string{temporary}, func(f *fake) {
			f.session.Forwarded()
			f.reply = told([]string{"user", "ann"})
		}, 0, "", 2},
		{"the kernel carries it", nil, func(f *fake) {
			f.work.Kernel.Store(new(offload.Session))
			f.wake = func() { f.work.Kernel.Store(nil); f.look() } // as its loop does
		}, 0, "", 2},
		{"long ago", nil, func(*fake) {}, aheadFor + time.Second, "", 2},
	} {
		f := newFake(c.rows...)
		i := among(f)
		i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {})
		if f.sent != 1 {
			t.Fatalf("%s: %d questions ahead", c.name, f.sent)
		}
		c.since(f)
		drains(i, boottime.Now()+c.later, f)
		if f.sent != c.sent || f.session.Refusal != c.why || (f.session.State != nil) != (c.why == "") {
			t.Errorf("%s: %d questions, refusal %q, state %v", c.name, f.sent, f.session.Refusal, f.session.State)
		}
		if f.session.Forwarded(); f.session.State != nil {
			t.Errorf("%s: the state holds though something was forwarded", c.name)
		}
	}
}

// TestReadAheadOfABusySession: it is asked as soon as it is idle, or else in the drain. Others do not wait for it.
func TestReadAheadOfABusySession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soon, never, idle := newFake(), newFake(), newFake()
		soon.work.Owed.Store(1)
		never.work.Owed.Store(1)
		i := among(soon, never, idle)
		go func() {
			time.Sleep(aheadBusy / 2)
			soon.work.Owed.Store(0)
			soon.look()
		}()
		began := time.Now()
		i.ReadAhead(t.Context(), []*fake{soon, never, idle}, func(int, int) {})
		if took := time.Since(began); took != aheadBusy || soon.sent != 1 || never.sent != 0 || idle.sent != 1 {
			t.Errorf("%d, %d and %d questions in %v", soon.sent, never.sent, idle.sent, took)
		}
		never.work.Owed.Store(0)
		drains(i, boottime.Now(), soon, never, idle)
		if soon.sent != 1 || never.sent != 1 || idle.sent != 1 || never.session.State == nil {
			t.Errorf("%d, %d and %d questions with the drain", soon.sent, never.sent, idle.sent)
		}
	})
}

// TestForwardedBeforeItIsKept: what was told does not hold if something is forwarded before it is kept, though the
// session has been asked again meanwhile for another reason.
func TestForwardedBeforeItIsKept(t *testing.T) {
	f := newFake()
	f.asFacts = func() {
		if f.sent != 1 { // the answer has arrived
			return
		}
		f.asFacts = nil
		f.work.Lock()
		f.session.Forwarded()
		f.work.Unlock()
		Keep(t.Context(), f, times)
	}
	i := among(f)
	i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {})
	if f.sent != 2 || f.session.State != nil {
		t.Errorf("after %d questions its state is %v", f.sent, f.session.State)
	}
	if drains(i, boottime.Now(), f); f.sent != 3 || f.session.State == nil {
		t.Errorf("after %d questions its state is %v", f.sent, f.session.State)
	}
}

// TestStateOfASessionThatLeaves: the state with which a session leaves its server stays, whatever is to be read of it.
func TestStateOfASessionThatLeaves(t *testing.T) {
	f, state := newFake(), &continuity.State{User: "ann"}
	i := among(f)
	f.session.State = state
	f.work.Leaving.Store(true)
	close(f.left)
	i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {})
	if f.session.State != state {
		t.Error("it has no state after it was to be read ahead")
	}
	drains(i, boottime.Now(), f)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // its turn may come though
		i.ReadStates(over, []*fake{f})
	}
	f.session.Forget(&f.work)
	if f.session.State != state || f.session.Refusal != "" {
		t.Errorf("it has the state %v after a drain, and %q", f.session.State, f.session.Refusal)
	}
	if f.session.Drained(&f.work, false, 0); f.session.State != state {
		t.Error("it has no state after the drain")
	}
	f = newFake()
	i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {})
	if f.session.Drained(&f.work, false, 0); f.session.State != nil || f.session.known(&f.work) {
		t.Error("the state of a session that stays is kept after a drain")
	}
	i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {})
	if f.session.Forget(&f.work); f.session.State != nil || f.session.known(&f.work) {
		t.Error("a state that was read ahead is not forgotten")
	}
}

// TestReadAheadEnds holds that nothing is asked ahead during a drain, or beside an inquiry of Moves; that a drain ends
// the asking; and that its caller hears how far it is.
func TestReadAheadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		i := among(f)
		i.Draining = func() bool { return true }
		i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {})
		i.Draining = func() bool { return false }
		i.mu.Lock()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		i.ReadAhead(short, []*fake{f}, func(int, int) {})
		if f.sent != 0 {
			t.Errorf("%d questions", f.sent)
		}
		time.AfterFunc(time.Second, i.mu.Unlock)
		if i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {}); f.sent != 1 {
			t.Error("it is not asked once the inquiry of Moves is over")
		}
		var all []*fake
		for range aheadTold + 1 {
			all = append(all, newFake())
		}
		heard := 0
		i = among(all...)
		i.ReadAhead(t.Context(), all, func(asked, of int) {
			if heard++; asked != aheadTold || of != len(all) {
				t.Errorf("%d of %d", asked, of)
			}
		})
		if heard != 1 {
			t.Errorf("heard %d times", heard)
		}
		f = newFake()
		f.silent = true
		i = among(f)
		over := make(chan struct{})
		go func() { defer close(over); i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {}) }()
		synctest.Wait()
		began := time.Now()
		i.End()
		if <-over; time.Since(began) > 0 {
			t.Errorf("a drain waited %v", time.Since(began))
		}
	})
}

// TestReadAheadGoesFirst: once the inquiry that is under way is over, the next one is that ahead of a failover, however
// often others are asked for.
func TestReadAheadGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		i := among(f)
		i.mu.Lock()
		over := make(chan struct{})
		go func() {
			defer close(over)
			i.ReadAhead(t.Context(), []*fake{f}, func(int, int) {})
		}()
		synctest.Wait()
		i.mu.Unlock()
		if m := one(t, i.Moves(t.Context())); m.Why != "another inquiry is under way; ask again" {
			t.Errorf("an inquiry went first: %+v", m)
		}
		<-over
		if m := one(t, i.Moves(t.Context())); m.Why != "" {
			t.Errorf("%+v", m)
		}
	})
}
