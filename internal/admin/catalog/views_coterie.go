package catalog

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
)

var ownViews = []view{
	{
		schema: "coterie", name: "replicas", about: "One line for each node: what it is and how it does.",
		columns: cols("name t, role t, synchronization_state t, health t, availability_mode t, failover_mode t, join_state t, connected b, suspended b, suspended_by t, " +
			"voter b, position t, replayed t, behind_bytes i8, failover_ready b, progress t, because t, estimated_data_loss f, estimated_data_loss_by_rate f, " +
			"estimated_recovery f, endpoint t, listener t, read_only t, http t, maintenance t, console t"),
		rows: ownReplicas,
	},
	{
		schema: "coterie", name: "options", about: "Every option of the group and of its replicas, and whether it is in effect.",
		columns: cols("replica t, place t, option t, value t, is_set b, verdict t"),
		rows:    ownOptions,
	},
	{
		schema: "coterie", name: "decisions", about: "What the nodes that answer decided lately, and why. Times are by each node's own clock; epoch and revision order decisions of several.",
		columns: cols("node t, at ts, epoch i8, revision i8, rule t, because t"),
		rows: func(f Facts) [][]any {
			return f.remembered(func(node string, j Journal) (out [][]any) {
				for _, d := range j.Decisions {
					out = append(out, []any{node, timeText(d.At), int64(d.Epoch), d.Revision, d.Rule, d.Because})
				}
				return out
			})
		},
	},
	{
		schema: "coterie", name: "events", about: "What happened lately to the nodes that answer: of kind leadership, commits, copy or health what a node decided beside its everyday work, then link and statement.",
		columns: cols("node t, at ts, epoch i8, kind t, what t, because t"),
		rows: func(f Facts) [][]any {
			return f.remembered(func(node string, j Journal) (out [][]any) {
				for _, e := range j.Events {
					out = append(out, []any{node, timeText(e.At), orNull(int64(e.Epoch)), e.Kind, e.What, orNull(e.Because)})
				}
				return out
			})
		},
	},
	{
		schema: "coterie", name: "audit", about: "Which changes administrators asked the nodes that answer for since their agents started, by SQL, the HTTP API or a command, and how each ended. The log of the node has them, too.",
		columns: cols("node t, at ts, role t, privilege t, via t, address t, operation t, result t, number i4, message t, seconds f"),
		rows: func(f Facts) [][]any {
			return f.remembered(func(node string, j Journal) (out [][]any) {
				for _, a := range j.Acts {
					out = append(out, []any{
						node, timeText(a.At), a.User, orNull(a.Privilege), a.Via, orNull(a.From), a.Operation, a.Result, orNull(int64(a.Number)), orNull(a.Message), a.Took.Seconds(),
					})
				}
				return out
			})
		},
	},
	{
		schema: "coterie", name: "timelines", about: "The history of the data: every promotion, with where it left the history before.",
		columns: cols("timeline i8, parent i8, switch_lsn t, epoch i8"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, t := range f.Record.State.Timelines {
				out = append(out, []any{int64(t.TLI), orNull(int64(t.Parent)), t.Switch.String(), int64(t.Epoch)})
			}
			return out
		},
	},
	{
		schema: "coterie", name: "record", about: "What the quorum has agreed on.",
		columns: cols("epoch i8, phase t, leader t, timeline i8, synchronized t, k i4, sequence i8, quorum b, primary_replica t, write_open b, profile t"),
		rows: func(f Facts) [][]any {
			var v []string
			for _, m := range f.Record.State.V {
				v = append(v, string(m.ID))
			}
			e, s := f.Record.Epoch, f.Record.State
			return [][]any{{
				int64(e.Epoch), string(e.Phase), string(e.Leader), int64(s.Basis.Timeline), strings.Join(v, ", "), int64(s.K), int64(s.Seq), bit(f.Quorum),
				orNull(string(f.Primary)), bit(f.WriteOpen), f.Profile,
			}}
		},
	},
	{
		schema: "coterie", name: "routes", about: "Where each node's listener sends sessions now.",
		columns: cols("node t, target t, is_primary b, healthy b, readable b, list_entry i4, epoch i8, fell_back i8, lagged i8"),
		rows:    ownRoutes,
	},
	{
		schema: "coterie", name: "addresses", about: "The named listener on each node: the virtual addresses, ONLINE where the primary is, and the ports and Unix sockets opened beside the node's own port. A problem says what to do.",
		columns: cols("node t, address t, state t, device t, problem t"),
		rows: perNode(func(n Node) []Place { return n.Places }, func(p Place) []any {
			return []any{p.Address, p.State, orNull(p.Device), orNull(p.Problem)}
		}),
	},
	{
		schema: "coterie", name: "routed", about: "Readers that logged in at each node's listener, by second of the last minute: how many, and what part of them went to a secondary. Seconds without any are left out.",
		columns: cols("node t, at ts, readers i8, routed i8, routed_pct f"),
		rows: perNode(func(n Node) []Second { return n.Readers }, func(s Second) []any {
			return []any{timeText(s.At), int64(s.Readers), int64(s.Routed), s.Pct}
		}),
	},
	{
		schema: "coterie", name: "sessions", about: "Clients' sessions at the listeners of all nodes that answer.",
		columns: cols("node t, session_id i8, user_name t, database_name t, client t, tls t, tls_name t, tls_identity t, intent t, list_entry i8, replica t, state t, since ts, bytes_in i8, bytes_out i8, pid i8, path t, backend t, " +
			"failover t, failover_reason t, node_loss t, node_loss_reason t, server_loss t, server_loss_reason t, open_transaction t, open_transaction_reason t, commit_in_doubt t, commit_in_doubt_reason t, statement t"),
		rows: perNode(func(n Node) []Session { return n.Sessions }, func(s Session) []any {
			return []any{
				int64(s.ID), s.User, s.Database, s.Client, orNull(s.TLS), orNull(s.TLSName), orNull(s.Identity), string(s.Intent), orNull(int64(s.Entry)), string(s.Replica), s.State, timeText(s.Since),
				int64(s.In), int64(s.Out), int64(s.PID), orNull(s.Path), orNull(s.Backend),
				orNull(s.Failover.Fate), orNull(s.Failover.Why), orNull(s.NodeLoss.Fate), orNull(s.NodeLoss.Why), orNull(s.ServerLoss.Fate), orNull(s.ServerLoss.Why),
				orNull(s.Transaction.Fate), orNull(s.Transaction.Why), orNull(s.Commit.Fate), orNull(s.Commit.Why), orNull(s.Statement),
			}
		}),
	},
	{
		schema: "coterie", name: "continuity", about: "Clients' sessions at the listeners of all nodes that answer, by application, user and what would become of them: in a planned failover now, and if their server died now. From the memory of the listeners: no server is asked.",
		columns: cols("node t, replica t, application_name t, user_name t, sessions i8, failover t, failover_reason t, node_loss t, node_loss_reason t, server_loss t, server_loss_reason t, " +
			"open_transaction t, open_transaction_reason t, commit_in_doubt t, commit_in_doubt_reason t, statement t, failover_pct f, node_loss_pct f, server_loss_pct f"),
		rows: continuityRows,
	},
	{
		schema: "coterie", name: "continuity_history", about: "What coterie.continuity has shown in the last week, by node and hour: each node looks at the sessions of its listener once a minute.",
		columns: cols("node t, hour ts, looks i8, sessions f, failover_pct f, failover_reason t, node_loss_pct f, node_loss_reason t, server_loss_pct f, server_loss_reason t, " +
			"open_transactions f, replayed_pct f, replayed_reason t"),
		rows: perNode(func(n Node) []Coverage { return n.Coverage }, coverageRow),
	},
	{
		schema: "coterie", name: "continuity_by_application", about: "What coterie.continuity has shown in the last week, by node, day, application and user. Of a day, a node tells 32 of these apart.",
		columns: cols("node t, day ts, application_name t, user_name t, looks i8, sessions f, failover_pct f, failover_reason t, node_loss_pct f, node_loss_reason t, server_loss_pct f, server_loss_reason t, " +
			"open_transactions f, replayed_pct f, replayed_reason t"),
		rows: perNode(func(n Node) []OwnerCoverage { return n.Owners }, ownerCoverageRow),
	},
	{
		schema: "coterie", name: "streams", about: "Log streams from the primary, and the links that carry them: bytes before and after compression.",
		columns: cols("source t, member t, open b, sent t, flushed t, replayed t, behind_bytes i8, silent_seconds f, rate i8, transport t, codec t, round_trip_ms f, " +
			"replica_bytes i8, transport_bytes i8, carried_rate i8, relay t"),
		rows: func(f Facts) [][]any {
			var out [][]any
			leader := f.Record.Epoch.Leader
			for _, s := range f.Nodes[leader].Streams {
				row := []any{
					string(leader), string(s.Member), bit(s.Open), s.Sent.String(), s.Flush.String(), s.Apply.String(), max(int64(f.head())-int64(s.Flush), 0),
					s.Silent.Seconds(), int64(s.Rate), nil, nil, nil, nil, nil, nil, nil,
				}
				if l, ok := f.linkTo(s.Member); ok {
					row[9], row[10], row[11], row[12], row[13], row[14] = orNull(l.Transport), orNull(l.Codec), l.RTT, int64(l.Sent), int64(l.Encoded), orNull(l.Carried)
					row[15] = orNull(string(l.Via))
				}
				out = append(out, row)
			}
			return out
		},
	},
	{
		schema: "coterie", name: "databases", about: "The databases of the group, with whether each is registered.",
		columns: cols("name t, database_id i8, registered b, present b"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, d := range f.databases() {
				present := any(bit(d.OID != 0))
				if !f.listed() {
					present = nil
				}
				out = append(out, []any{d.Name, orNull(int64(d.OID)), bit(slices.Contains(f.Group.Options.Databases, d.Name)), present})
			}
			return out
		},
	},
	{
		schema: "coterie", name: "settings", about: "The settings of every server that answers, and the versions of its collations, without those that differ by nature or are for superusers only. A witness gets none that may hold a secret.",
		columns: cols("node t, name t, value t, source t, pending_restart b, hidden b"),
		rows: func(f Facts) [][]any {
			if f.Settings == nil {
				return nil
			}
			var out [][]any
			all := f.Settings()
			for _, r := range f.Group.Replicas {
				for _, s := range all[r.ID] {
					out = append(out, []any{string(r.ID), s.Name, shownValue(s), s.Source, bit(s.Pending), bit(s.marked())})
				}
			}
			return out
		},
	},
	hbaView,
	{
		schema: "coterie", name: "parameters",
		about:   "The settings of PostgreSQL that the group has for each replica, and what the server says. A value that may hold a secret is NULL.",
		columns: cols("node t, name t, value t, of_replica b, in_force t, pending_restart b, hidden b"),
		rows:    parameterRows,
	},
	{
		schema: "coterie", name: "problems", about: "What is wrong, as status says it: root causes, the worst first, each with what to run.",
		columns: cols("severity t, target t, finding t, run t"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, p := range f.Availability.Problems {
				out = append(out, []any{string(p.Severity), p.Target, p.Finding, orNull(p.Run)})
			}
			return out
		},
	},
	backupView,
	storageView,
	certificateView,
	{
		schema: "coterie", name: "failures", about: "What the death of each member would lead to now: SURVIVED, BLOCKED (a primary whose commits wait), STOPS (no primary) or DOWN (it does not answer now).",
		columns: cols("member t, outcome t, primary_replica t, because t"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, x := range f.Availability.Failures {
				out = append(out, []any{string(x.Member), string(x.Outcome), orNull(string(x.Primary)), orNull(x.Because)})
			}
			return out
		},
	},
	{
		schema: "coterie", name: "policies", about: "The fourteen health policies, and what they found.",
		columns: cols("policy t, level t, severity t, target t, ok b, finding t"),
		rows:    policyRows,
	},
}

