package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// The kinds of transport.
const (
	TCP  = "tcp"
	QUIC = "quic"
)

// Transport is an authenticated connection that can carry a link.
type Transport interface {
	net.Conn
	Kind() string       // TCP or QUIC
	Congestion() string // the controller in force, such as bbr
	// Counters returns what the transport knows of its path: the smoothed round trip, and how many packets were sent
	// from here and how many of them were lost. Zero means unknown.
	Counters() (rtt time.Duration, sent, lost uint64)
}

// datagrams is a Transport that also carries messages. They may be lost, and overtake what is being sent again.
type datagrams interface {
	SendDatagram(b []byte) error
	ReceiveDatagram(ctx context.Context) ([]byte, error)
}

const (
	readBuffer  = 64 << 10
	maxDatagram = 1180 // bytes; fits the packets of QUIC with their headers
	keptTrips   = 5    // round trips, of which the shortest is used
	maxPending  = 32   // control frames that wait for a writer
	maxCopies   = 64   // second copies of frames that wait to be sent
)

// leg is one transport of a link.
type leg struct {
	Transport
	c       *Conn
	packet  datagrams   // nil: none
	copies  chan copied // in the order in which they were made
	bucket  bucket      // of copies; guarded by Conn.mu
	under   int         // bytes of numbered frames under way; the same
	carried uint64      // and of all
	bbr     atomic.Bool // BBR is the congestion controller
	closed  atomic.Bool // by this side
	since   time.Duration

	lastRead   atomic.Int64
	delivering atomic.Bool // its reader is busy handing bytes on, so the silence is on this side
	suited     *bool       // the controller is set for a far path (true) or a near one; used by attach, then by live

	mu        sync.Mutex
	free      sync.Cond // not busy any more
	busy      bool      // a goroutine writes
	pending   [][]byte  // control frames that the writing goroutine sends next
	trips     []time.Duration
	peerTrip  time.Duration
	counted   [2]uint64 // sent and lost at the last count, here
	peerSaid  [2]uint64 // and there
	peerCount [2]uint64
}

func newLeg(c *Conn, t Transport) *leg {
	l := &leg{Transport: t, c: c, copies: make(chan copied, maxCopies), since: boottime.Awake()}
	l.free.L = &l.mu
	if t.Kind() == QUIC {
		l.packet, _ = t.(datagrams)
	}
	l.lastRead.Store(int64(l.since))
	if rtt, sent, lost := t.Counters(); sent > 0 {
		l.counted = [2]uint64{sent, lost}
		if rtt > 0 {
			l.trips = []time.Duration{rtt}
		}
	}
	l.bbr.Store(t.Congestion() == "bbr")
	return l
}

// send writes one frame. After an error the leg is unusable.
func (l *leg) send(f *frame) error {
	l.mu.Lock()
	for l.busy {
		l.free.Wait()
	}
	l.busy = true
	l.mu.Unlock()
	_, err := l.Write(f.buf)
	l.done()
	return err
}

// control sends a frame that is not numbered and never waits: if another goroutine writes, that one sends it.
func (l *leg) control(b []byte) {
	l.mu.Lock()
	if l.busy {
		if len(l.pending) < maxPending {
			l.pending = append(l.pending, b)
		}
		l.mu.Unlock()
		return
	}
	l.busy = true
	l.mu.Unlock()
	_, _ = l.Write(b) // the reader notices a dead leg
	l.done()
}

// done writes the pending control frames and lets the next goroutine write.
func (l *leg) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) > 0 {
		b := slices.Concat(l.pending...)
		l.pending = nil
		l.mu.Unlock()
		_, _ = l.Write(b)
		l.mu.Lock()
	}
	l.busy = false
	l.free.Signal()
}

// copy queues a second copy of a frame, if there is room.
func (l *leg) copy(f *frame) bool {
	f.hold()
	if l.enqueue(copied{frame: f}) {
		return true
	}
	f.release()
	return false
}

// copied is a copy for a leg beside the frames it carries: a frame, or a shard, for legs with datagrams only.
type copied struct {
	frame *frame
	loose []byte
}

func (l *leg) enqueue(x copied) bool {
	select {
	case l.copies <- x:
		return true
	default:
		return false
	}
}

// sendCopies sends the queued copies until the link or the leg has ended.
func (l *leg) sendCopies(gone <-chan struct{}) {
	for {
		select {
		case x := <-l.copies:
			if x.frame == nil {
				_ = l.packet.SendDatagram(x.loose)
				continue
			}
			if l.packet != nil && len(x.frame.buf) <= maxDatagram {
				_ = l.packet.SendDatagram(x.frame.buf) // it may be lost
			} else if err := l.send(x.frame); err != nil {
				l.broken(err)
			}
			x.frame.release()
		case <-gone:
			return
		case <-l.c.over:
			return
		}
	}
}

// read handles frames until the leg ends, and returns why it did.
func (l *leg) read() error {
	r := bufio.NewReaderSize(l.Transport, readBuffer)
	var body []byte
	for {
		b, err := r.Peek(headerLen)
		if err != nil {
			return err
		}
		h, err := parseHeader(b)
		if err != nil {
			return err
		}
		_, _ = r.Discard(headerLen)
		if cap(body) < h.length {
			body = make([]byte, max(h.length, 4<<10))
		}
		if _, err := io.ReadFull(r, body[:h.length]); err != nil {
			return err
		}
		if err := l.handle(h, body[:h.length]); err != nil {
			return err
		}
	}
}

