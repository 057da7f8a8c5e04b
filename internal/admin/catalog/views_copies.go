package catalog

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// copyViews are the views of the data on each replica.
var copyViews = []view{
	{
		schema: "sys", name: "dm_hadr_database_replica_states", about: "How each copy of each database is. LSNs are positions in bytes; coterie.replicas prints them as PostgreSQL does.",
		columns: cols("database_id i8, group_id u, replica_id u, group_database_id u, is_local b, is_primary_replica b, synchronization_state i4, " +
			"synchronization_state_desc t, is_commit_participant b, synchronization_health i4, synchronization_health_desc t, database_state i4, " +
			"database_state_desc t, is_suspended b, suspend_reason i4, suspend_reason_desc t, recovery_lsn i8, truncation_lsn i8, last_sent_lsn i8, " +
			"last_sent_time ts, last_received_lsn i8, last_received_time ts, last_hardened_lsn i8, last_hardened_time ts, last_redone_lsn i8, " +
			"last_redone_time ts, log_send_queue_size i8, log_send_rate i8, redo_queue_size i8, redo_rate i8, filestream_send_rate i8!, end_of_log_lsn i8, " +
			"last_commit_lsn i8!, last_commit_time ts, low_water_mark_for_ghosts i8!, secondary_lag_seconds i8, quorum_commit_lsn i8!, quorum_commit_time ts!, " +
			"unhardened_queue_size i8"),
		rows: func(f Facts) [][]any { return perCopy(f, f.copyState) },
	},
	{
		schema: "sys", name: "dm_hadr_database_replica_cluster_states", about: "Whether each copy has all acknowledged commits, as the record says.",
		columns: cols("replica_id u, group_database_id u, database_name t, is_failover_ready b, is_pending_secondary_suspend b, is_database_joined b, " +
			"recovery_lsn i8, truncation_lsn i8"),
		rows: func(f Facts) [][]any {
			return perCopy(f, func(r ag.Replica, d Database) []any {
				there := !f.absent(r, d)
				return []any{
					ReplicaUUID(f.Group.ID, r.ID), DatabaseUUID(f.Group.ID, d.Name), d.Name, bit(there && f.failoverReady(r)), int64(0),
					bit(there && r.Join == "" && f.Nodes[r.ID].Data != ag.DataEmpty), lsn(f.recovered()), lsn(f.kept()),
				}
			})
		},
	},
	{
		schema: "sys", name: "dm_hadr_automatic_seeding",
		about: "Copies made, tried and under way, of the whole instance each, as the nodes remember them. One row per copy, seen from the node that is asked: the other side is the remote replica.",
		columns: cols("start_time ts, completion_time ts, ag_id u, ag_db_id u!, ag_remote_replica_id u, operation_id u, is_source b, current_state t, " +
			"performed_seeding b, failure_state i4, failure_state_desc t, error_code i4, number_of_attempts i4"),
		rows: func(f Facts) [][]any { return f.perSeeding(f.automaticSeeding) },
	},
	{
		schema: "sys", name: "dm_hadr_physical_seeding_stats",
		about: "Progress of the latest copy to each replica, also when it failed or is over. Rates and sizes are of files; waits are the destination's, over all its connections.",
		columns: cols("local_physical_seeding_id u, remote_physical_seeding_id u, local_database_id i8!, local_database_name t, remote_machine_name t, role_desc t, " +
			"internal_state_desc t, transfer_rate_bytes_per_second i8, transferred_size_bytes i8, database_size_bytes i8, start_time_utc ts, end_time_utc ts, " +
			"estimate_time_complete_utc ts, total_disk_io_wait_time_ms i8, total_network_wait_time_ms i8, failure_code i4, failure_message t, " +
			"failure_time_utc ts, is_compression_enabled b"),
		rows: func(f Facts) [][]any { return f.perSeeding(f.physicalSeeding) },
	},
}

func perCopy(f Facts, row func(ag.Replica, Database) []any) [][]any {
	var out [][]any
	for _, r := range f.members() {
		if !r.HasData() {
			continue
		}
		for _, d := range f.databases() {
			out = append(out, row(r, d))
		}
	}
	return out
}

// positions are the WAL positions of a copy.
type positions struct {
	sent, flushed, replayed, end ag.LSN
	silent                       time.Duration // since its last report
	idle                         time.Duration // since WAL was sent to it; 0: unknown
	rate                         float64       // bytes per second that are sent
	known                        bool
	streamed                     bool // the primary reports an open stream to it
}

