package liveness

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Heartbeat is one frame of a heartbeat stream. The first frame names the agent; the others are heartbeats, their
// echoes, or a farewell.
type Heartbeat struct {
	Epoch       ag.Epoch
	Sent        time.Duration // boottime of the sender, which the echo returns
	Incarnation string        // in the first frame only
	Farewell    bool          // the agent ends in order: the end of the stream is not evidence of its death
}

// HeartbeatStream is a stream of heartbeats between two agents. Send and Receive may be called at the same time. Each
// fails within a few seconds if the other side does not take part, and after Close.
type HeartbeatStream interface {
	Send(b Heartbeat) error
	Receive() (Heartbeat, error)
	Close() error
}

// dialRetry separates two attempts to reach a voter.
const dialRetry = 100 * time.Millisecond

// silent returns how long heartbeats may stay without an echo before their stream is replaced by a new one. A middlebox
// may have forgotten the connection while it would pass a new one. TCP gives up only after ten seconds, in which
// answers to clients are held.
func silent(p ag.Profile) time.Duration { return max(2*time.Second, 4*p.Answer) }

// HeartbeatConfig is what a Heartbeater depends on.
type HeartbeatConfig struct {
	Incarnation string
	Dial        func(context.Context, ag.Replica) (HeartbeatStream, error)
	// Acknowledged is called for each acknowledged heartbeat with a boottime before it was sent.
	Acknowledged func(e ag.Epoch, by ag.ReplicaID, sent time.Duration)
	Profile      func() ag.Profile
	Log          *slog.Logger
}

// Heartbeater sends this node's heartbeats to the voters while it holds an epoch. Make it with NewHeartbeater.
type Heartbeater struct {
	c        HeartbeatConfig
	answered *answered

	wanted atomic.Pointer[target]
	moved  chan struct{} // wanted has changed
}

// target is the epoch for which heartbeats are sent, and the voters that get them. It is never modified.
type target struct {
	epoch  ag.Epoch
	voters []ag.Replica
}

// NewHeartbeater returns a heartbeater without a receiver yet.
func NewHeartbeater(c HeartbeatConfig) *Heartbeater {
	return &Heartbeater{c: c, moved: make(chan struct{}, 1), answered: newAnswered()}
}

// Want sends heartbeats of the epoch to the voters from now on; epoch 0 sends none. Any goroutine may call it.
func (h *Heartbeater) Want(e ag.Epoch, voters []ag.Replica) {
	old := h.wanted.Load()
	same := func(x, y ag.Replica) bool { return x.ID == y.ID && x.Endpoint == y.Endpoint }
	if old != nil && old.epoch == e && slices.EqualFunc(old.voters, voters, same) {
		return
	}
	h.wanted.Store(&target{e, voters})
	select {
	case h.moved <- struct{}{}:
	default:
	}
}

// Run keeps a stream open to every wanted voter until ctx is done. Then it says farewell on each.
func (h *Heartbeater) Run(ctx context.Context) {
	type running struct {
		to   ag.Replica
		stop context.CancelFunc
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	live := map[ag.ReplicaID]running{}
	for {
		b := h.wanted.Load()
		want := map[ag.ReplicaID]ag.Replica{}
		if b != nil && b.epoch != 0 {
			for _, r := range b.voters {
				want[r.ID] = r
			}
		}
		for id, r := range live {
			if w, ok := want[id]; !ok || w.Endpoint != r.to.Endpoint {
				r.stop()
				delete(live, id)
			}
		}
		for id, r := range want {
			if _, ok := live[id]; !ok {
				one, stop := context.WithCancel(ctx)
				live[id] = running{r, stop}
				wg.Go(func() { h.reach(one, r) })
			}
		}
		select {
		case <-ctx.Done():
			for _, r := range live {
				r.stop()
			}
			return
		case <-h.moved:
		}
	}
}

// reach keeps one stream open until ctx is done.
func (h *Heartbeater) reach(ctx context.Context, to ag.Replica) {
	for ctx.Err() == nil {
		dial, cancel := context.WithTimeout(ctx, 2*time.Second)
		s, err := h.c.Dial(dial, to)
		cancel()
		if err == nil {
			h.send(ctx, to.ID, s)
		} else if ctx.Err() == nil {
			h.c.Log.Debug("no heartbeats to a voter", "to", to.ID, "err", err)
		}
		_ = retry.Sleep(ctx, dialRetry)
	}
}

// echoes is what the echoes of one stream tell. Its sender and its receiver share it.
type echoes struct {
	newest     atomic.Int64  // boottime of the newest heartbeat sent
	epoch      atomic.Uint64 // of that heartbeat, which is the latest
	rtt        atomic.Int64  // nanoseconds
	unanswered atomic.Int64  // heartbeats sent since the last echo
}

// send sends heartbeats until the stream fails or ctx is done.
func (h *Heartbeater) send(ctx context.Context, to ag.ReplicaID, s HeartbeatStream) {
	defer func() { _ = s.Close() }()
	if err := s.Send(Heartbeat{Incarnation: h.c.Incarnation}); err != nil {
		return
	}
	var x echoes
	ended := make(chan struct{})
	var wg sync.WaitGroup
	defer h.answered.over(to)
	defer wg.Wait()
	defer func() { _ = s.Close() }() // ends the receiver
	wg.Go(func() {
		defer close(ended)
		h.receive(to, s, &x)
	})
	for {
		p := h.c.Profile()
		wait := p.Beat
		if p.Name == "wan" {
			wait = min(max(wait, 4*time.Duration(x.rtt.Load())), p.Answer/3)
		}
		if w := h.wanted.Load(); w != nil && w.epoch != 0 {
			t0 := boottime.Now()
			x.epoch.Store(uint64(w.epoch))
			x.newest.Store(int64(t0))
			if err := s.Send(Heartbeat{Epoch: w.epoch, Sent: t0}); err != nil {
				return
			}
			// Heartbeats are counted rather than timed: this process may have been stopped meanwhile.
			if n := x.unanswered.Add(1); time.Duration(n)*wait > silent(p) {
				h.c.Log.Info("a voter is silent; its stream of heartbeats is made anew", "voter", to, "beats", n)
				return
			}
		}
		t := time.NewTimer(boottime.UntilNext(wait))
		select {
		case <-ctx.Done():
			t.Stop()
			_ = s.Send(Heartbeat{Farewell: true})
			return
		case <-ended:
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// receive takes the echoes of one stream until it ends.
func (h *Heartbeater) receive(from ag.ReplicaID, s HeartbeatStream, x *echoes) {
	for {
		b, err := s.Receive()
		if err != nil {
			return
		}
		if int64(b.Sent) > x.newest.Load() || uint64(b.Epoch) > x.epoch.Load() { // a later epoch would end this one's answer lease
			h.c.Log.Warn("a voter acknowledged what was not sent", "voter", from)
			return
		}
		x.unanswered.Store(0)
		x.rtt.Store(int64(boottime.Now() - b.Sent))
		h.c.Acknowledged(b.Epoch, from, b.Sent)
		h.answered.note(from, b.Sent)
	}
}
