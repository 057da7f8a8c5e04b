package link

import (
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/boottime"
)

const (
	hedgeBurst = 32 << 10  // bytes once encoded: a longer write recovers by itself from what it lost before its end
	hedgeQueue = 128 << 10 // bytes under way up to which hedging helps: beyond, the queue is what takes time
	maxHedged  = 1500      // bytes of a frame that may travel twice
)

// bucket bounds the copies that a leg takes: what its congestion controller holds back comes too late to be of use.
type bucket struct {
	rate  float64 // bytes per second; 0: unknown, and unbounded
	depth float64 // bytes
	level float64
	at    time.Duration
	asked time.Duration // when the controller was asked
}

// askEvery is how long a controller's answer holds: it halves its window at a loss.
const askEvery = 10 * time.Millisecond

// set takes what the controller allows: so much within a round trip.
func (b *bucket) set(now time.Duration, rate int64, trip time.Duration) {
	b.rate, b.depth, b.asked = float64(rate), float64(rate)*trip.Seconds(), now
}

// room returns how many bytes may go now.
func (b *bucket) room(now time.Duration) float64 {
	if b.rate <= 0 {
		return maxPayload
	}
	b.level = min(b.level+b.rate*(now-b.at).Seconds(), b.depth)
	b.at = now
	return b.level
}

// twin sends the copy of a short frame and reports whether it went as a datagram, which is best, since none waits for another; mu is held.
func (c *Conn) twin(f *frame, main *leg) bool {
	n := len(f.buf)
	if n > maxHedged {
		return false
	}
	if n <= maxDatagram {
		if l := c.loose(n, f.sent); l != nil && l.copy(f) {
			c.copied += n
			return true
		}
	}
	for _, l := range c.legs {
		if l != main && l.packet == nil && l.copy(f) {
			c.copied += n
			break
		}
	}
	return false
}

// loose returns the leg whose datagrams have most room, nil if none has room for n bytes, which it takes; mu is held.
func (c *Conn) loose(n int, now time.Duration) (best *leg) {
	most := float64(n)
	for _, l := range c.legs {
		if l.packet == nil {
			continue
		}
		if now-l.bucket.asked >= askEvery {
			l.bucket.set(now, l.rate(), l.trip())
		}
		if room := l.bucket.room(now); room >= most {
			best, most = l, room
		}
	}
	if best != nil {
		best.bucket.level -= float64(n)
	}
	return best
}

// conclude ends a burst that went as datagrams: parities follow, group by group, and then the same frames by the main leg, but for as
// many at the end of a group as have the bytes of its parity. Those follow if nobody acknowledges them, so that nothing costs more than
// twice its bytes.
func (c *Conn) conclude(b *burst) {
	defer b.release()
	for rest := b.frames; len(rest) > 0; {
		n := 1
		for n < min(parityMost, len(rest)) && rest[n].number == rest[0].number+uint64(n) {
			n++
		}
		group := rest[:n]
		rest = rest[n:]
		for _, f := range group[:c.spare(group)] {
			c.mu.Lock()
			main, striped := c.carrier()
			old := f.number < c.acked
			if !old {
				f.put(main)
			}
			c.mu.Unlock()
			if !old {
				c.carry(f, main, striped)
			}
		}
	}
}

// spare sends the parity of a group, and returns how many of its frames, from the first, go by the main leg at once.
func (c *Conn) spare(group []*frame) int {
	n := len(group)
	if n < 2 {
		return n
	}
	p := parity(group, c.next.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.loose(len(p), group[n-1].sent)
	if to == nil || !to.enqueue(copied{parity: p}) {
		return n
	}
	c.copied += len(p)
	for spared := 0; spared < len(p) && n > 0; n-- {
		spared += len(group[n-1].buf)
		c.copied -= len(group[n-1].buf)
	}
	if !c.owing {
		c.owing = true
		c.owed.Reset(c.patience())
	}
	return n
}

// patience is how long an acknowledgement of what went as datagrams only is waited for: two round trips, and the time of a flush; mu is
// held.
func (c *Conn) patience() time.Duration { return 2*c.trip() + 20*time.Millisecond }

// makeUp sends by the main leg what went as datagrams only, and was not acknowledged in time.
func (c *Conn) makeUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := boottime.Now() - c.patience()*3/4
	c.owing = false
	c.copied += c.send(func(f *frame) bool { return f.leg == nil && f.sent <= before })
	if slices.ContainsFunc(c.unacked, func(f *frame) bool { return f.leg == nil }) {
		c.owing = true
		c.owed.Reset(c.patience())
	}
}
