package ddl

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/ag"
)

// everyField has configurations compared in what they keep of a later version, too.
var everyField = cmp.Exporter(func(reflect.Type) bool { return true })

// demo returns a group of three replicas and a witness; srv153 is the primary.
func demo() ag.Group {
	replica := func(id ag.ReplicaID) ag.Replica {
		return ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Endpoint: string(id) + ":5022", Voter: true, Allow: ag.AllowReadOnly}
	}
	w := replica("wit")
	w.AvailabilityMode, w.FailoverMode, w.Allow = ag.ConfigurationOnly, ag.Manual, ""
	return ag.Group{
		ID: "6f1e", Name: "DemoAG", CommitRule: ag.RuleQuorum, SessionTimeout: 10 * time.Second,
		Replicas: []ag.Replica{replica("srv153"), replica("srv154"), replica("srv155"), w},
	}
}

var onPrimary = Context{Self: "srv153", Primary: "srv153"}

// run executes a statement on the group and returns the result.
func run(t *testing.T, g ag.Group, where Context, text string) (ag.Group, []string) {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	next, notices, err := s.Change(g, where)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var said []string
	for _, n := range notices {
		said = append(said, n.Message)
	}
	return next, said
}

// grammar lists texts with their canonical forms; "": the text is in canonical form.
var grammar = []struct{ text, canonical string }{
	{"ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV153' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY, READ_ONLY_ROUTING_URL = N'TCP://SRV153.contoso.com:1433'));", ""},
	{
		"ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV153' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('SRV154','SRV155'),'SRV153')));",
		"ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV153' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ((N'SRV154', N'SRV155'), N'SRV153')))",
	},
	{"alter availability group \"Demo]AG\" -- a remark\n set /* nested /* remark */ */ (db_failover=on)", "ALTER AVAILABILITY GROUP [Demo]]AG] SET (DB_FAILOVER = ON)"},
	{
		"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = ALL READ_ONLY_ROUTING_URL = 'TCP://a:1'))",
		"ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'a' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = ALL, READ_ONLY_ROUTING_URL = N'TCP://a:1'))",
	},
	{"CREATE AVAILABILITY GROUP [DemoAG]\n    FOR REPLICA ON\n        N'srv153' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT)", ""},
	{
		`CREATE AVAILABILITY GROUP DemoAG WITH (AUTOMATED_BACKUP_PREFERENCE = SECONDARY, DB_FAILOVER = ON, FAILURE_CONDITION_LEVEL = 3, HEALTH_CHECK_TIMEOUT = 30000, BASIC, DTC_SUPPORT = PER_DB, CLUSTER_TYPE = WSFC)
		FOR DATABASE [TPCC], "other" REPLICA ON
		N'SRV153' WITH (ENDPOINT_URL = N'TCP://SRV153.contoso.com:5022', FAILOVER_MODE = AUTOMATIC, AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, BACKUP_PRIORITY = 50, SEEDING_MODE = AUTOMATIC, SECONDARY_ROLE(ALLOW_CONNECTIONS = READ_ONLY)),
		N'SRV154' WITH (ENDPOINT_URL = N'TCP://SRV154.contoso.com:5022', FAILOVER_MODE = AUTOMATIC, AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, SESSION_TIMEOUT = 10)
		LISTENER N'DemoAG-L' (WITH IP ((N'10.0.0.9', N'255.255.255.0'), (N'fd00::9')), PORT=1433);`,
		`CREATE AVAILABILITY GROUP [DemoAG]
    WITH (AUTOMATED_BACKUP_PREFERENCE = SECONDARY, DB_FAILOVER = ON, FAILURE_CONDITION_LEVEL = 3, HEALTH_CHECK_TIMEOUT = 30000, BASIC, DTC_SUPPORT = PER_DB, CLUSTER_TYPE = WSFC)
    FOR DATABASE [TPCC], [other]
    REPLICA ON
        N'SRV153' WITH (ENDPOINT_URL = N'TCP://SRV153.contoso.com:5022', FAILOVER_MODE = AUTOMATIC, AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, BACKUP_PRIORITY = 50, SEEDING_MODE = AUTOMATIC, SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY)),
        N'SRV154' WITH (ENDPOINT_URL = N'TCP://SRV154.contoso.com:5022', FAILOVER_MODE = AUTOMATIC, AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, SESSION_TIMEOUT = 10)
    LISTENER N'DemoAG-L' (WITH IP ((N'10.0.0.9', N'255.255.255.0'), (N'fd00::9')), PORT = 1433)`,
	},
	{"ALTER AVAILABILITY GROUP [g] ADD DATABASE [db]", ""},
	{"ALTER AVAILABILITY GROUP [g] REMOVE DATABASE [db]", ""},
	{"ALTER AVAILABILITY GROUP [g] ADD REPLICA ON N'c' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL)", ""},
	{"ALTER AVAILABILITY GROUP [g] REMOVE REPLICA ON N'c'", ""},
	{"ALTER AVAILABILITY GROUP [g] JOIN", ""},
	{"ALTER AVAILABILITY GROUP [g] JOIN WITH (CLUSTER_TYPE = EXTERNAL)", ""},
	{"ALTER AVAILABILITY GROUP [g] JOIN REPLICA ON N'srv154' WITH (CLUSTER_TYPE = NONE) WITH NOWAIT", ""},
	{"ALTER AVAILABILITY GROUP [g] ADD DATABASE [a], [b]", ""},
	{"ALTER AVAILABILITY GROUP [g] REMOVE DATABASE a, b", "ALTER AVAILABILITY GROUP [g] REMOVE DATABASE [a], [b]"},
	{"ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'b' WITH (BACKUP_PRIORITY = 1), N'c' WITH (BACKUP_PRIORITY = 2)", ""},
	{"ALTER AVAILABILITY GROUP [g] ADD REPLICA ON N'b', N'c' WITH (BACKUP_PRIORITY = 2)", ""},
	{"ALTER AVAILABILITY GROUP [g] REMOVE REPLICA ON N'b', N'c'", ""},
	{"ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'b' WITH (SECONDARY_ROLE (READ_ONLY_ROUTING_URL = NONE))", ""},
	{"ALTER AVAILABILITY GROUP [g] MODIFY LISTENER N'l' (REMOVE IP (N'10.0.0.9'))", ""},
	{"ALTER AVAILABILITY GROUP [g] MODIFY LISTENER N'l' (REMOVE IP (N'10.0.0.9', N'255.0.0.0'))", "ALTER AVAILABILITY GROUP [g] MODIFY LISTENER N'l' (REMOVE IP (N'10.0.0.9'))"},
	{"CREATE ENDPOINT [Hadr_endpoint] AS TCP (LISTENER_PORT = 5022) FOR DATABASE_MIRRORING (ROLE = ALL)", "CREATE ENDPOINT"},
	{"ALTER ENDPOINT [Hadr_endpoint] STATE = STARTED", "ALTER ENDPOINT"},
	{"CREATE CERTIFICATE c WITH SUBJECT = 'x'", "CREATE CERTIFICATE"},
	{"CREATE LOGIN dbm_login WITH PASSWORD = 'x'", "CREATE LOGIN"},
	{"CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'x'", "CREATE MASTER KEY"},
	{"GRANT CONNECT ON ENDPOINT::[Hadr_endpoint] TO [dbm_login]", "GRANT CONNECT ON ENDPOINT"},
	{"ALTER AVAILABILITY GROUP [g] JOIN REPLICA ON N'srv154'", ""},
	{"ALTER AVAILABILITY GROUP [g] GRANT CREATE ANY DATABASE", ""},
	{"ALTER AVAILABILITY GROUP [g] DENY CREATE ANY DATABASE", ""},
	{"ALTER AVAILABILITY GROUP [g] FAILOVER", ""},
	{"ALTER AVAILABILITY GROUP [g] FAILOVER TO N'b' WITH NOWAIT", ""},
	{"ALTER AVAILABILITY GROUP [g] FORCE_FAILOVER_ALLOW_DATA_LOSS WITH (NOWAIT, STRICT)", ""},
	{"ALTER AVAILABILITY GROUP [g] FORCE_FAILOVER_ALLOW_DATA_LOSS NOW TO N'b'", ""},
	{"ALTER AVAILABILITY GROUP [g] ADD LISTENER N'l' (PORT = 1433)", ""},
	{"ALTER AVAILABILITY GROUP [g] ADD LISTENER N'l' ()", ""},
	{"ALTER AVAILABILITY GROUP [g] ADD LISTENER N'l' (WITH DHCP ON (N'10.0.0.0', N'255.0.0.0'))", ""},
	{"ALTER AVAILABILITY GROUP [g] MODIFY LISTENER N'l' (ADD IP (N'10.0.0.9', N'255.255.0.0'))", ""},
	{"ALTER AVAILABILITY GROUP [g] MODIFY LISTENER N'l' (PORT = 5432)", ""},
	{"ALTER AVAILABILITY GROUP [g] RESTART LISTENER N'l'", ""},
	{"ALTER AVAILABILITY GROUP [g] REMOVE LISTENER N'l'", ""},
	{"ALTER AVAILABILITY GROUP [g] SET (ROLE = SECONDARY)", ""},
	{"ALTER AVAILABILITY GROUP [g] OFFLINE", ""},
	{"ALTER AVAILABILITY GROUP [g] SET (COMMIT_RULE = ALL, COMMIT_BARRIER = STRICT, FAILURE_DETECTION = STRICT, REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = DEFAULT)", ""},
	{"ALTER AVAILABILITY GROUP [g] SET (FAILURE_DETECTION = ADAPTIVE)", ""},
	{"ALTER AVAILABILITY GROUP [g] SET (MAINTENANCE = ON)", ""},
	{"ALTER AVAILABILITY GROUP [g] SET (MAINTENANCE = N'until 2026-11-25T18:00:00Z: it''s the disk')", ""},
	{"ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'n2' WITH (MAINTENANCE = OFF)", ""},
	{"ALTER AVAILABILITY GROUP [g] SET (FAILURE_DETECTION = ADAPTIVE(800), COMMIT_RULE = ALL)", ""},
	{
		"ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'b' WITH (LOG_COMPRESSION = ZSTD:3, SEED_COMPRESSION = LZ4, SEED_MAX_RATE = 100 MB, TRANSPORT = QUIC)",
		"ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'b' WITH (LOG_COMPRESSION = ZSTD:3, SEED_COMPRESSION = LZ4, SEED_MAX_RATE = 104857600, TRANSPORT = QUIC)",
	},
	{"ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'b' WITH (PRIMARY_ROLE (ALLOW_CONNECTIONS = READ_WRITE, READ_ONLY_ROUTING_LIST = NONE, READ_WRITE_ROUTING_URL = N'TCP://b:1'))", ""},
	{"SEED REPLICA 'b'", "SEED REPLICA ON N'b'"},
	{"ALTER AVAILABILITY GROUP [g] CANCEL SEEDING ON N'b'", ""},
	{"ALTER AVAILABILITY GROUP [g] SUSPEND", ""},
	{"RESUME REPLICA ON N'b'", ""},
	{"ALTER DATABASE [db] SET HADR AVAILABILITY GROUP = [g]", ""},
	{"ALTER DATABASE [db] SET HADR OFF", ""},
	{"ALTER DATABASE [db] SET HADR SUSPEND WITH NOWAIT", ""},
	{"ALTER DATABASE [db] SET HADR RESUME", ""},
	{"DROP AVAILABILITY GROUP [g]", ""},
	{"DBCC TRACEON (9592, 1462, -1)", ""},
	{"DBCC TRACEOFF(9567)", "DBCC TRACEOFF (9567)"},
	{"DBCC TRACESTATUS", "DBCC TRACESTATUS ()"},
	{"EXPLAIN FAILOVER", ""},
	{"VERIFY ROUTING", ""},
	{"SCRIPT AVAILABILITY GROUP [g]", "SCRIPT"},
}

