package link

import "time"

const (
	hedgeBurst = 16 << 10 // bytes once encoded: a longer write recovers by itself from what it lost before its end
	hedgeQueue = 64 << 10 // bytes under way up to which hedging helps: beyond, the queue is what takes time
	maxHedged  = 1500     // bytes of a frame that may travel twice
)

// bucket bounds the copies that a leg takes: what its congestion controller holds back comes too late to be of use.
type bucket struct {
	rate  float64 // bytes per second; 0: unbounded
	level float64
	at    time.Duration
}

// take reports whether n bytes may go now.
func (b *bucket) take(now time.Duration, n int) bool {
	if b.rate <= 0 {
		return true
	}
	const depth = 0.05 // seconds
	b.level = min(b.level+b.rate*(now-b.at).Seconds(), b.rate*depth)
	b.at = now
	if b.level < float64(n) {
		return false
	}
	b.level -= float64(n)
	return true
}

// second returns the leg for the copy of a frame of n bytes, nil for none; mu is held. Datagrams are best, since none waits for another.
func (c *Conn) second(main *leg, n int, now time.Duration) *leg {
	for _, l := range c.legs {
		if l.packet != nil && n <= maxDatagram && l.bucket.take(now, n) {
			return l
		}
	}
	for _, l := range c.legs {
		if l != main && l.packet == nil {
			return l
		}
	}
	return nil
}

// protect sends the parities of a burst, group by group, by the leg with datagrams.
func (c *Conn) protect(b *burst) {
	defer b.release()
	c.mu.Lock()
	var to *leg
	for _, l := range c.legs {
		if l.packet != nil {
			to = l
		}
	}
	c.mu.Unlock()
	if to == nil || len(b.frames) < 2 {
		return
	}
	for rest := b.frames; len(rest) > 0; {
		n := 1
		for n < min(parityMost, len(rest)) && rest[n].number == rest[0].number+uint64(n) {
			n++
		}
		p := parity(rest[:n], c.next.Load())
		c.mu.Lock()
		ok := to.bucket.take(rest[n-1].sent, len(p))
		c.copied += uint64(len(p))
		c.mu.Unlock()
		if !ok {
			return
		}
		select {
		case to.extra <- p:
		default:
		}
		rest = rest[n:]
	}
}
