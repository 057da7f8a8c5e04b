package agenttest

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/liveness"
)

// wire is a stream of heartbeats between two nodes. While the link is cut, frames vanish; when a node dies, both ends
// learn of it.
type wire struct {
	w      *World
	a, b   ag.ReplicaID
	frames [2]chan liveness.Heartbeat // towards a, towards b
	closed chan struct{}
	once   sync.Once
}

func (x *wire) end() { x.once.Do(func() { close(x.closed) }) }

// heartbeatStream is one end.
type heartbeatStream struct {
	*wire
	side int // 0 at a, 1 at b
}

var errStreamEnded = errors.New("the stream has ended")

// Send implements liveness.HeartbeatStream.
func (h heartbeatStream) Send(b liveness.Heartbeat) error {
	select {
	case <-h.closed:
		return errStreamEnded
	default:
	}
	from, to := h.a, h.b
	if h.side == 1 {
		from, to = to, from
	}
	h.w.mu.Lock()
	cut := h.w.cuts[[2]ag.ReplicaID{from, to}]
	h.w.mu.Unlock()
	if cut {
		return nil
	}
	select {
	case h.frames[1-h.side] <- b:
	default: // no reader: the sender waits in vain
	}
	return nil
}

// Receive implements liveness.HeartbeatStream.
func (h heartbeatStream) Receive() (liveness.Heartbeat, error) {
	select {
	case b := <-h.frames[h.side]:
		return b, nil
	default:
	}
	select {
	case b := <-h.frames[h.side]:
		return b, nil
	case <-h.closed:
		select {
		case b := <-h.frames[h.side]: // frames sent before the end
			return b, nil
		default:
			return liveness.Heartbeat{}, io.EOF
		}
	}
}

// Close implements liveness.HeartbeatStream.
func (h heartbeatStream) Close() error {
	h.end()
	return nil
}

// Heartbeats implements agent.Peers.
func (p *peers) Heartbeats(ctx context.Context, r ag.Replica) (liveness.HeartbeatStream, error) {
	a, err := p.reach(ctx, r)
	if err != nil {
		return nil, err
	}
	x := &wire{w: p.w, a: p.ID, b: r.ID, closed: make(chan struct{})}
	for i := range x.frames {
		x.frames[i] = make(chan liveness.Heartbeat, 64)
	}
	p.w.mu.Lock()
	n := p.w.nodes[r.ID]
	life := n.life
	gone := p.agent == nil || n.agent == nil
	if !gone {
		p.w.wires = append(slices.DeleteFunc(p.w.wires, func(o *wire) bool {
			select {
			case <-o.closed:
				return true
			default:
				return false
			}
		}), x)
	}
	p.w.mu.Unlock()
	if gone {
		return nil, agent.ErrRefused
	}
	go func() {
		a.ServeHeartbeats(life, p.ID, heartbeatStream{x, 1})
		x.end()
	}()
	return heartbeatStream{x, 0}, nil
}

// Probe implements agent.Peers.
func (p *peers) Probe(ctx context.Context, r ag.Replica) error {
	p.w.mu.Lock()
	refuses := p.w.refuses[[2]ag.ReplicaID{p.ID, r.ID}]
	p.w.mu.Unlock()
	if refuses {
		return agent.ErrRefused
	}
	_, err := p.reach(ctx, r)
	return err
}

// Reset ends every stream of heartbeats between two nodes, as a firewall that loses its state does.
func (w *World) Reset(x, y ag.ReplicaID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.wires {
		if o.a == x && o.b == y || o.a == y && o.b == x {
			o.end()
		}
	}
}

// Reject makes a node's attempts to connect to another be refused, as a firewall's rule does, or lets them through
// again.
func (w *World) Reject(from, to ag.ReplicaID, on bool) {
	w.mu.Lock()
	w.refuses[[2]ag.ReplicaID{from, to}] = on
	w.mu.Unlock()
	if on {
		w.Reset(from, to)
	}
}

// hangUp ends the streams of a node whose process has ended.
func (w *World) hangUp(id ag.ReplicaID) {
	for _, o := range w.wires {
		if o.a == id || o.b == id {
			o.end()
		}
	}
}

// Kill ends everything of a node at one instant: its server, and its agent, which gets no notice and reaches no node
// any more. The caller must nevertheless end the agent's goroutines.
func (n *Node) Kill() {
	n.Store.Kill(true)
	n.locked(func() {
		n.agent, n.source, n.sourceEp, n.leading, n.held = nil, "", 0, 0, false
		(*keeper)(n).fence("killed")
		n.w.hangUp(n.ID)
	})
}
