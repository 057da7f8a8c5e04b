package listener

import (
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
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

func parseReads(p setting) (reads, *pgError) {
	switch r := reads(strings.ToLower(p.value)); r {
	case readsLease, readsDurable, readsConfirmed:
		return r, nil
	}
	bad := fatal("reads", stateInvalidValue, "invalid value for parameter %q: %q", clip(p.name), clip(p.value))
	bad.hint = "Available values: lease, durable, confirmed."
	return "", bad
}

// checkReads refuses a session what this listener cannot give it.
func (s *Server) checkReads(r reads, intent ag.Intent) *pgError {
	switch {
	case r == readsConfirmed && intent == ag.ReadOnly:
		bad := fatal("reads", stateInvalidValue, "coterie.reads = confirmed is for READ_WRITE sessions: a secondary is behind by its nature")
		bad.hint = "coterie.reads = durable works on secondaries."
		return bad
	case r == readsConfirmed && s.cfg.Confirm == nil, r == readsDurable && s.cfg.Durable == nil:
		return fatal("reads", stateNotSupported, "coterie.reads = %s is not available here", r)
	}
	return nil
}
