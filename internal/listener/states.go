package listener

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/prospect"
)

// The state of a session is asked of its server: beforehand, while the session is idle for a moment, if it is to
// outlive the server; and in a planned failover, before the server is closed. The question goes between two answers of
// the server (continuity.Question), so its own answer is told from those for the client.

// keepPerTick is how many sessions of this node are asked for their state at once.
const keepPerTick = 10

// keepStates asks for the states of sessions that would outlive the node of their backend. It runs until the server
// closes.
func (s *Server) keepStates() {
	for {
		select {
		case <-s.closed:
			return
		case <-time.After(boottime.UntilNext(s.keep.Tick)):
		}
		if list := s.unknownStates(time.Now()); len(list) > 0 {
			ctx, cancel := context.WithTimeout(s.life, s.keep.Tick)
			var all sync.WaitGroup
			for _, x := range list {
				all.Go(func() {
					defer x.rescue("keeping its state")
					x.keepKnown(ctx)
				})
			}
			all.Wait()
			cancel()
		}
	}
}

// unknownStates returns the sessions that are to be asked now, those that have waited longest first.
func (s *Server) unknownStates(now time.Time) (list []*session) {
	if !s.rules.Continues() {
		return nil
	}
	list = s.where(func(x *session) bool { return x.work.Known.Follows })
	due := make(map[*session]time.Time, len(list))
	list = slices.DeleteFunc(list, func(x *session) bool {
		at, asks := x.asksAgain()
		due[x] = at
		return !asks || at.After(now)
	})
	slices.SortFunc(list, func(a, b *session) int { return due[a].Compare(due[b]) })
	return list[:min(len(list), keepPerTick)]
}

// asksAgain returns from when on the session is to be asked for its state, if that is not known and might be.
func (x *session) asksAgain() (at time.Time, asks bool) {
	x.work.Lock()
	defer x.work.Unlock()
	k := &x.work.Known
	unknown := k.Unknown(x.since, x.srv.keep.Tick) && x.work.Tracker.Why() == "" && x.ended.Load() == nil && !x.work.Leaving.Load()
	switch {
	case !unknown || !x.work.Local:
		return k.Next, unknown
	case x.work.Offloaded() || x.relayed || x.srv.drain.Load() != nil: // one in the kernel is left there
		return k.Next, false
	}
	return k.IdleUntil(time.Now(), x.bytesIn.Load()+x.bytesOut.Load(), x.srv.keep.Idle), true
}

// keepKnown asks for the state of the session, once it is idle for a moment.
func (x *session) keepKnown(ctx context.Context) {
	q := &question{patient: true, done: make(chan struct{})}
	if !x.moving.wants.CompareAndSwap(nil, q) { // a drain asks
		return
	}
	x.wake()
	answered := false
	select {
	case <-q.done:
		answered = q.err == nil
	case <-x.cut:
	case <-x.moving.left:
	case <-ctx.Done():
		x.moving.wants.CompareAndSwap(q, nil)
	}
	libraries := x.libraries(q, answered)
	x.work.Lock()
	defer x.work.Unlock()
	k := &x.work.Known
	k.Over(time.Now(), x.srv.keep, answered)
	if !answered {
		return
	}
	k.Stays = x.immovable(q, "")
	if k.Refusal = x.immovable(q, libraries); k.Refusal == "" {
		k.Learn(&q.state)
	}
}

// libraries returns why a session whose state was read cannot outlive its server for the libraries of its process; ""
// if it can.
func (x *session) libraries(q *question, answered bool) string {
	switch {
	case !answered:
		return ""
	case x.work.Local:
		return continuity.StatefulLibrary(x.backendPID())
	}
	return continuity.StatefulExtension(q.state.Extensions)
}

// ReadStates asks the local server for the state of each of its sessions, during a drain, as long as ctx allows. It
// returns when all have answered or cannot.
func (s *Server) ReadStates(ctx context.Context) {
	s.readStates(ctx, s.localSessions())
}

// ReadRelayedStates is ReadStates for the sessions of other nodes' clients, which are given back to those nodes.
func (s *Server) ReadRelayedStates(ctx context.Context) {
	s.readStates(ctx, slices.DeleteFunc(s.localSessions(), func(x *session) bool { return !x.relayed }))
}

// readStates asks for the state of each session in the list.
func (s *Server) readStates(ctx context.Context, list []*session) {
	if !s.rules.Continues() {
		return
	}
	turns := make(chan struct{}, readersAtOnce)
	var all sync.WaitGroup
	for _, x := range list {
		all.Go(func() {
			select {
			case turns <- struct{}{}:
				free := sync.OnceFunc(func() { <-turns })
				defer free()
				defer time.AfterFunc(turnTime, free).Stop()
				s.sheltered("reading the state of a session", func() { x.keepState(ctx) })
			case <-ctx.Done():
				x.cannotMove("its state was not read in time")
			}
		})
	}
	all.Wait()
}

