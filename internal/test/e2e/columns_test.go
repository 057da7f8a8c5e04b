package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// fixed are the columns that no fact of a lab changes, with the reason.
var fixed = map[string]string{
	"sys.availability_groups.version":                                          "the format of the configuration; there is one",
	"coterie.parameters.node":                                                  "tested in TestEndToEndSettings, as are the next five",
	"coterie.parameters.name":                                                  "the same",
	"coterie.parameters.value":                                                 "the same",
	"coterie.parameters.of_replica":                                            "the same",
	"coterie.parameters.in_force":                                              "the same",
	"coterie.parameters.pending_restart":                                       "the same",
	"sys.dm_hadr_database_replica_states.last_redone_time":                     "the commit time of the last transaction that was replayed; nothing is written between two looks",
	"coterie.addresses.device":                                                 "tested with the addresses",
	"coterie.continuity.open_transaction":                                      "TestOutlookOfOpenTransactions in package listener moves it",
	"coterie.continuity.open_transaction_reason":                               "TestOutlookOfOpenTransactions in package listener moves it",
	"coterie.continuity.commit_in_doubt":                                       "TestOutlookOfCommits in package underway moves it",
	"coterie.continuity.commit_in_doubt_reason":                                "TestOutlookOfCommits in package underway moves it",
	"coterie.sessions.commit_in_doubt":                                         "the same",
	"coterie.sessions.commit_in_doubt_reason":                                  "the same",
	"coterie.sessions.open_transaction":                                        "the same",
	"coterie.sessions.open_transaction_reason":                                 "the same",
	"coterie.routes.lagged":                                                    "only a reader that asks for less lag than there is moves it",
	"sys.availability_groups.is_contained":                                     "roles, grants and settings are in the instance and always replicated",
	"sys.availability_groups.is_distributed":                                   "groups of groups are not there yet",
	"sys.availability_group_listeners.is_conformant":                           "a listener is made by the language alone",
	"sys.availability_group_listeners.is_distributed_network_name":             "there are no network names of a cluster",
	"sys.availability_group_listener_ip_addresses.is_dhcp":                     "WITH DHCP is refused",
	"sys.availability_group_listener_ip_addresses.state":                       "tested with the addresses",
	"sys.availability_group_listener_ip_addresses.state_desc":                  "tested with the addresses",
	"sys.dm_hadr_cluster.quorum_type":                                          "a majority of nodes, unless the quorum is external: TestExternalQuorum",
	"sys.dm_hadr_cluster.quorum_type_desc":                                     "a majority of nodes, unless the quorum is external: TestExternalQuorum",
	"sys.dm_hadr_cluster_members.member_type":                                  "every member is a node",
	"sys.dm_hadr_cluster_members.member_type_desc":                             "every member is a node",
	"sys.dm_hadr_cluster_networks.is_public":                                   "nodes meet on the port between nodes only",
	"sys.dm_hadr_cluster_networks.is_ipv4":                                     "the lab has one family of addresses",
	"sys.dm_hadr_cluster_networks.network_subnet_ip":                           "all nodes of the lab have one address",
	"sys.dm_hadr_cluster_networks.member_name":                                 "a node's name stays; that nodes come and go is seen in TestScript",
	"sys.dm_hadr_cluster_members.member_name":                                  "the same",
	"sys.dm_tcp_listener_states.listener_id":                                   "numbers a node's four ports",
	"sys.dm_tcp_listener_states.ip_address":                                    "ports stay as the node was made",
	"sys.dm_tcp_listener_states.is_ipv4":                                       "the same",
	"sys.dm_tcp_listener_states.port":                                          "the same",
	"sys.dm_tcp_listener_states.type":                                          "the same",
	"sys.dm_tcp_listener_states.type_desc":                                     "the same",
	"sys.dm_tcp_listener_states.node_name":                                     "the same",
	"sys.databases.state":                                                      "a database of a server that answers is online; one that does not answer shows none",
	"sys.databases.state_desc":                                                 "the same",
	"sys.dm_os_wait_stats.wait_type":                                           "there is one kind",
	"sys.dm_os_wait_stats.node":                                                "every replica's agent has measured, or nothing",
	"sys.dm_hadr_database_replica_cluster_states.is_pending_secondary_suspend": "a suspension is one compare-and-swap: it is never pending",
	"coterie.routes.node":                                                      "every replica has a listener",
	"coterie.routes.target":                                                    "every replica is one, on every node",
	"coterie.replicas.name":                                                    "a node's name stays; that nodes come and go is seen in TestScript",
	"coterie.replicas.endpoint":                                                "ports stay as the node was made",
	"coterie.replicas.listener":                                                "the same",
	"coterie.replicas.read_only":                                               "the same",
	"coterie.replicas.http":                                                    "the same",
	"coterie.replicas.voter":                                                   "the same; internal/admin/catalog has it in a table",
	"coterie.replicas.progress":                                                "while a copy is made or rewound; tested with the seeding",
	"coterie.replicas.maintenance":                                             "tested in TestEndToEndMaintenance",
	"sys.dm_hadr_automatic_seeding.failure_state":                              "of a copy that failed; internal/admin/catalog has it in a table",
	"sys.dm_hadr_automatic_seeding.failure_state_desc":                         "the same",
	"sys.dm_hadr_automatic_seeding.error_code":                                 "the same",
	"sys.dm_hadr_physical_seeding_stats.failure_code":                          "the same",
	"sys.dm_hadr_physical_seeding_stats.failure_message":                       "the same",
	"sys.dm_hadr_physical_seeding_stats.failure_time_utc":                      "the same",
	"sys.dm_hadr_physical_seeding_stats.estimate_time_complete_utc":            "while a copy is made, which takes moments here; the same table has it",
	"coterie.columns.view_name":                                                "names what there is",
	"coterie.columns.column_name":                                              "the same",
	"coterie.columns.type":                                                     "the same",
	"coterie.columns.meaning":                                                  "the same",
	"coterie.columns.absent_because":                                           "the same",
	"coterie.record.phase":                                                     "SEAL and PROMOTE last for some milliseconds; internal/admin/catalog has it in a table",
	"coterie.options.verdict":                                                  "says whether an option's engine is there",
	"sys.dm_hadr_cluster_members.number_of_quorum_votes":                       "the same node votes while it is one; internal/admin/catalog has it in a table",
	"sys.dm_hadr_instance_node_map.ag_resource_id":                             "the group's id",
	"coterie.streams.transport":                                                "on one machine TCP is always chosen; internal/endpoint/link has the choice",
	"coterie.streams.codec":                                                    "chosen by what is measured; internal/endpoint/link has the choice",
	"coterie.sessions.tls_identity":                                            "takes a client with a certificate; internal/listener has one",
	"coterie.sessions.tls_name":                                                "takes a client that asks by a name; internal/listener has one",
	"coterie.sessions.list_entry":                                              "a reader has one; internal/listener sees which entry won",
	"coterie.streams.relay":                                                    "only a stream between two that do not see each other has one; TestEndToEndRelay does",
	"coterie.streams.carried_rate":                                             "only a link that has more to send than goes for a second has one; internal/endpoint/link has it",
}

