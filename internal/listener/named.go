package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// farewellTime bounds the wait for the clients of an address that leaves this node.
const farewellTime = 500 * time.Millisecond

// SetNamed makes the listener serve read-write clients on exactly these addresses beside those of its configuration: host:port
// each, or the path of a Unix socket. An address need not be on this machine yet. Sessions of an address that is taken off go on. It returns for each address that could
// not be opened why; the others are served.
func (s *Server) SetNamed(addresses []string) map[string]error {
	s.named.mu.Lock()
	defer s.named.mu.Unlock()
	for a, p := range s.named.ports {
		if !slices.Contains(addresses, a) {
			_ = p.Close()
			delete(s.named.ports, a)
			s.log.Info("client port closed", "address", a)
		}
	}
	failed := map[string]error{}
	for _, a := range addresses {
		if _, open := s.named.ports[a]; open {
			continue
		}
		if err := s.openNamed(a); err != nil {
			failed[a] = err
			continue
		}
		s.log.Info("client port opened", "address", a)
	}
	return failed
}

// openNamed is called with named.mu held.
func (s *Server) openNamed(address string) error {
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var bad error
		err := c.Control(func(fd uintptr) { bad = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(err, bad)
	}}
	var l net.Listener
	var err error
	if strings.HasPrefix(address, "/") {
		l, err = openSocket(s.life, address)
	} else {
		l, err = free.Listen(s.life, "tcp", address)
	}
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	if !s.enter() {
		_ = l.Close()
		return errors.New("the listener is stopping")
	}
	defer s.wg.Done()
	p := port{l, false, &door{}}
	if s.named.ports == nil {
		s.named.ports = map[string]port{}
	}
	s.named.ports[address] = p
	s.wg.Go(func() { s.accept(p) })
	return nil
}

// closeNamed closes them all, at the end.
func (s *Server) closeNamed() {
	s.named.mu.Lock()
	defer s.named.mu.Unlock()
	for a, p := range s.named.ports {
		_ = p.Close()
		delete(s.named.ports, a)
	}
}

// LeaveAddress ends the sessions of clients that are connected to that address of this machine, which is about to leave it, and waits
// a moment for their last messages to go out.
func (s *Server) LeaveAddress(ctx context.Context, a netip.Addr, why string) {
	on := func(x *session) bool {
		t, ok := x.raw.LocalAddr().(*net.TCPAddr)
		return ok && !x.relayed && t.AddrPort().Addr().Unmap().WithZone("") == a
	}
	ctx, cancel := context.WithTimeout(ctx, farewellTime)
	defer cancel()
	s.endWhere(ending{reason: "address", why: why}, on)
	for {
		s.mu.Lock()
		left := 0
		for _, x := range s.sessions {
			if on(x) {
				left++
			}
		}
		s.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
