package catalog

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

const (
	askReady  = "SELECT STRING_AGG(name, ',') WITHIN GROUP (ORDER BY name) FROM coterie.replicas WHERE failover_ready = 1"
	askCopies = "SELECT r.replica_server_name, s.synchronization_state_desc, s.synchronization_health_desc, s.database_state_desc FROM sys.dm_hadr_database_replica_states s " +
		"JOIN sys.availability_replicas r ON r.replica_id = s.replica_id WHERE s.group_database_id = (SELECT group_database_id FROM sys.availability_databases_cluster WHERE database_name = 'shop') ORDER BY 1"
	askTimes = "SELECT r.replica_server_name, CONVERT(varchar(8), s.last_commit_time, 108), s.secondary_lag_seconds, CONVERT(varchar(8), s.last_received_time, 108), x.estimated_data_loss " +
		"FROM sys.dm_hadr_database_replica_states s JOIN sys.availability_replicas r ON r.replica_id = s.replica_id JOIN coterie.replicas x ON x.name = r.replica_server_name WHERE DB_NAME(s.database_id) = 'shop' ORDER BY 1"
)

func changeNode(f *Facts, id ag.ReplicaID, change func(*Node)) {
	n := f.Nodes[id]
	change(&n)
	f.Nodes[id] = n
}

func isDead(f *Facts, id ag.ReplicaID) { // as the node facts have one that does not answer
	f.Nodes[id] = Node{Role: ag.RoleResolving, Data: ag.DataPresent, Position: f.Nodes[id].Position, Because: "does not answer"}
}

func isFenced(f *Facts) {
	f.Primary, f.WriteOpen = "", false
	changeNode(f, "a", func(n *Node) { n.Role, n.Open, n.Server, n.Streams = ag.RoleResolving, false, ag.ServerRecovery, nil })
}

func allSuspended(f *Facts) { // all copies, after a forced failover
	f.Record.State.V, f.Record.State.K = nil, 0
	for i, r := range f.Group.Replicas {
		if r.ID == "b" || r.ID == "c" {
			f.Group.Replicas[i].Suspended, f.Group.Replicas[i].SuspendedBy = true, ag.SuspendPartner
			changeNode(f, r.ID, func(n *Node) { n.Streaming = false })
		}
	}
	changeNode(f, "a", func(n *Node) { n.Streams, n.Commit = nil, nil })
}

func isDropped(f *Facts) {
	f.Group.Options.Databases = []string{"shop"}
	for _, id := range []ag.ReplicaID{"a", "b", "c"} {
		changeNode(f, id, func(n *Node) { n.Databases = n.Databases[:1] })
	}
}

func isOffline(f *Facts) {
	changeNode(f, "a", func(n *Node) { n.Offline = []string{"shop"} })
}

func isDown(f *Facts) {
	changeNode(f, "a", func(n *Node) { n.Role, n.Server, n.Databases = ag.RoleResolving, ag.ServerDown, nil })
}

