package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// demo returns the facts of a healthy group of three replicas and a witness, as node a, the primary, knows them.
func demo() Facts {
	replica := func(id ag.ReplicaID) ag.Replica {
		return ag.Replica{
			ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Endpoint: string(id) + ":5022", Listener: string(id) + ":5432",
			ReadOnly: string(id) + ":5433", HTTP: string(id) + ":8008", Voter: true, EtcdID: 1, Allow: ag.AllowReadOnly,
		}
	}
	w := replica("w")
	w.AvailabilityMode, w.FailoverMode, w.Listener, w.ReadOnly = ag.ConfigurationOnly, ag.Manual, "", ""
	commit := noon.Add(-time.Second)
	dbs := []Database{{5, "postgres"}, {16384, "shop"}}
	secondary := func(l ag.LSN) Node {
		return Node{
			Connected: true, Role: ag.RoleSecondary, Data: ag.DataPresent, Server: ag.ServerRecovery, Position: ag.Position{Timeline: 2, LSN: l}, Replay: l - 0x400,
			Streaming: true, Databases: dbs, Uptime: time.Hour, Commit: &commit, LogRate: 1 << 20,
			Backup: &Backup{Enabled: true, Secondary: true, Tool: "pgbackrest", Version: "2.45", Stanza: "DemoAG", Repository: "/backup", Last: noon, LastLabel: "20260101-120000F", LastNode: "b"},
		}
	}
	return Facts{
		Now: noon, Self: "a", Primary: "a", WriteOpen: true, Quorum: true, Version: "15.18", Profile: "default",
		Availability: availability.Report{
			Level: availability.Degraded, Primary: "a", Writable: true, Automatic: availability.Ready,
			Failures: []availability.Failure{{Member: "b", Outcome: availability.Survived, Primary: "a"}},
			Problems: []availability.Problem{{Severity: availability.Warning, Target: "w", Finding: "w does not vote", Run: "look there"}},
		},
		Group: ag.Group{
			ID: "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab", Name: "DemoAG", CommitRule: ag.RuleQuorum, SessionTimeout: 10 * time.Second,
			Replicas: []ag.Replica{replica("a"), replica("b"), replica("c"), w},
			HBA:      "host all all all scram-sha-256\n", Parameters: map[string]string{"max_connections": "200", "archive_command": "cp %p /secret"},
		},
		Record: ag.Record{
			Epoch: ag.EpochRecord{Epoch: 7, Phase: ag.PhaseLead, Leader: "a", TLI: 2},
			State: ag.State{Leader: "a", V: []ag.Member{{ID: "b"}, {ID: "c"}}, K: 1, Seq: 9, Basis: ag.Position{Timeline: 2}, Timelines: []ag.TimelineEntry{{TLI: 1}, {TLI: 2, Parent: 1, Switch: 64, Epoch: 7}}},
		},
		Nodes: map[ag.ReplicaID]Node{
			"a": {
				Connected: true, Role: ag.RolePrimary, Data: ag.DataPresent, Server: ag.ServerWritable, Position: ag.Position{Timeline: 2, LSN: 0x5000}, Open: true,
				Databases: dbs, Uptime: time.Hour, Commit: &commit, LogRate: 1 << 20,
				Streams: []Stream{
					{Member: "b", Open: true, Sent: 0x5000, Flush: 0x5000, Apply: 0x5000, Rate: 4096},
					{Member: "c", Open: true, Sent: 0x4800, Flush: 0x4000, Apply: 0x3000, Silent: time.Second, Idle: 2 * time.Second},
				},
				Storage: []storage.Volume{
					{
						Dir: "/srv/pg", Mount: "/srv", Kind: storage.Btrfs, Name: "/srv", Level: "raid1", Mirrored: true, State: storage.Degraded,
						Devices: []storage.Device{{Name: "/dev/sda", State: "ok"}, {Name: "/dev/sdb", State: "behind", Writes: 7}}, Filling: &storage.Filling{What: "device replace", Done: 0.5, Rate: 1e6},
					},
					{Dir: "/srv/wal", Kind: storage.Plain, Name: "/dev/sdc", State: storage.None},
				},
				Backup: &Backup{
					Enabled: true, Tool: "pgbackrest", Version: "2.45", Stanza: "DemoAG", Repository: "/backup", Last: noon, LastLabel: "20260101-120000F", Primary: true, On: true, Ours: true,
					Archived: 7, Failed: 1, LastArchived: "000000020000000000000005", ArchivedAt: noon, LastFailed: "000000020000000000000004", FailedAt: noon, Waiting: 2, Timeline: 2, SegmentSize: 16 << 20,
				},
				Links:    []Link{{Peer: "b", Transport: "tcp", Codec: "lz4", RTT: 0.5, Sent: 1000, Encoded: 400, Received: 10, Resent: 1}},
				Commits:  &Commits{Waits: 7, Waited: 21 * time.Millisecond, Max: 9 * time.Millisecond, Mean: 3 * time.Millisecond, P50: 2 * time.Millisecond, P95: 8 * time.Millisecond, P99: 9 * time.Millisecond},
				Sessions: []Session{{ID: 1, User: "app", Database: "shop", Client: "10.0.0.1:5", Intent: ag.ReadWrite, Replica: "a", State: "idle", Since: noon}},
				Outlooks: []Outlook{
					{Replica: "a", Application: "shop", User: "app", Sessions: 3, Failover: Prospect{Fate: "KEPT"}, NodeLoss: Prospect{"ENDS", "it came through the listener of that node"}, ServerLoss: Prospect{Fate: "KEPT"}, Transaction: Prospect{"ENDS", "CONTINUITY = SESSION"}},
					{Replica: "a", Application: "shop", User: "app", Sessions: 1, Failover: Prospect{"ENDS", "it has temporary objects"}, NodeLoss: Prospect{"ENDS", "it came through the listener of that node"}, ServerLoss: Prospect{"ENDS", "it has temporary objects"}, Statement: "CREATE TEMP TABLE"},
					{Replica: "b", Others: true, Sessions: 7, Failover: Prospect{Fate: "LIKELY"}, NodeLoss: Prospect{Fate: "KEPT"}, ServerLoss: Prospect{Fate: "KEPT"}},
				},
				Owners: []OwnerCoverage{
					{Application: "shop", User: "app", Coverage: Coverage{Begin: noon, Looks: 2, Sessions: 8, Failover: Share{8, ""}, NodeLoss: Share{2, "it has set the seed of random (SELECT)"}}},
					{Others: true, Coverage: Coverage{Begin: noon, Looks: 2, Sessions: 4}},
				},
				Coverage: []Coverage{
					{Begin: noon.Add(-time.Hour), Looks: 60, Sessions: 600, Failover: Share{600, ""}, NodeLoss: Share{0, "it came through the listener of that node"}, ServerLoss: Share{450, "it has temporary objects"}, Open: 30, Replayed: Share{6, "CONTINUITY = SESSION"}},
					{Begin: noon, Looks: 1},
				},
				Places:  []Place{{Address: "10.0.0.9/24", State: "ONLINE", Device: "eth0"}},
				Console: "a:8443", Certificates: map[string]time.Time{"node": noon, "listener": noon},
				Readers: []Second{{At: noon, Readers: 4, Routed: 3, Pct: 75}},
				Routes:  &ag.Routes{Epoch: 7, Self: "a", Primary: "a", WriteOpen: true, ReadList: [][]ag.ReplicaID{{"b", "c"}, {"a"}}, Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Healthy: true, Readable: true}}},
			},
			"b": secondary(0x5000), "c": secondary(0x4000), "w": {Connected: true, Role: ag.RoleResolving},
		},
		Settings: func() map[ag.ReplicaID][]Setting {
			return map[ag.ReplicaID][]Setting{"a": {{Name: "max_connections", Value: "100", Source: "default"}}, "b": {{Name: "max_connections", Value: "50", Source: "configuration file", Pending: true}}}
		},
		Journals: func() map[ag.ReplicaID]Journal {
			return map[ag.ReplicaID]Journal{
				"a": {
					Decisions: []Decision{{noon, "serve", "leads epoch 7", 7, 40}}, Events: []Event{{noon, 7, "statement", "ALTER AVAILABILITY GROUP", "by me"}},
					Acts: []Act{{At: noon, User: "me", Privilege: "coterie_operator", Via: "API", From: "10.0.0.7", Operation: "ALTER AVAILABILITY GROUP", Result: ActFailed, Number: 41142, Message: "not SYNCHRONIZED", Took: time.Second}},
				},
				"c": {Decisions: []Decision{{noon, "follow", "streams from a", 7, 40}}},
			}
		},
	}
}

