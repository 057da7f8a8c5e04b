package liveness

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// ErrRefused means that a member's endpoint actively refused a connection: nothing listens there.
var ErrRefused = errors.New("connection refused")

const (
	pingEvery   = 700 * time.Millisecond
	pingTimeout = time.Second
	askAll      = 6 // rounds of pings, one of which also goes to members whose heartbeats or answers to them come
)

// Reachability is the result of the last pings. It is never modified.
type Reachability struct {
	Reached []ag.ReplicaID // sorted
	refuses []ag.ReplicaID
	heard   map[ag.ReplicaID]time.Time // when each was last among Reached
}

// Refused reports whether the member's endpoint refused a connection.
func (r *Reachability) Refused(id ag.ReplicaID) bool { return slices.Contains(r.refuses, id) }

// Heard returns when the member last gave a sign of life, to about a second and by this machine's clock; it is for
// people. Zero: it has given none since the agent started.
func (r *Reachability) Heard(id ag.ReplicaID) time.Time { return r.heard[id] }

// answered is when members have answered heartbeats: those need not be pinged. Any goroutine may use it.
type answered struct {
	ended chan struct{} // a stream of heartbeats ended: ping at once

	mu   sync.Mutex                     // guards sent
	sent map[ag.ReplicaID]time.Duration // boottime before the newest answered heartbeat was sent, while its stream is open
}

func newAnswered() *answered {
	return &answered{ended: make(chan struct{}, 1), sent: map[ag.ReplicaID]time.Duration{}}
}

func (a *answered) note(id ag.ReplicaID, sent time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent[id] = sent
}

func (a *answered) over(id ag.ReplicaID) {
	a.mu.Lock()
	delete(a.sent, id)
	a.mu.Unlock()
	select {
	case a.ended <- struct{}{}:
	default:
	}
}

// lately reports whether the member has answered a heartbeat that was sent less than that long ago.
func (a *answered) lately(id ag.ReplicaID, within time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	sent, ok := a.sent[id]
	return ok && boottime.Now()-sent < within
}

// PingConfig is what a Pinger depends on.
type PingConfig struct {
	// Ping asks one member; an error that wraps ErrRefused means that nothing listens at its endpoint.
	Ping    func(context.Context, ag.Replica) error
	Members func() []ag.Replica // all but this node; nil: not known yet
	// Beats reports whether a stream of the member's own heartbeats is open here, and one came within that time.
	Beats   func(from ag.ReplicaID, within time.Duration) bool
	Profile func() ag.Profile
	Changed func() // called when the members that are reached, or that refuse, have changed
}

// Pinger asks every other member for a sign of life, unless the member has just answered a heartbeat or sent one. The
// answers decide nothing that needs proof: they keep a candidate from deposing a leader in vain, and a primary from
// waiting for a member that provably does not run.
type Pinger struct {
	c        PingConfig
	answered *answered
	reach    atomic.Pointer[Reachability]
}

// NewPinger returns a pinger that has reached no member yet. It relies on the heartbeats that h sends.
func NewPinger(c PingConfig, h *Heartbeater) *Pinger {
	p := &Pinger{c: c, answered: h.answered}
	p.reach.Store(&Reachability{heard: map[ag.ReplicaID]time.Time{}})
	return p
}

// Reach returns the result of the last pings. Any goroutine may call it.
func (p *Pinger) Reach() *Reachability { return p.reach.Load() }

// Run pings until ctx is done.
func (p *Pinger) Run(ctx context.Context) {
	for round := 0; ; round++ {
		p.once(ctx, round%askAll == 0)
		select {
		case <-ctx.Done():
			return
		case <-p.answered.ended:
		case <-time.After(boottime.UntilNext(pingEvery)):
		}
	}
}

// once asks the members without heartbeats or answers lately, or all of them. A member that takes no connections
// learns only from the answers to its own calls that others want it to dial, so all of them are asked now and then.
func (p *Pinger) once(ctx context.Context, all bool) {
	members := p.c.Members()
	if members == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	next := &Reachability{}
	lately := min(2*p.c.Profile().Beat, pingEvery)
	var mu sync.Mutex // guards next
	var wg sync.WaitGroup
	for _, r := range members {
		wg.Go(func() {
			var err error
			if alive := p.answered.lately(r.ID, lately) || p.c.Beats(r.ID, lately); all || !alive {
				if err = p.c.Ping(ctx, r); alive {
					err = nil
				}
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				next.Reached = append(next.Reached, r.ID)
			case errors.Is(err, ErrRefused):
				next.refuses = append(next.refuses, r.ID)
			}
		})
	}
	wg.Wait()
	slices.Sort(next.Reached)
	slices.Sort(next.refuses)
	next.heard = maps.Clone(p.reach.Load().heard)
	maps.DeleteFunc(next.heard, func(id ag.ReplicaID, _ time.Time) bool { // another node may join by the name of one that left
		return !slices.ContainsFunc(members, func(r ag.Replica) bool { return r.ID == id })
	})
	for _, id := range next.Reached {
		next.heard[id] = time.Now()
	}
	old := p.reach.Swap(next)
	if !slices.Equal(old.Reached, next.Reached) || !slices.Equal(old.refuses, next.refuses) {
		p.c.Changed()
	}
}

// NoteDead takes a member whose death was seen out of reach, before the next round of pings does.
func (p *Pinger) NoteDead(id ag.ReplicaID) {
	old := p.reach.Load()
	next := &Reachability{Reached: slices.Clone(old.Reached), refuses: slices.Clone(old.refuses), heard: old.heard}
	next.Reached = slices.DeleteFunc(next.Reached, func(x ag.ReplicaID) bool { return x == id })
	if !slices.Contains(next.refuses, id) {
		next.refuses = append(next.refuses, id)
		slices.Sort(next.refuses)
	}
	p.reach.CompareAndSwap(old, next)
}
