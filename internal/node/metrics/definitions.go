package metrics

// Kind is the type of a metric, in Prometheus's words.
type Kind string

// The types of metrics.
const (
	Gauge   Kind = "gauge"
	Counter Kind = "counter" // since the agent started, unless its meaning says otherwise
	Summary Kind = "summary"
)

// The units of values. A metric without one counts things.
const (
	seconds   = "seconds"
	timestamp = "seconds since 1970"
	bytes     = "bytes"
	speed     = "bytes per second"
	ratio     = "ratio"
	percent   = "percent"
	flag      = "0 or 1"
)

// Definition is the description of a metric. Its name, type and labels are stable.
type Definition struct {
	Name   string
	Kind   Kind
	Unit   string // "": it counts things
	Labels []string
	Help   string
}

// Section is a group of metrics that belong together.
type Section struct {
	Title   string
	Metrics []Definition
}

// Definitions returns every metric, in the order in which a reader meets them.
func Definitions() []Section { return []Section{node, group, members, server, clients, between} }

func labels(names ...string) []string { return names }

var node = Section{"The node", []Definition{
	{"coterie_build_info", Gauge, flag, labels("version", "commit", "postgresql"), "Always 1, with the version and the commit of the program, and the version of PostgreSQL."},
	{"coterie_uptime_seconds", Gauge, seconds, nil, "Time since the agent started."},
	{"coterie_decision_transitions_total", Counter, "", labels("rule"), "Times that a rule of the decision fired where another one had fired before."},
	{"coterie_certificate_expiry_timestamp_seconds", Gauge, timestamp, labels("certificate"), "When a certificate ends: node, listener, or authority (on replicas)."},
	{"coterie_authority_rotation", Gauge, flag, nil, "Whether the group's certificate authority is being replaced."},
	{"coterie_disk_free_bytes", Gauge, bytes, labels("place"), "Room that is left for PostgreSQL in a directory that it writes to."},
	{"coterie_disk_size_bytes", Gauge, bytes, labels("place"), "Size of the file system of that directory."},
	{"coterie_storage_degraded", Gauge, flag, labels("directory"), "Whether the mirror that a directory with data stands on has lost a side, or a side lacks writes. Absent without a mirror."},
	{"coterie_storage_device_errors", Gauge, "", labels("directory", "device", "kind"), "Errors of a device below a directory with data that its layer has counted. Kind: read, write, flush, checksum, generation."},
	{"coterie_storage_resync_ratio", Gauge, ratio, labels("directory"), "How far the filling or comparing of a side has come, from 0 to 1. Absent while nothing does, or if it is not known; so is the next."},
	{"coterie_storage_resync_bytes_per_second", Gauge, speed, labels("directory"), "Its rate."},
	{"coterie_log_rotations_total", Counter, "", nil, "Files of the agent's log that were replaced because they were large."},
	{"coterie_log_rotation_failures_total", Counter, "", nil, "Times that a large file of the agent's log could not be replaced."},
	{"coterie_http_refused_total", Counter, "", nil, "Connections refused at the HTTP port since it had as many as it takes."},
	{"coterie_https_refused_total", Counter, "", nil, "Connections refused at the port of the console in the browser."},
	{"coterie_https_sessions_open", Gauge, "", nil, "Sessions of the console in the browser."},
	{"coterie_https_limit_reached_total", Counter, "", labels("limit"), "Times that a limit of the console in the browser was reached."},
	{"coterie_https_streams_open", Gauge, "", nil, "Streams of events that browsers read."},
	{"coterie_https_streams_dropped_total", Counter, "", nil, "Streams of events that ended because their reader was slow."},
	{"coterie_hook_runs_total", Counter, "", labels("result"), "Commands of hooks.d that were run for an event. Result: done, or failed. Absent without that directory, as is the next."},
	{"coterie_hook_events_dropped_total", Counter, "", nil, "Events for which no command was run, because too many waited."},
	{"coterie_webhook_tries_total", Counter, "", labels("webhook", "result"), "Requests to a receiver of events. Result: done, or failed. Absent without webhooks in coterie.yaml, as are the next three."},
	{"coterie_webhook_events_lost_total", Counter, "", labels("webhook", "reason"), "Events that a receiver did not get. Reason: queue full, refused (by the receiver), or given up (after many tries, or an hour)."},
	{"coterie_webhook_events_waiting", Gauge, "", labels("webhook"), "Events that wait for a receiver, the one that is tried among them."},
	{"coterie_webhook_failing_seconds", Gauge, seconds, labels("webhook"), "For how long every try has failed; 0: the last one did not."},
	{"coterie_console_sessions_open", Gauge, "", nil, "Sessions of the database coterie, the console."},
	{"coterie_console_limit_reached_total", Counter, "", labels("limit"), "Times that a limit of the console was reached."},
}}

