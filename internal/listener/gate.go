package listener

import (
	"errors"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// gatePoll is how often an expired gate is looked at again.
const gatePoll = 2 * time.Millisecond

var errGate = errors.New("the answer gate did not open again")

// gated reads from the local PostgreSQL and hands bytes on only while the gate is open. The check comes after the read: bytes
// that arrive at an open gate were produced before it closed. While bytes are held nothing more is read, so PostgreSQL feels
// the back-pressure and memory stays bounded.
type gated struct {
	conn net.Conn
	srv  *Server
	done <-chan struct{} // ends a wait
	// sticky: the gate had a deadline once, so this session has had bytes of a primary. When it has none any more the role
	// is gone, and what is still held was produced under it.
	sticky bool
}

func (g *gated) Read(p []byte) (int, error) {
	n, err := g.conn.Read(p)
	if n > 0 {
		if gate := g.pass(); gate != nil {
			return 0, gate
		}
	}
	return n, err
}

// pass returns when bytes just read may be passed on, or an error when they must be discarded.
func (g *gated) pass() error {
	s := g.srv
	open, err := g.look(s)
	if open || err != nil {
		return err
	}
	began := time.Now()
	s.counts.gated.Add(1)
	defer func() { s.counts.gatedTime.Add(int64(time.Since(began))) }()
	t := time.NewTicker(gatePoll)
	defer t.Stop()
	for {
		select {
		case <-g.done:
			return errGate
		case <-t.C:
		}
		if open, err := g.look(s); open || err != nil {
			return err
		}
		if time.Since(began) > s.cfg.GateHold {
			return errGate
		}
	}
}

func (g *gated) look(s *Server) (open bool, err error) {
	deadline := s.cfg.Gate()
	if deadline == 0 {
		if g.sticky {
			return false, errGate
		}
		return true, nil
	}
	g.sticky = true
	return boottime.Now() < deadline, nil
}
