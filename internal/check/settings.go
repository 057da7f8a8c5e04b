package check

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/config"
)

// serverSetting is a setting of a server, as the console shows it.
type serverSetting struct {
	node, name, value string
	pending           bool   // another value waits for a restart
	source            string // where the value is from, or why the server keeps it
}

// settingsThatDiffer selects the settings whose values differ between servers, and those that wait for a restart.
const settingsThatDiffer = `SELECT node, name, value, pending_restart, source FROM coterie.settings WHERE pending_restart
OR name IN (SELECT name FROM coterie.settings GROUP BY name HAVING count(DISTINCT value) > 1) ORDER BY name, node`

// FindSettings compares the settings of the group's servers.
func FindSettings(ctx context.Context, dir string) ([]Finding, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if found, err := absent(l); found != nil || err != nil {
		return found, err
	}
	cl := api.NewClient(l.AgentSock(), l.Owner())
	rows, err := rowsOf(ctx, cl, settingsThatDiffer)
	if err != nil {
		return nil, err
	}
	var all []serverSetting
	for _, r := range rows {
		all = append(all, serverSetting{fmt.Sprint(r[0]), fmt.Sprint(r[1]), fmt.Sprint(r[2]), r[3] == true, fmt.Sprint(r[4])})
	}
	who, err := rowsOf(ctx, cl, serversThatCount)
	if err != nil {
		return nil, err
	}
	primary, compared := "", 0
	var out []Finding
	for _, r := range who {
		if isTrue(r[1]) {
			primary = fmt.Sprint(r[0])
		}
		if isTrue(r[2]) {
			compared++
			continue
		}
		out = append(out, Finding{Level: Warning, What: fmt.Sprintf("%v does not say what its settings are", r[0]), Why: "its server does not answer", Run: "coterie status"})
	}
	found, err := findReserved(ctx, cl)
	if err != nil {
		return nil, err
	}
	found = append(found, judgeSettings(all, primary)...)
	if len(found) == 0 && compared > 1 {
		found = []Finding{{Level: OK, What: fmt.Sprintf("the servers of %d replicas have the same settings", compared)}}
	}
	if st, err := cl.Status(ctx); err == nil {
		found = append(found, judgeLog(st)...)
	}
	return append(out, found...), nil
}

// serversThatCount selects the replicas with data, whether each is the primary, and whether it tells its settings. The
// brackets make a comparison of the second column: without them it is a name for 'PRIMARY', as in T-SQL.
const serversThatCount = `SELECT name, (role = 'PRIMARY'), EXISTS (SELECT 1 FROM coterie.settings s WHERE s.node = r.name) FROM coterie.replicas r
WHERE availability_mode <> 'CONFIGURATION_ONLY' AND join_state = 'JOINED' ORDER BY name`

// judgeLog returns a finding if the node's server does not log cancelled waits where the agent reads them.
func judgeLog(s api.Status) []Finding {
	if s.LogWeakness == "" {
		return nil
	}
	what, run, _ := strings.Cut(s.LogWeakness, "; ")
	return []Finding{{
		Level: Warning, What: fmt.Sprintf("the log of %s does not tell of cancelled waits: %s", s.Node, what),
		Why: "as primary it has each commit confirmed by the secondaries once more before it answers, which takes longer, and reads wait with it", Run: run,
	}}
}

// settingsOfTheGroup selects defaults of synchronous_commit, and entries of settings that belong to the group.
const settingsOfTheGroup = `SELECT DISTINCT name, value FROM coterie.settings
WHERE name = 'synchronous_commit' OR name LIKE 'synchronous_commit of %' OR name LIKE '% written in %' ORDER BY name`

// findReserved returns a finding for each default with which commits are acknowledged before a secondary has them, and
// for each entry in a configuration file that has no effect because the agent decides the setting.
func findReserved(ctx context.Context, cl *api.Client) ([]Finding, error) {
	rows, err := rowsOf(ctx, cl, settingsOfTheGroup)
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, r := range rows {
		if f, bad := judgeReserved(fmt.Sprint(r[0]), fmt.Sprint(r[1])); bad {
			out = append(out, f)
		}
	}
	return out, nil
}

// judgeReserved returns the finding about one of settingsOfTheGroup; bad is false if there is none.
func judgeReserved(name, value string) (f Finding, bad bool) {
	if entry, file, is := strings.Cut(name, " written in "); is {
		return Finding{
			Level: Warning, What: fmt.Sprintf("%s is set in %s, and has no effect", entry, file), Why: "the setting belongs to the availability group: the agent sets it",
			Run: "remove the line from " + file,
		}, true
	}
	return RelaxedDefault(name, value)
}

// RelaxedDefault returns a finding if a default of synchronous_commit has commits acknowledged before a secondary has
// them. The name is that of the view coterie.settings: synchronous_commit, or synchronous_commit of a role or database.
func RelaxedDefault(name, value string) (f Finding, relaxed bool) {
	if slices.Contains([]string{"on", "remote_apply", "true", "yes", "1"}, strings.ToLower(value)) {
		return Finding{}, false
	}
	of, run := "of every session", "ALTER SYSTEM RESET synchronous_commit, and remove it from postgresql.conf; then SELECT pg_reload_conf()"
	if _, who, is := strings.Cut(name, " of "); is {
		of, run = "of "+who, "ALTER ROLE or ALTER DATABASE … RESET synchronous_commit"
	}
	return Finding{
		Level: Warning, What: fmt.Sprintf("synchronous_commit %s is %s by default", of, value), Why: "their commits are acknowledged before a secondary has them, and a failover loses them",
		Run: run + "; a session that wants it sets it for itself",
	}, true
}

