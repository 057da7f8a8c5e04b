package listener

import (
	"slices"
	"sort"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/replay"
	"github.com/coteriedb/coterie/internal/listener/sessionstate"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// SessionInfo is one session as status and views show it.
type SessionInfo = counters.Session

// The carriers of a session's bytes, as SessionInfo has them.
const (
	PathKernel     = counters.PathKernel
	PathLoop       = counters.PathLoop
	PathGoroutines = counters.PathGoroutines
)

// RoutedKey counts sessions by replica and intent.
type RoutedKey = counters.RoutedKey

// PoolStats are counters of the pool of backends.
type PoolStats = pool.Stats

// Stats are counters since the start, and what is open now.
type Stats = counters.Stats

// Second counts the readers that logged in within one second of the clock.
type Second = counters.Second

// Stats returns the counters.
func (s *Server) Stats() Stats {
	st := s.counts.Stats()
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