// keepState has the state of the session read, for its move.
func (x *session) keepState(ctx context.Context) {
	x.cannotMove(errInternal.Error()) // if this panics
	st, why := x.readState(ctx)
	x.work.Lock()
	defer x.work.Unlock()
	if x.moving.refusal = why; why == "" && st != nil && !x.moving.forwarded { // nil: it has left, or ended
		x.moving.state = st
	}
}

// refusedBusy is why a session whose request is under way cannot be moved.
const refusedBusy = "it was busy when its state was to be read"

// question asks a session's backend for its state.
type question struct {
	answer  continuity.Answer
	patient bool          // it is asked once the session is idle
	sent    []byte        // the requests
	done    chan struct{} // closed when state and err are set
	state   continuity.State
	err     error
}

// errAsked means that the session is answering an earlier question.
var errAsked = errors.New("its state is being read")

// readersAtOnce is how many sessions are asked at once: each costs the server some milliseconds of a processor.
const readersAtOnce = 16

// turnTime is how long a session that does not answer keeps others waiting. Its own answer is waited for further.
const turnTime = 250 * time.Millisecond

// readState asks the session's backend for its state. It returns the reason if the session cannot be moved.
func (x *session) readState(ctx context.Context) (st *continuity.State, why string) {
	x.work.Lock()
	why, streams := x.work.Tracker.Why(), x.work.Streams || x.work.Replicates
	x.work.Unlock()
	switch {
	case why != "":
		return nil, why
	case streams:
		return nil, "it is a session of logical replication"
	case x.relayed && !x.moving.accepts:
		return nil, "the listener of its node does not take sessions back"
	case x.moving.owner == nil && !x.relayed:
		return nil, "its client is not known"
	}
	for {
		st, why, again := x.askState(ctx)
		if !again || ctx.Err() != nil {
			return st, why
		}
		time.Sleep(drainPoll) // the question of one who has gone is still being answered
	}
}

// askState asks once, and returns why the session cannot be moved. again: an earlier question is still being answered.
func (x *session) askState(ctx context.Context) (st *continuity.State, why string, again bool) {
	q := &question{done: make(chan struct{})}
	x.moving.wants.Store(q)
	x.wake()
	select {
	case <-q.done:
	case <-x.cut:
		return nil, "", false
	case <-x.moving.left:
		return nil, "", false
	case <-ctx.Done(): // q may still be asked
		x.moving.wants.CompareAndSwap(q, nil)
		return nil, "its state was not read in time", false
	}
	if q.err != nil {
		return nil, q.err.Error(), errors.Is(q.err, errAsked)
	}
	libraries := continuity.StatefulLibrary(x.backendPID())
	x.work.Lock()
	defer x.work.Unlock()
	if why = x.immovable(q, libraries); why == "" && x.work.Requests.UnnamedWaits() {
		why = prospect.Unnamed
	}
	return &q.state, why, false
}

// immovable returns why a session whose state was read cannot be moved; "" if it can. libraries is what is said of
// those of its process. The caller holds the lock of work.
func (x *session) immovable(q *question, libraries string) string {
	why := cmp.Or(q.state.Loses(), libraries, x.work.Tracker.Why()) // what the kernel had relayed was entered before the question was sent
	if why == "" && x.work.Tracker.Turned() && q.state.HasConstants() {
		return "it has changed DateStyle, IntervalStyle or TimeZone after it prepared statements with constants"
	}
	return why
}

func (x *session) cannotMove(why string) {
	x.work.Lock()
	x.moving.state, x.moving.refusal = nil, why
	x.work.Unlock()
}

// backendPID returns the process of the session's backend on this node.
func (x *session) backendPID() uint32 {
	if key := x.backendKey.Load(); key != nil && len(*key) >= 4 {
		return binary.BigEndian.Uint32(*key)
	}
	return x.pid
}

// wake has the carrier of the session look whether it is to be asked, or leaves.
func (x *session) wake() {
	if p := x.onLoop.Load(); p != nil {
		x.reclaim()
		p.loop.Post(p.guarded(func() { p.woken(); p.updateInterest() }))
		return
	}
	_ = x.backend.SetReadDeadline(time.Unix(1, 0))
}

