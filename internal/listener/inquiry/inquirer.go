package inquiry

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/known"
)

const (
	// keepPerTick is how many sessions of this node are asked for their state at once, to be known.
	keepPerTick = 10
	// AtOnce is how many sessions are asked at once while they wait: each costs the server some milliseconds of a
	// processor.
	AtOnce = 16
	// turnTime is how long a session that does not answer keeps others waiting. Its own answer is waited for further.
	turnTime = 250 * time.Millisecond
	// movesBudget bounds the questions to the server for Moves.
	movesBudget = 5 * time.Second
)

// Inquirer asks the sessions of a listener. All fields are set before it is used.
type Inquirer[H Host] struct {
	Life      context.Context
	Closed    <-chan struct{} // ends KeepKnown
	Times     known.Times
	Continues func() bool                 // whether sessions go on at another server
	Draining  func() bool                 // whether a drain is under way
	Followed  func() []H                  // the sessions whose states are to be known
	Local     func() []H                  // the sessions of the local server
	Sheltered func(what string, f func()) // runs f; a panic in it ends nothing else
	Rescued   func(h H, f func())         // runs f; a panic in it ends the session
	Panicked  string                      // why a session cannot be moved of which the reading panicked
	mu        sync.Mutex                  // held while sessions are asked for Moves or ahead
	first     atomic.Int32                // how many wait to ask ahead: Moves asks no session meanwhile
	cancel    atomic.Pointer[context.CancelFunc]
}

// KeepKnown asks for the states of sessions that would outlive the node of their backend. It runs until the listener
// closes.
func (i *Inquirer[H]) KeepKnown() {
	for {
		select {
		case <-i.Closed:
			return
		case <-time.After(boottime.UntilNext(i.Times.Tick)):
		}
		if list := i.Unknown(time.Now()); len(list) > 0 {
			ctx, cancel := context.WithTimeout(i.Life, i.Times.Tick)
			var all sync.WaitGroup
			for _, h := range list {
				all.Go(func() { i.Rescued(h, func() { Keep(ctx, h, i.Times) }) })
			}
			all.Wait()
			cancel()
		}
	}
}

// Unknown returns the sessions that are to be asked now, those that have waited longest first.
func (i *Inquirer[H]) Unknown(now time.Time) (list []H) {
	if !i.Continues() {
		return nil
	}
	type waiting struct {
		session H
		since   time.Time
	}
	var due []waiting
	for _, h := range i.Followed() {
		if at, asks := Due(h, now, i.Times, i.Draining()); asks && !at.After(now) {
			due = append(due, waiting{h, at})
		}
	}
	slices.SortStableFunc(due, func(a, b waiting) int { return a.since.Compare(b.since) })
	for _, d := range due[:min(len(due), keepPerTick)] {
		list = append(list, d.session)
	}
	return list
}

// Each calls read for each session of the list, for atOnce of them at a time, and a few more if some do not answer. It
// calls late for those whose turn has not come before ctx ends. It returns when all have returned.
func (i *Inquirer[H]) Each(ctx context.Context, atOnce int, list []H, read func(H), late func(h H, why string)) {
	turns := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, h := range list {
		all.Go(func() {
			select {
			case turns <- struct{}{}:
				free := sync.OnceFunc(func() { <-turns })
				defer free()
				defer time.AfterFunc(turnTime, free).Stop()
				i.Sheltered("reading the state of a session", func() { read(h) })
			case <-ctx.Done():
				late(h, tooLate)
			}
		})
	}
	all.Wait()
}

// End ends the inquiry of Moves that is under way, and waits until it has ended. A drain asks for itself.
func (i *Inquirer[H]) End() {
	if cancel := i.cancel.Load(); cancel != nil {
		(*cancel)()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
}

// Moves asks the local server for the state of each of its sessions, and returns which of them a planned failover would
// move. Nothing waits for the answer but the sessions' own next answers. One call at a time asks, and none during a
// drain.
func (i *Inquirer[H]) Moves(ctx context.Context) []ag.SessionMove {
	ctx, cancel := context.WithTimeout(ctx, movesBudget)
	defer cancel()
	list := []ag.SessionMove{}
	var all sync.WaitGroup
	asks := i.first.Load() == 0 && i.mu.TryLock()
	if asks {
		defer i.mu.Unlock()
		i.cancel.Store(&cancel) // BEFORE the check for a drain
	}
	turns := make(chan struct{}, AtOnce)
	sessions := i.Local()
	whys := make([]string, len(sessions))
	for n, h := range sessions {
		switch {
		case !i.Continues():
			whys[n] = "CONTINUITY = OFF"
		case i.Draining():
			whys[n] = "a drain is under way"
		case !asks:
			whys[n] = "another inquiry is under way; ask again"
		default:
			turns <- struct{}{}
			all.Go(func() {
				defer func() { <-turns }()
				whys[n] = i.Panicked // if this panics
				i.Sheltered("reading the state of a session", func() { _, whys[n] = Read(ctx, h) })
			})
		}
	}
	all.Wait()
	for n, h := range sessions {
		f := h.Facts()
		m := f.Move
		if m.Why = whys[n]; m.Why == Busy {
			h.Underway().Foresee(&m, f.Relayed)
		}
		list = append(list, m)
	}
	return list
}
