package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener"
)

// clients sets what the listener has counted.
func (s sink) clients(c Clients) {
	s.sessions(c)
	s.count("coterie_sessions_accepted_total", c.Accepted)
	s.set("coterie_connections_unauthenticated", float64(c.PreAuth))
	s.set("coterie_logins_waiting", float64(c.Waiting))
	s.count("coterie_logins_queued_total", c.Queued)
	s.count("coterie_logins_by_loops_total", c.LoopLogins)
	s.counts("coterie_clients_rejected_total", c.Rejected)
	s.refusals(c.Refused)
	s.counts("coterie_sessions_ended_total", c.Cut)
	s.count("coterie_cancels_total", c.Cancels)
	s.routing(c.Stats)
	s.count("coterie_sessions_moved_total", c.Moved)
	s.counts("coterie_sessions_not_moved_total", c.Unmoved)
	s.count("coterie_requests_repeated_total", c.Repeated)
	s.count("coterie_transactions_replayed_total", c.Replayed)
	s.counts("coterie_transactions_not_replayed_total", c.Unreplayed)
	s.counts("coterie_commits_in_doubt_total", c.Doubts)
	s.counts("coterie_outcomes_unknown_total", c.Unknown)
	s.count("coterie_requests_held_total", c.Drained)
	s.count("coterie_answers_held_total", c.Gated)
	s.time("coterie_answers_held_seconds_total", c.GatedTime)
	s.count("coterie_answers_confirmed_total", c.Held)
	s.time("coterie_answers_confirmed_seconds_total", c.HeldTime)
	s.count("coterie_answers_unconfirmed_total", c.Unconfirmed)
	s.count("coterie_writes_together_total", c.BatchedWrites)
	s.count("coterie_sessions_lent_to_kernel_total", c.Offloaded)
	s.counts("coterie_sessions_back_from_kernel_total", c.KernelPath)
	s.count("coterie_requests_by_kernel_total", c.RelayedByKernel)
	s.set("coterie_backends_waiting", float64(c.Pool.Waiting))
	s.count("coterie_backends_taken_total", c.Pool.Ahead, "ahead")
	s.count("coterie_backends_taken_total", c.Pool.Reused, "reused")
	s.counts("coterie_backends_dropped_total", c.Pool.Dropped)
}

var (
	intents     = []ag.Intent{ag.ReadWrite, ag.ReadOnly}
	paths       = []string{listener.PathKernel, listener.PathLoop, listener.PathGoroutines}
	activities  = []string{"active", "idle", "idle in transaction"}
	coteriesOwn = []string{
		pgwire.StateProtocolViolation, pgwire.StateInvalidAuth, pgwire.StateInvalidPassword, pgwire.StateAdminShutdown, pgwire.StateCannotConnect,
		pgwire.StateTooMany, pgwire.StateLimit, pgwire.StateNotSupported, pgwire.StateSyntax, pgwire.StateUndefinedObject, pgwire.StateInvalidValue,
		pgwire.StateEncoding, "42501",
	}
)

func (s sink) sessions(c Clients) {
	s.set("coterie_sessions_open", float64(c.Open))
	s.set("coterie_sessions_for_others", float64(c.Others))
	count := map[Sessions]int{}
	for _, i := range intents {
		for _, p := range paths {
			for _, a := range activities {
				count[Sessions{i, p, a}] = 0
			}
		}
	}
	for key, n := range c.Sessions {
		count[key] += n
	}
	for _, p := range paths {
		s.count("coterie_sessions_carried_total", c.Carried[p], p)
	}
	for key, n := range count {
		s.set("coterie_sessions", float64(n), string(key.Intent), key.Path, key.State)
	}
}

// refusals sets the counter of each SQLSTATE that Coterie reports itself, and of all others together.
func (s sink) refusals(of map[string]uint64) {
	count := map[string]uint64{other: 0}
	for _, code := range coteriesOwn {
		count[code] = 0
	}
	for code, n := range of {
		if !slices.Contains(coteriesOwn, code) {
			code = other
		}
		count[code] += n
	}
	s.counts("coterie_refusals_total", count)
}

func (s sink) routing(st listener.Stats) {
	var logins uint64
	for key, n := range st.Routed {
		logins += n
		s.count("coterie_sessions_routed_total", n, string(key.Intent), string(key.Replica))
	}
	s.count("coterie_logins_total", logins)
	s.count("coterie_routing_fallbacks_total", st.FellBack)
	s.count("coterie_routing_lagged_total", st.Lagged)
	var readers, routed uint64
	for _, x := range st.LastMinute {
		readers, routed = readers+x.Readers, routed+x.Routed
	}
	if readers == 0 {
		return
	}
	s.set("coterie_routed_pct", st.LastMinute[len(st.LastMinute)-1].RoutedPct())
	s.set("coterie_routed_ratio", float64(routed)/float64(readers))
}

// commitWaits sets the wait of commits for synchronous replication.
func (s sink) commitWaits(x Server) {
	t := x.Commits
	if s.keep != nil {
		s.set("coterie_commit_wait_seconds_sum", t.Waited.Seconds())
		s.count("coterie_commit_wait_seconds_count", t.Blocks)
		for quantile, v := range map[string]time.Duration{"0.5": t.P50, "0.95": t.P95, "0.99": t.P99} {
			s.time("coterie_commit_wait_seconds", v, quantile)
		}
		s.time("coterie_commit_wait_max_seconds", t.Max)
		return
	}
	d := s.known["coterie_commit_wait_seconds"]
	quantiles := map[float64]float64{0.5: t.P50.Seconds(), 0.95: t.P95.Seconds(), 0.99: t.P99.Seconds()}
	m, err := prometheus.NewConstSummary(d.desc, t.Blocks, t.Waited.Seconds(), quantiles)
	if err != nil {
		m = prometheus.NewInvalidMetric(d.desc, err)
	}
	s.ch <- m
	s.time("coterie_commit_wait_max_seconds", t.Max)
}