// answered queries a node's console, through its private socket.
func (g *group) answered(t *testing.T, node, text string) (console.Result, error) {
	t.Helper()
	l, err := config.NewLayout(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := api.NewClient(l.AgentSock(), l.Owner()).SQL(ctx, text)
	if err != nil {
		return console.Result{}, err
	}
	if a.Error != nil {
		return console.Result{}, fmt.Errorf("%s", a.Error)
	}
	var r console.Result
	return r, json.Unmarshal(a.Result, &r)
}

// says runs statements on a node's console.
func (g *group) says(t *testing.T, node string, statements ...string) {
	t.Helper()
	for _, s := range statements {
		_, err := g.answered(t, node, s)
		for limit := time.Now().Add(patience); err != nil && strings.Contains(err.Error(), "no majority of the quorum answers") && time.Now().Before(limit); {
			time.Sleep(100 * time.Millisecond) // its leader may have been what died last
			_, err = g.answered(t, node, s)
		}
		if err != nil {
			t.Fatalf("%s on %s: %v", s, node, err)
		}
	}
}

// columns are the values of every column of every view, in an order of the view's first columns.
type columns map[string]string

// views are the names of all of them.
func (g *group) views(t *testing.T, node string) []string {
	t.Helper()
	names, err := g.answered(t, node, "SELECT table_schema || '.' || table_name FROM information_schema.tables WHERE table_schema IN ('sys', 'coterie')")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range names.Rows {
		out = append(out, fmt.Sprint(n[0]))
	}
	return out
}

func (g *group) columns(t *testing.T, node string, views []string) columns {
	t.Helper()
	out := columns{}
	for _, view := range views {
		r, err := g.answered(t, node, "SELECT * FROM "+view+" ORDER BY 1, 2, 3, 4")
		if err != nil && strings.Contains(err.Error(), "ORDER BY term") {
			r, err = g.answered(t, node, "SELECT * FROM "+view+" ORDER BY 1, 2")
		}
		if err != nil {
			t.Fatalf("%s: %v", view, err)
		}
		for i, c := range r.Columns {
			var values []string
			for _, row := range r.Rows {
				values = append(values, fmt.Sprint(row[i]))
			}
			out[view+"."+c.Name] = strings.Join(values, "|")
		}
	}
	return out
}

// fact changes something, and the columns show it.
type fact struct {
	name  string
	on    string // the node that is asked
	then  string // the node that is asked afterwards; "": the same
	do    func()
	undo  func()
	moves map[string]string // the columns of each view
}

func (f fact) list() []string {
	var out []string
	for view, names := range f.moves {
		for _, n := range strings.Fields(names) {
			out = append(out, view+"."+n)
		}
	}
	slices.Sort(out)
	return out
}

// viewsOf are the views of these columns.
func viewsOf(list []string) []string {
	var out []string
	for _, c := range list {
		out = append(out, c[:strings.LastIndex(c, ".")])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// see changes the fact and waits until every column of it has changed.
func (g *group) see(t *testing.T, f fact, seen map[string]bool) {
	t.Helper()
	began := time.Now()
	before := g.columns(t, f.on, viewsOf(f.list()))
	f.do()
	if f.then == "" {
		f.then = f.on
	}
	waiting := f.list()
	for deadline := time.Now().Add(patience / 2); ; time.Sleep(100 * time.Millisecond) {
		now := g.columns(t, f.then, viewsOf(waiting))
		waiting = slices.DeleteFunc(waiting, func(c string) bool {
			if was, ok := before[c]; !ok {
				t.Fatalf("%s: there is no column %s", f.name, c)
			} else if was == now[c] {
				return false
			}
			seen[c] = true
			return true
		})
		if len(waiting) == 0 {
			break
		}
		if time.Now().After(deadline) {
			for _, c := range waiting {
				t.Errorf("%s: %s stays %q", f.name, c, now[c])
			}
			break
		}
	}
	if f.undo != nil {
		f.undo()
	}
	t.Logf("%s: %d columns moved within %v", f.name, len(f.list())-len(waiting), time.Since(began).Round(time.Millisecond))
}

var alwaysNull = regexp.MustCompile(`(\w+) \(`)

// constant is a column with one value, and wordOf one of a code.
var (
	constant = regexp.MustCompile(`^\| (\w+) +\| [\w ]+ \| always `)
	wordOf   = regexp.MustCompile(`^\| ((\w+)_desc) +\| text `)
)

// absent are the columns that are always NULL or have one value according to docs/views.md, and the views that are
// empty.
func absent(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile("../../../docs/views.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	view := ""
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			view = strings.TrimSpace(name)
		}
		if list, ok := strings.CutPrefix(line, "Always NULL: "); ok {
			for _, part := range strings.Split(list, "; ") {
				if m := alwaysNull.FindStringSubmatch(part); m != nil {
					out[view+"."+m[1]] = true
				}
			}
		}
		if strings.HasPrefix(line, "Empty: ") {
			out[view] = true
		}
		if m := constant.FindStringSubmatch(line); m != nil {
			out[view+"."+m[1]] = true
		}
		if m := wordOf.FindStringSubmatch(line); m != nil && out[view+"."+m[2]] {
			out[view+"."+m[1]] = true
		}
	}
	return out
}

// elsewhere are views whose columns other tests move, or that say what never changes, with the place.
var elsewhere = map[string]string{
	"sys.database_mirroring_endpoints": "a node's endpoint stays as the node was made",
	"sys.tcp_endpoints":                "the same",
	"sys.endpoints":                    "the same",
	"sys.dm_exec_sessions":             "sessions as coterie.sessions has them, whose columns move here",
	"sys.dm_exec_connections":          "the same",
	"sys.dm_hadr_ag_threads":           "numbers that no agent has, as monitoring scripts join them: internal/admin/catalog",
	"sys.dm_os_sys_info":               "when the server started",
	"coterie.problems":                 "tested with every fact in internal/ag/availability",
	"coterie.failures":                 "the same",
	"coterie.continuity_history":       "follows coterie.continuity by the minute: internal/listener/continuity",
	"coterie.backup":                   "backups_test.go in this package, where there is a tool",
}

// TestColumns changes facts of a lab and checks that every column of every view follows.
func TestColumns(t *testing.T) {
	long(t)
	g := raise(t, lab.Options{NoGroup: true, Witness: true})
	seen := map[string]bool{}
	for _, f := range g.facts(t) {
		t.Run(f.name, func(t *testing.T) { g.see(t, f, seen) })
	}
	null := absent(t)
	for c := range g.columns(t, "n2", g.views(t, "n2")) {
		view := c[:strings.LastIndex(c, ".")]
		if !seen[c] && fixed[c] == "" && elsewhere[view] == "" && !null[c] && !null[view] {
			t.Errorf("no fact moves %s, and no reason is given", c)
		}
		if seen[c] && (fixed[c] != "" || null[c]) {
			t.Errorf("%s moves, and it is said that it does not", c)
		}
	}
	g.down(t)
}

const shop = "shop"

// rows writes some WAL on the primary.
func (g *group) rows(t *testing.T, n int) {
	t.Helper()
	sql(t, g.ReadWrite(), "create table if not exists filler (t text)")
	sql(t, g.ReadWrite(), fmt.Sprintf("insert into filler select repeat('x', 500) from generate_series(1, %d)", n))
}

// alter changes settings of the primary's server.
func (g *group) alter(t *testing.T, clauses ...string) {
	t.Helper()
	for _, c := range clauses {
		sql(t, g.ReadWrite(), "ALTER SYSTEM "+c)
	}
	sql(t, g.ReadWrite(), "SELECT pg_reload_conf()")
}

// settingsDiffer runs the command that lists settings which were changed on the primary alone.
func (g *group) settingsDiffer(t *testing.T) {
	t.Helper()
	g.await(t, "the finding about settings", func(lab.Status) bool {
		a := coterie(t, "check", "settings", "--node", g.node("n3"))
		return a.code == 0 && strings.Contains(a.out, "work_mem differs: 9MB on n1, 4MB on n2, 4MB on n3") && strings.Contains(a.out, "max_connections of n1 was changed")
	})
}

// noSessions waits until no session exists. A session closes a moment after its client.
func (g *group) noSessions(t *testing.T, node string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		r, err := g.answered(t, node, "SELECT session_id FROM coterie.sessions")
		if err == nil && len(r.Rows) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("sessions are left: %v %v", r.Rows, err)
		}
	}
}

