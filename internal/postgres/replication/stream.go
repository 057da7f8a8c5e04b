package replication

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

const (
	downBuffer   = 128 << 10        // the largest message of a walsender is 128 KiB of WAL
	writeTimeout = 10 * time.Second // for a server to take a message of a few bytes; longer means it is stuck
	drainTimeout = time.Second      // for the peer to read the end of a stream that the server has ended
	// How long a proof waits for a walreceiver that goes from one timeline to the next.
	switchTimeout = 500 * time.Millisecond
	switchPoll    = 2 * time.Millisecond
	maxOwed       = 1024 // replies a walsender may owe; more mean that the peer is broken
)

var (
	errEnded        = errors.New("stream ended")
	errServer       = errors.New("server closed the connection")
	errNotStreaming = errors.New("the walsender is not in streaming mode")
)

// turn is a lock whose wait can be abandoned. Its holder may write to a connection and its waiters have deadlines, so
// it cannot be a mutex.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context, ended <-chan struct{}) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turn) give() { <-t }

// stream is one peer's connection joined to one connection of the server.
type stream struct {
	hello    Hello
	session  uint64
	since    time.Duration
	admitted bool // guarded by Downstream.mu, as is running
	running  bool

	peer    net.Conn
	server  net.Conn     // nil until dialed; guarded by mu until running
	holding *atomic.Bool // the Downstream's
	signal  func()       // wakes the Downstream's reader
	penalty *Penalty     // may be nil

	closing chan struct{} // closed when the end begins
	done    chan struct{} // closed when nothing of the stream runs any more

	// toServer is held while writing to the server. It guards the fields below it.
	toServer turn
	passed   status // the last positions sent to the walsender
	held     []byte // the last status update withheld; it includes all earlier ones
	heldXmin []byte // the last hot standby feedback withheld
	copyDone bool   // the peer has ended its half of the streaming

	// toPeer is held while writing to the peer. It guards down.
	toPeer turn
	down   splitter

	lastRead, lastWrite atomic.Int64 // boottime of the last traffic from and to the peer

	mu           sync.Mutex
	cause        error
	seen         status // the last positions the peer reported
	lastFeedback time.Duration
	walEnd       ag.LSN
	sent         ag.LSN        // end of the WAL handed over
	lastSent     time.Duration // boottime of that
	pid          int           // of the server's process; 0: not told yet
	streaming    bool
	started      chan struct{} // closed when streaming begins for the first time
	owed         []chan bool   // replies the walsender owes, in order; nil for one that the peer asked for
	proven       uint64
}

func newStream(peer net.Conn, holding *atomic.Bool, signal func(), penalty *Penalty) *stream {
	st := &stream{
		peer: peer, holding: holding, signal: signal, penalty: penalty, since: boottime.Now(),
		closing: make(chan struct{}), done: make(chan struct{}), started: make(chan struct{}),
		toServer: newTurn(), toPeer: newTurn(),
	}
	st.lastRead.Store(int64(st.since))
	st.lastWrite.Store(int64(st.since))
	return st
}

// close ends the stream and does not wait. The first cause is kept.
func (st *stream) close(cause error) {
	st.mu.Lock()
	first := st.cause == nil
	if first {
		st.cause = cause
		close(st.closing)
	}
	server := st.server
	st.mu.Unlock()
	if !first {
		return
	}
	if server != nil { // first, so that no later feedback counts
		_ = server.Close()
	}
	_ = st.peer.Close()
}

// ended waits for the end of the stream and returns its cause.
func (st *stream) ended() error {
	<-st.closing
	return st.cause
}

// join adds the connection to the server, unless the stream has ended meanwhile.
func (st *stream) join(server net.Conn) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.cause != nil {
		_ = server.Close()
		return errEnded
	}
	st.server = server
	return nil
}

// run joins both connections until either ends. The last messages of a walsender reach the peer: they may be the
// shutdown checkpoint that a planned failover waits for.
func (st *stream) run(probeAfter func() time.Duration, deadAfter time.Duration) {
	up, down := st.upRaw, st.downRaw
	var wg sync.WaitGroup
	if st.hello.Kind == KindWAL {
		up, down = st.upWAL, st.downWAL
		wg.Go(func() { st.watch(probeAfter, deadAfter) })
	}
	wg.Go(func() {
		err := down()
		half, ok := st.peer.(interface{ CloseWrite() error })
		if !errors.Is(err, errServer) || !ok {
			st.close(err)
			return
		}
		_ = half.CloseWrite()
		_ = st.peer.SetReadDeadline(time.Now().Add(drainTimeout))
	})
	wg.Go(func() {
		err := up()
		if errors.Is(err, errServer) {
			// Closing with unread bytes would reset the connection and lose what the peer has not read yet.
			_ = st.peer.SetReadDeadline(time.Now().Add(drainTimeout))
			_, _ = io.Copy(io.Discard, st.peer)
		}
		st.close(err)
	})
	wg.Wait()
}