// truths are changes of the facts of the healthy group demo, in which a leads, b has all of the log, c is behind, and
// one of b and c has each acknowledged commit; with a query and what it returns.
var truths = map[string]struct {
	change      func(*Facts)
	query, want string
}{
	"counted and receiving":                            {func(*Facts) {}, askReady, "a,b,c"},
	"counted and dead":                                 {func(f *Facts) { isDead(f, "c") }, askReady, "a,b"},
	"counted and dead, and every counted copy has all": {func(f *Facts) { isDead(f, "c"); f.Record.State.K = 2 }, askReady, "a,b,c"},
	"the leader is dead, and both counted ones answer": {func(f *Facts) {
		isDead(f, "a")
		changeNode(f, "b", func(n *Node) { n.Streaming = false })
		changeNode(f, "c", func(n *Node) { n.Streaming = false })
	}, askReady, "a,b"},
	"the leader and a counted one are dead": {func(f *Facts) {
		isDead(f, "a")
		isDead(f, "b")
		changeNode(f, "c", func(n *Node) { n.Streaming = false })
	}, askReady, "a"},
	"the leader was fenced":             {isFenced, askReady, "a,b"},
	"nothing moves while no node leads": {isFenced, askCopies, "a|NOT SYNCHRONIZING|NOT_HEALTHY|RECOVERY_PENDING\nb|NOT SYNCHRONIZING|NOT_HEALTHY|ONLINE\nc|NOT SYNCHRONIZING|NOT_HEALTHY|ONLINE"},
	"times while no node leads": {
		func(f *Facts) { isFenced(f); changeNode(f, "a", func(n *Node) { n.Commit = nil }) }, askTimes,
		"a|11:59:59|NULL|NULL|NULL\nb|11:59:59|1|NULL|0\nc|11:59:59|1|NULL|NULL",
	},
	"times after a forced failover": {allSuspended, askTimes, "a|NULL|NULL|NULL|NULL\nb|11:59:59|NULL|NULL|NULL\nc|11:59:59|NULL|NULL|NULL"},
	"a single secondary replays late": {func(f *Facts) {
		old := noon.Add(-time.Minute)
		isDead(f, "b")
		changeNode(f, "a", func(n *Node) { n.Commit = nil })
		changeNode(f, "c", func(n *Node) { n.Commit = &old })
	}, askTimes, "a|11:59:00|NULL|NULL|NULL\nb|NULL|NULL|NULL|NULL\nc|11:59:00|60|11:59:59|0"},
	"a registered database was dropped":      {isDropped, askCopies, "a|NOT SYNCHRONIZING|NOT_HEALTHY|OFFLINE\nb|NOT SYNCHRONIZING|NOT_HEALTHY|OFFLINE\nc|NOT SYNCHRONIZING|NOT_HEALTHY|OFFLINE"},
	"a copy without a database is not ready": {isOffline, askReady, "b,c"},
	"a copy without a database": {
		isOffline, "SELECT r.replica_server_name, c.is_failover_ready, c.is_database_joined, s.database_state_desc, s.synchronization_health_desc, h.synchronization_health_desc " +
			"FROM sys.dm_hadr_database_replica_cluster_states c JOIN sys.dm_hadr_database_replica_states s ON s.replica_id = c.replica_id AND s.group_database_id = c.group_database_id " +
			"JOIN sys.dm_hadr_availability_replica_states h ON h.replica_id = c.replica_id JOIN sys.availability_replicas r ON r.replica_id = c.replica_id " +
			"WHERE c.database_name = 'shop' AND r.replica_server_name IN ('a', 'b') ORDER BY 1",
		"a|f|f|OFFLINE|NOT_HEALTHY|NOT_HEALTHY\nb|t|t|ONLINE|HEALTHY|HEALTHY",
	},
	"policies of a copy without a database":          {isOffline, "SELECT DISTINCT finding FROM coterie.policies WHERE target = 'shop on a' AND ok = 0", "it is not online there: its files are missing or cannot be read"},
	"health where a registered database was dropped": {isDropped, "SELECT synchronization_health_desc, (SELECT MIN(synchronization_health) FROM sys.dm_hadr_availability_replica_states WHERE replica_id IN (SELECT replica_id FROM sys.availability_replicas WHERE replica_server_name = 'b')) FROM sys.dm_hadr_availability_group_states", "NOT_HEALTHY|0"},
	"where a partial copy ends means nothing": {
		func(f *Facts) { changeNode(f, "c", func(n *Node) { n.Data = ag.DataPartial }) },
		"SELECT name, position, replayed, behind_bytes FROM coterie.replicas WHERE name = 'c'", "c|NULL|NULL|NULL",
	},
	"no replica has backups enabled": {func(f *Facts) {
		f.Group.Options.BackupPreference = ag.BackupSecondary
		for id := range f.Nodes {
			changeNode(f, id, func(n *Node) { n.Backup = &Backup{} })
		}
	}, "SELECT count(*), max(CAST(preferred AS int)), max(unfit) FROM coterie.backup WHERE node = 'b'", "1|0|it has no backups enabled: coterie backup enable there"},
	"functions of one that was dropped": {isDropped, "SELECT DB_ID('shop'), sys.fn_hadr_is_primary_replica('shop'), DATABASEPROPERTYEX('shop', 'Status'), (SELECT MAX(CAST(is_failover_ready AS int) + CAST(is_database_joined AS int)) FROM sys.dm_hadr_database_replica_cluster_states)", "NULL|NULL|NULL|0"},
	"policies of one that was dropped":  {isDropped, "SELECT DISTINCT finding FROM coterie.policies WHERE target LIKE 'shop on %' AND ok = 0", "it is registered, and the server has no such database that takes connections"},
	"names without regard to case":      {func(*Facts) {}, "SELECT sys.fn_hadr_is_primary_replica('SHOP'), DB_ID('Shop'), sys.fn_hadr_backup_is_preferred_replica('SHOP')", "1|16384|0"},
	"two names that differ in case": {func(f *Facts) {
		changeNode(f, "a", func(n *Node) { n.Databases = []Database{{5, "Shop"}, {6, "shop"}} })
	}, "SELECT DB_ID('shop'), DB_ID('Shop'), DB_ID('SHOP'), sys.fn_hadr_is_primary_replica('SHOP')", "6|5|NULL|NULL"},
	"the server of this node is down":       {isDown, "SELECT DATABASEPROPERTYEX('shop', 'Status'), DATABASEPROPERTYEX('none', 'Status')", "OFFLINE|NULL"},
	"a witness is one":                      {func(f *Facts) { isDead(f, "c") }, "SELECT name, role, connected FROM coterie.replicas", "a|PRIMARY|t\nb|SECONDARY|t\nc|RESOLVING|f\nw|WITNESS|t"},
	"a witness that does not answer is one": {func(f *Facts) { isDead(f, "w") }, "SELECT role, connected FROM coterie.replicas WHERE name = 'w'", "WITNESS|f"},
	"a witness has no databases":            {func(f *Facts) { f.Self = "w" }, "SELECT DATABASEPROPERTYEX('shop', 'Status'), DB_ID('shop')", "NULL|16384"},
	"no backups on a fenced primary": {
		func(f *Facts) { isFenced(f); f.Group.Options.BackupPreference = ag.BackupPrimary },
		"SELECT sys.fn_hadr_backup_is_preferred_replica('shop')", "0",
	},
	"no server answers, so that nothing is known of databases": {func(f *Facts) {
		isDropped(f)
		for id := range f.Nodes {
			changeNode(f, id, func(n *Node) { n.Databases = nil })
		}
	}, "SELECT present FROM coterie.databases", "NULL"},
	"a dead node takes no readers": {func(f *Facts) { f.Nodes["a"].Routes.Targets[1].Healthy = false }, "SELECT healthy, readable FROM coterie.routes WHERE node = 'a' AND target = 'b'", "f|f"},
	"a server that hangs follows nobody": {func(f *Facts) {
		changeNode(f, "b", func(n *Node) {
			n.Role, n.Server, n.Because = ag.RoleResolving, ag.ServerStarting, "follows a in epoch 7"
		})
	}, "SELECT finding FROM coterie.policies WHERE target = 'b' AND policy = 'Availability replica role state'", "resolving: its server does not answer (starting)"},
}

