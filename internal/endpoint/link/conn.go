package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/codec"
)

const (
	window     = 16 << 20  // bytes of memory in frames that the other side may not have yet
	ackEvery   = 512 << 10 // bytes received after which a separate acknowledgement is sent
	inboxLimit = 256 << 10 // bytes that wait for Read
)

// Config configures a link. Zero values mean the defaults.
type Config struct {
	Compression func() codec.Setting // of what this side sends, asked every heartbeat; nil: AUTO
	Heartbeat   time.Duration        // between pings on each leg, and between evaluations of the measurements; default 1 s
	DeadAfter   time.Duration        // silence after which a leg is given up; default 10 s
	Suspect     time.Duration        // silence of all legs after which another one is opened in their place; default 1.8 s
	Grace       time.Duration        // how long a link without a leg is kept, beside 8 round trips; default 400 ms
	Bandwidth   *Estimator           // the totals of all links of a node; nil: not kept
	Logger      *slog.Logger         // nil: none
}

func (c Config) filled() Config {
	c.Heartbeat = cmp.Or(c.Heartbeat, time.Second)
	c.DeadAfter = cmp.Or(c.DeadAfter, 10*time.Second)
	c.Suspect = cmp.Or(c.Suspect, 1800*time.Millisecond)
	c.Grace = cmp.Or(c.Grace, 400*time.Millisecond)
	if c.Compression == nil {
		c.Compression = func() codec.Setting { return codec.Setting{Auto: true} }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Errors that end a link.
var (
	ErrRevoked = errors.New("a leg was closed by this node: the peer may not be here any more")
	ErrNoLeg   = errors.New("no leg is left, and none came back in time")
)

// Conn is one side of a link, a net.Conn. Read and Receive exclude each other; Write is for one goroutine at a time.
type Conn struct {
	id    string
	peer  string
	cfg   Config
	log   *slog.Logger
	over  chan struct{} // closed when the link is over
	kick  chan struct{} // a leg was lost
	owed  *time.Timer   // for frames that went as datagrams only; Reset where mu is held
	wg    tasks
	next  atomic.Uint64 // all numbered frames below it have arrived
	told  atomic.Uint64 // the highest acknowledgement that was sent
	begun atomic.Bool

	writing sync.Mutex // one writer; guards what follows
	enc     codec.Encoder
	ended   bool // the end was sent

	mu       sync.Mutex
	room     sync.Cond // of mu: the window has room, a deadline passed, or the link is over
	cause    error
	legs     []*leg
	main     *leg
	legless  time.Duration // since when the link has no leg; 0: it has one
	sent     uint64        // number of the next frame
	acked    uint64
	unacked  []*frame
	cost     int // of unacked: the buffers
	under    int // and the bytes in them
	known    []codec.ID
	setting  codec.Encoding // the encoding that enc is to use
	shards   bool           // the other side understands them
	hedging  bool
	writeEnd time.Time
	reset    error // why the other side ended the link,
	resetAt  uint64
	events   []Event
	copied   int    // bytes of copies, and of shards beyond the frame's own
	owing    bool   // owed runs
	resent   uint64 // bytes sent again
	encoded  codec.Stats
	loss     lossWindow
	busy     busy
	beaten   time.Duration // the last heartbeat
	chosen   choice        // on the dialling side; it sends main leg and hedging to the other one
	lastTrip time.Duration

	in inbox
}

// newConn returns a link without legs; start begins its life.
func newConn(id, peer string, cfg Config) *Conn {
	cfg = cfg.filled()
	c := &Conn{
		id: id, peer: peer, cfg: cfg, log: cfg.Logger.With("peer", peer, "link", id[:8]), legless: boottime.Awake(),
		over: make(chan struct{}), kick: make(chan struct{}, 1), owed: time.NewTimer(0),
	}
	c.owed.Stop()
	c.room.L, c.wg.done.L = &c.mu, &c.wg.mu
	c.in.init()
	return c
}

// Peer returns the name of the other side that was given to Dial or Hub.Handle.
func (c *Conn) Peer() string { return c.peer }

// Write sends p. It returns when the bytes are kept for sending, not when the other side has them.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.ended {
		return 0, net.ErrClosed
	}
	for n := 0; n < len(p); {
		use, piece := c.plan(len(p))
		if err := c.enc.Use(use); err != nil {
			return n, err
		}
		chunk := p[n:min(n+piece, len(p))]
		b, err := c.enc.Encode(chunk)
		if err != nil {
			return n, err
		}
		f := newFrame(headerLen + len(b.Body))
		h := header{kind: typeData, codec: b.Codec, first: b.First, length: len(b.Body), size: b.Size, crc: b.CRC}
		if err := c.launch(f, h, b.Body); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return len(p), nil
}

// plan returns the codec for a write of n bytes, and the bytes per frame. A write that may be hedged is cut to fit
// datagrams.
func (c *Conn) plan(n int) (use codec.Encoding, piece int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hedging && headerLen+n <= maxHedged {
		return c.setting, maxDatagram - headerLen
	}
	return c.setting, codec.MaxRaw
}

// launch numbers a frame, keeps it, and sends it.
func (c *Conn) launch(f *frame, h header, body []byte) error {
	c.mu.Lock()
	for (c.cost+f.cost() > window || c.full()) && c.cause == nil && !expired(c.writeEnd) {
		c.room.Wait()
	}
	if err := c.writable(); err != nil {
		c.mu.Unlock()
		f.release()
		return err
	}
	h.number, h.ack = c.sent, c.next.Load()
	f.number, f.buf = c.sent, append(h.append(f.buf), body...)
	c.sent++
	f.sent, c.encoded = boottime.Awake(), c.enc.Stats()
	if len(c.unacked) == 0 && c.lastTrip >= farTrip && !c.hedging { // the controller does not pace datagrams
		c.main.freshen()
	}
	c.unacked = append(c.unacked, f)
	c.cost, c.under = c.cost+f.cost(), c.under+len(f.buf)
	f.hold() // it may be acknowledged before it is sent in full
	defer f.release()
	main, striped := c.carrier()
	if h.kind == typeData && c.hedge(f, main) {
		c.mu.Unlock()
		return nil
	}
	f.put(main)
	c.mu.Unlock()
	c.carry(f, main, striped)
	return nil
}

// carry sends a frame by its leg, nil for none.
func (c *Conn) carry(f *frame, main *leg, striped bool) {
	if main == nil || striped && main.copy(f) {
		return
	}
	c.noteAck(binary.BigEndian.Uint64(f.buf[ackAt:]))
	if err := main.send(f); err != nil {
		main.broken(err) // its reader continues: the frame is kept
	}
}

// writable returns why nothing can be written, or nil; mu is held.
func (c *Conn) writable() error {
	switch {
	case c.cause != nil:
		return c.cause
	case expired(c.writeEnd):
		return os.ErrDeadlineExceeded
	}
	return nil
}

func expired(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func (c *Conn) noteAck(n uint64) {
	for {
		old := c.told.Load()
		if old >= n || c.told.CompareAndSwap(old, n) {
			return
		}
	}
}

// acknowledged releases the frames that the other side has.
func (c *Conn) acknowledged(n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n <= c.acked || n > c.sent {
		return
	}
	k := int(n - c.acked)
	for _, f := range c.unacked[:k] {
		c.cost, c.under = c.cost-f.cost(), c.under-len(f.buf)
		c.busy.delivered += uint64(len(f.buf))
		f.put(nil)
		f.release()
	}
	clear(c.unacked[:k])
	c.unacked = c.unacked[k:]
	c.acked = n
	c.busy.least = min(c.busy.least, c.under)
	c.room.Broadcast()
}

// CloseWrite ends this direction: the other side reads to the end and then io.EOF.
func (c *Conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.ended {
		return nil
	}
	c.ended = true
	return c.launch(newFrame(headerLen), header{kind: typeEnd}, nil)
}

// Close ends the link and notifies the other side. Its legs are closed in the background within about a second; Wait
// waits for that.
func (c *Conn) Close() error {
	c.end(net.ErrClosed, "closed")
	return nil
}

// Wait returns when no goroutine of the link runs any more. The link must have ended, or be about to.
func (c *Conn) Wait() { c.wg.Wait() }

// AfterEnd calls f once the link is over. Call it at most once, before Wait.
func (c *Conn) AfterEnd(f func()) {
	c.wg.Go(func() {
		<-c.over
		f()
	})
}

// Done is closed when the link is over.
func (c *Conn) Done() <-chan struct{} { return c.over }

// end ends the link; the first cause is kept. A farewell that is not empty is sent.
func (c *Conn) end(cause error, farewell string) {
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return
	}
	c.cause = cause
	legs, main, sent := c.legs, c.main, c.sent
	c.legs, c.main = nil, nil
	close(c.over)
	c.room.Broadcast()
	c.mu.Unlock()
	if farewell != "" && main != nil {
		h := header{kind: typeReset, number: sent, ack: c.next.Load(), length: len(farewell)}
		main.control(append(h.append(nil), farewell...))
	}
	for _, l := range legs {
		l.closed.Store(true)
		if farewell == "" {
			c.wg.Go(l.cut)
		} else {
			c.wg.Go(l.shut)
		}
	}
	c.wg.Go(c.in.wake) // in the background: a receiver may hold the lock
}

// peerReset records that the other side ended the link, which takes effect once everything that it sent has been read.
func (c *Conn) peerReset(at uint64, why string) {
	err := fmt.Errorf("%w: the other side ended the link: %.100q", io.ErrUnexpectedEOF, why)
	c.mu.Lock()
	c.reset, c.resetAt = err, at
	c.mu.Unlock()
	c.checkReset()
}

func (c *Conn) checkReset() {
	c.mu.Lock()
	err, at := c.reset, c.resetAt
	c.mu.Unlock()
	if err != nil && c.next.Load() >= at {
		c.end(err, "")
	}
}

// LocalAddr returns an address of the main leg.
func (c *Conn) LocalAddr() net.Addr { return c.addr(Transport.LocalAddr) }

// RemoteAddr returns the other side's address of the main leg.
func (c *Conn) RemoteAddr() net.Addr { return c.addr(Transport.RemoteAddr) }

func (c *Conn) addr(of func(Transport) net.Addr) net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.main == nil {
		return &net.TCPAddr{}
	}
	return of(c.main.Transport)
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline ends Read and Receive at t; the link continues.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.deadline(t)
	return nil
}

