package agenttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/liveness"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Entry is one WAL record of the model.
type Entry struct {
	TLI ag.Timeline
	LSN ag.LSN
	ID  int // unique in the world
}

// World is a group of nodes and the links between them.
type World struct {
	Record *Record

	mu    sync.Mutex // guards everything below and every field of the nodes
	nodes map[ag.ReplicaID]*Node
	cuts  map[[2]ag.ReplicaID]bool
	// refuses are links on which connections are refused; wires are the streams of heartbeats.
	refuses map[[2]ag.ReplicaID]bool
	wires   []*wire
	last    int // the last ID given
	acked   []int
	stale   []string
	calls   map[string]int // between nodes, by name and the node called
}

// Calls returns how often a node was called: "seal c".
func (w *World) Calls(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[name]
}

func (w *World) called(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[name]++
}

// NewWorld returns a world of the group's replicas. first leads epoch 1 in the record; every other data directory is
// empty.
func NewWorld(g ag.Group, first ag.ReplicaID) *World {
	w := &World{nodes: map[ag.ReplicaID]*Node{}, cuts: map[[2]ag.ReplicaID]bool{}, refuses: map[[2]ag.ReplicaID]bool{}, calls: map[string]int{}}
	tls := []ag.TimelineEntry{{TLI: 1, Epoch: 1}}
	w.Record = NewRecord(g, ag.Record{
		Epoch: ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: first, TLI: 1, MaxTLI: 1},
		State: ag.State{Epoch: 1, Leader: first, Copy: ag.CopyID("copy-" + first), Timelines: tls, Seq: 1},
	})
	for _, r := range g.Replicas {
		n := &Node{ID: r.ID, w: w, data: ag.DataEmpty, Store: w.Record.Store(r.ID), exits: make(chan string, 64), changed: make(chan struct{}, 1)}
		if r.ID == first {
			n.data, n.inside, n.tls = ag.DataPresent, ag.CopyID("copy-"+first), tls
			w.append(n)
		}
		w.nodes[r.ID] = n
	}
	return w
}

// Node returns the node of that id.
func (w *World) Node(id ag.ReplicaID) *Node { return w.nodes[id] }

// Cut cuts or heals the link between two nodes.
func (w *World) Cut(x, y ag.ReplicaID, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts[[2]ag.ReplicaID{x, y}], w.cuts[[2]ag.ReplicaID{y, x}] = on, on
	w.settle()
}

// Isolate cuts or heals all links of a node, the one to the record included.
func (w *World) Isolate(id ag.ReplicaID, on bool) {
	w.nodes[id].Store.Cut(on)
	for other := range w.nodes {
		if other != id {
			w.Cut(id, other, on)
		}
	}
}

// Acked returns the IDs of the commits that clients saw succeed.
func (w *World) Acked() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int{}, w.acked...)
}

// Stale returns a line for every commit that a node acknowledged while the record named another as leader with all
// rights.
func (w *World) Stale() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.stale...)
}

// Lost returns the acknowledged commits that the node's copy lacks.
func (w *World) Lost(id ag.ReplicaID) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	have := map[int]bool{}
	for _, e := range w.nodes[id].log {
		have[e.ID] = true
	}
	var lost []int
	for _, c := range w.acked {
		if !have[c] {
			lost = append(lost, c)
		}
	}
	return lost
}

// append adds a record to a node's WAL.
func (w *World) append(n *Node) Entry {
	w.last++
	e := Entry{TLI: n.position().Timeline, LSN: n.end() + 0x100, ID: w.last}
	n.log = append(n.log, e)
	return e
}

// settle completes every possible transfer: WAL to the standbys, acknowledgements to the waiting commits.
func (w *World) settle() {
	for range len(w.nodes) {
		for _, n := range w.nodes {
			n.receive()
		}
	}
	for _, n := range w.nodes {
		n.acknowledge()
		now := ""
		for _, s := range n.streamers() {
			now += fmt.Sprint(s.ID, s.announced, s.end(), ";")
		}
		if now != n.told {
			n.told = now
			signal(n.changed)
		}
	}
}

// ErrNoAnswer is a client's error when the outcome of its commit is unknown.
var ErrNoAnswer = errors.New("no answer")

// Write commits on a node as a client of it. It succeeds when the server acknowledges and the gate lets the answer
// pass.
func (w *World) Write(ctx context.Context, id ag.ReplicaID) (int, error) {
	n := w.nodes[id]
	w.mu.Lock()
	if n.pid == 0 || n.recovery || n.hung {
		w.mu.Unlock()
		return 0, fmt.Errorf("%s takes no writes", id)
	}
	pid := n.pid
	c, done := n.commit()
	w.mu.Unlock()
	select {
	case err := <-done:
		if err != nil {
			return c.ID, errors.Join(ErrNoAnswer, err)
		}
	case <-ctx.Done():
		return c.ID, errors.Join(ErrNoAnswer, ctx.Err())
	}
	if err := n.pass(ctx, pid); err != nil {
		return c.ID, err
	}
	e := w.Record.Snapshot().Record.Epoch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = append(w.acked, c.ID)
	if e.Leader != id && e.Phase == ag.PhaseLead {
		w.stale = append(w.stale, fmt.Sprintf("%s acknowledged a commit while %s led epoch %d", id, e.Leader, e.Epoch))
	}
	return c.ID, nil
}

// pass returns when the gate lets an answer of that server out, as the listener holds it until then.
func (n *Node) pass(ctx context.Context, pid int) error {
	for {
		gate := n.gate()
		n.w.mu.Lock()
		lives := n.pid == pid
		n.w.mu.Unlock()
		switch {
		case gate == 0 || !lives:
			return fmt.Errorf("the session was closed: %w", ErrNoAnswer)
		case boottime.Now() < gate:
			return nil
		}
		if retry.Sleep(ctx, 2*time.Millisecond) != nil {
			return fmt.Errorf("the gate is shut: %w", ErrNoAnswer)
		}
	}
}

// WriteWithin is Write with a deadline.
func (w *World) WriteWithin(id ag.ReplicaID, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	_, err := w.Write(ctx, id)
	return err
}

// Agent is the part of a node's agent that the world needs.
type Agent interface {
	Gate() time.Duration
	Seal(ctx context.Context, req agent.SealRequest) (ag.SealReport, error)
	Position(ctx context.Context) (agent.Positions, error)
	ServeHeartbeats(ctx context.Context, from ag.ReplicaID, s liveness.HeartbeatStream)
	PrepareTakeover(ctx context.Context, req agent.TakeoverRequest) error
	ReleaseReaders(ctx context.Context, req agent.TakeoverRequest) error
	Seen() marks.Seen
}

// Attach gives the node its agent; nil: its process is not running.
func (w *World) Attach(id ag.ReplicaID, a Agent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[id]
	n.agent = a
	n.life, n.ended = context.WithCancel(context.Background())
	w.settle()
}

// reach returns the agent of a node as another one sees it: an error if it refuses, a wait if the link is cut.
func (w *World) reach(ctx context.Context, from, to ag.ReplicaID) (Agent, error) {
	w.mu.Lock()
	cut, a, dead := w.cuts[[2]ag.ReplicaID{from, to}], w.nodes[to].agent, w.nodes[from].agent == nil
	rejects := w.refuses[[2]ag.ReplicaID{from, to}]
	w.mu.Unlock()
	if dead || rejects {
		return nil, agent.ErrRefused
	}
	if cut {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if a == nil {
		return nil, agent.ErrRefused
	}
	return a, nil
}