// markKey is the key of the marks of secret values. It is this process's, so that no mark can be compared with those of
// guesses.
var markKey = sync.OnceValue(func() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return key
})

// shownValue returns the value of a server's setting. In the place of one that may be secret there is a mark, which is
// the same for the same value while this agent runs: servers that differ can be told. Behind its first word a name may
// have that of a role, a database or a file.
func shownValue(s Setting) string {
	if !s.marked() {
		return s.Value
	}
	mark := hmac.New(sha256.New, markKey())
	_, _ = mark.Write([]byte(s.Value)) // never fails
	return "hidden:" + hex.EncodeToString(mark.Sum(nil)[:4])
}

func parameterRows(f Facts) [][]any {
	if len(f.Group.ParameterNames()) == 0 {
		return nil
	}
	servers := map[ag.ReplicaID][]Setting{}
	if f.Settings != nil {
		servers = f.Settings()
	}
	var out [][]any
	for _, r := range f.Group.Replicas {
		if !r.HasData() {
			continue
		}
		want := f.Group.ParametersOf(r.ID)
		for _, name := range slices.Sorted(maps.Keys(want)) {
			_, own := r.Options.Parameters[name]
			row := []any{string(r.ID), name, want[name], bit(own), nil, nil, bit(ddl.MayBeSecret(name))}
			if ddl.MayBeSecret(name) {
				row[2] = nil
			}
			for _, s := range servers[r.ID] {
				if s.Name == name {
					row[4], row[5] = shownValue(s), bit(s.Pending)
				}
			}
			out = append(out, row)
		}
	}
	return out
}

