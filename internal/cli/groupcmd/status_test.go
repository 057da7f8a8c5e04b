package groupcmd

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// threeNodes is the status of a group whose primary n1 takes writes; n2 is synchronized, n3 behind, and w a witness.
func threeNodes() api.Status {
	behind := int64(3 << 20)
	return api.Status{
		Group: "shop", Node: "n2", Epoch: 7, Phase: ag.PhaseLead, Primary: "n1", WriteOpen: true, Quorum: true, Voters: 4,
		WaitsFor: "1 of n2, n3", FailoverReady: "ready", Timeline: 3,
		Replicas: []api.Replica{
			{Name: "n1", Voter: true, Role: ag.RolePrimary, Mode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Sync: ag.Synchronized, Connected: "CONNECTED", LagBytes: &behind},
			{Name: "n2", Voter: true, Role: ag.RoleSecondary, Mode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Sync: ag.Synchronized, Connected: "CONNECTED", Because: "streams"},
			{Name: "n3", Voter: true, Role: ag.RoleSecondary, Mode: ag.AsynchronousCommit, FailoverMode: ag.Manual, Sync: ag.Synchronizing, Connected: "CONNECTED", LagBytes: &behind, Progress: "rewinding", Suspended: true},
			{Name: "w", Voter: true, Mode: ag.ConfigurationOnly, Connected: "DISCONNECTED"},
		},
	}
}

// answerViews makes the views of the dashboard answer.
func answerViews(a *clitest.Agent) {
	a.OnSQL("FROM coterie.replicas", []string{"name", "failover_ready", "estimated_data_loss", "estimated_recovery"}, []any{"n2", true, 0, 1.5}, []any{"n3", false, 12.25, nil})
	a.OnSQL("dm_hadr_database_replica_cluster_states", []string{"database_name", "replica", "sync", "ready"}, []any{"shop", "n2", "SYNCHRONIZED", true})
	a.OnSQL("pending_restart", []string{"node", "name", "value", "pending_restart"}, []any{"n1", "synchronous_commit", "on", false},
		[]any{"n3", "max_connections", "200", true}, []any{"n3", "wal_level", "logical", true})
	a.OnSQL("FROM coterie.continuity", []string{"n", "f", "d", "s"}, []any{12, 11, 8, 9})
	a.OnSQL("FROM coterie.backup", make([]string, 11))
	a.OnSQL("FROM coterie.policies", []string{"severity", "policy", "target", "finding"}, []any{"Critical", "Replica Connection State", "w", "w is not connected"})
}

// line returns the line of a text that begins with the word, with single spaces.
func line(text, word string) string {
	for l := range strings.Lines(text) {
		if f := strings.Fields(l); len(f) > 0 && f[0] == word {
			return strings.Join(f, " ")
		}
	}
	return ""
}

// TestStatusOfArchive holds that an archive which takes nothing is a problem of the group on every node.
func TestStatusOfArchive(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	answerViews(a)
	a.OnSQL("FROM coterie.backup", make([]string, 11), []any{"n1", "05", "2026-11-26 09:00:00Z", "06", "2026-11-26 12:00:00Z", 412, "2026-11-26 09:00:00Z", 412 << 24, 2 << 20, 20 << 30, "the repository /backup is full"})
	r := clitest.Run(t, Status(), a.Layout.Dir)
	text := strings.Join(strings.Fields(r.Out), " ")
	for _, part := range []string{
		"Warning archiving fails on n1 since 2026-11-26 09:00:00Z", "because the repository /backup is full; 412 segments wait, 6.4 GiB on its disk, which has 20.0 GiB free and is full in 2 h",
		"run: make room in the repository", "coterie backup disable on n1 gives that WAL up",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, r.Out)
		}
	}
}

