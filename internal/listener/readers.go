package listener

import (
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// readerPoll is how often sessions that have to leave a replica are looked at, and routes where nobody tells of their change.
const readerPoll = 100 * time.Millisecond

// moveReaders ends the sessions of readers on replicas that have left the routing list of the primary, as each becomes idle; who is
// still busy after HoldMax is cut. Their clients come back by the list in force. It runs until the server closes.
func (s *Server) moveReaders() {
	since := map[ag.ReplicaID]time.Time{} // replicas that had to be left, and when that was seen first
	for {
		var changed <-chan struct{}
		if s.cfg.Changed != nil {
			changed = s.cfg.Changed() // before Routes
		}
		poll := (<-chan time.Time)(nil)
		if s.leaveUnlisted(s.cfg.Routes(), since) > 0 || changed == nil {
			poll = time.After(readerPoll)
		}
		select {
		case <-changed:
		case <-poll:
		case <-s.closed:
			return
		}
	}
}

// leaveUnlisted ends what can be ended, and returns how many sessions are still where they should not be. While there is no primary no
// list is in force, and readers stay.
func (s *Server) leaveUnlisted(r *ag.Routes, since map[ag.ReplicaID]time.Time) (left int) {
	if r == nil || r.Primary == "" {
		clear(since)
		return 0
	}
	gone := ending{reason: "routing list", why: "this replica has left the read-only routing list"}
	misplaced := func(x *session) bool {
		return !x.relayed && x.intent == ag.ReadOnly && x.replica != r.Primary && !r.Listed(x.replica)
	}
	seen := map[ag.ReplicaID]bool{}
	s.endWhere(gone, func(x *session) bool {
		if !misplaced(x) {
			return false
		}
		seen[x.replica] = true
		if _, known := since[x.replica]; !known {
			since[x.replica] = time.Now()
		}
		if x.idle() || time.Since(since[x.replica]) > s.cfg.HoldMax {
			return true
		}
		left++
		return false
	})
	for id := range since {
		if !seen[id] {
			delete(since, id)
		}
	}
	return left
}