func TestGrammar(t *testing.T) {
	for _, c := range grammar {
		s, err := Parse(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		want := c.canonical
		if want == "" {
			want = strings.TrimSuffix(c.text, ";")
		}
		if got := s.String(); got != want {
			t.Errorf("printed\n%s\nwant\n%s", got, want)
		}
		again, err := Parse(s.String())
		if err != nil || !again.Equal(s) {
			t.Errorf("%s: read again: %v, %v", s, again, err)
		}
		if !Owns(c.text) {
			t.Errorf("not taken for one of ours: %s", c.text)
		}
	}
	for _, sql := range []string{"select 1", "create table t()", "explain select 1", "drop table t", "", "alter table x", "'"} {
		if Owns(sql) {
			t.Errorf("taken for one of ours: %s", sql)
		}
	}
}

// refusals lists texts with the error of each on the demo group, at srv153.
var refusals = []struct{ text, want string }{
	{"ALTER AVAILABILITY GROUP g FROB", "Msg 102: line 1, column 28: incorrect syntax near 'FROB': expected " + alterations},
	{"ALTER AVAILABILITY GROUP g\n  SET (DB_FAILOVER = MAYBE)", "Msg 102: line 2, column 22: incorrect syntax near 'MAYBE': expected ON or OFF"},
	{"ALTER AVAILABILITY GROUP g SET (FAILURE_CONDITION_LEVEL = 6)", "line 1, column 59: FAILURE_CONDITION_LEVEL = 6 is out of range: expected a number from 1 to 5"},
	{"ALTER AVAILABILITY GROUP g SET (SESSION_TIMEOUT = 10s)", "line 1, column 53: SESSION_TIMEOUT takes a number without a unit: it is in seconds, as SESSION_TIMEOUT = 10"},
	{"ALTER AVAILABILITY GROUP g SET (HEALTH_CHECK_TIMEOUT = 5000ms, DB_FAILOVER = ON)", "line 1, column 60: HEALTH_CHECK_TIMEOUT takes a number without a unit: it is in milliseconds, as HEALTH_CHECK_TIMEOUT = 5000"},
	{"ALTER AVAILABILITY GROUP g SET (BASIC)", "line 1, column 33: BASIC can be given to CREATE AVAILABILITY GROUP only"},
	{"ALTER AVAILABILITY GROUP g SET (DB_FAILOVER = ON, DB_FAILOVER = OFF)", "line 1, column 51: DB_FAILOVER is given twice"},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('a',('b')))))", "line 1, column 101: sets in a routing list cannot be nested more than once"},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a", "Msg 105: line 1, column 46: unclosed quotation mark, expected '"},
	{"ALTER AVAILABILITY GROUP [] JOIN", "Msg 1038: line 1, column 26: a name must not be empty"},
	{"ALTER AVAILABILITY GROUP g JOIN /* on", "Msg 113: line 1, column 33: missing end comment mark '*/'"},
	{"DROP AVAILABILITY GROUP", "Msg 102: line 1, column 24: incorrect syntax near the end: expected the group's name"},
	{"DROP AVAILABILITY GROUP g x", "Msg 102: line 1, column 27: incorrect syntax near 'x': expected the end of the statement"},
	{"DROP AVAILABILITY GROUP g WITH HASTE", "Msg 102: line 1, column 32: incorrect syntax near 'HASTE': expected NOWAIT or STRICT"},
	{"DBCC TRACEON (1117)", "Msg 2520: line 1, column 15: trace flag 1117 means nothing here (9592 and 1462 are other names of LOG_COMPRESSION, 9567 of SEED_COMPRESSION)"},
	{"CREATE AVAILABILITY GROUP d WITH (DISTRIBUTED) AVAILABILITY GROUP ON 'a'", "line 1, column 35: DISTRIBUTED is refused: groups of groups are not supported (one group may span sites: ASYNCHRONOUS_COMMIT replicas at the other one, and LEASE_PROFILE = WAN)"},
	{"CREATE AVAILABILITY GROUP DemoAG FOR REPLICA ON 'srv153'", "Msg 41042: line 1, column 1: the availability group N'DemoAG' already exists: a node is in one group (ALTER AVAILABILITY GROUP [DemoAG] changes it)"},
	{"ALTER AVAILABILITY GROUP other JOIN", "Msg 15151: line 1, column 1: cannot alter the availability group N'other', because it does not exist (the group of these nodes is [DemoAG])"},
	{
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'nobody' WITH (BACKUP_PRIORITY = 1)",
		"Msg 41167: line 1, column 51: availability replica N'nobody' is not in availability group N'DemoAG' (its replicas are srv153, srv154, srv155, wit)",
	},
	{
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv153' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('srv9')))",
		"Msg 41167: line 1, column 80: availability replica N'srv9' of the routing list is not in availability group N'DemoAG' (its replicas are srv153, srv154, srv155, wit)",
	},
	{"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv153' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('wit')))", "line 1, column 80: wit is a witness: it has nothing to read"},
	{
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'wit' WITH (BACKUP_PRIORITY = 90)",
		"line 1, column 63: wit is a witness: it holds no data, and BACKUP_PRIORITY would change nothing (name a replica: srv153, srv154, srv155)",
	},
	{
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'wit' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = NO))",
		"line 1, column 79: wit is a witness: it holds no data, and ALLOW_CONNECTIONS would change nothing (name a replica: srv153, srv154, srv155)",
	},
	{
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'wit' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('srv154')))",
		"line 1, column 77: wit is a witness: it holds no data, and READ_ONLY_ROUTING_LIST would change nothing (name a replica: srv153, srv154, srv155)",
	},
	{
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (SECONDARY_ROLE (READ_ONLY_ROUTING_URL = 'srv154'))",
		"line 1, column 82: READ_ONLY_ROUTING_URL is N'srv154'; expected TCP://host:port",
	},
	{
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (AVAILABILITY_MODE = CONFIGURATION_ONLY)",
		"line 1, column 66: availability mode CONFIGURATION_ONLY cannot be altered to or from: srv154 holds data (a witness is made by coterie witness, a replica by coterie join)",
	},
	{
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC)",
		"line 1, column 107: FAILOVER_MODE = AUTOMATIC needs AVAILABILITY_MODE = SYNCHRONOUS_COMMIT; srv154 is ASYNCHRONOUS_COMMIT",
	},
	{
		"ALTER AVAILABILITY GROUP DemoAG SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 3)",
		"line 1, column 38: 2 of the secondaries take part in commits; requiring 3 would stop every commit (make another replica SYNCHRONOUS_COMMIT, or RESUME a suspended one, first)",
	},
	{"ALTER AVAILABILITY GROUP DemoAG REMOVE REPLICA ON 'srv153'", "Msg 35284: line 1, column 1: availability replica N'srv153' cannot be removed: it is the primary (fail over first)"},
	{"ALTER AVAILABILITY GROUP DemoAG REMOVE REPLICA ON 'srv1'", "Msg 35283: line 1, column 1: availability replica N'srv1' is not in availability group N'DemoAG' (its replicas are srv153, srv154, srv155, wit)"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD REPLICA ON 'srv154'", "Msg 35282: line 1, column 48: availability replica N'srv154' is in availability group N'DemoAG' already (MODIFY REPLICA ON changes its options)"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD REPLICA ON 'SRV156.contoso.com'", "Msg 41167: line 1, column 48: no node N'SRV156.contoso.com' has joined (coterie member add-token here, then coterie join TOKEN --name srv156 there)"},
	{"ALTER AVAILABILITY GROUP DemoAG REMOVE DATABASE x", "Msg 35281: line 1, column 1: database N'x' is not in availability group N'DemoAG' (its databases are: none registered)"},
	{"SUSPEND", "line 1, column 1: SUSPEND alone would stop data movement of every secondary where the primary is (SUSPEND REPLICA ON N'name' for one; ALTER AVAILABILITY GROUP ... SUSPEND for all)"},
	{"ALTER DATABASE x SET HADR SUSPEND", "Msg 35239: line 1, column 1: SET HADR SUSPEND failed: database N'x' is not in availability group N'DemoAG' (ALTER AVAILABILITY GROUP [DemoAG] SUSPEND needs no database)"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD DATABASE a, b, a", "Msg 35280: line 1, column 1: database N'a' is in availability group N'DemoAG' already"},
	{"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv153' WITH (BACKUP_PRIORITY = 1), 'SRV153' WITH (BACKUP_PRIORITY = 2)", "Msg 35282: line 1, column 88: replica N'SRV153' is given twice"},
	{"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv153' WITH (BACKUP_PRIORITY = 1), 'srv9' WITH (BACKUP_PRIORITY = 2)", "Msg 41167: line 1, column 88: availability replica N'srv9' is not in availability group N'DemoAG' (its replicas are srv153, srv154, srv155, wit)"},
	{"ALTER AVAILABILITY GROUP DemoAG JOIN WITH (CLUSTER_TYPE = SOLO)", "Msg 102: line 1, column 59: incorrect syntax near 'SOLO': expected WSFC, EXTERNAL or NONE"},
	{"ALTER AVAILABILITY GROUP DemoAG MODIFY LISTENER 'l' (REMOVE IP ('10.0.0.9'))", "line 1, column 49: availability group N'DemoAG' has no listener N'l'"},
	{"ALTER AVAILABILITY GROUP DemoAG OFFLINE", "line 1, column 1: OFFLINE is refused: there is no way back from it (ALTER AVAILABILITY GROUP [DemoAG] SUSPEND stops data movement)"},
	{"ALTER AVAILABILITY GROUP DemoAG SET (ROLE = SECONDARY)", "line 1, column 1: SET (ROLE = SECONDARY) is refused: it would leave the group without a primary (ALTER AVAILABILITY GROUP [DemoAG] FAILOVER, on the replica that is to lead)"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH DHCP)", "line 1, column 46: WITH DHCP is refused: the address must not change (WITH IP ((N'10.0.0.9', N'255.255.255.0')))"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('10.0.0.9','255.0.255.0')))", "Msg 102: line 1, column 72: incorrect syntax near N'255.0.255.0': expected a subnet mask, as N'255.255.255.0'"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('127.0.0.1','255.0.0.0')))", "Msg 102: line 1, column 61: incorrect syntax near N'127.0.0.1': expected an address that one machine at a time can have, as N'10.0.0.9'"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('0.0.0.0','255.0.0.0')))", "Msg 102: line 1, column 61: incorrect syntax near N'0.0.0.0': expected an address that one machine at a time can have, as N'10.0.0.9'"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('224.0.0.1','255.0.0.0')))", "Msg 102: line 1, column 61: incorrect syntax near N'224.0.0.1': expected an address that one machine at a time can have, as N'10.0.0.9'"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('255.255.255.255','255.0.0.0')))", "Msg 102: line 1, column 61: incorrect syntax near N'255.255.255.255': expected an address that one machine at a time can have, as N'10.0.0.9'"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('::1')))", "Msg 102: line 1, column 61: incorrect syntax near N'::1': expected an address that one machine at a time can have, as N'10.0.0.9'"},
	{"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('10.0.0.9','0.0.0.0')))", "Msg 102: line 1, column 72: incorrect syntax near N'0.0.0.0': expected a subnet mask, as N'255.255.255.0'"},
	{"ALTER AVAILABILITY GROUP g RESTART LISTENER", "Msg 102: line 1, column 44: incorrect syntax near the end: expected a listener's name, as N'DemoAG-L'"},
	{"select 1", "Msg 102: line 1, column 1: incorrect syntax near 'select': expected CREATE, ALTER or DROP AVAILABILITY GROUP, ALTER DATABASE, DBCC, EXPLAIN FAILOVER, VERIFY ROUTING or SCRIPT"},
	{"\xff", "the text is not valid UTF-8 from byte 0 on"},
}

