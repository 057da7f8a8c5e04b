package listener

import (
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// reads is how far a session's reads may be trusted (safety specification 5), by its startup parameter coterie.reads.
type reads string

const (
	// readsLease, the default: no byte that was read after the lease ended, by this node's clock.
	readsLease reads = "lease"
	// readsDurable: nothing that a failover could take away.
	readsDurable reads = "durable"
	// readsConfirmed: as lease, and a majority has said after the read that no other node leads; no clock is trusted.
	readsConfirmed reads = "confirmed"
)

func parseReads(p pgwire.Parameter) (reads, *pgwire.Error) {
	switch r := reads(strings.ToLower(p.Value)); r {
	case readsLease, readsDurable, readsConfirmed:
		return r, nil
	}
	bad := pgwire.Fatal("reads", pgwire.StateInvalidValue, "invalid value for parameter %q: %q", pgwire.Clip(p.Name), pgwire.Clip(p.Value))
	bad.Hint = "Available values: lease, durable, confirmed."
	return "", bad
}

// checkReads refuses a session what this listener cannot give it.
func (s *Server) checkReads(r reads, intent ag.Intent) *pgwire.Error {
	switch {
	case r == readsConfirmed && intent == ag.ReadOnly:
		bad := pgwire.Fatal("reads", pgwire.StateInvalidValue, "coterie.reads = confirmed is for READ_WRITE sessions: a secondary is behind by its nature")
		bad.Hint = "coterie.reads = durable works on secondaries."
		return bad
	case r == readsConfirmed && s.cfg.Confirm == nil, r == readsDurable && s.cfg.Durable == nil:
		return pgwire.Fatal("reads", pgwire.StateNotSupported, "coterie.reads = %s is not available here", r)
	}
	return nil
}
