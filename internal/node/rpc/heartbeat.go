package rpc

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/liveness"
	"github.com/coteriedb/coterie/internal/endpoint"
)

// A stream of heartbeats is made of frames that begin with one kind byte. A hello has a length byte and the
// incarnation. A heartbeat and its echo have the epoch and the time of sending, with eight bytes each.
const (
	heartHello    = 1
	heartBeat     = 2
	heartFarewell = 3

	heartWrite = 2 * time.Second // for one frame: it fits any buffer
)

// heartbeatStream is a stream of heartbeats on a connection of that class.
type heartbeatStream struct {
	conn net.Conn
	in   *bufio.Reader
}

// NewHeartbeatStream returns the stream of heartbeats on a connection of that class.
func NewHeartbeatStream(conn net.Conn) liveness.HeartbeatStream {
	return &heartbeatStream{conn, bufio.NewReaderSize(conn, 512)}
}

func (h *heartbeatStream) Send(b liveness.Heartbeat) error {
	var frame []byte
	switch {
	case b.Farewell:
		frame = []byte{heartFarewell}
	case b.Incarnation != "":
		if len(b.Incarnation) > 255 {
			return fmt.Errorf("an incarnation of %d letters", len(b.Incarnation))
		}
		frame = append([]byte{heartHello, byte(len(b.Incarnation))}, b.Incarnation...)
	default:
		frame = binary.BigEndian.AppendUint64([]byte{heartBeat}, uint64(b.Epoch))
		frame = binary.BigEndian.AppendUint64(frame, uint64(b.Sent))
	}
	if err := h.conn.SetWriteDeadline(time.Now().Add(heartWrite)); err != nil {
		return err
	}
	_, err := h.conn.Write(frame)
	return err
}

func (h *heartbeatStream) Receive() (liveness.Heartbeat, error) {
	kind, err := h.in.ReadByte()
	if err != nil {
		return liveness.Heartbeat{}, err
	}
	switch kind {
	case heartHello:
		n, err := h.in.ReadByte()
		if err != nil {
			return liveness.Heartbeat{}, err
		}
		name := make([]byte, n)
		_, err = io.ReadFull(h.in, name)
		return liveness.Heartbeat{Incarnation: string(name)}, err
	case heartBeat:
		var body [16]byte
		_, err := io.ReadFull(h.in, body[:])
		return liveness.Heartbeat{
			Epoch: ag.Epoch(binary.BigEndian.Uint64(body[:])), Sent: time.Duration(binary.BigEndian.Uint64(body[8:])),
		}, err
	case heartFarewell:
		return liveness.Heartbeat{Farewell: true}, nil
	}
	return liveness.Heartbeat{}, fmt.Errorf("no frame of heartbeats begins with %d", kind)
}

func (h *heartbeatStream) Close() error { return h.conn.Close() }

// Heartbeats opens a stream of heartbeats to a member.
func (p *Peers) Heartbeats(ctx context.Context, r ag.Replica) (liveness.HeartbeatStream, error) {
	conn, err := p.Endpoint.Dial(ctx, r.Endpoint, endpoint.ClassHeart, r.ID)
	if err != nil {
		return nil, err
	}
	return NewHeartbeatStream(conn), nil
}

// Probe connects to every address of a member's endpoint. Only where each of them refuses does it say so: a firewall
// that drops, a route that is missing and a program that is too busy to accept are something else.
func (p *Peers) Probe(ctx context.Context, r ag.Replica) error {
	host, port, err := net.SplitHostPort(r.Endpoint)
	if err != nil {
		return err
	}
	addrs, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(a, port))
		if err == nil {
			return conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
	}
	return errors.Join(agent.ErrRefused, fmt.Errorf("%s refuses connections", r.Endpoint))
}