// positionsOf returns the positions of a copy. Those of a secondary come from the primary's stream, which is more
// recent than the secondary's own report.
func (f Facts) positionsOf(r ag.Replica) positions {
	n := f.Nodes[r.ID]
	p := positions{flushed: n.Position.LSN, replayed: n.Replay, end: n.Position.LSN, sent: n.Position.LSN, known: n.Position.LSN != 0}
	if n.Data == ag.DataPartial || n.Data == ag.DataEmpty { // where such a copy ends means nothing
		return positions{}
	}
	for _, s := range f.Nodes[f.Record.Epoch.Leader].Streams {
		if s.Member == r.ID && s.Open {
			p.streamed, p.flushed, p.replayed = true, max(p.flushed, s.Flush), max(p.replayed, s.Apply)
			p.sent, p.silent, p.idle, p.rate = max(p.flushed, s.Sent), s.Silent, s.Idle, s.Rate
		}
	}
	return p
}

// head returns the end of the primary's WAL.
func (f Facts) head() ag.LSN { return f.Nodes[f.Record.Epoch.Leader].Position.LSN }

// recovered returns the start of the current timeline. A copy that has more of the previous timeline must be rewound.
func (f Facts) recovered() ag.LSN {
	if t := f.Record.State.Timelines; len(t) > 0 {
		return t[len(t)-1].Switch
	}
	return 0
}

// kept returns the position up to which every copy has the WAL, so that older WAL is not needed.
func (f Facts) kept() ag.LSN {
	var least ag.LSN
	for _, r := range f.members() {
		if p := f.positionsOf(r); r.HasData() && p.known && (least == 0 || p.flushed < least) {
			least = p.flushed
		}
	}
	return least
}

func lsn(l ag.LSN) any { return orNull(int64(l)) }

// behind returns the distance in KiB, rounded up.
func behind(from, to ag.LSN) int64 {
	if to >= from {
		return 0
	}
	return int64(math.Ceil(float64(from-to) / 1024))
}

func (f Facts) copyState(r ag.Replica, d Database) []any {
	n, p := f.Nodes[r.ID], f.positionsOf(r)
	primary := r.ID == f.Record.Epoch.Leader
	sync, db := f.syncState(r), databaseState(n, f.role(r))
	if f.absent(r, d) {
		sync, db = ag.NotSynchronizing, offline
	}
	state, health := syncStates[sync], DatabaseHealth(r.AvailabilityMode, sync).code()
	_, participant := f.Record.State.InV(r.ID)
	suspended := r.Suspended
	var reason, reasonDesc any
	if suspended {
		reason, reasonDesc = int64(0), "SUSPEND_FROM_USER"
		if r.SuspendedBy == ag.SuspendPartner {
			reason, reasonDesc = int64(1), "SUSPEND_FROM_PARTNER"
		}
	}
	var sent, sentTime, received, redone, sendQueue, sendRate, redoQueue, redoRate, hardenedTime, lag, unhardened any
	if !primary && p.known {
		sent, received = lsn(p.sent), lsn(p.flushed)
		if p.replayed != 0 { // a starting server does not report it
			redone, redoQueue = lsn(p.replayed), behind(p.flushed, p.replayed)
		}
		if n.LogRate > 0 {
			redoRate = int64(n.LogRate / 1024)
		}
		if head := f.head(); head != 0 {
			sendQueue, unhardened = behind(head, p.sent), behind(head, p.flushed)
		}
		if n.Streaming && p.streamed {
			hardenedTime = timeText(f.Now.Add(-p.silent))
			sendRate = int64(p.rate / 1024)
		}
		if p.idle > 0 {
			sentTime = timeText(f.Now.Add(-p.idle))
		}
		lag = f.lag(n, p)
	}
	var commit, redoneTime any
	last := n.Commit
	if primary {
		last, _ = f.lastCommit()
	}
	if last != nil {
		commit = timeText(*last)
	}
	if !primary && n.Commit != nil { // replay reports the time of the last commit that it has passed, by the primary's clock
		redoneTime = timeText(*n.Commit)
	}
	return []any{
		orNull(int64(d.OID)), string(f.Group.ID), ReplicaUUID(f.Group.ID, r.ID), DatabaseUUID(f.Group.ID, d.Name), bit(r.ID == f.Self), bit(primary),
		state.n, state.desc, bit(participant), health.n, health.desc, db.n, db.desc, bit(suspended), reason, reasonDesc, lsn(f.recovered()), lsn(f.kept()),
		sent, sentTime, received, hardenedTime, lsn(p.flushed), hardenedTime, redone, redoneTime, sendQueue, sendRate, redoQueue, redoRate, nil, lsn(p.end), nil, commit, nil, lag, nil, nil, unhardened,
	}
}

