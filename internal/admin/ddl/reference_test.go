package ddl

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

var update = flag.Bool("update", false, "write docs/language.md")

// example is a statement of the reference. The examples run one after the other, each on its node, beginning without a
// group.
type example struct{ on, text string }

// chapters are the statements of the reference, in the order in which they are read and run.
var chapters = []struct {
	title, syntax, about string
	examples             []example
}{
	{
		"CREATE AVAILABILITY GROUP", `CREATE AVAILABILITY GROUP name
    [ WITH ( option [ , … ] ) ]
    FOR [ DATABASE name [ , … ] ]
    REPLICA ON 'replica' [ WITH ( option [ , … ] ) ] [ , … ]
    [ LISTENER 'name' ( [ WITH IP ( ( 'address' [ , 'mask' ] ) [ , … ] ) ] [ , PORT = port ] ) ]`,
		"Makes a group of nodes that have joined each other and have none (" + "`coterie init --no-group`" + ", or after DROP). It runs on the node that has the data, which becomes the primary; " +
			"from another node it is passed on. Each other replica then runs JOIN. A group that `coterie init` made exists already: ALTER it.",
		[]example{{"srv153", `CREATE AVAILABILITY GROUP [DemoAG]
    WITH (DB_FAILOVER = ON, AUTOMATED_BACKUP_PREFERENCE = SECONDARY)
    FOR DATABASE [shop]
    REPLICA ON
        N'SRV153' WITH (ENDPOINT_URL = N'TCP://SRV153.contoso.com:5022', AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC),
        N'SRV154' WITH (ENDPOINT_URL = N'TCP://SRV154.contoso.com:5022', AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC),
        N'SRV155' WITH (ENDPOINT_URL = N'TCP://SRV155.contoso.com:5022', AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL),
        N'WIT' WITH (AVAILABILITY_MODE = CONFIGURATION_ONLY, FAILOVER_MODE = MANUAL)
    LISTENER N'DemoAG-L' (WITH IP ((N'10.0.0.9', N'255.255.255.0')), PORT = 1433)`}},
	},
	{
		"JOIN, GRANT and DENY CREATE ANY DATABASE", "ALTER AVAILABILITY GROUP name { JOIN [ REPLICA ON 'replica' ] [ WITH ( CLUSTER_TYPE = … ) ] | { GRANT | DENY } CREATE ANY DATABASE }",
		"They run on the replica they are about; JOIN also on any other, for the one that is named. JOIN makes the node a copy: it is seeded, unless its SEEDING_MODE is MANUAL or seeding is denied. Seeding is permitted unless it is denied.",
		[]example{
			{"srv154", "ALTER AVAILABILITY GROUP [DemoAG] JOIN"},
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] JOIN REPLICA ON N'SRV155' WITH NOWAIT"},
			{"srv155", "ALTER AVAILABILITY GROUP [DemoAG] DENY CREATE ANY DATABASE"},
			{"srv155", "ALTER AVAILABILITY GROUP [DemoAG] GRANT CREATE ANY DATABASE"},
		},
	},
	{
		"SET", "ALTER AVAILABILITY GROUP name SET ( option [ , … ] )", "Changes options of the group. More than one may be given.",
		[]example{{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 1)"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] SET (COMMIT_RULE = ALL, FAILURE_DETECTION = STRICT)"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = DEFAULT)"}},
	},
	{
		"SET PARAMETER, RESET PARAMETER",
		`ALTER AVAILABILITY GROUP name SET PARAMETER setting = value [ , … ] [ FOR REPLICA 'replica' ]
ALTER AVAILABILITY GROUP name RESET PARAMETER setting [ , … ] [ FOR REPLICA 'replica' ]`,
		"Sets settings of PostgreSQL for the servers of all replicas, also of those that join later, or for one replica in place of the group's value. Each replica checks the value before it is written. " +
			"A setting that needs a restart waits for one: `SELECT * FROM coterie.settings WHERE pending_restart`. What ALTER SYSTEM says otherwise on a server is put back.",
		[]example{
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] SET PARAMETER work_mem = '64MB', max_connections = 200"},
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] SET PARAMETER work_mem = 1GB FOR REPLICA N'SRV155'"},
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] RESET PARAMETER max_connections"},
		},
	},
	{
		"SET HBA, RESET HBA",
		`ALTER AVAILABILITY GROUP name SET HBA ( 'rule' [ , … ] )
ALTER AVAILABILITY GROUP name RESET HBA`,
		"Gives the listeners of all nodes their rules for logins, one line of pg_hba.conf's syntax each, or takes them back. It needs a superuser, since rules can let one in. " +
			"A rule that a listener could not honour is refused. `coterie hba set` takes a file.",
		[]example{
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] SET HBA (N'hostssl all all 10.0.0.0/8 scram-sha-256', N'local all all peer')"},
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] RESET HBA"},
		},
	},
	{
		"MODIFY REPLICA", "ALTER AVAILABILITY GROUP name MODIFY REPLICA ON { 'replica' WITH ( option [ , … ] ) } [ , … ]",
		"Changes options of a replica: its own, those of its secondary role, those of its primary role. More than one may be given. The routing list in force is that of the present primary.",
		[]example{
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV153' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY, READ_ONLY_ROUTING_URL = N'TCP://SRV153.contoso.com:1433'))"},
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV153' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('SRV154','SRV155'),'SRV153')))"},
			{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV155' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, SESSION_TIMEOUT = 15)"},
			{"srv154", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'SRV155' WITH (LOG_COMPRESSION = ZSTD:3, SEED_MAX_RATE = 100 MB, BACKUP_PRIORITY = 90)"},
		},
	},
	{
		"ADD and REMOVE DATABASE", "ALTER AVAILABILITY GROUP name { ADD | REMOVE } DATABASE name [ , … ]",
		"The whole instance is replicated, every database of it. ADD registers a database for health detection and the views, and creates it where it is absent; REMOVE takes it off the register and leaves it. Where none is registered the views show all.",
		[]example{{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] ADD DATABASE [orders]"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] REMOVE DATABASE [orders]"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] ADD DATABASE [stock], [billing]"}},
	},
	{
		"ADD and REMOVE REPLICA", "ALTER AVAILABILITY GROUP name { ADD REPLICA ON 'replica' [ WITH ( option [ , … ] ) ] [ , … ] | REMOVE REPLICA ON 'replica' [ , … ] }",
		"Of nodes that have joined. REMOVE leaves the node its vote and its copy as it is; `coterie member remove` takes the node out for good. After ADD the replica runs JOIN.",
		[]example{{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] REMOVE REPLICA ON N'SRV155'"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] ADD REPLICA ON N'SRV155' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL)"}, {"srv155", "ALTER AVAILABILITY GROUP [DemoAG] JOIN"}},
	},
	{
		"LISTENER", `ALTER AVAILABILITY GROUP name
    { ADD LISTENER 'name' ( … ) | MODIFY LISTENER 'name' ( { ADD IP ( … ) | REMOVE IP ( 'address' ) | PORT = port } ) | RESTART LISTENER 'name' | REMOVE LISTENER 'name' }`,
		"A group has one named listener beside the ports of every node, which need none. Its addresses are put up on the node that is the primary, each on the device that is in its subnet, and follow it; its port is opened on every node, for read-write clients; its name and its addresses are in every node's certificate. All of it takes effect at once, and coterie.addresses shows it. Coterie writes nothing to DNS. WITH DHCP is refused. RESTART has every node read the certificate and the rules of its client ports and open the listener's port again; sessions go on.",
		[]example{{"srv153", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY LISTENER N'DemoAG-L' (ADD IP (N'fd00::9'))"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] MODIFY LISTENER N'DemoAG-L' (REMOVE IP (N'fd00::9'))"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] RESTART LISTENER N'DemoAG-L'"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] REMOVE LISTENER N'DemoAG-L'"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] ADD LISTENER N'DemoAG-L' (PORT = 1433)"}},
	},
	{
		"FAILOVER", "ALTER AVAILABILITY GROUP name { FAILOVER | FORCE_FAILOVER_ALLOW_DATA_LOSS [ NOW ] } [ TO 'replica' ]",
		"Makes the replica on which it runs the primary, or the one after TO. FAILOVER needs a SYNCHRONIZED target (41142) and loses nothing. The forced one may lose acknowledged commits and leaves all other copies suspended until RESUME. It promotes at once and opens when the old primary can answer no client any more; with NOW it opens at once, and clients of the old primary may read old data meanwhile. Both return when it is done; WITH NOWAIT when it is accepted, as SQL Server does. How one ended for which nobody waited is in `coterie.events`.",
		[]example{{"srv154", "ALTER AVAILABILITY GROUP [DemoAG] FAILOVER"}, {"srv154", "ALTER AVAILABILITY GROUP [DemoAG] FAILOVER TO N'SRV153' WITH NOWAIT"}, {"srv154", "ALTER AVAILABILITY GROUP [DemoAG] FORCE_FAILOVER_ALLOW_DATA_LOSS"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] FORCE_FAILOVER_ALLOW_DATA_LOSS NOW"}},
	},
	{
		"SUSPEND and RESUME", `ALTER AVAILABILITY GROUP name { SUSPEND | RESUME } [ REPLICA ON 'replica' ]
ALTER DATABASE name SET HADR { SUSPEND | RESUME | OFF | AVAILABILITY GROUP = name }`,
		"Stops and continues data movement: to the replica that is named, else to the one on which it runs, else, on the primary, to all. A suspended copy takes no readers and does not count for commits. A REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT that was set is kept: what would leave fewer is refused. SET HADR OFF is refused: one replica cannot leave a database out.",
		[]example{{"srv154", "ALTER DATABASE [shop] SET HADR SUSPEND"}, {"srv154", "ALTER DATABASE [shop] SET HADR RESUME"}, {"srv153", "ALTER AVAILABILITY GROUP [DemoAG] SUSPEND REPLICA ON N'SRV155'"}, {"srv153", "RESUME REPLICA ON N'SRV155'"}, {"srv155", "ALTER DATABASE [shop] SET HADR AVAILABILITY GROUP = [DemoAG]"}},
	},
	{
		"SEED REPLICA, CANCEL SEEDING", "[ ALTER AVAILABILITY GROUP name ] { SEED REPLICA | CANCEL SEEDING } ON 'replica'",
		"SEED REPLICA makes the copy of a replica anew: it is dropped from the synchronized set, its server stops, every byte is compared with the source and what differs travels. The statement returns when that is asked for. CANCEL SEEDING ends it; what arrived stays, and nobody goes on before SEED REPLICA. See [seeding.md](seeding.md).",
		[]example{{"srv153", "SEED REPLICA ON N'SRV155'"}},
	},
	{
		"Trace flags", "DBCC { TRACEON | TRACEOFF | TRACESTATUS } ( { 9567 | 9592 | 1462 } [ , … ] [ , -1 ] )",
		"Other names of the compression options: 9592 LOG_COMPRESSION of synchronous replicas, 1462 (the other way round) of asynchronous ones, 9567 SEED_COMPRESSION. A notice names the option.",
		[]example{{"srv153", "DBCC TRACEON (9567, -1)"}, {"srv153", "DBCC TRACESTATUS (9567, 9592, 1462, -1)"}},
	},
	{
		"Questions", "EXPLAIN FAILOVER\nVERIFY ROUTING\nSCRIPT", "Which replica could lead now and why another could not; where each node sends sessions of each intent, and which entries of the list were passed over; the statements that make this group.",
		[]example{{"srv154", "EXPLAIN FAILOVER"}, {"srv154", "VERIFY ROUTING"}, {"srv154", "SCRIPT"}},
	},
	{
		"DROP AVAILABILITY GROUP", "DROP AVAILABILITY GROUP name", "Ends the group. The primary stays open for writes, unprotected; the other copies stay as they are; the nodes keep their quorum, and CREATE makes a group of them again.",
		[]example{{"srv153", "DROP AVAILABILITY GROUP [DemoAG]"}},
	},
}

const preamble = `# The language

<!-- written by go test ./internal/admin/ddl -update from the grammar; do not edit -->

Availability-group statements, as SQL Server's administrators know them, and some of our own. They are typed in the database ` + "`coterie`" + ` of the listener of any node,
with psql or any driver, or given to ` + "`coterie sql`" + ` on a node, which needs no password and works whatever PostgreSQL does. The views are in [views.md](views.md).

    psql -h any-node -p 5432 -d coterie
    coterie sql -c 'SELECT * FROM coterie.replicas'

- A name is bare, in ` + "`[brackets]` or in `\"quotes\"`; a string is `'…'` or `N'…'`" + `. Keywords in any case. ` + "`--` and `/* */`" + ` are remarks; an option of the shell that is typed as one, such as ` + "`FAILOVER --force`" + `, is refused. Semicolons, and lines with GO alone, separate statements.
- A replica is named by its host name, as typed in SQL Server: ` + "`N'SRV153.contoso.com'`" + ` is the node srv153.
- A statement is one compare-and-swap of the configuration: it is done, or nothing is. It may be typed on any node. **WITH STRICT** refuses what belongs to the primary elsewhere (41140).
- It returns when it has its effect, at most 90 s later, or tells in a notice what comes later by itself; **WITH NOWAIT** when it is accepted.
- Errors carry a place, what was expected, and the number of SQL Server's message where there is one.
- Members of coterie_viewer may look, those of coterie_operator also fail over, suspend and resume, those of coterie_admin and superusers do everything. The roles are made with the group.
- One group is one PostgreSQL instance, replicated whole.
- Every example below is executed by a test.
`

// reference returns the document.
func reference() string {
	var b strings.Builder
	b.WriteString(preamble)
	for _, c := range chapters {
		fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n\n%s\n\n```sql\n", c.title, c.syntax, c.about)
		for _, e := range c.examples {
			fmt.Fprintf(&b, "%s;    -- on %s\n", e.text, e.on)
		}
		b.WriteString("```\n")
	}
	b.WriteString("\n## Options\n")
	for _, p := range []struct {
		place Place
		title string
	}{{InGroup, "Of the group: WITH in CREATE, SET"}, {InReplica, "Of a replica"}, {InSecondary, "SECONDARY_ROLE ( … )"}, {InPrimary, "PRIMARY_ROLE ( … )"}} {
		fmt.Fprintf(&b, "\n### %s\n\n| option | values | default | what it does |\n|---|---|---|---|\n", p.title)
		for _, o := range options {
			if o.Place == p.place {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", o.Name, values(o), o.Default, meaning(o))
			}
		}
	}
	return b.String()
}

func values(o Option) string {
	switch o.Form {
	case Number:
		s := fmt.Sprintf("%d to %d %s", o.Min, o.Max, o.Unit)
		if len(o.Words) > 0 {
			s += ", " + strings.Join(o.Words, ", ")
		}
		return strings.TrimSpace(s)
	case Text:
		return "a string"
	case Routes:
		return "(('B', 'C'), 'A'), NONE, DEFAULT"
	case Flag:
		return "(no value)"
	default:
		s := strings.Join(o.Words, ", ")
		if o.Max > 0 {
			s += fmt.Sprintf("[(%d to %d %s)]", o.Min, o.Max, o.Unit)
		}
		return s
	}
}

func meaning(o Option) string {
	s := o.About
	switch o.Verdict {
	case NotYet:
		s += " **Recorded, not yet in effect.**"
	case NoEffect:
		s += " **Accepted, without effect:** " + o.Why + "."
	case Refused:
		s += " **Refused:** " + o.Why + "."
	default:
	}
	if o.OnlyNew {
		s += " In CREATE only."
	}
	return s
}

func TestReference(t *testing.T) {
	const path = "../../../docs/language.md"
	want := reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("docs/language.md is not what the grammar says (%v): go test ./internal/admin/ddl -run TestReference -update", err)
	}
}

func TestExamples(t *testing.T) {
	g := nodesOf(demo())
	g.Name = "nodes"
	for _, c := range chapters {
		for _, e := range c.examples {
			s, err := Parse(e.text)
			if err != nil {
				t.Fatalf("%s: %v", e.text, err)
			}
			where := Context{Self: ag.ReplicaID(e.on), Primary: "srv153"}
			if s.Kind() != KindChange {
				if err := s.Check(g, where); err != nil {
					t.Errorf("%s: %v", e.text, err)
				}
				continue
			}
			next, _, err := s.Change(g, where)
			if err != nil {
				t.Fatalf("%s: %v", e.text, err)
			}
			g = next
		}
	}
	if !g.Draft {
		t.Error("the last example drops the group")
	}
}
