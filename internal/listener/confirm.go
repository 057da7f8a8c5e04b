package listener

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
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

// cancelState is what can make the end of a command doubtful, as far as other goroutines than downstream set it.
type cancelState struct {
	started, delivered atomic.Uint64 // cancel requests for the session
	warningsHidden     atomic.Bool   // client_min_messages may hide the warning
}

// confirmState is downstream's own book.
type confirmState struct {
	cleared uint64      // cancel requests that can do nothing any more
	warned  bool        // PostgreSQL said that a wait was cancelled
	block   bool        // inside a transaction block, as far as the answers told
	failed  bool        // since the last ReadyForQuery
	effect  stmt.Effect // of what was answered since the last ReadyForQuery
}

// errUnconfirmed is an answer that may not be given.
var errUnconfirmed = errors.New("a commit was not confirmed")

// cancelStarts is called before a cancel request for the session is forwarded; the function it returns when it was delivered.
func (x *session) cancelStarts() (delivered func()) {
	x.cancels.started.Add(1)
	x.reclaim()
	return func() { x.cancels.delivered.Add(1) }
}

// waitCancelled says whether a wait of the session is known to have been cut short, or asked to be.
func (x *session) waitCancelled() bool {
	return x.confirmation.warned || x.cancels.started.Load() != x.confirmation.cleared
}

// needsConfirmation says whether what PostgreSQL calls done may not be replicated.
func (x *session) needsConfirmation() bool {
	return x.waitCancelled() || x.cancels.warningsHidden.Load() || x.reads == startup.ReadsDurable || x.srv.cfg.Strict != nil && x.srv.cfg.Strict()
}

// effectAtStake returns what is at stake if the answer is given before it is confirmed.
func (x *session) effectAtStake(typ byte, body []byte) stmt.Effect {
	if !x.guarded || typ != 'C' && typ != 'Z' || x.reads != startup.ReadsConfirmed && !x.needsConfirmation() {
		return stmt.NoEffect
	}
	if typ == 'Z' { // what committed by Sync; an error means that nothing did
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

// commandEnded follows transaction blocks within a pipeline or a Query of several statements. A ROLLBACK may have been one to a
// savepoint: to think the block ended costs a question too many, no more.
func (x *session) commandEnded(body []byte) {
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
	// A cancel request that was delivered while nothing ran does nothing: PostgreSQL forgets it at the next command. What is
	// owed is looked at last, so nothing ran at a moment after all that are counted had been delivered.
	delivered := x.cancels.delivered.Load()
	if delivered == x.cancels.started.Load() && x.owed.Load() <= 0 && !x.unsynced.Load() {
		d.cleared = delivered
	}
}

// syncRepRoutine is the last field of the warning that a wait was cancelled: the same in every language.
var syncRepRoutine = []byte("\x00RSyncRepWaitForLSN\x00\x00")

func (x *session) observeNotice(tail []byte) {
	if bytes.HasSuffix(tail, syncRepRoutine) {
		x.confirmation.warned = true
	}
}

// observeText looks for the one setting that hides the warning. It is no parser: a mention is enough. What a function does out
// of sight is found by COMMIT_BARRIER = STRICT only, and docs/guarantees.md says so.
func (x *session) observeText(text []byte) {
	if bytes.Contains(text, []byte("client_min_messages")) || bytes.Contains(text, []byte("CLIENT_MIN_MESSAGES")) {
		if !stmt.ShowsWarningsOnly(text) {
			x.cancels.warningsHidden.Store(true)
		}
	}
}

// noteWarnings finds out whether the session begins with the warning hidden: by its startup packet, else by what was set for its role
// or database.
func (x *session) noteWarnings(ctx context.Context, settings []pgwire.Parameter) {
	if !x.guarded {
		return
	}
	x.cancels.warningsHidden.Store(hidesWarnings(settings, func() map[string]string { return x.srv.defaults(ctx, x.user, x.database) }))
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
	if x.needsConfirmation() {
		err = x.within(x.durable)
		for errors.Is(err, context.DeadlineExceeded) && s == stmt.Reads && !x.waitCancelled() {
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

// gatePoll is how often an expired gate is looked at again.
const gatePoll = 2 * time.Millisecond

var errGate = errors.New("the answer gate did not open again")

// gated reads from the local PostgreSQL and hands bytes on only while the gate is open. The check comes after the read: bytes
// that arrive at an open gate were produced before it closed. While bytes are held nothing more is read, so PostgreSQL feels
// the back-pressure and memory stays bounded.
type gated struct {
	conn net.Conn
	srv  *Server
	done <-chan struct{} // ends a wait
	// sticky: the gate had a deadline once, so this session has had bytes of a primary. When it has none any more the role
	// is gone, and what is still held was produced under it.
	sticky bool
}

func (g *gated) Read(p []byte) (int, error) {
	n, err := g.conn.Read(p)
	if n > 0 {
		if gate := g.pass(); gate != nil {
			return 0, gate
		}
	}
	return n, err
}

// pass returns when bytes just read may be passed on, or an error when they must be discarded.
func (g *gated) pass() error {
	s := g.srv
	open, err := g.look(s)
	if open || err != nil {
		return err
	}
	began := time.Now()
	s.counts.gated.Add(1)
	defer func() { s.counts.gatedTime.Add(int64(time.Since(began))) }()
	t := time.NewTicker(gatePoll)
	defer t.Stop()
	for {
		select {
		case <-g.done:
			return errGate
		case <-t.C:
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
		return true, nil
	}
	g.sticky = true
	return boottime.Now() < deadline, nil
}

// warningsSetting is the one that can hide the warning.
const warningsSetting = "client_min_messages"

// hidesWarnings says that a session begins with warnings hidden: by its startup packet, else by what was set for its role or database.
func hidesWarnings(settings []pgwire.Parameter, defaults func() map[string]string) bool {
	level, said := "", false
	for _, p := range settings {
		if strings.EqualFold(p.Name, warningsSetting) {
			level, said = p.Value, true
		}
	}
	if !said {
		level, said = defaults()[warningsSetting]
	}
	return said && !stmt.ShowsWarnings(level)
}
