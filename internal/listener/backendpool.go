package listener

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// A backend costs PostgreSQL a process and its caches, some milliseconds of a processor. In two cases a client need not
// wait for that. Where logins with one startup packet follow each other closely, a backend is opened ahead. With
// BACKEND_REUSE = ON, the backend of a client that has left is reused (reuse.go). Neither is a new session. So both are
// handed out only if the difference cannot be seen:
//
//   - the startup packet is the same, byte by byte: user, database, every parameter, the client's host, TLS and intent;
//   - the server's fingerprint of role, database and settings is the same as before the backend was opened;
//   - nothing has happened that ends sessions of this kind: an epoch, a drain, a closed gate, a statement about
//     databases.
//
// The pool holds backends of the local server only. A server's own refusals (NOLOGIN, CONNECT, connection limits) occur
// when a backend is opened; the facts that they depend on are part of the fingerprint.

// Bounds of the pool.
const (
	poolPerKind = 16               // backends of one kind
	poolKinds   = 256              // kinds of login that are remembered
	poolIdle    = 2 * time.Second  // less than the 5 s for which DROP DATABASE waits for other sessions
	poolAge     = 10 * time.Minute // of a backend since it was opened
	poolFresh   = time.Second      // a backend that waited no longer needs no restart of its idle timers
	poolAnswer  = time.Second      // bounds a query for a fingerprint, and a reset
)

// kind is what backends must have in common to stand for each other.
type kind struct {
	packet      string // the startup packet
	fingerprint string
	epoch       ag.Epoch
}

// backend is a session of the local server between its start and a client, or between two clients.
type backend struct {
	kind
	replica     ag.ReplicaID
	hello       BackendHello
	notReusable bool // may not serve a second client
	used        bool // has served a client
	conn        net.Conn
	greeting    greeting
	generation  uint64 // generation of the pool when it was opened
	born        time.Time
	since       time.Time // when it entered the pool
}

// backendPool keeps backends that wait for a client.
type backendPool struct {
	srv    *Server
	unused time.Duration // how long a backend waits: poolIdle
	answer time.Duration // how long an answer of the server may take: poolAnswer

	mu         sync.Mutex
	closed     bool                  // guarded by mu, as are all fields below
	inProgress int                   // being opened or reset
	generation uint64                // backends of older generations are dropped
	idle       map[string][]*backend // by startup packet, the newest last
	size       int
	room       time.Time            // until then, connection slots may become free that makeRoom has dropped
	opening    map[string]bool      // ahead
	seen       map[string]time.Time // by startup packet: the last login
	sweeping   *time.Timer          // nil: the pool is empty
	counts     PoolStats
}

// PoolStats are counters of the pool since the start, and its size now.
type PoolStats struct {
	Ahead, Reused uint64            // logins served by a backend opened ahead, and by a reused one
	Returned      uint64            // reset after their client
	Dropped       map[string]uint64 // by reason
	Waiting       int               // now
}

// reusableBackend returns the description of a pooled backend that would fit the client; nil if it needs one of its
// own. The server is asked after the client came, so that earlier changes are seen.
func (c *client) reusableBackend(ctx context.Context, r route) *backend {
	w := &c.srv.pool
	if c.srv.cfg.Fingerprint == nil || !r.Local || c.start.Replication != pgwire.ReplicationNone || c.srv.drain.Load() != nil {
		return nil
	}
	b := c.wantedBackend(r)
	ctx, cancel := context.WithTimeout(ctx, w.answer)
	defer cancel()
	m, err := c.srv.fingerprintOf(ctx, c.start.User, c.start.Database)
	if err != nil {
		c.log.Debug("no pooled backend: the server did not tell the fingerprint of the login", "user", c.start.User, "error", err)
		return nil
	}
	if m.Exclusive {
		return nil
	}
	b.setFingerprint(m, c.start)
	return b
}

// wantedBackend returns that description without the fingerprint, which has to be asked for afterwards.
func (c *client) wantedBackend(r route) *backend {
	w := &c.srv.pool
	w.mu.Lock()
	generation := w.generation
	w.mu.Unlock()
	hello := BackendHello{User: c.start.User, Database: c.start.Database, ClientAddr: c.sharedAddress(), Intent: c.intent, Epoch: r.epoch}
	return &backend{kind: kind{packet: string(c.packet(hello.ClientAddr, r.ID)), epoch: r.epoch}, replica: r.ID, hello: hello, generation: generation}
}

// setFingerprint completes the description.
func (b *backend) setFingerprint(m LoginFingerprint, start *startup.Message) {
	b.fingerprint, b.notReusable = m.Text, m.NotReusable || start.FixesRole()
}

// sharedAddress returns the client's address in the form that the server gets if several clients may use the backend in
// turn: without a port.
func (c *client) sharedAddress() string {
	if c.login.Local {
		return "local"
	}
	return c.host
}