var group = Section{"The group, as this node sees it", []Definition{
	{"coterie_writable", Gauge, flag, nil, "Whether a primary takes writes."},
	{"coterie_commits_blocked", Gauge, flag, nil, "Whether the primary is there and acknowledges no commit."},
	{"coterie_commits_blocked_seconds", Gauge, seconds, nil, "For how long no commit has been acknowledged; 0: commits are acknowledged."},
	{"coterie_automatic_failover_ready", Gauge, flag, nil, "Whether a replica would take over without a person if the primary failed now."},
	{"coterie_failures_survivable", Gauge, "", nil, "Members of which any one may fail now: the group would go on taking writes without a person."},
	{"coterie_failure_survived", Gauge, flag, labels("member"), "Whether the group would survive the failure of that member now; 0 also for a member that does not answer."},
	{"coterie_problems", Gauge, "", labels("severity"), "Root causes that a person must mend: Critical or Warning. The view coterie.problems names them."},
	{"coterie_configurations_refused_total", Counter, "", nil, "Configurations in the quorum's store that were refused: no replica had signed them, or they were older than one seen."},
	{"coterie_records_refused_total", Counter, "", nil, "Parts of the record in the quorum's store that were refused: no replica had written them where they stood."},
	{"coterie_operator_requests_refused_total", Counter, "", nil, "Requests of operators in the quorum's store, such as forced failovers, that were refused: no replica had signed them, they were put back, or another configuration was in use by then."},
	{"coterie_epoch", Gauge, "", nil, "Epoch of the group's record. It grows with every change of the leadership."},
	{"coterie_quorum", Gauge, flag, nil, "Whether a majority of the quorum answers this node."},
	{"coterie_quorum_voters", Gauge, "", nil, "Voting members of the quorum, by the configuration."},
	{"coterie_quorum_voter_up", Gauge, flag, labels("member"), "Whether a member that votes answers, and its member of the quorum runs."},
	{"coterie_acknowledging_members", Gauge, "", nil, "Members that may acknowledge commits, by the record."},
	{"coterie_acknowledgements_required", Gauge, "", nil, "How many of those a commit waits for."},
	{"coterie_maintenance", Gauge, flag, nil, "Whether automatic failover is off for maintenance."},
	{"coterie_failovers_total", Counter, "", labels("kind", "reason"), "Changes of the leadership that this node saw. Kind: planned, automatic, forced, or return (the same replica leads again). Each kind and reason that can occur is there from the start."},
	{"coterie_last_failover_outage_seconds", Gauge, seconds, nil, "How long the last change of the leadership took: from the last sign that the previous primary served to the first one of the next, as this node saw them. Absent before the first."},
	{"coterie_last_failover_timestamp_seconds", Gauge, timestamp, nil, "When the last change of the leadership had ended. Absent before the first."},
}}

