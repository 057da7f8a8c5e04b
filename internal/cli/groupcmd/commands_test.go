package groupcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// commands returns all commands of the package by name, new ones.
func commands() map[string]*cobra.Command {
	out := map[string]*cobra.Command{}
	for _, c := range append(Clauses(), Status(), Failover(), Resume(), Seed(), Set(), Explain(), CA(), Recover()) {
		out[c.Name()] = c
	}
	return out
}

// TestFailoverRefusals checks that a request that makes no sense, or that may lose commits without consent, never
// reaches the agent.
func TestFailoverRefusals(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"--to n2 --drain 0s", 2, "--drain 0s: choose between 1ms and 1h0m0s"},
		{"--to n2 --drain 2h", 2, "--drain 2h0m0s"},
		{"--to n2 --now", 2, "--now belongs to --allow-data-loss"},
		{"--allow-data-loss", 2, "--allow-data-loss needs --to NAME"},
		{"--away --to n2", 2, "leave --to and --allow-data-loss away"},
		{"--away --allow-data-loss", 2, "leave --to and --allow-data-loss away"},
		{"n2", 2, `name the replica as in coterie failover --to n2`},
		{"--drain soon", 2, "--help"},
	} {
		r := clitest.Run(t, Failover(), a.Layout.Dir, strings.Fields(tt.args)...)
		r.Refused(t, tt.code, tt.says)
	}
	dead := threeNodes()
	dead.WriteOpen = false
	dead.Availability.Problems = []availability.Problem{{Severity: availability.Critical, Finding: "no primary takes writes: the primary n1 does not answer", Run: "start n1"}}
	a.SetStatus(dead)
	a.OnSQL("", []string{"a", "b", "c", "d"})
	r := clitest.Run(t, Failover(), a.Layout.Dir, "--to", "n3", "--allow-data-loss")
	if r.Code != 4 || !strings.Contains(r.Err.Error(), "add --yes") || !strings.Contains(r.Out, "SYNCHRONIZING") || strings.Contains(r.Out, "no issues") ||
		!strings.Contains(r.Out, "the primary n1 does not answer") || !strings.Contains(r.Out, "run: start n1") {
		t.Errorf("without consent: %d, %v\n%s", r.Code, r.Err, r.Out)
	}
	if n := a.Asked("Failover"); len(n) != 0 {
		t.Errorf("the agent was asked for %v", n)
	}
}

