package preauth

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Slot is the slot of a client that is not authenticated. It is the client's own only as long as no other client needs
// it more.
type Slot struct {
	address string
	counted bool // guarded by Slots.mu, as are the next three
	evicted bool // the slot was given to another client
	asks    bool // the listener may be asking a question for the client, which can be given up
	end     func()
	// since is when the listener began to wait for the client, CLOCK_BOOTTIME; 0: it is the listener's turn. Only the
	// client's goroutine writes it.
	since atomic.Int64
	kept  context.Context
	taken <-chan struct{}
	lose  context.CancelFunc
}

// Slots are the slots that are taken.
type Slots struct {
	mu  sync.Mutex
	all map[*Slot]struct{} // guarded by mu
}

// NewSlot returns a slot for a client of that address, which it does not hold yet. end ends the client's login when the
// slot is given to another one; it does not wait.
func NewSlot(address string, end func()) *Slot {
	s := &Slot{address: address, asks: true, end: end}
	s.kept, s.lose = context.WithCancel(context.Background())
	s.taken = s.kept.Done()
	return s
}

// Kept ends when the slot was given to another client.
func (s *Slot) Kept() context.Context { return s.kept }

// Taken is closed when the slot was given to another client.
func (s *Slot) Taken() <-chan struct{} { return s.taken }

// Waits notes that it is the client's turn.
func (s *Slot) Waits() { s.since.Store(int64(boottime.Now())) }

// Heard notes that the client has acted.
func (s *Slot) Heard() { s.since.Store(0) }

// Enter gives the client its slot. With a limit above 0 there are no more slots than that. A client that keeps the
// listener waiting is evicted, else one of an address that has more than its share; the newcomer is refused only if
// there is neither.
func (l *Slots) Enter(s *Slot, limit int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit > 0 && len(l.all) >= limit {
		victim := l.oldestIdle()
		if victim == nil {
			victim = l.oneOfTooMany(s.address)
		}
		if victim == nil {
			return false
		}
		l.evict(victim)
	}
	if !s.counted {
		s.counted = true
		if l.all == nil {
			l.all = make(map[*Slot]struct{})
		}
		l.all[s] = struct{}{}
	}
	return true
}

// Leave gives the slot back.
func (l *Slots) Leave(s *Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.counted = false
	delete(l.all, s)
}

// Evict takes the slot from the client.
func (l *Slots) Evict(s *Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evict(s)
}

// Hold changes what ends the client's login, and whether questions are asked for it. It reports whether the slot was
// given to another client before.
func (l *Slots) Hold(s *Slot, asks bool, end func()) (evicted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.asks, s.end = asks, end
	return s.evicted
}

// Holds reports whether the client holds its slot.
func (l *Slots) Holds(s *Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.counted
}

// Evicted reports whether the slot was given to another client.
func (l *Slots) Evicted(s *Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.evicted
}

// Len returns how many slots are taken.
func (l *Slots) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// evict ends the login of the client, whose place another one gets. The caller holds mu.
func (l *Slots) evict(s *Slot) {
	delete(l.all, s)
	s.counted, s.evicted = false, true
	s.end()
	s.lose() // AFTER the login was ended: the client sets another deadline to send its error
}

// oneOfTooMany returns a slot to take although it is the listener's turn: of the address with the most slots, if that
// has more than an equal share, and more than the newcomer's address. The question that the listener asks for it is
// given up. The caller holds mu.
func (l *Slots) oneOfTooMany(newcomer string) (found *Slot) {
	held := map[string]int{newcomer: 0}
	for s := range l.all {
		held[s.address]++
	}
	most := max(held[newcomer], max(1, len(l.all)/len(held)))
	for s := range l.all {
		if n := held[s.address]; n > most && s.asks {
			found, most = s, n
		}
	}
	return found
}

// oldestIdle returns the slot to take: the longest-waiting one of the address that holds the most slots. A flood so
// evicts only its own connections. The caller holds mu.
func (l *Slots) oldestIdle() (found *Slot) {
	perHost := make(map[string]int)
	for s := range l.all {
		if s.since.Load() != 0 {
			perHost[s.address]++
		}
	}
	worse := func(a, b *Slot) bool {
		if na, nb := perHost[a.address], perHost[b.address]; na != nb {
			return na > nb
		}
		return a.since.Load() < b.since.Load()
	}
	for s := range l.all {
		if s.since.Load() != 0 && (found == nil || worse(s, found)) {
			found = s
		}
	}
	return found
}