func TestRefusals(t *testing.T) {
	for _, c := range refusals {
		s, err := Parse(c.text)
		if err == nil {
			g := demo()
			var next ag.Group
			next, _, err = s.Change(g, onPrimary)
			if diff := cmp.Diff(demo(), next, everyField); err != nil && diff != "" {
				t.Errorf("%s: changed though refused:\n%s", c.text, diff)
			}
		}
		var known *Error
		if err == nil || err.Error() != c.want || !errors.As(err, &known) || known.State == "" {
			t.Errorf("%s\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestStrictOnASecondary(t *testing.T) {
	s, err := Parse("ALTER AVAILABILITY GROUP DemoAG SET (DB_FAILOVER = OFF) WITH STRICT")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.Change(demo(), Context{Self: "srv154", Primary: "srv153"})
	if err == nil || !strings.HasPrefix(err.Error(), "Msg 41140: ") || !strings.Contains(err.Error(), "connect to srv153") {
		t.Errorf("got %v", err)
	}
	if _, _, err := s.Change(demo(), onPrimary); err != nil {
		t.Error(err)
	}
}

func TestThePublishedStatements(t *testing.T) {
	g, said := run(t, demo(), onPrimary, grammar[0].text)
	g, more := run(t, g, onPrimary, grammar[1].text)
	r, _ := g.Replica("srv153")
	if r.Options.ReadOnlyURL != "TCP://SRV153.contoso.com:1433" || r.Allow != ag.AllowReadOnly {
		t.Errorf("got %+v", r)
	}
	if want := [][]ag.ReplicaID{{"srv154", "srv155"}, {"srv153"}}; !cmp.Equal(want, r.Options.RoutingList) {
		t.Errorf("got list %v", r.Options.RoutingList)
	}
	if len(said) != 1 || !strings.Contains(said[0], "READ_ONLY_ROUTING_URL: accepted") || len(more) != 0 {
		t.Errorf("said %q, %q", said, more)
	}
}

// TestListsAndAddresses holds that a list in a statement is one change, and that addresses and URLs can be taken away.
func TestListsAndAddresses(t *testing.T) {
	g, _ := run(t, demo(), onPrimary, "ALTER AVAILABILITY GROUP DemoAG ADD DATABASE a, b")
	if !cmp.Equal(g.Options.Databases, []string{"a", "b"}) {
		t.Errorf("databases %v", g.Options.Databases)
	}
	var said []string
	if g, said = run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG REMOVE DATABASE a, b"); g.Options.Databases != nil || !strings.Contains(strings.Join(said, " "), "one with the name [a] stays") {
		t.Errorf("databases %v", g.Options.Databases)
	}
	g, _ = run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv153' WITH (BACKUP_PRIORITY = 1), 'srv154' WITH (BACKUP_PRIORITY = 2, SECONDARY_ROLE (READ_ONLY_ROUTING_URL = 'TCP://x:1'))")
	a, _ := g.Replica("srv153")
	b, _ := g.Replica("srv154")
	if *a.Options.BackupPriority != 1 || *b.Options.BackupPriority != 2 || b.Options.ReadOnlyURL == "" {
		t.Errorf("%+v, %+v", a, b)
	}
	g, _ = run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (SECONDARY_ROLE (READ_ONLY_ROUTING_URL = NONE))")
	if b, _ = g.Replica("srv154"); b.Options.ReadOnlyURL != "" {
		t.Errorf("%+v", b)
	}
	g, _ = run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('10.0.0.9', '255.0.0.0'), ('fd00::9')))")
	g, _ = run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG MODIFY LISTENER 'l' (REMOVE IP ('10.0.0.9'))")
	if got := g.Options.Listeners[0].Addresses; !cmp.Equal(got, []string{"fd00::9/64"}) {
		t.Errorf("addresses %v", got)
	}
	s, err := Parse("ALTER AVAILABILITY GROUP DemoAG MODIFY LISTENER 'l' (REMOVE IP ('fd00::9'))")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Change(g, onPrimary); err == nil || !strings.Contains(err.Error(), "is the only address of listener N'l'") {
		t.Errorf("the last address: %v", err)
	}
	_, said = run(t, demo(), Context{Self: "srv154", Primary: "srv153"}, "ALTER AVAILABILITY GROUP DemoAG JOIN WITH (CLUSTER_TYPE = EXTERNAL)")
	if len(said) != 2 || !strings.Contains(said[0], "CLUSTER_TYPE: accepted") {
		t.Errorf("said %q", said)
	}
}

