package layout

import (
	"slices"
	"strings"
	"testing"
)

// rule lists the packages of this module that those below a folder may import, with the reason.
type rule struct {
	folder string   // the longest folder that contains a package decides
	may    []string // folders whose packages it may import; "x/" is everything below x, "x" is x alone
	why    string
}

// leaves are what any package may import: the vocabulary, the configuration of a node, and small libraries.
var leaves = []string{"ag", "ag/availability", "config", "lib/"}

// rules are the import rules of the tree. Test files are free, except where TestCoreIsPure says otherwise.
var rules = []rule{
	{"ag", nil, "the decision is pure: it can be replayed and explored"},
	{"ag/recovery", []string{"ag"}, "making a lost record anew is as pure as deciding on one"},
	{"ag/major", []string{"ag"}, "the passage of a group from one cluster to another is as pure as deciding on one"},
	{"ag/availability", []string{"ag"}, "a judgement of the group asks the decision, and nothing else"},
	{"ag/planguard", []string{"ag"}, "a check of decisions is as pure as they are"},
	{"ag/silence", nil, "a judgement of intervals knows nothing of those who are silent"},
	{"ag/agsim", []string{"ag", "ag/planguard", "ag/recovery"}, "the explorer runs the decision, and asks what a recovery would keep; nothing else"},
	{"lib", []string{"lib/"}, "a library that knows the product is not a library"},
	{"config", []string{"lib/"}, "the layout of a node directory depends on nobody"},

	{
		"agent",
		[]string{"ag", "ag/availability", "ag/planguard", "ag/silence", "agent/decisions", "agent/lease", "agent/liveness", "agent/marks", "agent/preset", "agent/recordguard", "lib/"},
		"the loop sees everything else through ports.go",
	},
	{"agent/decisions", []string{"ag", "ag/availability", "lib/"}, "a record of decisions makes none; an explanation has the judgement of the node that was asked"},
	{"agent/lease", []string{"ag", "lib/"}, "the right to act depends on the store and the clock alone"},
	{"agent/liveness", []string{"ag", "ag/silence", "lib/"}, "signs of life prove nothing about data"},
	{"agent/marks", []string{"ag", "lib/"}, "files of a node, whatever they are used for"},
	{"agent/preset", []string{"ag", "lib/"}, "a setting knows no failover"},
	{"agent/recordguard", []string{"ag", "agent/marks", "lib/"}, "what was seen before is all that it compares with"},
	{"agent/agenttest", []string{"ag", "agent", "agent/", "lib/"}, "fakes of the agent's ports"},
	{"etcd", leaves, "adapters do not know each other: the consumer declares the interface it needs"},
	{"etcd/standalone", []string{"lib/"}, "an etcd as an administrator runs one"},
	{
		"postgres", append([]string{"postgres/session", "postgres/settings", "postgres/parameters", "postgres/programs", "postgres/pgfiles", "postgres/login", "postgres/diagnose"}, leaves...),
		"adapters do not know each other: the consumer declares the interface it needs",
	},
	{"postgres/session", append([]string{"postgres/settings"}, leaves...), "satellites have a reason of their own to change"},
	{"postgres/settings", []string{"ag", "lib/"}, "text in, text out"},
	{"postgres/parameters", []string{"postgres/settings", "postgres/programs", "lib/"}, "satellites have a reason of their own to change"},
	{"postgres/programs", []string{"lib/"}, "knows no data directory"},
	{"postgres/pgfiles", []string{"ag", "lib/"}, "reads files"},
	{"postgres/pgupgrade", []string{"postgres/programs", "postgres/pgfiles", "postgres/settings", "lib/"}, "knows two directories, and no group"},
	{"postgres/bluegreen", []string{"postgres/programs", "postgres/session", "postgres/settings", "lib/"}, "knows two clusters, and no group"},
	{"postgres/login", append([]string{"postgres/session"}, leaves...), "satellites have a reason of their own to change"},
	{"postgres/diagnose", append([]string{"postgres/session"}, leaves...), "satellites have a reason of their own to change"},
	{"postgres/health", leaves, "probes are functions of its configuration"},
	{"postgres/replication", leaves, "carries bytes that it does not produce"},
	{"postgres/adopt", leaves, "reads a cluster that is not this node's yet"},
	{"postgres/keeper", append([]string{"postgres/keeper/proc", "postgres/keeper/datadir", "postgres/keeper/memlog"}, leaves...), "the parent of the postmaster"},
	{"postgres/keeper/proc", []string{"lib/"}, "processes know no PostgreSQL"},
	{"postgres/keeper/datadir", []string{"lib/"}, "files of a data directory"},
	{"postgres/keeper/memlog", []string{"lib/"}, "a log knows no messages"},
	{"postgres/seeding", append([]string{
		"postgres/seeding/wire", "postgres/seeding/tree", "postgres/seeding/datadir", "postgres/seeding/fileio",
		"postgres/seeding/pagesum", "postgres/seeding/progress",
	}, leaves...), "the target of a copy: it knows what travels, not how the source answers"},
	{"postgres/seeding/source", append([]string{
		"postgres/seeding/wire", "postgres/seeding/datadir", "postgres/seeding/fileio",
		"postgres/seeding/pagesum", "postgres/seeding/progress",
	}, leaves...), "the source of a copy: it knows what travels, not what the target does with it"},
	{
		"postgres/seeding/tree", append([]string{"postgres/seeding/wire", "postgres/seeding/datadir", "postgres/seeding/fileio"}, leaves...),
		"the directory being filled: it knows the list of files, not where chunks come from",
	},
	{"postgres/seeding/datadir", []string{"postgres/seeding/wire", "postgres/seeding/fileio", "lib/"}, "names in a data directory"},
	{"postgres/seeding/wire", append([]string{"postgres/seeding/pagesum"}, leaves...), "what travels knows neither end"},
	{"postgres/seeding/fileio", []string{"lib/"}, "reads files"},
	{"postgres/seeding/pagesum", []string{"ag", "lib/"}, "computes"},
	{"postgres/seeding/progress", []string{"lib/"}, "counts"},
	{"endpoint", append([]string{"endpoint/certs"}, leaves...), "adapters do not know each other: the consumer declares the interface it needs"},
	{"endpoint/certs", leaves, "certificates know no connection"},
	{"endpoint/link", leaves, "a link does not know how its legs are authenticated"},
	{"endpoint/link/linktest", []string{"endpoint/link", "lib/"}, "a link between two ends of one process"},
	{
		"listener",
		[]string{"ag", "config", "lib/", "listener/address", "listener/attempts", "listener/auth", "listener/cancelkey", "listener/clientcert", "listener/continuity", "listener/counters", "listener/encryption", "listener/eventloop", "listener/fingerprint", "listener/gate", "listener/giveback", "listener/guessing", "listener/hba", "listener/hello", "listener/indoubt", "listener/inquiry", "listener/instead", "listener/known", "listener/lag", "listener/login", "listener/lone", "listener/lostblock", "listener/offload", "listener/opening", "listener/passage", "listener/pool", "listener/ports", "listener/preauth", "listener/prospect", "listener/release", "listener/replay", "listener/resume", "listener/routing", "listener/scram", "listener/serverlog", "listener/sessionstate", "listener/socket", "listener/startup", "listener/stmt", "listener/underway", "listener/uring"},
		"adapters do not know each other: the consumer declares the interface it needs",
	},
	{"listener/address", []string{"lib/"}, "an open address knows no client"},
	{"listener/socket", []string{"lib/"}, "a descriptor knows no session"},
	{"listener/eventloop", []string{"lib/", "listener/socket", "listener/uring"}, "a loop does not know what arrives"},
	{"listener/fingerprint", []string{"lib/", "listener/eventloop", "listener/socket", "listener/uring"}, "an answer of the server does not know who asked"},
	{"listener/giveback", []string{"lib/pgwire", "listener/continuity", "listener/socket"}, "an exchange between two nodes does not know for which client"},
	{"listener/lag", leaves, "a measure of copies knows no session"},
	{"listener/cancelkey", []string{"lib/"}, "a key does not know its session"},
	{"listener/attempts", []string{"ag"}, "what is under way does not know for whom"},
	{
		"listener/login",
		[]string{"ag", "lib/", "listener/attempts", "listener/auth", "listener/cancelkey", "listener/counters", "listener/encryption", "listener/eventloop", "listener/fingerprint", "listener/guessing", "listener/hba", "listener/preauth", "listener/routing", "listener/scram", "listener/socket", "listener/startup"},
		"a login ends where its session begins",
	},
	{"listener/auth", []string{"lib/", "listener/clientcert", "listener/hba", "listener/scram"}, "a proof knows neither routes nor sessions"},
	{"listener/preauth", []string{"lib/"}, "a slot does not know what its client says"},
	{"listener/pool", append([]string{"listener/opening", "listener/socket", "listener/stmt"}, leaves...), "a backend that waits does not know for whom"},
	{"listener/opening", leaves, "the opening of a session knows no client"},
	{"listener/clientcert", leaves, "satellites have a reason of their own to change"},
	{"listener/continuity", leaves, "satellites have a reason of their own to change"},
	{"listener/counters", []string{"ag", "lib/pgwire", "listener/continuity", "listener/offload", "listener/pool"}, "a count does not know why it is kept"},
	{"listener/encryption", []string{"lib/pgwire", "listener/clientcert", "listener/eventloop", "listener/scram", "listener/socket"}, "a handshake does not know what is said through it"},
	{"listener/gate", []string{"lib/boottime", "listener/counters", "listener/serverlog", "listener/startup", "listener/stmt"}, "an answer is judged without knowledge of who carries it"},
	{"listener/routing", []string{"ag", "lib/pgwire"}, "pure: a snapshot of the routes in, a decision out"},
	{"listener/guessing", []string{"lib/"}, "a delay does not know how an attempt waits"},
	{"listener/ports", []string{"listener/address", "listener/eventloop"}, "an open port does not know who connects"},
	{"listener/hello", []string{"ag", "lib/pgwire", "listener/giveback", "listener/startup"}, "pure: a session in, parameters out, and back"},
	{"listener/instead", []string{"lib/pgwire", "listener/stmt"}, "pure: bytes of a client do not tell which session sent them"},
	{"listener/prospect", []string{"listener/continuity", "listener/lone", "listener/sessionstate"}, "pure: what is known of a session in, a verdict with its reason out"},
	{"listener/known", []string{"listener/continuity", "listener/indoubt", "listener/stmt"}, "pure: what is known of a state does not know how it was asked for"},
	{"listener/sessionstate", leaves, "satellites have a reason of their own to change"},
	{"listener/hba", leaves, "satellites have a reason of their own to change"},
	{"listener/release", nil, "an order does not know what is ordered"},
	{"listener/replay", []string{"lib/pgwire", "listener/stmt"}, "pure: bytes of a client and a server in, a verdict out"},
	{"listener/indoubt", []string{"ag", "lib/pgwire", "listener/stmt"}, "pure: bytes and facts in, an outcome out"},
	{"listener/lone", []string{"ag", "lib/pgwire", "listener/stmt"}, "pure: bytes of a client in, and what becomes of them out"},
	{
		"listener/underway",
		[]string{"ag", "listener/continuity", "listener/indoubt", "listener/known", "listener/lone", "listener/offload", "listener/prospect", "listener/replay", "listener/sessionstate", "listener/stmt"},
		"what is under way does not know who carries it, nor the next server",
	},
	{
		"listener/inquiry",
		[]string{"ag", "lib/boottime", "listener/continuity", "listener/hello", "listener/known", "listener/prospect", "listener/underway"},
		"a question does not know who carries the session that is asked",
	},
	{
		"listener/passage",
		[]string{"lib/assert", "lib/pgwire", "listener/gate", "listener/giveback", "listener/instead", "listener/lone", "listener/startup", "listener/stmt", "listener/underway"},
		"a chunk of bytes does not know who carries it",
	},
	{"listener/lostblock", []string{"lib/pgwire", "listener/stmt"}, "pure: bytes of a client in, bytes for it out"},
	{
		"listener/resume",
		[]string{"ag", "lib/pgwire", "listener/continuity", "listener/indoubt", "listener/lone", "listener/lostblock", "listener/replay"},
		"what is said to a new server does not know for which client",
	},
	{"listener/scram", leaves, "satellites have a reason of their own to change"},
	{"listener/startup", leaves, "satellites have a reason of their own to change"},
	{"listener/stmt", leaves, "satellites have a reason of their own to change"},
	{"listener/serverlog", leaves, "satellites have a reason of their own to change"},
	{"listener/offload", leaves, "satellites have a reason of their own to change"},
	{"listener/offload/offloadtest", []string{"listener/offload"}, "a look whether the kernel can be used, for tests"},
	{"listener/uring", leaves, "satellites have a reason of their own to change"},
	{"listener/vip", leaves, "satellites have a reason of their own to change"},
	{"admin", leaves, "adapters do not know each other: the consumer declares the interface it needs"},
	{"admin/api", append([]string{"backup"}, leaves...), "requests carry what a backup asks of the primary"},
	{"admin/ddl", []string{"ag", "lib/fail"}, "statements are pure: text in, a changed configuration out; fail is a table"},
	{"admin/scalar", []string{"lib/"}, "functions of values know no query"},
	{"admin/dialect", []string{"lib/"}, "a translation knows neither the views nor their rows"},
	{"admin/catalog", append([]string{"admin/ddl", "admin/dialect", "admin/scalar", "backup"}, leaves...), "views name the options of the statements, and where a backup is made"},
	{"admin/batch", []string{"admin/ddl", "lib/"}, "a script is divided before anything of it is known"},
	{"admin/console", append([]string{"admin/ddl", "admin/dialect", "admin/batch"}, leaves...), "the console parses the statements"},
	{"admin/action", append([]string{"admin/ddl"}, leaves...), "a document becomes a statement, and nothing is run"},
	{"admin/web", append([]string{"admin/action", "admin/api", "admin/console", "admin/ddl"}, leaves...), "a browser gets what the status and the console say"},
	{"backup", []string{"lib/"}, "what is wanted and what is wrong are judged without running anything"},
	{"backup/pgbackrest", []string{"backup", "lib/"}, "a tool knows neither nodes nor commands"},
	{"backup/window", []string{"backup", "lib/"}, "the primary's part knows neither nodes nor how it is asked"},
	{"backup/standin", []string{"backup", "lib/"}, "a secondary's part knows neither nodes nor where the primary is"},
	{"backup/underway", []string{"backup", "config", "lib/"}, "files of a node, whatever is made"},
	{"backup/trial", []string{"backup/underway", "postgres/session", "postgres/settings", "lib/"}, "a private server knows no group and no tool"},
	{"backup/planfile", []string{"backup", "backup/pgbackrest", "config", "lib/"}, "files of a node, whatever they are used for"},
	{"daemon", []string{"config", "lib/"}, "a process knows no group"},
	{
		"node",
		[]string{"node/", "agent", "agent/", "etcd", "etcd/embedded", "postgres", "postgres/", "endpoint", "endpoint/", "listener", "listener/", "admin/", "backup", "ag", "ag/recovery", "config", "lib/"},
		"node joins the adapters, and knows neither commands nor those who make directories",
	},
	{
		"node/clientport",
		[]string{"agent", "admin/catalog", "admin/console", "admin/ddl", "endpoint", "endpoint/certs", "listener", "listener/clientcert", "listener/hba", "listener/serverlog", "listener/vip", "postgres/login", "ag", "config", "lib/"},
		"a service of a node gets what is above it as functions, and knows no other service",
	},
	{
		"node/endorsement",
		[]string{"node/membership", "node/rpc", "agent", "admin/api", "endpoint/certs", "ag", "lib/"},
		"a service of a node gets what is above it as functions, and knows no other service but the calls between nodes",
	},
	{
		"node/backups",
		[]string{"backup", "backup/planfile", "backup/window", "admin/catalog", "postgres", "ag", "config", "lib/"},
		"a service of a node gets what is above it as functions, and knows no other service",
	},
	{"node/backupruns", []string{"backup", "backup/underway", "ag", "lib/"}, "a service of a node gets what is above it as functions, and knows no other service"},
	{"node/fencetime", []string{"postgres/keeper", "ag", "config", "lib/"}, "measures this host, and knows no other service"},
	{"node/membership", []string{"endpoint", "endpoint/certs", "ag", "config", "lib/"}, "looks members up, and knows no other service"},
	{"node/events", []string{"ag", "lib/"}, "tells of events that it does not understand"},
	{"node/webhooks", []string{"node/events", "config", "lib/"}, "posts events that it does not understand"},
	{"node/hooks", []string{"node/events", "ag", "lib/"}, "runs commands for events that it does not understand"},
	{"node/coverage", []string{"listener/continuity", "lib/"}, "keeps sums of what the listener says, and knows no service"},
	{"node/history", []string{"node/metrics", "admin/web", "ag", "lib/"}, "keeps the values of metrics, and knows no service"},
	{
		"node/majors",
		[]string{
			"node/membership", "node/pgserver", "node/rpc", "agent", "agent/marks", "admin/api", "endpoint/certs", "etcd", "postgres/", "ag", "ag/major", "config", "lib/",
		},
		"a service of a node gets what is above it as functions; it makes the cluster that the others then serve",
	},
	{
		"node/metrics",
		[]string{
			"agent", "agent/decisions", "admin/api", "admin/console", "admin/web", "endpoint", "listener", "postgres/replication", "postgres/seeding",
			"ag", "ag/availability", "lib/",
		},
		"names values that others gather: it knows what they are called, and no service",
	},
	{
		"node/operations",
		[]string{
			"node/fencetime", "node/membership", "node/rpc", "node/status", "node/walstream", "agent", "admin/", "endpoint", "endpoint/certs", "etcd",
			"postgres/seeding", "ag", "config", "lib/",
		},
		"administrators stand above everything else on a node: no service below knows it",
	},
	{
		"node/pgserver",
		[]string{"agent", "listener/serverlog", "postgres", "postgres/", "ag", "config", "lib/"},
		"a service of a node gets what is above it as functions, and knows no other service",
	},
	{
		"node/pki",
		[]string{"node/membership", "node/rpc", "agent", "endpoint/certs", "ag", "lib/"},
		"a service of a node gets what is above it as functions, and knows no other service but the calls between nodes",
	},
	{
		"node/quorum",
		[]string{"node/membership", "agent", "endpoint/certs", "etcd", "etcd/embedded", "ag", "ag/recovery", "config", "lib/"},
		"a service of a node gets what is above it as functions, and knows no other service",
	},
	{
		"node/rpc",
		[]string{
			"agent", "agent/decisions", "agent/liveness", "agent/marks", "admin/api", "admin/catalog", "backup", "endpoint", "endpoint/certs", "listener",
			"postgres/login", "postgres/seeding", "ag", "ag/recovery", "lib/",
		},
		"names what travels between nodes, and knows no service",
	},
	{
		"node/seedjobs",
		[]string{"agent", "admin/api", "endpoint", "endpoint/certs", "postgres/seeding", "postgres/seeding/", "ag", "config", "lib/"},
		"a service of a node gets what is above it as functions, and knows no other service",
	},
	{
		"node/status",
		[]string{
			"node/coverage", "node/membership", "node/metrics", "node/rpc", "node/seedjobs", "agent", "agent/decisions", "admin/api", "admin/catalog", "admin/console", "endpoint", "listener",
			"postgres", "postgres/keeper", "postgres/replication", "postgres/seeding", "ag", "ag/availability", "config", "lib/",
		},
		"it shows what the services below it know, and changes nothing",
	},
	{
		"node/walstream",
		[]string{"node/membership", "node/rpc", "agent", "admin/api", "endpoint", "endpoint/", "postgres/replication", "ag", "lib/"},
		"a service of a node gets what is above it as functions, and knows no other service but the calls between nodes",
	},
	{
		"provision",
		[]string{"node", "node/", "agent", "agent/", "ag/recovery", "etcd", "etcd/embedded", "postgres", "postgres/", "endpoint", "endpoint/certs", "daemon", "ag", "config", "lib/"},
		"makes with the adapters what node opens",
	},
	{"provision/preflight", []string{"check", "endpoint", "endpoint/certs", "postgres", "postgres/", "ag", "config", "lib/"}, "there is no group and no node yet"},
	{"check", []string{"backup", "backup/planfile", "node", "node/", "admin/", "etcd", "etcd/embedded", "postgres", "postgres/", "endpoint", "ag", "ag/availability", "config", "lib/"}, "probes look at what a node is made of"},
	{"check/posture", []string{"check", "node/hooks", "node/webhooks", "admin/api", "listener/hba", "listener/clientcert", "postgres/session", "ag", "config", "lib/"}, "judges what a node is exposed to, by what an administrator could look at; its sessions are as the agent's, so that no owner changes them"},
	{"support", []string{"lib/"}, "reads files and removes secrets, and asks nobody"},
	{"cli/supportcmd", []string{"cli", "cli/sqlrun", "support", "admin/api", "admin/console", "config", "lib/"}, "a command parses and prints"},
	{"cli", []string{"admin/api", "ag", "config", "lib/"}, "what commands share"},
	{
		"cli/nodecmd",
		[]string{"cli", "cli/", "node", "node/", "provision", "provision/", "check", "daemon", "admin/", "agent", "etcd", "etcd/embedded", "postgres", "postgres/", "endpoint", "endpoint/certs", "listener/clientcert", "listener/hba", "ag", "config", "lib/"},
		"a command parses and prints",
	},
	{"cli/groupcmd", []string{"postgres/seeding", "postgres/seeding/pagesum", "postgres/seeding/progress", "cli", "cli/", "provision", "provision/", "check", "daemon", "admin/", "agent", "agent/decisions", "ag/availability", "ag/recovery", "endpoint", "endpoint/certs", "ag", "config", "lib/"}, "a command parses and prints"},
	{
		"cli/backupcmd",
		[]string{"backup", "backup/", "cli", "cli/nodecmd", "cli/sqlrun", "admin/api", "admin/ddl", "postgres/session", "ag", "config", "lib/"},
		"a command parses and prints",
	},
	{"cli/clitest", []string{"cli", "admin/", "ag", "backup", "config", "lib/"}, "a fake agent, for tests of commands"},
	{"cli/leavecmd", []string{"cli", "cli/nodecmd", "provision", "postgres/adopt", "admin/api", "ag", "config", "lib/"}, "a command parses and prints"},
	{"cli/membercmd", []string{"cli", "cli/nodecmd", "admin/api", "ag", "endpoint/certs", "lib/"}, "a command parses and prints"},
	{"cli/restartcmd", []string{"cli", "cli/sqlrun", "admin/api", "admin/ddl", "ag", "lib/"}, "a command parses and prints"},
	{"cli/upgradecmd", []string{"cli", "node/majors", "admin/api", "ag", "ag/major", "config", "lib/"}, "a command parses and prints"},
	{"cli/hbacmd", []string{"cli", "cli/sqlrun", "admin/api", "admin/console", "admin/ddl", "ag", "listener/hba", "lib/"}, "a command parses and prints"},
	{"cli/settingscmd", []string{"cli", "cli/sqlrun", "admin/api", "admin/console", "admin/ddl", "ag", "lib/"}, "a command parses and prints"},
	{"cli/maintenancecmd", []string{"cli", "cli/sqlrun", "admin/api", "admin/ddl", "ag", "lib/"}, "a command parses and prints"},
	{"cli/completion", []string{"cli", "cli/sqlrun", "admin/api", "admin/ddl", "lib/"}, "offers words for commands that it does not know"},
	{"cli/mancmd", []string{"cli", "lib/"}, "writes pages of commands that it does not know"},
	{"cli/sqlrun", []string{"cli", "admin/", "ag", "config", "lib/"}, "a command parses and prints"},
	{"cli/checkcmd", []string{"cli", "cli/", "check", "check/", "provision/", "daemon", "admin/", "ag", "config", "lib/"}, "a command parses and prints"},
	{"cli/labcmd", []string{"cli", "cli/", "lab", "lab/", "demo", "bench/", "measure/", "daemon", "ag", "config", "lib/"}, "a command parses and prints"},
	{"cli/benchcmd", []string{"cli", "cli/", "lab", "lab/", "bench/", "measure/", "demo", "daemon", "postgres", "admin/ddl", "lib/", "ag", "config"}, "a command parses and prints"},

	{"lab", []string{"lab/", "admin/api", "daemon", "ag", "config", "lib/"}, "the lab runs the product through its commands"},
	{"lab/adminsocket", []string{"lab", "config", "lib/"}, "a way into the servers of a lab"},
	{"lab/linkem", []string{"lib/"}, "a network knows no product"},
	{"lab/linkem/probe", []string{"lab/linkem", "lib/"}, "measures a link"},
	{"lab/faultfs", []string{"lib/"}, "a disk knows no product"},
	{"lab/faketime", []string{"lib/"}, "a clock knows no product"},
	{"lab/cgroup", []string{"lib/"}, "a share of a machine knows no product"},
	{"lab/pgtest", []string{"lib/"}, "a throw-away server"},
	{"measure", []string{"measure/", "lib/boottime"}, "a mistake of the product must not hide in its own yardstick"},
	{"bench", []string{"bench/", "measure/", "lab/", "lab", "admin/", "daemon", "ag", "config", "lib/"}, "instruments pointed at something"},
	{
		"bench/endpointbench",
		[]string{"bench/", "measure/", "lab/", "lab", "node", "node/", "endpoint", "endpoint/", "postgres", "postgres/", "daemon", "ag", "config", "lib/"},
		"measures the link that node makes of the adapters",
	},
	{"bench/listenerbench", []string{"bench/", "measure/", "lab/", "lab", "listener", "listener/hba", "listener/serverlog", "postgres/login", "daemon", "ag", "config", "lib/"}, "measures the listener"},
	{"bench/seedbench", []string{"bench/", "measure/", "lab/", "lab", "postgres", "postgres/", "endpoint", "ag", "config", "lib/"}, "measures seeding"},
	{"demo", []string{"bench/", "bench", "measure/", "lab/", "lab", "admin/api", "ag", "lib/"}, "a lab under load and its verdict"},
	{"test/majors", []string{"postgres/programs", "postgres/pgupgrade"}, "looks for programs"},
	{"test", nil, "tests have no production code, or none that knows the product"},
}