// TestStatusOfBackups holds that the status tells on which replica the last backup was made, and where the next one is.
func TestStatusOfBackups(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	answerViews(a)
	for want, rows := range map[string][][]any{
		"backups: the last, 20261126-120000F, ended":                                       {{"n1", nil, nil, nil, false}, {"n2", "2026-11-26 12:00:00Z", "20261126-120000F", "n3", true}},
		"ago, made on n3; the next one is made on n2":                                      {{"n1", "2026-11-25 12:00:00Z", "20261125-120000F", "n1", false}, {"n2", "2026-11-26 12:00:00Z", "20261126-120000F", "n3", 1}},
		"backups: none yet; no replica can make the next one: coterie backup run says why": {{"n1", nil, nil, nil, false}},
		"is made on n2; a full backup is under way on n2 for":                              {{"n2", nil, nil, nil, true, "full", time.Now().Format(time.RFC3339), 43.25, nil}},
		"s: 43 %":                              {{"n2", nil, nil, nil, true, "full", time.Now().Format(time.RFC3339), 43.25, nil}},
		"s: waiting until its WAL is archived": {{"n2", nil, nil, nil, true, "full", time.Now().Format(time.RFC3339), 100, "waiting until its WAL is archived"}},
		"to be done: a restore from n3 into /scratch was interrupted": {{"n3", nil, nil, nil, false, nil, nil, nil, nil, "/scratch"}},
	} {
		for i := range rows {
			rows[i] = append(rows[i], make([]any, 10-len(rows[i]))...)
		}
		a.OnSQL("SELECT node, last_backup,", make([]string, 10), rows...)
		if r := clitest.Run(t, Status(), a.Layout.Dir); !strings.Contains(strings.Join(strings.Fields(r.Out), " "), want) {
			t.Errorf("no %q in\n%s", want, r.Out)
		}
	}
}

