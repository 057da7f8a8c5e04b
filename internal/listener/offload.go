package listener

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/listener/offload"
)

// backlogTimeout is how long a socket with room may take to be written, on a busy machine.
const backlogTimeout = 10 * time.Second

// A session is offloaded to the kernel at the end of a turn of its loop, between a response and the next request.
// reclaim brings it back. Until then only the kernel touches its sockets.

// canOffload reports whether the session is idle at a message boundary with empty buffers, so that the kernel may
// relay its next simple query.
func (p *loopSession) canOffload() bool {
	x := p.x
	switch {
	case p.loop.path == nil, p.notOffloadable, p.phase != relaying, p.tls != nil:
		return false
	case p.client.eof, p.backend.eof, p.client.Full(), p.backend.Full():
		return false
	case p.awaiting, p.draining, p.discarding, len(p.held) > 0, len(p.rest) > 0, !x.way.RequestsAtBoundary(), !x.way.AnswersAtBoundary():
		return false
	case x.work.Owed.Load() > 0, x.work.Unsynced.Load(), x.way.Starting, x.work.Replicates, x.way.Copies, x.moving.inquiry.Answering(), x.moving.inquiry.Wanted():
		return false
	}
	return x.mayOffload() && !x.followed()
}

// followed reports whether the session is kept on its loop because its state is known there.
func (x *session) followed() bool {
	x.work.Lock()
	defer x.work.Unlock()
	return x.work.Rules.Continues() && x.work.Known.Followed()
}

// mayOffload reports whether nothing requires the session on its loop: no end, no drain, no confirmation, no log of its
// transaction. It is checked again when the session is offloaded.
func (x *session) mayOffload() bool {
	return x.ended.Load() == nil && !x.way.Terminated.Load() && !x.way.FatalSent.Load() && x.srv.drain.Load() == nil && !x.work.Leaving.Load() && !x.work.Logs() &&
		x.way.Confirmation.Unattended()
}

// beforeAnswer registers the sockets with the eBPF program just before the last response is written. A client does
// not send its next request before it has read that response, so no byte can pass unseen.
func (p *loopSession) beforeAnswer() {
	if p.loop.path == nil || p.notOffloadable || p.x.work.Owed.Load() > 0 {
		return
	}
	if !p.patience.Answered() || !p.canOffload() {
		return
	}
	if p.kernel == nil {
		if offload.Unread(p.client.FD) { // what waits would be in no counter; a later answer is as good
			return
		}
		if now, ever := p.register(); !now {
			p.notOffloadable = !ever
			return
		}
	}
	p.loop.toOffload = append(p.loop.toOffload, p)
}

// offloadAll offloads the sessions that are due at the end of a turn, when everything is written.
func (l *loop) offloadAll() {
	for _, p := range l.toOffload {
		if p.phase == relaying && !p.x.work.Offloaded() {
			p.guarded(p.offload)()
		}
	}
	l.toOffload = l.toOffload[:0]
}

// offload hands the session to the kernel, if it is still allowed.
func (p *loopSession) offload() {
	x, k := p.x, p.loop.path
	if !p.canOffload() || p.client.Queued() || p.backend.Queued() {
		return
	}
	d := p.kernel
	s := d.Slot
	base, _, err := offload.BytesWritten(p.client.FD)
	flags, open := x.slotFlags()
	if err != nil || !open || atomic.LoadUint64(&s.UpLeft) != d.UpRead || atomic.LoadUint64(&s.DownLeft) != d.DownRead {
		return
	}
	d.Base, d.Began = base-s.DownBytes, d.Ups
	s.Downs = s.Ups // the loop has passed on the rest
	s.UpTaken, s.DownTaken, s.DownLimit = d.UpRead, d.DownRead, s.DownBytes+offload.MaxUnread
	s.Flags, s.Logged, s.Why, s.Status = flags, 0, offload.WhyCalled, x.work.Status.Load()
	p.setInterest(&p.client, unix.EPOLLRDHUP) // only the end of the stream is for the loop
	p.setInterest(&p.backend, unix.EPOLLRDHUP)
	k.SetDeadline()
	x.way.Confirmation.Idle()
	if !x.arm(d) {
		p.updateInterest()
		return
	}
	x.srv.counts.Offloaded.Add(1)
	if !p.wasOffloaded {
		p.wasOffloaded = true
		x.srv.counts.Carry(PathKernel)
	}
	x.srv.offloadedNow.Add()
	s.AwaitOutside() // a piece that arrived before raised no event
	if atomic.LoadUint64(&s.UpLeft) != d.UpRead || atomic.LoadUint64(&s.DownLeft) != d.DownRead {
		p.finishReclaim()
		p.updateInterest()
	}
}

