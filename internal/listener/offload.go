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
	backlogTimeout = 10 * time.Second // for writing what a socket has room for, on a machine that is busy
	offloadTick    = 20 * time.Millisecond
	// A session is lent when it has asked kernelAfter times, and one that comes back soon has to ask twice as often each time.
	offloadAfterDefault = 8
	offloadAfterMax     = 1024
	offloadPays         = 16 // requests
)

// A session is lent to the kernel at the end of a turn of its loop, between an answer and the next request, and comes back by recall. Between
// the two nobody but the kernel touches its sockets.

// canOffload says that nothing is under way, nothing is held, and nothing has to be decided about what comes next if it is of the plainest kind.
func (p *loopSession) canOffload() bool {
	x := p.x
	switch {
	case p.loop.path == nil, p.notOffloadable, p.phase != relaying, p.tls != nil:
		return false
	case p.client.eof, p.backend.eof, p.client.full(), p.backend.full():
		return false
	case p.awaiting, p.draining, p.discarding, len(p.held) > 0, len(p.rest) > 0, !p.requests.AtBoundary(), !x.answers.AtBoundary():
		return false
	case x.owed.Load() > 0, x.unsynced.Load(), x.starting, x.replicates, x.copies:
		return false
	}
	return x.mayOffload()
}

// mayOffload says that nobody wants anything of the session. It is asked once more when the session is lent.
func (x *session) mayOffload() bool {
	return x.ended.Load() == nil && !x.terminated.Load() && !x.fatalSent.Load() && x.srv.drain.Load() == nil &&
		x.reads != startup.ReadsConfirmed && !x.confirmation.warned && (!x.guarded || !x.needsConfirmation())
}

// beforeAnswer is called when the client is about to get what it has waited for: who has not read that sends nothing, so the program can be
// told of the session's sockets.
func (p *loopSession) beforeAnswer() {
	if p.loop.path == nil || p.notOffloadable || p.x.owed.Load() > 0 {
		return
	}
	if p.answersSince++; p.answersSince < p.answersNeeded || !p.canOffload() {
		return
	}
	if p.kernel == nil && !p.register() {
		p.notOffloadable = true
		return
	}
	p.loop.toOffload = append(p.loop.toOffload, p)
}

// lendAll lends what is to be lent at the end of a turn, when everything is written.
func (l *loop) lendAll() {
	for _, p := range l.toOffload {
		if p.phase == relaying && !p.x.offloaded.Load() {
			p.guarded(p.offload)()
		}
	}
	l.toOffload = l.toOffload[:0]
}

// offload gives the session to the kernel, if it still may be.
func (p *loopSession) offload() {
	x, k := p.x, p.loop.path
	if !p.canOffload() || p.client.queued != 0 || p.backend.queued != 0 {
		return
	}
	d := p.kernel
	s := d.Slot
	base, _, err := offload.BytesWritten(p.client.fd)
	flags, open := x.slotFlags()
	if err != nil || !open || atomic.LoadUint64(&s.UpLeft) != d.UpRead || atomic.LoadUint64(&s.DownLeft) != d.DownRead {
		return
	}
	d.Base, d.Began = base-s.DownBytes, d.Ups
	s.Downs = s.Ups // the loop has passed on what was still missing
	s.UpTaken, s.DownTaken, s.DownLimit = d.UpRead, d.DownRead, s.DownBytes+offload.MaxUnread
	s.Flags, s.Logged, s.Why, s.Status = flags, 0, offload.WhyCalled, x.status.Load()
	p.setInterest(&p.client, unix.EPOLLRDHUP) // what comes is not ours; its end is
	p.setInterest(&p.backend, unix.EPOLLRDHUP)
	k.SetDeadline()
	if !x.arm(s) {
		p.updateInterest()
		return
	}
	x.srv.counts.lent.Add(1)
	x.srv.countOffloaded()
	s.AwaitOutside() // a piece that came before did not ring
	if atomic.LoadUint64(&s.UpLeft) != d.UpRead || atomic.LoadUint64(&s.DownLeft) != d.DownRead {
		p.finishReclaim()
		p.updateInterest()
	}
}

