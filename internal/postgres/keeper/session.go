package keeper

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
)

// maxConns bounds the connections at a time: one agent, its successor, a few observers.
const maxConns = 16

// maxAnswers bounds the requests of a connection that are not answered yet; maxUnsent has room for as many exits beside
// them.
const (
	maxAnswers = 48
	maxUnsent  = maxAnswers + 16
)

// conn is one connection as the loop knows it.
type conn struct {
	nc  *net.UnixConn
	out chan message
	// answers has a place for each request whose answer is not written yet: a request is read only once it has one.
	// Together with the places for exits this is what out holds, so that an answer always finds room.
	answers chan struct{}
	broken  chan struct{} // closed when nothing can be written any more

	greeted  bool // HELLO was received
	agent    bool // with an incarnation: may command, while it is the attached one
	detached bool // its end was announced
	gone     bool
}

// sessions are the open connections.
type sessions struct {
	wg sync.WaitGroup

	mu   sync.Mutex
	open map[*conn]bool
}

// add registers a connection. It returns false if there are too many.
func (s *sessions) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= maxConns {
		return false
	}
	s.open[c] = true
	return true
}

func (s *sessions) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// finish lets every connection send its queue, ends it and waits for that. The loop and the listener have ended.
func (s *sessions) finish() {
	s.mu.Lock()
	for c := range s.open {
		_ = c.nc.CloseRead()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// accept serves connections until the listener is closed.
func (k *keeper) accept(l *net.UnixListener, all *sessions) {
	for {
		nc, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			k.log.Error("accept", "err", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		uid, err := peerUID(nc)
		if err != nil || (uid != 0 && int(uid) != os.Geteuid()) {
			k.log.Warn("connection of another user refused", "uid", uid, "err", err)
			_ = nc.Close()
			continue
		}
		c := &conn{nc: nc, out: make(chan message, maxUnsent), answers: make(chan struct{}, maxAnswers), broken: make(chan struct{})}
		if !all.add(c) {
			k.log.Warn("too many connections")
			_ = nc.Close()
			continue
		}
		all.wg.Go(func() {
			defer all.remove(c)
			var writer sync.WaitGroup
			writer.Go(c.write)
			k.read(c)
			writer.Wait()
		})
	}
}

// read passes requests to the loop until the connection ends, and then reports the end to the loop.
func (k *keeper) read(c *conn) {
	_ = c.nc.SetReadDeadline(time.Now().Add(5 * time.Second)) // for HELLO
	in := newLines(c.nc)
	for k.place(c) {
		var r request
		if err := in.next(&r); err != nil {
			break
		}
		if r.Op == opHello {
			_ = c.nc.SetReadDeadline(time.Time{})
		}
		if !k.post(func() { k.handle(c, r) }) {
			break
		}
	}
	if !k.post(func() { k.disconnected(c); close(c.out) }) {
		close(c.out) // the loop has ended and sends nothing more
	}
}

// place waits for a place for the answer of the next request. It returns false once nothing can be written any more: a
// request that is read without a place takes that of another one, whose answer would wait for it for ever.
func (k *keeper) place(c *conn) bool {
	select {
	case c.answers <- struct{}{}:
		return true
	case <-c.broken:
		return false
	case <-k.gone: // the loop has ended: the request is read and dropped, so that the end of the connection is seen
		return true
	}
}

// write sends the loop's messages. A peer that reads nothing for five seconds loses its connection; one that only reads
// slowly is asked for no more, and neither delays the loop.
func (c *conn) write() {
	defer func() { _ = c.nc.Close() }()
	broken := false
	for m := range c.out {
		b, control, err := m.encode()
		if err == nil && !broken {
			_ = c.nc.SetWriteDeadline(time.Now().Add(5 * time.Second))
			err = c.writeLine(b, control)
		}
		if m.file != nil {
			_ = m.file.Close()
		}
		if err != nil && !broken {
			broken = true
			close(c.broken)
			_ = c.nc.Close()
		}
		if m.Exit == nil {
			<-c.answers
		}
	}
}

// writeLine writes a line, and a descriptor with its first byte.
func (c *conn) writeLine(b, control []byte) error {
	if len(control) > 0 {
		n, _, err := c.nc.WriteMsgUnix(b[:1], control, nil)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	_, err := c.nc.Write(b)
	return err
}

// send queues a message for the peer. An answer always finds room, since a request is read only once its answer has a
// place. An exit for which there is none is dropped, which State.ExitCount shows: the connection of an agent is never
// closed for want of room, because its end means the agent's death.
func (c *conn) send(m message) {
	if c.gone {
		return
	}
	select {
	case c.out <- m:
	default:
	}
}

// disconnected handles the end of a connection. While armed, an unannounced end means that the agent has died.
func (k *keeper) disconnected(c *conn) {
	if c.gone {
		return
	}
	c.gone = true
	if k.attached != c {
		return
	}
	k.attached = nil
	k.lonely = boottime.Now()
	k.log.Info("agent disconnected", "armed", k.armed, "detached", c.detached)
	if k.armed && !c.detached {
		k.beginFence("the agent's connection ended")
	}
}

// handle answers one request.
func (k *keeper) handle(c *conn, r request) {
	reply := func(m message, err error) {
		m.ID = r.ID
		m.setError(err)
		c.send(m)
	}
	switch {
	case r.Op == opHello:
		reply(message{State: k.hello(c, r)}, nil)
	case !c.greeted:
		reply(message{}, refuse(ErrRefused, "say HELLO first"))
		_ = c.nc.Close()
	case r.Op == opStatus:
		reply(message{State: k.state()}, nil)
	case !c.agent || k.attached != c:
		reply(message{}, refuse(ErrObserver, "%s: only the attached agent may do that", r.Op))
	default:
		k.command(c, r, reply)
	}
}

// hello attaches an agent. The previous one is disconnected first, with all consequences of that.
func (k *keeper) hello(c *conn, r request) *State {
	c.greeted = true
	if r.Incarnation != "" && !c.gone {
		if old := k.attached; old != nil && old != c {
			k.disconnected(old)
			_ = old.nc.Close()
		}
		c.agent, k.attached = true, c
		k.log.Info("agent connected", "incarnation", r.Incarnation, "version", r.Version)
	}
	return k.state()
}

// command performs a request of the attached agent.
func (k *keeper) command(c *conn, r request, reply func(message, error)) {
	switch r.Op {
	case opStart:
		if r.Start == nil {
			reply(message{}, refuse(ErrRefused, "START: nothing to start"))
			return
		}
		k.start(*r.Start, func(pid int, err error) { reply(message{PID: pid}, err) })
	case opArm:
		reply(message{}, k.arm(c, r))
	case opExtend:
		reply(message{}, k.extend(c, r))
	case opDetach:
		reply(message{}, k.detach(c, r))
	case opDisarm:
		k.disarm(r, func(err error) { reply(message{}, err) })
	case opFence:
		k.beginFence(r.Reason)
		k.end.waiters = append(k.end.waiters, func(bool) { reply(message{}, nil) })
	case opStop:
		k.stop(r, func(clean bool, err error) { reply(message{Clean: clean}, err) })
	case opLog:
		if k.out == nil {
			reply(message{}, refuse(ErrRefused, "the server's log is not in memory"))
			return
		}
		f, err := k.out.Reader()
		reply(message{Log: err == nil, file: f}, err)
	case opShutdown:
		if k.server.pid != 0 || k.starting != nil || k.end != nil {
			reply(message{}, refuse(ErrBusy, "shut down: a server is running, starting or ending"))
			return
		}
		reply(message{}, nil)
		k.stopped = true
	default:
		reply(message{}, refuse(ErrRefused, "unknown request %q; this keeper speaks version %d", r.Op, Version))
	}
}

// checkDeadlineOf checks a new deadline: it must be ahead, at most a lease from now, and not before the present one.
func (k *keeper) checkDeadlineOf(r request) error {
	now := boottime.Now()
	switch {
	case k.fencing():
		return refuse(ErrBusy, "%s: fencing: %s", r.Op, k.end.reason)
	case r.Epoch < k.epoch:
		return refuse(ErrStaleEpoch, "%s for epoch %d, but the keeper has seen epoch %d", r.Op, r.Epoch, k.epoch)
	case r.Deadline <= now:
		return refuse(ErrDeadline, "%s: the deadline passed %s ago", r.Op, now-r.Deadline)
	case r.Deadline > now+MaxLease:
		return refuse(ErrDeadline, "%s: the deadline is %s ahead, more than %s", r.Op, r.Deadline-now, MaxLease)
	case k.armed && r.Deadline < k.deadline:
		return refuse(ErrDeadline, "%s: the deadline would move back by %s", r.Op, k.deadline-r.Deadline)
	}
	return nil
}

func (k *keeper) arm(c *conn, r request) error {
	if err := k.checkDeadlineOf(r); err != nil {
		return err
	}
	if !k.armed || r.Epoch != k.epoch {
		k.log.Info("armed", "epoch", r.Epoch, "for", r.Deadline-boottime.Now())
		k.rememberEpoch(r.Epoch)
	}
	k.armed, k.epoch, k.deadline, k.until = true, r.Epoch, r.Deadline, 0
	k.orders++
	fault.Point("keeper.armed") // the keeper is armed; the agent has no answer
	c.detached = false
	k.server.next = 0 // look for a promotion soon
	return nil
}

// rememberEpoch lets the next keeper refuse lower epochs, too. It is best-effort: the record decides which node leads.
func (k *keeper) rememberEpoch(e ag.Epoch) {
	k.memory.Epoch = e
	memory, file := k.memory, filepath.Join(k.dir, "state")
	k.onDisk(func() error { return durable.ReplaceJSON(file, memory) }, func(err error) {
		if err != nil {
			k.log.Error("remember the epoch", "epoch", e, "err", err)
		}
	})
}

func (k *keeper) extend(c *conn, r request) error {
	if err := k.checkDeadlineOf(r); err != nil {
		return err
	}
	if !k.armed || r.Epoch != k.epoch {
		return refuse(ErrNotArmed, "EXTEND for epoch %d: the keeper is not armed for it", r.Epoch)
	}
	k.deadline, k.until, c.detached = r.Deadline, 0, false
	k.orders++
	return nil
}

func (k *keeper) detach(c *conn, r request) error {
	now := boottime.Now()
	switch {
	case r.Epoch < k.epoch:
		return refuse(ErrStaleEpoch, "DETACH for epoch %d, but the keeper has seen epoch %d", r.Epoch, k.epoch)
	case !k.armed || k.fencing() || r.Epoch != k.epoch:
		return refuse(ErrNotArmed, "DETACH for epoch %d: the keeper is not armed for it", r.Epoch)
	case r.Deadline <= now || r.Deadline > k.deadline:
		return refuse(ErrDeadline, "DETACH until %s from now: must be ahead and not beyond the deadline, %s from now", r.Deadline-now, k.deadline-now)
	}
	k.until, c.detached = r.Deadline, true
	fault.Point("keeper.detached") // the keeper waits for a successor; the agent has no answer
	k.log.Info("agent detaches", "epoch", r.Epoch, "for", r.Deadline-now)
	return nil
}

// disarm removes the deadline. A server that accepts writes must keep it, and so must one that is armed again while the
// disk is read: it is about to be promoted.
func (k *keeper) disarm(r request, reply func(error)) {
	leading := refuse(ErrLeading, "DISARM: the server is, or may be about to become, a primary; stop or fence it first")
	switch {
	case r.Epoch < k.epoch:
		reply(refuse(ErrStaleEpoch, "DISARM for epoch %d, but the keeper has seen epoch %d", r.Epoch, k.epoch))
		return
	case !k.armed:
		reply(nil)
		return
	case k.fencing():
		reply(refuse(ErrBusy, "DISARM: fencing: %s", k.end.reason))
		return
	case k.server.pid == 0:
		k.disarmed()
		reply(nil)
		return
	case k.leading():
		reply(leading)
		return
	}
	pgdata, pid, orders, standby := k.server.req.PGData, k.server.pid, k.orders, false
	k.onDisk(func() error { standby = datadir.InRecovery(pgdata); return nil }, func(err error) {
		switch {
		case err != nil:
			reply(err)
		case k.fencing():
			reply(refuse(ErrBusy, "DISARM: fencing: %s", k.end.reason))
		case k.orders != orders: // it is older than what is in force now
			reply(refuse(ErrBusy, "DISARM: the deadline was moved while the disk was read"))
		case k.server.pid == 0, standby && k.server.pid == pid && !k.leading():
			k.disarmed()
			reply(nil)
		default:
			reply(leading)
		}
	})
}

func (k *keeper) disarmed() {
	fault.Point("keeper.disarmed") // the keeper is disarmed; the agent has no answer
	k.armed, k.deadline, k.until = false, 0, 0
	k.log.Info("disarmed", "epoch", k.epoch)
}

// stop stops the server and answers when no process of it is alive.
func (k *keeper) stop(r request, reply func(bool, error)) {
	sig, ok := map[string]syscall.Signal{"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}[r.Mode]
	switch {
	case !ok:
		reply(false, refuse(ErrRefused, "STOP: mode %q is not smart, fast or immediate", r.Mode))
	case k.starting != nil:
		reply(false, refuse(ErrBusy, "STOP: a server is starting"))
	case k.server.pid == 0 && k.end == nil:
		reply(k.lastClean, nil)
	default:
		k.beginStop(sig, r.Budget)
		k.end.waiters = append(k.end.waiters, func(clean bool) { reply(clean, nil) })
	}
}
