package endpoint

import (
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// This file makes copies of the data yield to WAL (decision 64). A copy would fill every queue between two nodes, and a
// commit would wait behind it. While this node has a WAL link over a long path, copies over long paths pass a token
// bucket, one for each destination machine. The bucket's rate follows the queue, which is the round trip beyond the
// shortest recent one. Once a round trip, when the queue grows, the rate drops by as much as empties it within a round
// trip, no matter which sender filled it (after LEDBAT, RFC 6817). When a WAL stream to the same machine has bytes that
// wait for their first transmission, copies slow down at once.

const (
	paceTick  = 10 * time.Millisecond  // between looks at the sockets
	paceIdle  = 100 * time.Millisecond // the same while no WAL needs the path
	paceFar   = 2 * time.Millisecond   // round trip from which on a path is long
	paceChunk = 16 << 10               // bytes that a copy sends at a time, so at most these are ahead of a commit
	paceQueue = 64 << 10               // bytes of a copy that wait in the socket for their first transmission
	paceBase  = 20 * time.Second       // for which the shortest round trip is kept, at least
	paceSaved = 5 * time.Millisecond   // of its rate that a bucket saves up, for senders that wake late

	// paceLeast is the lowest rate of copies, in bytes per second: a chunk on each stream well within the minute that a
	// seeding waits for an answer.
	paceLeast = 160 << 10
)

// socketState is what the kernel reports about a connection.
type socketState struct {
	trip, best time.Duration // round trip: smoothed, shortest
	acked      uint64        // bytes
	unsent     uint32        // bytes that were never sent
}

// socketState reads the socket; ok is false if there is none.
func (c *Conn) socketState() (f socketState, ok bool) {
	c.socket(func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if ok = err == nil; ok {
			f = socketState{time.Duration(info.Rtt) * time.Microsecond, time.Duration(info.Min_rtt) * time.Microsecond, info.Bytes_acked, info.Notsent_bytes}
		}
	})
	return f, ok
}

// Write sends p; on a copy's stream at the rate that the bucket of its path allows.
func (c *Conn) Write(p []byte) (n int, err error) {
	if c.class != ClassSeed {
		return c.Conn.Write(p)
	}
	for n < len(p) && err == nil {
		piece := p[n:min(n+paceChunk, len(p))]
		if b := c.bucket.Load(); b != nil && !b.pass(len(piece), c.over) {
			return n, net.ErrClosed
		}
		var m int
		m, err = c.Conn.Write(piece)
		n += m
	}
	return n, err
}

// bucket limits the copies to one machine.
type bucket struct {
	mu   sync.Mutex
	rate float64 // bytes per second; 0: unbounded
	owed float64 // bytes taken beyond the rate
	at   time.Duration
}

// pass waits until it may take n bytes, and returns false if over is closed before that.
func (b *bucket) pass(n int, over <-chan struct{}) bool {
	for {
		wait := b.take(boottime.Now(), n)
		if wait == 0 {
			return true
		}
		t := time.NewTimer(min(wait, paceTick)) // the rate may change meanwhile
		select {
		case <-t.C:
		case <-over:
			t.Stop()
			return false
		}
	}
}

// take takes n bytes and returns 0 if the rate allows it now, else it returns how long to wait.
func (b *bucket) take(now time.Duration, n int) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	paid := (now - b.at).Seconds() * b.rate
	b.at = now
	if b.rate == 0 {
		b.owed = 0
		return 0
	}
	if b.owed = max(b.owed-paid, -b.rate*paceSaved.Seconds()); b.owed > 0 {
		return max(time.Duration(b.owed/b.rate*float64(time.Second)), 100*time.Microsecond)
	}
	b.owed += float64(n)
	return 0
}

func (b *bucket) set(rate float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rate = rate
}

// pacer decides how fast the copies to one machine may go. It has no clock.
type pacer struct {
	rate  float64 // bytes per second; 0: unbounded
	good  float64 // recent rate at which the path was full
	calm  int     // decisions since then
	best  [2]time.Duration
	swap  time.Duration // when the older of best is forgotten
	since time.Duration // the last decision
	next  time.Duration // not before
	got   uint64        // bytes acknowledged since
}

// step returns the new rate. trip is the shortest smoothed round trip among the copies, acked the bytes acknowledged
// since the last step.
func (y *pacer) step(now, trip time.Duration, acked uint64) float64 {
	base := y.shortest(now, trip)
	y.got += acked
	if now < y.next || trip == 0 {
		return y.rate
	}
	delivered := float64(y.got) / max(now-y.since, time.Millisecond).Seconds()
	first := y.since == 0
	y.since, y.got, y.next = now, 0, now+max(trip, paceTick)
	if first || delivered == 0 {
		return y.rate
	}
	queue, room := trip-base, max(base/12, 3*time.Millisecond)
	switch {
	case queue > room:
		if y.rate == 0 || delivered < y.rate {
			y.rate = delivered
		}
		y.good = max(y.good*7/8, delivered)
		y.rate = max(y.rate*(1-min(0.5, float64(queue)/float64(trip))), paceLeast)
		y.next += trip // until the effect shows
		y.calm = 0
	case y.rate == 0 || queue > room/2 || delivered < y.rate/2:
	case y.rate < y.good*3/4:
		y.rate *= 1.25
	default:
		y.calm++ // the longer the path is free, the larger the steps
		y.rate *= 1 + min(0.25, float64(y.calm)/100)
	}
	return y.rate
}

