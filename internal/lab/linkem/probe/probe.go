package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// In calls f on a thread that is in the network to measure from; see linkem.Network.Do.
type In func(f func() error) error

// Pings are the answered ones.
type Pings struct {
	RoundTrips []time.Duration // in the order of sending
	Lost       int
}

// Echoes is a series of ICMP echo requests.
type Echoes struct {
	Count    int
	Interval time.Duration // from one to the next
	Wait     time.Duration // at most, for the last answer
}

// Ping sends the echo requests and returns when all are answered or the wait is over. The kernel stamps the arrivals,
// as it does for ping.
func Ping(in In, to netip.Addr, e Echoes) (p Pings, err error) {
	err = in(func() (err error) {
		p, err = ping(to, e)
		return err
	})
	return p, err
}

func ping(to netip.Addr, e Echoes) (p Pings, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	if err != nil {
		return p, fmt.Errorf("raw socket: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	dst := &unix.SockaddrInet4{Addr: to.As4()}
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1), unix.Connect(fd, dst)); err != nil {
		return p, err
	}
	defer onTime()()
	id := uint16(os.Getpid()) ^ uint16(fd)
	sent, answered := make([]time.Time, 0, e.Count), make([]time.Duration, e.Count)
	next := time.Now()
	for end := next.Add(time.Duration(e.Count)*e.Interval + e.Wait); time.Now().Before(end) && len(p.RoundTrips) < e.Count; {
		if len(sent) < e.Count && !time.Now().Before(next) {
			next = next.Add(e.Interval)
			sent = append(sent, time.Now())
			if _, err := unix.Write(fd, echo(id, uint16(len(sent)-1))); err != nil {
				return p, fmt.Errorf("send echo request to %s: %w", to, err)
			}
		}
		until := end
		if len(sent) < e.Count {
			until = next
		}
		if err := awaitReadable(fd, time.Until(until)); err != nil {
			return p, err
		}
		for {
			seq, at, ok := echoReply(fd, id)
			if !ok {
				break
			}
			if int(seq) < len(sent) && answered[seq] == 0 {
				answered[seq] = at.Sub(sent[seq].Round(0)) // both by the wall clock, the only one the kernel stamps with
				p.RoundTrips = append(p.RoundTrips, answered[seq])
			}
		}
	}
	p.Lost = e.Count - len(p.RoundTrips)
	return p, nil
}

// onTime gives this thread real-time priority, where that is allowed, until the returned function is called. On a busy
// machine the measurement would otherwise include its own wait for a processor.
func onTime() (back func()) {
	runtime.LockOSThread()
	priority := func(policy, priority uint32) error {
		return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority}, 0)
	}
	if err := priority(unix.SCHED_FIFO, 1); err != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		if priority(unix.SCHED_NORMAL, 0) == nil { // else the thread ends with its goroutine
			runtime.UnlockOSThread()
		}
	}
}

func awaitReadable(fd int, d time.Duration) error {
	t := unix.NsecToTimespec(int64(max(0, d)))
	_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &t, nil)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// echo returns an ICMP echo request of 64 bytes.
func echo(id, seq uint16) []byte {
	b := make([]byte, 64)
	b[0] = 8
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	sum := uint32(b[0])<<8 + uint32(id) + uint32(seq)
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}

// echoReply reads the packets that have arrived and returns ok when one answers our request; others are skipped.
func echoReply(fd int, id uint16) (seq uint16, at time.Time, ok bool) {
	var b [256]byte
	var oob [128]byte
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, b[:], oob[:], 0)
		if err != nil {
			return 0, at, false
		}
		at := time.Now()
		if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
			for _, m := range messages {
				if m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
					at = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
				}
			}
		}
		header := int(b[0]&0xf) * 4
		if n >= header+8 && b[header] == 0 && binary.BigEndian.Uint16(b[header+4:]) == id {
			return binary.BigEndian.Uint16(b[header+6:]), at, true
		}
	}
}

// Burst is a stream of numbered UDP datagrams.
type Burst struct {
	Count     int
	Size      int           // bytes of payload, at least 4
	PerSecond int           // 0: as fast as it goes
	Unchecked bool          // without a UDP checksum, so that a corrupted one arrives
	Wait      time.Duration // for the next one, before the rest counts as lost
}

// Heard is the result of a Burst.
type Heard struct {
	Order     []uint32      // numbers as they arrived
	Copies    []uint8       // how often each arrived
	Corrupted int           // arrived changed; not in the others
	Span      time.Duration // from the first to the last arrival
}

// Received returns how many of the datagrams arrived.
func (h Heard) Received() (n int) {
	for _, c := range h.Copies {
		n += min(1, int(c))
	}
	return n
}