func open(t *testing.T, f *Facts) *Catalog {
	t.Helper()
	c := New(func(context.Context) Facts { return *f })
	t.Cleanup(c.Close)
	return c
}

// kept is a whole answer.
type kept struct {
	columns []Column
	rows    [][]any
	notices []string
}

func (k *kept) Columns(list []Column) error { k.columns = list; return nil }
func (k *kept) Row(values []any) error      { k.rows = append(k.rows, values); return nil }
func (k *kept) Notice(text string)          { k.notices = append(k.notices, text) }

// query returns the whole answer to a query of the user me.
func query(ctx context.Context, c *Catalog, text string, args ...any) ([]Column, [][]any, error) {
	var k kept
	err := c.Query(ctx, Question{User: "me", Text: text, Args: args}, &k)
	return k.columns, k.rows, err
}

// ask returns the answer to a query as lines of values joined by |.
func ask(t *testing.T, c *Catalog, text string, args ...any) string {
	t.Helper()
	_, rows, err := query(t.Context(), c, text, args...)
	if err != nil {
		return "error: " + err.Error()
	}
	var lines []string
	for _, r := range rows {
		var values []string
		for _, v := range r {
			values = append(values, fmt.Sprint(v))
		}
		lines = append(lines, strings.Join(values, "|"))
	}
	return strings.Join(lines, "\n")
}

