package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
)

// typed is what somebody types on a member of a healthy group of two replicas and a witness, most of it wrong.
// P, S and W stand for the names of the primary, the secondary and the witness.
type typed struct {
	on   string // P, S or W
	line string
	code int
	says string // part of what is printed; P, S and W in it are those names, too
}

// mistyped are inputs of administrators who know Patroni or guess, with what they are to be told.
var mistyped = []typed{
	{"P", "stauts", exitUsage, "did you mean coterie status"},
	{"P", "switchover S", exitUsage, "coterie failover --to NAME"},
	{"P", "list", exitUsage, "coterie member list"},
	{"P", "pause --wait", exitUsage, "coterie maintenance on"},
	{"P", "reinit S --force", exitUsage, "coterie replica seed NAME --full"},
	{"P", "edit-config", exitUsage, "coterie settings"},
	{"P", "history", exitUsage, "coterie explain --all"},
	{"P", "reload", exitUsage, "coterie listener restart"},
	{"P", "config show", exitUsage, "cat coterie.yaml"},
	{"P", "failover S", exitUsage, "coterie failover --to S"},
	{"P", "failover --to n9", exitUsage, `"n9" is not in availability group`},
	{"P", "failover --to P", exitRefused, "it is the primary already"},
	{"S", "failover --to P", exitRefused, "it is the primary already"},
	{"S", "failover --to W", exitRefused, "W is a witness"},
	{"W", "failover --to S", exitRefused, "run this on a replica, such as S"},
	{"P", "failover --force", exitUsage, "--to NAME --allow-data-loss"},
	{"P", "failover --candidate S", exitUsage, "--to NAME"},
	{"P", "failover --allow-data-loss --yes", exitUsage, "--allow-data-loss needs --to NAME"},
	{"P", "failover --to S --allow-data-loss", exitRefused, "add --yes"},
	{"P", "failover --to S --to P", exitUsage, "--to is given twice; nothing was done"},
	{"P", "failover --to= --drain 1s", exitUsage, "--to has an empty name; nothing was changed"},
	{"P", "failover to S", exitUsage, "coterie failover --to S"},
	{"P", "failover --to S,P", exitUsage, "is not in availability group"},
	{"P", "failover --dry-run --allow-data-loss --to S", exitUsage, "--dry-run is for a planned failover"},
	{"P", "failover --now --to S", exitUsage, "--now belongs to --allow-data-loss"},
	{"P", "failover --away --to S", exitUsage, "leave --to"},
	{"S", "failover --away", 0, "S is not the primary; nothing to do"},
	{"P", "status S", exitUsage, "needs no arguments"},
	{"P", "member remove", exitUsage, "needs the member's name"},
	{"P", "member remove S W --yes", exitUsage, "does not know what to do with"},
	{"P", "member replace P --yes", exitRefused, "P answers, and only a member that is lost is replaced"},
	{"P", "replica set S backup_priority = 5", exitUsage, "is not OPTION=VALUE"},
	{"P", "replica set S BACKUP_PRIORITY=5 backup_priority=6", exitUsage, "BACKUP_PRIORITY is given twice"},
	{"P", "replica set backup_priority=5 S", exitUsage, "is not OPTION=VALUE"},
	{"P", "replica set S backup_priority=5;DROP", exitUsage, "incorrect syntax near ';'"},
	{"P", "replica seed P", exitRefused, "P is the primary: there is nothing to copy from"},
	{"P", "group set db_failover=on db_failover=off", exitUsage, "DB_FAILOVER is given twice"},
	{"P", "group show lab", exitUsage, "needs no arguments"},
	{"P", "listener add l 5432x", exitUsage, "is not a port from 1 to 65535"},
	{"P", "listener add my/listener 5555", exitUsage, "a listener's name is one of DNS"},
	{"P", "listener add l 5555 --ip 10.0.0.1", exitUsage, "is no address of a subnet"},
	{"P", "listener set nosuch --add-ip 10.0.0.9/24", exitUsage, "has no listener"},
	{"P", "listener remove nosuch", exitUsage, "has no listener"},
	{"P", "routing set --when-primary P --list (S,P", exitUsage, "the brackets of the list"},
	{"P", "settings set work_mem = 64MB", exitUsage, "is not NAME=VALUE"},
	{"P", "settings set work_mem=64XB", exitUsage, "does not take work_mem"},
	{"P", "database add", exitUsage, "needs NAME"},
	{"P", "sql SELECT 1", exitUsage, "needs no arguments"},
	{"P", "sql -c SELECT -c SELECT", exitUsage, "--command is given twice"},
	{"P", "sql --csv --json -c SELECT", exitUsage, "choose one of --json and --csv"},
	{"P", "restart --postgres P S", exitUsage, "does not know what to do with"},
	{"P", "maintenance on S --for 1x", exitUsage, "is not a duration"},
	{"P", "member add-token --ttl 0", exitUsage, "nothing was made"},
	{"P", "init", exitRefused, "is not empty; nothing was changed"},
	{"P", "join coterie1.AAAA", exitUsage, "it was cut or mistyped"},
	{"P", "agent", exitError, "an agent already runs"},
	{"P", "check link P P", exitUsage, "P has no link to itself"},
	{"P", "explain --epoch -1", exitUsage, "is not a number that can be used here"},
	{"P", "explain S", exitUsage, "needs no arguments"},
	{"P", "failover --drain 10", exitUsage, "is not a duration"},
	{"P", "failover --drain 25h", exitUsage, "choose between"},
	{"P", "member remove n9 --yes", exitUsage, "the group has no member \"n9\"; nothing was changed (see coterie member list)"},
	{"P", "member remove S", exitRefused, "add --yes"},
	{"P", "member replace S", exitRefused, "add --yes"},
	{"P", "member remove P --yes", exitRefused, "P is the primary; coterie failover first"},
	{"S", "member remove S --yes", exitRefused, "Run coterie member remove S on P; or, here, coterie leave"},
	{"W", "member remove S --yes", exitRefused, "W is a witness, which cannot change who is a member; nothing was changed. Run coterie member remove S on P"},
	{"W", "member remove W --yes", exitRefused, "Run coterie member remove W on"},
	{"P", "member replace n9 --yes", exitUsage, "the group has no member \"n9\""},
	{"P", "member replace S --yes", exitRefused, "S answers, and only a member that is lost is replaced; nothing was changed"},
	{"W", "member replace S --yes", exitRefused, "Run coterie member replace S on P"},
	{"W", "member add-token", exitRefused, "Run coterie member add-token on"},
	{"W", "ca rotate", exitRefused, "Run coterie ca rotate on"},
	{"P", "member add-token --ttl -1s", exitUsage, "nothing was made"},
	{"P", "member add-token --ttl 9000h", exitUsage, "nothing was made"},
	{"P", "member add-token --role boss", exitUsage, "a token is for a replica or a witness"},
	{"P", "replica set S mode=async", exitUsage, "expected an option"},
	{"P", "replica set S availability_mode=ASYNC", exitUsage, "expected SYNCHRONOUS_COMMIT"},
	{"P", "replica set S availability_mode", exitUsage, "is not OPTION=VALUE"},
	{"P", "replica set n9 failover_mode=MANUAL", exitUsage, "its replicas are"},
	{"P", "replica remove P", exitRefused, "it is the primary"},
	{"P", "replica add S", exitUsage, "already"},
	{"P", "replica seed P --full", exitRefused, "P is the primary"},
	{"P", "replica seed n9 --watch", exitUsage, "the group has no replica n9 (see coterie status)"},
	{"P", "replica seed S --from relative/path", exitUsage, "absolute path"},
	{"P", "replica resume n9", exitUsage, "the group has no member n9"},
	{"P", "replica resume S", 0, "S is not suspended, and its copy is trusted; nothing was changed"},
	{"P", "replica resume P", 0, "P is not suspended"},
	{"P", "group set foo=bar", exitUsage, "expected an option"},
	{"P", "group set lease_profile=turbo", exitUsage, "expected DEFAULT, FAST or WAN"},
	{"P", "group set required_synchronized_secondaries_to_commit=7", exitUsage, "would stop every commit"},
	{"P", "routing set --when-primary P --list n9", exitUsage, "of the routing list"},
	{"P", "routing set --list S", exitUsage, "--when-primary NAME and --list LIST"},
	{"P", "listener add x 99999", exitUsage, "a port from 1 to 65535"},
	{"P", "listener add x --ip 10.0.0.300/24", exitUsage, "is no address of a subnet"},
	{"P", "settings set work_mem", exitUsage, "NAME=VALUE"},
	{"P", "settings set nosuch=1", exitUsage, "unrecognized configuration parameter"},
	{"P", "settings set fsync=off", exitRefused, "is set by the agent"},
	{"P", "settings get nosuch", exitUsage, "has a setting nosuch"},
	{"P", "settings", 0, "the group has no settings of PostgreSQL"},
	{"P", "restart S", exitUsage, "coterie restart --postgres S"},
	{"P", "restart --pending", exitUsage, "coterie restart --postgres --pending"},
	{"P", "restart --postgres n9", exitUsage, "the group has no member n9"},
	{"P", "restart --postgres W", exitRefused, "W is a witness, which has no PostgreSQL"},
	{"W", "restart --postgres", exitRefused, "W is a witness, which has no PostgreSQL"},
	{"P", "restart --postgres --pending", 0, "no server waits for a restart"},
	{"P", "explain --epoch 99", exitUsage, "known are"},
	{"P", "set", exitUsage, "nothing to set"},
	{"P", "check nosucharea", exitUsage, "choose from"},
	{"P", "check link P n9", exitUsage, "the group has no member n9"},
	{"P", "database remove nosuch", exitUsage, "its databases are"},
	{"P", "recover lead --yes", exitRefused, "agent"},
	{"P", "release", exitRefused, "runs no adopted cluster"},
	{"P", "leave", exitRefused, "coterie failover --to S"},
	{"S", "leave", exitRefused, "--leave-one-copy"},
	{"P", "destroy", exitRefused, "--this-node"},
	{"P", "join garbage", exitUsage, "this is not a whole join token"},
	{"P", "maintenance on n9", exitUsage, "its replicas are"},
	{"P", "maintenance on P", exitRefused, "make another replica the primary first"},
	{"P", "maintenance off", 0, "no maintenance is under way"},
	{"P", "maintenance off", 0, "was not under maintenance: nothing was changed"},
	{"P", "maintenance off S", 0, "S was not under maintenance: nothing was changed"},
	{"P", "replica resume P --trust", 0, "P is not suspended, and its copy is trusted; nothing was changed"},
	{"P", "settings reset work_mem", exitUsage, "has no command"},
	{"P", "status --check", 0, "healthy"},
	{"S", "status --check", 0, "healthy"},
	{"W", "status --check", 0, "healthy"},
}