func serverFailed(err error) error { return fmt.Errorf("%w: %w", errServer, err) }
func peerFailed(err error) error   { return fmt.Errorf("peer: %w", err) }

func (st *stream) upRaw() error   { return copyConn(st.server, st.peer, serverFailed, peerFailed) }
func (st *stream) downRaw() error { return copyConn(st.peer, st.server, peerFailed, serverFailed) }

// copyConn forwards what it reads until an error, to which it adds the side that failed.
func copyConn(dst, src net.Conn, dstFailed, srcFailed func(error) error) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return dstFailed(werr)
			}
		}
		if err != nil {
			return srcFailed(err)
		}
	}
}

// downWAL forwards what the walsender sends, whole reads at a time, and inspects the frames.
func (st *stream) downWAL() error {
	buf := make([]byte, downBuffer)
	kept := 0 // bytes at the front of buf that are the beginning of a short frame
	for {
		n, err := st.server.Read(buf[kept:])
		if n > 0 {
			var perr error
			if kept, perr = st.passDown(buf[:kept+n]); perr != nil {
				return perr
			}
		}
		if err != nil {
			return serverFailed(err)
		}
	}
}

// passDown writes the frames in b to the peer, except the replies to injected status updates. It moves incomplete
// frames to the front of b.
func (st *stream) passDown(b []byte) (kept int, err error) {
	if err := st.toPeer.take(context.Background(), st.closing); err != nil {
		return 0, err
	}
	defer st.toPeer.give()
	now := boottime.Now()
	from, at := 0, 0
	for at < len(b) {
		f, n, err := st.down.next(b[at:])
		if err != nil {
			return 0, serverFailed(err)
		}
		if n == 0 {
			break
		}
		if f.size > 0 && !st.observeDown(now, f) {
			if err := st.writePeer(now, b[from:at]); err != nil {
				return 0, err
			}
			from = at + n
		}
		at += n
	}
	if err := st.writePeer(now, b[from:at]); err != nil {
		return 0, err
	}
	return copy(b, b[at:]), nil
}

// writePeer sends b, which arrived at now.
func (st *stream) writePeer(now time.Duration, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := st.peer.Write(b); err != nil {
		return peerFailed(err)
	}
	st.lastWrite.Store(int64(now))
	return nil
}

// observeDown records a message of the walsender that arrived at now, and reports whether to forward it to the peer.
func (st *stream) observeDown(now time.Duration, f frame) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch f.kind {
	case 'K': // BackendKeyData
		if f.whole() && f.size >= headerLen+4 {
			st.pid = int(binary.BigEndian.Uint32(f.head[headerLen:]))
		}
	case 'W':
		st.startStreaming()
	case 'c', 'C', 'E':
		st.streaming = false
	case 'd':
		if end, ok := f.walEnd(); ok {
			st.walEnd = end
		}
		if end, ok := f.dataEnd(); ok {
			st.sent, st.lastSent = end, now
			st.penalty.sent(now, end)
		}
		// A physical walsender sends a keepalive that wants no reply only to answer a status update that wants one
		// (walsender.c, ProcessStandbyReplyMessage), so the replies come in the order of the requests.
		if f.isKeepalive() && !f.replyWanted() && len(st.owed) > 0 {
			reply := st.owed[0]
			st.owed = st.owed[1:]
			if reply != nil {
				reply <- true
				return false
			}
		}
	}
	return true
}

// startStreaming records that streaming mode began. The caller holds mu. Requests that were sent earlier are never
// answered.
func (st *stream) startStreaming() {
	for _, reply := range st.owed {
		if reply != nil {
			reply <- false
		}
	}
	st.owed, st.streaming = nil, true
	select {
	case <-st.started:
	default:
		close(st.started)
	}
	st.lastRead.Store(int64(boottime.Now()))
	st.signal()
}

// upWAL forwards what the walreceiver sends, message by message, so that others can be inserted.
func (st *stream) upWAL() error {
	var in frontend
	var failed error // of handling a message, as opposed to the connection
	err := receive(st.peer, maxFrontend, func(b []byte) error {
		now := boottime.Now()
		st.lastRead.Store(int64(now))
		failed = in.feed(b, func(f frame) error {
			if f.isStatus() {
				st.observeStatus(now, f.status())
			}
			if f.kind == 'Q' && !st.asksForOwnSlot(f.head[headerLen:]) {
				return fmt.Errorf("the command is not a walreceiver's of %s: %.100q", st.hello.Member, f.head[headerLen:])
			}
			return st.passUp(f)
		})
		return failed
	})
	if failed != nil && !errors.Is(failed, errLongFrontend) {
		return failed
	}
	return peerFailed(err)
}

