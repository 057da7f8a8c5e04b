package endpoint

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// handshakeGrace is how long a connection may take to authenticate before a full house may cost it its place. An honest
// handshake takes a few round trips.
const handshakeGrace = 500 * time.Millisecond

// handshakes is the set of connections that have not authenticated yet. It is bounded; when it is full, the oldest
// connection of the address that holds the most places makes room, so that a flood from one address harms that address.
type handshakes struct {
	max   int
	freed chan struct{}

	mu   sync.Mutex
	live map[*handshake]struct{}
}

type handshake struct {
	conn  net.Conn
	host  string
	began time.Time
}

func newHandshakes(limit int) *handshakes {
	return &handshakes{max: limit, freed: make(chan struct{}, 1), live: make(map[*handshake]struct{})}
}

// admit waits for a place and returns it, or nil when ctx ended first. One goroutine, the accepting one, calls it.
func (h *handshakes) admit(ctx context.Context, conn net.Conn) *handshake {
	hs := &handshake{conn: conn, host: hostOf(conn.RemoteAddr()), began: time.Now()}
	for {
		wait := h.try(hs)
		if wait <= 0 {
			return hs
		}
		t := time.NewTimer(wait)
		select {
		case <-h.freed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		t.Stop()
	}
}

// try takes a place if there is one or can be made one, else it says how long until one can be made.
func (h *handshakes) try(hs *handshake) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.live) >= h.max {
		victim := h.victim()
		if wait := handshakeGrace - time.Since(victim.began); wait > 0 {
			return wait
		}
		delete(h.live, victim)
		_ = victim.conn.Close()
	}
	h.live[hs] = struct{}{}
	return 0
}

func (h *handshakes) victim() *handshake {
	held := make(map[string]int)
	for hs := range h.live {
		held[hs.host]++
	}
	var worst *handshake
	for hs := range h.live {
		if worst == nil || held[hs.host] > held[worst.host] || held[hs.host] == held[worst.host] && hs.began.Before(worst.began) {
			worst = hs
		}
	}
	return worst
}

// done gives the place back; the connection has authenticated or is gone.
func (h *handshakes) done(hs *handshake) {
	h.mu.Lock()
	delete(h.live, hs)
	h.mu.Unlock()
	select {
	case h.freed <- struct{}{}:
	default:
	}
}

func (h *handshakes) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.live)
}

// hostOf is whom a connection is counted for: its IPv4 address, or its IPv6 network, since one host has many addresses there.
func hostOf(addr net.Addr) string {
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.String()
	}
	ip := ap.Addr().Unmap()
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}