func TestEveryViewAnswers(t *testing.T) {
	f := demo()
	f.Group.Options.Listeners = []ag.Listener{{Name: "l", Addresses: []string{"10.0.0.9/24"}}}
	f.Nodes["c"] = Node{Connected: true, Busy: "seed", Seedings: []Seeding{{ID: "7a0e7f0e-4c1c-4d4e-9a63-0a9f3f6c1f11", Started: noon, State: "SEEDING", Text: "3 of 9 MiB", Source: "a", Attempts: 1}}}
	c := open(t, &f)
	for _, v := range views {
		columns, rows, err := query(t.Context(), c, "SELECT * FROM "+v.full())
		if err != nil {
			t.Errorf("%s: %v", v.full(), err)
			continue
		}
		if len(columns) != len(v.columns) {
			t.Errorf("%s: %d columns, want %d", v.full(), len(columns), len(v.columns))
		}
		if len(rows) == 0 && v.schema != "pg_catalog" && !strings.HasPrefix(v.about, "Empty") {
			t.Errorf("%s is empty", v.full())
		}
		for i, column := range v.columns {
			if columns[i].Type != column.typ.oid {
				t.Errorf("%s.%s is of type %d, want %d", v.full(), column.name, columns[i].Type, column.typ.oid)
			}
			for _, row := range rows {
				if column.null && row[i] != nil {
					t.Errorf("%s.%s is %v, and is said to be always NULL: %s", v.full(), column.name, row[i], column.meaning)
				}
				if !fits(row[i], column.typ) {
					t.Errorf("%s.%s is %T", v.full(), column.name, row[i])
				}
			}
		}
	}
}

func fits(v any, t columnType) bool {
	switch v.(type) {
	case nil:
		return true
	case bool:
		return t == typeBool
	case int64:
		return t == typeInt4 || t == typeInt8 || t == typeOID
	case float64:
		return t == typeFloat
	case time.Time:
		return t == typeTime
	case string:
		return t == typeText || t == typeUUID
	}
	return false
}

