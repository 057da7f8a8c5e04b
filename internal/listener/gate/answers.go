package gate

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/listener/serverlog"
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

// Rules are what all sessions of a listener have in common.
type Rules struct {
	Log    *serverlog.Reader // nil: each answer that may have ended a commit is confirmed
	Strict func() bool       // whether every commit is confirmed (COMMIT_BARRIER = STRICT); nil: it is not
}

// Answers decides about the answers of a session. Its methods are called by the one that carries them to the client,
// where nothing else is said.
type Answers struct {
	Rules   Rules
	Reads   startup.Reads
	Guarded bool // the server is the local one, and answers may have to be confirmed

	started, delivered atomic.Uint64 // cancel requests for the session
	before             atomic.Uint64 // suspicions in the server's log that are not of the session's requests

	cleared   uint64      // cancel requests that can no longer have an effect
	forwarded uint64      // cancel requests that had been delivered when the last cycle ended
	warned    bool        // PostgreSQL warned the session that a wait was cancelled
	logged    uint64      // suspicions in the server's log when it was last looked at
	weak      bool        // the log could not be relied on then
	block     bool        // inside a transaction block, by the answers so far
	failed    bool        // an error came since the last ReadyForQuery
	effect    stmt.Effect // of the commands answered since the last ReadyForQuery
}

// ErrUnconfirmed means that an answer must be discarded.
var ErrUnconfirmed = errors.New("a commit was not confirmed")

// CancelStarts must be called before a cancel request for the session is forwarded, and delivered after its delivery.
// Any goroutine may call both.
func (a *Answers) CancelStarts() (delivered func()) {
	a.started.Add(1)
	return func() { a.delivered.Add(1) }
}

// Canceled reports whether a cancel request for the session was ever forwarded. Any goroutine may call it.
func (a *Answers) Canceled() bool { return a.started.Load() != 0 }

// waitCancelled reports whether a wait of the session was cancelled, or may have been by a cancel request.
func (a *Answers) waitCancelled() bool { return a.warned || a.started.Load() != a.cleared }

// needsConfirmation reports whether a commit that PostgreSQL reports as done may not be replicated. The log was looked
// at after the report had arrived.
func (a *Answers) needsConfirmation() bool {
	return a.waitCancelled() || a.weak || a.logged != a.before.Load() || a.ConfirmsAll()
}

// ConfirmsAll reports whether the session has each commit confirmed. Any goroutine may call it.
func (a *Answers) ConfirmsAll() bool {
	return a.Reads == startup.ReadsDurable || a.Rules.Strict != nil && a.Rules.Strict()
}

// Unattended reports whether answers may pass that nobody here looks at, as those that the kernel relays: it sees in
// the server's log whether waits were cancelled.
func (a *Answers) Unattended() bool {
	log := a.Rules.Log
	return a.Reads != startup.ReadsConfirmed && !a.warned && (!a.Guarded || log != nil && log.Sound() && !a.waitCancelled() && !a.ConfirmsAll())
}

// lookAtLog finds out whether waits were cancelled. The answer that the caller decides about must have arrived before.
func (a *Answers) lookAtLog() {
	sound := false
	if log := a.Rules.Log; log != nil {
		a.logged, sound = log.Look()
	}
	a.weak = !sound
}

// RequestBegins must be called before the first message of a request is forwarded, if nothing is under way: warnings
// that are in the log already are not of this request. Where it is not called, that costs a confirmation. Its caller
// carries requests.
func (a *Answers) RequestBegins() {
	if log := a.Rules.Log; a.Guarded && log != nil {
		a.before.Store(log.Count())
	}
}

// Idle notes that nothing is under way, whether answers are guarded or not.
func (a *Answers) Idle() {
	if log := a.Rules.Log; log != nil {
		a.before.Store(log.Count())
	}
}

// AtStake returns the effect that could be lost if an answer is sent before it is confirmed. looked is whether the log
// was looked at since the answer arrived.
func (a *Answers) AtStake(typ byte, body []byte, looked *bool) stmt.Effect {
	if !a.Guarded || typ != 'C' && typ != 'Z' {
		return stmt.NoEffect
	}
	s := a.mayHaveCommitted(typ, body)
	if s == stmt.NoEffect {
		return s
	}
	if !*looked {
		a.lookAtLog()
		*looked = true
	}
	if a.Reads != startup.ReadsConfirmed && !a.needsConfirmation() {
		return stmt.NoEffect
	}
	return s
}

