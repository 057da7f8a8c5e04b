package checkcmd

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestCheckRefusals checks that a misspelt area, or flags that contradict each other, do not look at anything.
func TestCheckRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for args, says := range map[string]string{
		"fences":                        "there is nothing called fences to check; choose from: backup, certificates, fence, group, quorum, security, settings, storage",
		"group setting":                 "there is nothing called setting",
		"--preflight --answer":          "choose one of --preflight and --answer",
		"--preflight":                   "--preflight needs the hosts",
		"--preflight --http 8008 db2":   `"8008": address 8008: missing port`,
		"--answer --endpoint nonsense":  `"nonsense"`,
		"link n1":                       "needs the names of two replicas",
		"link n1 n2 n3":                 `does not know what to do with "n3"`,
		"backup-preferred n1":           `does not know what to do with "n1"`,
		"routing n1":                    `does not know what to do with "n1"`,
		"routing --dry-run --unfounded": "unknown flag: --unfounded",
	} {
		clitest.Run(t, Check(), dir, strings.Fields(args)...).Refused(t, 2, says)
	}
}

// TestCheckOfNoNode checks that a directory which is named, and is no node's, is not found healthy.
func TestCheckOfNoNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(at("empty"), 0o700), os.Mkdir(at("left"), 0o700), os.WriteFile(at("left/"+config.File+".left"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		code int
		says string
	}{
		"none":  {2, "there is no node directory " + at("none") + "; name one with --node DIR"},
		"empty": {2, at("empty") + " is not a node directory: it has no coterie.yaml"},
		"left":  {3, at("left") + " is no node any more"},
	} {
		for _, how := range [][]string{{}, {"--json"}, {"fence"}} {
			clitest.Run(t, Check(), dir, append(how, "--node", at(name))...).Refused(t, want.code, want.says)
		}
	}
	clitest.Run(t, Check(), dir, "--node", "").Refused(t, 2, "--node names no directory")
}

// TestCheckPrints checks the findings of areas as text and as JSON, and that only what is worse than a warning ends
// with exit code 3.
func TestCheckPrints(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	if r := clitest.Run(t, Check(), a.Layout.Dir, "group", "certificates"); r.Err != nil || !strings.HasPrefix(r.Out, "ok       certificates: there is no node in ") || !strings.Contains(r.Out, "coterie init") {
		t.Errorf("before there is a node, and with no directory named: %v\n%s", r.Err, r.Out)
	}
	if err := durable.Replace(filepath.Join(a.Layout.Dir, config.File), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.OnSQL("", []string{"none"})
	finding := func(severity string) {
		a.OnSQL("FROM coterie.problems", []string{"severity", "finding", "run"}, []any{severity, "n3\x1b[2J does not answer", "start it"})
	}
	for severity, want := range map[string]struct {
		code int
		out  string
	}{
		"Warning":  {0, "warning  group: n3\\x1b[2J does not answer\n         the group survives fewer failures than it was made for\n         start it\n"},
		"Critical": {3, "problem  group: n3\\x1b[2J does not answer\n         clients have no service, or the next failure takes it away\n         start it\n"},
	} {
		finding(severity)
		r := clitest.Run(t, Check(), a.Layout.Dir, "group")
		if r.Code != want.code || r.Out != want.out {
			t.Errorf("%s: exit code %d, %q", severity, r.Code, r.Out)
		}
		r = clitest.Run(t, Check(), a.Layout.Dir, "group", "--json")
		var found []check.Finding
		if err := json.Unmarshal([]byte(r.Out), &found); err != nil || r.Code != want.code || len(found) != 1 || found[0].Area != "group" || found[0].Run == "" {
			t.Errorf("%s --json: %v, exit code %d\n%s", severity, err, r.Code, r.Out)
		}
	}
	// An area that could not be checked is worse than a warning.
	stopped := clitest.NewNode(t)
	if err := durable.Replace(filepath.Join(stopped.Dir, config.File), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := clitest.Run(t, Check(), stopped.Dir, "group"); r.Code != 3 || !strings.Contains(r.Out, "not checked: no agent runs here") {
		t.Errorf("a stopped node: exit code %d\n%s", r.Code, r.Out)
	}
}

func TestCheckLink(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.On("Link", func(any) (any, error) {
		return api.Link{Peer: "n2", Transport: "tcp", Legs: []string{"tcp bbr"}, RTT: 1.5, Reason: "little is lost"}, nil
	})
	r := clitest.Run(t, Check(), a.Layout.Dir, "link", "n1", "n2")
	if r.Err != nil || !strings.HasPrefix(r.Out, "round trip    1.5 ms\n") {
		t.Errorf("%v\n%s", r.Err, r.Out)
	}
	r = clitest.Run(t, Check(), a.Layout.Dir, "link", "N1", "n2.example.com", "--json")
	var l api.Link
	if err := json.Unmarshal([]byte(r.Out), &l); err != nil || l.RTT != 1.5 || l.Peer != "n2" {
		t.Errorf("%v\n%s", err, r.Out)
	}
	for _, in := range a.Asked("Link") {
		if in != (api.LinkRequest{From: "n1", To: "n2"}) {
			t.Errorf("asked for %+v", in)
		}
	}
	// The end that did not dial does not know why, nor who relays.
	a.On("Link", func(in any) (any, error) {
		if in.(api.LinkRequest).From == "n2" {
			return api.Link{Peer: "n1", Via: "n3", Legs: []string{"tcp by n3"}, Reason: "the two do not see each other"}, nil
		}
		return api.Link{Peer: "n2", Legs: []string{"tcp bbr"}}, nil
	})
	r = clitest.Run(t, Check(), a.Layout.Dir, "link", "n1", "n2")
	if r.Err != nil || !strings.Contains(r.Out, "open: tcp by n3\n") || !strings.Contains(r.Out, "chosen at n2, which dialled: the two do not see each other") {
		t.Errorf("of the end that was dialled: %v\n%s", r.Err, r.Out)
	}
	a.On("Link", func(any) (any, error) { return nil, fail.Unhealthyf("n1 does not answer") })
	clitest.Run(t, Check(), a.Layout.Dir, "link", "n1", "n2").Refused(t, 3, "n1 does not answer")
	clitest.Run(t, Check(), clitest.NewStopped(t), "link", "n1", "n2").Refused(t, 3, "start it with: coterie agent")
}

func TestDescribeLink(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		l    api.Link
		want string
	}{
		"nothing measured yet": {
			api.Link{Peer: "n2", RTT: 0.25, Transport: "tcp", Legs: []string{"tcp"}, Codec: "OFF", Ratio: 1},
			`round trip    0.25 ms
loss          no packets counted yet
rate          unknown
transport     tcp; open: tcp
small frames  once
compression   OFF at n1, ratio 1 so far
reason        chosen at n2, which dialled: coterie check link n2 n1
`,
		},
		"a lossy one": {
			api.Link{
				Peer: "n2", RTT: 60, Packets: 1000, Lost: 15, Rate: 2_500_000, Carried: 1_250_000, Transport: "quic", Congestion: "bbr",
				Legs: []string{"quic bbr", "tcp cubic"}, Twice: true, Codec: "ZSTD:3", Ratio: 3.14159, Reason: "loss above 1 %",
			},
			`round trip    60 ms
loss          1.5 % (15 of 1000 packets of the last 10 s)
rate          20 Mbit/s, by the latest traffic; 10 Mbit/s when there was more to send
transport     quic bbr; open: quic bbr, tcp cubic
small frames  twice, so that a lost packet costs no round trip
compression   ZSTD:3 at n1, ratio 3.14 so far
reason        loss above 1 %
`,
		},
		"one that carries no WAL": {
			api.Link{Peer: "n3", Idle: true, Packets: 10, Legs: []string{"tcp"}, Codec: "AUTO", Reason: "a short way"},
			`round trip    0 ms
loss          0 % (0 of 10 packets of the open connections)
rate          unknown
transport     none now: no WAL flows between n1 and n3; AUTO would begin with tcp
small frames  once
compression   AUTO
reason        a short way
`,
		},
	} {
		if got := describeLink(ag.ReplicaID("n1"), tt.l); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tt.want)
		}
	}
}