// arm has the kernel begin, unless somebody wants the session. Who wants it says so first and looks then whether it is lent (recall), and here it
// is the other way round, so one of the two sees the other.
func (x *session) arm(s *offload.Slot) bool {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	x.offloaded.Store(true)
	if !x.mayOffload() {
		x.offloaded.Store(false)
		return false
	}
	atomic.StoreUint32(&s.Armed, 1)
	return true
}

// slotFlags says what the program has to look at; not open: the session cannot be lent as the gate stands.
func (x *session) slotFlags() (flags uint32, open bool) {
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

// register makes the session's sockets known to the program. It is false for one that is not to be lent.
func (p *loopSession) register() bool {
	k := p.loop.path
	if !offload.IsTCP(p.client.fd) {
		return false
	}
	sender, err := offload.SenderCookie(p.backend.fd)
	if err == nil {
		p.kernel, err = k.Add(p.client.fd, p.backend.fd, sender)
	}
	if err != nil {
		p.x.srv.log.Debug("a session stays on its loop", "session", p.x.id, "reason", err)
		return false
	}
	p.loop.offloaded[p.kernel.Index] = p
	p.returns.open(p, p.kernel.Returns)
	p.loop.setWatcher(p.returns.fd, &p.returns)
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

// finishReclaim ends what lend began, whatever the reason, and enters into the books what passed meanwhile.
func (p *loopSession) finishReclaim() {
	x, d := p.x, p.kernel
	s := d.Slot
	s.Disarm()
	passed := s.Ups - d.Began
	why := s.Why
	x.srv.counts.cameBack(why, passed)
	p.answersSince = 0
	switch {
	case why == offload.WhyCalled:
		p.answersNeeded = 1
	case passed >= offloadPays || x.srv.cfg.kernelAfter > 0:
		p.answersNeeded = x.srv.offloadAfter()
	default:
		p.answersNeeded = min(2*max(p.answersNeeded, x.srv.offloadAfter()), max(offloadAfterMax, x.srv.offloadAfter()))
	}
	wrong := p.applyRelayed()
	x.offloaded.Store(false)
	x.srv.offloadedNow.Add(-1)
	if wrong != nil {
		x.end(ending{"kernel", "the books of the kernel's path are wrong", false})
	}
	if s.Ups != s.Downs { // the request is on its way to PostgreSQL; that it has arrived is known by its answer
		p.backend.stuck, p.single = true, s.Single != 0
	}
	p.awaitBacklog(time.Millisecond)
}

// applyRelayed follows what the kernel has passed on. An error is the program's fault, or the memory's: it has judged the lengths.
func (p *loopSession) applyRelayed() error {
	x, d := p.x, p.kernel
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
func (p *loopSession) awaitBacklog(again time.Duration) {
	d := p.kernel
	n, waiting, err := offload.BytesWritten(p.client.fd)
	if err != nil { // the client is gone, and PostgreSQL may be writing into the backlog, which nobody empties any more
		p.client.stuck = false
		p.terminate(p.x.passFailed(errClient))
		return
	}
	if n-d.Base == d.Slot.DownBytes {
		if p.client.stuck {
			p.resume(&p.client)
			p.updateInterest()
		}
		return
	}
	if !p.client.stuck {
		p.client.stuck, p.stuckSince = true, time.Now()
	}
	if waiting > 0 {
		p.stuckSince = time.Now() // it is the client that does not read
	} else if time.Since(p.stuckSince) > backlogTimeout {
		p.x.end(ending{"kernel", "the kernel has lost an answer", false})
		p.close()
		return
	}
	p.after(again, func() {
		if p.client.stuck {
			p.awaitBacklog(min(2*again, 50*time.Millisecond))
		}
	})
}

// returnInterest is settle for a session whose answers come by returns: backend is what would be waited for on PostgreSQL's socket.
func (p *loopSession) returnInterest(backend uint32) uint32 {
	p.setInterest(&p.returns, backend&unix.EPOLLIN)
	if p.phase != relaying {
		return backend &^ unix.EPOLLIN
	}
	if !p.backendClosed {
		return backend&^unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if backend&unix.EPOLLIN != 0 && p.backendDrained() {
		p.loop.post(p.guarded(func() { p.fromBackend(); p.updateInterest() }))
	}
	return backend &^ unix.EPOLLIN
}

// backendDrained says that PostgreSQL has closed the connection and everything it said before was read.
func (p *loopSession) backendDrained() bool {
	return p.backendClosed && p.kernel.DownRead == atomic.LoadUint64(&p.kernel.Slot.DownLeft)
}

// resume goes on writing to a side.
func (p *loopSession) resume(s *side) {
	s.stuck = false
	p.flush(s)
}

// answerArrived is called when PostgreSQL has said something: then the last request that the kernel passed on has arrived, if it was a Query.
// Of what has several messages the end of the answer tells.
func (p *loopSession) answerArrived() {
	if p.backend.stuck && p.phase == relaying && (p.single || p.x.owed.Load() <= 0) {
		p.resume(&p.backend)
	}
}

// reclaim has the kernel pass nothing on for the session any more, whoever calls, but with drained.mu held. The loop takes it back as soon as
// it can.
func (x *session) reclaim() {
	if !x.offloaded.Load() {
		return
	}
	x.drained.mu.Lock() // it may be about to be armed
	p := x.onLoop.Load()
	p.kernel.Slot.Disarm()
	x.drained.mu.Unlock()
	p.recheck()
}

// reclaimWhere does so for all sessions of which which is true.
func (s *Server) reclaimWhere(which func(*session) bool) {
	for _, x := range s.localSessions() {
		if which(x) {
			x.reclaim()
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
		if l.path != nil {
			l.path.SetDeadline()
		}
	}
	s.reclaimWhere(func(x *session) bool { return x.gate != nil && x.offloaded.Load() })
}

// watchOffloaded renews what the program was told, and calls back whose answers have to be confirmed by now.
func (s *Server) watchOffloaded(loops []*loop) {
	t := time.NewTicker(offloadTick)
	defer t.Stop()
	for {
		if s.offloadedNow.Load() == 0 {
			t.Stop()
			select {
			case <-s.life.Done():
				return
			case <-s.firstOffloaded:
			}
			t.Reset(offloadTick)
		}
		select {
		case <-s.life.Done():
			return
		case <-t.C:
			s.checkOffloaded(loops)
		}
	}
}

// countOffloaded has watchLent look as long as anybody is lent.
func (s *Server) countOffloaded() {
	if s.offloadedNow.Add(1) == 1 {
		select {
		case s.firstOffloaded <- struct{}{}:
		default:
		}
	}
}

// checkOffloaded is what watchLent does each time. Where it panics what the program was told grows old, and the loops have their sessions back.
func (s *Server) checkOffloaded(loops []*loop) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("panicked beside the sessions", "in", "looking at those that the kernel carries", "panic", r, "stack", string(debug.Stack()))
			s.counts.reject("panic")
		}
	}()
	for _, l := range loops {
		if l.path != nil {
			l.path.SetDeadline()
		}
	}
	if s.cfg.Strict != nil && s.cfg.Strict() {
		s.reclaimWhere(func(x *session) bool { return x.guarded && x.offloaded.Load() })
	}
}

// offloadAfter is how often a session asks before it is lent.
func (s *Server) offloadAfter() int {
	if s.cfg.kernelAfter > 0 {
		return s.cfg.kernelAfter
	}
	return offloadAfterDefault
}