// isTrue reports whether a value of the console is true. Expressions have no boolean type there, so they are numbers.
func isTrue(v any) bool { s := fmt.Sprint(v); return s == "true" || s == "1" }

// atLeastPrimarys are the settings whose value on a standby must be at least the primary's. Otherwise the standby stops
// replaying.
var atLeastPrimarys = []string{"max_connections", "max_locks_per_transaction", "max_prepared_transactions", "max_wal_senders", "max_worker_processes"}

// judgeSettings returns a finding for each setting that differs or waits for a restart. The list is sorted by name.
func judgeSettings(all []serverSetting, primary string) []Finding {
	var out []Finding
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].name == all[0].name {
			n++
		}
		out = append(out, judgeSetting(all[:n], primary)...)
		all = all[n:]
	}
	return out
}

// judgeSetting returns a finding for one setting, given the values of the servers that differ or wait for a restart.
func judgeSetting(of []serverSetting, primary string) []Finding {
	var out []Finding
	name := of[0].name
	var values []string
	different := false
	for _, s := range of {
		values = append(values, fmt.Sprintf("%s on %s", orEmpty(s.value), s.node))
		different = different || s.value != of[0].value
		if s.pending {
			out = append(out, waitsForRestart(s))
		}
	}
	if !different {
		return out
	}
	f := Finding{
		Level: Warning, What: fmt.Sprintf("%s differs: %s", name, strings.Join(values, ", ")), Why: "a replica that takes over serves with its own value",
		Run: "coterie settings set " + name + "=VALUE, which gives it to all",
	}
	switch below := belowPrimary(of, primary); {
	case len(below) > 0:
		f.Level, f.Why = Problem, fmt.Sprintf("a standby with less than the primary %s stops replaying: %s", primary, strings.Join(below, ", "))
		f.Run = "raise it on the secondaries first and restart them: there, systemctl restart coterie"
	case name == "shared_preload_libraries":
		f.Level, f.Why = Problem, "what a library gives is missing, or a server does not start, once another replica leads"
	case strings.HasPrefix(name, "collation version"):
		f.Level, f.Why = Problem, "text sorts differently: indexes on text of a copy are wrong there"
		f.Run = "use the same release of the system on all; meanwhile let only replicas that agree take over"
	case name == "coterie.hba":
		f.Why = "a client that one node admits is refused by another, or by the same one once its coterie.yaml is like the others'"
		f.Run = "coterie hba, which says where each node has its rules from; coterie hba set FILE gives the group one list, and a node follows it that names no file of its own (hba in coterie.yaml)"
	case strings.HasPrefix(name, "coterie."):
		key := strings.TrimPrefix(name, "coterie.")
		f.Why = "a client that one node admits is refused by another"
		f.Run = "make " + key + " in coterie.yaml, or the file that it names, the same on all nodes; then coterie restart there"
	case name == "server_version":
		f.Why = "replicas of one major version may differ for as long as an upgrade takes"
		f.Run = "upgrade the others, the primary last"
	}
	return append(out, f)
}

// waitsForRestart returns the finding for a setting that was changed and is not in force.
func waitsForRestart(s serverSetting) Finding {
	f := Finding{
		Level: Warning, What: fmt.Sprintf("%s of %s was changed, and the change waits for a restart of its server", s.name, s.node),
		Why: "until then " + orEmpty(s.value) + " is in force", Run: "coterie restart --postgres --pending, which restarts one server after the other",
	}
	switch {
	case strings.HasPrefix(s.source, api.KeptWhile+" the primary"):
		f.Why = fmt.Sprintf("%s is %s: no secondary may have less than the primary, which has to restart first", orEmpty(s.value), s.source)
	case strings.HasPrefix(s.source, api.KeptWhile):
		f.Why = fmt.Sprintf("%s is %s", orEmpty(s.value), s.source)
		f.Run = "SELECT * FROM pg_prepared_xacts, and end them; then coterie restart --postgres --pending"
	}
	return f
}

// belowPrimary returns the servers whose value is below the primary's, for the settings of atLeastPrimarys.
func belowPrimary(of []serverSetting, primary string) (below []string) {
	lead := slices.IndexFunc(of, func(s serverSetting) bool { return s.node == primary })
	if lead < 0 || !slices.Contains(atLeastPrimarys, of[0].name) {
		return nil
	}
	least := leading(of[lead].value)
	for _, s := range of {
		if leading(s.value) < least {
			below = append(below, s.node)
		}
	}
	return below
}

var digits = regexp.MustCompile(`^\d+`)

func leading(value string) int {
	n, _ := strconv.Atoi(digits.FindString(value)) // no digits: 0
	return n
}

func orEmpty(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