// shortest records a round trip and returns the shortest recent one.
func (y *pacer) shortest(now, trip time.Duration) time.Duration {
	if now >= y.swap {
		y.best[0], y.best[1], y.swap = y.best[1], 0, now+paceBase
	}
	if trip > 0 && (y.best[1] == 0 || trip < y.best[1]) {
		y.best[1] = trip
	}
	if y.best[0] == 0 || y.best[1] > 0 && y.best[1] < y.best[0] {
		return y.best[1]
	}
	return y.best[0]
}

// ranked are the live connections of the two classes that are ordered by precedence.
type ranked struct {
	wal, seeds map[*Conn]struct{} // Endpoint.mu guards them
	watched    bool               // pace runs; Endpoint.mu guards it
}

// rank records a new connection, and starts pace for the first copy; e.mu is held.
func (e *Endpoint) rank(c *Conn) {
	switch c.class {
	case ClassWAL:
		e.ranked.wal[c] = struct{}{}
	case ClassSeed:
		c.over = make(chan struct{})
		e.ranked.seeds[c] = struct{}{}
		if !e.ranked.watched {
			e.ranked.watched = true
			e.relayCache.wg.Go(e.pace)
		}
	default:
	}
}

// pace adjusts the rates of the copies until none is left.
func (e *Endpoint) pace() {
	paths := map[string]*copyPath{}
	t := time.NewTimer(paceTick)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-e.over:
			return
		}
		e.mu.Lock()
		seeds, wal := make([]*Conn, 0, len(e.ranked.seeds)), make([]*Conn, 0, len(e.ranked.wal))
		for c := range e.ranked.seeds {
			seeds = append(seeds, c)
		}
		for c := range e.ranked.wal {
			wal = append(wal, c)
		}
		e.ranked.watched = len(seeds) > 0
		e.mu.Unlock()
		if len(seeds) == 0 {
			return
		}
		wait := paceIdle
		if e.paceRound(boottime.Now(), paths, seeds, wal) {
			wait = paceTick
		}
		t.Reset(wait)
	}
}

// copyPath is the copies to one machine.
type copyPath struct {
	bucket
	pacer
	acked   map[*Conn]uint64
	trip    time.Duration // in this look
	moved   uint64
	pressed bool
}

// paceRound sets the rate of each path with copies. It reports whether WAL needs a long path.
func (e *Endpoint) paceRound(now time.Duration, paths map[string]*copyPath, seeds, wal []*Conn) (giving bool) {
	for _, w := range paths {
		w.trip, w.moved, w.pressed = 0, 0, false
		maps.DeleteFunc(w.acked, func(c *Conn, _ uint64) bool { return !slices.Contains(seeds, c) })
	}
	for _, c := range seeds {
		host := admission.Key(c.raw.RemoteAddr())
		w := paths[host]
		if w == nil {
			w = &copyPath{acked: map[*Conn]uint64{}}
			paths[host] = w
		}
		if f, ok := c.socketState(); ok && f.best >= paceFar {
			w.note(now, c, f)
		}
	}
	for _, c := range wal {
		trip, _, _ := c.Counters()
		giving = giving || trip >= paceFar
		if w := paths[admission.Key(c.raw.RemoteAddr())]; w != nil {
			f, ok := c.socketState()
			w.pressed = w.pressed || ok && f.unsent > 0
		}
	}
	for _, w := range paths {
		w.judge(now, giving)
	}
	return giving
}

// note adds one copy's connection to the measurements of the path.
func (w *copyPath) note(now time.Duration, c *Conn, f socketState) {
	before, known := w.acked[c]
	if w.acked[c] = f.acked; !known {
		_, _ = c.Steer(true)
		c.socket(func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, paceQueue) })
		c.bucket.Store(&w.bucket)
		w.shortest(now, f.best)
		return
	}
	if f.acked > before {
		w.moved += f.acked - before
		if w.trip == 0 || f.trip < w.trip {
			w.trip = f.trip
		}
	}
}

// judge sets the rate of the path.
func (w *copyPath) judge(now time.Duration, giving bool) {
	switch {
	case !giving:
		w.pacer = pacer{best: w.best, swap: w.swap}
		w.set(0)
	case w.pressed:
		w.since, w.got = 0, 0
		w.set(paceLeast)
	default:
		w.set(w.step(now, w.trip, w.moved))
	}
}