// makeRoom drops pooled backends if the server refused a session for lack of connection slots, so that the next try
// may succeed. For a while it may succeed even if nothing is left to drop: the processes of dropped backends take a
// moment to exit.
func (s *Server) makeRoom(err error) error {
	bad, ok := pgwire.AsError(err)
	if !ok || bad.Reason != "postgresql" || bad.Code != pgwire.StateTooMany {
		return err
	}
	w := &s.pool
	n, now := w.flush("room"), time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > 0 {
		w.room = now.Add(w.answer)
	}
	if now.After(w.room) {
		return err
	}
	return fmt.Errorf("start a session: %s", bad.Message)
}

// take returns a pooled backend of that kind; nil if there is none.
func (w *backendPool) take(want *backend) *backend {
	for {
		b := w.pop(want)
		if b == nil {
			return nil
		}
		if waiting, gone := socket.Peek(b.conn); waiting || gone {
			w.drop(b, "gone")
			continue
		}
		if time.Since(b.since) > poolFresh && !b.wake(w.answer) {
			w.drop(b, "gone")
			continue
		}
		w.served(b)
		return b
	}
}

// has reports whether a backend with that startup packet is pooled.
func (w *backendPool) has(packet string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.idle[packet]) > 0
}

// takeFresh is take without waiting: it returns the newest of its kind, if that needs no restart of its timers.
func (w *backendPool) takeFresh(want *backend) *backend {
	for {
		w.mu.Lock()
		list := w.idle[want.packet]
		n := len(list) - 1
		if n < 0 || list[n].kind != want.kind || time.Since(list[n].since) > poolFresh {
			w.mu.Unlock()
			return nil
		}
		b := list[n]
		w.size--
		w.setIdle(want.packet, list[:n])
		w.mu.Unlock()
		if waiting, gone := socket.Peek(b.conn); !waiting && !gone {
			w.served(b)
			return b
		}
		w.drop(b, "gone")
	}
}

// served counts a login.
func (w *backendPool) served(b *backend) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.used {
		w.counts.Reused++
	} else {
		w.counts.Ahead++
	}
}

// pop removes the newest backend of a kind. Those with the same packet and another fingerprint or epoch are outdated
// and dropped.
func (w *backendPool) pop(want *backend) *backend {
	w.mu.Lock()
	list := w.idle[want.packet]
	var old []*backend
	for len(list) > 0 {
		b := list[len(list)-1]
		list = list[:len(list)-1]
		w.size--
		if b.kind == want.kind {
			w.setIdle(want.packet, list)
			w.mu.Unlock()
			w.dropAll(old, "changed")
			return b
		}
		old = append(old, b)
	}
	w.setIdle(want.packet, nil)
	w.mu.Unlock()
	w.dropAll(old, "changed")
	return nil
}

func (w *backendPool) setIdle(packet string, list []*backend) {
	if len(list) == 0 {
		delete(w.idle, packet)
		return
	}
	w.idle[packet] = list
}

// put adds a backend, if there is room and nothing has happened since it was opened. Otherwise it is dropped.
func (w *backendPool) put(b *backend) {
	now := time.Now()
	w.mu.Lock()
	why := ""
	switch {
	case w.closed || b.generation != w.generation:
		why = "ended"
	case w.size >= w.srv.cfg.Limits.PoolSize || len(w.idle[b.packet]) >= poolPerKind:
		why = "room"
	case now.Sub(b.born) > poolAge:
		why = "age"
	}
	if why == "" {
		b.since = now
		if b.used {
			w.counts.Returned++
		}
		if w.idle == nil {
			w.idle = make(map[string][]*backend)
		}
		w.idle[b.packet] = append(w.idle[b.packet], b)
		w.size++
		if w.sweeping == nil {
			w.sweeping = time.AfterFunc(w.unused/4, w.sweep)
		}
	}
	w.mu.Unlock()
	if why != "" {
		w.drop(b, why)
	}
}

// sweep drops backends that waited too long.
func (w *backendPool) sweep() {
	now := time.Now()
	var old []*backend
	w.mu.Lock()
	for packet, list := range w.idle {
		n := slices.IndexFunc(list, func(b *backend) bool { return now.Sub(b.since) < w.unused })
		if n < 0 {
			n = len(list)
		}
		old = append(old, list[:n]...)
		w.setIdle(packet, slices.Clone(list[n:]))
	}
	w.size -= len(old)
	if w.sweeping = nil; w.size > 0 {
		w.sweeping = time.AfterFunc(w.unused/4, w.sweep)
	}
	w.mu.Unlock()
	w.dropAll(old, "idle")
}

// flush empties the pool. Backends that are in use or being opened will not be added either. It returns how many are
// gone or will be.
func (w *backendPool) flush(why string) int {
	var all []*backend
	w.mu.Lock()
	w.generation++
	for _, list := range w.idle {
		all = append(all, list...)
	}
	w.idle, w.size = nil, 0
	n := len(all) + w.inProgress
	w.mu.Unlock()
	w.dropAll(all, why)
	return n
}

func (w *backendPool) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.flush("ended")
}

func (w *backendPool) dropAll(list []*backend, why string) {
	for _, b := range list {
		w.drop(b, why)
	}
}

