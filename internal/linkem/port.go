package linkem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// port is one node's end of all its links: its TUN device, and the thread that reads what the node sends and writes it to the
// devices of the others when its time has come. Everything about a packet happens on the thread of the port that sent it.
type port struct {
	node  string
	octet byte // last of its address
	tun   int
	wake  int // eventfd: look at quit and asked
	clock func() nanos
	log   *slog.Logger

	paths   [256]atomic.Pointer[path] // by last octet of the receiver's address
	asked   atomic.Uint64             // how often paths were given new shapes
	adopted atomic.Uint64             // up to which asked these are in force
	quit    atomic.Bool

	// Of the thread alone:
	subnet [3]byte
	agenda agenda
	pool   pool
	next   *packet // to be read into
	order  uint64
	reply  []byte
	waking nanos // what it takes, averaged
	woken  bool  // by a packet, not read yet
	stamp  nanos // of the last packet
}

// batch is how many packets are read before those that are due are looked after.
const batch = 32

// A thread that sleeps takes a while to wake up. How long is measured at every timer, and taken off both ends: timers are set
// that much earlier, and a packet that woke the thread is stamped as that much older. Round trips are right on average then.
const (
	firstWaking = nanos(20 * time.Microsecond)
	mostWaking  = nanos(60 * time.Microsecond) // more is a busy machine, which is not the rule
)

// longestSleep bounds how long the collector of garbage has to wait for a thread that misses its signal.
const longestSleep = nanos(100 * time.Millisecond)

// late is when a delivery counts as late.
const late = nanos(time.Millisecond)

// run moves packets until quit. It keeps its thread, at real-time priority where that is allowed: a network that waits for a
// processor is slower than its links say.
func (p *port) run() {
	runtime.LockOSThread() // and never unlocked: the thread ends with its priority
	if err := urgent(); err != nil {
		p.log.Warn("links are late when processors are busy: no real-time priority", "node", p.node, "err", err)
	}
	p.next, p.waking = p.pool.get(), firstWaking
	fds := &[2]unix.PollFd{{Fd: int32(p.tun), Events: unix.POLLIN}, {Fd: int32(p.wake), Events: unix.POLLIN}}
	for !p.quit.Load() {
		if asked := p.asked.Load(); asked != p.adopted.Load() {
			p.reshape()
			p.adopted.Store(asked)
		}
		n := p.receive()
		p.deliver()
		if n == batch {
			continue
		}
		if err := p.sleep(fds); err != nil {
			p.log.Error("a node has lost its network", "node", p.node, "err", err)
			return
		}
	}
}

// sleep returns when there is something to read, something due, or something new to know.
func (p *port) sleep(fds *[2]unix.PollFd) error {
	var target nanos
	left, timed := longestSleep, false
	if len(p.agenda) > 0 {
		target = p.agenda[0].due - p.waking
		if due := target - p.clock(); due <= 0 {
			return nil
		} else if due < left {
			left, timed = due, true
		}
	}
	timeout := unix.NsecToTimespec(int64(left))
	n, errno := rawPoll(fds, &timeout)
	if n == 0 && errno == 0 {
		if timed {
			p.waking += (min(p.clock()-target, mostWaking) - p.waking) / 16
		}
		return nil
	}
	if errno != 0 && errno != unix.EINTR {
		return fmt.Errorf("ppoll: %w", errno)
	}
	if fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0 {
		return errors.New("the TUN device is gone")
	}
	p.woken = n > 0 && fds[0].Revents&unix.POLLIN != 0
	if fds[1].Revents&unix.POLLIN != 0 {
		var b [8]byte
		_, _ = unix.Read(p.wake, b[:]) // only to reset it
	}
	return nil
}

// receive reads at most one batch and returns how many packets it was.
func (p *port) receive() int {
	for n := range batch {
		size, errno := rawRead(p.tun, p.next.slot)
		if errno != 0 || size == 0 {
			return n // EAGAIN: no more; a lasting error shows in sleep
		}
		p.forward(size)
	}
	return batch
}

// forward decides on the packet in p.next.
func (p *port) forward(size int) {
	b := p.next.slot[:size]
	if size < ipHeader || b[0]>>4 != 4 || [3]byte(b[16:19]) != p.subnet {
		return // IPv6 and multicast have no links here
	}
	path := p.paths[b[19]].Load()
	if path == nil {
		return
	}
	now := p.arrival()
	if path.used.Closed && begins(b) || !path.seen.knows(b) {
		path.count.blocked.Add(1)
		return
	}
	f := path.admit(now, size)
	if f.verdict == rejected {
		if p.reply = refusal(p.reply, b); p.reply != nil {
			_ = rawWrite(p.tun, p.reply) // a refusal that gets lost is a cut
		}
	}
	if f.verdict != deliver {
		return
	}
	if f.flip >= 0 {
		b[f.flip/8] ^= 1 << (f.flip % 8)
	}
	if f.due <= now && path.underWay == 0 { // nothing to wait for, nobody to overtake
		path.write(b)
		if f.twice {
			path.write(b)
		}
		return
	}
	q := p.next
	p.next = p.pool.get()
	p.later(q, path, f, size)
	if f.twice {
		double := p.pool.get()
		copy(double.slot, b)
		p.later(double, path, f, size)
	}
}

// arrival returns when the packet just read was sent.
func (p *port) arrival() nanos {
	now := p.clock()
	if p.woken {
		now -= p.waking
		p.woken = false
	}
	p.stamp = max(p.stamp, now)
	return p.stamp
}

// later puts q on the agenda.
func (p *port) later(q *packet, path *path, f fate, size int) {
	p.order++
	q.due, q.left, q.ordered, q.order, q.path, q.size = f.due, f.left, f.ordered, p.order, path, size
	path.underWay++
	path.count.underWay.Store(int64(path.underWay))
	p.agenda.push(q)
}

// deliver writes what is due.
func (p *port) deliver() {
	for len(p.agenda) > 0 {
		now := p.clock()
		if p.agenda[0].due-p.waking > now {
			return
		}
		q := p.agenda.pop()
		if now-q.due > late {
			q.path.count.late.Add(1)
		}
		q.path.write(q.slot[:q.size])
		p.drop(q)
	}
}

// drop ends q, which is off the agenda.
func (p *port) drop(q *packet) {
	q.path.underWay--
	q.path.count.underWay.Store(int64(q.path.underWay))
	p.pool.put(q)
}

// write hands a packet to the receiver's device, which takes it at once.
func (p *path) write(b []byte) {
	if rawWrite(p.to.tun, b) != 0 {
		p.count.failed.Add(1)
		return
	}
	p.count.packets.Add(1)
	p.count.bytes.Add(uint64(len(b)))
}

// reshape puts new shapes into force.
func (p *port) reshape() {
	now := p.clock()
	for i := range p.paths {
		path := p.paths[i].Load()
		if path == nil || path.want.Load() == path.used {
			continue
		}
		var under []*packet
		for _, q := range p.agenda {
			if q.path == path {
				under = append(under, q)
			}
		}
		slices.SortFunc(under, func(a, b *packet) int { return int(int64(a.order) - int64(b.order)) })
		if !path.reshape(now, under) {
			p.agenda = slices.DeleteFunc(p.agenda, func(q *packet) bool { return q.path == path })
			for _, q := range under {
				p.pool.put(q)
			}
		}
		p.agenda.heal()
	}
}

// nudge makes the thread look at quit and asked.
func (p *port) nudge() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(p.wake, one[:]) // fails only when it is set already
}