func TestStatusText(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	answerViews(a)
	r := clitest.Run(t, Status(), a.Layout.Dir, "--wide")
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	for word, want := range map[string]string{
		"group":    "group shop primary n1 epoch 7 LEAD timeline 3",
		"quorum":   "quorum ok (4 voters) commits wait for 1 of n2, n3 automatic failover: ready",
		"n1":       "n1 PRIMARY SYNCHRONIZED SYNCHRONOUS_COMMIT AUTOMATIC 0:0/0 - - - - CONNECTED", // a primary is behind nobody
		"n2":       "n2 * SECONDARY SYNCHRONIZED SYNCHRONOUS_COMMIT AUTOMATIC 0:0/0 - No Data Loss 0s 1.5s CONNECTED streams",
		"n3":       "n3 SECONDARY SYNCHRONIZING (SUSPENDED) ASYNCHRONOUS_COMMIT MANUAL 0:0/0 3.0 MiB Data Loss 12.25s - CONNECTED rewinding",
		"w":        "w witness - - - - - - - DISCONNECTED",
		"shop":     "shop n2 SYNCHRONIZED No Data Loss",
		"Critical": "Critical Replica Connection State w w is not connected",
		"of":       "of the primary's 12 sessions a planned failover would keep 11, the death of its node 8, of its PostgreSQL alone 9 (coterie check continuity)",
	} {
		if got := line(r.Out, word); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

// TestNamesStayInTheirLine checks that no name, and no text of a server, makes a line or a column of a status, also by
// characters that are not seen.
func TestNamesStayInTheirLine(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	const fake = "x\nn9\tPRIMARY\u202e\u2028y"
	s.Replicas[1].Because, s.WaitsFor, s.Operation = fake, fake, fake
	s.Replicas[1].Concern, s.Replicas[0].Listener = fake, fake
	a.SetStatus(s)
	answerViews(a)
	a.OnSQL("dm_hadr_database_replica_cluster_states", []string{"database_name", "replica", "sync", "ready"}, []any{fake, "n2", "SYNCHRONIZED", true})
	a.OnSQL("FROM coterie.policies", []string{"severity", "policy", "target", "finding"}, []any{"Critical", "P", fake, fake})
	for _, how := range [][]string{{"--wide"}, {}, {"--check"}} {
		r := clitest.Run(t, Status(), a.Layout.Dir, how...)
		if line(r.Out, "n9") != "" || strings.ContainsAny(r.Out, "\u202e\u2028") || line(r.Out, "n2")+line(r.Out, "*")+line(r.Out, "healthy") == "" {
			t.Errorf("%v:\n%s", how, r.Out)
		}
	}
}

// TestWideTellsEachDeath holds that the long status has the list of what each death would lead to.
func TestWideTellsEachDeath(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	s.Availability.Failures = []availability.Failure{
		{Member: "n2", Outcome: availability.Survived, Primary: "n1"}, {Member: "w", Outcome: availability.Gone, Because: "it does not answer"},
	}
	a.SetStatus(s)
	answerViews(a)
	r := clitest.Run(t, Status(), a.Layout.Dir, "--wide")
	want := "DEATH OF   OUTCOME    THEN\nn2         SURVIVED   n1 would lead, and commits would be acknowledged\nw          DOWN       it does not answer\n"
	if !strings.Contains(r.Out, want) {
		t.Errorf("%s\nwant\n%s", r.Out, want)
	}
}

// TestStatusNamesRelaxedDefaults checks that the status says whose commits a failover loses, once for all nodes.
func TestStatusNamesRelaxedDefaults(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	answerViews(a)
	off := func(node string) []any { return []any{node, "synchronous_commit of role batch", "off", false} }
	a.OnSQL("pending_restart", []string{"node", "name", "value", "pending_restart"}, off("n1"), off("n2"), []any{"n1", "synchronous_commit", "on", false})
	r := clitest.Run(t, Status(), a.Layout.Dir)
	if text := strings.Join(strings.Fields(r.Out), " "); strings.Count(text, "not protected: synchronous_commit of role batch is off by default") != 1 || strings.Count(text, "not protected") != 1 {
		t.Error(r.Out)
	}
}

func TestStatusJSON(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	answerViews(a)
	r := clitest.Run(t, Status(), a.Layout.Dir, "--json")
	var d dashboard
	if err := json.Unmarshal([]byte(r.Out), &d); err != nil || r.Err != nil {
		t.Fatalf("%v, %v: %s", err, r.Err, r.Out)
	}
	if d.Group != "shop" || d.Epoch != 7 || len(d.Replicas) != 4 || d.Unknown != "" {
		t.Errorf("%+v", d)
	}
	if len(d.Health) != 2 || d.Health[1].Ready || d.Health[1].Loss == nil || *d.Health[1].Loss != 12.25 || d.Health[1].Recovery != nil {
		t.Errorf("an unknown time is null, not 0: %+v", d.Health)
	}
	if len(d.Databases) != 1 || !d.Databases[0].Ready || len(d.Issues) != 1 || d.Issues[0].Target != "w" {
		t.Errorf("%+v %+v", d.Databases, d.Issues)
	}
}

// TestStatusWithoutWrites checks that a group which takes no writes ends with exit code 3 in every form, after the
// status was printed, and that views which do not answer are said, instead of "no issues".
func TestStatusWithoutWrites(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	s.WriteOpen, s.Quorum, s.External, s.QuorumEndpoints = false, false, 3, []string{"https://e1:2379", "https://e2:2379"}
	s.Operation, s.LogWeakness = "n1 -> n2", "log_destination has no stderr"
	s.Rotation = &api.Rotation{Pin: "0123456789abcdef0123", Phase: ag.RotationIssue, WaitsFor: []ag.ReplicaID{"n3", "w"}}
	s.Replicas[0].Ill, s.Replicas[1].Quarantine, s.Replicas[2].Concern = "its disk is full", "a write was lost", "slow"
	s.Replicas[0].StoodDown, s.Replicas[3].NoVote = "12:00:00", "its disk is slow"
	a.SetStatus(s)
	a.RefuseSQL("", console.Error{State: "57P03", Message: "n3 does not answer"})
	r := clitest.Run(t, Status(), a.Layout.Dir, "--wide")
	if r.Code != 3 || r.Err.Error() != "" {
		t.Errorf("exit code %d, %v", r.Code, r.Err)
	}
	for _, want := range []string{
		"primary none (n1 led last)", "quorum NONE: what follows is what this node saw last, of https://e1:2379 https://e2:2379 (external etcd, members: 3)",
		"under way: failover, n1 -> n2", "n2 confirms each commit once more while it is primary: log_destination has no stderr",
		"rotation of the certificate authority, to 0123456789abcdef…, phase ISSUE (members get certificates of it), waits for n3, w",
		"databases and issues are not known: n3 does not answer", "n1 is ILL: its disk is full", "n2 is under QUARANTINE: a write was lost",
		"n3: slow (no failure at this FAILURE_CONDITION_LEVEL)", "w does not VOTE in the quorum: its disk is slow", "n1 gave up the leadership at 12:00:00",
	} {
		if !strings.Contains(r.Out, want) {
			t.Errorf("nothing of %q in\n%s", want, r.Out)
		}
	}
	if strings.Contains(r.Out, "no issues") {
		t.Error("says that there are no issues, and does not know")
	}
	if r := clitest.Run(t, Status(), a.Layout.Dir, "--json"); r.Code != 3 || !strings.Contains(r.Out, `"views": "n3 does not answer"`) {
		t.Errorf("--json: exit code %d\n%s", r.Code, r.Out)
	}
}

// TestStatusJustAfterTheQuorumIsLost holds that a node which no majority answers says that first, with exit code 3. The
// last report of the primary may be young then, and the member that does not answer is not the worst of it.
func TestStatusJustAfterTheQuorumIsLost(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	s.Quorum = false
	s.Availability = availability.Report{Level: availability.Degraded, Primary: "n1", Writable: true, Problems: []availability.Problem{
		{Severity: availability.Warning, Target: "w", Finding: "w does not answer", Run: "start it"},
	}}
	a.SetStatus(s)
	answerViews(a)
	const want = "no majority of the quorum answers this node, so it is not known whether n1 still takes writes"
	if r := clitest.Run(t, Status(), a.Layout.Dir, "--check"); r.Code != 3 || r.Out != "DOWN: "+want+"\n" {
		t.Errorf("--check: exit code %d, %q", r.Code, r.Out)
	}
	r := clitest.Run(t, Status(), a.Layout.Dir)
	first := "Critical  " + want
	if r.Code != 3 || !strings.Contains(r.Out, "Group shop   DOWN ") || !strings.Contains(strings.Join(strings.Fields(r.Out), " "), "Problems Critical "+want) || strings.Index(r.Out, first) > strings.Index(r.Out, "w does not answer") {
		t.Errorf("exit code %d\n%s", r.Code, r.Out)
	}
	s.Node = "n1"
	b := clitest.NewAgent(t)
	b.SetStatus(s)
	answerViews(b)
	if r := clitest.Run(t, Status(), b.Layout.Dir, "--check"); r.Code != 3 || r.Out != "DOWN: no majority of the quorum answers this node, which takes no writes any more when its lease ends\n" {
		t.Errorf("on the primary: exit code %d, %q", r.Code, r.Out)
	}
	if r := clitest.Run(t, Status(), a.Layout.Dir, "--json"); r.Code != 3 || !strings.Contains(r.Out, want) || !strings.Contains(r.Out, `"level": "down"`) {
		t.Errorf("--json: exit code %d\n%s", r.Code, r.Out)
	}
}

// TestStatusOfAStoppedPrimary holds that a group without writes is not said to commit without waiting for anybody.
func TestStatusOfAStoppedPrimary(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	s.WriteOpen, s.Quorum, s.WaitsFor, s.Voters = false, false, "no secondary", 3
	a.SetStatus(s)
	answerViews(a)
	r := clitest.Run(t, Status(), a.Layout.Dir)
	if !strings.Contains(r.Out, "No writes, so no commits\nquorum of 3 votes does NOT answer: this is what the node saw last   epoch 7, timeline 3\n") || strings.Contains(r.Out, "no secondary") {
		t.Error(r.Out)
	}
}

// TestStatusOfARemovedNode holds that a node which was removed says so above everything else, and nothing of a group
// that it does not see.
func TestStatusOfARemovedNode(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	s.WriteOpen, s.Quorum, s.Voters, s.Availability.Removed, s.Availability.Level = false, false, 3, true, availability.Down
	a.SetStatus(s)
	answerViews(a)
	r := clitest.Run(t, Status(), a.Layout.Dir)
	if r.Code != 3 || !strings.HasPrefix(r.Out, "Group shop   this node was removed from it: what follows is what it saw last, epoch 7\n") {
		t.Errorf("exit code %d\n%s", r.Code, r.Out)
	}
	for _, other := range []string{"DOWN", "quorum", "ommits", "automatic failover", "NO ANSWER", "no loss", "resolving"} {
		if strings.Contains(r.Out, other) {
			t.Errorf("it speaks of %q\n%s", other, r.Out)
		}
	}
	s.Availability.Problems = []availability.Problem{{Severity: availability.Critical, Finding: "this node is no member of the group any more"}}
	a.SetStatus(s)
	r = clitest.Run(t, Status(), a.Layout.Dir, "--wide")
	if r.Code != 3 || !strings.HasPrefix(r.Out, "group shop   n2 was removed from it: what follows is what it saw last, epoch 7\nthis node is no member of the group any more\n  run: ") || line(r.Out, "n1") != "n1 ? ? SYNCHRONOUS_COMMIT AUTOMATIC ? ? ? ? ? not known" {
		t.Errorf("--wide: exit code %d, %s", r.Code, r.Out)
	}
	for _, other := range []string{"PRIMARY", "quorum", "SYNCHRONIZED", "sessions", "Data Loss", "issues"} {
		if strings.Contains(r.Out, other) {
			t.Errorf("--wide: it speaks of %q\n%s", other, r.Out)
		}
	}
	if r := clitest.Run(t, Status(), a.Layout.Dir, "--check"); r.Code != 3 || r.Out != "not known: this node is no member of the group any more\n" {
		t.Errorf("--check: exit code %d, %q", r.Code, r.Out)
	}
}

// TestStatusOfADroppedDatabase holds that a registered database which is gone is a problem, once for all replicas.
func TestStatusOfADroppedDatabase(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	s.Availability = availability.Report{Level: availability.Healthy, Primary: "n1", Writable: true, Automatic: availability.Ready}
	a.SetStatus(s)
	answerViews(a)
	issue := func(node string) []any {
		return []any{"Warning", databaseJoinPolicy, "stock on " + node, "it is registered, and the server has no such database that takes connections"}
	}
	a.OnSQL("FROM coterie.policies", []string{"severity", "policy", "target", "finding"}, issue("n1"), issue("n2"))
	r := clitest.Run(t, Status(), a.Layout.Dir)
	if strings.Count(r.Out, "the database stock is registered") != 1 || !strings.Contains(r.Out, "coterie database remove stock") || strings.Contains(r.Out, "no problems") {
		t.Error(r.Out)
	}
	if !strings.Contains(r.Out, "degraded") || strings.Contains(r.Out, "healthy") {
		t.Errorf("a problem is shown of a group that is called healthy:\n%s", r.Out)
	}
	if r := clitest.Run(t, Status(), a.Layout.Dir, "--check"); !errors.Is(r.Err, cli.ExitError{Code: 5}) || !strings.HasPrefix(r.Out, "degraded: the database stock is registered") {
		t.Errorf("--check: exit code %d, %q", r.Code, r.Out)
	}
}

func TestStatusOfNoGroupYet(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Draft: true, Primary: "n1", WriteOpen: true, Quorum: true, Replicas: []api.Replica{{Name: "n2", Join: ag.NotJoined, Suspended: true}}})
	a.OnSQL("", []string{"none"})
	r := clitest.Run(t, Status(), a.Layout.Dir, "--wide")
	if r.Err != nil || !strings.Contains(r.Out, "no group yet: CREATE AVAILABILITY GROUP makes it, in coterie sql on n1") || !strings.Contains(r.Out, "("+string(ag.NotJoined)+")") ||
		strings.Contains(r.Out, "SUSPENDED") || strings.Contains(r.Out, "no issues") {
		t.Errorf("%v\n%s", r.Err, r.Out)
	}
}