// offline is the state of a database whose server does not answer, or does not have it.
var offline = code{6, "OFFLINE"}

// maxListed is the most databases that a node reports.
const maxListed = 1000

// absent reports whether the replica says that the database is not online there, or its server answers and lists no
// such database, as after DROP DATABASE of one that is registered.
func (f Facts) absent(r ag.Replica, d Database) bool { return f.absence(r, d) != "" }

// absence returns why a database is absent; "": it is not.
func (f Facts) absence(r ag.Replica, d Database) string {
	n := f.Nodes[r.ID]
	switch {
	case slices.Contains(n.Offline, d.Name):
		return "it is not online there: its files are missing or cannot be read"
	case len(n.Databases) > 0 && len(n.Databases) < maxListed && !slices.ContainsFunc(n.Databases, func(x Database) bool { return x.Name == d.Name }):
		return "it is registered, and the server has no such database that takes connections"
	}
	return ""
}

func databaseState(n Node, role ag.Role) code {
	switch {
	case n.Busy == "seed":
		return code{1, "RESTORING"}
	case n.Busy == "rewind" || n.Server == ag.ServerStarting:
		return code{2, "RECOVERING"}
	case !n.Connected || n.Server == ag.ServerDown || n.Server == "":
		return offline
	case role == ag.RoleResolving:
		return code{3, "RECOVERY_PENDING"}
	}
	return code{0, "ONLINE"}
}

// lastCommit returns the time of the primary's last commit, by its clock, and whether it is that of the very last one.
// The primary knows it with track_commit_timestamp only. As commits carry their time, it is otherwise taken from the
// secondaries that receive from it: exact if one of them has replayed all of the primary's WAL. nil: not known.
func (f Facts) lastCommit() (at *time.Time, exact bool) {
	if lead := f.Nodes[f.Record.Epoch.Leader]; lead.Commit != nil {
		if at = lead.Commit; lead.Stale == 0 {
			return at, true
		}
	}
	for _, r := range f.members() {
		n := f.Nodes[r.ID]
		if n.Commit == nil || !n.Connected || !n.Streaming {
			continue
		}
		if at == nil || n.Commit.After(*at) {
			at = n.Commit
		}
		exact = exact || f.head() != 0 && f.positionsOf(r).replayed >= f.head()
	}
	return at, exact
}

// lag returns the seconds from a copy's last commit to the primary's, at most those until now where the time of the
// primary's is not known; NULL: not known.
func (f Facts) lag(n Node, p positions) any {
	at, exact := f.lastCommit()
	switch {
	case n.Commit == nil:
		return nil
	case f.head() != 0 && p.replayed >= f.head():
		return int64(0)
	case exact:
		return max(int64(at.Sub(*n.Commit).Seconds()), 0)
	case n.Streaming:
		return max(int64(f.Now.Sub(*n.Commit).Seconds()), 0)
	}
	return nil
}

// dataLoss returns the estimated data loss of a failover in seconds: 0 if the copy is ready, otherwise the difference
// of the last commits. A primary that is silent may have made later ones, so what it said before never shows that
// nothing would be lost.
func (f Facts) dataLoss(r ag.Replica) any {
	if f.failoverReady(r) {
		return float64(0)
	}
	at, exact := f.lastCommit()
	here := f.Nodes[r.ID].Commit
	stale := f.silent()
	if at == nil || !exact && !stale || here == nil || here.After(*at) || stale && here.Equal(*at) {
		return nil
	}
	return at.Sub(*here).Seconds()
}

// dataLossByRate returns the same estimate in seconds by another formula: the WAL that the copy lacks, divided by the
// rate of its generation. All of that WAL was written since the commit that the copy replayed last, whatever the rate
// is now: that of a primary which has become idle would make days of it.
func (f Facts) dataLossByRate(r ag.Replica) any {
	p, rate := f.positionsOf(r), f.Nodes[f.Record.Epoch.Leader].LogRate
	queue := behind(f.head(), p.flushed)
	switch {
	case f.head() == 0 || !p.known:
		return nil
	case queue == 0, queue < little && rate < little*1024: // the rate of an idle server says nothing
		if f.silent() && !f.failoverReady(r) {
			return nil
		}
		return float64(0)
	case rate <= 0:
		return nil
	}
	seconds := float64(queue) * 1024 / rate
	if here := f.Nodes[r.ID].Commit; here != nil {
		seconds = min(seconds, max(f.Now.Sub(*here).Seconds(), 0))
	}
	return seconds
}

