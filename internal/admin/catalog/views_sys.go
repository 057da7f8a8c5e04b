package catalog

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// one returns the rows of a view of the group: one, or none while the group does not exist.
func one(f Facts, row ...any) [][]any {
	if f.Group.Draft {
		return nil
	}
	return [][]any{row}
}

// each returns a row for every replica of the group.
func each(f Facts, row func(ag.Replica) []any) [][]any {
	var out [][]any
	for _, r := range f.members() {
		out = append(out, row(r))
	}
	return out
}

var sysViews = []view{
	{
		schema: "sys", name: "availability_groups", about: "The availability group.",
		columns: cols("group_id u, name t, resource_id t!, resource_group_id t!, failure_condition_level i4, health_check_timeout i4, " +
			"automated_backup_preference i4, automated_backup_preference_desc t, version i4, basic_features b, dtc_support b, db_failover b, is_distributed b, " +
			"cluster_type i4, cluster_type_desc t, required_synchronized_secondaries_to_commit i4, sequence_number i8, is_contained b, cluster_connection_options t!"),
		rows: func(f Facts) [][]any {
			g, p := f.Group, backupPreferences[backupPreference(f.Group)]
			_, basic := g.Options.Recorded["BASIC"]
			cluster := code{0, "WSFC"}
			switch g.Options.Recorded["CLUSTER_TYPE"] {
			case "EXTERNAL":
				cluster = code{1, "EXTERNAL"}
			case "NONE":
				cluster = code{2, "NONE"}
			}
			return one(f, string(g.ID), g.Name, nil, nil, int64(g.Options.Level()), g.Options.HealthWait().Milliseconds(), p.n, p.desc, int64(3), bit(basic),
				bit(g.Options.Recorded["DTC_SUPPORT"] == "PER_DB"), bit(!g.Options.NoDBFailover), int64(0), cluster.n, cluster.desc, int64(f.Group.RequiredBeside(f.Record.Epoch.Leader)),
				int64(f.Record.State.Seq), int64(1), nil)
		},
	},
	{
		schema: "sys", name: "availability_groups_cluster", about: "The availability group, as the quorum has it.",
		columns: cols("group_id u, name t, resource_id t!, resource_group_id t!, failure_condition_level i4, health_check_timeout i4, " +
			"automated_backup_preference i4, automated_backup_preference_desc t"),
		rows: func(f Facts) [][]any {
			g, p := f.Group, backupPreferences[backupPreference(f.Group)]
			return one(f, string(g.ID), g.Name, nil, nil, int64(g.Options.Level()), g.Options.HealthWait().Milliseconds(), p.n, p.desc)
		},
	},
	{
		schema: "sys", name: "availability_replicas", about: "The replicas, as they are configured.",
		columns: cols("replica_id u, group_id u, replica_metadata_id i4!, replica_server_name t, owner_sid t!, endpoint_url t, availability_mode i4, " +
			"availability_mode_desc t, failover_mode i4, failover_mode_desc t, session_timeout i4, primary_role_allow_connections i4, " +
			"primary_role_allow_connections_desc t, secondary_role_allow_connections i4, secondary_role_allow_connections_desc t, create_date ts!, " +
			"modify_date ts!, backup_priority i4, read_only_routing_url t, seeding_mode i4, seeding_mode_desc t, read_write_routing_url t"),
		rows: func(f Facts) [][]any { return each(f, f.configured) },
	},
	{
		schema: "sys", name: "availability_databases_cluster", about: "The databases: those registered, or all of the instance where none is.",
		columns: cols("group_id u, group_database_id u, database_name t, truncation_lsn i8"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, d := range f.databases() {
				out = append(out, one(f, string(f.Group.ID), DatabaseUUID(f.Group.ID, d.Name), d.Name, lsn(f.kept()))...)
			}
			return out
		},
	},
	{
		schema: "sys", name: "availability_read_only_routing_lists", about: "Where readers go while replica_id is the primary; equal priorities are one set, taken in turn.",
		columns: cols("replica_id u, routing_priority i4, read_only_replica_id u"),
		rows:    routingLists,
	},
	{
		schema: "sys", name: "availability_group_listeners", about: "The group's named client address.",
		columns: cols("group_id u, listener_id u, dns_name t, port i4, is_conformant b, ip_configuration_string_from_cluster t, is_distributed_network_name b"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, l := range f.Group.Options.Listeners {
				out = append(out, one(f, string(f.Group.ID), listenerID(f, l), l.Name, f.listenerPort(l), int64(1), strings.Join(l.Addresses, ", "), int64(0))...)
			}
			return out
		},
	},
	{
		schema: "sys", name: "availability_group_listener_ip_addresses", about: "The addresses of the listener.",
		columns: cols("listener_id u, ip_address t, ip_subnet_mask t, is_dhcp b, network_subnet_ip t!, network_subnet_prefix_length i4!, " +
			"network_subnet_ipv4_mask t!, state i4, state_desc t"),
		rows: listenerAddresses,
	},
	{
		schema: "sys", name: "dm_hadr_availability_group_states", about: "How the group is.",
		columns: cols("group_id u, primary_replica t, primary_recovery_health i4, primary_recovery_health_desc t, secondary_recovery_health i4, " +
			"secondary_recovery_health_desc t, synchronization_health i4, synchronization_health_desc t"),
		rows: func(f Facts) [][]any {
			h := f.groupHealth().code()
			var primary, primaryDesc, secondary, secondaryDesc any
			online := code{0, "ONLINE_IN_PROGRESS"}
			if f.WriteOpen {
				online = code{1, "ONLINE"}
			}
			if f.Self == f.Record.Epoch.Leader {
				primary, primaryDesc = online.n, online.desc
			} else {
				secondary, secondaryDesc = online.n, online.desc
			}
			return one(f, string(f.Group.ID), string(f.Primary), primary, primaryDesc, secondary, secondaryDesc, h.n, h.desc)
		},
	},
	{
		schema: "sys", name: "dm_hadr_availability_replica_states", about: "How each replica is.",
		columns: cols("replica_id u, group_id u, is_local b, role i4, role_desc t, operational_state i4, operational_state_desc t, connected_state i4, " +
			"connected_state_desc t, recovery_health i4, recovery_health_desc t, synchronization_health i4, synchronization_health_desc t, " +
			"last_connect_error_number i4!, last_connect_error_description t, last_connect_error_timestamp ts!, write_lease_remaining_ticks i8, " +
			"current_configuration_commit_start_time_utc ts!"),
		rows: func(f Facts) [][]any { return each(f, f.replicaState) },
	},
	{
		schema: "sys", name: "dm_hadr_availability_replica_cluster_states", about: "How far each replica has joined.",
		columns: cols("replica_id u, replica_server_name t, group_id u, join_state i4, join_state_desc t"),
		rows: func(f Facts) [][]any {
			return each(f, func(r ag.Replica) []any {
				j := code{1, "JOINED_STANDALONE_INSTANCE"}
				if r.Join != "" {
					j = code{0, "NOT_JOINED"}
				}
				return []any{ReplicaUUID(f.Group.ID, r.ID), string(r.ID), string(f.Group.ID), j.n, j.desc}
			})
		},
	},
	{
		schema: "sys", name: "dm_hadr_availability_replica_cluster_nodes", about: "Which node carries which replica.",
		columns: cols("group_name t, replica_server_name t, node_name t"),
		rows: func(f Facts) [][]any {
			return each(f, func(r ag.Replica) []any { return []any{f.Group.Name, string(r.ID), string(r.ID)} })
		},
	},
	{
		schema: "sys", name: "dm_hadr_instance_node_map", about: "Which node carries which instance.",
		columns: cols("ag_resource_id t, instance_name t, node_name t"),
		rows: func(f Facts) [][]any {
			return each(f, func(r ag.Replica) []any { return []any{string(f.Group.ID), string(r.ID), string(r.ID)} })
		},
	},
	{
		schema: "sys", name: "dm_hadr_name_id_map", about: "The group's name and ids.",
		columns: cols("ag_name t, ag_id u, ag_resource_id t, ag_group_id t"),
		rows: func(f Facts) [][]any {
			return one(f, f.Group.Name, string(f.Group.ID), string(f.Group.ID), string(f.Group.ID))
		},
	},
	{
		schema: "sys", name: "dm_hadr_cluster", about: "The quorum: a majority of nodes, or EXTERNAL where it is an etcd of the administrator's.",
		columns: cols("cluster_name t, quorum_type i4, quorum_type_desc t, quorum_state i4, quorum_state_desc t"),
		rows: func(f Facts) [][]any {
			state := code{1, "NORMAL_QUORUM"}
			if !f.Quorum {
				state = code{0, "UNKNOWN_QUORUM_STATE"}
			}
			kind := code{0, "NODE_MAJORITY"}
			if f.Group.External > 0 {
				kind = code{4, "EXTERNAL"}
			}
			return [][]any{{f.Group.Name, kind.n, kind.desc, state.n, state.desc}}
		},
	},
	{
		schema: "sys", name: "dm_hadr_cluster_members", about: "The nodes of the quorum, replicas of the group or not.",
		columns: cols("member_name t, member_type i4, member_type_desc t, member_state i4, member_state_desc t, number_of_quorum_votes i4"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, r := range f.Group.Replicas {
				state := code{0, "DOWN"}
				if f.Nodes[r.ID].Connected {
					state = code{1, "UP"}
				}
				out = append(out, []any{string(r.ID), int64(0), "CLUSTER_NODE", state.n, state.desc, bit(f.hasVote(r))})
			}
			return out
		},
	},
	{
		schema: "sys", name: "dm_hadr_cluster_networks", about: "The addresses by which nodes meet.",
		columns: cols("member_name t, network_subnet_ip t, network_subnet_ipv4_mask t!, network_subnet_prefix_length i4!, is_public b, is_ipv4 b"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, r := range f.Group.Replicas {
				host, _, _ := net.SplitHostPort(r.Endpoint)
				ip, err := netip.ParseAddr(host)
				out = append(out, []any{string(r.ID), host, nil, nil, int64(0), bit(err != nil || ip.Is4())})
			}
			return out
		},
	},
	{
		schema: "sys", name: "dm_tcp_listener_states", about: "The ports of every node.",
		columns: cols("listener_id i4, ip_address t, is_ipv4 b, port i4, type i4, type_desc t, state i4, state_desc t, start_time ts, node_name t"),
		rows:    ports,
	},
	{
		schema: "sys", name: "dm_hadr_auto_page_repair", about: "Empty: pages are verified by checksum and a bad copy is made anew.",
		columns: cols("database_id i4, file_id i4, page_id i8, error_type i4, page_status i4, modification_time ts"),
		rows:    func(Facts) [][]any { return nil },
	},
	{
		schema: "sys", name: "databases", about: "The databases of this node's instance.",
		columns: cols("name t, database_id i8, source_database_id i4!, owner_sid t!, create_date ts!, compatibility_level i4!, collation_name t!, user_access i4, " +
			"user_access_desc t, is_read_only b, is_auto_close_on b, is_auto_shrink_on b, state i4, state_desc t, is_in_standby b, snapshot_isolation_state i4, " +
			"snapshot_isolation_state_desc t, is_read_committed_snapshot_on b, recovery_model i4, recovery_model_desc t, is_query_store_on b, " +
			"is_broker_enabled b, is_cdc_enabled b, is_encrypted b, replica_id u, group_database_id u"),
		rows: func(f Facts) [][]any {
			var out [][]any
			in := map[string]bool{}
			for _, d := range f.databases() {
				in[d.Name] = true
			}
			for _, d := range f.Nodes[f.Self].Databases {
				var replica, group any
				if in[d.Name] && !f.Group.Draft {
					replica, group = ReplicaUUID(f.Group.ID, f.Self), DatabaseUUID(f.Group.ID, d.Name)
				}
				out = append(out, []any{
					d.Name, int64(d.OID), nil, nil, nil, nil, nil, int64(0), "MULTI_USER", bit(f.Nodes[f.Self].Role != ag.RolePrimary), int64(0), int64(0),
					int64(0), "ONLINE", int64(0), int64(1), "ON", int64(1), int64(1), "FULL", int64(0), int64(0), int64(0), int64(0), replica, group,
				})
			}
			return out
		},
	},
}

