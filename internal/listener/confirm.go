package listener

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// A commit waits in PostgreSQL until the synchronous secondaries have flushed it. That wait can be cancelled: by a
// cancel request, by pg_cancel_backend, by a statement_timeout inside CALL. PostgreSQL then reports the commit as
// done. It logs a warning first, which no ordinary role can prevent: the server's log is looked at when an answer that
// may end a commit has arrived. If a warning may have come since the session's requests began, the answer is held
// until the secondaries have in fact flushed what the server had flushed after it. An answer that cannot be confirmed
// is discarded, and the client is told that the outcome is unknown.
//
// An answer needs confirmation in these cases:
//
//	the log tells of a cancelled wait since the request began
//	the log cannot be relied on
//	a cancel request for the session was forwarded, and it was not idle since the delivery
//	PostgreSQL warned the session itself of a cancelled wait
//	COMMIT_BARRIER = STRICT
//	coterie.reads = durable
//
// The others cost one system call for each piece of the server's bytes that has a CommandComplete or ReadyForQuery of
// something that may have been committed.

// cancelState is what other goroutines than downstream know about cancelled waits of a session.
type cancelState struct {
	started, delivered atomic.Uint64 // cancel requests for the session
}

// confirmState is what downstream knows about the answers of a session.
type confirmState struct {
	cleared uint64      // cancel requests that can no longer have an effect
	warned  bool        // PostgreSQL warned the session that a wait was cancelled
	logged  uint64      // suspicions in the server's log when it was last looked at
	weak    bool        // the log could not be relied on then
	block   bool        // inside a transaction block, by the answers so far
	failed  bool        // an error came since the last ReadyForQuery
	effect  stmt.Effect // of the commands answered since the last ReadyForQuery
}

// errUnconfirmed means that an answer must be discarded.
var errUnconfirmed = errors.New("a commit was not confirmed")

// cancelStarts must be called before a cancel request for the session is forwarded, and delivered after its delivery.
func (x *session) cancelStarts() (delivered func()) {
	x.cancels.started.Add(1)
	x.reclaim()
	return func() { x.cancels.delivered.Add(1) }
}

// waitCancelled reports whether a wait of the session was cancelled, or may have been by a cancel request.
func (x *session) waitCancelled() bool {
	return x.confirmation.warned || x.cancels.started.Load() != x.confirmation.cleared
}

// needsConfirmation reports whether a commit that PostgreSQL reports as done may not be replicated. The log was looked
// at after the report had arrived.
func (x *session) needsConfirmation() bool {
	d := &x.confirmation
	return x.waitCancelled() || d.weak || d.logged != x.logBefore.Load() || x.confirmsAll()
}

// confirmsAll reports whether the session has each commit confirmed.
func (x *session) confirmsAll() bool {
	return x.reads == startup.ReadsDurable || x.srv.cfg.Strict != nil && x.srv.cfg.Strict()
}

// lookAtLog finds out whether waits were cancelled. The answer that the caller decides about must have arrived before.
func (x *session) lookAtLog() {
	sound := false
	if log := x.srv.cfg.Log; log != nil {
		x.confirmation.logged, sound = log.Look()
	}
	x.confirmation.weak = !sound
}

// requestBegins is called before the first message of a request is forwarded. If nothing is under way, warnings that
// are in the log already are not of this request. It may know less than there is, which costs a confirmation.
func (x *session) requestBegins() {
	if log := x.srv.cfg.Log; x.guarded && log != nil && x.owed.Load() <= 0 && !x.unsynced.Load() {
		x.logBefore.Store(log.Count())
	}
}

// effectAtStake returns the effect that could be lost if an answer is sent before it is confirmed. looked is whether
// the log was looked at since the answer arrived.
func (x *session) effectAtStake(typ byte, body []byte, looked *bool) stmt.Effect {
	if !x.guarded || typ != 'C' && typ != 'Z' {
		return stmt.NoEffect
	}
	s := x.mayHaveCommitted(typ, body)
	if s == stmt.NoEffect {
		return s
	}
	if !*looked {
		x.lookAtLog()
		*looked = true
	}
	if x.reads != startup.ReadsConfirmed && !x.needsConfirmation() {
		return stmt.NoEffect
	}
	return s
}

// mayHaveCommitted returns what the commands may have committed of which a CommandComplete or ReadyForQuery tells.
func (x *session) mayHaveCommitted(typ byte, body []byte) stmt.Effect {
	if typ == 'Z' { // commits by Sync; after an error nothing was committed
		if x.confirmation.failed || len(body) == 0 || body[0] != 'I' {
			return stmt.NoEffect
		}
		return x.confirmation.effect
	}
	tag := stmt.CommandTag(body)
	if x.confirmation.block && !stmt.EndsBlock(tag) {
		return stmt.NoEffect
	}
	return stmt.EffectOf(tag)
}

// commandEnded follows transaction blocks within a pipeline, or a Query of several statements. A ROLLBACK may have
// been one to a savepoint: taking the block for ended then costs one query too many, no more.
func (x *session) commandEnded(body []byte) {
	x.noteChange(body)
	if !x.guarded {
		return
	}
	tag := stmt.CommandTag(body)
	switch string(tag) {
	case "BEGIN", "START TRANSACTION":
		x.confirmation.block = true
	case "COMMIT", "ROLLBACK", "PREPARE TRANSACTION":
		x.confirmation.block = false
	}
	x.confirmation.effect = max(x.confirmation.effect, stmt.EffectOf(tag))
}

