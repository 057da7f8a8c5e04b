package agent

import (
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// stuckAfter is how long a standby must stand still before it is started again; it doubles with every start that did not help, up to
// stuckMost.
const (
	stuckAfter = 10 * time.Second
	stuckMost  = 5 * time.Minute
)

// stuck watches for a standby that cannot read what it has received and will not ask for it again. The startup process of PostgreSQL
// believes that the log goes on to where the last walreceiver had flushed it, so when a record before that is unreadable it ends each
// new walreceiver before it has connected, and reads the same bytes again (WaitForWALToBecomeAvailable in xlogrecovery.c; the log
// says "invalid record length" or "unexpected pageaddr" every wal_retrieve_retry_interval). Started again it knows of no
// flushed end, and draws the whole segment anew.
type stuck struct {
	at     ag.Position   // what had been received, when it was last seen to move
	replay ag.LSN        // and replayed
	since  time.Duration // boottime of that
	where  ag.LSN        // how far it had replayed when it was last started again for it
	starts int           // for that place
}

// look returns why the standby will not go on, or "". The loop calls it once a turn.
func (s *stuck) look(o Observation, up UpstreamStatus, now time.Duration) string {
	if o.Replay > s.where {
		s.starts = 0
	}
	still := o.InRecovery && o.Streamed && o.Replay < o.Position.LSN && o.Position == s.at && o.Replay == s.replay
	asks := up.Connected || up.Held || up.Source == ""
	if !still || asks {
		s.at, s.replay, s.since = o.Position, o.Replay, now
		return ""
	}
	if now-s.since < min(stuckAfter<<min(s.starts, 10), stuckMost) {
		return ""
	}
	again := ""
	if s.starts > 0 {
		again = fmt.Sprintf("; %d starts did not help: see PostgreSQL's log, and coterie seed NAME makes the copy anew", s.starts)
	}
	return fmt.Sprintf("its server has replayed up to %s of %s, cannot read on, and does not ask for it again%s", o.Replay, o.Position.LSN, again)
}

// restarted notes that the server was stopped because of it.
func (s *stuck) restarted() {
	s.starts++
	s.where, s.at = s.replay, ag.Position{}
}