func TestAnswers(t *testing.T) {
	f := demo()
	c := open(t, &f)
	for _, tt := range []struct{ query, want string }{
		{"select name, failure_condition_level, automated_backup_preference_desc, required_synchronized_secondaries_to_commit from sys.availability_groups", "DemoAG|3|SECONDARY|1"},
		{"SELECT ar.replica_server_name, ars.role_desc, ars.synchronization_health_desc FROM sys.dm_hadr_availability_replica_states ars JOIN sys.availability_replicas AS ar ON ar.replica_id = ars.replica_id ORDER BY 1", "a|PRIMARY|HEALTHY\nb|SECONDARY|HEALTHY\nc|SECONDARY|HEALTHY\nw|SECONDARY|HEALTHY"},
		{"SELECT TOP (2) [replica_server_name] FROM [master].[sys].[availability_replicas] WITH (NOLOCK) WHERE replica_server_name <> N'a' ORDER BY replica_server_name DESC", "w\nc"},
		{"select count(*) from sys.dm_hadr_database_replica_states where synchronization_state_desc = 'SYNCHRONIZED'", "6"},
		{"select log_send_queue_size, redo_queue_size, redo_rate from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'c' and database_id = 5", "2|1|1024"},
		{"select unhardened_queue_size, last_sent_lsn, last_received_lsn, recovery_lsn, truncation_lsn, log_send_rate, datediff(second, last_sent_time, now()), datediff(second, last_received_time, now()) from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'c' and database_id = 5", "4|18432|16384|64|16384|0|2|1"},
		{"select wait_type, waiting_tasks_count, wait_time_ms, max_wait_time_ms, node from sys.dm_os_wait_stats", "HADR_SYNC_COMMIT|7|21|9|a"},
		{"select a.cntr_value, b.cntr_value from sys.dm_os_performance_counters a join sys.dm_os_performance_counters b using (instance_name) where a.counter_name = 'Bytes Sent to Replica/sec' and b.counter_name = 'Bytes Sent to Transport/sec'", "1000|400"},
		{"select counter_name, cntr_value from sys.dm_os_performance_counters where instance_name = 'shop:c' and counter_name like '%Queue' order by 1", "Log Send Queue|2\nRecovery Queue|1"},
		{"select max(case when counter_name = 'Transaction Delay' then cntr_value end) * 1.0 / max(case when counter_name = 'Mirrored Write Transactions/sec' then cntr_value end) from sys.dm_os_performance_counters where instance_name = 'shop'", "3"},
		{"select counter_name, cntr_value, cntr_type from sys.dm_os_performance_counters where instance_name = 'shop:c' and counter_name like '%Bytes%/sec' order by 1", "Log Bytes Received/sec|16384|272696576\nRedone Bytes/sec|15360|272696576"},
		{"select counter_name, cntr_value from sys.dm_os_performance_counters where object_name like '%Sync Commit' order by 2", "Delay p50 (us)|2000\nDelay mean (us)|3000\nDelay p95 (us)|8000\nDelay p99 (us)|9000"},
		{"select node, rule, revision from coterie.decisions order by 1", "a|serve|40\nc|follow|40"},
		{"select node, kind, what, because from coterie.events", "a|statement|ALTER AVAILABILITY GROUP|by me"},
		{"select member, transport, codec, replica_bytes, transport_bytes, relay from coterie.streams order by 1", "b|tcp|lz4|1000|400|<nil>\nc|<nil>|<nil>|<nil>|<nil>|<nil>"},
		{"select name, console from coterie.replicas where console is not null", "a|a:8443"},
		{"select node, certificate, expires from coterie.certificates order by 2", "a|listener|2026-11-21 12:00:00 +0000 UTC\na|node|2026-11-21 12:00:00 +0000 UTC"},
		{"select name, estimated_data_loss_by_rate, estimated_recovery from coterie.replicas where name = 'c'", "c|0.00390625|0.0009765625"},
		{"select string_agg(x, ',') from (select r.replica_server_name || '>' || o.replica_server_name || ':' || routing_priority as x from sys.availability_read_only_routing_lists l join sys.availability_replicas r on r.replica_id = l.replica_id join sys.availability_replicas o on o.replica_id = read_only_replica_id where r.replica_server_name = 'a' order by routing_priority, 1)", "a>b:1,a>c:1,a>a:2"},
		{"select sys.fn_hadr_is_primary_replica('shop'), sys.fn_hadr_backup_is_preferred_replica(N'shop')", "1|0"},
		{"select current_setting('server_version_num')::int/100 as v", "1500"},
		{"select extract(epoch from now())::bigint, date_trunc('hour', now())", "1795262400|2026-11-21 12:00:00 +0000 UTC"},
		{"select (extract(epoch from since)/300)::bigint*300 from coterie.sessions", "1795262400"},
		{"select application_name, sessions, failover, failover_pct, node_loss_pct, server_loss_pct from coterie.continuity where statement is not null", "shop|1|ENDS|75|0|75"},
		{"select sum(sessions), count(application_name) from coterie.continuity", "11|2"},
		{"select application_name, user_name, looks, sessions, failover_pct, node_loss_pct, node_loss_reason, replayed_pct from coterie.continuity_by_application", "shop|app|2|4|100|25|it has set the seed of random (SELECT)|<nil>\n<nil>|<nil>|2|2|0|0|<nil>|<nil>"},
		{"select looks, sessions, failover_pct, node_loss_pct, server_loss_pct, server_loss_reason, open_transactions, replayed_pct from coterie.continuity_history order by hour", "60|10|100|0|75|it has temporary objects|0.5|20\n1|0|<nil>|<nil>|<nil>|<nil>|0|<nil>"},
		{"select current_user, current_database(), @@SERVERNAME, 1::text || 'x', '1'::int4 + 1, cast('2' as nvarchar(max))", "me|coterie|a|1x|2|2"},
		{"select n.nspname from pg_catalog.pg_namespace n where n.nspname = any (array['sys', 'x']) and n.nspname !~ '^pg_' and nspname operator(pg_catalog.~) '^(sys)$' collate pg_catalog.default", "sys"},
		{"select name from sys.availability_groups where name ilike 'demo%' and name ~* 'AG$'", "DemoAG"},
		{"select policy, ok from coterie.policies where not ok", ""},
		{"with recursive n(i) as (select 1 union all select i + 1 from n where i < 3) select sum(i) from n", "6"},
		{"table coterie.timelines", "1|<nil>|0/0|0\n2|1|0/40|7"},
		{"select value from coterie.options where option = 'READ_ONLY_ROUTING_LIST' and replica = $1", "all others in turn, then the primary"},
		{"select 1; drop table x", "error: "},
		{"select * from nowhere", "error: no such table: nowhere"},
		{"select nosuch from sys.databases", "error: no such column: nosuch"},
		{"select unnest(array[1,2])", "error: UNNEST is not supported in the console"},
		{"select 'unclosed", "error: unterminated quoted string"},
		{"select ((1)", "error: syntax error at or near the end of the query"},
		{"with x as (select 1) delete from sys.databases", "error: "},
		{"select zeroblob(100000000)", "error: string or blob too big"},
	} {
		var args []any
		if strings.Contains(tt.query, "$1") {
			args = []any{"b"}
		}
		got := ask(t, c, tt.query, args...)
		if got != tt.want && (tt.want != "error: " || !strings.HasPrefix(got, tt.want)) {
			t.Errorf("%s\n got %s\nwant %s", tt.query, got, tt.want)
		}
	}
}

