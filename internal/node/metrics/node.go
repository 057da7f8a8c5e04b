package metrics

import (
	"maps"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lib/storage"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// node sets what is true of the process, its ports and its files.
func (s sink) node(f Facts) {
	s.flag("coterie_build_info", true, f.Build.Version, f.Build.Commit, f.Build.PostgreSQL)
	s.time("coterie_uptime_seconds", f.Uptime)
	for rule, n := range f.Transitions {
		s.count("coterie_decision_transitions_total", n, string(rule))
	}
	for of, end := range f.Expiry {
		s.at("coterie_certificate_expiry_timestamp_seconds", end, of)
	}
	s.flag("coterie_authority_rotation", f.Status.Rotation != nil)
	places := map[string]bool{}
	for _, x := range f.Space {
		if len(places) == maxValues || places[x.Place] {
			continue
		}
		places[x.Place] = true
		s.set("coterie_disk_free_bytes", float64(x.Free), x.Place)
		s.set("coterie_disk_size_bytes", float64(x.Total), x.Place)
	}
	s.storage(f.Storage)
	s.count("coterie_log_rotations_total", f.Logs.Replaced)
	s.count("coterie_log_rotation_failures_total", f.Logs.Failed)
	s.count("coterie_http_refused_total", f.HTTP)
	if w := f.Browsers; w != nil {
		s.count("coterie_https_refused_total", w.Refused)
		s.set("coterie_https_sessions_open", float64(w.Sessions))
		s.counts("coterie_https_limit_reached_total", w.Limits)
		s.set("coterie_https_streams_open", float64(w.Streams))
		s.count("coterie_https_streams_dropped_total", w.Dropped)
	}
	if h := f.Hooks; h != nil {
		s.count("coterie_hook_runs_total", h.Done, "done")
		s.count("coterie_hook_runs_total", h.Failed, "failed")
		s.count("coterie_hook_events_dropped_total", h.Dropped)
	}
	for name, w := range f.Webhooks {
		s.count("coterie_webhook_tries_total", w.Sent, name, "done")
		s.count("coterie_webhook_tries_total", w.Failed, name, "failed")
		s.count("coterie_webhook_events_lost_total", w.Dropped, name, "queue full")
		s.count("coterie_webhook_events_lost_total", w.Refused, name, "refused")
		s.count("coterie_webhook_events_lost_total", w.Abandoned, name, "given up")
		s.set("coterie_webhook_events_waiting", float64(w.Waiting), name)
		s.time("coterie_webhook_failing_seconds", w.Failing, name)
	}
	s.set("coterie_console_sessions_open", float64(f.Console.Sessions))
	s.counts("coterie_console_limit_reached_total", f.Console.Limits)
}

// storage sets how the mirrors are that directories with data stand on.
func (s sink) storage(all []storage.Volume) {
	devices := 0
	for _, v := range all[:min(len(all), maxValues)] {
		if v.Mirrored && v.State != storage.Unknown {
			s.flag("coterie_storage_degraded", v.State == storage.Degraded, v.Dir)
		}
		told := map[string]bool{}
		for _, d := range v.Devices {
			if devices == maxValues || told[d.Name] {
				continue
			}
			told[d.Name] = true
			devices++
			for kind, n := range map[string]int64{"read": d.Reads, "write": d.Writes, "flush": d.Flushes, "checksum": d.Corruption, "generation": d.Generation} {
				s.set("coterie_storage_device_errors", float64(n), v.Dir, d.Name, kind)
			}
		}
		if x := v.Filling; x != nil && x.Done >= 0 {
			s.set("coterie_storage_resync_ratio", x.Done, v.Dir)
		}
		if x := v.Filling; x != nil && x.Rate > 0 {
			s.set("coterie_storage_resync_bytes_per_second", float64(x.Rate), v.Dir)
		}
	}
}

// group sets the judgement of the group, and what its record says.
func (s sink) group(f Facts) {
	a := f.Status.Availability
	s.flag("coterie_writable", a.Writable)
	s.flag("coterie_commits_blocked", a.Blocked)
	s.set("coterie_commits_blocked_seconds", a.BlockedSeconds)
	s.flag("coterie_automatic_failover_ready", a.Ready())
	survives, _ := a.Survives()
	s.set("coterie_failures_survivable", float64(len(survives)))
	for _, x := range a.Failures {
		s.flag("coterie_failure_survived", x.Outcome == availability.Survived, string(x.Member))
	}
	for _, severity := range []availability.Severity{availability.Critical, availability.Warning} {
		n := 0
		for _, p := range a.Problems {
			if p.Severity == severity {
				n++
			}
		}
		s.set("coterie_problems", float64(n), string(severity))
	}
	s.count("coterie_configurations_refused_total", f.Status.Configuration.Refused)
	s.count("coterie_records_refused_total", f.Status.Record.Refused)
	s.count("coterie_operator_requests_refused_total", f.Status.Requests.Refused)
	for key, n := range f.Failovers.Count {
		s.count("coterie_failovers_total", n, string(key.Kind), string(key.Cause))
	}
	if last := f.Failovers.Last; !last.IsZero() {
		s.time("coterie_last_failover_outage_seconds", f.Failovers.Outage)
		s.at("coterie_last_failover_timestamp_seconds", last)
	}
	if !f.Known {
		return
	}
	s.set("coterie_epoch", float64(f.Status.Epoch))
	s.flag("coterie_quorum", f.Status.Quorum)
	s.set("coterie_quorum_voters", float64(f.Status.Voters))
	s.set("coterie_acknowledging_members", float64(len(f.Status.SyncMembers)))
	s.set("coterie_acknowledgements_required", float64(f.Status.SyncCount))
	s.flag("coterie_maintenance", f.Status.Maintenance != nil)
	for _, r := range f.Status.Replicas {
		if r.Voter {
			s.flag("coterie_quorum_voter_up", r.Connected == connected && r.NoVote == "", string(r.Name))
		}
	}
}

// connected is the state of a replica that answers.
const connected = "CONNECTED"

var (
	roles  = []string{string(ag.RolePrimary), string(ag.RoleSecondary), string(ag.RoleResolving)}
	states = []string{string(ag.Synchronized), string(ag.Synchronizing), string(ag.NotSynchronizing), string(ag.Initializing), string(ag.Reverting)}
)

// members sets how each replica is.
func (s sink) members(f Facts) {
	if f.Lease != nil {
		s.time("coterie_lease_remaining_seconds", *f.Lease)
	}
	if !f.Known {
		return
	}
	streams := map[ag.ReplicaID]Stream{}
	if f.Server != nil {
		for _, x := range f.Server.Streams {
			streams[x.Member] = x
		}
	}
	for _, r := range f.Status.Replicas {
		if r.Name == f.Status.Node {
			s.flag("coterie_primary", r.Role == ag.RolePrimary)
		}
		if r.Mode == ag.ConfigurationOnly {
			continue
		}
		s.member(r)
		x, streaming := streams[r.Name]
		switch {
		case streaming:
			s.stream(x)
		case r.LagBytes != nil:
			s.set("coterie_replica_lag_bytes", float64(*r.LagBytes), string(r.Name))
		}
	}
}

func (s sink) member(r api.Replica) {
	id := string(r.Name)
	s.one("coterie_replica_role", string(r.Role), id, roles)
	s.one("coterie_replica_synchronization_state", string(r.Sync), id, states)
	s.flag("coterie_replica_connected", r.Connected == connected, id)
	s.flag("coterie_replica_suspended", r.Suspended, id)
	s.flag("coterie_replica_quarantined", r.Quarantine != "", id)
	s.flag("coterie_replica_ill", r.Ill != "", id)
	s.flag("coterie_replica_maintenance", r.Maintenance != nil, id)
}

func (s sink) stream(x Stream) {
	id := string(x.Member)
	s.set("coterie_replica_lag_bytes", float64(x.Lag), id)
	s.time("coterie_replica_lag_seconds", x.Behind, id)
	s.set("coterie_replica_send_queue_bytes", float64(x.SendQueue), id)
	s.set("coterie_replica_redo_queue_bytes", float64(x.Redo), id)
	s.time("coterie_replica_redo_lag_seconds", x.ReplayedBehind, id)
}

// server sets how this node's PostgreSQL is.
func (s sink) server(f Facts, x Server) {
	if x.Answers {
		s.set("coterie_wal_flushed_position_bytes", float64(x.Flushed))
		s.set("coterie_commits_waiting", float64(x.Waiting))
		if x.Replayed != 0 {
			s.set("coterie_wal_replayed_position_bytes", float64(x.Replayed))
			s.set("coterie_replay_bytes_per_second", x.Replay)
			s.set("coterie_replica_redo_queue_bytes", float64(max(x.Flushed, x.Replayed)-x.Replayed), string(f.Status.Node))
		}
		s.slots(x.Slots)
	}
	s.commitWaits(x)
	if x.Pending != nil {
		s.set("coterie_settings_pending_restart", float64(*x.Pending))
	}
	s.count("coterie_fences_total", x.Fences)
	if !x.LastFence.IsZero() {
		s.at("coterie_last_fence_timestamp_seconds", x.LastFence)
	}
	s.count("coterie_server_ends_total", x.Ends)
	if x.Log != nil {
		s.count("coterie_answers_confirmed_without_log_total", x.Log.Confirmed)
		s.flag("coterie_server_log_sound", x.Log.Sound)
	}
	s.seedings(x.Seedings)
}

// slots sets what the replication slots retain: of too many, those that retain the most.
func (s sink) slots(list []Slot) {
	list = slices.SortedFunc(slices.Values(list), func(a, b Slot) int { return int(min(max(b.Retained-a.Retained, -1), 1)) })
	for _, x := range list[:min(len(list), maxValues)] {
		s.set("coterie_slot_retained_bytes", float64(x.Retained), x.Name)
		s.flag("coterie_slot_active", x.Active, x.Name)
	}
}

func (s sink) seedings(list []seeding.Operation) {
	count := map[seeding.State]uint64{}
	for _, state := range []seeding.State{seeding.Pending, seeding.Seeding, seeding.Verifying, seeding.Retrying, seeding.Completed, seeding.Failed, seeding.Cancelled} {
		count[state] = 0
	}
	var now *seeding.Operation
	for i, op := range list {
		count[op.State]++
		if op.State == seeding.Seeding {
			now = &list[i]
		}
	}
	for state, n := range count {
		s.count("coterie_seedings", n, string(state))
	}
	if now != nil {
		s.set("coterie_seeding_done_bytes", float64(now.Progress.Done))
		s.set("coterie_seeding_size_bytes", float64(now.Progress.Total))
		s.set("coterie_seeding_bytes_per_second", now.Progress.Rate)
	}
}

// between sets what travels between this node and the others.
func (s sink) between(f Facts) {
	s.count("coterie_endpoint_refused_total", f.Endpoint.Refused)
	r := f.Endpoint.Relayed
	s.set("coterie_relays_open", float64(r.Open))
	s.count("coterie_relays_total", uint64(r.Total))
	s.count("coterie_relayed_bytes_total", uint64(r.Bytes))
	links := together(f.Status.Links)
	for _, peer := range slices.Sorted(maps.Keys(links)) {
		s.link(string(peer), links[peer])
	}
}

// together returns the links to each peer as one: what they sent and received is added up, and the rest is that of the
// last.
func together(list []api.Link) map[ag.ReplicaID]api.Link {
	out := map[ag.ReplicaID]api.Link{}
	for _, x := range list {
		sum := out[x.Peer]
		x.Sent, x.SentEncoded, x.EncodeSeconds = x.Sent+sum.Sent, x.SentEncoded+sum.SentEncoded, x.EncodeSeconds+sum.EncodeSeconds
		x.Received, x.ReceivedEncoded, x.DecodeSeconds = x.Received+sum.Received, x.ReceivedEncoded+sum.ReceivedEncoded, x.DecodeSeconds+sum.DecodeSeconds
		x.SentTwice, x.Resent, x.Packets, x.Lost = x.SentTwice+sum.SentTwice, x.Resent+sum.Resent, x.Packets+sum.Packets, x.Lost+sum.Lost
		out[x.Peer] = x
	}
	return out
}

func (s sink) link(peer string, x api.Link) {
	s.count("coterie_link_sent_bytes", x.Sent, peer)
	s.count("coterie_link_sent_encoded_bytes", x.SentEncoded, peer)
	s.set("coterie_link_encode_seconds", x.EncodeSeconds, peer)
	s.count("coterie_link_received_bytes", x.Received, peer)
	s.count("coterie_link_received_encoded_bytes", x.ReceivedEncoded, peer)
	s.set("coterie_link_decode_seconds", x.DecodeSeconds, peer)
	s.count("coterie_link_sent_twice_bytes", x.SentTwice, peer)
	s.count("coterie_link_resent_bytes", x.Resent, peer)
	if x.SentEncoded > 0 {
		s.set("coterie_link_compression_ratio", float64(x.Sent)/float64(x.SentEncoded), peer)
	}
	s.flag("coterie_link_codec", true, peer, strings.TrimSpace(x.Codec))
	s.set("coterie_link_round_trip_seconds", x.RTT/1000, peer)
	s.set("coterie_link_loss_ratio", float64(x.Lost)/float64(max(x.Packets, 1)), peer)
	s.set("coterie_link_carried_bytes_per_second", float64(x.Carried), peer)
}

// backupRuns sets what the replicas make and restore.
func (s sink) backupRuns(all map[ag.ReplicaID]BackupRun) {
	for id, r := range all {
		s.flag("coterie_backup_running", r.UnderWay, string(id))
		if r.UnderWay {
			s.set("coterie_backup_done_ratio", r.Done, string(id))
		}
		s.set("coterie_restores_interrupted", float64(r.Interrupted), string(id))
	}
}

// backup sets how the backups and the archiving are.
func (s sink) backup(b *Backup) {
	if b == nil {
		return
	}
	if b.Age != nil {
		s.time("coterie_backup_last_success_age_seconds", *b.Age)
	}
	if b.Node != "" {
		s.flag("coterie_backup_last_made_on", true, b.Node)
	}
	if b.Primary {
		s.set("coterie_archive_waiting_segments", float64(b.Waiting))
		s.count("coterie_archive_failures_total", uint64(max(0, b.Failed)))
		s.flag("coterie_archive_failing", b.Failing)
		s.set("coterie_archive_waiting_bytes", float64(b.Kept))
		if b.Behind != nil {
			s.time("coterie_archive_behind_seconds", *b.Behind)
		}
		if b.FullIn != nil {
			s.time("coterie_archive_full_in_seconds", *b.FullIn)
		}
	}
}