// arm lets the kernel begin, unless the session is needed here. Code that needs the session sets its flag first and
// checks Offloaded afterwards (reclaim). Here the order is reversed, so one of the two sees the other.
func (x *session) arm(d *offload.Session) bool {
	x.work.Lock()
	defer x.work.Unlock()
	x.work.Kernel.Store(d)
	if !x.mayOffload() {
		x.work.Kernel.Store(nil)
		return false
	}
	if d.Slot.Parsed = 0; x.work.Requests.UnnamedWaits() {
		d.Slot.Parsed = 1
	}
	atomic.StoreUint32(&d.Slot.Armed, 1)
	return true
}

// slotFlags returns what the program has to check. open is false if the gate does not allow offloading now.
func (x *session) slotFlags() (flags uint32, open bool) {
	if x.way.Confirmation.Guarded {
		flags |= offload.FlagGuarded
	}
	if x.gate == nil {
		return flags, true
	}
	open, err := x.gate.Look()
	if x.gate.Sticky() {
		return flags | offload.FlagDeadline, open && err == nil
	}
	return flags | offload.FlagUngated, open && err == nil
}

// register makes the session's sockets known to the program. It reports whether the session can be offloaded now, and
// whether ever.
func (p *loopSession) register() (now, ever bool) {
	k := p.loop.path
	if !offload.IsTCP(p.client.FD) {
		return false, false
	}
	sender, err := offload.SenderCookie(p.backend.FD)
	if err == nil {
		p.kernel, err = k.Add(p.client.FD, p.backend.FD, sender)
	}
	if errors.Is(err, offload.ErrUnread) {
		return false, true
	}
	if err != nil {
		p.x.srv.log.Debug("a session stays on its loop", "session", p.x.id, "reason", err)
		return false, false
	}
	p.loop.offloaded[p.kernel.Index] = p
	p.returns.open(p, p.kernel.Returns)
	p.loop.SetWatcher(p.returns.FD, &p.returns)
	p.x.use.Taint() // its backend cannot leave the program without losing unsolicited messages
	// Bytes that arrived before the program knew the socket are not in its counters.
	if offload.Unread(p.backend.FD) {
		// PostgreSQL sent something unsolicited, or closed, in these microseconds. Whether the program saw it cannot
		// be known.
		p.x.end(ending{reason: "introduced", why: "PostgreSQL sent something out of turn"})
		return false, false
	}
	counted := !offload.Unread(p.client.FD)
	return counted, counted
}

// finishReclaim ends what offload began, whatever the reason, and enters what the kernel relayed into the session's
// counters.
func (p *loopSession) finishReclaim() {
	x, d := p.x, p.kernel
	assert.That(d != nil, "an offloaded session has no slot")
	s := d.Slot
	s.Disarm()
	passed := s.Ups - d.Began
	why := s.Why
	x.srv.counts.CameBack(why, passed)
	p.patience.CameBack(why, passed)
	wrong := p.applyRelayed()
	x.cameBack()
	if wrong != nil {
		x.end(ending{"kernel", "the counters of the kernel's path are wrong", false})
	}
	if s.Ups != s.Downs { // the request is on its way to PostgreSQL; the answer proves its arrival
		p.backend.Stuck, p.single = true, s.Single != 0
	}
	p.awaitBacklog(time.Millisecond)
}

// applyRelayed enters the requests and answers that the kernel relayed into the session's state. An error means a
// defect of the program or of memory: the program has checked the lengths.
func (p *loopSession) applyRelayed() error {
	x, d := p.x, p.kernel
	s := d.Slot
	up, down := d.Passed()
	x.bytesIn.Add(up)
	x.bytesOut.Add(down)
	d.Ups = s.Ups
	d.UpBytes.Add(up)
	d.DownBytes.Add(down)
	x.work.Lock()
	defer x.work.Unlock()
	answered := func() {
		x.work.Owed.Store(0)
		x.work.Requests.Answered(byte(s.Status), true)
	}
	if s.Ups != d.Began { // all but the last were answered; they used no named portal, and texts of no interest to Tracker
		x.Forwarded()
		answered()
		x.work.Requests.ForgetUnnamed(s.Parsed != 0)
		x.work.Known.Unchanged.Forget()
	}
	for log := s.Log[:s.Logged]; len(log) > 0; {
		used, err := x.way.Follow(&x.work, x, log)
		if err != nil {
			return err
		}
		log = log[used:]
	}
	if s.Ups == s.Downs {
		answered()
		x.work.Status.Store(s.Status)
		x.way.CycleEnded(&x.work)
	} else {
		x.work.Status.Store(s.Status)
	}
	return nil
}

// carried returns how many bytes the session has carried in each direction.
func (x *session) carried() (in, out uint64) {
	if k := x.work.Kernel.Load(); k != nil {
		in, out = k.Passed()
	}
	return in + x.bytesIn.Load(), out + x.bytesOut.Load()
}