// readDatagrams handles the frames that come as datagrams. A malformed one is dropped, since nothing depends on it.
func (l *leg) readDatagrams(ctx context.Context) {
	for {
		b, err := l.packet.ReceiveDatagram(ctx)
		if err != nil {
			return
		}
		if len(b) < headerLen {
			continue
		}
		h, err := parseHeader(b)
		if err != nil || h.length != len(b)-headerLen || h.kind == typeReset || h.kind == typeMain {
			continue
		}
		if l.handle(h, b[headerLen:]) != nil {
			return
		}
	}
}

func (l *leg) handle(h header, body []byte) error {
	now := boottime.Awake()
	l.lastRead.Store(int64(now))
	l.c.acknowledged(h.ack)
	switch h.kind {
	case typeData, typeEnd:
		l.delivering.Store(true)
		err := l.c.receive(h, body)
		l.delivering.Store(false)
		l.lastRead.Store(int64(boottime.Awake()))
		return err
	case typePing:
		trip, sent, lost := parsePing(body)
		l.mu.Lock()
		l.peerTrip, l.peerSaid = trip, [2]uint64{sent, lost}
		l.mu.Unlock()
		l.reply(header{kind: typePong, number: h.number, ack: l.c.next.Load()})
	case typePong:
		l.noteTrip(now - time.Duration(h.number))
	case typeShard:
		return l.c.gather(l, h, body)
	case typeMain:
		l.c.follow(l, len(body) > 0 && body[0]&flagHedge != 0)
	case typeReset:
		l.c.peerReset(h.number, string(body))
	}
	return nil
}

// reply sends a small control frame, as a datagram if the leg has them: their loss is a useful measurement.
func (l *leg) reply(h header, body ...byte) {
	h.length = len(body)
	b := append(h.append(make([]byte, 0, headerLen+len(body))), body...)
	if l.packet != nil && l.packet.SendDatagram(b) == nil {
		return
	}
	l.control(b)
}

func (l *leg) ping() {
	trip, sent, lost := l.Counters()
	l.reply(header{kind: typePing, number: uint64(boottime.Awake()), ack: l.c.next.Load()}, pingBody(trip, sent, lost)...)
}

func (l *leg) noteTrip(d time.Duration) {
	if d <= 0 || d > time.Minute {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.trips) >= keptTrips {
		l.trips = slices.Delete(l.trips, 0, len(l.trips)-keptTrips+1)
	}
	l.trips = append(l.trips, d)
}

// trip returns the shortest of the last round trips, 0 if none was measured. Longer ones waited in a queue.
func (l *leg) trip() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.trips) == 0 {
		return 0
	}
	return slices.Min(l.trips)
}

// count returns the packets that were sent and lost in both directions since the last count.
func (l *leg) count() (sent, lost uint64) {
	_, s, x := l.Counters()
	l.mu.Lock()
	defer l.mu.Unlock()
	sent, lost = less(s, l.counted[0]), less(x, l.counted[1])
	l.counted = [2]uint64{s, x}
	if l.peerCount != ([2]uint64{}) {
		sent += less(l.peerSaid[0], l.peerCount[0])
		lost += less(l.peerSaid[1], l.peerCount[1])
	}
	l.peerCount = l.peerSaid
	return sent, lost
}

// less returns how much a counter grew, at least 0: it may go back when a packet that counted as lost arrives.
func less(now, before uint64) uint64 {
	if now < before {
		return 0
	}
	return now - before
}

// silent returns how long nothing was received.
func (l *leg) silent(now time.Duration) time.Duration {
	if l.delivering.Load() {
		return 0
	}
	return now - time.Duration(l.lastRead.Load())
}

// shut closes the transport from this side.
func (l *leg) shut() {
	l.closed.Store(true)
	_ = l.Close()
}

// cut closes the transport without a farewell if it can.
func (l *leg) cut() {
	l.closed.Store(true)
	if t, ok := l.Transport.(interface{ Abort() }); ok {
		t.Abort()
		return
	}
	_ = l.Close()
}

// rate returns the transport's estimate in bytes per second, 0 if it has none.
func (l *leg) rate() int64 {
	if r, ok := l.Transport.(interface{ Rate() int64 }); ok {
		return r.Rate()
	}
	return 0
}

// suit lets the transport choose its congestion controller for the path, if it can.
func (l *leg) suit(far bool) {
	t, ok := l.Transport.(interface {
		Steer(far bool) (inForce string, refused error)
	})
	if !ok || l.suited != nil && *l.suited == far {
		return
	}
	l.suited = &far
	defer func() { l.bbr.Store(l.Congestion() == "bbr") }()
	if name, err := t.Steer(far); err != nil {
		l.c.log.Info("BBR is not available: what is much is striped over several connections", "in_force", name, "err", err)
	}
}

// freshen resets BBR's estimate on an idle connection, if the transport can; l may be nil.
func (l *leg) freshen() {
	if l == nil || !l.bbr.Load() {
		return
	}
	if t, ok := l.Transport.(interface{ Freshen() }); ok {
		t.Freshen()
	}
}

// revoked reports whether this node, but not this link, closed the transport.
func (l *leg) revoked(err error) bool { return errors.Is(err, net.ErrClosed) && !l.closed.Load() }

// broken closes a leg that cannot be written to, or ends the link if the leg was revoked.
func (l *leg) broken(err error) {
	if l.revoked(err) {
		l.c.end(ErrRevoked, "")
		return
	}
	l.shut()
}

// via returns the member that relays the leg, "" if it is direct.
func (l *leg) via() string {
	if r, ok := l.Transport.(interface{ Via() string }); ok {
		return r.Via()
	}
	return ""
}

func (l *leg) String() string {
	if via := l.via(); via != "" {
		return fmt.Sprintf("%s (%s) by way of %s", l.Kind(), l.Congestion(), via)
	}
	return fmt.Sprintf("%s (%s)", l.Kind(), l.Congestion())
}