// mayHaveCommitted returns what the commands may have committed of which a CommandComplete or ReadyForQuery tells.
func (a *Answers) mayHaveCommitted(typ byte, body []byte) stmt.Effect {
	if typ == 'Z' { // commits by Sync; after an error nothing was committed
		if a.failed || len(body) == 0 || body[0] != 'I' {
			return stmt.NoEffect
		}
		return a.effect
	}
	tag := stmt.CommandTag(body)
	if a.block && !stmt.EndsBlock(tag) {
		return stmt.NoEffect
	}
	return stmt.EffectOf(tag)
}

// InBlock notes that the session begins inside a transaction block.
func (a *Answers) InBlock() { a.block = true }

// CommandEnded follows transaction blocks within a pipeline, or a Query of several statements. A ROLLBACK may have
// been one to a savepoint: taking the block for ended then costs one query too many, no more.
func (a *Answers) CommandEnded(body []byte) {
	if !a.Guarded {
		return
	}
	tag := stmt.CommandTag(body)
	switch string(tag) {
	case "BEGIN", "START TRANSACTION":
		a.block = true
	case "COMMIT", "ROLLBACK", "PREPARE TRANSACTION":
		a.block = false
	}
	a.effect = max(a.effect, stmt.EffectOf(tag))
}

// Returned notes the answer to a command that tells no tag.
func (a *Answers) Returned() { a.effect = max(a.effect, stmt.Reads) }

// Failed notes an ErrorResponse.
func (a *Answers) Failed() { a.failed = true }

// CycleEnded is called at ReadyForQuery. all is whether all cancel requests were delivered before: if nothing is under
// way after that, the caller calls Clear.
func (a *Answers) CycleEnded(block bool) (all bool) {
	a.block, a.failed, a.warned, a.effect = block, false, false, stmt.NoEffect
	a.forwarded = a.delivered.Load()
	return a.forwarded == a.started.Load()
}

// Clear notes that nothing was under way when the cancel requests had been delivered that CycleEnded has counted.
// PostgreSQL forgets such a request at the next command.
func (a *Answers) Clear() { a.cleared = a.forwarded }

// syncRepRoutine is the last field of the warning that a wait was cancelled. It is the same in every language.
var syncRepRoutine = []byte("\x00RSyncRepWaitForLSN\x00\x00")

// Notice looks for that warning in the end of a notice.
func (a *Answers) Notice(tail []byte) {
	if bytes.HasSuffix(tail, syncRepRoutine) {
		a.warned = true
	}
}

// Questions are what a confirmation asks, each with a context that ends with the session or after some time.
type Questions struct {
	Durable func() error // returns when all WAL that was flushed before the call is flushed where the setting demands it
	Leads   func() error // returns when this node is known to lead
}

// Confirm returns when all conditions of an answer hold that AtStake has named. If it needs confirmation, all WAL that
// was flushed before the call is durable. If the session reads "confirmed", this node is known to lead. An error means
// that the answer must be discarded. A read that is held only because it may have written waits as commits do in
// PostgreSQL: without a limit, until it is cancelled.
func (a *Answers) Confirm(s stmt.Effect, ask Questions) error {
	var err error
	log := a.Rules.Log
	if a.needsConfirmation() {
		if a.weak && log != nil && !a.ConfirmsAll() {
			log.Confirm()
		}
		err = ask.Durable()
		// Where each answer is confirmed, a read waits as long as the members are silent. Elsewhere it is held only for
		// a suspicion, which another session may have caused, and hears after some time that its outcome is unknown.
		each := a.ConfirmsAll() || a.weak
		for errors.Is(err, context.DeadlineExceeded) && s == stmt.Reads && each && !a.waitCancelled() {
			err = ask.Durable()
		}
	}
	if err == nil && a.Reads == startup.ReadsConfirmed {
		err = ask.Leads()
	}
	if err != nil {
		return err
	}
	if log != nil && log.Covers(a.before.Load()) {
		a.before.Store(a.logged) // what was logged until the look is covered
	}
	return nil
}