// SetWriteDeadline ends the wait of Write for room at t; the link continues.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeEnd = t
	c.room.Broadcast()
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		time.AfterFunc(wait, func() { // a late wake-up is harmless
			c.mu.Lock()
			defer c.mu.Unlock()
			c.room.Broadcast()
		})
	}
	return nil
}

// Read returns what the other side has written.
func (c *Conn) Read(p []byte) (int, error) { return c.in.read(c, p) }

// Receive calls f with what the other side has written, in order, until its end (nil), an error of f, or the end of the
// link. No call of f runs when Receive has returned. The bytes are good until f returns.
func (c *Conn) Receive(f func([]byte) error) error { return c.in.receive(c, f) }

// failure returns why the link ended.
func (c *Conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// attach adds a leg whose other side has received all frames below received. It returns the function that reads the leg
// until it ends.
func (c *Conn) attach(t Transport, received uint64, main bool) (serve func(context.Context) error, err error) {
	c.acknowledged(received)
	l := newLeg(c, t)
	if trip := l.trip(); trip > 0 {
		l.suit(trip >= farTrip)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return nil, c.cause
	}
	c.legs = append(c.legs, l)
	c.legless = 0
	if c.main == nil || main {
		c.main = l
	}
	if len(c.legs) == 1 {
		c.setting = codec.Choose(c.cfg.Compression(), c.known, c.setting, codec.Path{RTT: l.trip(), Rate: 8 * c.cfg.Bandwidth.Rate(c.peer)})
	}
	c.note("leg attached", l.String())
	if main {
		c.replaceSilent(l)
	}
	c.again(nil)
	return func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { // not by this link: the peer is no longer allowed
			if !l.closed.Load() {
				c.end(ErrRevoked, "")
			}
		})()
		return c.serve(ctx, l)
	}, nil
}