// remembered returns rows of the journals of all nodes that answer.
func (f Facts) remembered(rows func(node string, j Journal) [][]any) [][]any {
	if f.Journals == nil {
		return nil
	}
	var out [][]any
	all := f.Journals()
	for _, r := range f.Group.Replicas {
		out = append(out, rows(string(r.ID), all[r.ID])...)
	}
	return out
}

// linkTo returns the sums over the links on which the primary sends WAL to a member.
func (f Facts) linkTo(member ag.ReplicaID) (Link, bool) {
	sum, found := Link{Peer: member}, false
	for _, l := range f.Nodes[f.Record.Epoch.Leader].Links {
		if l.Peer != member {
			continue
		}
		found = true
		sum.Transport, sum.Codec, sum.RTT, sum.Carried, sum.Via = l.Transport, l.Codec, l.RTT, l.Carried, l.Via
		sum.Sent, sum.Encoded, sum.Received, sum.Resent = sum.Sent+l.Sent, sum.Encoded+l.Encoded, sum.Received+l.Received, sum.Resent+l.Resent
	}
	for _, l := range f.Nodes[member].Links { // the node that dialled knows the relay
		if l.Peer == f.Record.Epoch.Leader && l.Via != "" {
			sum.Via = l.Via
		}
	}
	return sum, found
}