var members = Section{"The members, as this node sees them", []Definition{
	{"coterie_primary", Gauge, flag, nil, "Whether this node is the primary."},
	{"coterie_replica_role", Gauge, flag, labels("replica", "role"), "The role of a replica: 1 for the one of PRIMARY, SECONDARY and RESOLVING that it has."},
	{"coterie_replica_synchronization_state", Gauge, flag, labels("replica", "state"), "The synchronization state of a replica: 1 for the one that it has."},
	{"coterie_replica_connected", Gauge, flag, labels("replica"), "Whether the replica answers this node."},
	{"coterie_replica_suspended", Gauge, flag, labels("replica"), "Whether its data movement is suspended."},
	{"coterie_replica_quarantined", Gauge, flag, labels("replica"), "Whether its copy is not trusted."},
	{"coterie_replica_ill", Gauge, flag, labels("replica"), "Whether it has a problem that counts as a failure at the group's FAILURE_CONDITION_LEVEL."},
	{"coterie_replica_maintenance", Gauge, flag, labels("replica"), "Whether it is out of routing and no target of failovers for maintenance."},
	{"coterie_replica_lag_bytes", Gauge, bytes, labels("replica"), "WAL that the primary has and the replica does not have durably."},
	{"coterie_replica_lag_seconds", Gauge, seconds, labels("replica"), "For how long the replica has not had all durably that the primary wrote, to about a second; 0 for an idle group. On the primary only."},
	{"coterie_replica_send_queue_bytes", Gauge, bytes, labels("replica"), "WAL that the primary's server has not sent to the replica. On the primary only."},
	{"coterie_replica_redo_queue_bytes", Gauge, bytes, labels("replica"), "WAL that the replica has durably and has not replayed. On the primary, for each replica that streams, and on the replica for itself."},
	{"coterie_replica_redo_lag_seconds", Gauge, seconds, labels("replica"), "For how long the replica has not replayed all that the primary wrote, to about a second; 0 for an idle group. On the primary only."},
	{"coterie_lease_remaining_seconds", Gauge, seconds, nil, "What is left of the right to act as the primary. On the primary only."},
}}

var server = Section{"PostgreSQL on this node", []Definition{
	{"coterie_wal_flushed_position_bytes", Gauge, bytes, nil, "End of the WAL that is durable here, as a position. It goes back when a copy is rewound."},
	{"coterie_wal_replayed_position_bytes", Gauge, bytes, nil, "End of the WAL that is replayed here, as a position. On secondaries only."},
	{"coterie_replay_bytes_per_second", Gauge, speed, nil, "WAL replayed here in the last ten seconds. On secondaries only."},
	{"coterie_slot_retained_bytes", Gauge, bytes, labels("slot"), "WAL that a replication slot keeps from being removed."},
	{"coterie_slot_active", Gauge, flag, labels("slot"), "Whether the replication slot is in use."},
	{"coterie_commits_waiting", Gauge, "", nil, "Sessions whose commit waits for synchronous replication."},
	{"coterie_commit_wait_seconds", Summary, seconds, nil, "What commits waited for synchronous replication, each block of WAL counted once. The quantiles are those of the last minute or two."},
	{"coterie_commit_wait_max_seconds", Gauge, seconds, nil, "The longest such wait since the agent started."},
	{"coterie_settings_pending_restart", Gauge, "", nil, "Settings whose value waits for a restart of the server. Absent while the server does not say."},
	{"coterie_fences_total", Counter, "", nil, "Times that the keeper fenced the server: ended it because it had no right to take writes."},
	{"coterie_last_fence_timestamp_seconds", Gauge, timestamp, nil, "When the keeper last fenced the server. Absent if it never has."},
	{"coterie_server_ends_total", Counter, "", nil, "Times that the server ended, in order or not, since the keeper started."},
	{"coterie_server_log_sound", Gauge, flag, nil, "Whether the server's log can be relied on to tell of cancelled waits."},
	{"coterie_backup_last_success_age_seconds", Gauge, seconds, nil, "Time since the newest backup in the repository ended. A node without backups enabled has it from the others. Absent where none has, and before the first."},
	{"coterie_backup_last_made_on", Gauge, flag, []string{"replica"}, "1 for the replica on which the newest backup in the repository was made. Absent as the time, and where the repository does not tell it."},
	{"coterie_backup_running", Gauge, flag, []string{"replica"}, "Whether a backup is made on the replica now, by what it told this node in the last half minute. Absent for one that does not tell."},
	{"coterie_backup_done_ratio", Gauge, ratio, []string{"replica"}, "The part of its files that is copied. Absent while none is made there."},
	{"coterie_restores_interrupted", Gauge, "", []string{"replica"}, "Restores and drills begun from the replica whose process is gone and whose directory is still there. Absent as coterie_backup_running."},
	{"coterie_archive_waiting_segments", Gauge, "", nil, "WAL segments that wait to be archived. On the primary only, and only where backups are enabled, as are the next five."},
	{"coterie_archive_failures_total", Counter, "", nil, "Tries to archive a segment that failed, since the server's statistics were reset."},
	{"coterie_archive_failing", Gauge, flag, nil, "Whether the last try to archive a segment failed."},
	{"coterie_archive_behind_seconds", Gauge, seconds, nil, "Since when the archive lacks WAL that is complete. Absent while nothing waits."},
	{"coterie_archive_waiting_bytes", Gauge, bytes, nil, "What the segments that wait take on the disk of WAL."},
	{"coterie_archive_full_in_seconds", Gauge, seconds, nil, "Time until that disk is full at the rate at which what waits becomes more. Absent while it does not."},
	{"coterie_seedings", Gauge, "", labels("state"), "Remembered copies to this node, and verifications, by state."},
	{"coterie_seeding_done_bytes", Gauge, bytes, nil, "Bytes of files that are settled, of the copy to this node that is under way. Absent without one."},
	{"coterie_seeding_size_bytes", Gauge, bytes, nil, "Bytes of all its files; 0 while that is not known."},
	{"coterie_seeding_bytes_per_second", Gauge, speed, nil, "Its rate, lately."},
}}