func (f Facts) configured(r ag.Replica) []any {
	url := r.Options.EndpointURL
	if url == "" {
		url = "TCP://" + r.Endpoint
	}
	timeout := f.Group.Timeout(r)
	readOnly, readWrite := r.Options.ReadOnlyURL, r.Options.ReadWriteURL
	if readOnly == "" && r.ReadOnly != "" {
		readOnly = "TCP://" + r.ReadOnly
	}
	if readWrite == "" && r.Listener != "" {
		readWrite = "TCP://" + r.Listener
	}
	seeding := code{0, "AUTOMATIC"}
	if r.Options.ManualSeeding {
		seeding = code{1, "MANUAL"}
	}
	mode, failover, primary, secondary := availabilityModes[r.AvailabilityMode], failoverModes[r.FailoverMode], primaryAllow(r), secondaryAllow(r)
	return []any{
		ReplicaUUID(f.Group.ID, r.ID), string(f.Group.ID), nil, string(r.ID), nil, url, mode.n, mode.desc, failover.n, failover.desc,
		int64(timeout.Seconds()), primary.n, primary.desc, secondary.n, secondary.desc, nil, nil, int64(priority(r)), orNull(readOnly), seeding.n, seeding.desc,
		orNull(readWrite),
	}
}

func routingLists(f Facts) [][]any {
	var out [][]any
	for _, r := range f.members() {
		if !r.HasData() {
			continue
		}
		for i, set := range f.Group.ReadList(r.ID) {
			for _, id := range set {
				out = append(out, []any{ReplicaUUID(f.Group.ID, r.ID), int64(i + 1), ReplicaUUID(f.Group.ID, id)})
			}
		}
	}
	return out
}

