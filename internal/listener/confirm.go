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

// A commit waits in PostgreSQL until the synchronous secondaries have flushed it. That wait can be cancelled: by a
// cancel request, by pg_cancel_backend, by a statement_timeout inside CALL. PostgreSQL then reports the commit as done,
// with a warning that the client may have switched off. This file finds the sessions to which that may have happened.
// It holds the bytes that they would take for an acknowledgement until the secondaries have in fact flushed the commit.
// An answer that cannot be confirmed is discarded, and the client gets the error that the outcome is unknown.
//
// A session needs confirmation from one of these events on:
//
//	a cancel request for it was forwarded       until it is idle after the delivery
//	PostgreSQL warned that a wait was cancelled until the answer that follows is confirmed
//	its warnings may be switched off            for good
//	a CALL or DO ended outside a block          until it is idle again
//	COMMIT_BARRIER = STRICT                     always
//	coterie.reads = durable                     always
//
// The others cost three checks of a flag per CommandComplete and ReadyForQuery.

// cancelState is what other goroutines than downstream know about cancelled waits of a session.
type cancelState struct {
	started, delivered atomic.Uint64 // cancel requests for the session
	warningsHidden     atomic.Bool   // client_min_messages may hide the warning
}

// confirmState is what downstream knows about the answers of a session.
type confirmState struct {
	cleared uint64      // cancel requests that can no longer have an effect
	warned  bool        // PostgreSQL warned that a wait was cancelled
	called  bool        // a CALL or DO ended outside a block since the last ReadyForQuery
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

// needsConfirmation reports whether a commit that PostgreSQL reports as done may not be replicated.
func (x *session) needsConfirmation() bool {
	return x.waitCancelled() || x.confirmation.called || x.cancels.warningsHidden.Load() || x.reads == startup.ReadsDurable || x.srv.cfg.Strict != nil && x.srv.cfg.Strict()
}

// effectAtStake returns the effect that could be lost if an answer is sent before it is confirmed.
func (x *session) effectAtStake(typ byte, body []byte) stmt.Effect {
	if !x.guarded || typ != 'C' && typ != 'Z' {
		return stmt.NoEffect
	}
	if typ == 'C' && !x.confirmation.block && stmt.CommitsInside(body) {
		x.confirmation.called, x.calls = true, true
	}
	if x.reads != startup.ReadsConfirmed && !x.needsConfirmation() {
		return stmt.NoEffect
	}
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
	d.block, d.failed, d.warned, d.called, d.effect = x.status.Load() != 'I', false, false, false, stmt.NoEffect
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

// textEnd is the end of what a message has brought so far: a name may arrive in two pieces.
type textEnd struct {
	b [len(warningsSetting) - 1]byte
	n int
}

// add appends a piece.
func (t *textEnd) add(piece []byte) {
	piece = piece[max(0, len(piece)-len(t.b)):]
	if over := t.n + len(piece) - len(t.b); over > 0 {
		t.n = copy(t.b[:], t.b[over:t.n])
	}
	t.n += copy(t.b[t.n:], piece)
}

// observeText looks for the one setting that hides the warning, in a piece of a message that may bring it: a Query, a
// Parse, a Bind or a FunctionCall. It does not parse: a mention is enough, except in a whole Query or Parse that only
// switches warnings on. A function that sets it is found by COMMIT_BARRIER = STRICT only, as docs/guarantees.md says.
func (x *session) observeText(typ byte, piece []byte, begins, whole bool) {
	if begins {
		x.text.n = 0
	}
	var seam [2 * (len(warningsSetting) - 1)]byte
	n := copy(seam[:], x.text.b[:x.text.n])
	n += copy(seam[n:n+min(len(piece), len(x.text.b))], piece)
	split := x.text.n > 0 && stmt.Mentions(seam[:n], warningsSetting)
	if split || stmt.Mentions(piece, warningsSetting) {
		one := begins && whole && (typ == 'Q' || typ == 'P')
		if !one || !stmt.ShowsWarningsOnly(piece) {
			x.cancels.warningsHidden.Store(true)
		}
	}
	if !whole {
		x.text.add(piece)
	}
}

// noteWarnings finds out whether the session begins with the warning hidden: by its startup packet, else by the
// defaults of its role or database.
func (x *session) noteWarnings(ctx context.Context, settings []pgwire.Parameter) {
	if !x.guarded {
		return
	}
	x.cancels.warningsHidden.Store(hidesWarnings(settings, func() map[string]string { return x.srv.defaults(ctx, x.user, x.database) }))
}

// confirm returns when all conditions of the session's answer hold. If it needs confirmation, all WAL that was
// flushed before the call is flushed where the synchronous setting demands it. If it reads "confirmed", this node is
// known to lead. The gate is open. An error means that the answer must be discarded. A read that is held only because
// it may have written waits as commits do in PostgreSQL: without a limit, until it is cancelled.
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
	return x.gate.pass() // time has passed since the answer was read
}

// durable returns when the WAL flushed before the call is durable.
func (x *session) durable(ctx context.Context) error {
	lsn, err := x.srv.flushed.ask(ctx)
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
		g.passed = true
		return true, nil
	}
	g.sticky = true
	g.passed = boottime.Now() < deadline
	return g.passed, nil
}

// warningsSetting is the setting that can hide the warning.
const warningsSetting = "client_min_messages"

// hidesWarnings reports whether a session begins with warnings hidden: by its startup packet, else by the defaults of
// its role or database.
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