var clients = Section{"Clients of this node's listener", []Definition{
	{"coterie_sessions_open", Gauge, "", nil, "Sessions."},
	{"coterie_sessions", Gauge, "", labels("intent", "path", "state"), "Sessions of clients that are connected here. Path: kernel, loop or goroutines carry their bytes."},
	{"coterie_sessions_carried_total", Counter, "", labels("path"), "Sessions of clients that are or were connected here, by each path that carried them for a while: kernel, loop or goroutines. One that was moved to another server counts again."},
	{"coterie_sessions_for_others", Gauge, "", nil, "Sessions on this node's server whose client is connected to another node."},
	{"coterie_sessions_accepted_total", Counter, "", nil, "Connections that were accepted."},
	{"coterie_connections_unauthenticated", Gauge, "", nil, "Connections whose client is not authenticated yet."},
	{"coterie_logins_total", Counter, "", nil, "Logins that became a session."},
	{"coterie_logins_waiting", Gauge, "", nil, "Logins that wait for a replica."},
	{"coterie_logins_queued_total", Counter, "", nil, "Times that a login waited for its turn to start a session."},
	{"coterie_logins_by_loops_total", Counter, "", nil, "Logins that an event loop completed."},
	{"coterie_clients_rejected_total", Counter, "", labels("reason"), "Clients that got no session."},
	{"coterie_refusals_total", Counter, "", labels("sqlstate"), "Clients that were told why they get no session, by SQLSTATE; other: any that Coterie does not report itself."},
	{"coterie_sessions_ended_total", Counter, "", labels("reason"), "Sessions that the listener ended."},
	{"coterie_cancels_total", Counter, "", nil, "Cancel requests that were delivered."},
	{"coterie_sessions_routed_total", Counter, "", labels("intent", "replica"), "Sessions by the replica that they were routed to."},
	{"coterie_routing_fallbacks_total", Counter, "", nil, "Read-only sessions that went to the primary, because no secondary could take them."},
	{"coterie_routing_lagged_total", Counter, "", nil, "Times that a replica was passed over: for coterie.max_lag, or since a session that moves had perhaps seen more elsewhere."},
	{"coterie_routed_pct", Gauge, percent, nil, "Part of the readers that went to a secondary, in the last second in which any came. Absent after a minute without one."},
	{"coterie_routed_ratio", Gauge, ratio, nil, "Part of the readers of the last minute that went to a secondary. Absent without one."},
	{"coterie_sessions_moved_total", Counter, "", nil, "Sessions that were moved to another server."},
	{"coterie_sessions_not_moved_total", Counter, "", labels("reason"), "Sessions that a failover had to end, by what could not be moved."},
	{"coterie_requests_repeated_total", Counter, "", nil, "Requests outside a transaction that were under way on a lost server and were executed on the next one: they had changed nothing, or had not reached it."},
	{"coterie_transactions_replayed_total", Counter, "", nil, "Transactions that were open on a lost server and were executed again on the new primary (CONTINUITY = REPLAY)."},
	{"coterie_transactions_not_replayed_total", Counter, "", labels("reason"), "Transactions that failed with 40001 instead, by the reason."},
	{"coterie_commits_in_doubt_total", Counter, "", labels("outcome"), "Requests whose answer was lost with their server, by the outcome: committed and aborted are proved by the new primary; of unknown the client got 08007."},
	{"coterie_outcomes_unknown_total", Counter, "", labels("reason"), "Requests of which the client got 08007, or whose connection was closed within a message, by the reason: state (the session would not have outlived its server), statement (outside a transaction block), not asked (its number), not told (by the server that was lost), answer cut, answer lost, not proved, no server, unconfirmed (by the synchronous secondaries)."},
	{"coterie_requests_held_total", Counter, "", nil, "Requests that a planned failover held."},
	{"coterie_answers_held_total", Counter, "", nil, "Answers that the gate held, because the right to act as the primary was not certain."},
	{"coterie_answers_held_seconds_total", Counter, seconds, nil, "How long, in all."},
	{"coterie_answers_confirmed_total", Counter, "", nil, "Answers held until their commit was confirmed, because its wait may have been cancelled."},
	{"coterie_answers_confirmed_seconds_total", Counter, seconds, nil, "How long, in all."},
	{"coterie_answers_unconfirmed_total", Counter, "", nil, "Those that were discarded, because their commit could not be confirmed."},
	{"coterie_answers_confirmed_without_log_total", Counter, "", nil, "Those held because the server's log cannot be relied on."},
	{"coterie_writes_together_total", Counter, "", nil, "Writes of event loops that shared a system call."},
	{"coterie_sessions_lent_to_kernel_total", Counter, "", nil, "Times that the kernel took a session over."},
	{"coterie_sessions_back_from_kernel_total", Counter, "", labels("reason"), "Times that one came back."},
	{"coterie_requests_by_kernel_total", Counter, "", nil, "Requests that the kernel relayed, of sessions that came back."},
	{"coterie_backends_waiting", Gauge, "", nil, "Backends that wait for a client."},
	{"coterie_backends_taken_total", Counter, "", labels("from"), "Logins that a waiting backend served: one opened ahead, or one reused."},
	{"coterie_backends_dropped_total", Counter, "", labels("reason"), "Waiting backends that were closed."},
}}