// TestWatch checks that each page takes the place of the last one, that a page also tells that the agent is gone, and
// that the end of the context is a regular end.
func TestWatch(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	s.Replicas[0].Because = "\x1b[31mred"
	a.SetStatus(s)
	a.OnSQL("", []string{"none"})
	ctx, cancel := context.WithCancel(t.Context())
	a.OnSQL("FROM coterie.policies", []string{"severity", "policy", "target", "finding"})
	defer cancel()
	go func() {
		_ = retry.Until(ctx, time.Millisecond, func() (bool, error) { return len(a.Asked("SQL")) >= 3, nil }) // or the test has ended
		cancel()
	}()
	r := clitest.RunIn(ctx, Status(), a.Layout.Dir, "--watch")
	if r.Err != nil || !strings.HasPrefix(r.Out, "\x1b[H") || !strings.Contains(r.Out, "every second until Ctrl-C\x1b[K\x1b[J") {
		t.Errorf("%v: %q", r.Err, r.Out)
	}
	if strings.Contains(r.Out, "\x1b[31m") {
		t.Error("a name moves the terminal's cursor")
	}
}

// TestNoAgent checks that every command of the group names the command that starts the agent, with exit code 3, and
// that a directory without a node is a usage error.
func TestNoAgent(t *testing.T) {
	t.Parallel()
	dir := clitest.NewStopped(t)
	for name, args := range map[string][]string{
		"status": nil, "failover": {"--to", "n2"}, "resume": {"n2"}, "seed": {"n2"}, "set": {"--required", "1"}, "explain": nil,
		"database": {"list"}, "ca": {"rotate"}, "group": {"show"}, "replica": {"add", "n2"}, "routing": {"show"}, "listener": {"show"},
	} {
		for where, want := range map[string]struct {
			code int
			says string
		}{dir: {3, "start it with: coterie agent --node " + dir}, dir + "/none": {2, "there is no node directory"}} {
			c := commands()[name]
			clitest.Run(t, c, where, args...).Refused(t, want.code, want.says)
		}
	}
}