func listenerID(f Facts, l ag.Listener) string {
	return ReplicaUUID(f.Group.ID, ag.ReplicaID("listener "+l.Name))
}

func (f Facts) listenerPort(l ag.Listener) any {
	if l.Port != 0 {
		return int64(l.Port)
	}
	r, _ := f.Group.Replica(f.Self)
	return portOf(r.Listener)
}

func portOf(hostPort string) any {
	_, p, err := net.SplitHostPort(hostPort)
	n, err2 := strconv.ParseInt(p, 10, 64)
	if err != nil || err2 != nil {
		return nil
	}
	return n
}

func listenerAddresses(f Facts) [][]any {
	var out [][]any
	for _, l := range f.Group.Options.Listeners {
		for _, a := range l.Addresses {
			p, err := netip.ParsePrefix(a)
			if err != nil {
				continue
			}
			state := f.addressState(a)
			var mask any
			if p.Addr().Is4() {
				mask = net.IP(net.CIDRMask(p.Bits(), 32)).String()
			}
			out = append(out, one(f, listenerID(f, l), p.Addr().String(), mask, int64(0), nil, nil, nil, state.n, state.desc)...)
		}
	}
	return out
}

// addressState returns ONLINE if any node holds the address, or FAILED if the node that should hold it reports that.
func (f Facts) addressState(prefix string) code {
	state := code{0, "OFFLINE"}
	for _, n := range f.Nodes {
		for _, p := range n.Places {
			switch {
			case p.Address == prefix && p.State == "ONLINE":
				return code{1, "ONLINE"}
			case p.Address == prefix && p.State == "FAILED":
				state = code{3, "FAILED"}
			}
		}
	}
	return state
}

