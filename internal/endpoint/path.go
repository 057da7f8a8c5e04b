package endpoint

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/rawconn"
)

// Kind returns the transport of the stream, KindTCP or KindQUIC.
func (c *Conn) Kind() string {
	if _, ok := c.Conn.(*quicStream); ok {
		return KindQUIC
	}
	return KindTCP
}

// Congestion returns the name of the congestion controller in force, "" if it is unknown.
func (c *Conn) Congestion() string {
	if c.Kind() == KindQUIC {
		return "newreno" // quic-go has no other
	}
	name := ""
	c.socket(func(fd int) {
		if s, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil {
			name = strings.TrimRight(s, "\x00")
		}
	})
	return name
}

// Steer chooses the congestion controller: BBR for a long path, since it does not take loss for congestion, and the
// system's own for a short one. It returns the name of the one in force, and an error if BBR was refused.
func (c *Conn) Steer(far bool) (inForce string, refused error) {
	if far {
		return c.Use("bbr")
	}
	return c.Congestion(), nil
}

// Use sets the congestion controller; with TCP only. It returns the name of the one in force, and an error if the other
// was refused.
func (c *Conn) Use(controller string) (inForce string, refused error) {
	if c.Kind() == KindTCP {
		c.socket(func(fd int) { refused = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, controller) })
	}
	return c.Congestion(), refused
}

// freshPace is about the bytes per round trip that a new connection is paced with: ten packets, and what BBR adds to
// probe for more.
const freshPace = 32 << 10

// Freshen resets BBR on an idle connection that would be paced slower than a new one. On a connection that carries
// little, BBR's estimate is that little, so it would spread the next burst over a round trip. With another controller
// Freshen does nothing.
func (c *Conn) Freshen() {
	if c.Congestion() != "bbr" {
		return
	}
	c.socket(func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.Unacked > 0 || info.Notsent_bytes > 0 || float64(info.Pacing_rate)*float64(info.Rtt)/1e6 >= freshPace {
			return
		}
		if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") == nil { // every user may set it
			_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr") // allowed: it was in force
		}
	})
}

// Counters returns the smoothed round trip, the packets with data sent from here, and how many of them were lost. Zeros
// mean that the system does not report them.
func (c *Conn) Counters() (rtt time.Duration, sent, lost uint64) {
	if s, ok := c.Conn.(*quicStream); ok {
		st := s.conn.ConnectionStats()
		return st.SmoothedRTT, st.PacketsSent, st.PacketsLost
	}
	c.socket(func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			rtt = time.Duration(info.Rtt) * time.Microsecond
			sent, lost = uint64(info.Data_segs_out), uint64(info.Total_retrans)
		}
	})
	return rtt, sent, lost
}

// Rate returns the transport's estimate of the bandwidth in bytes per second, 0 if it has none. With TCP it is the
// recent delivery rate, so that little traffic gives a low figure; with QUIC it is the congestion window per round
// trip.
func (c *Conn) Rate() (rate int64) {
	s, ok := c.Conn.(*quicStream)
	if !ok {
		c.socket(func(fd int) {
			if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				rate = int64(info.Delivery_rate)
			}
		})
		return rate
	}
	st := s.conn.ConnectionStats()
	if st.SmoothedRTT <= 0 {
		return 0
	}
	return int64(float64(st.CongestionWindow) / st.SmoothedRTT.Seconds())
}

// SendDatagram sends a message that may be lost and overtakes queued bytes; streams of QUIC only.
func (c *Conn) SendDatagram(b []byte) error {
	if s, ok := c.Conn.(*quicStream); ok {
		return quicError(s.conn.SendDatagram(b))
	}
	return errors.ErrUnsupported
}

// ReceiveDatagram returns the next such message.
func (c *Conn) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	if s, ok := c.Conn.(*quicStream); ok {
		b, err := s.conn.ReceiveDatagram(ctx)
		return b, quicError(err)
	}
	return nil, errors.ErrUnsupported
}

// PathStats is what the kernel reports about the path to a member, from the live TCP connections with it.
type PathStats struct {
	RTT        time.Duration // the shortest smoothed one; 0: no connection exists
	Sent, Lost uint64        // packets from here since the connections began
	Rate       int64         // bytes per second, the highest recent delivery rate; little traffic gives a low figure
	Congestion string        // the controller of one of them
	Via        ag.ReplicaID  // that relays
}

// PathTo returns the measurements of the path to a member.
func (e *Endpoint) PathTo(id ag.ReplicaID) (w PathStats) {
	for _, c := range e.live() {
		if c.peer.ID != id || c.Kind() != KindTCP || c.class == ClassRelay || c.class == ClassBack {
			continue
		}
		rtt, sent, lost := c.Counters()
		if rtt > 0 && (w.RTT == 0 || rtt < w.RTT) {
			w.RTT, w.Via, w.Congestion = rtt, c.via, c.Congestion()
		}
		w.Sent, w.Lost, w.Rate = w.Sent+sent, w.Lost+lost, max(w.Rate, c.Rate())
	}
	return w
}

func (c *Conn) socket(f func(fd int)) {
	raw := c.raw
	if o, relayed := raw.(outer); relayed {
		raw = o.raw // as far as the relay
	}
	look := func(fd uintptr) { f(int(fd)) }
	switch s := raw.(type) {
	case *rawconn.Conn:
		_ = s.Control(look)
	case *net.TCPConn:
		if sc, err := s.SyscallConn(); err == nil {
			_ = sc.Control(look)
		}
	}
}
