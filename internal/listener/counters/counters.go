package counters

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/pool"
)

// RoutedKey counts sessions by replica and intent.
type RoutedKey struct {
	Replica ag.ReplicaID
	Intent  ag.Intent
}

// Stats are counters since the start, and what is open now.
type Stats struct {
	Accepted        uint64
	Rejected        map[string]uint64 // clients that got no session, by reason
	Refused         map[string]uint64 // those of them that were told why, by SQLSTATE
	Cancels         uint64            // delivered to a replica
	Routed          map[RoutedKey]uint64
	FellBack        uint64            // read-only sessions sent to the primary because no secondary could take them
	Lagged          uint64            // times a replica was passed over for coterie.max_lag
	LastMinute      []Second          // the seconds of the last minute in which readers logged in, oldest first
	Gated           uint64            // times an answer was held by the gate
	GatedTime       time.Duration     // in total
	Drained         uint64            // times a request was held by a planned failover
	Queued          uint64            // times a session waited for its turn to start
	LoopLogins      uint64            // logins completed by an event loop
	Carried         map[string]uint64 // sessions of clients here, by each path that has begun to carry them
	Offloaded       uint64            // times a session was offloaded to the kernel
	KernelPath      map[string]uint64 // times one came back, by reason
	RelayedByKernel uint64            // requests relayed by the kernel, of sessions that came back
	BatchedWrites   uint64            // writes of event loops that shared a system call
	// Held counts answers held until their commit was confirmed, Unconfirmed those of them that were discarded.
	Held, Unconfirmed uint64
	HeldTime          time.Duration     // in all
	Cut               map[string]uint64 // sessions ended by the listener, by reason
	Moved             uint64            // sessions moved to another server
	Replayed          uint64            // transactions that were executed again on another server
	Repeated          uint64            // requests outside a transaction that were executed again on another server
	Unreplayed        map[string]uint64 // those that failed with 40001 instead, by the reason
	Doubts            map[string]uint64 // outcomes of COMMITs and other requests whose answer was lost: committed, aborted, unknown
	Unknown           map[string]uint64 // requests of which the client got 08007, by the indoubt.Reason
	Unmoved           map[string]uint64 // sessions that a planned failover had to end, by what could not be moved
	Open              int               // sessions now
	PreAuth           int               // connections not yet authenticated and not waiting now
	Waiting           int               // logins that wait for a replica now
	Pool              pool.Stats
}

// Counters are Stats while they grow. The zero value is ready for use by many goroutines.
type Counters struct {
	Accepted, Cancels, Lagged, Gated, Drained, Queued, Held, Unconfirmed, BatchedWrites, LoopLogins atomic.Uint64
	Offloaded, Moved, Replayed, Repeated                                                            atomic.Uint64
	GatedTime, HeldTime                                                                             atomic.Int64

	fellBack, passed atomic.Uint64
	back             [offload.WhyCount]atomic.Uint64
	readers          seconds

	mu         sync.Mutex
	rejected   map[string]uint64    // guarded by mu, as are all fields below
	carried    map[string]uint64    //
	refused    map[string]uint64    //
	cut        map[string]uint64    //
	unmoved    map[string]uint64    //
	unreplayed map[string]uint64    //
	doubts     map[string]uint64    //
	unknowns   map[string]uint64    //
	routed     map[RoutedKey]uint64 //
}

// Reject counts a client that gets no session.
func (c *Counters) Reject(reason string) { c.add(&c.rejected, reason) }

// Refuse counts a client that is told why it gets no session.
func (c *Counters) Refuse(bad *pgwire.Error) {
	c.Reject(bad.Reason)
	c.add(&c.refused, bad.Code)
}

// Carry counts a session that a path begins to carry: PathKernel, PathLoop or PathGoroutines.
func (c *Counters) Carry(path string) { c.add(&c.carried, path) }

// End counts a session that the listener ended.
func (c *Counters) End(reason string) { c.add(&c.cut, reason) }

// NotMoved counts a session that could not be moved, by what could not.
func (c *Counters) NotMoved(what string) { c.add(&c.unmoved, what) }

// NotReplayed counts a transaction that was not executed again.
func (c *Counters) NotReplayed(reason string) { c.add(&c.unreplayed, reason) }

// Doubt counts a request whose answer was lost, by what became of it.
func (c *Counters) Doubt(outcome string) { c.add(&c.doubts, outcome) }

// Unknown counts a request of which the client got 08007.
func (c *Counters) Unknown(reason string) { c.add(&c.unknowns, reason) }

func (c *Counters) add(m *map[string]uint64, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *m == nil {
		*m = make(map[string]uint64)
	}
	(*m)[reason]++
}

// Route counts a session that was opened.
func (c *Counters) Route(k RoutedKey, fellBack bool) {
	if fellBack {
		c.fellBack.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.routed == nil {
		c.routed = make(map[RoutedKey]uint64)
	}
	c.routed[k]++
}

// Reader counts a reader that has logged in at that time of day.
func (c *Counters) Reader(now time.Time, fellBack bool) { c.readers.add(now, fellBack) }

// CameBack counts a session that the kernel has relayed, with the requests that it passed.
func (c *Counters) CameBack(why uint32, passed uint64) {
	c.passed.Add(passed)
	c.back[min(why, offload.WhyCount-1)].Add(1)
}

func (c *Counters) returnReasons() map[string]uint64 {
	m := make(map[string]uint64)
	for why := range c.back {
		if n := c.back[why].Load(); n > 0 {
			m[offload.WhyNames[why]] = n
		}
	}
	return m
}

// Stats returns what was counted. The caller adds the pool and the numbers that are open now.
func (c *Counters) Stats() Stats {
	st := Stats{
		Accepted:      c.Accepted.Load(),
		Cancels:       c.Cancels.Load(),
		FellBack:      c.fellBack.Load(),
		Lagged:        c.Lagged.Load(),
		Gated:         c.Gated.Load(),
		Drained:       c.Drained.Load(),
		Queued:        c.Queued.Load(),
		LoopLogins:    c.LoopLogins.Load(),
		BatchedWrites: c.BatchedWrites.Load(),
		Offloaded:     c.Offloaded.Load(), RelayedByKernel: c.passed.Load(), KernelPath: c.returnReasons(),
		GatedTime: time.Duration(c.GatedTime.Load()),
		Held:      c.Held.Load(), Unconfirmed: c.Unconfirmed.Load(), HeldTime: time.Duration(c.HeldTime.Load()),
		LastMinute: c.readers.list(time.Now()),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	st.Rejected, st.Refused, st.Cut, st.Routed = maps.Clone(c.rejected), maps.Clone(c.refused), maps.Clone(c.cut), maps.Clone(c.routed)
	st.Moved, st.Unmoved = c.Moved.Load(), maps.Clone(c.unmoved)
	st.Replayed, st.Repeated, st.Unreplayed, st.Doubts = c.Replayed.Load(), c.Repeated.Load(), maps.Clone(c.unreplayed), maps.Clone(c.doubts)
	st.Unknown, st.Carried = maps.Clone(c.unknowns), maps.Clone(c.carried)
	return st
}