// changes lists changes of the facts, with a query whose answer changes.
var changes = []struct {
	name   string
	change func(*Facts)
	query  string
	want   string
}{
	{"a secondary is cut off", func(f *Facts) { n := f.Nodes["c"]; n.Connected = false; f.Nodes["c"] = n }, "select role, connected_state, synchronization_health, last_connect_error_description from sys.dm_hadr_availability_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'c'", "0|0|0|does not answer"},
	{"the group is as ill as its illest replica", func(f *Facts) { n := f.Nodes["c"]; n.Streaming = false; f.Nodes["c"] = n }, "select synchronization_health_desc from sys.dm_hadr_availability_group_states", "NOT_HEALTHY"},
	{"a synchronous copy that only follows", func(f *Facts) { f.Record.State.V = f.Record.State.V[:1] }, "select synchronization_state, synchronization_health, is_commit_participant from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'c' and database_id = 5", "1|1|false"},
	{"the primary does not know its last commit, and a copy has it", func(f *Facts) {
		n := f.Nodes["a"]
		n.Commit = nil
		f.Nodes["a"] = n
		n = f.Nodes["c"]
		old := noon.Add(-4 * time.Second)
		n.Commit = &old
		f.Nodes["c"] = n
	}, "select secondary_lag_seconds, (select datediff(second, last_commit_time, now()) from sys.dm_hadr_database_replica_states where is_primary_replica and database_id = 5) from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'c' and database_id = 5", "3|1"},
	{"an asynchronous copy that follows is healthy", func(f *Facts) {
		f.Record.State.V = f.Record.State.V[:1]
		f.Group.Replicas[2].AvailabilityMode = ag.AsynchronousCommit
	}, "select synchronization_state, synchronization_health, availability_mode from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'c' and database_id = 5", "1|2|0"},
	{"it has not joined", func(f *Facts) { r := &f.Group.Replicas[1]; r.Join, r.Suspended = ag.NotJoined, true }, "select distinct finding from coterie.policies where policy = 'Availability database suspension state' and target like '% on b'", "suspended until it joins"},
	{"suspended by an operator", func(f *Facts) { f.Group.Replicas[1].Suspended = true }, "select distinct finding from coterie.policies where policy = 'Availability database suspension state' and target like '% on b'", "suspended by USER"},
	{"suspended by a forced failover", func(f *Facts) { r := &f.Group.Replicas[1]; r.Suspended, r.SuspendedBy = true, ag.SuspendPartner }, "select is_suspended, suspend_reason, suspend_reason_desc, synchronization_state from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'b' and database_id = 5", "true|1|SUSPEND_FROM_PARTNER|0"},
	{"being seeded", func(f *Facts) { f.Nodes["b"] = Node{Connected: true, Busy: "seed"} }, "select synchronization_state_desc, database_state_desc from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'b' and database_id = 5", "INITIALIZING|RESTORING"},
	{"being rewound", func(f *Facts) { n := f.Nodes["b"]; n.Busy = "rewind"; f.Nodes["b"] = n }, "select synchronization_state, database_state from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'b' and database_id = 5", "3|2"},
	{"only registered databases are shown", func(f *Facts) { f.Group.Options.Databases = []string{"shop"} }, "select database_name from sys.availability_databases_cluster", "shop"},
	{"a server that starts does not say how far it has replayed", func(f *Facts) {
		n := f.Nodes["c"]
		n.Replay = 0
		f.Nodes["c"] = n
		f.Nodes["a"].Streams[1].Open = false
	}, "select estimated_recovery, (select redo_queue_size from sys.dm_hadr_database_replica_states s join sys.availability_replicas r using (replica_id) where replica_server_name = 'c' and database_id = 5) from coterie.replicas where name = 'c'", "<nil>|<nil>"},
	{"a copy failed", func(f *Facts) {
		f.Nodes["b"] = Node{Connected: true, Seedings: []Seeding{{ID: "x", Source: "a", State: "FAILED", Started: noon, Ended: noon, FailedAt: noon, Attempts: 2, Code: 201, Word: "TARGET_FULL", Failure: "no space", Errno: 28}}}
	}, "select failure_state, failure_state_desc, error_code, number_of_attempts, failure_code, failure_message, datediff(second, failure_time_utc, now()) from sys.dm_hadr_automatic_seeding, sys.dm_hadr_physical_seeding_stats", "201|TARGET_FULL|28|2|201|no space|0"},
	{"a copy is being made", func(f *Facts) {
		f.Nodes["b"] = Node{Connected: true, Busy: "seed", Seedings: []Seeding{{ID: "x", Source: "a", State: "SEEDING", Started: noon, Attempts: 1, Done: 10, Total: 70, Rate: 2, Left: 30 * time.Second}}}
	}, "select datediff(second, now(), estimate_time_complete_utc), transferred_size_bytes, database_size_bytes, transfer_rate_bytes_per_second from sys.dm_hadr_physical_seeding_stats", "30|10|70|2"},
	{"a server has other settings", func(f *Facts) {}, "select node, value, pending_restart from coterie.settings where name = 'max_connections' order by 1", "a|100|false\nb|50|true"},
	{"settings of the group", func(f *Facts) { f.Group.Replicas[2].Options.Parameters = map[string]string{"max_connections": "300"} }, "select node, value, of_replica, in_force, pending_restart from coterie.parameters where name = 'max_connections' order by 1", "a|200|false|100|false\nb|200|false|50|true\nc|300|true|<nil>|<nil>"},
	{"rules for logins", func(f *Facts) { f.Group.HBA = "# office\nhost all all all md5\r\n" }, "select line_number, rule from coterie.hba order by 1", "1|# office\n2|host all all all md5"},
	{"no rules for logins", func(f *Facts) { f.Group.HBA = "" }, "select count(*) from coterie.hba", "0"},
	{"settings that may be secret", func(*Facts) {}, "select distinct name, value from coterie.parameters where name like 'arch%'", "archive_command|<nil>"},
	{
		"clients are in a transaction, busy, and at a Unix socket", func(f *Facts) {
			n := f.Nodes["a"]
			n.Sessions = []Session{
				{ID: 1, Client: "10.0.0.1:5", State: "idle in transaction", Since: noon}, {ID: 2, Client: "10.0.0.1:6", State: "active", Since: noon}, {ID: 3, Client: "local", State: "idle", Since: noon},
			}
			f.Nodes["a"] = n
		}, "select s.session_id, status, host_name, net_transport, client_net_address, client_tcp_port from sys.dm_exec_sessions s join sys.dm_exec_connections c on c.session_id = s.session_id order by 1",
		"1|sleeping|10.0.0.1|TCP|10.0.0.1|5\n2|running|10.0.0.1|TCP|10.0.0.1|6\n3|sleeping|local|Unix socket|local|<nil>",
	},
	{"a listener of two families of addresses", func(f *Facts) {
		f.Group.Options.Listeners = []ag.Listener{{Name: "l", Addresses: []string{"10.0.0.9/20", "fd00::9/64"}}}
	}, "select ip_address, ip_subnet_mask from sys.availability_group_listener_ip_addresses order by 1", "10.0.0.9|255.255.240.0\nfd00::9|<nil>"},
	{"a server does not say how far it has replayed", func(f *Facts) {
		n := f.Nodes["c"]
		n.Replay = 0
		f.Nodes["c"] = n
		f.Nodes["a"].Streams[1].Open = false
	}, "select name, position, replayed from coterie.replicas order by 1", "a|2:0/5000|<nil>\nb|2:0/5000|0/5000\nc|2:0/4000|<nil>\nw|<nil>|<nil>"},
	{"no majority", func(f *Facts) { f.Quorum = false }, "select quorum_state_desc, operational_state_desc from sys.dm_hadr_cluster, sys.dm_hadr_availability_replica_states where is_local", "UNKNOWN_QUORUM_STATE|FAILED_NO_QUORUM"},
	{"no primary", func(f *Facts) { f.Primary, f.WriteOpen = "", false }, "select primary_replica, synchronization_health from sys.dm_hadr_availability_group_states", "|0"},
	{"backups on the primary", func(f *Facts) { f.Group.Options.BackupPreference = ag.BackupPrimary }, "select fn_hadr_backup_is_preferred_replica('shop')", "1"},
	{"no secondary may back up", func(f *Facts) {
		zero := 0
		f.Group.Replicas[1].Options.BackupPriority, f.Group.Replicas[2].Options.BackupPriority = &zero, &zero
	}, "select fn_hadr_backup_is_preferred_replica('shop')", "1"},
	{"no secondary has backups enabled", func(f *Facts) {
		for _, id := range []ag.ReplicaID{"b", "c"} {
			n := f.Nodes[id]
			n.Backup = &Backup{}
			f.Nodes[id] = n
		}
	}, "select node, preferred, unfit from coterie.backup order by 1", "a|true|<nil>\nb|false|it has no backups enabled: coterie backup enable there\nc|false|it has no backups enabled: coterie backup enable there"},
	{"a secondary of an earlier version, and one whose stream is cut", func(f *Facts) {
		b, c := f.Nodes["b"], f.Nodes["c"]
		b.Backup, c.Streaming = &Backup{Enabled: true}, false
		f.Nodes["b"], f.Nodes["c"] = b, c
	}, "select node, preferred, unfit from coterie.backup order by 1", "a|true|<nil>\nb|false|its version of coterie makes backups of a primary only\nc|false|it does not receive from the primary"},
	{"the primary may never back up", func(f *Facts) {
		zero := 0
		f.Group.Options.BackupPreference, f.Group.Replicas[0].Options.BackupPriority = ag.BackupPrimary, &zero
	}, "select fn_hadr_backup_is_preferred_replica('shop')", "0"},
	{"a replica is under maintenance", func(f *Facts) {
		f.Group.Replicas[1].Options.Maintenance = &ag.Maintenance{Reason: "new memory"}
	}, "select maintenance, (select value from coterie.options where replica = 'b' and option = 'MAINTENANCE') from coterie.replicas where name = 'b'", "with no end set: new memory|new memory"},
	{"nobody but replicas under maintenance may back up", func(f *Facts) {
		f.Group.Replicas[1].Options.Maintenance, f.Group.Replicas[2].Options.Maintenance = &ag.Maintenance{}, &ag.Maintenance{}
	}, "select fn_hadr_backup_is_preferred_replica('shop')", "1"},
	{"a database of nobody's is backed up here", func(*Facts) {}, "select fn_hadr_backup_is_preferred_replica('tmp')", "1"},
	{"policies see it", func(f *Facts) { n := f.Nodes["c"]; n.Connected = false; f.Nodes["c"] = n }, "select count(*), sum(severity = 'Critical') from coterie.policies where not ok", "9|2"},
	{"no automatic target", func(f *Facts) { f.Availability.Automatic = "not ready: why" }, "select finding from coterie.policies where policy like '%failover readiness'", "automatic failover is not ready: why"},
	{"next to nothing to replay, at the rate of an idle server", func(f *Facts) {
		n := f.Nodes["b"]
		n.LogRate = 10
		f.Nodes["b"] = n
	}, "select estimated_recovery from coterie.replicas where name = 'b'", "0"},
	{"much to lose, at the rate of a primary that has become idle", func(f *Facts) {
		a, c, before := f.Nodes["a"], f.Nodes["c"], noon.Add(-30*time.Second)
		a.LogRate, a.Position.LSN, c.Commit = 22, 0x1000000, &before
		f.Nodes["a"], f.Nodes["c"] = a, c
	}, "select estimated_data_loss_by_rate from coterie.replicas where name = 'c'", "30"},
	{"the primary is silent, and a copy has its last commit that is known", func(f *Facts) {
		n := f.Nodes["a"]
		n.Connected, n.Stale, n.Position.LSN = false, time.Second, 0x4000
		f.Nodes["a"], f.Record.State.V = n, nil
	}, "select count(*) from coterie.replicas where name = 'c' and estimated_data_loss is null and estimated_data_loss_by_rate is null", "1"},
	{"the primary is silent, and a copy lacks its last commit that is known", func(f *Facts) {
		n, later := f.Nodes["a"], noon.Add(2*time.Second)
		n.Stale, n.Commit = time.Second, &later
		f.Nodes["a"], f.Record.State.V = n, nil
	}, "select estimated_data_loss from coterie.replicas where name = 'c'", "3"},
	{"commits are blocked", func(f *Facts) { f.Availability.Blocked, f.Availability.Because = true, "nobody streams" }, "select severity, finding from coterie.policies where policy like '%online state'", "Critical|no commit is acknowledged: nobody streams"},
	{"the quorum lacks a member", func(f *Facts) { f.Voters = []uint64{7}; f.Group.Replicas[0].EtcdID = 7 }, "select sum(number_of_quorum_votes) from sys.dm_hadr_cluster_members", "1"},
	{"an added replica has not joined", func(f *Facts) { r := &f.Group.Replicas[2]; r.Join, r.Suspended = ag.NotJoined, true }, "select join_state, join_state_desc from sys.dm_hadr_availability_replica_cluster_states where replica_server_name = 'c'", "0|NOT_JOINED"},
	{"a removed one is a node and no replica", func(f *Facts) { f.Group.Replicas[2].Join = ag.Detached }, "select (select count(*) from sys.availability_replicas), (select count(*) from sys.dm_hadr_cluster_members)", "3|4"},
	{"no group", func(f *Facts) { f.Group.Draft = true }, "select (select count(*) from sys.availability_groups), (select count(*) from sys.availability_replicas), (select count(*) from sys.dm_hadr_cluster_members)", "0|0|4"},
	{"the primary alone is asynchronous", func(f *Facts) {
		f.Group.Replicas[0].AvailabilityMode = ag.AsynchronousCommit
		f.Record.State.V, f.Record.State.K = nil, 0
	}, "select replica_server_name, synchronization_health_desc from sys.dm_hadr_availability_replica_states s join sys.availability_replicas r using (replica_id) order by 1", "a|HEALTHY\nb|PARTIALLY_HEALTHY\nc|PARTIALLY_HEALTHY\nw|HEALTHY"},
}

