package listener

import (
	"context"
	"io"
	"time"

	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/login"
)

// CancelKey is what a client sends to cancel a query.
type CancelKey = cancelkey.Key

// cancelHere delivers a cancel request to its session here. elsewhere reports whether it may be for one of another
// node.
func (s *Server) cancelHere(ctx context.Context, body []byte) (key CancelKey, elsewhere bool) {
	key, ok := s.cancelKeys().Read(body, s.isOpen)
	if ok && s.Cancel(ctx, key) {
		return key, false
	}
	if !ok || s.cfg.ForwardCancel == nil || s.twin(key) {
		s.counts.Reject("wrong cancel")
		return key, false
	}
	return key, true
}

// cancelKeys returns what mints the keys of this node.
func (s *Server) cancelKeys() cancelkey.Maker {
	return cancelkey.Maker{Node: s.cfg.Node, Secret: s.cfg.KeySecret}
}

// mintKey mints a key that no open session has. The caller holds s.mu.
func (s *Server) mintKey(pid uint32, long bool) CancelKey {
	for {
		k := s.cancelKeys().Mint(pid, long)
		if _, taken := s.keys[k]; !taken {
			return k
		}
	}
}

// isOpen reports whether a session of this node has that key.
func (s *Server) isOpen(key CancelKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, open := s.keys[key]
	return open
}

// twin reports whether a session of this node has a key that differs from this one in its long part only. No other
// node can have one then.
func (s *Server) twin(key CancelKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.keys {
		if k.PID == key.PID && k.Secret == key.Secret {
			return true
		}
	}
	return false
}

// Cancel delivers a cancel request whose key this node minted. It reports false if no such session exists.
func (s *Server) Cancel(ctx context.Context, key CancelKey) bool {
	s.mu.Lock()
	x, ok := s.keys[key]
	delivered := func() {}
	if ok {
		delivered = x.cancelStarts() // before the session can be forgotten: its backend may go to another client then
	}
	s.mu.Unlock()
	defer delivered()
	if !ok {
		return s.logins.CancelConsole(CancelKey{PID: key.PID, Secret: key.Secret})
	}
	conn, err := s.cfg.Backend(ctx, x.replica, BackendHello{ClientAddr: x.addr, Intent: x.intent, Epoch: x.epoch, Cancel: true})
	if err != nil {
		s.log.Warn("cancel request not delivered", "session", x.id, "replica", x.replica, "error", err)
		return true
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(login.CancelTime))
	if _, err := conn.Write(cancelkey.Packet(x.realKey)); err != nil {
		s.log.Warn("cancel request not delivered", "session", x.id, "replica", x.replica, "error", err)
		return true
	}
	// PostgreSQL closes the connection after it has sent the signal: the client's cancel call returns then and not
	// before.
	_, _ = io.CopyN(io.Discard, conn, 64)
	s.counts.Cancels.Add(1)
	return true
}

// cancelStarts must be called before a cancel request for the session is forwarded, and delivered after its delivery.
func (x *session) cancelStarts() (delivered func()) {
	delivered = x.confirmation.CancelStarts()
	x.reclaim()
	return delivered
}