// TestNotYet lists the options that have no effect yet. A change that implements one removes its name.
func TestNotYet(t *testing.T) {
	var got []string
	for _, o := range Options() {
		if o.Verdict == NotYet {
			got = append(got, o.Name)
		}
		if (o.Verdict == NoEffect || o.Verdict == Refused) != (o.Why != "") {
			t.Errorf("%s: %s, because %q", o.Name, o.Verdict, o.Why)
		}
		if (o.Verdict == Refused) != (o.set == nil) || o.About == "" {
			t.Errorf("%s is not whole", o.Name)
		}
	}
	var want []string // none at present
	if !slices.Equal(got, want) {
		t.Errorf("recorded and not yet in effect: %v, want %v", got, want)
	}
	for text, want := range map[string]string{
		"SET (DTC_SUPPORT = PER_DB)": "DTC_SUPPORT: accepted, without effect: prepared transactions are in the write-ahead log and survive every failover by themselves",
	} {
		if _, said := run(t, demo(), onPrimary, "ALTER AVAILABILITY GROUP DemoAG "+text); !slices.Contains(said, want) {
			t.Errorf("%s: said %q", text, said)
		}
	}
}

func TestTraceFlags(t *testing.T) {
	g, _ := run(t, demo(), onPrimary, "ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv155' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT)")
	g, said := run(t, g, onPrimary, "DBCC TRACEON (1462, -1)")
	if r, _ := g.Replica("srv155"); r.Options.LogCompression != "OFF" || r.FailoverMode != ag.Manual {
		t.Errorf("got %+v", r)
	}
	if text := strings.Join(said, " "); len(said) != 2 || !strings.Contains(text, "LOG_COMPRESSION = OFF) of asynchronous replicas") {
		t.Errorf("said %q", said)
	}
	g, _ = run(t, g, onPrimary, "DBCC TRACEOFF (9592)")
	if r, _ := g.Replica("srv154"); r.Options.LogCompression != "OFF" {
		t.Errorf("got %+v", r)
	}
	off, said := run(t, g, onPrimary, "DBCC TRACEOFF (9567)")
	if r, _ := off.Replica("srv154"); r.Options.SeedCompression != "OFF" || !strings.Contains(said[0], "SEED_COMPRESSION = OFF") {
		t.Errorf("got %+v, said %q", r.Options, said)
	}
	g, said = run(t, off, onPrimary, "DBCC TRACEON (9567, -1)")
	if r, _ := g.Replica("srv154"); r.Options.SeedCompression != "" || !strings.Contains(said[0], "SEED_COMPRESSION = AUTO") {
		t.Errorf("got %+v, said %q", r.Options, said)
	}
	if got, want := (TraceFlags{Flags: []int{9592, 1462, 9567}}).TraceStatus(g), []TraceStatus{{1462, true}, {9567, true}, {9592, false}}; !cmp.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestSuspendSaysWhatItStops holds that a suspension tells whose data movement it stops, and when commits wait for no
// secondary because of it.
func TestSuspendSaysWhatItStops(t *testing.T) {
	const none = "no synchronous secondary is left: commits wait for none until RESUME, and no replica takes over by itself"
	g, said := run(t, demo(), onPrimary, "SUSPEND REPLICA ON N'SRV154'")
	if want := []string{"data movement of srv154 is suspended until RESUME: no readers there, and no part in commits"}; !slices.Equal(said, want) {
		t.Errorf("one: %q", said)
	}
	_, said = run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG SUSPEND")
	if want := []string{"srv154 is suspended already: nothing was changed", "data movement of srv155 is suspended until RESUME: no readers there, and no part in commits", none}; !slices.Equal(said, want) {
		t.Errorf("the rest: %q", said)
	}
	if _, said = run(t, g, onPrimary, "RESUME"); len(said) != 1 || said[0] != "srv155 is not suspended: nothing was changed" {
		t.Errorf("RESUME: %q", said)
	}
}

// TestRequiredIsKept holds that no statement takes a secondary out of commits that a REQUIRED which was set asks for.
func TestRequiredIsKept(t *testing.T) {
	g, _ := run(t, demo(), onPrimary, "ALTER AVAILABILITY GROUP DemoAG SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 1)")
	g, _ = run(t, g, onPrimary, "SUSPEND REPLICA ON N'SRV154'")
	const most = "0 of the 1 secondaries that REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT asks for would be left"
	for _, tt := range []struct{ statement, want string }{
		{"ALTER AVAILABILITY GROUP DemoAG SUSPEND", most},
		{"SUSPEND REPLICA ON N'SRV155'", most},
		{"ALTER AVAILABILITY GROUP DemoAG REMOVE REPLICA ON 'srv155'", most},
		{"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv155' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT)", most},
		{"ALTER AVAILABILITY GROUP DemoAG SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 2)", "1 of the secondaries take part in commits; requiring 2 would stop every commit"},
	} {
		s, err := Parse(tt.statement)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Change(g, onPrimary); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.statement, err)
		}
	}
	if g, _ := run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG REMOVE REPLICA ON 'srv154'"); g.TakePart("srv153") != 1 {
		t.Errorf("%d take part", g.TakePart("srv153"))
	}
	g, _ = run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = DEFAULT)")
	run(t, g, onPrimary, "ALTER AVAILABILITY GROUP DemoAG SUSPEND")
}

