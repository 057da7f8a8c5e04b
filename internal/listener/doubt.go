package listener

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// A commit waits in PostgreSQL until the synchronous secondaries have flushed it. That wait can be cut short: by a cancel request,
// by pg_cancel_backend, by a statement_timeout inside CALL. PostgreSQL then says that the commit is done, with a warning that the
// client may have switched off. This file finds the sessions to which that may have happened, and holds what they would take for
// an acknowledgement until the secondaries have in fact flushed it. An answer that cannot be confirmed is discarded and the
// client is told that the outcome is unknown.
//
// A session is suspect from one of these on:
//
//	a cancel request for it was forwarded       until it is idle after the delivery
//	PostgreSQL said that a wait was cancelled   until the answer that follows is confirmed
//	its warnings may be switched off            for good
//	COMMIT_BARRIER = STRICT                     always
//	coterie.reads = durable                     always
//
// Of the others, nothing is asked but three flags, once per CommandComplete and ReadyForQuery.

// suspicion is what can make the end of a command doubtful, as far as other goroutines than downstream set it.
type suspicion struct {
	begun, delivered atomic.Uint64 // cancel requests for the session
	muted            atomic.Bool   // client_min_messages may hide the warning
}

// doubt is downstream's own book.
type doubt struct {
	cleared uint64      // cancel requests that can do nothing any more
	warned  bool        // PostgreSQL said that a wait was cancelled
	block   bool        // inside a transaction block, as far as the answers told
	failed  bool        // since the last ReadyForQuery
	stake   stmt.Effect // of what was answered since the last ReadyForQuery
}

// errUnconfirmed is an answer that may not be given.
var errUnconfirmed = errors.New("a commit was not confirmed")

// cancelBegins is called before a cancel request for the session is forwarded; the function it returns when it was delivered.
func (x *session) cancelBegins() (delivered func()) {
	x.suspect.begun.Add(1)
	x.recall()
	return func() { x.suspect.delivered.Add(1) }
}

// cutShort says whether a wait of the session is known to have been cut short, or asked to be.
func (x *session) cutShort() bool { return x.doubt.warned || x.suspect.begun.Load() != x.doubt.cleared }

// suspected says whether what PostgreSQL calls done may not be replicated.
func (x *session) suspected() bool {
	return x.cutShort() || x.suspect.muted.Load() || x.reads == startup.ReadsDurable || x.srv.cfg.Strict != nil && x.srv.cfg.Strict()
}

// doubtful returns what is at stake if the answer is given before it is confirmed.
func (x *session) doubtful(typ byte, body []byte) stmt.Effect {
	if !x.guarded || typ != 'C' && typ != 'Z' || x.reads != startup.ReadsConfirmed && !x.suspected() {
		return stmt.NoEffect
	}
	if typ == 'Z' { // what committed by Sync; an error means that nothing did
		if x.doubt.failed || len(body) == 0 || body[0] != 'I' {
			return stmt.NoEffect
		}
		return x.doubt.stake
	}
	tag := stmt.CommandTag(body)
	if x.doubt.block && !stmt.EndsBlock(tag) {
		return stmt.NoEffect
	}
	return stmt.EffectOf(tag)
}

// commandEnded follows transaction blocks within a pipeline or a Query of several statements. A ROLLBACK may have been one to a
// savepoint: to think the block ended costs a question too many, no more.
func (x *session) commandEnded(body []byte) {
	if !x.guarded {
		return
	}
	tag := stmt.CommandTag(body)
	switch string(tag) {
	case "BEGIN", "START TRANSACTION":
		x.doubt.block = true
	case "COMMIT", "ROLLBACK", "PREPARE TRANSACTION":
		x.doubt.block = false
	}
	x.doubt.stake = max(x.doubt.stake, stmt.EffectOf(tag))
}

// cycleEnded is called at ReadyForQuery.
func (x *session) cycleEnded() {
	d := &x.doubt
	d.block, d.failed, d.warned, d.stake = x.status.Load() != 'I', false, false, stmt.NoEffect
	// A cancel request that was delivered while nothing ran does nothing: PostgreSQL forgets it at the next command. What is
	// owed is looked at last, so nothing ran at a moment after all that are counted had been delivered.
	delivered := x.suspect.delivered.Load()
	if delivered == x.suspect.begun.Load() && x.owed.Load() <= 0 && !x.unsynced.Load() {
		d.cleared = delivered
	}
}

// syncRepRoutine is the last field of the warning that a wait was cancelled: the same in every language.
var syncRepRoutine = []byte("\x00RSyncRepWaitForLSN\x00\x00")

func (x *session) observeNotice(tail []byte) {
	if bytes.HasSuffix(tail, syncRepRoutine) {
		x.doubt.warned = true
	}
}

// observeText looks for the one setting that hides the warning. It is no parser: a mention is enough. What a function does out
// of sight is found by COMMIT_BARRIER = STRICT only, and docs/guarantees.md says so.
func (x *session) observeText(text []byte) {
	if bytes.Contains(text, []byte("client_min_messages")) || bytes.Contains(text, []byte("CLIENT_MIN_MESSAGES")) {
		if !stmt.ShowsWarningsOnly(text) {
			x.suspect.muted.Store(true)
		}
	}
}

// noteMuting finds out whether the session begins with the warning hidden: by its startup packet, else by what was set for its role
// or database.
func (x *session) noteMuting(ctx context.Context, settings []pgwire.Parameter) {
	if !x.guarded {
		return
	}
	x.suspect.muted.Store(startup.HidesWarnings(settings, func() map[string]string { return x.srv.defaults(ctx, x.user, x.database) }))
}

// confirm returns when everything that PostgreSQL had flushed before the call is where its synchronous setting wants it, if the
// session is suspected, this node is known to lead, if the session wants to know, and the gate is open. An error means that the
// answer must be discarded. A read that is only held because nobody can tell that it is one waits as commits do in PostgreSQL: as
// long as it takes, or until somebody cancels it.
func (x *session) confirm(s stmt.Effect) error {
	began := time.Now()
	x.srv.counts.held.Add(1)
	defer func() { x.srv.counts.heldTime.Add(int64(time.Since(began))) }()
	var err error
	if x.suspected() {
		err = x.within(x.durable)
		for errors.Is(err, context.DeadlineExceeded) && s == stmt.Reads && !x.cutShort() {
			err = x.within(x.durable)
		}
	}
	if err == nil && x.reads == startup.ReadsConfirmed {
		err = x.within(func(ctx context.Context) error { _, err := x.srv.leads.ask(ctx); return err })
	}
	if err != nil {
		x.srv.counts.unconfirmed.Add(1)
		x.srv.log.Warn("an answer is discarded: it was not confirmed", "session", x.id, "user", x.user, "error", err)
		return errUnconfirmed
	}
	if x.gate == nil {
		return nil
	}
	return x.gate.pass() // time has passed since it was read
}

func (x *session) durable(ctx context.Context) error {
	lsn, err := x.srv.flushed.ask(ctx)
	if err != nil {
		return err
	}
	return x.srv.cfg.Durable(ctx, lsn)
}

// within gives f the time for which an answer is held at most; the end of the session ends it, too.
func (x *session) within(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(x.srv.life, x.srv.cfg.GateHold)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-x.cut:
			cancel()
		case <-over:
		}
	}()
	return f(ctx)
}