// drop ends a backend as a client would.
func (w *backendPool) drop(b *backend, why string) {
	w.dropped(why)
	_ = b.conn.SetDeadline(time.Now().Add(w.answer))
	_, _ = b.conn.Write(pgwire.AppendMessage(nil, 'X', nil))
	_ = b.conn.Close()
}

// dropped counts a dropped backend.
func (w *backendPool) dropped(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counts.Dropped == nil {
		w.counts.Dropped = make(map[string]uint64)
	}
	w.counts.Dropped[why]++
}

// noteLogin notes a login of that kind. Two that follow each other closely are taken as a sign of a third.
func (w *backendPool) noteLogin(b *backend) {
	now := time.Now()
	w.mu.Lock()
	last, known := w.seen[b.packet]
	if !known && len(w.seen) >= poolKinds {
		for p, at := range w.seen {
			if now.Sub(at) > w.unused {
				delete(w.seen, p)
			}
		}
	}
	if w.seen == nil {
		w.seen, w.opening = make(map[string]time.Time), make(map[string]bool)
	}
	if known || len(w.seen) < poolKinds {
		w.seen[b.packet] = now
	}
	ahead := known && now.Sub(last) < w.unused && !w.closed && b.generation == w.generation && !w.opening[b.packet] &&
		len(w.idle[b.packet]) < w.srv.cfg.Limits.PoolAhead && w.size < w.srv.cfg.Limits.PoolSize
	if ahead {
		w.opening[b.packet] = true
		w.inProgress++
	}
	w.mu.Unlock()
	if ahead {
		w.srv.background("opening a backend ahead", func() { w.openAhead(b) })
	}
}

// openAhead opens a backend like that one.
func (w *backendPool) openAhead(like *backend) {
	b := &backend{kind: like.kind, replica: like.replica, hello: like.hello, notReusable: like.notReusable, generation: like.generation}
	defer w.countOpening(-1)
	err := b.open(w.srv)
	w.mu.Lock()
	delete(w.opening, b.packet)
	w.mu.Unlock()
	if err != nil {
		w.srv.log.Debug("no backend opened ahead", "user", b.hello.User, "database", b.hello.Database, "error", err)
		return
	}
	w.put(b)
}

// countOpening counts backends that are being opened or reset.
func (w *backendPool) countOpening(n int) {
	w.mu.Lock()
	w.inProgress += n
	w.mu.Unlock()
}

// open starts the session on the server. If the epoch ends meanwhile, so does the pool's generation, and put drops
// the backend.
func (b *backend) open(s *Server) error {
	ctx, cancel := context.WithTimeout(s.life, s.cfg.Limits.BackendHandshake)
	defer cancel()
	conn, err := s.cfg.Backend(ctx, b.replica, b.hello)
	if err != nil {
		return err
	}
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	in := bufio.NewReader(conn)
	b.conn, b.born = conn, time.Now()
	if b.greeting, err = startSession(conn, in, []byte(b.packet), b.replica); err == nil && in.Buffered() > 0 {
		err = errors.New("it says more than its greeting")
	}
	if err != nil {
		_ = conn.Close()
	}
	return err
}

// wake has the server answer an empty query, so that its idle timers start again.
func (b *backend) wake(within time.Duration) bool { return b.ask("", within) == nil }

// ask sends a query without rows and reads its answer.
func (b *backend) ask(query string, within time.Duration) error {
	_ = b.conn.SetDeadline(time.Now().Add(within))
	defer func() { _ = b.conn.SetDeadline(time.Time{}) }()
	if _, err := b.conn.Write(pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, query))); err != nil {
		return err
	}
	var answer []byte
	for piece := make([]byte, 256); ; {
		n, err := b.conn.Read(piece)
		if err != nil {
			return err
		}
		answer = append(answer, piece[:n]...)
		switch whole, expected := answeredIdle(answer); {
		case !expected, len(answer) > pgwire.MaxControl:
			return errors.New("unexpected answer")
		case whole:
			return nil
		}
	}
}

// answeredIdle checks the answer to a query without rows. whole: it is complete, the session is idle, and nothing
// follows. expected: it has no message that does not belong there.
func answeredIdle(b []byte) (whole, expected bool) {
	for len(b) >= 5 {
		n := int(binary.BigEndian.Uint32(b[1:])) + 1
		switch {
		case n < 5 || n > pgwire.MaxControl:
			return false, false
		case len(b) < n:
			return false, true
		case b[0] == 'Z':
			ok := len(b) == n && string(b[5:n]) == "I"
			return ok, ok
		case bytes.IndexByte([]byte("CISNA"), b[0]) < 0:
			return false, false
		}
		b = b[n:]
	}
	return false, true
}

// copy returns the greeting for one client, whose key replaces the backend's in it.
func (g greeting) copy() greeting {
	g.bytes = bytes.Clone(g.bytes)
	return g
}

// stats returns the counters.
func (w *backendPool) stats() PoolStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.counts
	st.Waiting = w.size
	st.Dropped = make(map[string]uint64, len(w.counts.Dropped))
	for why, n := range w.counts.Dropped {
		st.Dropped[why] = n
	}
	return st
}
