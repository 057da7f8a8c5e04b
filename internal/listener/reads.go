package listener

import (
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// checkReads refuses a session what this listener cannot give it.
func (s *Server) checkReads(r startup.Reads, intent ag.Intent) *pgwire.Error {
	switch {
	case r == startup.ReadsConfirmed && intent == ag.ReadOnly:
		bad := pgwire.Fatal("reads", pgwire.StateInvalidValue, "coterie.reads = confirmed is for READ_WRITE sessions: a secondary is behind by its nature")
		bad.Hint = "coterie.reads = durable works on secondaries."
		return bad
	case r == startup.ReadsConfirmed && s.cfg.Confirm == nil, r == startup.ReadsDurable && s.cfg.Durable == nil:
		return pgwire.Fatal("reads", pgwire.StateNotSupported, "coterie.reads = %s is not available here", r)
	}
	return nil
}
