package pgserver

import (
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/postgres"
)

// Observed is what the agent's loop last saw of the server, for people who look. The zero value has seen nothing. Any
// goroutine may call its methods; none of them waits or asks the server.
type Observed struct {
	last             atomic.Pointer[glimpse]
	flushed, replays trail
}

type glimpse struct {
	postgres.Observation
	at time.Duration // boottime
}

// observedFor is how old an observation may be that is shown.
const observedFor = 30 * time.Second

func (s *Observed) note(o postgres.Observation) {
	now := boottime.Now()
	s.last.Store(&glimpse{o, now})
	if o.InRecovery {
		s.replays.note(o.Replay, now)
	} else {
		s.flushed.note(o.Flush, now)
	}
}

// Latest returns what was seen last; false if that was long ago.
func (s *Observed) Latest() (postgres.Observation, bool) {
	g := s.last.Load()
	if g == nil || boottime.Now()-g.at > observedFor {
		return postgres.Observation{}, false
	}
	return g.Observation, true
}

// Behind returns for how long a copy that has everything up to that position has lacked something that this server, as
// the primary, had written; 0: it lacks nothing.
func (s *Observed) Behind(lsn ag.LSN) time.Duration { return s.flushed.behind(lsn, boottime.Now()) }

// ReplayRate returns how fast this server, as a secondary, has replayed lately, in bytes per second.
func (s *Observed) ReplayRate() float64 { return s.replays.rate(boottime.Now()) }