// TestWhatOperatorsSee holds that the views say nothing that is false at that moment.
func TestWhatOperatorsSee(t *testing.T) {
	for name, tt := range truths {
		f := demo()
		tt.change(&f)
		if _, got := script(t, open(t, &f), tt.query); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.ReplaceAll(got, "\n", "\n     "), strings.ReplaceAll(tt.want, "\n", "\n     "))
		}
	}
}

// TestRoutingOfAnAgentThatStarts holds that a node which answers and has no routes yet is not said to be silent,
// and none is by a node that was removed, which nobody answers.
func TestRoutingOfAnAgentThatStarts(t *testing.T) {
	t.Parallel()
	f := demo()
	changeNode(&f, "a", func(n *Node) { n.Routes = nil })
	changeNode(&f, "b", func(n *Node) { n.Routes, n.Connected = nil, false })
	why := map[ag.ReplicaID]string{"a": "its agent has just started, and has made no routes yet", "b": "the node does not answer"}
	for _, w := range f.VerifyRouting() {
		if want := why[w.Node]; want != "" && (len(w.Passed) != 1 || w.Passed[0] != want) {
			t.Errorf("%+v, want %q", w, want)
		}
	}
	f.Availability.Removed = true
	for _, w := range f.VerifyRouting() {
		if w.Node == "b" && (len(w.Passed) != 1 || w.Passed[0] != "not known: the node that answers was removed from the group") {
			t.Errorf("of a node that was removed, b is said to be %q", w.Passed)
		}
	}
}

// TestRoutingPassesOverAHungServer holds that a replica whose server hangs is not said to be passed over since it
// follows the primary, as its agent goes on to want.
func TestRoutingPassesOverAHungServer(t *testing.T) {
	for _, hangs := range []func(*Node){
		func(n *Node) { n.Role, n.Server = ag.RoleResolving, ag.ServerStarting },
		func(n *Node) { n.Silent = true },
	} {
		f := demo()
		changeNode(&f, "b", func(n *Node) { hangs(n); n.Because = "follows a in epoch 7" })
		f.Nodes["a"].Routes.Targets[1].Readable = false
		for _, w := range f.VerifyRouting() {
			if w.Node == "a" && w.Intent == ag.ReadOnly && (len(w.Passed) == 0 || w.Passed[0] != "b: its server does not answer") {
				t.Errorf("%q", w.Passed)
			}
		}
	}
}

// TestRoutingThatNamesNobody holds that a reader whom nobody takes is told why, where the routing list is NONE and the
// primary takes sessions that write only.
func TestRoutingThatNamesNobody(t *testing.T) {
	f := demo()
	for i := range f.Group.Replicas {
		if r := &f.Group.Replicas[i]; r.ID == "a" {
			r.Options.RoutingNone, r.Options.PrimaryAllow = true, ag.PrimaryAllowReadWrite
		}
	}
	routes := f.Nodes["a"].Routes
	routes.ReadList = f.Group.ReadList("a")
	for _, w := range f.VerifyRouting() {
		want := []string{"the routing list names no replica", "a: the primary takes sessions that write only (ALLOW_CONNECTIONS = READ_WRITE)"}
		if w.Node == "a" && w.Intent == ag.ReadOnly && (w.Target != "" || !slices.Equal(w.Passed, want)) {
			t.Errorf("%q: %q", w.Target, w.Passed)
		}
	}
}

// TestExplainADeadLeader holds that a leader which does not answer is not said to lead.
func TestExplainADeadLeader(t *testing.T) {
	t.Parallel()
	f := demo()
	leader := f.Record.Epoch.Leader
	because := func() string {
		for _, c := range f.ExplainFailover() {
			if c.Replica == leader {
				return c.Because
			}
		}
		return ""
	}
	if got := because(); got != "it leads already" {
		t.Error(got)
	}
	isDead(&f, leader)
	if got := because(); got != "it led last, and does not answer" {
		t.Error(got)
	}
}
