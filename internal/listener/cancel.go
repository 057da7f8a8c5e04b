package listener

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"time"
)

// cancelTime bounds the delivery of a cancel request.
const cancelTime = 5 * time.Second

// CancelKey is what a client sends to cancel a query: the process id and the secret of BackendKeyData. The four highest bits
// of the secret are the number of the node that minted it.
type CancelKey struct {
	PID    uint32
	Secret uint32
}

func (k CancelKey) node() uint8 { return uint8(k.Secret >> 28) }

// mintKey makes a key that no open session has. The caller holds s.mu.
func (s *Server) mintKey(pid uint32) CancelKey {
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails
		k := CancelKey{pid, uint32(s.cfg.Node)<<28 | binary.BigEndian.Uint32(b[:])>>4}
		if _, taken := s.keys[k]; !taken {
			return k
		}
	}
}

// cancelRequest serves a connection that brought a CancelRequest. As PostgreSQL, it answers nothing.
func (c *client) cancelRequest(ctx context.Context, body []byte) {
	s := c.srv
	if s.wrong.over(c.host, time.Now(), s.cfg.Limits.WrongCancels) {
		s.counts.reject("cancel limit")
		return
	}
	if len(body) != 8 {
		s.wrong.add(c.host, time.Now())
		s.counts.reject("wrong cancel")
		return
	}
	key := CancelKey{binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:])}
	ctx, cancel := context.WithTimeout(ctx, cancelTime)
	defer cancel()
	if s.Cancel(ctx, key) {
		return
	}
	// A key of another node is counted too: what it hits is known there only.
	s.wrong.add(c.host, time.Now())
	if key.node() == s.cfg.Node || s.cfg.ForwardCancel == nil {
		s.counts.reject("wrong cancel")
		return
	}
	if err := s.cfg.ForwardCancel(ctx, key.node(), key); err != nil {
		s.log.Warn("cancel request not forwarded", "node", key.node(), "error", err)
	}
}

// Cancel delivers a cancel request whose key this node minted; false if no such session exists.
func (s *Server) Cancel(ctx context.Context, key CancelKey) bool {
	s.mu.Lock()
	x, ok := s.keys[key]
	s.mu.Unlock()
	if !ok {
		return false
	}
	conn, err := s.cfg.Backend(ctx, x.replica, BackendHello{ClientAddr: x.addr, Intent: x.intent, Epoch: x.epoch, Cancel: true})
	if err != nil {
		s.log.Warn("cancel request not delivered", "session", x.id, "replica", x.replica, "error", err)
		return true
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(cancelTime))
	if _, err := conn.Write(cancelPacket(x.realKey)); err != nil {
		s.log.Warn("cancel request not delivered", "session", x.id, "replica", x.replica, "error", err)
		return true
	}
	// PostgreSQL closes the connection after it has sent the signal: the client's cancel call returns then and not before.
	_, _ = io.CopyN(io.Discard, conn, 64)
	s.counts.cancels.Add(1)
	return true
}

func cancelPacket(key [8]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, 16)
	b = binary.BigEndian.AppendUint32(b, codeCancel)
	return append(b, key[:]...)
}