// TestStatusShort holds what people see: within 100 columns, the root cause first, and the exit codes.
func TestStatusShort(t *testing.T) {
	t.Parallel()
	base := func() api.Status {
		s := threeNodes()
		s.Version, s.Voters, s.WaitsFor = "15.18", 3, "1 of n2, n3"
		for i, r := range s.Replicas {
			s.Replicas[i].Endpoint = "10.0.0." + string(rune('1'+i)) + ":5022"
			if r.Mode != ag.ConfigurationOnly {
				s.Replicas[i].Listener, s.Replicas[i].ReadOnly = "10.0.0."+string(rune('1'+i))+":5432", "10.0.0."+string(rune('1'+i))+":5433"
			}
		}
		s.Replicas[2].Progress, s.Replicas[2].Suspended, s.Replicas[3].Connected = "", false, "CONNECTED"
		s.Replicas[1].Allow, s.Replicas[3].Voter = ag.AllowNo, false
		s.Availability = availability.Report{Level: availability.Healthy, Primary: "n1", Writable: true, Automatic: availability.Ready}
		return s
	}
	deaths := func(of ...availability.Outcome) (out []availability.Failure) {
		for i, o := range of {
			out = append(out, availability.Failure{Member: base().Replicas[i].Name, Outcome: o, Because: "and why"})
		}
		return out
	}
	degraded, down := base(), base()
	degraded.Replicas[3].Connected, degraded.Availability.Level = "DISCONNECTED", availability.Degraded
	degraded.Availability.Problems = []availability.Problem{{Severity: availability.Warning, Target: "w", Finding: "w does not answer for 10 s", Run: "on w: systemctl status coterie, or start its agent"}}
	down.FailoverReady = "not ready: and why"
	down.Availability = availability.Report{Level: availability.Down, Primary: "n1", Writable: true, Blocked: true, Problems: []availability.Problem{{
		Severity: availability.Critical, Target: "shop", Run: "start the secondaries that do not acknowledge; coterie explain",
		Finding: "no commit is acknowledged for 20 s: commits wait for 1 of n2, n3, and n2, n3 do not acknowledge; REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT asks for 1",
	}}}
	degraded.Availability.Failures = deaths(availability.Survived, availability.Blocked, availability.Survived, availability.Gone)
	down.Availability.Failures = deaths(availability.Blocked, availability.Blocked, availability.Survived)
	healthy, alone := base(), base()
	healthy.Availability.Failures = deaths(availability.Survived, availability.Survived, availability.Survived, availability.Survived)
	alone.Availability.Failures = deaths(availability.Stops)
	alone.FailoverReady, alone.Voters, alone.WaitsFor, alone.Replicas = "not ready: no secondary is synchronized", 1, "no secondary", alone.Replicas[:1]
	const connect = `Connect  postgresql://10.0.0.1:5432,10.0.0.2:5432,10.0.0.3:5432/
to read  postgresql://10.0.0.1:5433,10.0.0.2:5433,10.0.0.3:5433/

`
	for name, c := range map[string]struct {
		s           api.Status
		want, check string
		code        int // of --check
	}{
		"healthy": {healthy, `Group shop   healthy   primary n1   PostgreSQL 15.18   automatic failover: ready
Commits wait for 1 of n2, n3   quorum of 3 votes   epoch 7, timeline 3
The group survives the death of any one of n1, n2, n3, w
` + connect + `  NAME  ROLE       STATE    HOST           SYNC   LAG      FAILOVER TO IT  NOTE
  n1    primary    running  10.0.0.1:5432  -      -        -
* n2    secondary  running  10.0.0.2:5432  sync   ?        no loss, 1 s    no readers
  n3    secondary  running  10.0.0.3:5432  async  3.0 MiB  may lose data   restart pending, manual
  w     witness    running  10.0.0.4:5022  -      -        -               no vote

no problems
`, "healthy", 0},
		"alone": {alone, `Group shop   healthy   primary n1   PostgreSQL 15.18   automatic failover: NOT READY
Commits wait for no secondary   quorum of 1 vote   epoch 7, timeline 3
The group does not survive the death of n1: no primary would take writes
Connect  postgresql://10.0.0.1:5432/
to read  postgresql://10.0.0.1:5433/

  NAME  ROLE     STATE    HOST           SYNC  LAG  FAILOVER TO IT  NOTE
  n1    primary  running  10.0.0.1:5432  -     -    -

no problems
automatic failover is not ready: no secondary is synchronized
`, "healthy", 0},
		"degraded": {degraded, `Group shop   degraded   primary n1   PostgreSQL 15.18   automatic failover: ready
Commits wait for 1 of n2, n3   quorum of 3 votes   epoch 7, timeline 3
The group survives the death of any one of n1, n3; not of n2: commits would wait
` + connect + `  NAME  ROLE       STATE      HOST           SYNC   LAG      FAILOVER TO IT  NOTE
  n1    primary    running    10.0.0.1:5432  -      -        -
* n2    secondary  running    10.0.0.2:5432  sync   ?        no loss, 1 s    no readers
  n3    secondary  running    10.0.0.3:5432  async  3.0 MiB  may lose data   restart pending, manual
  w     witness    NO ANSWER  10.0.0.4:5022  -      -        -

Problems
  Warning  w does not answer for 10 s
            run: on w: systemctl status coterie, or start its agent
`, "degraded: w does not answer for 10 s", 5},
		"down": {down, `Group shop   DOWN   primary n1   PostgreSQL 15.18   automatic failover: NOT READY
Commits wait for 1 of n2, n3   quorum of 3 votes   epoch 7, timeline 3
` + connect + `  NAME  ROLE       STATE    HOST           SYNC   LAG      FAILOVER TO IT  NOTE
  n1    primary    running  10.0.0.1:5432  -      -        -
* n2    secondary  running  10.0.0.2:5432  sync   ?        no loss, 1 s    no readers
  n3    secondary  running  10.0.0.3:5432  async  3.0 MiB  may lose data   restart pending, manual
  w     witness    running  10.0.0.4:5022  -      -        -               no vote

Problems
  Critical  no commit is acknowledged for 20 s: commits wait for 1 of n2, n3, and n2, n3 do not
            acknowledge; REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT asks for 1
            run: start the secondaries that do not acknowledge; coterie explain
`, "DOWN: no commit is acknowledged for 20 s", 3},
	} {
		a := clitest.NewAgent(t)
		a.SetStatus(c.s)
		answerViews(a)
		if r := clitest.Run(t, Status(), a.Layout.Dir); r.Out != c.want || (r.Code == 3) != (c.code == 3) {
			t.Errorf("%s: exit code %d\n%s\nwant\n%s", name, r.Code, r.Out, c.want)
		}
		r := clitest.Run(t, Status(), a.Layout.Dir, "--check")
		code := r.Code
		if other := (cli.ExitError{}); errors.As(r.Err, &other) {
			code = other.Code
		}
		if code != c.code || !strings.HasPrefix(r.Out, c.check) || strings.Count(r.Out, "\n") != 1 {
			t.Errorf("%s --check: exit code %d, %q", name, code, r.Out)
		}
	}
}

