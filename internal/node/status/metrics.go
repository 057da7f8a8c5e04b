package status

import (
	"fmt"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
)

// Metrics returns the counters and gauges of this node, by the name and the labels that /metrics shows.
func (s *Service) Metrics() map[string]float64 {
	out := map[string]float64{"coterie_uptime_seconds": s.Agent.Uptime().Seconds()}
	for rule, k := range s.Agent.Fired() {
		out[fmt.Sprintf("coterie_rule_fired_total{rule=%q}", rule)] = float64(k)
	}
	if v := s.Agent.View(); v != nil {
		out["coterie_epoch"] = float64(v.Record.Epoch.Epoch)
		out["coterie_quorum"] = truth(v.Quorum)
		out["coterie_primary"] = truth(v.Role() == ag.RolePrimary)
		out["coterie_maintenance"] = truth(v.Group.Maintenance != nil)
		for _, r := range v.Group.Replicas {
			if r.HasData() {
				out[fmt.Sprintf("coterie_replica_maintenance{replica=%q}", r.ID)] = truth(r.Options.Maintenance != nil)
			}
		}
	}
	addAvailability(out, s.Availability())
	if l := s.Listener(); l != nil {
		st := l.Stats()
		out["coterie_sessions_accepted_total"] = float64(st.Accepted)
		out["coterie_sessions_open"] = float64(st.Open)
		out["coterie_logins_waiting"] = float64(st.Waiting)
		for why, k := range st.Rejected {
			out[fmt.Sprintf("coterie_clients_rejected_total{reason=%q}", why)] = float64(k)
		}
		out["coterie_answers_held_total"] = float64(st.Gated)
		out["coterie_answers_held_seconds_total"] = st.GatedTime.Seconds()
		out["coterie_answers_confirmed_total"] = float64(st.Held)
		out["coterie_answers_confirmed_seconds_total"] = st.HeldTime.Seconds()
		out["coterie_answers_unconfirmed_total"] = float64(st.Unconfirmed)
		if s.Log != nil {
			out["coterie_answers_confirmed_without_log_total"] = float64(s.Log.Confirmed())
			out["coterie_server_log_sound"] = truth(s.Log.Sound())
		}
		out["coterie_logins_by_loops_total"] = float64(st.LoopLogins)
		out["coterie_writes_together_total"] = float64(st.BatchedWrites)
		out["coterie_sessions_lent_to_kernel_total"] = float64(st.Offloaded)
		out["coterie_requests_by_kernel_total"] = float64(st.RelayedByKernel)
		for why, k := range st.KernelPath {
			out[fmt.Sprintf("coterie_sessions_back_from_kernel_total{reason=%q}", why)] = float64(k)
		}
		out["coterie_backends_waiting"] = float64(st.Pool.Waiting)
		out[`coterie_backends_taken_total{from="ahead"}`] = float64(st.Pool.Ahead)
		out[`coterie_backends_taken_total{from="reused"}`] = float64(st.Pool.Reused)
		for why, k := range st.Pool.Dropped {
			out[fmt.Sprintf("coterie_backends_dropped_total{reason=%q}", why)] = float64(k)
		}
		out["coterie_routing_fallbacks_total"] = float64(st.FellBack)
		out["coterie_logins_queued_total"] = float64(st.Queued)
		out["coterie_sessions_moved_total"] = float64(st.Moved)
		for why, k := range st.Unmoved {
			out[fmt.Sprintf("coterie_sessions_not_moved_total{reason=%q}", why)] = float64(k)
		}
		out["coterie_routing_lagged_total"] = float64(st.Lagged)
		for k, count := range st.Routed {
			out[fmt.Sprintf("coterie_sessions_routed_total{intent=%q,replica=%q}", k.Intent, k.Replica)] = float64(count)
		}
		if last := st.LastMinute; len(last) > 0 {
			out["coterie_routed_pct"] = last[len(last)-1].RoutedPct()
		}
	}
	s.Clients.Metrics(out)
	if s.Links != nil {
		s.Links.Metrics(out)
	}
	out["coterie_endpoint_refused_total"] = float64(s.Endpoint.Refused())
	r := s.Endpoint.Relayed()
	out["coterie_relays_open"], out["coterie_relays_total"], out["coterie_relayed_bytes_total"] = float64(r.Open), float64(r.Total), float64(r.Bytes)
	return out
}

// addAvailability adds the judgement of the group, as this node gives it.
func addAvailability(out map[string]float64, r availability.Report) {
	out["coterie_writable"], out["coterie_commits_blocked"], out["coterie_commits_blocked_seconds"] = truth(r.Writable), truth(r.Blocked), r.BlockedSeconds
	out["coterie_automatic_failover_ready"] = truth(r.Ready())
	for _, f := range r.Failures {
		out[fmt.Sprintf("coterie_failure_survived{member=%q}", f.Member)] = truth(f.Outcome == availability.Survived)
	}
	for _, severity := range []availability.Severity{availability.Critical, availability.Warning} {
		n := 0
		for _, p := range r.Problems {
			if p.Severity == severity {
				n++
			}
		}
		out[fmt.Sprintf("coterie_problems{severity=%q}", severity)] = float64(n)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