func TestBackupPreferred(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.OnSQL("backup_is_preferred_replica()", []string{"preferred", "node"}, []any{1, "n2"})
	a.OnSQL("fn_hadr_backup_is_preferred_replica(N'o''ne')", []string{"preferred", "node"}, []any{0, "n2"})
	for args, want := range map[string]struct {
		code      int
		out, said string
	}{
		"":                       {0, "", "n2 is preferred for backups\n"},
		"--json":                 {0, "{\n  \"node\": \"n2\",\n  \"preferred\": true\n}\n", ""},
		"--database o'ne":        {3, "", "n2 is not preferred for backups; SELECT * FROM coterie.options WHERE option LIKE '%BACKUP%' shows why\n"},
		"--database o'ne --json": {3, "{\n  \"node\": \"n2\",\n  \"preferred\": false\n}\n", ""},
	} {
		r := clitest.Run(t, Check(), a.Layout.Dir, append([]string{"backup-preferred"}, strings.Fields(args)...)...)
		if r.Code != want.code || r.Out != want.out || r.Said != want.said {
			t.Errorf("%q: exit code %d, printed %q, said %q", args, r.Code, r.Out, r.Said)
		}
	}
	// Without an agent nobody knows: a backup job must not take that for a yes.
	clitest.Run(t, Check(), clitest.NewStopped(t), "backup-preferred").Refused(t, 3, "no agent runs")
}

// TestPortsInUse checks that neither side of a preflight begins while another program has a port of the node to be.
func TestPortsInUse(t *testing.T) {
	t.Parallel()
	p, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	_, port, _ := net.SplitHostPort(p.Addr().String())
	for _, args := range [][]string{{"--preflight", "127.0.0.1"}, {"--answer"}} {
		args = append(args, "--endpoint", ":"+port, "--read-write", "", "--read-only", "", "--http", "")
		clitest.Run(t, Check(), t.TempDir(), args...).Refused(t, 1, "port "+port+": ")
	}
}

// TestAreasAreCompleted holds that a shell offers the areas beside the subcommands, and no files.
func TestAreasAreCompleted(t *testing.T) {
	root := &cobra.Command{Use: "coterie"}
	root.AddGroup(&cobra.Group{ID: "node"})
	root.AddCommand(Check())
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs([]string{cobra.ShellCompNoDescRequestCmd, "check", "s"})
	if err := root.Execute(); err != nil || out.String() != "security\nsettings\nstorage\n:4\n" {
		t.Errorf("%v %q", err, out.String())
	}
}