// TestLifeOfAReplica runs CREATE, JOIN, REMOVE, ADD and DROP on nodes without a group.
func TestLifeOfAReplica(t *testing.T) {
	g := nodesOf(demo())
	g, _ = run(t, g, onPrimary, "CREATE AVAILABILITY GROUP Sales FOR DATABASE shop REPLICA ON 'srv153' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('srv154'))), 'srv154', 'wit' LISTENER 'l' (PORT = 1433)")
	if r, _ := g.Replica("srv154"); g.Name != "Sales" || g.Draft || r.Join != ag.NotJoined || !r.Suspended {
		t.Errorf("after CREATE: %+v", r)
	}
	there := Context{Self: "srv154", Primary: "srv153"}
	g, _ = run(t, g, there, "ALTER AVAILABILITY GROUP sales JOIN")
	if r, _ := g.Replica("srv154"); r.Join != "" || r.Suspended {
		t.Errorf("after JOIN: %+v", r)
	}
	if s, _ := Parse("ALTER AVAILABILITY GROUP sales JOIN"); s.Action != nil {
		if _, _, err := s.Change(g, Context{Self: "srv155", Primary: "srv153"}); err == nil || !strings.HasPrefix(err.Error(), "Msg 41158") {
			t.Errorf("JOIN of a node that was not added: %v", err)
		}
	}
	g, _ = run(t, g, there, "ALTER AVAILABILITY GROUP sales ADD REPLICA ON 'srv155'")
	g, _ = run(t, g, there, "ALTER AVAILABILITY GROUP sales JOIN REPLICA ON 'SRV155'") // from another node
	if r, _ := g.Replica("srv155"); r.Join != "" || r.Suspended {
		t.Errorf("after JOIN REPLICA: %+v", r)
	}
	g, _ = run(t, g, onPrimary, "ALTER AVAILABILITY GROUP sales REMOVE REPLICA ON 'SRV154'")
	if r, _ := g.Replica("srv154"); r.Part() || !r.Suspended {
		t.Errorf("after REMOVE: %+v", r)
	}
	if r, _ := g.Replica("srv153"); r.Options.RoutingList != nil {
		t.Errorf("the routing list still names it: %v", r.Options.RoutingList)
	}
	g, _ = run(t, g, there, "ALTER AVAILABILITY GROUP sales ADD REPLICA ON 'srv154'")
	g, _ = run(t, g, there, "ALTER AVAILABILITY GROUP sales JOIN")
	g, _ = run(t, g, there, "ALTER DATABASE shop SET HADR SUSPEND")
	if r, _ := g.Replica("srv154"); !r.Suspended || r.SuspendedBy != ag.SuspendUser {
		t.Errorf("after SUSPEND: %+v", r)
	}
	g, _ = run(t, g, onPrimary, "ALTER DATABASE shop SET HADR RESUME")
	g, _ = run(t, g, there, "ALTER AVAILABILITY GROUP sales DENY CREATE ANY DATABASE")
	if r, _ := g.Replica("srv154"); r.Suspended || !r.Options.NoSeeding {
		t.Errorf("after RESUME: %+v", r)
	}
	g, _ = run(t, g, onPrimary, "DROP AVAILABILITY GROUP sales")
	if r, _ := g.Replica("srv154"); !g.Draft || r.Part() || len(g.Options.Listeners)+len(g.Options.Databases) != 0 {
		t.Errorf("after DROP: %+v", g)
	}
	if s, _ := Parse("ALTER AVAILABILITY GROUP sales JOIN"); s.Action != nil {
		if _, _, err := s.Change(g, onPrimary); err == nil || !strings.HasPrefix(err.Error(), "Msg 15151") {
			t.Errorf("ALTER without a group: %v", err)
		}
	}
}