// TestResumeOfOneThatFollows holds that resuming what is not suspended changes nothing, and says so.
// TestStatusSaysSinceWhenThePrimaryLeads holds that it does so within the width of a screen, and in full in long lines.
func TestStatusSaysSinceWhenThePrimaryLeads(t *testing.T) {
	t.Parallel()
	earlier := time.Date(2020, 2, 3, 4, 5, 6, 0, time.Local)
	for name, tt := range map[string]struct {
		group, waits string
		since        *time.Time
		want         string // a part of the first two lines
	}{
		"not known": {"shop", "1 of n2, n3", nil, "primary n1   PostgreSQL"},
		"earlier":   {"s", "1 of n2, n3", &earlier, "primary n1 since 2020-02-03 04:05   PostgreSQL"},
		"less room": {"shop", "1 of n2, n3", &earlier, "primary n1 since 2020-02-03   PostgreSQL"},
		"line two":  {"the group of the orders", "1 of n2", &earlier, "epoch 7, timeline 3, primary since 2020-02-03"},
		"no room":   {"the group of the orders", "1 of n2, n3, n4, n5, n6, n7", &earlier, "epoch 7, timeline 3\n"},
	} {
		a := clitest.NewAgent(t)
		s := threeNodes()
		s.Group, s.Version, s.WaitsFor, s.PrimarySince = tt.group, "15.18", tt.waits, tt.since
		s.Availability = availability.Report{Level: availability.Healthy, Primary: "n1", Writable: true, Automatic: availability.Ready}
		a.SetStatus(s)
		answerViews(a)
		r := clitest.Run(t, Status(), a.Layout.Dir)
		head := strings.Join(strings.SplitAfter(r.Out, "\n")[:2], "")
		if since := strings.Contains(head, "since 2020"); !strings.Contains(head, tt.want) || strings.Contains(tt.want, "since 2020") != since || since && len(head) > 202 {
			t.Errorf("%s: no %q within 100 columns in\n%s", name, tt.want, head)
		}
		r = clitest.Run(t, Status(), a.Layout.Dir, "--wide")
		if want := "primary n1 since 2020-02-03 04:05:06   epoch"; strings.Contains(r.Out, want) != (tt.since != nil) {
			t.Errorf("%s: %q, in --wide\n%s", name, want, r.Out)
		}
		r = clitest.Run(t, Status(), a.Layout.Dir, "--json")
		if strings.Contains(r.Out, `"primary_since": "2020-`) != (tt.since != nil) {
			t.Errorf("%s: --json\n%s", name, r.Out)
		}
	}
	now := time.Now()
	if got, want := since(api.Status{PrimarySince: &now}, now, sinceLayouts[0]), " since "+now.Format(time.TimeOnly); got != want {
		t.Errorf("today: %q, want %q", got, want)
	}
}