func (g *group) facts(t *testing.T) []fact {
	session := func(uri string) *pgx.Conn {
		c, err := pgx.Connect(t.Context(), uri)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	dsn := func(node, database string) string { return strings.Replace(g.DSN(node), "/postgres", "/"+database, 1) }
	var open, replay *pgx.Conn
	kill := func(nodes ...string) func() {
		return func() {
			for _, n := range nodes {
				if err := g.Kill(n, lab.WhatNode); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	start := func(nodes ...string) func() {
		return func() {
			for _, n := range nodes {
				if err := g.Start(n); err != nil {
					t.Fatal(err)
				}
			}
			g.ready(t)
		}
	}
	return []fact{
		{
			name: "a group is made", on: "n1",
			do: func() {
				g.says(t, "n1", "CREATE AVAILABILITY GROUP [DemoAG] FOR DATABASE shop REPLICA ON N'N1', N'N2', N'N3', N'W' WITH (AVAILABILITY_MODE = CONFIGURATION_ONLY) LISTENER N'l1' (WITH IP ((N'10.0.0.9', N'255.255.255.0')), PORT = 1433)")
				g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] JOIN")
				g.says(t, "n3", "ALTER AVAILABILITY GROUP [DemoAG] JOIN")
			},
			moves: map[string]string{
				"sys.availability_groups": "group_id name", "sys.availability_groups_cluster": "group_id name",
				"sys.availability_replicas": "replica_id group_id replica_server_name", "sys.availability_databases_cluster": "group_id group_database_id database_name truncation_lsn",
				"sys.availability_read_only_routing_lists":     "replica_id routing_priority read_only_replica_id",
				"sys.availability_group_listeners":             "group_id listener_id dns_name port ip_configuration_string_from_cluster",
				"sys.availability_group_listener_ip_addresses": "listener_id ip_address ip_subnet_mask",
				"sys.dm_hadr_availability_group_states":        "group_id primary_replica", "sys.dm_hadr_availability_replica_states": "replica_id group_id",
				"sys.dm_hadr_availability_replica_cluster_states": "replica_id replica_server_name group_id",
				"sys.dm_hadr_availability_replica_cluster_nodes":  "group_name replica_server_name node_name", "sys.dm_hadr_instance_node_map": "instance_name node_name",
				"sys.dm_hadr_name_id_map": "ag_name ag_id ag_resource_id ag_group_id", "sys.dm_hadr_cluster": "cluster_name",
				"sys.databases": "name database_id replica_id group_database_id", "sys.dm_hadr_database_replica_states": "database_id group_id replica_id group_database_id",
				"sys.dm_hadr_database_replica_cluster_states": "replica_id group_database_id database_name", "sys.dm_os_performance_counters": "object_name counter_name instance_name cntr_type",
				"coterie.replicas": "join_state suspended because", "coterie.options": "replica place option value is_set", "coterie.policies": "policy level severity target ok",
				"coterie.databases": "name database_id registered", "coterie.streams": "open round_trip_ms", "coterie.routes": "readable", "coterie.addresses": "node address state problem",
				"coterie.events": "node kind what because", "coterie.decisions": "node rule because", "coterie.settings": "node name",
				"sys.dm_hadr_automatic_seeding":      "start_time completion_time ag_id ag_remote_replica_id operation_id is_source current_state performed_seeding number_of_attempts",
				"sys.dm_hadr_physical_seeding_stats": "local_database_name remote_machine_name role_desc internal_state_desc database_size_bytes is_compression_enabled total_disk_io_wait_time_ms total_network_wait_time_ms",
			},
		},
		{
			name: "another node is asked", on: "n1", then: "n2", do: func() {},
			moves: map[string]string{
				"sys.dm_hadr_availability_replica_states": "is_local", "sys.dm_hadr_database_replica_states": "is_local", "sys.databases": "is_read_only",
				"sys.dm_hadr_availability_group_states": "primary_recovery_health primary_recovery_health_desc secondary_recovery_health secondary_recovery_health_desc",
			},
		},
		{
			name: "options of the group", on: "n2",
			do: func() {
				g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] SET (FAILURE_CONDITION_LEVEL = 5, HEALTH_CHECK_TIMEOUT = 20000, AUTOMATED_BACKUP_PREFERENCE = PRIMARY, DB_FAILOVER = OFF, "+
					"DTC_SUPPORT = PER_DB, REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 0, LEASE_PROFILE = WAN)")
			},
			undo: func() { g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] SET (LEASE_PROFILE = DEFAULT)") },
			moves: map[string]string{
				"sys.availability_groups":         "failure_condition_level health_check_timeout automated_backup_preference automated_backup_preference_desc db_failover dtc_support required_synchronized_secondaries_to_commit",
				"sys.availability_groups_cluster": "failure_condition_level health_check_timeout automated_backup_preference automated_backup_preference_desc",
				"coterie.record":                  "profile",
			},
		},
		{
			name: "options of a replica", on: "n2",
			do: func() {
				g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'N3' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL, SESSION_TIMEOUT = 20, BACKUP_PRIORITY = 7, "+
					"SEEDING_MODE = MANUAL, ENDPOINT_URL = N'TCP://n3:5022', SECONDARY_ROLE (ALLOW_CONNECTIONS = NO, READ_ONLY_ROUTING_URL = N'TCP://n3:1433'), PRIMARY_ROLE (ALLOW_CONNECTIONS = READ_WRITE, READ_WRITE_ROUTING_URL = N'TCP://n3:1433'))",
					"ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'N1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('N3', 'N2')))")
			},
			undo: func() {
				g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'N3' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY))")
				g.ready(t)
			},
			moves: map[string]string{
				"sys.availability_replicas": "endpoint_url availability_mode availability_mode_desc failover_mode failover_mode_desc session_timeout primary_role_allow_connections primary_role_allow_connections_desc " +
					"secondary_role_allow_connections secondary_role_allow_connections_desc backup_priority read_only_routing_url seeding_mode seeding_mode_desc read_write_routing_url",
				"sys.dm_hadr_database_replica_states": "synchronization_state synchronization_state_desc is_commit_participant", "sys.dm_hadr_database_replica_cluster_states": "is_failover_ready",
				"coterie.replicas": "availability_mode failover_mode synchronization_state failover_ready", "coterie.routes": "list_entry", "coterie.record": "synchronized sequence",
				"sys.availability_groups": "sequence_number",
			},
		},
		{
			name: "a replica is suspended and the primary writes on", on: "n2",
			do: func() {
				g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] SUSPEND REPLICA ON N'N3'")
				g.rows(t, 4000)
				time.Sleep(1200 * time.Millisecond) // between the last commits of the two there shall be a second
				g.rows(t, 10)
			},
			undo: func() { g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] RESUME REPLICA ON N'N3'"); g.ready(t) },
			moves: map[string]string{
				"sys.dm_hadr_database_replica_states": "is_suspended suspend_reason suspend_reason_desc synchronization_health synchronization_health_desc log_send_queue_size unhardened_queue_size secondary_lag_seconds " +
					"last_sent_lsn last_sent_time last_received_lsn last_received_time last_hardened_lsn last_hardened_time last_redone_lsn end_of_log_lsn last_commit_time",
				"sys.dm_hadr_availability_replica_states": "synchronization_health synchronization_health_desc write_lease_remaining_ticks",
				"sys.dm_hadr_availability_group_states":   "synchronization_health synchronization_health_desc",
				"sys.dm_os_wait_stats":                    "waiting_tasks_count wait_time_ms", "sys.dm_os_performance_counters": "cntr_value",
				"coterie.replicas": "suspended suspended_by health behind_bytes estimated_data_loss estimated_data_loss_by_rate position replayed", "coterie.policies": "ok finding",
				"coterie.streams": "sent flushed replayed replica_bytes transport_bytes silent_seconds", "coterie.events": "at", "coterie.decisions": "at revision",
			},
		},
		{
			name: "settings of a server are changed", on: "n2",
			do: func() {
				g.alter(t, "SET work_mem = '9MB'", "SET max_connections = 333")
				g.settingsDiffer(t)
			},
			undo:  func() { g.alter(t, "RESET work_mem", "RESET max_connections") },
			moves: map[string]string{"coterie.settings": "value source pending_restart"},
		},
		{
			name: "a copy is made again", on: "n2",
			do: func() {
				g.says(t, "n2", "SEED REPLICA ON N'N3'")
				g.await(t, "the copy to be made again", func(lab.Status) bool {
					r, err := g.answered(t, "n2", "SELECT count(*) FROM sys.dm_hadr_automatic_seeding WHERE current_state = 'COMPLETED'")
					return err == nil && fmt.Sprint(r.Rows[0][0]) == "3"
				})
			},
			undo: func() { g.ready(t) },
			moves: map[string]string{
				"sys.dm_hadr_automatic_seeding":      "start_time completion_time operation_id",
				"sys.dm_hadr_physical_seeding_stats": "local_physical_seeding_id remote_physical_seeding_id transferred_size_bytes start_time_utc end_time_utc transfer_rate_bytes_per_second",
			},
		},
		{
			name: "a steady load", on: "n2",
			do: func() {
				for range 3 {
					g.rows(t, 5000)
					g.columns(t, "n2", []string{"coterie.streams"}) // each node measures its rates when it is asked
				}
			},
			moves: map[string]string{"sys.dm_hadr_database_replica_states": "log_send_rate redo_rate truncation_lsn", "sys.dm_hadr_database_replica_cluster_states": "truncation_lsn", "coterie.streams": "rate"},
		},
		{
			name: "the secondaries sleep while a commit waits", on: "n1",
			do: func() {
				for _, n := range []string{"n2", "n3"} {
					if err := g.Pause(n, lab.WhatNode); err != nil {
						t.Fatal(err)
					}
				}
				time.AfterFunc(2500*time.Millisecond, func() { _, _ = g.Resume("n2"), g.Resume("n3") })
				g.rows(t, 10)
			},
			undo:  func() { g.ready(t) },
			moves: map[string]string{"sys.dm_os_wait_stats": "max_wait_time_ms wait_time_ms"},
		},
		{
			name: "replay is paused", on: "n2",
			do: func() {
				replay = session(g.ReadOnly()) // the list has n3 first
				if _, err := replay.Exec(t.Context(), "select pg_wal_replay_pause()"); err != nil {
					t.Fatal(err)
				}
				g.rows(t, 2000)
			},
			undo: func() {
				if _, err := replay.Exec(t.Context(), "select pg_wal_replay_resume()"); err != nil {
					t.Fatal(err)
				}
				_ = replay.Close(context.Background())
				g.noSessions(t, "n2")
			},
			moves: map[string]string{"sys.dm_hadr_database_replica_states": "redo_queue_size", "coterie.replicas": "estimated_recovery"},
		},
		{
			name: "a client connects, asks and goes on asking", on: "n2",
			do: func() {
				open = session(strings.Replace(dsn("n2", shop), "?", "?sslmode=require&", 1))
				if _, err := open.Exec(t.Context(), "select setseed(0.5); set application_name = 'client'"); err != nil { // it cannot be moved
					t.Fatal(err)
				}
			},
			undo: func() { _ = open.Close(context.Background()) },
			moves: map[string]string{
				"coterie.sessions": "node session_id user_name database_name client tls intent replica state since bytes_in bytes_out pid path backend " +
					"failover failover_reason node_loss node_loss_reason server_loss server_loss_reason statement",
				"coterie.continuity": "node replica application_name user_name sessions failover failover_reason node_loss node_loss_reason server_loss server_loss_reason " +
					"statement failover_pct node_loss_pct server_loss_pct",
			},
		},
		{
			name: "a database is dropped beside the language", on: "n2",
			do:    func() { sql(t, g.ReadWrite(), "drop database shop") },
			moves: map[string]string{"coterie.databases": "present database_id", "sys.databases": "name"},
		},
		{
			name: "nobody reads and a reader comes", on: "n1",
			do: func() {
				g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'N1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('N1')))")
				sql(t, g.ReadOnly(), "select 1")
			},
			moves: map[string]string{"coterie.routes": "fell_back", "coterie.routed": "node at readers routed routed_pct"},
		},
		{
			name: "a replica's node dies", on: "n2", do: func() { kill("n3")(); g.rows(t, 2000) }, undo: start("n3"),
			moves: map[string]string{
				"sys.dm_hadr_availability_replica_states": "role role_desc connected_state connected_state_desc last_connect_error_description",
				"sys.dm_hadr_cluster_members":             "member_state member_state_desc", "sys.dm_tcp_listener_states": "state state_desc start_time",
				"sys.dm_hadr_database_replica_states": "database_state database_state_desc", "coterie.replicas": "connected role because", "coterie.routes": "healthy", "coterie.streams": "behind_bytes",
			},
		},
		{
			name: "planned failover", on: "n2", do: func() { g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] FAILOVER") },
			undo: func() { g.ready(t) },
			moves: map[string]string{
				"sys.dm_hadr_availability_group_states": "primary_replica primary_recovery_health primary_recovery_health_desc secondary_recovery_health secondary_recovery_health_desc",
				"sys.dm_hadr_database_replica_states":   "is_primary_replica recovery_lsn", "sys.dm_hadr_database_replica_cluster_states": "recovery_lsn", "sys.databases": "is_read_only",
				"coterie.record": "epoch leader timeline primary_replica", "coterie.timelines": "timeline parent switch_lsn epoch", "coterie.routes": "is_primary epoch",
				"coterie.streams": "source member", "coterie.decisions": "epoch rule because", "coterie.events": "epoch kind what",
			},
		},
		{
			name: "a replica is removed and added", on: "n2",
			do: func() {
				g.says(t, "n2", "ALTER AVAILABILITY GROUP [DemoAG] REMOVE REPLICA ON N'N3'", "ALTER AVAILABILITY GROUP [DemoAG] ADD REPLICA ON N'N3'")
			},
			undo:  func() { g.says(t, "n3", "ALTER AVAILABILITY GROUP [DemoAG] JOIN"); g.ready(t) },
			moves: map[string]string{"sys.dm_hadr_availability_replica_cluster_states": "join_state join_state_desc", "sys.dm_hadr_database_replica_cluster_states": "is_database_joined"},
		},
		{
			name: "the majority dies", on: "n2", do: kill("n1", "n3", "w"), undo: start("n1", "n3", "w"),
			moves: map[string]string{
				"sys.dm_hadr_cluster": "quorum_state quorum_state_desc", "sys.dm_hadr_availability_replica_states": "operational_state operational_state_desc recovery_health recovery_health_desc",
				"coterie.record": "quorum write_open",
			},
		},
		{
			name: "a group of another kind is made of the nodes", on: "n2",
			do: func() {
				primary := *g.ready(t).Primary
				g.says(t, primary, "DROP AVAILABILITY GROUP [DemoAG]",
					fmt.Sprintf("CREATE AVAILABILITY GROUP [Other] WITH (BASIC, CONTAINED, CLUSTER_TYPE = EXTERNAL) FOR REPLICA ON N'%s'", primary))
			},
			moves: map[string]string{"sys.availability_groups": "name basic_features cluster_type cluster_type_desc", "coterie.record": "k"},
		},
	}
}
