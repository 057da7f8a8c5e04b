package linkem

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// nanos is a point in time, or a span, on the clock of the port; path has no clock of its own.
type nanos int64

// maxUnderWay bounds the packets that one direction holds, whatever its shape.
const maxUnderWay = 1 << 16

// path is one direction of a link: the model of what happens to its packets. Only the thread of the sending port uses
// it; any thread may use want and the counters.
type path struct {
	to   *port
	want atomic.Pointer[Shape] // the shape that was set last
	used *Shape                // the shape in force: want, as soon as the thread has seen it
	rand *rand.Rand
	loss lossModel
	seen flows // by the firewall of Shape.Forgot

	free     nanos // when the last bit of all that was accepted so far has left
	last     nanos // arrival of the latest packet, which no later one overtakes unless reordering is asked for
	underWay int   // packets in the port's agenda

	count counters
}

// newPath returns a path with randomness of its own, so that the fate of the n-th packet from one node to another
// depends on the seed alone.
func newPath(seed uint64, from, to string, s Shape) *path {
	h := fnv.New64a()
	_, _ = h.Write([]byte(from + ">" + to))                  // never fails
	p := &path{rand: rand.New(rand.NewPCG(seed, h.Sum64()))} //nolint:gosec // an emulator's dice are to be repeatable
	p.want.Store(&s)
	p.adopt()
	return p
}

// adopt puts want into force.
func (p *path) adopt() {
	was := p.used
	p.used = p.want.Load()
	switch {
	case p.used.Forgot == 0:
		p.seen = nil
	case was == nil || was.Forgot != p.used.Forgot:
		p.seen = flows{}
	}
	p.loss.set(p.used.Loss, p.used.Burst)
}

// verdict is the fate of a packet that a node sent.
type verdict uint8

const (
	deliver   verdict = iota
	lost              // on the wire: it has used the rate
	queueFull         // it never got there
	blocked           // by a cut
	rejected          // by a cut that answers
)

// fate is the verdict on a packet, and how and when it arrives.
type fate struct {
	verdict
	left    nanos // when its last bit has been sent
	due     nanos // when it arrives
	twice   bool
	flip    int // the bit to be corrupted, or -1
	ordered bool
}

// admit decides the fate of packets that were sent now, size bytes in all: of one, or of as many as Shape.together
// allows. Later calls have later times.
func (p *path) admit(now nanos, packets, size int) fate {
	s := p.used
	switch {
	case s.Reject:
		p.count.rejected.Add(uint64(packets))
		return fate{verdict: rejected}
	case s.Cut:
		p.count.blocked.Add(uint64(packets))
		return fate{verdict: blocked}
	case p.underWay >= maxUnderWay || p.free > now && p.waiting(now)+int64(size) > s.queue():
		p.count.queueDrops.Add(uint64(packets))
		return fate{verdict: queueFull}
	}
	p.free = max(p.free, now) + s.sending(size)
	p.count.free.Store(int64(p.free))
	if p.loss.lose(p.rand) {
		p.count.lost.Add(1)
		return fate{verdict: lost}
	}
	f := fate{left: p.free, flip: -1, ordered: true}
	f.due = f.left + nanos(s.Delay)
	if s.Jitter > 0 {
		f.due += nanos(p.rand.Int64N(2*int64(s.Jitter)+1)) - nanos(s.Jitter)
	}
	if p.chance(s.Reorder) {
		p.count.reordered.Add(1)
		f.due, f.ordered = max(f.due, p.last)+s.hold(), false
	} else {
		f.due = max(f.due, p.last)
		p.last = f.due
	}
	if p.chance(s.Duplicate) {
		p.count.duplicated.Add(1)
		f.twice = true
	}
	if p.chance(s.Corrupt) {
		p.count.corrupted.Add(1)
		f.flip = p.rand.IntN(size * 8)
	}
	return f
}

func (p *path) chance(share float64) bool { return share > 0 && p.rand.Float64() < share }

// waiting returns the bytes that have been accepted and not been sent.
func (p *path) waiting(now nanos) int64 { return p.used.waiting(p.free - now) }

// waiting returns how many bytes leave in span.
func (s *Shape) waiting(span nanos) int64 {
	if span <= 0 {
		return 0
	}
	return int64(float64(span) * float64(s.RateBits) / 8e9)
}

// sending returns how long a packet of size bytes keeps the line busy.
func (s *Shape) sending(size int) nanos {
	if s.RateBits == 0 {
		return 0
	}
	return nanos(int64(size) * 8e9 / s.RateBits)
}

// gathering is for how long a network card collects what arrives before it interrupts its machine: drivers choose 50 to
// 250 µs when much does.
const gathering = nanos(100 * time.Microsecond)

// together returns how many packets of size bytes that were sent at once also arrive at once: those that a card would
// gather. Where chance decides for each packet, it is one.
func (s *Shape) together(size int) int {
	switch {
	case s.Loss > 0 || s.Jitter > 0 || s.Reorder > 0 || s.Duplicate > 0 || s.Corrupt > 0:
		return 1
	case s.RateBits == 0:
		return maxBurst
	}
	return max(1, int(gathering/max(1, s.sending(size))))
}

// hold is for how long a reordered packet is kept back.
func (s *Shape) hold() nanos { return nanos(max(2*time.Millisecond, s.Delay/4)) }