func ownReplicas(f Facts) [][]any {
	var out [][]any
	for _, r := range f.Group.Replicas {
		n, p := f.Nodes[r.ID], f.positionsOf(r)
		join := string(r.Join)
		if join == "" {
			join = "JOINED"
		}
		row := []any{
			string(r.ID), f.roleWord(r), nil, f.replicaHealth(r).code().desc, string(r.AvailabilityMode), string(r.FailoverMode), join, bit(n.Connected),
			bit(r.Suspended), orNull(string(r.SuspendedBy)), bit(f.Group.Votes(r)), nil, nil, nil, bit(f.failoverReady(r)), orNull(n.Progress),
			orNull(n.Because), nil, nil, nil, r.Endpoint, orNull(r.Listener), orNull(r.ReadOnly), orNull(r.HTTP), nil, orNull(n.Console),
		}
		if m := r.Options.Maintenance; m != nil {
			row[24] = m.String()
		}
		if r.HasData() {
			row[2] = string(f.syncState(r))
			if p.known {
				row[11] = ag.Position{Timeline: n.Position.Timeline, LSN: p.flushed}.String()
			}
			if p.known && p.replayed != 0 {
				row[12] = p.replayed.String()
			}
			if p.known && f.head() != 0 && r.ID != f.Record.Epoch.Leader {
				row[13] = max(int64(f.head())-int64(p.flushed), 0)
				row[17], row[18], row[19] = f.dataLoss(r), f.dataLossByRate(r), f.recovery(r)
			}
		}
		out = append(out, row)
	}
	return out
}

func ownOptions(f Facts) [][]any {
	verdicts := map[string]string{}
	for _, o := range ddl.Options() {
		verdicts[string(o.Place)+o.Name] = string(o.Verdict)
	}
	var out [][]any
	add := func(replica any, list []ddl.Shown) {
		for _, s := range list {
			out = append(out, []any{replica, string(s.Place), s.Option, orNull(s.Value), bit(s.Set), verdicts[string(s.Place)+s.Option]})
		}
	}
	if !f.Group.Draft {
		add(nil, ddl.Show(f.Group, nil))
	}
	for _, r := range f.members() {
		add(string(r.ID), ddl.Show(f.Group, &r))
	}
	return out
}

func ownRoutes(f Facts) [][]any {
	var out [][]any
	for _, r := range f.Group.Replicas {
		routes := f.Nodes[r.ID].Routes
		if routes == nil {
			continue
		}
		for _, t := range routes.Targets {
			out = append(out, []any{
				string(r.ID), string(t.ID), bit(t.ID == routes.Primary), bit(t.Healthy), bit(t.Healthy && t.Readable), orNull(int64(routes.Entry(t.ID))), int64(routes.Epoch), int64(f.Nodes[r.ID].FellBack), int64(f.Nodes[r.ID].Lagged),
			})
		}
	}
	return out
}

// Policy is the result of one of the fourteen policies for one object.
type Policy struct {
	Name, Level, Severity, Target string
	Finding                       string // "": the object complies
}

