package listener

import (
	"context"
	"errors"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// cancelStarts must be called before a cancel request for the session is forwarded, and delivered after its delivery.
func (x *session) cancelStarts() (delivered func()) {
	delivered = x.confirmation.CancelStarts()
	x.reclaim()
	return delivered
}

// requestBegins is called before the first message of a request is forwarded. It may know less than there is.
func (x *session) requestBegins() {
	if x.confirmation.Guarded && x.owed.Load() <= 0 && !x.unsynced.Load() {
		x.confirmation.RequestBegins()
	}
}

// cycleEnded is called at ReadyForQuery.
func (x *session) cycleEnded() {
	// owed is read last, so nothing ran at some moment after all counted cancel requests had been delivered.
	if x.confirmation.CycleEnded(x.status.Load() != 'I') && x.owed.Load() <= 0 && !x.unsynced.Load() {
		x.confirmation.Clear()
	}
}

// answerRules returns by which rules answers are confirmed here.
func (s *Server) answerRules() gate.Rules { return gate.Rules{Log: s.cfg.Log, Strict: s.cfg.Strict} }

// confirm returns when all conditions of the session's answer hold, and the gate is open. An error means that the
// answer must be discarded.
func (x *session) confirm(s stmt.Effect) error {
	began := time.Now()
	x.srv.counts.Held.Add(1)
	defer func() { x.srv.counts.HeldTime.Add(int64(time.Since(began))) }()
	err := x.confirmation.Confirm(s, gate.Questions{
		Durable: func() error { return x.within(x.durable) },
		Leads: func() error {
			return x.within(func(ctx context.Context) error { _, err := x.srv.leads.Ask(ctx); return err })
		},
	})
	if err != nil {
		x.srv.counts.Unconfirmed.Add(1)
		x.srv.log.Warn("an answer is discarded: it was not confirmed", "session", x.id, "user", x.user, "error", err)
		return gate.ErrUnconfirmed
	}
	if x.gate == nil {
		return nil
	}
	return x.gate.Pass() // time has passed since the answer was read
}

// durable returns when the WAL flushed before the call is durable.
func (x *session) durable(ctx context.Context) error {
	lsn, err := x.srv.flushed.Ask(ctx)
	if err != nil {
		return err
	}
	return x.srv.cfg.Durable(ctx, lsn)
}

// within calls f with a context that ends after GateHold, or with the session.
func (x *session) within(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(x.srv.life, x.srv.cfg.GateHold)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-x.cut:
			cancel()
		case <-x.moving.leave:
			cancel()
		case <-over:
		}
	}()
	return f(ctx)
}

// passFailed ends a session whose answers cannot be passed on. It returns the final error for the client, or nil.
func (x *session) passFailed(err error) *pgwire.Error {
	switch {
	case errors.Is(err, errClient):
	case errors.Is(err, gate.ErrUnconfirmed), errors.Is(err, gate.ErrClosed), errors.Is(err, errPromoted):
		return x.finalError(err)
	default:
		x.srv.log.Error("PostgreSQL sent an invalid message", "session", x.id, "error", err)
		x.end(ending{reason: "postgresql protocol", why: "protocol error"})
	}
	return nil
}

// finalError ends the session. It returns the final error for the client; nil if PostgreSQL has sent one itself or
// nothing can be written.
func (x *session) finalError(err error) *pgwire.Error {
	why := "the connection to PostgreSQL was lost"
	switch e := x.ended.Load(); {
	case e != nil:
		why = e.why
	case errors.Is(err, gate.ErrClosed):
		why = "its answers could not be confirmed in time"
		x.end(ending{reason: "gate", why: why})
	case errors.Is(err, gate.ErrUnconfirmed):
		why = "the synchronous secondaries did not confirm a commit in time"
		x.end(ending{reason: endUnconfirmed, why: why})
	case x.terminated.Load() || x.fatalSent.Load():
		return nil
	default:
		x.end(ending{reason: endLost, why: why})
	}
	if e := x.ended.Load(); e.reason == endLost || e.reason == endEpoch {
		why += x.unknown()
	}
	last := x.outcomeError(why)
	x.srv.log.Info("session cut", "session", x.id, "replica", x.replica, "user", x.user, "reason", why, "sqlstate", last.Code)
	if x.midMessage || x.fatalSent.Load() || x.terminated.Load() || x.leftToNode() {
		return nil
	}
	return last
}

// sendFinal writes the final error.
func (x *session) sendFinal(last *pgwire.Error) {
	if last == nil {
		return
	}
	_ = x.raw.SetWriteDeadline(time.Now().Add(x.srv.cfg.Limits.ShutdownMessage))
	_, _ = x.client.Write(last.Encode())
}
