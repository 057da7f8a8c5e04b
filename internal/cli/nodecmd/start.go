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
	made := exec.CommandContext(c.Context(), exe, append(slices.Clone(os.Args[1:]), "--no-start")...)
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
		return nil //nolint:nilerr // a witness cannot make tokens; the message names the place that can
	}
	cli.Say(c, "the next node joins, until %s, with:", r.Expires.Local().Format("15:04"))
	_, err = fmt.Fprintln(c.OutOrStdout(), r.Command)
	return err
}