// Policies returns the results of all policies.
func Policies(f Facts) []Policy {
	var out []Policy
	add := func(name, level, severity, target string, bad bool, format string, a ...any) {
		p := Policy{Name: name, Level: level, Severity: severity, Target: target}
		if bad {
			p.Finding = fmt.Sprintf(format, a...)
		}
		out = append(out, p)
	}
	add("WSFC cluster state", "server", "Critical", string(f.Self), !f.Quorum, "no majority of the quorum answers this node")
	if f.Group.Draft {
		return out
	}
	g := f.Group.Name
	state := f.Availability
	switch {
	case state.Blocked:
		add("Availability group online state", "group", "Critical", g, true, "no commit is acknowledged: %s", state.Because)
	default:
		add("Availability group online state", "group", "Critical", g, !state.Writable, "no primary takes writes: %s", state.Because)
	}
	add("Availability group automatic failover readiness", "group", "Critical", g, f.wantsAutomatic() && !state.Ready(), "automatic failover is %s", state.Automatic)
	var not, notSync, odd, away []string
	for _, r := range f.members() {
		s, role := f.syncState(r), f.role(r)
		if !f.Nodes[r.ID].Connected {
			away = append(away, string(r.ID))
		}
		if !r.HasData() {
			continue
		}
		if s == ag.NotSynchronizing {
			not = append(not, string(r.ID))
		}
		if r.AvailabilityMode == ag.SynchronousCommit && s != ag.Synchronized {
			notSync = append(notSync, string(r.ID))
		}
		if role == ag.RoleResolving {
			odd = append(odd, string(r.ID))
		}
	}
	list := func(ids []string) string { return strings.Join(ids, ", ") }
	add("Availability replicas data synchronization state", "group", "Warning", g, not != nil, "not synchronizing: %s", list(not))
	add("Synchronous replicas data synchronization state", "group", "Warning", g, notSync != nil, "synchronous and not synchronized: %s", list(notSync))
	add("Availability replicas role state", "group", "Warning", g, odd != nil, "neither primary nor secondary: %s", list(odd))
	add("Availability replicas connection state", "group", "Warning", g, away != nil, "disconnected: %s", list(away))
	for _, r := range f.members() {
		f.replicaPolicies(r, add)
	}
	return out
}

func (f Facts) replicaPolicies(r ag.Replica, add func(name, level, severity, target string, bad bool, format string, a ...any)) {
	id, n, s := string(r.ID), f.Nodes[r.ID], f.syncState(r)
	add("Availability replica connection state", "replica", "Critical", id, !n.Connected, "disconnected")
	if !r.HasData() {
		return
	}
	inState := DatabaseHealth(r.AvailabilityMode, s) == Healthy
	why := n.Because
	if n.Connected && (n.Server == ag.ServerDown || n.Server == ag.ServerStarting) {
		why = "its server does not answer (" + strings.ToLower(string(n.Server)) + ")"
	}
	add("Availability replica role state", "replica", "Critical", id, f.role(r) == ag.RoleResolving, "resolving: %s", why)
	add("Availability replica join state", "replica", "Warning", id, r.Join != "", "%s", r.Join)
	add("Availability replica data synchronization state", "replica", "Warning", id, !inState, "%s while %s", s, r.AvailabilityMode)
	for _, d := range f.databases() {
		target := d.Name + " on " + id
		add("Availability database suspension state", "database", "Warning", target, r.Suspended, "suspended %s", suspendedBy(r))
		if why := f.absence(r, d); why != "" {
			add("Availability database join state", "database", "Warning", target, true, "%s", why)
			continue
		}
		add("Availability database join state", "database", "Warning", target, n.Data == ag.DataEmpty || n.Data == ag.DataPartial, "the copy is %s", n.Data)
		add("Availability database data synchronization state", "database", "Warning", target, !inState, "%s while %s", s, r.AvailabilityMode)
	}
}

// wantsAutomatic reports whether the group is configured for an automatic failover.
func (f Facts) wantsAutomatic() bool {
	leader, ok := f.leader()
	return !ok || slices.ContainsFunc(f.members(), func(r ag.Replica) bool {
		return r.ID != leader.ID && r.FailoverMode == ag.Automatic && r.AvailabilityMode == ag.SynchronousCommit
	})
}

func policyRows(f Facts) [][]any {
	var out [][]any
	for _, p := range Policies(f) {
		out = append(out, []any{p.Name, p.Level, p.Severity, p.Target, bit(p.Finding == ""), orNull(p.Finding)})
	}
	return out
}

// suspendedBy returns the origin of a suspension; a replica that has not joined is suspended until it does.
func suspendedBy(r ag.Replica) string {
	if r.Join != "" {
		return "until it joins"
	}
	return "by " + string(cmp.Or(r.SuspendedBy, ag.SuspendUser))
}