// silent reports whether what is known of the primary's log is from before now.
func (f Facts) silent() bool {
	lead := f.Nodes[f.Record.Epoch.Leader]
	return lead.Stale > 0 || !lead.Connected
}

// little is how much of the log, in KiB, is replayed in no time that a person would notice; by second, a slow replay.
const little = 1024

// recovery returns the estimated time that a promotion would spend on replay, in seconds.
func (f Facts) recovery(r ag.Replica) any {
	p, rate := f.positionsOf(r), f.Nodes[r.ID].LogRate
	queue := behind(p.flushed, p.replayed)
	switch {
	case r.ID == f.Record.Epoch.Leader || !p.known || p.replayed == 0:
		return nil
	case queue == 0, queue < little && rate < little*1024: // the rate of an idle server says nothing
		return float64(0)
	case rate <= 0:
		return nil
	}
	return float64(queue) * 1024 / rate
}

// perSeeding returns a row for each copy that the replicas remember, except those for which row returns nil.
func (f Facts) perSeeding(row func(r ag.Replica, s Seeding, newest bool) []any) [][]any {
	var out [][]any
	for _, r := range f.members() {
		all := f.Nodes[r.ID].Seedings
		for i, s := range all {
			if cells := row(r, s, i == len(all)-1); cells != nil {
				out = append(out, cells)
			}
		}
	}
	return out
}

// asSource reports whether the rows of a copy to r are from the view of the source. They are on every node but r
// itself.
func (f Facts) asSource(r ag.Replica) bool { return f.Self != r.ID }

// remote returns the other side of the copy.
func (f Facts) remote(r ag.Replica, s Seeding) ag.ReplicaID {
	if f.asSource(r) {
		return r.ID
	}
	return s.Source
}

func (f Facts) automaticSeeding(r ag.Replica, s Seeding, _ bool) []any {
	var other any
	if id := f.remote(r, s); id != "" {
		other = ReplicaUUID(f.Group.ID, id)
	}
	return []any{
		timeText(s.Started), timeText(s.Ended), string(f.Group.ID), nil, other, s.ID, bit(f.asSource(r)), s.State,
		bit(s.Attempts > 0), orNull(int64(s.Code)), orNull(s.Word), orNull(int64(s.Errno)), int64(s.Attempts),
	}
}

func (f Facts) physicalSeeding(r ag.Replica, s Seeding, newest bool) []any {
	if !newest {
		return nil
	}
	local, far, role := s.ID, s.sourceID(f.Group.ID), "Destination"
	if f.asSource(r) {
		local, far, role = far, local, "Source"
	}
	var left any
	if s.Left > 0 && !s.ended() {
		left = timeText(f.Now.Add(s.Left))
	}
	rate := int64(s.Rate)
	if s.ended() {
		rate = 0
		if took := s.Ended.Sub(s.Started).Seconds(); took > 0 { // the average
			rate = int64(float64(s.Done) / took)
		}
	}
	state := s.State
	if s.Text != "" && !s.ended() {
		state += ": " + s.Text
	}
	return []any{
		local, far, nil, "the whole instance", orNull(string(f.remote(r, s))), role, state, rate, s.Done, s.Total, timeText(s.Started), timeText(s.Ended), left,
		s.Disk.Milliseconds(), s.Net.Milliseconds(), orNull(int64(s.Code)), orNull(s.Failure), timeText(s.FailedAt), bit(s.Packed),
	}
}

// sourceID returns the id of the source's side of the copy: a backup, of which an attempt may need more than one.
func (s Seeding) sourceID(g ag.GroupID) string {
	return uuid.NewSHA1(namespace, []byte("coterie seeding from "+string(s.Source)+" "+string(g)+" "+s.ID)).String()
}

// noBackups is why no backup is made of a replica that has none enabled.
const noBackups = "it has no backups enabled: coterie backup enable there"

