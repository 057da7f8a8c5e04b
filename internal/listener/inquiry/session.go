package inquiry

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/known"
	"github.com/coteriedb/coterie/internal/listener/prospect"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// The state of a session is asked of its server: beforehand, while the session is idle for a moment, if it is to
// outlive the server; and in a planned failover, before the server is closed. The question goes between two answers of
// the server (continuity.Question), so its own answer is told from those for the client.

// Session is a session of which the state is asked. Its zero value was not asked yet.
type Session struct {
	Kept
	wants    atomic.Pointer[question] // is to be asked by who reads the server's answers
	asked    *question                // of that one: the answer is arriving
	last     *question                // that was asked: guarded by the lock of Work
	forwards uint64                   // how often something of the client was forwarded: guarded by the lock of Work
}

// Host is the session that is asked, as far as this package needs it.
type Host interface {
	Inquiry() *Session
	Underway() *underway.Work
	Facts() Facts
	Wake() // has who reads the server's answers look at Wanted soon
}

// Facts are what is asked about a session now.
type Facts struct {
	Move        ag.SessionMove  // as Moves returns it, without a judgement
	Carried     uint64          // bytes in both directions
	Process     uint32          // of its backend, on this node
	Relayed     bool            // its client is at another node
	Over        bool            // it has ended
	Immovable   string          // why it cannot be moved, whatever its state is; "": it can
	Ended, Left <-chan struct{} // closed when it has ended, and when it has left its server
}

// question asks a session's backend for its state.
type question struct {
	answer  continuity.Answer
	patient bool          // it is asked once the session is idle
	sent    []byte        // the requests
	after   uint64        // what Session.forwards was
	done    chan struct{} // closed when state and err are set
	state   continuity.State
	err     error
}

// Busy is why a session whose request is under way cannot be moved.
const Busy = "it was busy when its state was to be read"

// tooLate is why a session cannot be moved whose server has not answered.
const tooLate = "its state was not read in time"

// errAsked means that the session is answering an earlier question.
var errAsked = errors.New("its state is being read")

// retry is how often a session is tried again that is answering the question of one who has gone.
const retry = time.Millisecond

// Wanted reports whether a question waits to be asked.
func (s *Session) Wanted() bool { return s.wants.Load() != nil }

// Answering reports whether the answer to a question is arriving. Its caller reads the server's answers.
func (s *Session) Answering() bool { return s.asked != nil }

// Forwarded notes that a request is forwarded: an earlier answer does not hold any more. The caller holds the lock of
// Work.
func (s *Session) Forwarded() {
	s.forwards++
	s.State, s.ahead = nil, 0
}

// Point is where in the stream of a session a question would go now.
type Point struct {
	Opening bool // the session is being opened
	Between bool // no message of the server has begun, and nothing waits for one
}

// Ask sends the question that waits, if nothing is under way. Its caller reads the server's answers.
func (s *Session) Ask(w *underway.Work, at Point, send func([]byte) error) {
	q := s.wants.Swap(nil)
	if q == nil {
		return
	}
	w.Lock() // until the question is sent: a request after it is answered after it
	defer w.Unlock()
	switch {
	case s.asked != nil:
		q.err = errAsked
	case at.Opening:
		q.err = errors.New("it was being opened when its state was to be read")
	case !at.Between || w.Midway || !w.Idle():
		q.err = errors.New(Busy)
	}
	if q.err != nil {
		if q.patient && s.wants.CompareAndSwap(nil, q) {
			q.err = nil
			return
		}
		close(q.done)
		return
	}
	s.asked, s.last, q.after = q, q, s.forwards
	w.Known.Asked()
	q.sent = continuity.Question(append([]string{hello.ClientAddr}, w.Tracker.Names()...), w.ReadOnly)
	if err := send(q.sent); err != nil {
		q.err = err
		close(q.done)
	}
}

// Take takes what belongs to the answer from bytes of the server. rest is what does not, aside what the client gets
// before. reported is called once the answer is whole, BEFORE who has asked hears of it: with the settings that the
// server has reported meanwhile, and with the question if that was perhaps not forwarded by another node. If it returns
// an error, the client gets nothing more.
func (s *Session) Take(b []byte, reported func(status map[string]string, unanswered []byte) error) (rest, aside []byte, err error) {
	q := s.asked
	used, done, err := q.answer.Feed(b)
	if err != nil || !done {
		return nil, nil, err
	}
	s.asked = nil
	status := map[string]string{}
	q.answer.Reports(status)
	var unanswered []byte
	if q.answer.GivenBack {
		unanswered = q.sent
	}
	over := reported(status, unanswered)
	if q.err == nil {
		q.state, q.err = q.answer.State()
		close(q.done)
	}
	if over != nil {
		return nil, nil, over
	}
	return b[used:], q.answer.Aside, nil
}

