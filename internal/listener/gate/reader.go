package gate

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/counters"
)

// poll is how often a closed gate is checked again.
const poll = 2 * time.Millisecond

// ErrClosed means that bytes must be discarded.
var ErrClosed = errors.New("the answer gate did not open again")

// Config is what all readers of a listener have in common.
type Config struct {
	Deadline func() time.Duration // the instant of CLOCK_BOOTTIME until which bytes may pass; 0 = no limit
	Hold     time.Duration        // how long bytes are held before they are discarded
	Counts   *counters.Counters
}

// Reader reads from the local PostgreSQL and passes bytes on only while the gate is open. The gate is checked after
// the read: bytes that arrive at an open gate were produced before it closed. While bytes are held nothing more is
// read, so back-pressure reaches PostgreSQL and memory stays bounded.
type Reader struct {
	Config
	Conn net.Conn
	Done <-chan struct{} // ends a wait
	Lost *atomic.Bool    // the session leaves its server, and nothing of that passes any more
	// sticky: the gate had a deadline once, so this session has received bytes of a primary. When the gate has none
	// any more the role has ended, and bytes that are still held were produced under it.
	sticky bool
	passed bool // what was read last has passed
}

func (g *Reader) Read(p []byte) (int, error) {
	g.passed = false
	n, err := g.Conn.Read(p)
	if n > 0 {
		if gate := g.Pass(); gate != nil {
			return 0, gate
		}
	}
	return n, err
}

// Arrived notes bytes that were read past the reader, which have not passed the gate yet.
func (g *Reader) Arrived() { g.passed = false }

// Passed reports whether what was read last has passed.
func (g *Reader) Passed() bool { return g.passed }

// Sticky reports whether the gate had a deadline once.
func (g *Reader) Sticky() bool { return g.sticky }

// Pass returns when bytes that were just read may be passed on. An error means that they must be discarded.
func (g *Reader) Pass() error {
	open, err := g.Look()
	if open || err != nil {
		return err
	}
	began := time.Now()
	g.Counts.Gated.Add(1)
	defer func() { g.Counts.GatedTime.Add(int64(time.Since(began))) }()
	t := time.NewTicker(poll)
	defer t.Stop()
	for {
		select {
		case <-g.Done:
			return ErrClosed
		case <-t.C:
		}
		if g.Lost.Load() {
			return ErrClosed
		}
		if open, err := g.Look(); open || err != nil {
			return err
		}
		if time.Since(began) > g.Hold {
			return ErrClosed
		}
	}
}

// Look reports whether bytes that were just read may be passed on now. It does not wait.
func (g *Reader) Look() (open bool, err error) {
	deadline := g.Deadline()
	if deadline == 0 {
		if g.sticky {
			return false, ErrClosed
		}
		g.passed = true
		return true, nil
	}
	g.sticky = true
	g.passed = boottime.Now() < deadline
	return g.passed, nil
}