var backupView = view{
	schema: "coterie", name: "backup", about: "The group's backups and the archiving of its WAL, as each replica that answers sees them.",
	columns: cols("node t, enabled b, tool t, version t, stanza t, repository t, problem t, last_backup ts, last_backup_label t, is_primary b, archiving b, archived i8, " +
		"last_archived_wal t, last_archived ts, failed i8, last_failed_wal t, last_failed ts, waiting i8, timeline i8, segment_bytes i8, " +
		"waiting_since ts, waiting_bytes i8, waiting_bytes_per_second i8, free_bytes i8, full_in_seconds i8, reason t, last_backup_node t, preferred b, unfit t, " +
		"running_type t, running_since ts, running_pct f, running_phase t, last_failure t, interrupted_restore t"),
	rows: func(f Facts) (out [][]any) {
		for _, r := range f.Group.Replicas {
			n := f.Nodes[r.ID]
			if n.Backup == nil || !n.Connected {
				continue
			}
			row := append([]any{string(r.ID)}, n.Backup.row()...)
			unfit := f.unfitForBackup(r)
			if unfit == "" && !n.Backup.Enabled {
				unfit = noBackups
			}
			row = append(row, orNull(n.Backup.LastNode), bit(unfit == "" && f.PreferredForBackup(r.ID)), orNull(unfit))
			out = append(out, append(row, n.Backup.underWay()...))
		}
		return out
	},
}

// row returns the columns that a node knows by itself.
func (b Backup) row() []any {
	row := []any{
		bit(b.Enabled), orNull(b.Tool), orNull(b.Version), orNull(b.Stanza), orNull(b.Repository), orNull(b.Problem), timeText(b.Last), orNull(b.LastLabel), bit(b.Primary),
	}
	if !b.Primary {
		return append(row, make([]any, 16)...)
	}
	var full any
	if b.FullIn != nil {
		full = *b.FullIn
	}
	return append(row, bit(b.On && b.Ours), b.Archived, orNull(b.LastArchived), timeText(b.ArchivedAt), b.Failed, orNull(b.LastFailed), timeText(b.FailedAt),
		int64(b.Waiting), b.Timeline, b.SegmentSize, timeText(b.Since), b.Kept, b.Rate, b.Free, full, orNull(b.Reason))
}

// underWay returns the columns of what the node makes and restores.
func (b Backup) underWay() []any {
	row := []any{nil, nil, nil, nil, orNull(b.Run.Failure)}
	if b.Run.UnderWay() {
		row = []any{string(b.Run.Kind), timeText(b.Run.Started), b.Run.Percent, orNull(b.Run.Phase), nil}
	}
	var left []string
	for _, r := range b.Restores {
		if r.Interrupted {
			left = append(left, r.Dir)
		}
	}
	return append(row, orNull(strings.Join(left, ", ")))
}

var storageView = view{
	schema: "coterie", name: "storage", about: "The storage below each node's directories with data: one line for each device of a mirror, with the errors that its layer counts. A node that does not answer is shown as it was last known.",
	columns: cols("node t, directory t, kind t, volume t, level t, mirrored b, state t, device t, device_state t, read_errors i8, write_errors i8, flush_errors i8, checksum_errors i8, " +
		"generation_errors i8, resync t, resync_pct f, resync_bytes_per_second i8, finding t, run t"),
	rows: func(f Facts) [][]any {
		var out [][]any
		for _, r := range f.Group.Replicas {
			for _, v := range f.Nodes[r.ID].Storage {
				out = append(out, volumeRows(string(r.ID), v)...)
			}
		}
		return out
	},
}

// volumeRows returns a row for each device of a volume, and one without a device for a volume that has none.
func volumeRows(node string, v storage.Volume) (out [][]any) {
	var resync, pct, rate, finding, run any
	if x := v.Filling; x != nil {
		resync, rate = x.What, orNull(x.Rate)
		if x.Done >= 0 {
			pct = 100 * x.Done
		}
	}
	if found := v.Findings(); len(found) > 0 {
		finding, run = found[0].What, found[0].Run
	}
	row := func(device ...any) {
		first := []any{node, v.Dir, string(v.Kind), v.Name, orNull(v.Level), bit(v.Mirrored), string(v.State)}
		out = append(out, append(append(first, device...), resync, pct, rate, finding, run))
	}
	for _, d := range v.Devices {
		row(d.Name, d.State, d.Reads, d.Writes, d.Flushes, d.Corruption, d.Generation)
	}
	if len(v.Devices) == 0 {
		row(nil, nil, nil, nil, nil, nil, nil)
	}
	return out
}
