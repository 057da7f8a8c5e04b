package attempts

import (
	"context"
	"errors"
	"sync"

	"github.com/coteriedb/coterie/internal/ag"
)

// ErrMoved ends an attempt whose replica has lost its role, or whose epoch is over.
var ErrMoved = errors.New("the group moved while the session was being opened")

// Attempt is one question or opening on a replica. The end of that replica's role ends it, and not the login.
type Attempt struct {
	Replica ag.ReplicaID
	Epoch   ag.Epoch
	Intent  ag.Intent
	Cancel  context.CancelCauseFunc
}

// Set is what is under way. The zero value is empty.
type Set struct {
	mu       sync.Mutex
	all      map[*Attempt]struct{} // guarded by mu, as is minEpoch
	minEpoch ag.Epoch              // nothing for writers begins under an older epoch
}

// Begin registers an attempt, so that CloseEpoch and CloseReplica can end it. It reports false if the route that led
// to it is outdated.
func (s *Set) Begin(a *Attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outdated(a.Intent, a.Epoch) {
		return false
	}
	if s.all == nil {
		s.all = make(map[*Attempt]struct{})
	}
	s.all[a] = struct{}{}
	return true
}

// Abandon unregisters an attempt, and cancels it.
func (s *Set) Abandon(a *Attempt) {
	s.Finish(a)
	a.Cancel(nil)
}

// Finish unregisters an attempt that has succeeded. It reports false if it was not registered any more.
func (s *Set) Finish(a *Attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.all[a]
	delete(s.all, a)
	return is
}

// Outdated reports whether a session of that intent must not be opened under that epoch any more.
func (s *Set) Outdated(intent ag.Intent, epoch ag.Epoch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outdated(intent, epoch)
}

// outdated is Outdated; the caller holds mu.
func (s *Set) outdated(intent ag.Intent, epoch ag.Epoch) bool {
	return intent == ag.ReadWrite && epoch < s.minEpoch
}

// CloseEpoch ends the attempts for writers under an epoch before that one. None begins afterwards.
func (s *Set) CloseEpoch(before ag.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minEpoch = max(s.minEpoch, before)
	s.cancel(func(a *Attempt) bool { return a.Intent == ag.ReadWrite && a.Epoch < before })
}

// CloseReplica ends the attempts on that replica, of both intents if intent is empty.
func (s *Set) CloseReplica(id ag.ReplicaID, intent ag.Intent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel(func(a *Attempt) bool { return a.Replica == id && (intent == "" || a.Intent == intent) })
}

// cancel cancels what matches. The caller holds mu.
func (s *Set) cancel(match func(*Attempt) bool) {
	for a := range s.all {
		if match(a) {
			a.Cancel(ErrMoved)
		}
	}
}

// Len returns how many are under way.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}