// reshape puts want into force at now. under are the packets under way on this path, in the order of their sending.
// Those that still wait are sent at the new rate and with the new delay; the others arrive as they would have. It
// returns false when none of them arrives at all.
func (p *path) reshape(now nanos, under []*packet) bool {
	p.adopt()
	s := p.used
	if s.Cut || s.Reject {
		for _, q := range under {
			p.count.blocked.Add(uint64(q.packets))
		}
		p.free, p.last, p.underWay = now, now, 0
		p.count.free.Store(int64(now))
		return false
	}
	free, last := now, now
	for i, q := range under {
		if q.left > now { // not on the wire yet
			left := free + s.sending(q.size)
			if i == 0 || under[i-1].left <= now { // but this one partly is
				left = min(left, q.left)
			}
			free, q.left = left, left
			q.due = max(left+nanos(s.Delay), last)
		}
		if q.ordered {
			last = max(last, q.due)
		}
	}
	p.free, p.last = free, last
	p.count.free.Store(int64(free))
	return true
}

// lossModel decides which packets of one direction are lost. For bursts it is a Gilbert-Elliott chain that loses
// everything in its bad state and nothing in its good one. The lengths of runs of losses so have a geometric
// distribution with the mean that was set.
type lossModel struct {
	enter float64 // probability of the next packet being lost after one that was not
	stay  float64 // and after one that was
	bad   bool
}

// set changes the probabilities, not the state.
func (m *lossModel) set(loss, burst float64) {
	switch {
	case loss >= 1 || loss <= 0 || burst <= 1:
		m.enter, m.stay = loss, loss
	default:
		m.stay = 1 - 1/burst
		m.enter = loss / (1 - loss) / burst // balances: share lost = enter / (enter + 1/burst)
	}
}

// lose reports whether the next packet is lost.
func (m *lossModel) lose(r *rand.Rand) bool {
	p := m.enter
	if m.bad {
		p = m.stay
	}
	m.bad = p > 0 && (p >= 1 || r.Float64() < p)
	return m.bad
}

// maxFlows is how many connections a firewall's table holds. As with a real one, no more can begin when it is full.
const maxFlows = 1 << 16

// flow names a TCP connection in one direction of a link: addresses and ports of both ends.
type flow [12]byte

// flows is what a stateful firewall that has lost its table has learnt since: the connections that began in this
// direction, or were accepted in it. nil knows everything: nothing was lost.
type flows map[flow]struct{}

// knows reports whether the firewall lets a packet pass, and learns from it. Of TCP it drops what belongs to no
// connection whose beginning it saw. Anything else passes: an unknown datagram begins a flow, as does a ping.
func (f flows) knows(packet []byte) bool {
	header := int(packet[0]&0xf) * 4
	switch {
	case f == nil, packet[9] != protoTCP:
		return true
	case binary.BigEndian.Uint16(packet[6:])&0x1fff != 0: // a later fragment, of no use without the first
		return true
	case len(packet) < header+tcpHeader:
		return false
	}
	var id flow
	copy(id[:8], packet[12:20])
	copy(id[8:], packet[header:header+4])
	flags := packet[header+13]
	if flags&tcpSYN != 0 && len(f) < maxFlows {
		f[id] = struct{}{}
	}
	_, known := f[id]
	if flags&tcpRST != 0 {
		delete(f, id)
	}
	return known
}

// counters are written by one thread and read by all.
type counters struct {
	packets, bytes, lost, queueDrops, duplicated, reordered, corrupted, blocked, rejected, failed, late atomic.Uint64

	free     atomic.Int64 // copy of path.free
	underWay atomic.Int64 // copy of path.underWay
}

// Stats are the counters of one direction of a link since it was made.
type Stats struct {
	From       string `json:"from"`
	To         string `json:"to"`
	Shape      Shape  `json:"shape"`
	Packets    uint64 `json:"packets"`     // delivered, duplicates included
	Bytes      uint64 `json:"bytes"`       // of those, IP headers included
	Lost       uint64 `json:"lost"`        // by Loss
	QueueDrops uint64 `json:"queue_drops"` // found the queue full
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Corrupted  uint64 `json:"corrupted"`
	Blocked    uint64 `json:"blocked"`     // by Cut, on arrival or under way, by Closed and by Forgot
	Rejected   uint64 `json:"rejected"`    // by Reject
	Failed     uint64 `json:"failed"`      // the receiving device did not take it
	Late       uint64 `json:"late"`        // delivered more than 1 ms after its time: this machine is too busy for these links
	QueueBytes int64  `json:"queue_bytes"` // waiting for the rate now
	UnderWay   int64  `json:"under_way"`   // packets queued or on the wire now
}

func (p *path) stats(from, to string, now nanos) Stats {
	c, s := &p.count, p.want.Load()
	return Stats{
		From: from, To: to, Shape: *s,
		Packets: c.packets.Load(), Bytes: c.bytes.Load(), Lost: c.lost.Load(), QueueDrops: c.queueDrops.Load(),
		Duplicated: c.duplicated.Load(), Reordered: c.reordered.Load(), Corrupted: c.corrupted.Load(),
		Blocked: c.blocked.Load(), Rejected: c.rejected.Load(), Failed: c.failed.Load(), Late: c.late.Load(),
		QueueBytes: s.waiting(nanos(c.free.Load()) - now), UnderWay: c.underWay.Load(),
	}
}
