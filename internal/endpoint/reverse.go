package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

// This file reaches a member that accepts no connections, through one that it dials itself. A node that dialled it in
// vain sets a header in its answers to that member's calls. The member then parks a stream of class back there. It
// serves a connection that the other side opens inside the stream as if it had accepted that at its own port.

const (
	wantedHeader = "Coterie-Wanted" // in the answer to a call: this node could not dial the caller
	wantedFor    = 10 * time.Second // after a failed attempt to dial
	parkFor      = time.Minute      // that a parked stream waits for its use
	backGreeting = 1                // the first byte of the side that uses a parked stream
)

// wantsBack reports whether this node recently failed to dial a member.
func (e *Endpoint) wantsBack(id ag.ReplicaID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, ok := e.relayCache.wanted[id]
	return ok && time.Since(last) < wantedFor
}

// parked returns the channel that hands over the streams which a member has parked here.
func (e *Endpoint) parked(id ag.ReplicaID) chan *Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	ch := e.relayCache.parked[id]
	if ch == nil {
		ch = make(chan *Conn)
		e.relayCache.parked[id] = ch
	}
	return ch
}

// dialBack waits for a stream that the member parks here, and opens a connection of that class inside it.
func (e *Endpoint) dialBack(ctx context.Context, class Class, want ag.ReplicaID) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, relayConnect)
	defer cancel()
	ch := e.parked(want)
	e.mu.Lock()
	e.relayCache.wanted[want] = time.Now()
	e.mu.Unlock()
	for {
		var under *Conn
		select {
		case under = <-ch:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s has not dialled this node either: %w", want, ctx.Err())
		}
		c := &Conn{raw: outer{under}, e: e, class: class, since: time.Now()}
		client := tls.Client(c.raw, e.clientTLS(c, want))
		c.Conn = client
		err := e.conclude(ctx, c, func() error {
			if _, err := under.Write([]byte{backGreeting}); err != nil {
				return err
			}
			return client.HandshakeContext(ctx)
		})
		var refused *RefusedError
		if err == nil {
			e.log.Info("a member that does not answer is reached by a connection that it dialled", "member", want, "class", class)
		}
		if err == nil || errors.As(err, &refused) || ctx.Err() != nil {
			return c, err
		}
	}
}

// serveBack holds a parked stream until it is used, and then until it is closed.
func (e *Endpoint) serveBack(ctx context.Context, peer certs.Identity, conn net.Conn) {
	c, ok := conn.(*Conn)
	if !ok {
		return
	}
	idle := time.NewTimer(parkFor)
	defer idle.Stop()
	select {
	case e.parked(peer.ID) <- c:
		<-ctx.Done()
	case <-idle.C:
	case <-ctx.Done():
	}
}

// park starts to park streams at a member that cannot dial this node, unless it already does.
func (e *Endpoint) park(id ag.ReplicaID, addr string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.relayCache.parking[id] || e.closed || e.handlers[ClassBack] == nil {
		return
	}
	e.relayCache.parking[id] = true
	e.log.Info("a member cannot dial this node: this node dials it", "member", id, "address", addr)
	e.relayCache.wg.Go(func() {
		for e.parkOne(id, addr) == nil { // a closed endpoint dials no more
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.relayCache.parking, id)
	})
}

// parkOne parks one stream and returns when it is used, or with an error when it is not.
func (e *Endpoint) parkOne(id ag.ReplicaID, addr string) error {
	dialling, cancel := context.WithTimeout(context.Background(), 2*e.cfg.HandshakeTimeout)
	c, err := e.dialDirect(dialling, addr, ClassBack, id)
	cancel()
	if err != nil {
		return err
	}
	var b [1]byte
	_ = c.SetDeadline(time.Now().Add(2 * parkFor))
	if _, err := io.ReadFull(c, b[:]); err != nil || b[0] != backGreeting {
		c.abort()
		return errors.Join(errors.New("nobody used the stream"), err)
	}
	_ = c.SetDeadline(time.Time{})
	hs := e.handshakes.admit(c.raw.RemoteAddr(), c.abort)
	if hs == nil {
		c.abort()
		return errors.New("too many handshakes")
	}
	e.relayCache.wg.Go(func() { e.serveConn(context.Background(), outer{c}, hs, e.serverTLS()) })
	return nil
}
