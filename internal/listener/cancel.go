package listener

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// cancelTime bounds the delivery of a cancel request.
const cancelTime = 5 * time.Second

// CancelKey is what a client sends to cancel a query: the process id and the secret of BackendKeyData. The four
// highest bits of the secret are the number of the node that minted it. At protocol 3.2 the secret has 32 bytes:
// these four, and Long, a nonce and a code over all of it. By the code any node tells the group's keys from invented
// ones.
type CancelKey struct {
	PID    uint32
	Secret uint32
	Long   [longKey]byte // zero at protocol 3.0
}

const (
	longKey   = 28 // after the four bytes of Secret
	longNonce = 12
)

// extend returns the key with its long part.
func (s *Server) extend(k CancelKey) CancelKey {
	_, _ = rand.Read(k.Long[:longNonce]) // never fails
	copy(k.Long[longNonce:], s.keyCode(k))
	return k
}

func (s *Server) keyCode(k CancelKey) []byte {
	m := hmac.New(sha256.New, s.cfg.KeySecret())
	m.Write([]byte("cancel key\x00"))
	m.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, k.PID), k.Secret))
	m.Write(k.Long[:longNonce])
	return m.Sum(nil)[:longKey-longNonce]
}

// readKey reads the body of a CancelRequest. The request has no protocol version: its length tells. Keys of up to 256
// bytes are legal, but none is ours. A key that belongs to an open session is valid even if KeySecret has changed
// since.
func (s *Server) readKey(body []byte) (k CancelKey, ok bool) {
	if len(body) != 8 && len(body) != 8+longKey {
		return k, false
	}
	k.PID, k.Secret = binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:])
	if copy(k.Long[:], body[8:]) == 0 {
		return k, true
	}
	s.mu.Lock()
	_, open := s.keys[k]
	s.mu.Unlock()
	return k, open || hmac.Equal(k.Long[longNonce:], s.keyCode(k))
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

func (k CancelKey) node() uint8 { return uint8(k.Secret >> 28) }

// mintKey mints a key that no open session has. The caller holds s.mu.
func (s *Server) mintKey(pid uint32, long bool) CancelKey {
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails
		k := CancelKey{PID: pid, Secret: uint32(s.cfg.Node)<<28 | binary.BigEndian.Uint32(b[:])>>4}
		if long {
			k = s.extend(k)
		}
		if _, taken := s.keys[k]; !taken {
			return k
		}
	}
}

// maxForwards is how many cancel requests of all clients other nodes are asked about at once.
const maxForwards = 16

// cancelPause is how long a cancel request waits until it tries again for a place among those that may be asked about.
const cancelPause = 20 * time.Millisecond

// cancelRequest serves a connection that brought a CancelRequest. As in PostgreSQL, there is no answer. A request whose
// session is here is always delivered, and one that no node can know costs nothing. Any other one counts as wrong until
// another node has found its session: other nodes are asked about at most WrongCancels of an address at once, and as
// many wrong ones a second. The rest waits, and its places may be taken.
func (c *client) cancelRequest(ctx context.Context, body []byte) {
	s := c.srv
	key, ok := s.readKey(body)
	ctx, cancel := context.WithTimeout(ctx, cancelTime)
	defer cancel()
	if ok && s.Cancel(ctx, key) {
		return
	}
	if !ok || s.cfg.ForwardCancel == nil || s.twin(key) {
		s.counts.reject("wrong cancel")
		return
	}
	c.waits() // its slot may be taken from now on
	counted, turn := c.awaitCancel(ctx)
	if !turn {
		s.counts.reject("cancel limit")
		return
	}
	select {
	case s.forwards <- struct{}{}:
		defer func() { <-s.forwards }()
	case <-ctx.Done():
		s.counts.reject("cancel limit")
		return
	case <-c.slot.taken:
		s.counts.reject("cancel limit")
		return
	}
	if err := s.cfg.ForwardCancel(ctx, key.node(), key); err != nil {
		s.counts.reject("wrong cancel")
		if s.failureLines.Spend(c.limitKey, 1, boottime.Now()) {
			s.log.Info("no other node knows the session of a cancel request", "client", c.host, "error", err)
		}
		return
	}
	s.wrong.takeBack(c.limitKey, counted)
}

// awaitCancel counts a cancel request as wrong, as soon as its address has had fewer than WrongCancels in the second.
// It reports false if that is not so in time, or the client's place is needed.
func (c *client) awaitCancel(ctx context.Context) (counted time.Time, ok bool) {
	for {
		now := time.Now()
		if c.srv.wrong.add(c.limitKey, now, c.srv.cfg.Limits.WrongCancels) {
			return now, true
		}
		select {
		case <-ctx.Done():
			return now, false
		case <-c.slot.taken:
			return now, false
		case <-time.After(cancelPause):
		}
	}
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
		return s.consoles.cancel(CancelKey{PID: key.PID, Secret: key.Secret})
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
	// PostgreSQL closes the connection after it has sent the signal: the client's cancel call returns then and not
	// before.
	_, _ = io.CopyN(io.Discard, conn, 64)
	s.counts.cancels.Add(1)
	return true
}

func cancelPacket(key [8]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, 16)
	b = binary.BigEndian.AppendUint32(b, pgwire.CancelRequest)
	return append(b, key[:]...)
}