// Due returns from when on the session is to be asked for its state, if that is not known and might be. draining is
// whether a drain asks for itself.
func Due(h Host, now time.Time, t known.Times, draining bool) (at time.Time, asks bool) {
	f, w := h.Facts(), h.Underway()
	w.Lock()
	defer w.Unlock()
	k := &w.Known
	unknown := (k.Unknown(f.Move.Since, t.Tick) || w.RelayedUnseen()) && w.Tracker.Why() == "" && !f.Over && !w.Leaving.Load()
	if !w.Local {
		return k.Next, unknown
	}
	idle := k.IdleUntil(now, f.Carried, t.Idle)
	if !unknown || f.Relayed || draining {
		return k.Next, false
	}
	if idle.Before(k.Next) {
		return k.Next, true
	}
	return idle, true
}

// Keep asks for the state of the session, once it is idle for a moment, and notes it as known.
func Keep(ctx context.Context, h Host, t known.Times) {
	s, w := h.Inquiry(), h.Underway()
	q := &question{patient: true, done: make(chan struct{})}
	if !s.wants.CompareAndSwap(nil, q) { // a drain asks
		return
	}
	h.Wake()
	answered, f := false, h.Facts()
	select {
	case <-q.done:
		answered = q.err == nil
	case <-f.Ended:
	case <-f.Left:
	case <-ctx.Done():
		s.wants.CompareAndSwap(q, nil)
	}
	libraries := ""
	if answered {
		libraries = q.libraries(h, w.Local)
	}
	w.Lock()
	defer w.Unlock()
	k := &w.Known
	answered = answered && s.last == q // else it may have changed before it was asked again
	k.Over(time.Now(), t, answered)
	if answered {
		q.tell(w, libraries)
	}
}

// tell notes what the answer to the last question of a session says of it. The caller holds the lock of w.
func (q *question) tell(w *underway.Work, libraries string) {
	k := &w.Known
	k.Stays = q.immovable(w, "")
	if k.Refusal = q.immovable(w, libraries); k.Refusal == "" {
		k.Learn(&q.state)
	}
}

// libraries returns why a session whose state was read cannot outlive its server for the libraries of its process; ""
// if it can.
func (q *question) libraries(h Host, local bool) string {
	if local {
		return continuity.StatefulLibrary(h.Facts().Process)
	}
	return continuity.StatefulExtension(q.state.Extensions)
}

// Read asks the session's backend for its state. It returns the reason if the session cannot be moved; neither, if it
// has ended or left.
func Read(ctx context.Context, h Host) (st *continuity.State, why string) {
	q, why := read(ctx, h, false)
	if q == nil {
		return nil, why
	}
	return &q.state, why
}

// read is Read; it returns the question that was answered. patient has it wait until the session is idle for a moment,
// as long as ctx allows.
func read(ctx context.Context, h Host, patient bool) (q *question, why string) {
	w := h.Underway()
	w.Lock()
	why, streams := w.Tracker.Why(), w.Streams || w.Replicates
	w.Unlock()
	switch immovable := h.Facts().Immovable; {
	case why != "":
		return nil, why
	case streams:
		return nil, "it is a session of logical replication"
	case immovable != "":
		return nil, immovable
	}
	for {
		q, why, again := readOnce(ctx, h, patient)
		if !again || ctx.Err() != nil {
			return q, why
		}
		time.Sleep(retry) // the question of one who has gone is still being answered
	}
}

// readOnce asks once, and returns why the session cannot be moved. again: an earlier question is still being answered.
func readOnce(ctx context.Context, h Host, patient bool) (q *question, why string, again bool) {
	s, w := h.Inquiry(), h.Underway()
	q = &question{patient: patient, done: make(chan struct{})}
	s.wants.Store(q)
	h.Wake()
	f := h.Facts()
	select {
	case <-q.done:
	case <-f.Ended:
		return nil, "", false
	case <-f.Left:
		return nil, "", false
	case <-ctx.Done(): // q may still be asked
		s.wants.CompareAndSwap(q, nil)
		return nil, tooLate, false
	}
	if q.err != nil {
		return nil, q.err.Error(), errors.Is(q.err, errAsked)
	}
	libraries := q.libraries(h, true)
	w.Lock()
	defer w.Unlock()
	if w.Known.Follows && s.last == q { // else it would be known no more for being asked
		q.tell(w, libraries)
	}
	if why = q.immovable(w, libraries); why == "" && w.Requests.UnnamedWaits() {
		why = prospect.Unnamed
	}
	return q, why, false
}

// immovable returns why a session whose state was read cannot be moved; "" if it can. libraries is what is said of
// those of its process. The caller holds the lock of w.
func (q *question) immovable(w *underway.Work, libraries string) string {
	why := cmp.Or(q.state.Loses(), libraries, w.Tracker.Why()) // what the kernel had relayed was entered before the question was sent
	if why == "" && w.Tracker.Turned() && q.state.HasConstants() {
		return "it has changed DateStyle, IntervalStyle or TimeZone after it prepared statements with constants"
	}
	return why
}
