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

// port is one node's end of all its links: its TUN device and a thread. The thread reads the packets that the node
// sends, and writes each to the device of its receiver when its time has come. Everything about a packet happens on the
// thread of the port that sent it.
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
	subnet  [3]byte
	agenda  agenda
	singles pool   // packets that go through a link alone
	gathers pool   // those that go through it together
	read    []byte // to be read into
	cut     []byte // part of it that is written at once
	order   uint64
	reply   []byte
	waking  nanos // the time that a wake-up takes, averaged
	woken   bool  // by a packet, not read yet
	stamp   nanos // of the last packet
}

// batch is how many packets are read before those that are due are looked after.
const batch = 32

// A thread that sleeps takes a while to wake up. How long is measured at every timer, and taken off both ends: timers
// are set that much earlier, and a packet that woke the thread is stamped as that much older. Round trips are right on
// average then.
const (
	firstWaking = nanos(20 * time.Microsecond)
	mostWaking  = nanos(60 * time.Microsecond) // more is a busy machine, which is not the rule
)

// longestSleep bounds how long the collector of garbage has to wait for a thread that misses its signal.
const longestSleep = nanos(100 * time.Millisecond)

// late is when a delivery counts as late.
const late = nanos(time.Millisecond)

// gathered is the most that goes through a link as one, with the headers.
const gathered = 16 << 10

// prepare makes the room that the thread needs.
func (p *port) prepare(mtu int) {
	p.singles.size, p.gathers.size = vnetHeader+mtu, vnetHeader+max(mtu, gathered)
	p.read, p.cut = make([]byte, maxBurst), make([]byte, p.gathers.size)
}

// run moves packets until quit. It keeps its thread, at real-time priority where that is allowed: a network that waits
// for a processor is slower than its links are set to be.
func (p *port) run() {
	runtime.LockOSThread() // and never unlocked: the thread ends with its priority
	if err := urgent(); err != nil {
		p.log.Warn("links are late when processors are busy: no real-time priority", "node", p.node, "err", err)
	}
	p.waking = firstWaking
	fds := &[2]unix.PollFd{{Fd: int32(p.tun), Events: unix.POLLIN}, {Fd: int32(p.wake), Events: unix.POLLIN}}
	for !p.quit.Load() {
		if asked := p.asked.Load(); asked != p.adopted.Load() {
			p.reshape()
			p.adopted.Store(asked)
		}
		more := p.receive()
		p.deliver()
		if more {
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

// receive reads about a batch and reports whether there may be more.
func (p *port) receive() bool {
	for n := 0; n < batch; {
		size, errno := rawRead(p.tun, p.read)
		if errno != 0 || size == 0 {
			return false // EAGAIN: no more; a lasting error shows in sleep
		}
		u, ok := newBurst(p.read[:size])
		if ok {
			p.forward(&u)
		}
		n += max(1, u.packets)
	}
	return true
}

// forward decides on the packets that were just read.
func (p *port) forward(u *burst) {
	b := u.packet()
	if [3]byte(b[16:19]) != p.subnet {
		return // multicast has no links here
	}
	path := p.paths[b[19]].Load()
	if path == nil {
		return
	}
	now := p.arrival()
	if path.used.Closed && begins(b) || !path.seen.knows(b) {
		path.count.blocked.Add(uint64(u.packets))
		return
	}
	together := u.packets
	if together > 1 {
		together = max(1, min(path.used.together(u.headers+u.each), (gathered-u.headers)/u.each))
	}
	for first := 0; first < u.packets; first += together {
		p.send(path, part{u, first, min(together, u.packets-first)}, now)
	}
}

// part is count packets of a burst, from first on. They share their fate.
type part struct {
	of           *burst
	first, count int
}

// send decides on the fate of a part.
func (p *port) send(path *path, u part, now nanos) {
	size := u.of.size(u.first, u.count)
	f := path.admit(now, u.count, size)
	if f.verdict == rejected && u.first == 0 {
		if p.reply = refusal(p.reply, u.of.packet()); p.reply != nil {
			_ = rawWrite(p.tun, append(append(p.cut[:0], make([]byte, vnetHeader)...), p.reply...)) // a refusal that gets lost is a cut
		}
	}
	if f.verdict != deliver {
		return
	}
	if f.due <= now && path.underWay == 0 { // no packet to wait for, none to overtake
		b := f.damage(u.of.cut(p.cut, u.first, u.count))
		path.write(b, u.count, size)
		if f.twice {
			path.write(b, u.count, size)
		}
		return
	}
	p.later(path, u, f)
	if f.twice {
		p.later(path, u, f)
	}
}

// damage flips a bit of the packet behind the header in front, if that is its fate. The receiver has a checksum to find
// it by.
func (f *fate) damage(b []byte) []byte {
	if f.flip >= 0 {
		complete(b)
		b[vnetHeader+f.flip/8] ^= 1 << (f.flip % 8)
	}
	return b
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

// later puts a part on the agenda.
func (p *port) later(path *path, u part, f fate) {
	size, home := u.of.size(u.first, u.count), &p.singles
	if u.count > 1 {
		home = &p.gathers
	}
	q := home.get()
	q.b = u.of.cut(q.slot, u.first, u.count)
	if u.count == u.of.packets { // which was not copied
		q.b = append(q.slot[:0], q.b...)
	}
	q.b = f.damage(q.b)
	p.order++
	q.due, q.left, q.ordered, q.order, q.path, q.size, q.packets = f.due, f.left, f.ordered, p.order, path, size, u.count
	path.underWay += u.count
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
		q.path.write(q.b, q.packets, q.size)
		p.drop(q)
	}
}

// drop ends q, which is off the agenda.
func (p *port) drop(q *packet) {
	q.path.underWay -= q.packets
	q.path.count.underWay.Store(int64(q.path.underWay))
	q.home.put(q)
}

// write hands some packets, size bytes on the wire, to the receiver's device, which takes them at once.
func (p *path) write(b []byte, packets, size int) {
	if rawWrite(p.to.tun, b) != 0 {
		p.count.failed.Add(uint64(packets))
		return
	}
	p.count.packets.Add(uint64(packets))
	p.count.bytes.Add(uint64(size))
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
				q.home.put(q)
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