// nodesOf returns the nodes of a group without the group.
func nodesOf(g ag.Group) ag.Group {
	g = Clone(g)
	g.Draft, g.Required, g.CommitRule, g.Options, g.SessionTimeout = true, nil, ag.RuleQuorum, ag.Options{}, 10*time.Second
	for i := range g.Replicas {
		r := &g.Replicas[i]
		r.Options, r.Join, r.Allow = ag.ReplicaOptions{}, ag.Detached, ""
		if r.HasData() {
			r.AvailabilityMode, r.FailoverMode = ag.SynchronousCommit, ag.Automatic
			r.Suspended = r.ID != "srv153"
		}
	}
	return g
}

// TestNoticeOfAShortTimeout holds that a timeout which SQL Server refuses is taken with a notice, but not the default,
// which scripts that Coterie writes contain.
func TestNoticeOfAShortTimeout(t *testing.T) {
	for value, want := range map[string]bool{"9000": true, "10000": false, "14999": true, "15000": false} {
		_, notices := run(t, demo(), onPrimary, "ALTER AVAILABILITY GROUP DemoAG SET (HEALTH_CHECK_TIMEOUT = "+value+")")
		if got := strings.Contains(strings.Join(notices, " "), "SQL Server takes"); got != want {
			t.Errorf("%s: %v", value, notices)
		}
	}
}