func (f Facts) replicaState(r ag.Replica) []any {
	n, local := f.Nodes[r.ID], r.ID == f.Self
	role, h := roles[f.role(r)], f.replicaHealth(r).code()
	if n.Connected && !r.HasData() && r.Join == "" { // scripts take RESOLVING for a fault
		role = roles[ag.RoleSecondary]
	}
	connected := code{0, "DISCONNECTED"}
	if n.Connected {
		connected = code{1, "CONNECTED"}
	}
	var op, opDesc, recovery, recoveryDesc, trouble any
	if local {
		o := f.operational(r)
		op, opDesc = o.n, o.desc
		recovery, recoveryDesc = int64(1), "ONLINE"
		if r.HasData() && n.Server != ag.ServerRecovery && n.Server != ag.ServerWritable {
			recovery, recoveryDesc = int64(0), "ONLINE_IN_PROGRESS"
		}
	}
	var lease any
	if role.n == roles[ag.RolePrimary].n && n.Lease > 0 {
		lease = n.Lease.Milliseconds()
	}
	if !n.Connected {
		trouble = "does not answer"
	}
	return []any{
		ReplicaUUID(f.Group.ID, r.ID), string(f.Group.ID), bit(local), role.n, role.desc, op, opDesc, connected.n, connected.desc, recovery, recoveryDesc,
		h.n, h.desc, nil, trouble, nil, lease, nil,
	}
}

