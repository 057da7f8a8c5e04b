package link

import (
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

const (
	hedgeQueue = 128 << 10 // bytes under way up to which hedging helps: beyond, the queue is what takes time
	maxHedged  = 1500      // bytes of a frame that travels twice
)

// bucket limits the copies that a leg takes: a copy that its congestion controller holds back comes too late to be of
// use.
type bucket struct {
	rate  float64 // bytes per second; 0: unknown, and unbounded
	depth float64 // bytes
	level float64
	at    time.Duration
	asked time.Duration // when the controller was asked
}

// askEvery is how long the controller's rate is used before it is read again: a loss halves its window.
const askEvery = 10 * time.Millisecond

// set sets the rate that the controller allows, and the depth: the bytes that it allows within one round trip.
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

// hedge sends a frame, or a copy of it, so that a loss does not delay it. It reports whether the main leg need not
// carry the frame for now; mu is held. A short frame goes by the main leg too: its bytes travel twice. A longer one
// goes as shards with parities, and by the main leg only if it is not acknowledged in time.
func (c *Conn) hedge(f *frame, main *leg) (enough bool) {
	n := len(f.buf)
	switch {
	case !c.hedging || n > scatterTo || c.under > hedgeQueue:
		return false
	case n <= maxDatagram:
		if to := c.loose(n, 1, f.sent); to != nil && to[0].copy(f) {
			c.copied += n
			return false
		}
	case n > maxHedged && c.shards && c.scatter(f):
		return true
	}
	for _, l := range c.legs {
		if l != main && l.packet == nil && l.copy(f) {
			c.copied += n
			break
		}
	}
	return false
}

// scatter sends a frame as shards if there is room for its pieces and one parity; mu is held.
func (c *Conn) scatter(f *frame) bool {
	pieces, each := cut(len(f.buf))
	to := c.loose(shardHead+each, pieces+spares(pieces, c.loss.share()), f.sent)
	if len(to) <= pieces {
		c.giveBack(to, shardHead+each)
		return false
	}
	list, err := shards(f, len(to)-pieces, c.next.Load())
	if err != nil {
		c.log.Error("a frame cannot be cut", "bytes", len(f.buf), "err", err) // never seen
		return false
	}
	for i, b := range list {
		to[i].enqueue(copied{loose: b}) // a shard without room counts as lost
		c.copied += len(b)
	}
	c.copied -= len(f.buf)
	if !c.owing {
		c.owing = true
		c.owed.Reset(c.patience())
	}
	return true
}

// loose returns one leg for each of up to count datagrams of n bytes, as far as the congestion controllers allow. It
// takes the room on the leg that has most of it each time; mu is held.
func (c *Conn) loose(n, count int, now time.Duration) (to []*leg) {
	for _, l := range c.legs {
		if l.packet != nil && now-l.bucket.asked >= askEvery {
			l.bucket.set(now, l.rate(), l.trip())
		}
	}
	for range count {
		var best *leg
		most := float64(n)
		for _, l := range c.legs {
			if l.packet == nil {
				continue
			}
			if room := l.bucket.room(now); room >= most {
				best, most = l, room
			}
		}
		if best == nil {
			break
		}
		best.bucket.level -= float64(n)
		to = append(to, best)
	}
	return to
}

// giveBack releases the room that loose took; mu is held.
func (c *Conn) giveBack(to []*leg, n int) {
	for _, l := range to {
		l.bucket.level += float64(n)
	}
}

// patience returns how long to wait for the acknowledgement of a frame that went as datagrams only: two round trips and
// the time of a flush; mu is held.
func (c *Conn) patience() time.Duration { return 2*c.trip() + 20*time.Millisecond }

// makeUp sends by the main leg the frames that went as datagrams only and were not acknowledged in time.
func (c *Conn) makeUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := boottime.Awake() - c.patience()*3/4
	c.owing = false
	c.copied += c.send(func(f *frame) bool { return f.leg == nil && f.sent <= before })
	if slices.ContainsFunc(c.unacked, func(f *frame) bool { return f.leg == nil }) {
		c.owing = true
		c.owed.Reset(c.patience())
	}
}

// Without BBR, one TCP connection is slow on a lossy path: each loss halves its window. When there is much to send, the
// frames are striped over several connections, which rarely lose at the same time. The receiver puts the frames in
// order as usual.

const (
	stripes     = 12        // TCP connections of such a link
	bulkQueue   = 128 << 10 // bytes under way from which on frames take the leg with the most throughput
	stripeQueue = 256 << 10 // bytes under way on each stripe at most: bytes that wait there cannot be overtaken
)

// carrier returns the leg for the next frame, and whether it is a stripe; mu is held. When much is under way, that is a
// TCP leg with BBR if there is one, else the stripe with the least under way.
func (c *Conn) carrier() (best *leg, striped bool) {
	if c.main == nil || c.cost < bulkQueue || c.main.standsLoss() {
		return c.main, false
	}
	n := 0
	for _, l := range c.legs {
		switch {
		case l.Kind() != TCP:
			continue
		case l.standsLoss():
			return l, false
		case best == nil || l.under < best.under:
			best = l
		}
		n++
	}
	if n < stripes/2 {
		return c.main, false
	}
	return best, true
}

// full reports whether every stripe has as much under way as it may; mu is held.
func (c *Conn) full() bool {
	l, striped := c.carrier()
	return striped && l.under >= stripeQueue
}

// standsLoss reports whether the leg's controller does not take each loss for congestion.
func (l *leg) standsLoss() bool { return l.Kind() == TCP && l.bbr.Load() }

// put records that the frame is under way on that leg, nil for none; Conn.mu is held.
func (f *frame) put(l *leg) {
	if f.leg != nil {
		f.leg.under -= len(f.buf)
	}
	if f.leg = l; l != nil {
		l.under += len(f.buf)
		l.carried += uint64(len(f.buf))
	}
}
