package listener

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/replay"
	"github.com/coteriedb/coterie/internal/listener/sessionstate"
	"github.com/coteriedb/coterie/internal/listener/stmt"
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
	// Outlook returns what would become of it in each event now; nil: the client is at another node's listener, which
	// knows.
	Outlook func() continuity.Outlook `json:"-"`
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

// PoolStats are counters of the pool of backends.
type PoolStats = pool.Stats

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

// counters are Stats while they grow.
type counters struct {
	accepted, cancels, fellBack, lagged, gated, drained, queued, held, unconfirmed, batchedWrites, loopLogins atomic.Uint64
	offloaded, passed, moved, replayed, repeated                                                              atomic.Uint64
	back                                                                                                      [offload.WhyCount]atomic.Uint64
	gatedTime, heldTime                                                                                       atomic.Int64
	readers                                                                                                   readerSeconds

	mu         sync.Mutex
	rejected   map[string]uint64    // guarded by mu
	refused    map[string]uint64    // guarded by mu
	cut        map[string]uint64    // guarded by mu
	unmoved    map[string]uint64    // guarded by mu
	unreplayed map[string]uint64    // guarded by mu
	doubts     map[string]uint64    // guarded by mu
	unknowns   map[string]uint64    // guarded by mu
	routed     map[RoutedKey]uint64 // guarded by mu
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
	st.Replayed, st.Repeated, st.Unreplayed, st.Doubts = c.replayed.Load(), c.repeated.Load(), maps.Clone(c.unreplayed), maps.Clone(c.doubts)
	st.Unknown = maps.Clone(c.unknowns)
	c.mu.Unlock()
	s.mu.Lock()
	st.Open, st.PreAuth, st.Waiting = len(s.sessions), s.preauth.Len(), s.waiting
	s.mu.Unlock()
	st.Pool = s.pool.Stats()
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

// ContinuityGroup is how many sessions have the same outlook.
type ContinuityGroup = continuity.Group

// Prospect is what would become of them in an event.
type Prospect = continuity.Prospect

// maxGroups bounds what Continuity returns, as a report of a node is bounded: the groups beyond it are joined.
const maxGroups = 250

// Continuity returns what would become of the sessions of the clients that are connected here, in a planned failover
// and when their server dies. It asks nobody.
func (s *Server) Continuity() []ContinuityGroup {
	s.mu.Lock()
	list := make([]*session, 0, len(s.sessions))
	for _, x := range s.sessions {
		if !x.relayed && x.ended.Load() == nil {
			list = append(list, x)
		}
	}
	s.mu.Unlock()
	outlooks := make([]continuity.Outlook, len(list))
	for i, x := range list {
		outlooks[i] = x.outlook()
	}
	return continuity.Groups(outlooks, maxGroups)
}

// outlook returns what would become of the session, by what is known here.
func (x *session) outlook() continuity.Outlook {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	o := continuity.Outlook{Replica: string(x.replica), Application: x.moving.application, User: x.user, Failover: x.inFailover()}
	if why, _ := x.wouldEnd(); why == "" {
		o.Server.Fate = continuity.Kept
	} else {
		o.Server = continuity.Prospect{Fate: continuity.Ends, Why: why}
	}
	if o.Server.Fate == continuity.Kept {
		o.Transaction = x.transactionOutlook()
	}
	if o.Node = o.Server; x.drained.local {
		o.Node = continuity.Prospect{Fate: continuity.Ends, Why: "it came through the listener of that node"}
	}
	k := &x.moving.known
	switch {
	case x.moving.tracker.Why() != "":
		o.Statement = x.moving.by
	case k.follows && !k.unchanged.Holds():
		o.Statement = k.unchanged.By()
	case k.refusal != "":
		if i := slices.IndexFunc(x.moving.leaves, func(tag string) bool { return continuity.MadeBy(k.refusal, tag) }); i >= 0 {
			o.Statement = x.moving.leaves[i]
		}
	}
	return o
}

// transactionOutlook returns what would become of the open transaction of a session that outlives its server: whether
// it would be executed again, or fail with 40001. The caller holds drained.mu.
func (x *session) transactionOutlook() continuity.Prospect {
	why := replay.NotKept
	switch {
	case x.status.Load() != 'T':
		return continuity.Prospect{}
	case !x.srv.replays():
		why = "CONTINUITY = SESSION"
	case x.moving.log != nil && x.moving.known.state != nil:
		if why = x.moving.log.Refusal(x.moving.known.state.Texts()); why == "" {
			return continuity.Prospect{Fate: continuity.Kept}
		}
	}
	return continuity.Prospect{Fate: continuity.Ends, Why: why}
}

// The fates of a session whose transaction a planned failover cuts.
const (
	cutReplayed = "executed again"
	cutFails    = "its transaction fails with 40001"
	cutEnds     = "ends"
)

// foresee enters what a planned failover would do with a session that is busy.
func (x *session) foresee(m *ag.SessionMove) {
	x.drained.mu.Lock()
	defer x.drained.mu.Unlock()
	if p := x.inFailover(); p.Fate == continuity.Ends { // it would not move afterwards either
		m.Why = p.Why
		return
	}
	if m.Waits = true; x.relayed {
		return
	}
	if why, _ := x.wouldEnd(); why != "" {
		m.Cut = cutEnds + ": " + why
		return
	}
	switch p := x.transactionOutlook(); {
	case p.Fate == continuity.Ends:
		m.Cut = cutFails + ": " + p.Why
	case p.Fate == continuity.Kept, x.loneFate() == lone.Repeated:
		m.Cut = cutReplayed
	default: // it has failed already, or is being begun
		m.Cut = cutFails
	}
}

// maxLeaves is how many different statements are remembered of a session.
const maxLeaves = 4

// noteStatement notes the keywords of a statement by which the session may not be moved. fine is whether it could be
// before. The caller holds drained.mu.
func (x *session) noteStatement(typ byte, body []byte, fine bool) {
	m := &x.moving
	if fine && m.tracker.Why() != "" {
		m.by = stmt.TagOf(typ, body)
	}
	if tag := stmt.Leaves(typ, body); tag != "" && len(m.leaves) < maxLeaves && !slices.Contains(m.leaves, tag) {
		m.leaves = append(m.leaves, tag)
	}
}

// inFailover returns what would become of the session in a planned failover. The caller holds drained.mu.
func (x *session) inFailover() continuity.Prospect {
	ends := func(why string) continuity.Prospect {
		why, _, _ = strings.Cut(why, ":") // without what a server added
		return continuity.Prospect{Fate: continuity.Ends, Why: why}
	}
	k := &x.moving.known
	known := k.unchanged.Holds() && (k.state != nil || k.refusal != "")
	switch why := x.moving.tracker.Why(); {
	case x.srv.cfg.Continuity == nil || !x.srv.cfg.Continuity():
		return ends("CONTINUITY = OFF")
	case x.replicates || x.drained.streaming:
		return ends("it is a session of logical replication")
	case !x.drained.local && !k.follows:
		return ends("it was opened while CONTINUITY was OFF")
	case why != "":
		return ends(why)
	case x.offloaded.Load() && x.onLoop.Load().kernel.RelayedTexts():
		return ends(sessionstate.WhyUnseen)
	case known && k.stays != "":
		return ends(k.stays)
	case x.drained.midway || !x.idle():
		return continuity.Prospect{Fate: continuity.Likely, Why: "it is busy, and is waited for"}
	case x.requests.UnnamedWaits():
		return ends(refusedUnnamed)
	case known:
		return continuity.Prospect{Fate: continuity.Kept}
	}
	return continuity.Prospect{Fate: continuity.Likely, Why: "its server will be asked"}
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