// cycleEnded is called at ReadyForQuery.
func (x *session) cycleEnded() {
	d := &x.confirmation
	d.block, d.failed, d.warned, d.effect = x.status.Load() != 'I', false, false, stmt.NoEffect
	// A cancel request that was delivered while nothing ran has no effect: PostgreSQL forgets it at the next command.
	// owed is read last, so nothing ran at some moment after all counted requests had been delivered.
	delivered := x.cancels.delivered.Load()
	if delivered == x.cancels.started.Load() && x.owed.Load() <= 0 && !x.unsynced.Load() {
		d.cleared = delivered
	}
}

// syncRepRoutine is the last field of the warning that a wait was cancelled. It is the same in every language.
var syncRepRoutine = []byte("\x00RSyncRepWaitForLSN\x00\x00")

// observeNotice looks for that warning in the end of a notice.
func (x *session) observeNotice(tail []byte) {
	if bytes.HasSuffix(tail, syncRepRoutine) {
		x.confirmation.warned = true
	}
}

// confirm returns when all conditions of the session's answer hold. If it needs confirmation, all WAL that was
// flushed before the call is flushed where the synchronous setting demands it. If it reads "confirmed", this node is
// known to lead. The gate is open. An error means that the answer must be discarded. A read that is held only because
// it may have written waits as commits do in PostgreSQL: without a limit, until it is cancelled.
func (x *session) confirm(s stmt.Effect) error {
	began := time.Now()
	x.srv.counts.Held.Add(1)
	defer func() { x.srv.counts.HeldTime.Add(int64(time.Since(began))) }()
	var err error
	if x.needsConfirmation() {
		if x.confirmation.weak && x.srv.cfg.Log != nil && !x.confirmsAll() {
			x.srv.cfg.Log.Confirm()
		}
		err = x.within(x.durable)
		// Where each answer is confirmed, a read waits as long as the members are silent. Elsewhere it is held only for
		// a suspicion, which another session may have caused, and hears after GateHold that its outcome is unknown.
		each := x.confirmsAll() || x.confirmation.weak
		for errors.Is(err, context.DeadlineExceeded) && s == stmt.Reads && each && !x.waitCancelled() {
			err = x.within(x.durable)
		}
	}
	if err == nil && x.reads == startup.ReadsConfirmed {
		err = x.within(func(ctx context.Context) error { _, err := x.srv.leads.Ask(ctx); return err })
	}
	if err != nil {
		x.srv.counts.Unconfirmed.Add(1)
		x.srv.log.Warn("an answer is discarded: it was not confirmed", "session", x.id, "user", x.user, "error", err)
		return errUnconfirmed
	}
	if log := x.srv.cfg.Log; log != nil && log.Covers(x.logBefore.Load()) {
		x.logBefore.Store(x.confirmation.logged) // what was logged until the look is covered
	}
	if x.gate == nil {
		return nil
	}
	return x.gate.pass() // time has passed since the answer was read
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

// gatePoll is how often a closed gate is checked again.
const gatePoll = 2 * time.Millisecond

var errGate = errors.New("the answer gate did not open again")

// gated reads from the local PostgreSQL and passes bytes on only while the gate is open. The gate is checked after
// the read: bytes that arrive at an open gate were produced before it closed. While bytes are held nothing more is
// read, so back-pressure reaches PostgreSQL and memory stays bounded.
type gated struct {
	conn net.Conn
	srv  *Server
	done <-chan struct{} // ends a wait
	lost *atomic.Bool    // the session leaves its server, and nothing of that passes any more
	// sticky: the gate had a deadline once, so this session has received bytes of a primary. When the gate has none
	// any more the role has ended, and bytes that are still held were produced under it.
	sticky bool
	passed bool // what was read last has passed
}

func (g *gated) Read(p []byte) (int, error) {
	g.passed = false
	n, err := g.conn.Read(p)
	if n > 0 {
		if gate := g.pass(); gate != nil {
			return 0, gate
		}
	}
	return n, err
}

// pass returns when bytes that were just read may be passed on. An error means that they must be discarded.
func (g *gated) pass() error {
	s := g.srv
	open, err := g.look(s)
	if open || err != nil {
		return err
	}
	began := time.Now()
	s.counts.Gated.Add(1)
	defer func() { s.counts.GatedTime.Add(int64(time.Since(began))) }()
	t := time.NewTicker(gatePoll)
	defer t.Stop()
	for {
		select {
		case <-g.done:
			return errGate
		case <-t.C:
		}
		if g.lost.Load() {
			return errGate
		}
		if open, err := g.look(s); open || err != nil {
			return err
		}
		if time.Since(began) > s.cfg.GateHold {
			return errGate
		}
	}
}

func (g *gated) look(s *Server) (open bool, err error) {
	deadline := s.cfg.Gate()
	if deadline == 0 {
		if g.sticky {
			return false, errGate
		}
		g.passed = true
		return true, nil
	}
	g.sticky = true
	g.passed = boottime.Now() < deadline
	return g.passed, nil
}