// proving are the folders that the product never imports.
var proving = []string{"lab", "bench", "demo", "measure", "test"}

// product are the folders that run on a node.
var product = []string{"ag", "agent", "node", "etcd", "postgres", "endpoint", "listener", "admin", "config", "provision", "check", "support", "backup", "daemon", "lib"}

func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

func ruleOf(pkg string) (rule, bool) {
	var best rule
	found := false
	for _, r := range rules {
		if within(pkg, r.folder) && (!found || len(r.folder) > len(best.folder)) {
			best, found = r, true
		}
	}
	return best, found
}

func allowed(r rule, pkg, imported string) bool {
	// Packages of one wing that have no rule of their own do not import each other.
	return imported == pkg || slices.ContainsFunc(r.may, func(m string) bool {
		if below, ok := strings.CutSuffix(m, "/"); ok {
			return strings.HasPrefix(imported, below+"/")
		}
		return imported == m
	})
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		pkg, ok := strings.CutPrefix(p.dir, "internal/")
		if !ok {
			continue
		}
		r, ruled := ruleOf(pkg)
		if !ruled {
			t.Errorf("%s has no import rule: add its folder to rules in %s, with the reason", p.dir, "internal/test/layout/imports_test.go")
			continue
		}
		for _, imported := range p.imports {
			if !allowed(r, pkg, imported) && !excepted(t, "import", pkg+" -> "+imported, 1) {
				t.Errorf("internal/%s imports internal/%s; below internal/%s that is not allowed: %s", pkg, imported, r.folder, r.why)
			}
		}
	}
}