// woken is called by downstream when a read was interrupted. It reports whether the session leaves.
func (x *session) woken(kept int) (leaves bool) {
	_ = x.backend.SetReadDeadline(time.Time{})
	if x.ended.Load() != nil || x.keepsBackend.Load() { // end, or upstream, may have set the deadline before it was cleared
		_ = x.backend.SetReadDeadline(time.Unix(1, 0))
		return false
	}
	x.askWanted(kept)
	return x.work.Leaving.Load()
}

// askWanted sends the question that waits, if one does.
func (x *session) askWanted(kept int) {
	if q := x.moving.wants.Swap(nil); q != nil {
		x.ask(q, kept == 0, func(b []byte) error { _, err := x.backend.Write(b); return err })
	}
}

// ask sends the question, if nothing is under way. boundary is whether no message of the server has begun.
func (x *session) ask(q *question, boundary bool, send func([]byte) error) {
	x.work.Lock() // until the question is sent: a request after it is answered after it
	defer x.work.Unlock()
	switch {
	case x.moving.asked != nil:
		q.err = errAsked
	case x.starting:
		q.err = errors.New("it was being opened when its state was to be read")
	case !boundary || x.work.Midway || !x.work.Idle() || !x.answers.AtBoundary() || x.moving.guarding.On(): // the question's Sync would end what guard has begun
		q.err = errors.New(refusedBusy)
	}
	if q.err != nil {
		if q.patient && x.moving.wants.CompareAndSwap(nil, q) {
			q.err = nil
			return
		}
		close(q.done)
		return
	}
	x.moving.asked, x.moving.forwarded = q, false
	x.work.Known.Asked()
	q.sent = continuity.Question(append([]string{hello.ClientAddr}, x.work.Tracker.Names()...))
	if err := send(q.sent); err != nil {
		q.err = err
		close(q.done)
	}
}

// answered takes what belongs to the answer to a question. rest is what does not, aside what the client gets before.
func (x *session) answered(b []byte) (rest, aside []byte, err error) {
	q := x.moving.asked
	used, done, err := q.answer.Feed(b)
	if err != nil || !done {
		return nil, nil, err
	}
	x.moving.asked = nil
	if q.answer.GivenBack {
		x.moving.unanswered = q.sent
	}
	status := map[string]string{}
	q.answer.Reports(status)
	promoted := status[gate.HotStandby] != "" && x.recovery.Over('S', []byte(gate.HotStandby+"\x00"+status[gate.HotStandby]))
	if promoted {
		x.end(promotedUnder)
	}
	if q.err == nil {
		q.state, q.err = q.answer.State()
		close(q.done)
	}
	if promoted {
		return nil, nil, errPromoted
	}
	return b[used:], q.answer.Aside, nil
}

// movesBudget bounds the questions to the server for Moves.
const movesBudget = 5 * time.Second

// inquiry is what asks for the state of sessions for its own knowledge. A drain ends it, as it asks for itself.
type inquiry struct {
	mu     sync.Mutex // held while sessions are asked
	cancel atomic.Pointer[context.CancelFunc]
}

// end ends the inquiry under way, and waits until it has ended.
func (i *inquiry) end() {
	if cancel := i.cancel.Load(); cancel != nil {
		(*cancel)()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
}

// Moves asks the local server for the state of each of its sessions, and returns which of them a planned failover would
// move. Nothing waits for the answer but the sessions' own next answers. One call at a time asks, and none during a
// drain.
func (s *Server) Moves(ctx context.Context) []ag.SessionMove {
	ctx, cancel := context.WithTimeout(ctx, movesBudget)
	defer cancel()
	list := []ag.SessionMove{}
	var all sync.WaitGroup
	asks := s.inquiry.mu.TryLock()
	if asks {
		defer s.inquiry.mu.Unlock()
		s.inquiry.cancel.Store(&cancel) // BEFORE the check for a drain
	}
	turns := make(chan struct{}, readersAtOnce)
	sessions := s.localSessions()
	whys := make([]string, len(sessions))
	for i, x := range sessions {
		switch {
		case !s.rules.Continues():
			whys[i] = "CONTINUITY = OFF"
		case s.drain.Load() != nil:
			whys[i] = "a drain is under way"
		case !asks:
			whys[i] = "another inquiry is under way; ask again"
		default:
			turns <- struct{}{}
			all.Go(func() {
				defer func() { <-turns }()
				whys[i] = errInternal.Error() // if this panics
				s.sheltered("reading the state of a session", func() { _, whys[i] = x.readState(ctx) })
			})
		}
	}
	all.Wait()
	for i, x := range sessions {
		m := ag.SessionMove{Replica: x.replica, User: x.user, Database: x.database, Client: x.addr, Since: x.since, Why: whys[i]}
		if m.Why == refusedBusy {
			x.work.Foresee(&m, x.relayed)
		}
		list = append(list, m)
	}
	return list
}
