package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// startOrSay runs the agent in the foreground at the end of init and join. With noStart it prints the command that
// starts the agent.
func startOrSay(c *cobra.Command, dir string, noStart bool) error {
	return startAnd(c, dir, noStart, awaitNext)
}

// startAnd is startOrSay with another function than awaitNext to run beside the agent. The context of then ends with
// the agent.
func startAnd(c *cobra.Command, dir string, noStart bool, then func(ctx context.Context, c *cobra.Command, abs string) error) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if noStart {
		how := "coterie agent --node " + abs
		if unit := Unit(c.Context(), abs); unit != "" {
			how = "systemctl enable --now " + unit
		}
		cli.Say(c, "made %s; start it with: %s", abs, how)
		if asJSON(c) {
			return printMade(c, abs, made{Start: how})
		}
		return nil
	}
	cli.Say(c, "starting the agent in the foreground; Ctrl-C stops it in order, coterie agent --node %s starts it again", abs)
	ctx, cancel := context.WithCancel(c.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := then(ctx, c, abs); err != nil && ctx.Err() == nil {
			cli.Say(c, "%v", err)
		}
	})
	err = runAgent(c, dir, false)
	cancel()
	wg.Wait()
	return err
}

// made is what --json prints of a node that was made: once it is up, or, with --no-start, once it can be started.
type made struct {
	Node      string        `json:"node"`
	Kind      string        `json:"kind"` // replica or witness
	Group     string        `json:"group"`
	GroupID   string        `json:"group_id"`
	Directory string        `json:"directory"`
	Addresses madeAddresses `json:"addresses"`
	Started   bool          `json:"started"`
	Start     string        `json:"start"`          // the command that starts it, or starts it again
	Next      *nextNode     `json:"next,omitempty"` // how the next node joins; absent where this node cannot say
}

// madeAddresses are the addresses at which others reach a node. One that a node has not is absent.
type madeAddresses struct {
	Endpoint  string `json:"endpoint"`
	ReadWrite string `json:"read_write,omitempty"`
	ReadOnly  string `json:"read_only,omitempty"`
	HTTP      string `json:"http,omitempty"`
	HTTPS     string `json:"https,omitempty"`
}

// nextNode is the token with which the next node joins.
type nextNode struct {
	Command string    `json:"command"`
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// aboutJSON says in the help of a command what its --json prints.
const aboutJSON = `

--json prints one document when the node is up or, with --no-start, when it is made: node, kind, group, group_id, directory, addresses,
started, start (the command that starts it, or starts it again) and next (command, token and expires of a token for another node).`

// asJSON reports whether a command that makes a node was asked for a document.
func asJSON(c *cobra.Command) bool {
	is, err := c.Flags().GetBool("json")
	return err == nil && is
}

// printMade prints the document of a node, with what its configuration says.
func printMade(c *cobra.Command, abs string, m made) error {
	cfg, err := config.Load(abs)
	if err != nil {
		return err
	}
	m.Node, m.Kind, m.Group, m.GroupID, m.Directory = cfg.Node, cfg.Kind, cfg.GroupName, cfg.Group, abs
	m.Addresses = madeAddresses{cfg.Endpoint.Advertise, cfg.ReadWrite.Advertise, cfg.ReadOnly.Advertise, cfg.HTTP.Advertise, cfg.HTTPS.Advertise}
	return cli.PrintJSON(c, m)
}

// throughUnit makes the node by running this command again with --no-start, starts its service unit, and prints the
// command for the next node. It reports false if no unit is installed for this node directory, or this process is not
// root.
func throughUnit(c *cobra.Command, dir string) (bool, error) {
	if os.Geteuid() != 0 {
		return false, nil
	}
	unit := Unit(c.Context(), dir)
	if unit == "" {
		return false, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return true, err
	}
	made := exec.CommandContext(c.Context(), exe, append(slices.Clone(os.Args[1:]), "--no-start", "--json=false")...) // the document is printed when it is up
	made.Stdout, made.Stderr = c.OutOrStdout(), c.ErrOrStderr()
	if err := made.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return true, cli.ExitError{Code: exit.ExitCode()} // the process has printed the reason
		}
		return true, err
	}
	if out, err := exec.CommandContext(c.Context(), "systemctl", "enable", "--now", unit).CombinedOutput(); err != nil {
		return true, fmt.Errorf("the unit %s did not start: %s; see journalctl -u %s", unit, strings.TrimSpace(string(out)), unit)
	}
	cli.Say(c, "started through the unit %s; systemctl status %s, journalctl -u %s", unit, unit, unit)
	return true, awaitNext(c.Context(), c, dir)
}

// Unit returns the systemd unit of the node directory dir, as "coterie" or "coterie@billing"; "" if systemd does not
// run on this host, or has no such unit.
func Unit(ctx context.Context, dir string) string {
	unit := unitOf(dir)
	if _, err := os.Stat("/run/systemd/system"); err != nil || unit == "" {
		return ""
	}
	if exec.CommandContext(ctx, "systemctl", "cat", unit+".service").Run() != nil {
		return ""
	}
	return unit
}

// unitName are the names of instances that systemd takes as they are.
var unitName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// unitOf returns the unit that runs the node in dir if the packaged units are installed; "" for any other directory.
func unitOf(dir string) string {
	if dir == cli.DefaultNode {
		return "coterie"
	}
	if name, ok := strings.CutPrefix(dir, cli.DefaultNode+"-"); ok && unitName.MatchString(name) {
		return "coterie@" + name
	}
	return ""
}

// tokenPatience is how long a replica that has just joined tries to make a token: it has to learn the group's key, and
// the quorum changes its members.
const tokenPatience = 30 * time.Second

// nextToken makes a token for the next replica.
func nextToken(ctx context.Context, cl *api.Client, abs string) (api.TokenResult, error) {
	cfg, err := config.Load(abs)
	if err != nil {
		return api.TokenResult{}, err
	}
	for began := time.Now(); ; {
		r, err := cl.CreateToken(ctx, api.TokenRequest{Role: "replica", TTL: 15 * time.Minute})
		if err == nil || cfg.PostgreSQL == nil || time.Since(began) > tokenPatience {
			return r, err
		}
		if err := retry.Sleep(ctx, 500*time.Millisecond); err != nil {
			return r, err
		}
	}
}

// awaitNext waits until the group accepts writes. Then it prints the command with which the next node joins.
func awaitNext(ctx context.Context, c *cobra.Command, abs string) error {
	l, err := config.NewLayout(abs)
	if err != nil {
		return err
	}
	cl := api.NewClient(l.AgentSock(), l.Owner())
	said := time.Now()
	for {
		st, err := cl.Status(ctx)
		if err == nil && st.WriteOpen {
			break
		}
		if time.Since(said) > 3*time.Second {
			said = time.Now()
			cli.Say(c, "waiting for the group: %s", st.Because)
		}
		if retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return nil
		}
	}
	cli.Say(c, "this node is up: coterie status --node %s", abs)
	r, err := nextToken(ctx, cl, abs)
	if err != nil {
		cli.Say(c, "to admit the next node, run on a replica: coterie member add-token")
		if asJSON(c) {
			return printMade(c, abs, made{Started: true, Start: "coterie agent --node " + abs})
		}
		return nil //nolint:nilerr // a witness cannot make tokens; the message names the place that can
	}
	cli.Say(c, "the next node joins, until %s, with:", r.Expires.Local().Format("15:04"))
	if asJSON(c) {
		return printMade(c, abs, made{Started: true, Start: "coterie agent --node " + abs, Next: &nextNode{r.Command, r.Token, r.Expires}})
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), r.Command)
	return err
}