// Datagrams sends b from one network to an address in another, and returns when all were sent and none has arrived for
// b.Wait.
func Datagrams(from, to In, addr netip.Addr, b Burst) (h Heard, err error) {
	var r, w *net.UDPConn
	err = to(func() (err error) {
		r, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		return h, err
	}
	defer r.Close()
	err = from(func() (err error) {
		w, err = net.DialUDP("udp4", nil, r.LocalAddr().(*net.UDPAddr)) //nolint:forcetypeassert // of a UDP socket
		return err
	})
	if err != nil {
		return h, err
	}
	defer w.Close()
	if err := errors.Join(force(r, unix.SO_RCVBUFFORCE, 64<<20), set(w, unix.SO_NO_CHECK, b.Unchecked)); err != nil {
		return h, err
	}
	heard := make(chan Heard, 1)
	sent := make(chan struct{})
	go func() { heard <- hear(r, b, sent) }()
	err = send(w, b)
	close(sent)
	return <-heard, err
}

// batch is how many datagrams a system call sends or receives: the link is to be measured, not its ends.
const batch = 64

func send(w *net.UDPConn, b Burst) error {
	messages := make([]ipv4.Message, batch)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, max(4, b.Size))}
	}
	c, most := ipv4.NewPacketConn(w), batch
	if b.PerSecond > 0 {
		most = max(1, min(batch, b.PerSecond/1000))
	}
	began := time.Now()
	for sent := 0; sent < b.Count; {
		if b.PerSecond > 0 {
			time.Sleep(time.Duration(sent)*time.Second/time.Duration(b.PerSecond) - time.Since(began))
		}
		n := min(most, b.Count-sent)
		for i := range n {
			binary.BigEndian.PutUint32(messages[i].Buffers[0], uint32(sent+i))
		}
		done, err := c.WriteBatch(messages[:n], 0)
		switch {
		case err == nil:
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOBUFS):
			done = max(1, done) // that one did not get far
		default:
			return fmt.Errorf("send datagram %d: %w", sent, err)
		}
		sent += done
	}
	return nil
}

func hear(r *net.UDPConn, b Burst, sent <-chan struct{}) (h Heard) {
	h.Copies = make([]uint8, b.Count)
	messages := make([]ipv4.Message, batch)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, max(4, b.Size)+1)}
	}
	c := ipv4.NewPacketConn(r)
	var first time.Time
	for {
		_ = r.SetReadDeadline(time.Now().Add(b.Wait))
		n, err := c.ReadBatch(messages, 0)
		if err != nil {
			select {
			case <-sent:
				return h
			default:
				continue
			}
		}
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		h.Span = now.Sub(first)
		for _, m := range messages[:n] {
			h.note(b, m.Buffers[0][:m.N])
		}
	}
}

func (h *Heard) note(b Burst, payload []byte) {
	if len(payload) != max(4, b.Size) || !zero(payload[4:]) {
		h.Corrupted++
		return
	}
	i := binary.BigEndian.Uint32(payload)
	if int(i) >= b.Count {
		h.Corrupted++
		return
	}
	h.Order = append(h.Order, i)
	h.Copies[i]++
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

func set(c *net.UDPConn, option int, on bool) error {
	if !on {
		return nil
	}
	return force(c, option, 1)
}

func force(c *net.UDPConn, option, value int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, value) })
	return errors.Join(err, inner)
}

// TCP is a measurement of bulk transfer.
type TCP struct {
	Congestion string // of the kernel's list; "" is the default
	Flows      int    // at the same time
	Warmup     time.Duration
	Duration   time.Duration // after Warmup
}

// ErrCongestion is returned when the kernel refuses the congestion control that was asked for.
var ErrCongestion = errors.New("this kernel does not offer the congestion control")

// Rates sends as fast as TCP does, and returns each flow's payload in bits per second as received after the warm-up.
func Rates(ctx context.Context, from, to In, addr netip.Addr, o TCP) ([]float64, error) {
	var l net.Listener
	err := to(func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(addr, 0).String()) //nolint:noctx // returns at once
		return err
	})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(ctx, o.Warmup+o.Duration+30*time.Second)
	defer cancel()
	rates, errs := make([]float64, o.Flows), make(chan error, o.Flows)
	var measuring sync.WaitGroup
	measuring.Add(o.Flows)
	for i := range o.Flows {
		go func() {
			var err error
			rates[i], err = flow(ctx, from, l, o, &measuring)
			errs <- err
		}()
	}
	for range o.Flows {
		err = errors.Join(err, <-errs)
	}
	return rates, err
}

// flow runs one connection. It may measure one that another flow dialled, so none is closed before all are done
// measuring.
func flow(ctx context.Context, from In, l net.Listener, o TCP, measuring *sync.WaitGroup) (float64, error) {
	done := sync.OnceFunc(measuring.Done)
	defer done()
	var w net.Conn
	err := from(func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		w, err = d.DialContext(ctx, "tcp4", l.Addr().String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer w.Close()
	if err := congestion(w, o.Congestion); err != nil {
		return 0, err
	}
	r, err := l.Accept()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	stop := context.AfterFunc(ctx, func() { _ = r.SetDeadline(time.Now()) })
	defer stop()
	written := make(chan struct{})
	go func() {
		defer close(written)
		for b := make([]byte, 256<<10); ; {
			if _, err := w.Write(b); err != nil {
				return // closed below
			}
		}
	}()
	rate, err := drain(r, o)
	done()
	measuring.Wait()
	_ = errors.Join(w.Close(), r.Close())
	<-written
	return rate, err
}

func drain(r net.Conn, o TCP) (float64, error) {
	b := make([]byte, 256<<10)
	began, bytes := time.Now(), 0
	var from time.Time
	for {
		n, err := r.Read(b)
		if err != nil {
			return 0, fmt.Errorf("receive: %w", err)
		}
		now := time.Now()
		switch {
		case now.Sub(began) < o.Warmup:
		case from.IsZero():
			from = now
		default:
			bytes += n
		}
		if span := now.Sub(from); !from.IsZero() && span >= o.Duration {
			return float64(bytes) * 8 / span.Seconds(), nil
		}
	}
}

func congestion(c net.Conn, name string) error {
	if name == "" {
		return nil
	}
	raw, err := c.(*net.TCPConn).SyscallConn() //nolint:forcetypeassert // dialled as TCP
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) })
	if inner != nil {
		return fmt.Errorf("%w %s: %w", ErrCongestion, name, inner)
	}
	return err
}