func ports(f Facts) [][]any {
	var out [][]any
	for _, r := range f.Group.Replicas {
		for i, p := range []struct {
			address string
			typ     code
		}{{r.Listener, code{0, "TSQL"}}, {r.ReadOnly, code{0, "TSQL_READ_ONLY"}}, {r.Endpoint, code{2, "DATABASE_MIRRORING"}}, {r.HTTP, code{3, "HTTP"}}} {
			host, _, err := net.SplitHostPort(p.address)
			if err != nil {
				continue
			}
			ip, err := netip.ParseAddr(host)
			state := code{1, "OFFLINE"}
			if f.Nodes[r.ID].Connected {
				state = code{0, "ONLINE"}
			}
			var started any
			if up := f.Nodes[r.ID].Uptime; up > 0 {
				started = timeText(f.Now.Add(-up))
			}
			out = append(out, []any{int64(i + 1), host, bit(err != nil || ip.Is4()), portOf(p.address), p.typ.n, p.typ.desc, state.n, state.desc, started, string(r.ID)})
		}
	}
	return out
}

// counterViews are the counterparts of SQL Server's counters and wait statistics.
var counterViews = []view{
	{
		schema: "sys", name: "dm_os_wait_stats",
		about:   "What commits waited for their secondaries on each node since its agent started: one wait for each block of WAL, from leaving the server until as many members had flushed it as a commit waits for.",
		columns: cols("wait_type t, waiting_tasks_count i8, wait_time_ms i8, max_wait_time_ms i8, signal_wait_time_ms i8!, node t"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, r := range f.Group.Replicas {
				if c := f.Nodes[r.ID].Commits; c != nil {
					out = append(out, []any{"HADR_SYNC_COMMIT", int64(c.Waits), c.Waited.Milliseconds(), c.Max.Milliseconds(), nil, string(r.ID)})
				}
			}
			return out
		},
	},
	{
		schema: "sys", name: "dm_os_performance_counters",
		about:   "Counters of replicas and databases. Those of type 272696576 grow, and two readings make a rate: most from 0 at the start of the primary's agent on. Log Bytes Received and Redone Bytes are the position in WAL that the secondary has received and replayed. Sync Commit is of the last minute or two, in microseconds.",
		columns: cols("object_name t, counter_name t, instance_name t, cntr_value i8, cntr_type i4"),
		rows:    counters,
	},
}

// The types of counters, with SQL Server's numbers: a value, and a sum from which two readings give a rate.
const (
	counterValue = int64(65792)
	counterSum   = int64(272696576)
)

func counters(f Facts) [][]any {
	var out [][]any
	add := func(object, counter, instance string, typ, v int64) {
		out = append(out, []any{"Coterie:" + object, counter, instance, v, typ})
	}
	leader := f.Record.Epoch.Leader
	for _, r := range f.members() {
		if !r.HasData() || r.ID == leader {
			continue
		}
		if l, ok := f.linkTo(r.ID); ok {
			name := f.Group.Name + ":" + string(r.ID)
			add("Availability Replica", "Bytes Sent to Replica/sec", name, counterSum, int64(l.Sent))
			add("Availability Replica", "Bytes Sent to Transport/sec", name, counterSum, int64(l.Encoded))
			add("Availability Replica", "Bytes Received from Replica/sec", name, counterSum, int64(l.Received))
			add("Availability Replica", "Resent Bytes/sec", name, counterSum, int64(l.Resent))
		}
		p := f.positionsOf(r)
		for _, d := range f.databases() {
			name := d.Name + ":" + string(r.ID)
			add("Database Replica", "Log Send Queue", name, counterValue, behind(f.head(), p.sent))
			add("Database Replica", "Recovery Queue", name, counterValue, behind(p.flushed, p.replayed))
			add("Database Replica", "Redo Bytes Remaining", name, counterValue, int64(max(p.flushed, p.replayed)-p.replayed))
			if p.known || p.streamed { // positions, so that a rate is true after another primary, too
				add("Database Replica", "Redone Bytes/sec", name, counterSum, int64(p.replayed))
				add("Database Replica", "Log Bytes Received/sec", name, counterSum, int64(p.flushed))
			}
		}
	}
	if c := f.Nodes[leader].Commits; c != nil {
		for _, d := range f.databases() { // all of them are in one WAL stream
			add("Database Replica", "Mirrored Write Transactions/sec", d.Name, counterSum, int64(c.Waits))
			add("Database Replica", "Transaction Delay", d.Name, counterSum, c.Waited.Milliseconds())
		}
		for _, x := range []struct {
			name string
			d    time.Duration
		}{{"mean", c.Mean}, {"p50", c.P50}, {"p95", c.P95}, {"p99", c.P99}} {
			add("Sync Commit", "Delay "+x.name+" (us)", string(leader), counterValue, x.d.Microseconds())
		}
	}
	return out
}