// TestNoticeOfOptionsOfLinks holds that a statement which does not wait for open links says so, where it changes one.
func TestNoticeOfOptionsOfLinks(t *testing.T) {
	for value, want := range map[string]bool{"LOG_COMPRESSION = OFF": true, "TRANSPORT = QUIC": true, "LOG_COMPRESSION = AUTO": false, "TRANSPORT = AUTO": false, "SEED_COMPRESSION = OFF": false} {
		_, notices := run(t, demo(), onPrimary, "ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv155' WITH ("+value+")")
		if got := strings.Contains(strings.Join(notices, " "), "open links take it"); got != want {
			t.Errorf("%s: %v", value, notices)
		}
	}
}

func TestScriptMakesTheSameGroup(t *testing.T) {
	g := demo()
	for _, text := range []string{
		grammar[0].text, grammar[1].text,
		"ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv155' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, BACKUP_PRIORITY = 0, SESSION_TIMEOUT = 15, LOG_COMPRESSION = ZSTD:9, SEED_MAX_RATE = 1 MB)",
		"ALTER AVAILABILITY GROUP DemoAG SET (COMMIT_RULE = ALL, DB_FAILOVER = OFF, HEALTH_CHECK_TIMEOUT = 5000, DTC_SUPPORT = PER_DB)",
		"ALTER AVAILABILITY GROUP DemoAG ADD DATABASE \"Shop's\"",
		"ALTER AVAILABILITY GROUP DemoAG ADD LISTENER N'l-s' (WITH IP ((N'10.0.0.9', N'255.255.128.0'), (N'fd00::9')), PORT = 1433)",
	} {
		g, _ = run(t, g, onPrimary, text)
	}
	if diff := scriptDiff(t, g); diff != "" {
		t.Errorf("made by its script (-want +got):\n%s", diff)
	}
	if text := ScriptText(g); !strings.Contains(text, "-- on srv155") {
		t.Errorf("script:\n%s", text)
	}
}