func TestFailover(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	a.SetStatus(s)
	opening := threeNodes()
	opening.Primary, opening.WriteOpen = "n2", false
	opens := opening
	opens.WriteOpen = true
	a.On("Failover", func(any) (any, error) {
		a.SetStatus(append(slices.Repeat([]api.Status{opening}, 30), opens)...)
		return api.FailoverResult{From: "n1", To: "n2", Epoch: 8, Took: 1234567 * time.Microsecond}, nil
	})
	r := clitest.Run(t, Failover(), a.Layout.Dir, "--to", "n2", "--drain", "1m", "--cut")
	if r.Err != nil || r.Out != "" || !strings.Contains(r.Said, "n3: rewinding\n") || !strings.Contains(r.Said, "n2 is the primary in epoch 8 after 1.235s (was n1)") {
		t.Errorf("%v %q %q", r.Err, r.Out, r.Said)
	}
	if s, err := api.NewClient(a.Layout.AgentSock(), os.Getuid()).Status(t.Context()); err != nil || !s.WriteOpen || strings.Contains(r.Said, "does not take writes yet") {
		t.Errorf("it returned before the new primary took writes: %v %q", err, r.Said)
	}
	a.SetStatus(s)
	r = clitest.Run(t, Failover(), a.Layout.Dir, "--to", "n3", "--allow-data-loss", "--now", "--yes", "--json")
	var result api.FailoverResult
	if err := json.Unmarshal([]byte(r.Out), &result); err != nil || r.Err != nil || result.Epoch != 8 || !strings.Contains(r.Said, "warning: n3 opens at once") || strings.Contains(r.Said, "rewinding") {
		t.Errorf("%v %v %q %q", err, r.Err, r.Out, r.Said)
	}
	r = clitest.Run(t, Failover(), a.Layout.Dir, "--to", "n2", "--allow-data-loss", "--yes")
	if r.Err != nil || !strings.Contains(r.Said, "suspended until you look at what only their copies have: n3; coterie replica resume NAME keeps that") {
		t.Errorf("a forced failover does not say who is suspended: %v %q", r.Err, r.Said)
	}
	a.SetStatus(s)
	// This node is n2, and the primary is n1: nothing is to be moved away from here.
	r = clitest.Run(t, Failover(), a.Layout.Dir, "--away")
	if r.Err != nil || !strings.Contains(r.Said, "n2 is not the primary; nothing to do") {
		t.Errorf("--away on a secondary: %v %q", r.Err, r.Said)
	}
	s.Node = "n1"
	a.SetStatus(s)
	if r = clitest.Run(t, Failover(), a.Layout.Dir, "--away"); r.Err != nil {
		t.Error(r.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.On("Failover", func(any) (any, error) {
		a.SetStatus(slices.Repeat([]api.Status{opening}, 30)...)
		go func() {
			_ = retry.Until(ctx, time.Millisecond, func() (bool, error) { return a.Unreported() == 0, nil })
			cancel()
		}()
		return api.FailoverResult{From: "n1", To: "n2", Epoch: 8}, nil
	})
	if r = clitest.RunIn(ctx, Failover(), a.Layout.Dir, "--to", "n2"); r.Err != nil || !strings.Contains(r.Said, "(was n1)\nit does not take writes yet: coterie status says why") {
		t.Errorf("a primary that does not open: %v %q", r.Err, r.Said)
	}
	if r = clitest.Run(t, Failover(), t.TempDir(), "--away"); r.Err != nil {
		t.Errorf("--away where no agent runs: %v", r.Err)
	}
	want := []any{
		api.FailoverRequest{To: "n2", Drain: time.Minute, Cut: true},
		api.FailoverRequest{To: "n3", Drain: 10 * time.Second, AllowDataLoss: true, Now: true},
		api.FailoverRequest{To: "n2", Drain: 10 * time.Second, AllowDataLoss: true},
		api.FailoverRequest{Drain: 10 * time.Second},
		api.FailoverRequest{To: "n2", Drain: 10 * time.Second},
	}
	if diff := cmp.Diff(want, a.Asked("Failover")); diff != "" {
		t.Error(diff)
	}
	a.On("Failover", func(any) (any, error) { return nil, fail.Refusedf("n3 is not synchronized") })
	clitest.Run(t, Failover(), a.Layout.Dir, "--to", "n3").Refused(t, 4, "n3 is not synchronized")
}

// TestWhatIsKnownOfANewPrimary holds that a primary which this node does not see is not said to be closed.
func TestWhatIsKnownOfANewPrimary(t *testing.T) {
	t.Parallel()
	see := func(change func(*api.Status)) api.Status {
		s := threeNodes()
		s.Node, s.Primary, s.WriteOpen, s.Quorum = "n1", "n2", false, true
		for i := range s.Replicas {
			s.Replicas[i].Connected = "CONNECTED"
		}
		change(&s)
		return s
	}
	for name, tt := range map[string]struct {
		status api.Status
		err    error
		want   string
	}{
		"open":      {see(func(s *api.Status) { s.WriteOpen = true }), nil, ""},
		"closed":    {see(func(*api.Status) {}), nil, "it does not take writes yet: coterie status says why"},
		"not seen":  {see(func(s *api.Status) { s.Replicas[1].Connected = "DISCONNECTED" }), nil, "this node does not see n2; coterie status on n2 says it"},
		"cut off":   {see(func(s *api.Status) { s.Quorum = false }), nil, "no majority of the quorum answers this node"},
		"not known": {see(func(s *api.Status) { s.Primary = "n1" }), nil, "does not know n2 as the primary yet"},
		"no agent":  {api.Status{}, errors.New("it is gone"), "the agent of this node does not answer: it is gone"},
	} {
		if got := notOpen(tt.status, tt.err, "n2"); (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestClauses checks the statement that each command runs, and that nothing is run of arguments that cannot be one.
func TestClauses(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	s := threeNodes()
	s.Group = "the]shop"
	a.SetStatus(s)
	a.OnStatement("ALTER AVAILABILITY GROUP", "ALTER AVAILABILITY GROUP")
	const of = "ALTER AVAILABILITY GROUP [the]]shop] "
	for _, tt := range []struct {
		args []string
		want string // empty: refused with says, as a usage error
		says string
	}{
		{[]string{"group", "set", "db-failover=ON", "commit_rule= ALL"}, of + "SET (DB_FAILOVER = ON, COMMIT_RULE = ALL)", ""},
		{[]string{"group", "set", "db_failover"}, "", `"db_failover" is not OPTION=VALUE`},
		{[]string{"group", "add", "a]b"}, of + "ADD DATABASE [a]]b]", ""},
		{[]string{"group", "add"}, "", "needs DATABASE"},
		{[]string{"group", "remove", "shop", "--no-wait"}, of + "REMOVE DATABASE [shop] WITH NOWAIT", ""},
		{[]string{"group", "drop"}, "", `unknown command "drop"`},
		{[]string{"replica", "add", "n'3"}, of + "ADD REPLICA ON N'n''3'", ""},
		{[]string{"replica", "remove", "n3"}, of + "REMOVE REPLICA ON N'n3'", ""},
		{
			[]string{"replica", "set", "n2", "allow_connections=NO"},
			"",
			"allow_connections is an option of a replica's role: write secondary.allow_connections=NO or primary.allow_connections=NO",
		},
		{
			[]string{"replica", "set", "n2", "Secondary.allow_connections=NO", "backup_priority=90", "PRIMARY.allow_connections=READ_WRITE", "secondary.read_only_routing_url='TCP://a:1'"},
			of + "MODIFY REPLICA ON N'n2' WITH (BACKUP_PRIORITY = 90, SECONDARY_ROLE (ALLOW_CONNECTIONS = NO, READ_ONLY_ROUTING_URL = N'TCP://a:1'), PRIMARY_ROLE (ALLOW_CONNECTIONS = READ_WRITE))", "",
		},
		{[]string{"replica", "set", "n2", "secondary.x"}, "", `"x" is not OPTION=VALUE`},
		{[]string{"replica", "set", "n2"}, "", "needs NAME OPTION=VALUE…"},
		{[]string{"routing", "set", "--when-primary", "n1", "--list", "(n2,n3),n1"}, of + "MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ((n2,n3),n1)))", ""},
		{[]string{"routing", "set", "--when-primary", "n1", "--list", " none "}, of + "MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = none))", ""},
		{[]string{"routing", "set", "--list", "NONE"}, "", "needs --when-primary NAME and --list LIST"},
		{[]string{"routing", "remove", "--when-primary", "n1"}, of + "MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = DEFAULT))", ""},
		{[]string{"routing", "remove"}, "", "needs --when-primary NAME"},
		{[]string{"listener", "restart", "shop-l"}, of + "RESTART LISTENER N'shop-l'", ""},
	} {
		before := len(a.Asked("SQL"))
		r := clitest.Run(t, commands()[tt.args[0]], a.Layout.Dir, tt.args[1:]...)
		asked := a.Asked("SQL")[before:]
		if tt.want == "" {
			r.Refused(t, 2, tt.says)
			if len(asked) > 0 {
				t.Errorf("%q ran %q", tt.args, asked)
			}
			continue
		}
		if r.Err != nil || len(asked) != 1 || asked[0] != tt.want || r.Out != "" || r.Said != "ALTER AVAILABILITY GROUP\n" {
			t.Errorf("%q: %v, said %q, ran %q, want %q", tt.args, r.Err, r.Said, asked, tt.want)
		}
	}
	a.RefuseSQL("REMOVE REPLICA", console.Error{State: "55000", Number: 41190, Message: "n1 is the primary", Hint: "fail over first"})
	clitest.Run(t, commands()["replica"], a.Layout.Dir, "remove", "n1").Refused(t, 4, "n1 is the primary")
}

func TestShow(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.OnSQL("FROM coterie.options", []string{"option", "value"}, []any{"DB_FAILOVER", "ON"}, []any{"COST", nil})
	a.OnSQL("SCRIPT", []string{"statement"}, []any{"CREATE AVAILABILITY GROUP [shop]"})
	for _, tt := range []struct{ args, want string }{
		{"show", "OPTION VALUE DB_FAILOVER ON COST"},
		{"show --json", `[ { "option": "DB_FAILOVER", "value": "ON" }, { "option": "COST", "value": null } ]`},
		{"show --script", "STATEMENT CREATE AVAILABILITY GROUP [shop]"},
	} {
		r := clitest.Run(t, commands()["group"], a.Layout.Dir, strings.Fields(tt.args)...)
		if got := strings.Join(strings.Fields(r.Out), " "); r.Err != nil || got != tt.want {
			t.Errorf("%s: %v, %s; want %s", tt.args, r.Err, got, tt.want)
		}
	}
	clitest.Run(t, commands()["replica"], a.Layout.Dir, "show", "--script").Refused(t, 2, "unknown flag: --script")
}

func TestMembers(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	ok := func(any) (any, error) { return nil, nil } //nolint:nilnil // the method has no answer
	for _, m := range []string{"Set", "Resume"} {
		a.On(m, ok)
	}
	a.On("Trust", func(any) (any, error) { return "a write was lost", nil })
	for _, tt := range []struct{ args, said, out string }{
		{"resume n3", "n3 follows again\n", ""},
		{"resume n3 --trust", "n3 is trusted again (it was under quarantine: a write was lost)\nn3 follows again\n", ""},
		{"set --commit-rule all --required 0 --session-timeout 15s", "recorded; coterie status shows what commits wait for\n", ""},
	} {
		args := strings.Fields(tt.args)
		r := clitest.Run(t, commands()[args[0]], a.Layout.Dir, args[1:]...)
		if r.Err != nil || !strings.HasPrefix(r.Said, tt.said) || !strings.Contains(r.Out, tt.out) {
			t.Errorf("%s: %v, said %q, printed %q", tt.args, r.Err, r.Said, r.Out)
		}
	}
	rule, none, timeout := ag.CommitRule("ALL"), 0, 15*time.Second
	if diff := cmp.Diff([]any{api.SettingsRequest{CommitRule: &rule, Required: &none, SessionTimeout: &timeout}}, a.Asked("Set")); diff != "" {
		t.Error(diff)
	}
	clitest.Run(t, Set(), a.Layout.Dir).Refused(t, 2, "nothing to set; see coterie set --help")

	// A copy that is not to be trusted is not resumed either.
	before := len(a.Asked("Resume"))
	a.On("Trust", func(any) (any, error) { return "", fail.Unhealthyf("n3 does not answer") })
	clitest.Run(t, Resume(), a.Layout.Dir, "n3", "--trust").Refused(t, 3, "n3 does not answer")
	if len(a.Asked("Resume")) != before {
		t.Error("resumed")
	}
}

// TestResumeOfAWellReplica holds that nothing is asked for a replica with which nothing is wrong, and that for others
// what was done is said.
func TestResumeOfAWellReplica(t *testing.T) {
	t.Parallel()
	well := api.Replica{Name: "n1", Role: ag.RolePrimary, Mode: ag.SynchronousCommit, Connected: "CONNECTED"}
	stood, suspended := well, well
	stood.StoodDown, suspended.Suspended = "12:00 for a crash", true
	for _, tt := range []struct {
		r          api.Replica
		args, said string
		asks       string
	}{
		{well, "n1", "n1 is not suspended, and its copy is trusted; nothing was changed\n", ""},
		{well, "n1 --trust", "n1 is not suspended, and its copy is trusted; nothing was changed\n", ""},
		{stood, "n1", "nothing was changed\nit gave up the leadership at 12:00 for a crash; to forget that: coterie replica resume n1 --trust\n", ""},
		{stood, "n1 --trust", "it is forgotten that n1 gave up the leadership at 12:00 for a crash: it may be chosen again at once\n", "Trust"},
		{suspended, "n1", "n1 follows again\n", "Resume"},
		{suspended, "n1 --trust", "n1 follows again\n", "Trust Resume"},
	} {
		a := clitest.NewAgent(t)
		a.SetStatus(api.Status{Quorum: true, Primary: "n1", Replicas: []api.Replica{tt.r}})
		a.On("Trust", func(any) (any, error) { return "", nil })
		a.On("Resume", func(any) (any, error) { return nil, nil }) //nolint:nilnil // the method has no answer
		r := clitest.Run(t, Resume(), a.Layout.Dir, strings.Fields(tt.args)...)
		var asked []string
		for _, m := range []string{"Trust", "Resume"} {
			if len(a.Asked(m)) > 0 {
				asked = append(asked, m)
			}
		}
		if r.Err != nil || !strings.HasSuffix(r.Said, tt.said) || strings.Join(asked, " ") != tt.asks {
			t.Errorf("%s: %v, said %q, asked for %v", tt.args, r.Err, r.Said, asked)
		}
	}
}

func TestRotate(t *testing.T) {
	t.Parallel()
	const pin = "0123456789abcdef0123"
	waiting := api.Status{Authority: "old", Rotation: &api.Rotation{Pin: pin, Phase: ag.RotationTrust, WaitsFor: []ag.ReplicaID{"n2"}}}
	held := api.Status{Authority: "old", Rotation: &api.Rotation{Pin: pin, Phase: ag.RotationTrust, Held: true}}
	for _, tt := range []struct {
		name, args string
		then       []api.Status
		code       int
		says       []string
	}{
		{"to the end", "", []api.Status{waiting, {Authority: pin}}, 0, []string{"phase TRUST (members learn to believe it), waits for n2\n", "the authority is 0123456789abcdef…; clients verify"}},
		{"held", "--hold", []api.Status{waiting, held}, 0, []string{"all members believe both authorities"}},
		{"too slow", "--wait 150ms", []api.Status{waiting}, 3, []string{"the rotation is not complete and goes on: to 0123456789abcdef…, phase TRUST"}},
		{"given up", "--abandon", nil, 0, []string{"the rotation is given up"}},
		{"for a program", "--json", []api.Status{waiting, {Authority: pin}}, 0, []string{"the authority is 0123456789abcdef…"}},
		// Another rotation may have begun: only the authority that this command asked for ends it.
		{"another one", "--wait 150ms", []api.Status{{Authority: "third"}}, 3, []string{"not complete"}},
	} {
		a := clitest.NewAgent(t)
		a.SetStatus(tt.then...)
		a.On("RotateAuthority", func(any) (any, error) { return *waiting.Rotation, nil })
		r := clitest.Run(t, CA(), a.Layout.Dir, append([]string{"rotate"}, strings.Fields(tt.args)...)...)
		said := r.Said + fmt.Sprint(r.Err)
		for _, want := range tt.says {
			if r.Code != tt.code || !strings.Contains(said, want) {
				t.Errorf("%s: exit code %d, said %s; want %d, %s", tt.name, r.Code, said, tt.code, want)
			}
		}
		if asked := tt.args == "--json"; asked != strings.Contains(r.Out, "\"authority\": \""+pin+"\",\n  \"rotation\": null") {
			t.Errorf("%s: printed %s", tt.name, r.Out)
		}
		if want := (api.RotateRequest{Hold: tt.args == "--hold", Abandon: tt.args == "--abandon"}); a.Asked("RotateAuthority")[0] != want {
			t.Errorf("%s: asked for %+v", tt.name, a.Asked("RotateAuthority"))
		}
	}
}

func TestCA(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	clitest.Run(t, CA(), a.Layout.Dir).Refused(t, 2, "there is no node in "+a.Layout.Dir)
	if err := os.WriteFile(filepath.Join(a.Layout.PKI(), "ca.crt"), []byte("-----BEGIN\nPEM\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := clitest.Run(t, CA(), a.Layout.Dir); r.Err != nil || r.Out != "-----BEGIN\nPEM\n" {
		t.Errorf("%v %q", r.Err, r.Out)
	}
}

// TestCAAsJSON holds that a script gets the pin, the dates and the certificate of each authority.
func TestCAAsJSON(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	ca, err := certs.NewCA("0d9c6d8e-7e47-4b8a-8a4e-0123456789ab", "g")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(a.Layout.PKI()); err != nil {
		t.Fatal(err)
	}
	plain := clitest.Run(t, CA(), a.Layout.Dir)
	r := clitest.Run(t, CA(), a.Layout.Dir, "--json")
	var got struct{ Authorities []authority }
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil || r.Err != nil || len(got.Authorities) != 1 {
		t.Fatalf("%v, %v: %s", err, r.Err, r.Out)
	}
	if x := got.Authorities[0]; x.Pin != ca.Pin() || !x.NotAfter.Equal(ca.Cert.NotAfter) || x.PEM != plain.Out {
		t.Errorf("%+v, want %s and %q", x, ca.Pin(), plain.Out)
	}
	if err := os.WriteFile(filepath.Join(a.Layout.PKI(), "ca.crt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := clitest.Run(t, CA(), a.Layout.Dir, "--json"); r.Err == nil || r.Out != "" {
		t.Errorf("of an empty file: %q", r.Out)
	}
}

// A dry run tells the sessions that would be waited for from those that would end.
func TestFailoverThatIsTried(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(threeNodes())
	sessions := []ag.SessionMove{
		{User: "moves"}, {User: "ends", Why: "it has temporary objects"}, {User: "waits", Why: "busy", Waits: true, Cut: "executed again"}, {User: "far", Why: "busy", Waits: true},
	}
	a.On("Failover", func(any) (any, error) {
		return api.FailoverResult{From: "n1", To: "n2", DryRun: true, Sessions: sessions}, nil
	})
	r := clitest.Run(t, Failover(), a.Layout.Dir, "--to", "n2", "--dry-run")
	for _, want := range []string{"end: it has temporary objects", "be waited for; if it is cut: executed again", "be waited for; if it is cut: the node of its client decides"} {
		if !strings.Contains(r.Out, want+"\n") {
			t.Errorf("nothing of %q in %s", want, r.Out)
		}
	}
	if r.Err != nil || strings.Contains(r.Out, "moves") || !strings.Contains(r.Said, "would move 1 of 4 sessions, wait for 2 that are busy, and end 1; nothing was changed") {
		t.Errorf("%v %q %q", r.Err, r.Out, r.Said)
	}
}