func TestResumeOfOneThatFollows(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	if r := clitest.Run(t, Resume(), a.Layout.Dir, "n2"); r.Err != nil || !strings.Contains(r.Said, "n2 is not suspended, and its copy is trusted; nothing was changed") || len(a.Asked("Resume")) != 0 {
		t.Errorf("%v, %q", r.Err, r.Said)
	}
}

// TestStatusOfAPausedAgent holds that an agent whose socket takes the question and gives no answer is said to hang, and
// that nobody is sent back to the command that has just been run.
func TestStatusOfAPausedAgent(t *testing.T) { // not beside others: theirs is the only node that is found
	l := clitest.NewNode(t)
	if err := os.WriteFile(filepath.Join(l.Dir, config.File), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	paused, err := net.Listen("unix", l.AgentSock()) // the kernel accepts, as for a process that is stopped
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = paused.Close() }()
	r := clitest.Run(t, Status(), l.Dir)
	r.Refused(t, 3, "runs and has not answered within 2s: it is paused, or its machine hangs; run this on another member")
}

// TestFailoverToUnderMaintenance holds that no failover is promised to a replica to which it is refused.
func TestFailoverToUnderMaintenance(t *testing.T) {
	t.Parallel()
	second := 0.5
	d := dashboard{Health: []replicaHealth{{Replica: "n2", Ready: true, Recovery: &second}}}
	r := api.Replica{Name: "n2", Role: ag.RoleSecondary, Connected: "CONNECTED"}
	if got := d.failoverTo(r); got != "no loss, < 1 s" {
		t.Error(got)
	}
	r.Maintenance = &ag.Maintenance{}
	if got := d.failoverTo(r); got != "refused" {
		t.Error(got)
	}
}