// serve reads a leg until it ends.
func (c *Conn) serve(ctx context.Context, l *leg) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan struct{})
	var own sync.WaitGroup
	own.Go(func() { l.sendCopies(gone) })
	if l.packet != nil {
		own.Go(func() { l.readDatagrams(ctx) })
	}
	l.ping()
	err := l.read()
	close(gone)
	cancel()
	own.Wait()
	c.lost(l, err)
	return err
}

// lost removes a leg that has ended, and sends the frames that were under way on it by another one.
func (c *Conn) lost(l *leg, cause error) {
	revoked := l.revoked(cause)
	broken := errors.Is(cause, codec.ErrCorrupt) || errors.Is(cause, errOrder)
	l.shut()
	c.mu.Lock()
	c.legs = slices.DeleteFunc(c.legs, func(x *leg) bool { return x == l })
	if c.main == l {
		c.main = nil
		if len(c.legs) > 0 {
			c.main = c.legs[0]
		}
	}
	if len(c.legs) == 0 && c.legless == 0 {
		c.legless = boottime.Awake()
	}
	if c.cause == nil {
		c.note("leg lost", fmt.Sprintf("%s: %v", l, cause))
	}
	c.again(l)
	c.room.Broadcast()
	c.mu.Unlock()
	switch {
	case revoked:
		c.end(ErrRevoked, "")
	case broken: // later frames cannot be decoded: a new link has to begin
		c.end(cause, "broken")
	}
	select {
	case c.kick <- struct{}{}:
	default:
	}
}