// TestEndToEndTyped types all that on the members of a group. Each answer says what is to be done, has no words of
// libraries, and has the documented exit code; nothing has changed at the end.
func TestEndToEndTyped(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Replicas: 2, Witness: true})
	s := g.ready(t)
	names := map[string]string{"P": *s.Primary, "S": secondaries(s)[0], "W": "w"}
	word := func(text string) string {
		out := strings.Fields(text)
		for i, w := range out {
			for short, name := range names {
				if bare := strings.TrimRight(w, ";,."); bare == short {
					out[i] = name + w[len(bare):]
				}
			}
		}
		return strings.Join(out, " ")
	}
	if a := coterie(t, "sql", "-c", "SET application_name = 'x'; BEGIN; SELECT @@TRANCOUNT AS n; SHOW application_name", "--node", g.node(names["P"])); a.code != 0 || a.out != "n\n1\napplication_name\nx\n" {
		t.Errorf("a run is no session: %d, %s%s", a.code, a.out, a.err)
	}
	before := optionsOf(t, g.node(names["P"]))
	for _, x := range mistyped {
		a := coterie(t, append(strings.Fields(word(x.line)), "--node", g.node(names[x.on]))...)
		said := a.out + a.err
		if a.code != x.code || !strings.Contains(said, word(x.says)) {
			t.Errorf("on %s: %s: exit code %d, wanted %d and %q: %s", x.on, x.line, a.code, x.code, word(x.says), said)
		}
		for _, bad := range []string{"panic", "goroutine", "%!", "strconv", "time: ", "dial unix", "context deadline", "rpc error", "Msg "} {
			if strings.Contains(said, bad) {
				t.Errorf("on %s: %s: the answer has %q: %s", x.on, x.line, bad, said)
			}
		}
	}
	for _, line := range []string{"status", "member list", "group show", "replica list", "routing show", "listener show", "database list", "settings", "settings diff", "explain", "maintenance", "check quorum"} {
		for _, on := range names {
			if a := coterie(t, append(strings.Fields(line), "--json", "--node", g.node(on))...); a.code != 0 || !json.Valid([]byte(a.out)) {
				t.Errorf("on %s: %s --json: exit code %d, no document: %s%s", on, line, a.code, a.out, a.err)
			}
		}
	}
	if now := g.ready(t); now.Epoch != s.Epoch || *now.Primary != *s.Primary || len(now.Replicas) != len(s.Replicas) {
		t.Errorf("what was typed changed the group: %+v", now)
	}
	if after := optionsOf(t, g.node(names["P"])); after != before {
		t.Errorf("what was typed changed the options:\n%s\n%s", before, after)
	}
	g.down(t)
}

// optionsOf returns the options of the group and of its replicas, as a node knows them.
func optionsOf(t *testing.T, node string) string {
	t.Helper()
	return must(t, "sql", "-c", "SELECT replica, option, value FROM coterie.options WHERE is_set ORDER BY 1, 2", "--json", "--node", node).out
}