// TestStatesAreWordsOfAState holds that what a node does is told as its state, and not as an order.
func TestStatesAreWordsOfAState(t *testing.T) {
	t.Parallel()
	for busy, want := range map[string]string{"start": "starting", "seed": "copying", "hand-over": "handing over", "sync": "setting sync", "": "running"} {
		if got := state(api.Replica{Connected: "CONNECTED", Busy: busy}); got != want {
			t.Errorf("%s: %s, want %s", busy, got, want)
		}
	}
}

// TestViewsThatAreLate holds that a status whose views are late says that, and nothing of how far something came.
func TestViewsThatAreLate(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	a.DelaySQL("SELECT")
	r := clitest.Run(t, Status(), a.Layout.Dir)
	if !strings.Contains(r.Out, "not known: the views have not answered within 3s") || strings.Contains(r.Out, "how far") {
		t.Errorf("%v\n%s", r.Err, r.Out)
	}
}

// TestFailoverToAPartialCopy holds that a failover to a copy that is not whole is said to be refused, as it is.
func TestFailoverToAPartialCopy(t *testing.T) {
	t.Parallel()
	for data, want := range map[ag.DataState]string{ag.DataPartial: "refused", ag.DataEmpty: "refused", ag.DataPresent: "may lose data"} {
		d := dashboard{Health: []replicaHealth{{Replica: "n2"}}}
		if got := d.failoverTo(api.Replica{Name: "n2", Connected: "CONNECTED", Data: data}); got != want {
			t.Errorf("%s: %q, want %q", data, got, want)
		}
	}
}

// TestLagBehindADeadPrimary holds that a lag behind a primary that does not lead any more is marked as old.
func TestLagBehindADeadPrimary(t *testing.T) {
	t.Parallel()
	for primary, want := range map[ag.ReplicaID]string{"n1": "0 B", "": "0 B, as last heard"} {
		d := dashboard{Status: api.Status{Availability: availability.Report{Level: availability.Down, Primary: primary}}}
		if got := d.lag(api.Replica{Name: "n2", Role: ag.RoleSecondary, Connected: "CONNECTED", LagBytes: new(int64)}); got != want {
			t.Errorf("primary %q: %q, want %q", primary, got, want)
		}
	}
}
