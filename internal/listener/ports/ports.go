package ports

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/coteriedb/coterie/internal/listener/address"
	"github.com/coteriedb/coterie/internal/listener/eventloop"
)

// Port is one listen address.
type Port struct {
	net.Listener
	ReadOnly bool
	Acceptor *eventloop.Acceptor // by which an event loop accepts
}

// Close stops accepting and closes the port.
func (p Port) Close() error {
	p.Acceptor.Close()
	return p.Listener.Close()
}

// Set are the ports of a listener.
type Set struct {
	Log    *slog.Logger
	Accept func(Port) error // begins to accept on a named port; an error means that nobody does

	fixed []Port
	mu    sync.Mutex
	named map[string]Port // by address; guarded by mu
}

// Listen opens the addresses of the configuration, which are separated by commas. It must not be called beside another
// method.
func (s *Set) Listen(ctx context.Context, addresses string, readOnly bool) error {
	for a := range strings.SplitSeq(addresses, ",") {
		a = strings.TrimSpace(a)
		if a == "" {
			continue
		}
		l, err := address.Listen(ctx, a, addresses)
		if err != nil {
			return err
		}
		s.fixed = append(s.fixed, Port{l, readOnly, &eventloop.Acceptor{}})
	}
	return nil
}

// Fixed returns the ports of the configuration.
func (s *Set) Fixed() []Port { return s.fixed }

// Addrs returns the addresses of the configuration, with the real ports where it has port 0.
func (s *Set) Addrs() (readWrite, readOnly []net.Addr) {
	for _, p := range s.fixed {
		if p.ReadOnly {
			readOnly = append(readOnly, p.Addr())
		} else {
			readWrite = append(readWrite, p.Addr())
		}
	}
	return readWrite, readOnly
}

// SetNamed opens and closes named ports, so that they are exactly these. An address is host:port or the path of a Unix
// socket, and need not exist on this machine yet. The result has an error for each address that could not be opened;
// the others are served.
func (s *Set) SetNamed(ctx context.Context, addresses []string) map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a, p := range s.named {
		if !slices.Contains(addresses, a) {
			_ = p.Close()
			delete(s.named, a)
			s.Log.Info("client port closed", "address", a)
		}
	}
	failed := map[string]error{}
	for _, a := range addresses {
		if _, open := s.named[a]; open {
			continue
		}
		if err := s.open(ctx, a); err != nil {
			failed[a] = err
			continue
		}
		s.Log.Info("client port opened", "address", a)
	}
	return failed
}

// open opens one address. The caller holds mu.
func (s *Set) open(ctx context.Context, a string) error {
	l, err := address.ListenFree(ctx, a)
	if err != nil {
		return err
	}
	p := Port{l, false, &eventloop.Acceptor{}}
	if err := s.Accept(p); err != nil {
		_ = l.Close()
		return err
	}
	if s.named == nil {
		s.named = map[string]Port{}
	}
	s.named[a] = p
	return nil
}

// Close closes all ports. It may be called again.
func (s *Set) Close() {
	s.mu.Lock()
	for a, p := range s.named {
		_ = p.Close()
		delete(s.named, a)
	}
	s.mu.Unlock()
	for _, p := range s.fixed {
		_ = p.Close()
	}
}