// scriptDiff executes the script of a group on its nodes, and returns the difference to the group.
func scriptDiff(t *testing.T, g ag.Group) string {
	t.Helper()
	made := nodesOf(g)
	for _, s := range ScriptOf(g) {
		made, _ = run(t, made, onPrimary, s.String())
	}
	want := Clone(g)
	for i := range made.Replicas {
		made.Replicas[i].Join, made.Replicas[i].Suspended = "", false
		w := &want.Replicas[i]
		w.Options.NoSeeding = false // the script sets it on the replica itself
		w.Join, w.Suspended, w.SuspendedBy = "", false, ""
		if !w.HasData() {
			w.Allow, made.Replicas[i].Allow = "", ""
		}
	}
	return cmp.Diff(want, made, everyField)
}

func TestSplit(t *testing.T) {
	parts, err := Split("-- first\nselect 'a;b' ;;\n  go \nSELECT [x;] from [go]\nGO\n\"q;\" /* ; */ go on\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Part{{"select 'a;b'", 2, 9}, {"SELECT [x;] from [go]", 4, 31}, {"\"q;\" /* ; */ go on", 6, 56}}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Error(diff)
	}
}

// TestSplitEscapes holds that a backslash in E'text' takes the quote behind it into the text, as it does where the
// statement is executed.
func TestSplitEscapes(t *testing.T) {
	for text, want := range map[string]int{
		`select E'\'' ; select 1 -- '`: 2, `select E'\' ; select 1'`: 1, `select e'\\' ; select 1`: 2, `select E''';'; x`: 2, `select nameE'\' ; x`: 2, `select '\' ; x`: 2,
	} {
		if parts, err := Split(text); err != nil || len(parts) != want {
			t.Errorf("%s: %d statements, %v; want %d", text, len(parts), err, want)
		}
	}
	if _, err := Split(`select E'\'`); err == nil {
		t.Error("an unclosed quotation is one")
	}
	if _, err := Parse(`ALTER AVAILABILITY GROUP E'x' FAILOVER`); err == nil {
		t.Error("E'…' is a name of the language")
	}
}

func FuzzStatement(f *testing.F) {
	for _, c := range grammar {
		f.Add(c.text)
		f.Add(strings.ReplaceAll(c.text, "[g]", "DemoAG"))
	}
	for _, c := range refusals {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = Split(text)
		Owns(text)
		s, err := Parse(text)
		if err != nil {
			var known *Error
			if !errors.As(err, &known) || known.State == "" || known.Message == "" {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() {
			t.Fatalf("%q is printed\n%s\nand read again as\n%s: %v", text, s, again, err)
		}
		for _, g := range []ag.Group{demo(), nodesOf(demo())} {
			before := Clone(g)
			s.Group = "DemoAG"
			next, _, err := s.Change(g, onPrimary)
			if diff := cmp.Diff(before, g, everyField); diff != "" {
				t.Fatalf("%s changed its input:\n%s", s, diff)
			}
			if err != nil {
				if diff := cmp.Diff(before, next, everyField); diff != "" {
					t.Fatalf("%s was refused and changed:\n%s", s, diff)
				}
				continue
			}
			if !next.Draft && len(next.Replicas) == 4 && !slices.ContainsFunc(next.Replicas, func(r ag.Replica) bool { return !r.Part() }) {
				if diff := scriptDiff(t, next); diff != "" {
					t.Fatalf("%s: the script of what it makes makes another group (-want +got):\n%s", s, diff)
				}
			}
		}
	})
}