func TestColumnsMove(t *testing.T) {
	for _, tt := range changes {
		f := demo()
		c := open(t, &f)
		before := ask(t, c, tt.query)
		tt.change(&f)
		if got := ask(t, c, tt.query); got != tt.want {
			t.Errorf("%s: got %s (before %s), want %s", tt.name, got, before, tt.want)
		}
	}
}

func TestDescribe(t *testing.T) {
	f := demo()
	c := open(t, &f)
	columns, params, err := c.Describe(t.Context(), "me", "select replica_id, role, count(*) over () as n, is_local, now() from sys.dm_hadr_availability_replica_states where role_desc = $1 and role > $2 limit $3", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Column{{"replica_id", 2950}, {"role", 23}, {"n", 25}, {"is_local", 16}, {"now()", 25}}
	if diff := cmp.Diff(want[:2], columns[:2]); diff != "" || columns[3] != want[3] {
		t.Errorf("columns %v", columns)
	}
	if diff := cmp.Diff([]uint32{25, 23, 20}, params); diff != "" {
		t.Error(diff)
	}
	if _, params, err = c.Describe(t.Context(), "me", "select 1 limit $1", []uint32{21}); err != nil || params[0] != 21 { // as psycopg does
		t.Errorf("params %v, %v", params, err)
	}
}

// FuzzQuery runs arbitrary queries. An error is correct; a panic is not.
func FuzzQuery(f *testing.F) {
	f.Add("select 1")
	f.Add("select [a]::int[] from x where a = any('{1,2}') and extract(epoch from b) > cast(c as numeric(3,2)) limit all")
	f.Add("with x as (select top 3 * from sys.databases) select * from x fetch first 1 rows only")
	facts := demo()
	c := New(func(context.Context) Facts { return facts })
	f.Cleanup(c.Close)
	f.Fuzz(func(t *testing.T, query string) {
		if _, err := translate(t.Context(), query, nil); err != nil {
			var known *Error
			if !errors.As(err, &known) || known.State == "" {
				t.Fatalf("%q: %v", query, err)
			}
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, _, _ = c.Describe(ctx, "me", query, nil)
	})
}

// TestRelayOfAStream holds that the relay is shown whichever end knows it, which is the one that dialled.
func TestRelayOfAStream(t *testing.T) {
	for _, tt := range []struct {
		end  ag.ReplicaID
		link Link
		want string
	}{
		{"a", Link{Peer: "b", Via: "w"}, "w"},
		{"b", Link{Peer: "a", Via: "w"}, "w"},
		{"b", Link{Peer: "c", Via: "w"}, "<nil>"}, // another stream
	} {
		f := demo()
		n := f.Nodes[tt.end]
		n.Links = []Link{tt.link}
		f.Nodes[tt.end] = n
		if got := ask(t, open(t, &f), "select relay from coterie.streams where member = 'b'"); got != tt.want {
			t.Errorf("%s knows %+v: the relay is %s; want %s", tt.end, tt.link, got, tt.want)
		}
	}
}