// awaitBacklog blocks writes to the client until the kernel has delivered what it accepted for that client. again is
// the time to the next check.
func (p *loopSession) awaitBacklog(again time.Duration) {
	d := p.kernel
	n, waiting, err := offload.BytesWritten(p.client.FD)
	if err != nil { // the client has left, and PostgreSQL may be writing into a backlog that nothing empties
		p.client.Stuck = false
		p.terminate(p.x.passFailed(errClient))
		return
	}
	if n-d.Base == d.Slot.DownBytes {
		if p.client.Stuck {
			p.resume(&p.client)
			p.updateInterest()
		}
		return
	}
	if !p.client.Stuck {
		p.client.Stuck, p.stuckSince = true, time.Now()
	}
	if waiting > 0 {
		p.stuckSince = time.Now() // the client does not read
	} else if time.Since(p.stuckSince) > backlogTimeout {
		p.x.end(ending{"kernel", "the kernel has lost an answer", false})
		p.close()
		return
	}
	p.after(again, func() {
		if p.client.Stuck {
			p.awaitBacklog(min(2*again, 50*time.Millisecond))
		}
	})
}

// returnInterest is the part of updateInterest for a session whose answers arrive on returns. backend is the interest
// that PostgreSQL's own socket would have.
func (p *loopSession) returnInterest(backend uint32) uint32 {
	p.setInterest(&p.returns, backend&unix.EPOLLIN)
	if p.phase != relaying {
		return backend &^ unix.EPOLLIN
	}
	if !p.backendClosed {
		return backend&^unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if backend&unix.EPOLLIN != 0 && p.backendDrained() {
		p.loop.Post(p.guarded(func() { p.fromBackend(); p.updateInterest() }))
	}
	return backend &^ unix.EPOLLIN
}

// backendDrained reports whether PostgreSQL has closed the connection and everything before its end was read.
func (p *loopSession) backendDrained() bool {
	return p.backendClosed && p.kernel.DownRead == atomic.LoadUint64(&p.kernel.Slot.DownLeft)
}

// resume continues to write to a side.
func (p *loopSession) resume(s *side) {
	s.Stuck = false
	p.flush(s)
}

// answerArrived is called when PostgreSQL has sent something, and when that was held until now. If the last relayed
// request was a Query, that proves its arrival. A request of several messages has arrived when its answer is complete.
func (p *loopSession) answerArrived() {
	if p.backend.Stuck && p.phase == relaying && (p.single || p.x.work.Owed.Load() <= 0) {
		p.resume(&p.backend)
	}
}

// reclaim stops the kernel from relaying for the session, and has the loop take it back soon. Any goroutine may call
// it, without the lock of work.
func (x *session) reclaim() {
	if !x.work.Offloaded() {
		return
	}
	p := x.onLoop.Load()
	assert.That(p != nil, "an offloaded session is on no loop")
	x.work.Lock() // it may be about to arm the slot
	if x.work.Offloaded() {
		p.kernel.Slot.Disarm() // AFTER the check under the lock: the slot is still its own
	}
	x.work.Unlock()
	p.recheck()
}

// cameBack notes that the kernel does not relay the session any more. Its slot may be given away afterwards.
func (x *session) cameBack() {
	x.work.Lock()
	x.work.Kernel.Store(nil)
	x.work.Asking.Worked() // what it has relayed was not seen
	x.work.Unlock()
	x.srv.offloadedNow.Done()
}

// reclaimWhere reclaims all sessions of the local server that match.
func (s *Server) reclaimWhere(which func(*session) bool) {
	for _, x := range s.localSessions() {
		if which(x) {
			x.reclaim()
		}
	}
}

// reclaimGuarded reclaims the sessions with answers that may have to be confirmed. When it returns, none of their
// answers passes in the kernel. A session that it does not meet was offloaded later, with nothing under way.
func (s *Server) reclaimGuarded() {
	s.reclaimWhere(func(x *session) bool { return x.way.Confirmation.Guarded && x.work.Offloaded() })
}

// GateMoved must be called when Gate may return less than before for another reason than time. After it returns, no
// answer passes that the new gate would hold.
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
	s.reclaimWhere(func(x *session) bool { return x.gate != nil && x.work.Offloaded() })
}

// checkOffloaded keeps the deadline of the program up to date, and reclaims sessions whose answers have to be
// confirmed. If it panics, the deadline in the program expires and the loops get their sessions back.
func (s *Server) checkOffloaded(loops []*loop) {
	s.sheltered("checking offloaded sessions", func() {
		for _, l := range loops {
			if l.path != nil {
				l.path.SetDeadline()
			}
		}
		if s.cfg.Strict != nil && s.cfg.Strict() {
			s.reclaimGuarded()
		}
	})
}

// patience returns after how many answers a session is offloaded.
func (s *Server) patience() offload.Patience {
	after := cmp.Or(s.cfg.offloadAfter, offload.AfterDefault)
	return offload.Patience{After: after, Always: s.cfg.offloadAfter > 0, Needed: after}
}
