package labcmd

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// TestLabRefusals checks that each verb refuses, as a usage error, what it cannot do, before it looks for a lab.
func TestLabRefusals(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"":                                    "", // shows its help
		"smash n1":                            `unknown command "smash"`,
		"up n1":                               `does not know what to do with "n1"`,
		"up --replicas 0":                     "--replicas 0: a group has 1 to 9",
		"up --links mars":                     "--links: ",
		"up --node-mbps 5":                    "add --net netns",
		"up --node-mbps -1 --net netns":       "a rate is above 0",
		"up --node-cpu -1":                    "a share is above 0",
		"up --node-memory lots":               "--node-memory lots",
		"status n1":                           `does not know what to do with "n1"`,
		"down n1":                             `does not know what to do with "n1"`,
		"kill":                                "needs the node's name",
		"kill n1 postgres":                    `does not know what to do with "postgres"`,
		"pause":                               "needs the node's name",
		"start":                               "needs the node's name",
		"resume":                              "needs the node's name",
		"logs n1 n2":                          "takes one node at most",
		"disk":                                "needs the node's name",
		"up --storage raid5":                  `--storage "raid5": there is mirror`,
		"up --storage mirror --disk-faults":   "choose one, as a node has one disk",
		"disk n1 --slow soon":                 "--slow",
		"clock n1":                            "say by how much: coterie lab clock n1 --offset 1h",
		"link n1":                             "needs two names, and perhaps a profile",
		"link n1 n2":                          "what is the link to be like?",
		"link n1 n2 mars":                     "mars",
		"link n1 n2 metro --profile wan-bad":  "a profile is given twice: metro and --profile wan-bad",
		"link n1 n2 --rtt 60ms --delay 30ms":  "--rtt and --delay say the same in two ways",
		"link n1 n2 --loss 150%":              "--loss",
		"link n1 n2 --rate fast":              "--rate",
		"cut n1":                              "needs two names",
		"cut n1 n2 --forget --reject":         "--forget goes with neither --reject nor --one-way",
		"cut n1 n2 --forget --one-way":        "--forget goes with neither",
		"heal n1 n2 n3":                       "needs two names at most",
		"exec n1":                             "needs a node and a command",
		"exec n1 n2 -- ip addr":               "needs a node and a command",
		"clock n1 --offset 1h --disk n2":      "unknown flag: --disk",
		"link n1 n2 --jitter 5 --one-way yes": `"yes" is neither key=value nor a profile`,
	} {
		r := clitest.Run(t, Lab()[0], "", append(strings.Fields(args), "--dir", t.TempDir())...)
		if says == "" {
			if r.Err != nil || !strings.Contains(r.Out, "coterie lab up") {
				t.Errorf("%q: %v", args, r.Err)
			}
			continue
		}
		if r.Code != 2 || !strings.Contains(r.Err.Error(), says) || r.Out != "" {
			t.Errorf("%q: exit code %d, %v; want %q", args, r.Code, r.Err, says)
		}
	}
	clitest.Run(t, Demo(), "", "now").Refused(t, 2, `does not know what to do with "now"`)
}

// TestNoLab checks that every verb names the command that makes a lab where none is.
func TestNoLab(t *testing.T) {
	t.Parallel()
	given := map[string]string{"cut": "n1 n2", "heal": "", "link": "n1 n2 metro", "exec": "n1 -- true", "status": "", "down": "", "logs": "", "clock": "n1 --offset 1s", "disk": "n1 --heal"}
	var verbs []*cobra.Command
	for _, c := range Lab()[0].Commands() {
		if c.Name() != "up" {
			verbs = append(verbs, c)
		}
	}
	if len(verbs) < 12 {
		t.Fatalf("%d verbs", len(verbs))
	}
	for _, c := range verbs {
		args, special := given[c.Name()]
		if !special {
			args = "n1"
		}
		dir := t.TempDir()
		all := append([]string{"--dir", dir, c.Name()}, strings.Fields(args)...)
		clitest.Run(t, Lab()[0], "", all...).Refused(t, 2, "there is no lab in "+dir+"; make one with coterie lab up")
	}
}
