package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

const (
	pingEvery   = 700 * time.Millisecond
	pingTimeout = time.Second
	askAll      = 6 // rounds of pings, one of which goes to members, too, that answer heartbeats
)

// reachability is what the last pings said.
type reachability struct {
	reached []ag.ReplicaID
	refuses []ag.ReplicaID
	heard   map[ag.ReplicaID]time.Time // when each was last among reached; not changed any more
}

func (r *reachability) members() []ag.ReplicaID      { return r.reached }
func (r *reachability) refused(id ag.ReplicaID) bool { return slices.Contains(r.refuses, id) }

// answered is when members have answered heartbeats: those need not be pinged. Any goroutine may use it.
type answered struct {
	ended chan struct{} // a stream of heartbeats did: ping at once

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

// ping asks every other member for a sign of life until ctx is done, unless it has just given one. The answers decide nothing that needs proof: they keep a
// candidate from deposing a leader in vain, and a primary from waiting for a member that is provably gone. They also tell this node of a record that the
// others have seen and the store has forgotten.
func (a *Agent) ping(ctx context.Context) {
	for round := 0; ; round++ {
		a.pingOnce(ctx, round%askAll == 0)
		select {
		case <-ctx.Done():
			return
		case <-a.heart.answered.ended:
		case <-time.After(pingEvery):
		}
	}
}

// pingOnce asks the members that have not answered heartbeats lately, or all: only in answers to calls a member that takes no connections
// hears that others want it to dial.
func (a *Agent) pingOnce(ctx context.Context, all bool) {
	snap := a.snapshot.Load()
	if snap == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	next := &reachability{}
	lately := min(2*a.profile().Beat, pingEvery)
	var mu sync.Mutex // guards next
	var wg sync.WaitGroup
	for _, r := range snap.Group.Replicas {
		if r.ID == a.cfg.Self {
			continue
		}
		wg.Go(func() {
			var err error
			if alive := a.heart.answered.lately(r.ID, lately); all || !alive {
				var seen SeenMark
				if seen, err = a.cfg.Peers.Ping(ctx, r); err == nil {
					a.believed.hear(seen)
				} else if alive {
					err = nil
				}
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				next.reached = append(next.reached, r.ID)
			case errors.Is(err, ErrRefused):
				next.refuses = append(next.refuses, r.ID)
			}
		})
	}
	wg.Wait()
	slices.Sort(next.reached)
	slices.Sort(next.refuses)
	next.heard = maps.Clone(a.reach.Load().heard)
	for _, id := range next.reached {
		next.heard[id] = time.Now()
	}
	old := a.reach.Swap(next)
	if !slices.Equal(old.reached, next.reached) || !slices.Equal(old.refuses, next.refuses) {
		a.Wake()
	}
}

// Heard returns when another member last gave a sign of life, to about a second and by this machine's clock: it is for people. Zero: it has
// given none since the agent started. Any goroutine may call it.
func (a *Agent) Heard(id ag.ReplicaID) time.Time { return a.reach.Load().heard[id] }

// noteDead takes a member that was seen to be dead out of reach before the next round of pings does.
func (a *Agent) noteDead(id ag.ReplicaID) {
	old := a.reach.Load()
	next := &reachability{reached: slices.Clone(old.reached), refuses: slices.Clone(old.refuses), heard: old.heard}
	next.reached = slices.DeleteFunc(next.reached, func(x ag.ReplicaID) bool { return x == id })
	if !slices.Contains(next.refuses, id) {
		next.refuses = append(next.refuses, id)
		slices.Sort(next.refuses)
	}
	a.reach.CompareAndSwap(old, next)
}

// chores are what must be done now and then and decides nothing: replication slots for every other member, so that any can follow any
// after a failover, and the quorum's leadership away from the primary.
func (a *Agent) chores(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(3 * time.Second):
		}
		v, snap := a.view.Load(), a.snapshot.Load()
		if v == nil || snap == nil || !v.Quorum {
			continue
		}
		if v.Record.Epoch.Leader == v.Self {
			a.cfg.Store.Yield(ctx, a.reach.Load().reached)
		}
		if v.Local.Data != ag.DataPresent || v.Busy != "" || v.Local.Server != ag.ServerRecovery && v.Local.Server != ag.ServerWritable {
			continue
		}
		if v.Record.Epoch.Phase == ag.PhaseLead {
			a.seal.readersLose(false)
		}
		at := map[ag.ReplicaID]ag.LSN{}
		for _, r := range snap.Group.Replicas {
			if r.ID != v.Self && r.HasData() {
				at[r.ID] = snap.Statuses[r.ID].Position.LSN
			}
		}
		c, cancel := context.WithTimeout(ctx, 5*time.Second)
		if err := a.cfg.Instance.EnsureSlots(c, at); err != nil && ctx.Err() == nil {
			a.log.Warn("replication slots not as they should be", "err", err)
		}
		cancel()
	}
}