var between = Section{"Between nodes", []Definition{
	{"coterie_endpoint_refused_total", Counter, "", nil, "Connections of strangers that were refused at the port between nodes."},
	{"coterie_relays_open", Gauge, "", nil, "Connections of other members that this node relays."},
	{"coterie_relays_total", Counter, "", nil, "Connections of other members that this node relayed."},
	{"coterie_relayed_bytes_total", Counter, bytes, nil, "Bytes that this node relayed."},
	{"coterie_link_sent_bytes", Gauge, bytes, labels("peer"), "WAL that the present links to the peer have sent, before encoding."},
	{"coterie_link_sent_encoded_bytes", Gauge, bytes, labels("peer"), "The same, encoded."},
	{"coterie_link_encode_seconds", Gauge, seconds, labels("peer"), "Time spent on encoding it."},
	{"coterie_link_received_bytes", Gauge, bytes, labels("peer"), "What the present links have received, decoded."},
	{"coterie_link_received_encoded_bytes", Gauge, bytes, labels("peer"), "The same, before decoding."},
	{"coterie_link_decode_seconds", Gauge, seconds, labels("peer"), "Time spent on decoding it."},
	{"coterie_link_sent_twice_bytes", Gauge, bytes, labels("peer"), "Second copies, and redundant shards."},
	{"coterie_link_resent_bytes", Gauge, bytes, labels("peer"), "Bytes sent again after a connection was lost."},
	{"coterie_link_compression_ratio", Gauge, ratio, labels("peer"), "What was sent before encoding, to what was sent. Absent before the first byte."},
	{"coterie_link_codec", Gauge, flag, labels("peer", "codec"), "Always 1, with the codec of what is sent."},
	{"coterie_link_round_trip_seconds", Gauge, seconds, labels("peer"), "Round trip of the link."},
	{"coterie_link_loss_ratio", Gauge, ratio, labels("peer"), "Part of the packets of the last ten seconds that were lost, in both directions."},
	{"coterie_link_carried_bytes_per_second", Gauge, speed, labels("peer"), "What links to the peer carried whenever there was more to send than went; 0: never."},
}}
