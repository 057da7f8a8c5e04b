package listener

import (
	"bytes"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/replay"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// applicationName is the setting by which a client names its program.
const applicationName = "application_name"

// reported follows a ParameterStatus. Its setting may have changed where no text of the client shows it.
func (x *session) reported(typ byte, body []byte) {
	if typ != 'S' || !x.drained.local && !x.moving.known.Follows {
		return
	}
	name, value, _ := bytes.Cut(body, []byte{0})
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	x.moving.tracker.Reported(string(name))
	x.moving.known.Unchanged.Doubt()
	if string(name) == applicationName {
		x.moving.application = string(bytes.TrimRight(value, "\x00"))
	}
}

// libraries returns why a session whose state was read cannot outlive its server for the libraries of its process; ""
// if it can.
func (x *session) libraries(q *question, answered bool) string {
	switch {
	case !answered:
		return ""
	case x.drained.local:
		return continuity.StatefulLibrary(x.backendPID())
	}
	return continuity.StatefulExtension(q.state.Extensions)
}

// knows notes the state of a session that continues another one.
func (x *session) knows(st *continuity.State) {
	if continuity.StatefulExtension(st.Extensions) == "" {
		x.moving.known.Unchanged.Asked()
		x.moving.known.Learn(st)
	}
}

// outlook returns what would become of the session, by what is known here.
func (x *session) outlook() continuity.Outlook {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	o := continuity.Outlook{Replica: string(x.replica), Application: x.moving.application, User: x.user, Failover: x.inFailover()}
	if why, _ := x.wouldEnd(); why == "" {
		o.Server.Fate = continuity.Kept
	} else {
		o.Server = continuity.Prospect{Fate: continuity.Ends, Why: why}
	}
	if o.Server.Fate == continuity.Kept {
		o.Transaction = x.transactionOutlook()
	}
	if o.Node = o.Server; x.drained.local {
		o.Node = continuity.Prospect{Fate: continuity.Ends, Why: "it came through the listener of that node"}
	}
	k := &x.moving.known
	switch {
	case x.moving.tracker.Why() != "":
		o.Statement = x.moving.by
	case k.Follows && !k.Unchanged.Holds():
		o.Statement = k.Unchanged.By()
	case k.Refusal != "":
		if i := slices.IndexFunc(x.moving.leaves, func(tag string) bool { return continuity.MadeBy(k.Refusal, tag) }); i >= 0 {
			o.Statement = x.moving.leaves[i]
		}
	}
	return o
}

// transactionOutlook returns what would become of the open transaction of a session that outlives its server: whether
// it would be executed again, or fail with 40001. The caller holds drained.mu.
func (x *session) transactionOutlook() continuity.Prospect {
	why := replay.NotKept
	switch {
	case x.status.Load() != 'T':
		return continuity.Prospect{}
	case !x.srv.replays():
		why = "CONTINUITY = SESSION"
	case x.moving.log != nil && x.moving.known.Told != nil:
		if why = x.moving.log.Refusal(x.moving.known.Told.Texts()); why == "" {
			return continuity.Prospect{Fate: continuity.Kept}
		}
	}
	return continuity.Prospect{Fate: continuity.Ends, Why: why}
}

// The fates of a session whose transaction a planned failover cuts.
const (
	cutReplayed = "executed again"
	cutFails    = "its transaction fails with 40001"
	cutEnds     = "ends"
)

// foresee enters what a planned failover would do with a session that is busy.
func (x *session) foresee(m *ag.SessionMove) {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if p := x.inFailover(); p.Fate == continuity.Ends { // it would not move afterwards either
		m.Why = p.Why
		return
	}
	if m.Waits = true; x.relayed {
		return
	}
	if why, _ := x.wouldEnd(); why != "" {
		m.Cut = cutEnds + ": " + why
		return
	}
	switch p := x.transactionOutlook(); {
	case p.Fate == continuity.Ends:
		m.Cut = cutFails + ": " + p.Why
	case p.Fate == continuity.Kept, x.loneFate() == lone.Repeated:
		m.Cut = cutReplayed
	default: // it has failed already, or is being begun
		m.Cut = cutFails
	}
}

// maxLeaves is how many different statements are remembered of a session.
const maxLeaves = 4

// noteStatement notes the keywords of a statement by which the session may not be moved. fine is whether it could be
// before. The caller holds drained.mu.
func (x *session) noteStatement(typ byte, body []byte, fine bool) {
	m := &x.moving
	if fine && m.tracker.Why() != "" {
		m.by = stmt.TagOf(typ, body)
	}
	if tag := stmt.Leaves(typ, body); tag != "" && len(m.leaves) < maxLeaves && !slices.Contains(m.leaves, tag) {
		m.leaves = append(m.leaves, tag)
	}
}

// The functions below keep requests outside a transaction block (package lone). If they change nothing, or have not
// reached their server, they go on at the next one when it is lost.

// keepLone keeps a piece of a message of the client. begun means that it is the beginning, whole that it reaches the
// end. The caller holds drained.mu.
func (x *session) keepLone(piece []byte, begun, whole bool) {
	k, l := &x.moving.known, &x.moving.lone
	if !k.Follows {
		return
	}
	switch {
	case !begun || !x.idle() || l.Fresh():
	case k.Unchanged.Holds():
		l.Begin(&x.srv.loneMemory)
	default:
		l.Forget()
	}
	if l.On() {
		l.Sent(piece, begun, whole)
	}
	x.noteLone()
}

// noteLone notes for downstream whether requests are kept, after that has changed. The caller holds drained.mu.
func (x *session) noteLone() {
	m := &x.moving
	if awaits := m.lone.Awaits(); m.awaits.Load() != awaits {
		m.awaits.Store(awaits)
	}
	if keeps := m.lone.On(); m.keeps.Load() != keeps {
		m.keeps.Store(keeps)
	}
	if writes := m.lone.Write() != nil; m.writes.Load() != writes {
		m.writes.Store(writes)
	}
}

// answering notes that the client gets a message of that type, or a part of it.
func (x *session) answering(typ byte) {
	if !x.moving.awaits.Load() || typ == 'N' || typ == 'S' || typ == 'A' {
		return
	}
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	x.moving.lone.Answering()
	x.noteLone()
}

// unsent notes that the last n bytes of the client were not sent.
func (x *session) unsent(n int) {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	x.moving.lone.Unsent(n)
}

// loneFate returns what would become of the requests under way outside a block if the server were lost now. The caller
// holds drained.mu.
func (x *session) loneFate() lone.Fate {
	if !x.moving.lone.On() {
		return lone.Doubtful
	}
	return x.moving.lone.Fate(x.preparedText)
}

// wouldWrite reports whether a message of the server tells that a request that is executed again would have written. It
// ends the session: at its first execution it may have.
func (x *session) wouldWrite(typ byte, body []byte) bool {
	if !x.moving.guarded {
		return false
	}
	x.moving.guarded = typ != 'Z'
	if typ != 'E' || !x.onPrimary || pgwire.ErrorField(body, 'C') != lone.ReadOnly {
		return false
	}
	x.end(ending{reason: "hidden write", why: "its server was lost, and the query writes by a function that a view or an operator calls"})
	return true
}

// The functions below prove what became of a change outside a block, with CONTINUITY = REPLAY.

// asksNumber has the server tell the number of the transaction of the change that the client's bytes b are, if they are
// one, before that is sent. w is the change if its number is known, or if the question was canceled. With over nothing
// of b is to be sent: the client has left, or the session has ended.
func (x *session) asksNumber(b []byte) (w *lone.Write, over bool) {
	if x.status.Load() != 'I' || !x.onPrimary || !x.fromNode() || !x.srv.replays() {
		return nil, false
	}
	if w = x.beginsChange(b); w == nil {
		return nil, false
	}
	question := lone.Question()
	for range 2 { // the second is a Sync, if the question fails
		if _, err := x.backend.Write(question); err != nil {
			return nil, false // downstream sees that
		}
		if !x.awaitsNumber(w) {
			return nil, true
		}
		x.drained.mu.Lock()
		canceled := w.Canceled()
		if !canceled {
			question = w.Synced()
		}
		x.drained.mu.Unlock()
		if canceled {
			return w, false
		}
		if question == nil {
			break
		}
	}
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if w.Xid != 0 {
		return w, false
	}
	if w.Asked() {
		return nil, false
	}
	x.srv.log.Warn("the question for the number of a transaction has failed", "session", x.id, "user", x.user)
	x.moving.numberless = time.Now().Add(numberlessFor)
	x.unsynced.Store(false)
	x.moving.lone.Forget()
	x.noteLone()
	return nil, false
}

// After a question for a number that has failed, the session is not asked for so long.
const numberlessFor = time.Minute

// awaitsNumber waits for the answer to the question for the number of a change. It reports false if the client has left
// meanwhile, or if the server was silent for as long as a session waits for the next one: the change was not sent, and
// the client hears so.
func (x *session) awaitsNumber(w *lone.Write) bool {
	deadline, look := time.NewTimer(max(x.srv.cfg.HoldMax, x.srv.cfg.ConnectWait)), time.NewTicker(x.srv.keep.Tick)
	defer deadline.Stop()
	defer look.Stop()
	for {
		select {
		case <-w.Done:
		case <-x.cut:
		case <-x.moving.leave:
		case <-x.moving.left:
		case <-look.C:
			if _, gone := socket.Peek(x.raw); !gone {
				continue
			}
			return false
		case <-deadline.C:
			x.drained.mu.Lock()
			x.drained.held = true // it was not begun
			x.unsynced.Store(false)
			x.drained.mu.Unlock()
			x.end(ending{reason: "silent", why: "its server has not answered in time"})
			return false
		}
		return true
	}
}

// requested returns what goes to PostgreSQL for the change b. The caller does not hold drained.mu.
func (x *session) requested(w *lone.Write, b []byte) []byte {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	return w.Request(b)
}

// beginsChange returns the change that the client's bytes are; nil: they are none whose number can be asked for.
func (x *session) beginsChange(b []byte) *lone.Write {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	k := &x.moving.known
	if !k.Follows || !x.idle() || x.drained.midway || x.moving.asking.Refused || time.Now().Before(x.moving.numberless) || x.requests.Sealed || x.moving.leaving.Load() || !lone.Changes(b, x.preparedText) {
		return nil
	}
	if why, _ := x.wouldEnd(); why != "" || !k.Told.Tells || b[0] == 'Q' && !k.Told.Ruleless {
		return nil
	}
	x.unsynced.Store(true) // until the Sync of the change
	w := x.moving.lone.Ask(&x.srv.loneMemory, b)
	x.noteLone()
	return w
}

// holdsAnswer takes the current message of a chunk from what goes to the client, if it answers the question for a
// number, or the change that is not committed yet.
func (x *session) holdsAnswer(typ byte, p *passing) bool {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	w := x.moving.lone.Write()
	if w == nil {
		return false
	}
	before, swallow := w.Take(typ, p.b[p.begin:p.at], p.tail)
	if swallow {
		p.b, p.at = append(p.b[:p.begin], p.b[p.at:]...), p.begin
	}
	p.insert(before)
	return swallow
}

// notAsked notes a question that the other node has perhaps not forwarded, and gives back.
func (x *session) notAsked() {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if w := x.moving.lone.Write(); w != nil {
		x.moving.unanswered = w.Pending()
	}
}

// passHeld has the client get what is held of an answer before a message that is not held.
func (x *session) passHeld(p *passing) {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if w := x.moving.lone.Write(); w != nil {
		p.insert(w.Pass())
	}
}

// insert puts bytes that were checked before the current message.
func (p *passing) insert(b []byte) {
	if n := len(b); n > 0 {
		p.b = slices.Concat(p.b[:p.begin], b, p.b[p.begin:])
		p.begin, p.at, p.piece = p.begin+n, p.at+n, p.piece+n
	}
}

// forgetLone ends the keeping of requests.
func (x *session) forgetLone() {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	x.moving.lone.Forget()
	x.noteLone()
}