// asksForOwnSlot reports whether a command is not a request to stream, or is one from the member's own slot, as its
// walreceiver makes it.
func (st *stream) asksForOwnSlot(command []byte) bool {
	text := string(command)
	return !strings.HasPrefix(text, "START_REPLICATION") || strings.HasPrefix(text, `START_REPLICATION SLOT "`+slotName(st.hello.Member)+`" `)
}

// slotName returns the name of a member's slot, which is the primary_slot_name of its server.
func slotName(member ag.ReplicaID) string { return "cot_" + string(member) }

// frontend cuts what a walreceiver sends into messages.
type frontend struct{ kept []byte } // the beginning of a message

// feed calls f with each message that b completes. A message is valid until f returns.
func (in *frontend) feed(b []byte, f func(frame) error) error {
	if len(in.kept) > 0 {
		in.kept = append(in.kept, b...)
		b = in.kept
	}
	for len(b) >= headerLen {
		length := binary.BigEndian.Uint32(b[1:])
		if length < 4 || length >= maxFrontend {
			return fmt.Errorf("%w: %q with a length of %d bytes", errLongFrontend, b[0], length)
		}
		size := int(length) + 1
		if len(b) < size {
			break
		}
		if err := f(frame{kind: b[0], head: b[:size], size: size}); err != nil {
			return err
		}
		b = b[size:]
	}
	in.kept = append(in.kept[:0], b...)
	return nil
}

// receive calls f with the bytes of conn, in order, until an error, the end included. A link delivers its bytes itself,
// which avoids waking a thread.
func receive(conn net.Conn, size int, f func([]byte) error) error {
	if r, ok := conn.(interface {
		Receive(f func([]byte) error) error
	}); ok {
		return cmp.Or(r.Receive(f), io.EOF)
	}
	buf := make([]byte, size)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if ferr := f(buf[:n]); ferr != nil {
				return ferr
			}
		}
		if err != nil {
			return err
		}
	}
}

// observeStatus records positions that arrived at now.
func (st *stream) observeStatus(now time.Duration, s status) {
	st.mu.Lock()
	moved := s.flush != st.seen.flush || st.lastFeedback == 0
	st.seen, st.lastFeedback = s, now
	st.mu.Unlock()
	if moved {
		if st.hello.Kind == KindWAL {
			st.penalty.acknowledged(now, st.hello.Member, s.flush)
		}
		st.signal()
	}
}

// watch keeps traffic on a silent stream, and ends the stream if the peer stays silent. The injected keepalive requests
// a reply, so both directions have traffic: the peer's Upstream takes silence for the death of this node.
func (st *stream) watch(probes func() time.Duration, deadAfter time.Duration) {
	last := boottime.Now()
	probed := last
	for {
		probeAfter := probes()
		interval := probeAfter / 3
		timer := time.NewTimer(boottime.UntilNext(interval))
		select {
		case <-st.closing:
			timer.Stop()
			return
		case <-timer.C:
		}
		now := boottime.Now()
		if now-last > 3*interval {
			st.lastRead.Store(int64(now)) // this process did not run: the silence may have been its own
		}
		last = now
		st.mu.Lock()
		streaming, end := st.streaming, st.walEnd
		st.mu.Unlock()
		silent := now - time.Duration(st.lastRead.Load())
		idle := now - time.Duration(st.lastWrite.Load())
		switch {
		case !streaming:
			probed = now
			st.lastRead.Store(int64(now))
		case silent > probeAfter+deadAfter:
			st.close(fmt.Errorf("no word from the peer for %v", silent.Round(time.Millisecond)))
		case (silent > probeAfter || idle > probeAfter) && now-probed > probeAfter:
			probed = now
			st.probe(end, deadAfter)
		}
	}
}

// probe sends a keepalive to the peer unless a message is being sent.
func (st *stream) probe(end ag.LSN, timeout time.Duration) {
	if !st.toPeer.try() {
		return
	}
	defer st.toPeer.give()
	st.mu.Lock()
	streaming := st.streaming
	st.mu.Unlock()
	if !streaming || !st.down.between() {
		return
	}
	_ = st.peer.SetWriteDeadline(time.Now().Add(timeout))
	if err := st.writePeer(boottime.Now(), keepalive(end)); err != nil {
		st.close(err)
	}
	_ = st.peer.SetWriteDeadline(time.Time{})
}

// report describes a running stream.
func (st *stream) report() Stream {
	st.mu.Lock()
	defer st.mu.Unlock()
	h := st.hello
	return Stream{
		Member: h.Member, Copy: h.Copy, Incarnation: h.Incarnation, Epoch: h.Epoch, Session: st.session, Kind: h.Kind,
		Streaming: st.streaming, Sent: st.sent, LastSent: st.lastSent, Write: st.seen.write, Flush: st.seen.flush, Apply: st.seen.apply,
		LastFeedback: st.lastFeedback, Since: st.since, Proven: st.proven,
	}
}
