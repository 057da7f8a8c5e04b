package catalog

import (
	"database/sql/driver"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// endpointName is the name that SQL Server's tools give an endpoint of availability groups.
const endpointName = "Hadr_endpoint"

// instanceViews are views of this node that scripts join to those of the group.
var instanceViews = []view{
	{
		schema: "sys", name: "database_mirroring_endpoints", about: "This node's endpoint between nodes. It has mutual TLS 1.3 by certificates of the group's own authority.",
		columns: cols("name t, endpoint_id i4, principal_id i4!, protocol i4, protocol_desc t, type i4, type_desc t, state i4, state_desc t, is_admin_endpoint b, role i4, role_desc t, " +
			"is_encryption_enabled b, connection_auth i4, connection_auth_desc t, certificate_id i4!, encryption_algorithm i4, encryption_algorithm_desc t"),
		rows: func(f Facts) [][]any {
			r, ok := f.Group.Replica(f.Self)
			if !ok {
				return nil
			}
			role := code{3, "ALL"}
			if !r.HasData() {
				role = code{2, "WITNESS"}
			}
			return [][]any{{
				endpointName, int64(firstEndpoint), nil, int64(2), "TCP", int64(4), "DATABASE_MIRRORING", int64(0), "STARTED", int64(0), role.n, role.desc,
				int64(1), int64(4), "CERTIFICATE", nil, int64(2), "AES",
			}}
		},
	},
	{
		schema: "sys", name: "tcp_endpoints", about: "This node's ports, by the names of SQL Server's endpoints.",
		columns: cols("name t, endpoint_id i4, principal_id i4!, protocol i4, protocol_desc t, type i4, type_desc t, state i4, state_desc t, is_admin_endpoint b, " +
			"port i4, is_dynamic_port b, ip_address t"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, e := range f.endpoints() {
				host, _, _ := net.SplitHostPort(e.address)
				out = append(out, []any{
					e.name, e.id, nil, int64(2), "TCP", e.typ.n, e.typ.desc, int64(0), "STARTED", int64(0), portOf(e.address), int64(0), host,
				})
			}
			return out
		},
	},
	{
		schema: "sys", name: "endpoints", about: "This node's ports, as sys.tcp_endpoints has them.",
		columns: cols("name t, endpoint_id i4, principal_id i4!, protocol i4, protocol_desc t, type i4, type_desc t, state i4, state_desc t, is_admin_endpoint b"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, e := range f.endpoints() {
				out = append(out, []any{e.name, e.id, nil, int64(2), "TCP", e.typ.n, e.typ.desc, int64(0), "STARTED", int64(0)})
			}
			return out
		},
	},
	{
		schema: "sys", name: "dm_exec_sessions", about: "The sessions of this node's listener. coterie.sessions has those of all nodes, with their routes.",
		columns: cols("session_id i8, login_time ts, host_name t, program_name t!, host_process_id i8!, login_name t, original_login_name t, status t, database_id i8, " +
			"is_user_process b, cpu_time i8!, memory_usage i8!, reads i8!, writes i8!, logical_reads i8!, last_request_start_time ts!, last_request_end_time ts!"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, s := range f.Nodes[f.Self].Sessions {
				status := "sleeping" // in a transaction, too
				if s.State == "active" {
					status = "running"
				}
				id, _ := databaseID(f, []driver.Value{s.Database})
				out = append(out, []any{
					int64(s.ID), timeText(s.Since), clientHost(s), nil, nil, s.User, s.User, status, id, int64(1), nil, nil, nil, nil, nil, nil, nil,
				})
			}
			return out
		},
	},
	{
		schema: "sys", name: "dm_exec_connections", about: "The connections of this node's listener.",
		columns: cols("session_id i8, connect_time ts, net_transport t, protocol_type t, encrypt_option t, auth_scheme t!, client_net_address t, client_tcp_port i4, " +
			"num_reads i8!, num_writes i8!"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, s := range f.Nodes[f.Self].Sessions {
				encrypted, transport := "FALSE", "TCP"
				if s.TLS != "" {
					encrypted = "TRUE"
				}
				if s.Client == localClient {
					transport = "Unix socket"
				}
				out = append(out, []any{int64(s.ID), timeText(s.Since), transport, "PostgreSQL", encrypted, nil, clientHost(s), portOf(s.Client), nil, nil})
			}
			return out
		},
	},
	{
		schema: "sys", name: "dm_hadr_ag_threads", about: "What moves the group's data on this node: a stream to each secondary captures, the server's startup process redoes.",
		columns: cols("group_id u, name t, num_databases i4, num_capture_threads i4, num_redo_threads i4, num_parallel_redo_threads i4, num_hadr_threads i4"),
		rows: func(f Facts) [][]any {
			n, capture, redo := f.Nodes[f.Self], int64(0), int64(0)
			for _, s := range n.Streams {
				if s.Open {
					capture++
				}
			}
			if n.Server == ag.ServerRecovery {
				redo = 1
			}
			return one(f, string(f.Group.ID), f.Group.Name, int64(len(f.databases())), capture, redo, int64(0), capture+redo)
		},
	},
	{
		schema: "sys", name: "dm_os_sys_info", about: "When this node's agent started.",
		columns: cols("sqlserver_start_time ts, cpu_count i4!, physical_memory_kb i8!"),
		rows: func(f Facts) [][]any {
			return [][]any{{timeText(f.Now.Add(-f.Nodes[f.Self].Uptime)), nil, nil}}
		},
	},
}

// emptyViews are views of SQL Server that scripts look into before they do anything, and that have no rows here: what
// they list does not exist.
var emptyViews = []view{
	{
		schema: "sys", name: "server_event_sessions", about: "Empty: there are no event sessions. coterie.events has what happened, coterie.decisions and coterie explain why.",
		columns: cols("event_session_id i4, name t, event_retention_mode t, event_retention_mode_desc t, max_dispatch_latency i4, max_memory i4, " +
			"max_event_size i4, memory_partition_mode t, memory_partition_mode_desc t, track_causality b, startup_state b"),
		rows: func(Facts) [][]any { return nil },
	},
	{
		schema: "sys", name: "server_event_session_events", about: "Empty: there are no event sessions.",
		columns: cols("event_session_id i4, event_id i4, name t, package t, module t, predicate t"),
		rows:    func(Facts) [][]any { return nil },
	},
	{
		schema: "sys", name: "server_event_session_targets", about: "Empty: there are no event sessions.",
		columns: cols("event_session_id i4, target_id i4, name t, package t, module t"),
		rows:    func(Facts) [][]any { return nil },
	},
	{
		schema: "sys", name: "dm_xe_sessions", about: "Empty: there are no event sessions, so that none runs.",
		columns: cols("address t, name t, pending_buffers i4, total_regular_buffers i4, regular_buffer_size i8, total_large_buffers i4, " +
			"large_buffer_size i8, total_buffer_size i8, buffer_policy_flags i4, buffer_policy_desc t, flags i4, flag_desc t, " +
			"dropped_event_count i4, dropped_buffer_count i4, blocked_event_fire_time i4, create_time ts, largest_event_dropped_size i4"),
		rows: func(Facts) [][]any { return nil },
	},
	{
		schema: "sys", name: "dm_xe_session_targets", about: "Empty: there are no event sessions.",
		columns: cols("event_session_address t, target_name t, target_package_guid u, execution_count i8, execution_duration_ms i8, target_data t, " +
			"bytes_written i8"),
		rows: func(Facts) [][]any { return nil },
	},
	{
		schema: "sys", name: "configurations", about: "Empty: none of the options of sp_configure exists. coterie.options has the group's, coterie.settings PostgreSQL's.",
		columns: cols("configuration_id i4, name t, value i4, minimum i4, maximum i4, value_in_use i4, description t, is_dynamic b, is_advanced b"),
		rows:    func(Facts) [][]any { return nil },
	},
}

// firstEndpoint is the id of the first endpoint: smaller ones belong to SQL Server's own.
const firstEndpoint = 65536

// endpoint is a port of this node.
type endpoint struct {
	name, address string
	id            int64
	typ           code
}

func (f Facts) endpoints() []endpoint {
	r, ok := f.Group.Replica(f.Self)
	if !ok {
		return nil
	}
	var out []endpoint
	for _, e := range []endpoint{
		{endpointName, r.Endpoint, firstEndpoint, code{4, "DATABASE_MIRRORING"}},
		{"TSQL Default TCP", r.Listener, 4, code{2, "TSQL"}},
		{"TSQL Read Only TCP", r.ReadOnly, firstEndpoint + 1, code{2, "TSQL"}},
	} {
		if e.address != "" {
			out = append(out, e)
		}
	}
	return out
}

// localClient is the client of a session that came by a Unix socket.
const localClient = "local"

// clientHost returns the address of a session's client without its port.
func clientHost(s Session) string {
	host, _, err := net.SplitHostPort(s.Client)
	if err != nil {
		return s.Client
	}
	return host
}

// continuityRows returns the rows of coterie.continuity. The shares are those of all sessions of a node, a replica, an
// application and a user.
func continuityRows(f Facts) (out [][]any) {
	type owner struct {
		replica           ag.ReplicaID
		application, user string
		others            bool
	}
	type share struct{ all, failover, node, server int }
	for _, r := range f.Group.Replicas {
		list, shares := f.Nodes[r.ID].Outlooks, map[owner]share{}
		by := func(o Outlook) owner { return owner{o.Replica, o.Application, o.User, o.Others} }
		kept := func(o Outlook, p Prospect) int {
			if p.Fate == "ENDS" {
				return 0
			}
			return o.Sessions
		}
		for _, o := range list {
			s := shares[by(o)]
			shares[by(o)] = share{s.all + o.Sessions, s.failover + kept(o, o.Failover), s.node + kept(o, o.NodeLoss), s.server + kept(o, o.ServerLoss)}
		}
		for _, o := range list {
			s := shares[by(o)]
			pct := func(n int) float64 { return 100 * float64(n) / float64(max(s.all, 1)) }
			application, user := any(o.Application), any(o.User)
			if o.Others {
				application, user = nil, nil
			}
			out = append(out, []any{
				string(r.ID), string(o.Replica), application, user, int64(o.Sessions), o.Failover.Fate, orNull(o.Failover.Why), o.NodeLoss.Fate, orNull(o.NodeLoss.Why),
				o.ServerLoss.Fate, orNull(o.ServerLoss.Why), orNull(o.Transaction.Fate), orNull(o.Transaction.Why),
				orNull(o.Commit.Fate), orNull(o.Commit.Why), orNull(o.Statement), pct(s.failover), pct(s.node), pct(s.server),
			})
		}
	}
	return out
}

// coverageRow returns the row of an hour or a day in the views of what became known, without the node.
func coverageRow(c Coverage) []any {
	pct := func(s Share, of int) any {
		if of == 0 {
			return nil
		}
		return 100 * float64(s.Kept) / float64(of)
	}
	looks := float64(max(c.Looks, 1))
	return []any{
		timeText(c.Begin), int64(c.Looks), float64(c.Sessions) / looks, pct(c.Failover, c.Sessions), orNull(c.Failover.Why), pct(c.NodeLoss, c.Sessions), orNull(c.NodeLoss.Why),
		pct(c.ServerLoss, c.Sessions), orNull(c.ServerLoss.Why), float64(c.Open) / looks, pct(c.Replayed, c.Open), orNull(c.Replayed.Why),
	}
}

// ownerCoverageRow returns the row of a day in coterie.continuity_by_application, without the node.
func ownerCoverageRow(o OwnerCoverage) []any {
	application, user := any(o.Application), any(o.User)
	if o.Others {
		application, user = nil, nil
	}
	return slices.Insert(coverageRow(o.Coverage), 1, application, user)
}

// certificateView is coterie.certificates.
var certificateView = view{
	schema: "coterie", name: "certificates", about: "When the certificates of the nodes that answer expire. Each node renews its own in time.",
	columns: cols("node t, certificate t, expires ts"),
	rows: func(f Facts) (out [][]any) {
		for _, r := range f.Group.Replicas {
			ends := f.Nodes[r.ID].Certificates
			for _, of := range slices.Sorted(maps.Keys(ends)) {
				out = append(out, []any{string(r.ID), of, timeText(ends[of])})
			}
		}
		return out
	},
}

var hbaView = view{
	schema: "coterie", name: "hba", about: "The group's rules for logins, line by line, in the syntax of pg_hba.conf. Where each node has its rules from is in coterie.settings, by the name coterie.hba.",
	columns: cols("line_number i8, rule t"),
	rows: func(f Facts) [][]any {
		var out [][]any
		number := int64(0)
		for line := range strings.Lines(f.Group.HBA) {
			number++
			out = append(out, []any{number, strings.TrimRight(line, "\r\n")})
		}
		return out
	},
}
