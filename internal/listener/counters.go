package listener

import (
	"maps"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/offload"
)

// SessionInfo is one session as status and views show it.
type SessionInfo struct {
	ID         uint64       `json:"id"`
	User       string       `json:"user"`
	Database   string       `json:"database"`
	ClientAddr string       `json:"client_addr"`
	TLS        string       `json:"tls,omitempty"`          // version; empty without TLS
	TLSName    string       `json:"tls_name,omitempty"`     // server name of the handshake (SNI); empty without one
	Identity   string       `json:"tls_identity,omitempty"` // common name of the client's certificate; empty without one
	Intent     ag.Intent    `json:"intent"`
	Entry      int          `json:"list_entry,omitempty"` // place in the read-only routing list; 0 for READ_WRITE
	Replica    ag.ReplicaID `json:"replica"`
	Epoch      ag.Epoch     `json:"epoch"`
	PID        uint32       `json:"pid"`   // of the backend; 0 if relayed
	State      string       `json:"state"` // idle, active, idle in transaction
	Since      time.Time    `json:"since"`
	Relayed    bool         `json:"relayed"` // the client is at another node's listener
	BytesIn    uint64       `json:"bytes_in"`
	BytesOut   uint64       `json:"bytes_out"`
	Path       string       `json:"path"`    // PathKernel, PathLoop or PathGoroutines
	Backend    string       `json:"backend"` // own, ahead or reused
}

// The carriers of a session's bytes: the kernel alone, an event loop, or two goroutines (for sessions from or to
// another node).
const (
	PathKernel     = "kernel"
	PathLoop       = "loop"
	PathGoroutines = "goroutines"
)

// The backend of a session: started for it, opened ahead, or used by another client before.
const (
	backendOwn    = "own"
	backendAhead  = "ahead"
	backendReused = "reused"
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
	Offloaded       uint64            // times a session was offloaded to the kernel
	KernelPath      map[string]uint64 // times one came back, by reason
	RelayedByKernel uint64            // requests relayed by the kernel, of sessions that came back
	BatchedWrites   uint64            // writes of event loops that shared a system call
	// Held counts answers held until their commit was confirmed, Unconfirmed those of them that were discarded.
	Held, Unconfirmed uint64
	HeldTime          time.Duration     // in all
	Cut               map[string]uint64 // sessions ended by the listener, by reason
	Moved             uint64            // sessions moved to another server
	Unmoved           map[string]uint64 // sessions that a planned failover had to end, by what could not be moved
	Open              int               // sessions now
	PreAuth           int               // connections not yet authenticated and not waiting now
	Waiting           int               // logins that wait for a replica now
	Pool              PoolStats
}

// counters are Stats while they grow.
type counters struct {
	accepted, cancels, fellBack, lagged, gated, drained, queued, held, unconfirmed, batchedWrites, loopLogins atomic.Uint64
	offloaded, passed, moved                                                                                  atomic.Uint64
	back                                                                                                      [offload.WhyCount]atomic.Uint64
	gatedTime, heldTime                                                                                       atomic.Int64
	readers                                                                                                   readerSeconds

	mu       sync.Mutex
	rejected map[string]uint64    // guarded by mu
	refused  map[string]uint64    // guarded by mu
	cut      map[string]uint64    // guarded by mu
	unmoved  map[string]uint64    // guarded by mu
	routed   map[RoutedKey]uint64 // guarded by mu
}

func (c *counters) reject(reason string) { c.add(&c.rejected, reason) }
func (c *counters) end(reason string)    { c.add(&c.cut, reason) }

// refuse counts a client that is told why it gets no session.
func (c *counters) refuse(bad *pgwire.Error) {
	c.reject(bad.Reason)
	c.add(&c.refused, bad.Code)
}

func (c *counters) add(m *map[string]uint64, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *m == nil {
		*m = make(map[string]uint64)
	}
	(*m)[reason]++
}

func (c *counters) route(k RoutedKey, fellBack bool) {
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

// cameBack counts a session that the kernel has relayed.
func (c *counters) cameBack(why uint32, passed uint64) {
	c.passed.Add(passed)
	c.back[min(why, offload.WhyCount-1)].Add(1)
}

func (c *counters) returnReasons() map[string]uint64 {
	m := make(map[string]uint64)
	for why := range c.back {
		if n := c.back[why].Load(); n > 0 {
			m[offload.WhyNames[why]] = n
		}
	}
	return m
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	c := &s.counts
	st := Stats{
		Accepted:      c.accepted.Load(),
		Cancels:       c.cancels.Load(),
		FellBack:      c.fellBack.Load(),
		Lagged:        c.lagged.Load(),
		Gated:         c.gated.Load(),
		Drained:       c.drained.Load(),
		Queued:        c.queued.Load(),
		LoopLogins:    c.loopLogins.Load(),
		BatchedWrites: c.batchedWrites.Load(),
		Offloaded:     c.offloaded.Load(), RelayedByKernel: c.passed.Load(), KernelPath: c.returnReasons(),
		GatedTime: time.Duration(c.gatedTime.Load()),
		Held:      c.held.Load(), Unconfirmed: c.unconfirmed.Load(), HeldTime: time.Duration(c.heldTime.Load()),
	}
	c.mu.Lock()
	st.LastMinute = c.readers.list(time.Now())
	st.Rejected, st.Refused, st.Cut, st.Routed = maps.Clone(c.rejected), maps.Clone(c.refused), maps.Clone(c.cut), maps.Clone(c.routed)
	st.Moved, st.Unmoved = c.moved.Load(), maps.Clone(c.unmoved)
	c.mu.Unlock()
	s.mu.Lock()
	st.Open, st.PreAuth, st.Waiting = len(s.sessions), len(s.preauth), s.waiting
	s.mu.Unlock()
	st.Pool = s.pool.stats()
	return st
}

// Sessions lists the open sessions, the oldest first.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	list := make([]SessionInfo, 0, len(s.sessions))
	for _, x := range s.sessions {
		list = append(list, x.info())
	}
	s.mu.Unlock()
	sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
	return list
}

// Second counts the readers that logged in within one second of the clock.
type Second struct {
	At      time.Time `json:"at"`
	Readers uint64    `json:"readers"`
	Routed  uint64    `json:"routed"` // of these, to a secondary
}

// RoutedPct returns the share of the readers that went to a secondary, in percent.
func (s Second) RoutedPct() float64 {
	if s.Readers == 0 {
		return 0
	}
	return 100 * float64(s.Routed) / float64(s.Readers)
}

// readerSeconds are the last 60 seconds, each at its number modulo 60.
type readerSeconds struct {
	mu      sync.Mutex
	seconds [60]Second // guarded by mu
}

func (r *readerSeconds) add(now time.Time, fellBack bool) {
	now = now.Truncate(time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.seconds[now.Unix()%int64(len(r.seconds))]
	if !s.At.Equal(now) {
		*s = Second{At: now}
	}
	s.Readers++
	if !fellBack {
		s.Routed++
	}
}

// list returns the seconds of the last minute in which readers logged in, oldest first.
func (r *readerSeconds) list(now time.Time) (out []Second) {
	now = now.Truncate(time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.seconds {
		s := r.seconds[(now.Unix()+1+int64(i))%int64(len(r.seconds))]
		if age := now.Sub(s.At); age >= 0 && age < time.Minute {
			out = append(out, s)
		}
	}
	return out
}
