package nodecmd

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestMadeAsJSON holds that a script learns of the node that a command has made, how it is started, and how the next
// one joins: one document, when the node is up or can be started.
func TestMadeAsJSON(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	cfg := config.Config{
		Node: "w", Kind: "witness", Group: "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab", GroupName: "shop",
		Endpoint: config.Address{Listen: ":5022", Advertise: "10.0.0.3:5022"}, HTTP: config.Address{Listen: ":8008", Advertise: "10.0.0.3:8008"},
	}
	if err := cfg.Save(a.Layout.Dir); err != nil {
		t.Fatal(err)
	}
	a.SetStatus(api.Status{WriteOpen: true})
	run := func(noStart bool, args ...string) (m made, r clitest.Ran) {
		c := &cobra.Command{Use: "make", RunE: func(c *cobra.Command, _ []string) error {
			if noStart {
				return startOrSay(c, a.Layout.Dir, true)
			}
			return awaitNext(c.Context(), c, a.Layout.Dir)
		}}
		c.Flags().Bool("json", false, "")
		r = clitest.Run(t, c, a.Layout.Dir, args...)
		if err := json.Unmarshal([]byte(r.Out), &m); len(args) > 0 && (err != nil || r.Err != nil) {
			t.Errorf("%v, %v: %s", err, r.Err, r.Out)
		}
		return m, r
	}
	want := made{Node: "w", Kind: "witness", Group: "shop", GroupID: cfg.Group, Directory: a.Layout.Dir, Addresses: madeAddresses{Endpoint: "10.0.0.3:5022", HTTP: "10.0.0.3:8008"}, Start: "coterie agent --node " + a.Layout.Dir}
	if got, _ := run(true, "--json"); got != want {
		t.Errorf("--no-start: %+v, want %+v", got, want)
	}
	if _, r := run(true); r.Out != "" {
		t.Errorf("without --json: %q", r.Out)
	}
	want.Started = true
	a.On("CreateToken", func(any) (any, error) { return nil, fail.Unhealthyf("a witness makes none") })
	if got, _ := run(false, "--json"); got != want {
		t.Errorf("a node that makes no token: %+v, want %+v", got, want)
	}
	expires := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	a.On("CreateToken", func(any) (any, error) {
		return api.TokenResult{Token: "tok", Command: "coterie join tok", Expires: expires}, nil
	})
	got, _ := run(false, "--json")
	if got.Next == nil || *got.Next != (nextNode{"coterie join tok", "tok", expires}) {
		t.Errorf("%+v", got.Next)
	}
	if _, r := run(false); r.Out != "coterie join tok\n" {
		t.Errorf("without --json: %q", r.Out)
	}
}

// TestJSONIsForNodes holds that what prints for people takes no --json.
func TestJSONIsForNodes(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--interactive"}, {"--adopt", "/var/lib/postgresql/15/main"}} {
		clitest.Run(t, Init(), t.TempDir(), append(args, "--json")...).Refused(t, 2, "--json is not for --adopt and --interactive")
	}
}
