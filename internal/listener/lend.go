package listener

import (
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

const (
	kernelStuck = 10 * time.Second // for writing what a socket has room for, on a machine that is busy
	kernelTick  = 20 * time.Millisecond
	// A session is lent when it has asked kernelAfter times, and one that comes back soon has to ask twice as often each time.
	kernelAfter    = 8
	kernelAfterMax = 1024
	kernelPays     = 16 // requests
)

// A session is lent to the kernel at the end of a turn of its loop, between an answer and the next request, and comes back by recall. Between
// the two nobody but the kernel touches its sockets.

// lendable says that nothing is under way, nothing is held, and nothing has to be decided about what comes next if it is of the plainest kind.
func (p *pump) lendable() bool {
	x := p.x
	switch {
	case p.loop.shortcut == nil, p.unlendable, p.phase != relaying, p.tls != nil:
		return false
	case p.client.eof, p.backend.eof, p.client.full(), p.backend.full():
		return false
	case p.waits, p.drains, p.deaf, len(p.held) > 0, len(p.rest) > 0, !p.requests.AtBoundary(), !x.answers.AtBoundary():
		return false
	case x.owed.Load() > 0, x.unsynced.Load(), x.starting, x.replicates, x.copies:
		return false
	}
	return x.mayBeLent()
}

// mayBeLent says that nobody wants anything of the session. It is asked once more when the session is lent.
func (x *session) mayBeLent() bool {
	return x.ended.Load() == nil && !x.terminated.Load() && !x.fatalSent.Load() && x.srv.drain.Load() == nil &&
		x.reads != startup.ReadsConfirmed && !x.doubt.warned && (!x.guarded || !x.suspected())
}

// beforeAnswer is called when the client is about to get what it has waited for: who has not read that sends nothing, so the program can be
// told of the session's sockets.
func (p *pump) beforeAnswer() {
	if p.loop.shortcut == nil || p.unlendable || p.x.owed.Load() > 0 {
		return
	}
	if p.asked++; p.asked < p.askedFirst || !p.lendable() {
		return
	}
	if p.crossing == nil && !p.introduce() {
		p.unlendable = true
		return
	}
	p.loop.lending = append(p.loop.lending, p)
}

// lendAll lends what is to be lent at the end of a turn, when everything is written.
func (l *loop) lendAll() {
	for _, p := range l.lending {
		if p.phase == relaying && !p.x.lent.Load() {
			p.guarded(p.lend)()
		}
	}
	l.lending = l.lending[:0]
}

// lend gives the session to the kernel, if it still may be.
func (p *pump) lend() {
	x, k := p.x, p.loop.shortcut
	if !p.lendable() || p.client.queued != 0 || p.backend.queued != 0 {
		return
	}
	d := p.crossing
	s := d.Slot
	base, _, err := offload.BytesWritten(p.client.fd)
	flags, open := x.passFlags()
	if err != nil || !open || atomic.LoadUint64(&s.UpLeft) != d.UpRead || atomic.LoadUint64(&s.DownLeft) != d.DownRead {
		return
	}
	d.Base, d.Began = base-s.DownBytes, d.Ups
	s.Downs = s.Ups // the loop has passed on what was still missing
	s.UpTaken, s.DownTaken, s.DownLimit = d.UpRead, d.DownRead, s.DownBytes+offload.MaxUnread
	s.Flags, s.Logged, s.Why, s.Status = flags, 0, offload.WhyCalled, x.status.Load()
	p.list(&p.client, unix.EPOLLRDHUP) // what comes is not ours; its end is
	p.list(&p.backend, unix.EPOLLRDHUP)
	k.SetDeadline()
	if !x.arm(s) {
		p.settle()
		return
	}
	x.srv.counts.lent.Add(1)
	x.srv.oneMoreLent()
	s.AwaitOutside() // a piece that came before did not ring
	if atomic.LoadUint64(&s.UpLeft) != d.UpRead || atomic.LoadUint64(&s.DownLeft) != d.DownRead {
		p.takeBack()
		p.settle()
	}
}

// arm has the kernel begin, unless somebody wants the session. Who wants it says so first and looks then whether it is lent (recall), and here it
// is the other way round, so one of the two sees the other.
func (x *session) arm(s *offload.Slot) bool {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	x.lent.Store(true)
	if !x.mayBeLent() {
		x.lent.Store(false)
		return false
	}
	atomic.StoreUint32(&s.Armed, 1)
	return true
}

// passFlags says what the program has to look at; not open: the session cannot be lent as the gate stands.
func (x *session) passFlags() (flags uint32, open bool) {
	if x.guarded {
		flags |= offload.FlagGuarded
	}
	if x.gate == nil {
		return flags, true
	}
	open, err := x.gate.look(x.srv)
	if x.gate.sticky {
		return flags | offload.FlagDeadline, open && err == nil
	}
	return flags | offload.FlagUngated, open && err == nil
}

// introduce makes the session's sockets known to the program. It is false for one that is not to be lent.
func (p *pump) introduce() bool {
	k := p.loop.shortcut
	if !offload.IsTCP(p.client.fd) {
		return false
	}
	sender, err := offload.SenderCookie(p.backend.fd)
	if err == nil {
		p.crossing, err = k.Add(p.client.fd, p.backend.fd, sender)
	}
	if err != nil {
		p.x.srv.log.Debug("a session stays on its loop", "session", p.x.id, "reason", err)
		return false
	}
	p.loop.offloaded[p.crossing.Index] = p
	p.returns.open(p, p.crossing.Returns)
	p.loop.know(p.returns.fd, &p.returns)
	p.x.tainted.Store(true) // its backend cannot leave the program without losing what comes unasked
	// What came before the program knew a socket is not in its books.
	var one [1]byte
	if _, _, err := unix.Recvfrom(p.backend.fd, one[:], unix.MSG_DONTWAIT|unix.MSG_PEEK); err == nil {
		// PostgreSQL has said something that nobody asked for (or its end) in these microseconds. Nobody can say what the program has
		// seen of it.
		p.x.end(ending{reason: "introduced", why: "PostgreSQL sent something out of turn"})
		return false
	}
	_, _, err = unix.Recvfrom(p.client.fd, one[:], unix.MSG_DONTWAIT|unix.MSG_PEEK)
	return err != nil
}

// takeBack ends what lend began, whatever the reason, and enters into the books what passed meanwhile.
func (p *pump) takeBack() {
	x, d := p.x, p.crossing
	s := d.Slot
	s.Disarm()
	passed := s.Ups - d.Began
	why := s.Why
	x.srv.counts.cameBack(why, passed)
	p.asked = 0
	switch {
	case why == offload.WhyCalled:
		p.askedFirst = 1
	case passed >= kernelPays || x.srv.cfg.kernelAfter > 0:
		p.askedFirst = x.srv.lendsAfter()
	default:
		p.askedFirst = min(2*max(p.askedFirst, x.srv.lendsAfter()), max(kernelAfterMax, x.srv.lendsAfter()))
	}
	wrong := p.enterPassed()
	x.lent.Store(false)
	x.srv.lentNow.Add(-1)
	if wrong != nil {
		x.end(ending{"kernel", "the books of the kernel's path are wrong", false})
	}
	if s.Ups != s.Downs { // the request is on its way to PostgreSQL; that it has arrived is known by its answer
		p.backend.stuck, p.single = true, s.Single != 0
	}
	p.awaitBacklog(time.Millisecond)
}

// enterPassed follows what the kernel has passed on. An error is the program's fault, or the memory's: it has judged the lengths.
func (p *pump) enterPassed() error {
	x, d := p.x, p.crossing
	s := d.Slot
	up, down := d.Passed()
	x.bytesIn.Add(up)
	x.bytesOut.Add(down)
	d.Ups = s.Ups
	d.UpBytes.Add(up)
	d.DownBytes.Add(down)
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	answered := func() {
		x.owed.Store(0)
		x.requests.Answered(byte(s.Status), true)
	}
	if s.Ups != d.Began { // all but the last were answered, and it is known only that they were of the plainest kind
		answered()
		x.requests.ForgetUnnamed()
	}
	for log := s.Log[:s.Logged]; len(log) > 0; {
		used, err := x.follow(&p.requests, log)
		if err != nil {
			return err
		}
		log = log[used:]
	}
	if s.Ups == s.Downs {
		answered()
		x.status.Store(s.Status)
		x.cycleEnded()
	} else {
		x.status.Store(s.Status)
	}
	return nil
}

// awaitBacklog has nothing written to the client until it was given what the kernel has taken for it.
func (p *pump) awaitBacklog(again time.Duration) {
	d := p.crossing
	n, waiting, err := offload.BytesWritten(p.client.fd)
	if err != nil { // the client is gone, and PostgreSQL may be writing into the backlog, which nobody empties any more
		p.client.stuck = false
		p.part(p.x.passFailed(errClient))
		return
	}
	if n-d.Base == d.Slot.DownBytes {
		if p.client.stuck {
			p.unstick(&p.client)
			p.settle()
		}
		return
	}
	if !p.client.stuck {
		p.client.stuck, p.stuckSince = true, time.Now()
	}
	if waiting > 0 {
		p.stuckSince = time.Now() // it is the client that does not read
	} else if time.Since(p.stuckSince) > kernelStuck {
		p.x.end(ending{"kernel", "the kernel has lost an answer", false})
		p.bury()
		return
	}
	p.after(again, func() {
		if p.client.stuck {
			p.awaitBacklog(min(2*again, 50*time.Millisecond))
		}
	})
}

// settleReturns is settle for a session whose answers come by returns: backend is what would be waited for on PostgreSQL's socket.
func (p *pump) settleReturns(backend uint32) uint32 {
	p.list(&p.returns, backend&unix.EPOLLIN)
	if p.phase != relaying {
		return backend &^ unix.EPOLLIN
	}
	if !p.gone {
		return backend&^unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if backend&unix.EPOLLIN != 0 && p.wasLast() {
		p.loop.post(p.guarded(func() { p.fromBackend(); p.settle() }))
	}
	return backend &^ unix.EPOLLIN
}

// wasLast says that PostgreSQL has closed the connection and everything it said before was read.
func (p *pump) wasLast() bool {
	return p.gone && p.crossing.DownRead == atomic.LoadUint64(&p.crossing.Slot.DownLeft)
}

// unstick goes on writing to a side.
func (p *pump) unstick(s *side) {
	s.stuck = false
	p.flush(s)
}

// wasAnswered is called when PostgreSQL has said something: then the last request that the kernel passed on has arrived, if it was a Query.
// Of what has several messages the end of the answer tells.
func (p *pump) wasAnswered() {
	if p.backend.stuck && p.phase == relaying && (p.single || p.x.owed.Load() <= 0) {
		p.unstick(&p.backend)
	}
}

// recall has the kernel pass nothing on for the session any more, whoever calls, but with drained.mu held. The loop takes it back as soon as
// it can.
func (x *session) recall() {
	if !x.lent.Load() {
		return
	}
	x.drained.mu.Lock() // it may be about to be armed
	p := x.pump.Load()
	p.crossing.Slot.Disarm()
	x.drained.mu.Unlock()
	p.kick()
}

// recallWhere does so for all sessions of which which is true.
func (s *Server) recallWhere(which func(*session) bool) {
	for _, x := range s.localSessions() {
		if which(x) {
			x.recall()
		}
	}
}

// GateMoved is called when Gate may return less than before, other than by time: from its return on no answer passes that a gate of now
// would hold.
func (s *Server) GateMoved() {
	list := s.loops.Load()
	if list == nil || s.cfg.Gate == nil {
		return
	}
	for _, l := range *list {
		if l.shortcut != nil {
			l.shortcut.SetDeadline()
		}
	}
	s.recallWhere(func(x *session) bool { return x.gate != nil && x.lent.Load() })
}

// watchLent renews what the program was told, and calls back whose answers have to be confirmed by now.
func (s *Server) watchLent(loops []*loop) {
	t := time.NewTicker(kernelTick)
	defer t.Stop()
	for {
		if s.lentNow.Load() == 0 {
			t.Stop()
			select {
			case <-s.life.Done():
				return
			case <-s.firstLent:
			}
			t.Reset(kernelTick)
		}
		select {
		case <-s.life.Done():
			return
		case <-t.C:
			s.lookAtLent(loops)
		}
	}
}

// oneMoreLent has watchLent look as long as anybody is lent.
func (s *Server) oneMoreLent() {
	if s.lentNow.Add(1) == 1 {
		select {
		case s.firstLent <- struct{}{}:
		default:
		}
	}
}

// lookAtLent is what watchLent does each time. Where it panics what the program was told grows old, and the loops have their sessions back.
func (s *Server) lookAtLent(loops []*loop) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("panicked beside the sessions", "in", "looking at those that the kernel carries", "panic", r, "stack", string(debug.Stack()))
			s.counts.reject("panic")
		}
	}()
	for _, l := range loops {
		if l.shortcut != nil {
			l.shortcut.SetDeadline()
		}
	}
	if s.cfg.Strict != nil && s.cfg.Strict() {
		s.recallWhere(func(x *session) bool { return x.guarded && x.lent.Load() })
	}
}

// lendsAfter is how often a session asks before it is lent.
func (s *Server) lendsAfter() int {
	if s.cfg.kernelAfter > 0 {
		return s.cfg.kernelAfter
	}
	return kernelAfter
}