func TestProductDoesNotKnowItsProvingGround(t *testing.T) {
	for _, p := range packages(t) {
		pkg, _ := strings.CutPrefix(p.dir, "internal/")
		if !slices.ContainsFunc(product, func(f string) bool { return within(pkg, f) }) || within(pkg, "agent/agenttest") {
			continue
		}
		for _, imported := range p.imports {
			if slices.ContainsFunc(proving, func(f string) bool { return within(imported, f) }) {
				t.Errorf("internal/%s imports internal/%s: instruments look at the product, it does not know them", pkg, imported)
			}
		}
	}
}

// TestNoCommandIsImported holds that a command is a leaf: only main, and commands of the same kit, may know it.
func TestNoCommandIsImported(t *testing.T) {
	for _, p := range packages(t) {
		pkg, ok := strings.CutPrefix(p.dir, "internal/")
		for _, imported := range p.imports {
			if within(imported, "cli") && !within(pkg, "cli") && p.dir != "cmd/coterie" && ok {
				t.Errorf("%s imports internal/%s: nothing but cmd/coterie imports a command", p.dir, imported)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if strings.HasPrefix(p.dir, "internal/") && !p.documented {
			t.Errorf("%s has no package comment: what it owns, what it must not know, where to start reading", p.dir)
		}
	}
}
