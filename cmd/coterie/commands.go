package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/api"
	"github.com/coteriedb/coterie/internal/config"
)

// client returns a client of the agent that runs the node directory.
func client(c *cobra.Command) (*api.Client, error) {
	dir, _ := c.Flags().GetString("node")
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.Dir); err != nil {
		return nil, usage("there is no node directory %s; name one with --node DIR, or make one with coterie init", l.Dir)
	}
	return api.NewClient(l.AgentSock()), nil
}

func noAgent(c *cobra.Command, err error) error {
	if errors.Is(err, api.ErrNoAgent) {
		dir, _ := c.Flags().GetString("node")
		return unhealthy("no agent runs %s; start it with: coterie agent --node %s", dir, dir)
	}
	return err
}

func printJSON(c *cobra.Command, v any) error {
	e := json.NewEncoder(c.OutOrStdout())
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func statusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", GroupID: "group", Short: "Show the group as this node knows it",
		Long: `Shows the group's replicas, who is primary, what commits wait for, and whether an automatic failover could happen now.
It answers from this node's memory, whatever else is dead. Exit code 3 when the group has no primary that takes writes.`,
		Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
			defer cancel()
			s, err := cl.Status(ctx)
			if err != nil {
				return noAgent(c, err)
			}
			if asJSON {
				err = printJSON(c, s)
			} else {
				err = printStatus(c, s)
			}
			if err == nil && !s.WriteOpen {
				err = codedError{exitUnhealthy, errors.New("")}
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printStatus(c *cobra.Command, s api.Status) error {
	primary := string(s.Primary)
	switch {
	case primary == "":
		primary = "none"
	case !s.WriteOpen:
		primary += " (not open for writes yet)"
	}
	quorum := "ok"
	if !s.Quorum {
		quorum = "NONE: what follows is what this node saw last"
	}
	w := c.OutOrStdout()
	_, _ = fmt.Fprintf(w, "group %s   primary %s   epoch %d %s   timeline %d\n", s.Group, primary, s.Epoch, s.Phase, s.Timeline)
	_, _ = fmt.Fprintf(w, "quorum %s (%d voters)   commits wait for %s   automatic failover: %s\n", quorum, s.Voters, s.WaitsFor, s.FailoverReady)
	if s.Operation != "" {
		_, _ = fmt.Fprintf(w, "under way: failover, %s\n", s.Operation)
	}
	t := tabwriter.NewWriter(w, 2, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "\nREPLICA\tROLE\tSYNCHRONIZATION\tMODE\tFAILOVER\tPOSITION\tBEHIND\tCONNECTED\tNOW")
	for _, r := range s.Replicas {
		mode, pos, lag, now, sync := string(r.Mode), r.Position.String(), "-", r.Because, string(r.Sync)
		if r.LagBytes != nil && r.Role != ag.RolePrimary {
			lag = bytes(*r.LagBytes)
		}
		if r.Progress != "" {
			now = r.Progress
		}
		if r.Mode == ag.ConfigurationOnly {
			mode, pos, sync = "witness", "-", "-"
		}
		name := string(r.Name)
		if r.Name == s.Node {
			name += " *"
		}
		if r.Suspended {
			sync += " (SUSPENDED)"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, r.Role, sync, mode, r.FailoverMode, pos, lag, r.Connected, now)
	}
	return t.Flush()
}

func bytes(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func failoverCommand() *cobra.Command {
	var to string
	var force, yes, asJSON bool
	c := &cobra.Command{
		Use: "failover", GroupID: "group", Short: "Make another replica the primary",
		Long: `Moves the leadership, without loss, to a SYNCHRONIZED secondary: the primary stops taking commits, the target catches up, the primary
stops and becomes a secondary. Sessions that write are closed and may connect again at once.

--allow-data-loss promotes a replica that may lack acknowledged commits, when the primary is gone for good. The other copies are left
as they are, suspended, until coterie resume brings each back; what they had beyond the new primary is kept in their forked/ directory.`,
		Example: "  coterie failover --to n2\n  coterie failover --to n3 --allow-data-loss",
		Args:    args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			if force && to == "" {
				return usage("--allow-data-loss needs --to NAME: choose the replica by its position in coterie status")
			}
			if force && !yes {
				if err := confirmLoss(c, cl); err != nil {
					return err
				}
			}
			r, err := cl.Failover(c.Context(), api.FailoverRequest{To: ag.ReplicaID(to), AllowDataLoss: force})
			if err != nil {
				return noAgent(c, err)
			}
			if asJSON {
				return printJSON(c, r)
			}
			say(c, "%s is the primary in epoch %d after %v (was %s)", r.To, r.Epoch, r.Took.Round(time.Millisecond), r.From)
			return nil
		},
	}
	c.Flags().StringVar(&to, "to", "", "the replica that is to lead (default for a planned failover: the first synchronized one)")
	c.Flags().BoolVar(&force, "allow-data-loss", false, "promote it even if it may lack acknowledged commits")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// confirmLoss has the group's name typed: a person must mean it.
func confirmLoss(c *cobra.Command, cl *api.Client) error {
	s, err := cl.Status(c.Context())
	if err != nil {
		return noAgent(c, err)
	}
	if err := printStatus(c, s); err != nil {
		return err
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return refused("a forced failover may lose acknowledged commits; add --yes to do it from a script")
	}
	say(c, "\nCommits beyond the position of the chosen replica will be lost. Type the group's name (%s) to go on:", s.Group)
	line, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if strings.TrimSpace(line) != s.Group {
		return refused("not confirmed; nothing was changed")
	}
	return nil
}

func tokenCommand() *cobra.Command {
	var role string
	var ttl time.Duration
	var asJSON bool
	c := &cobra.Command{Use: "token", GroupID: "group", Short: "Admit nodes to the group"}
	create := &cobra.Command{
		Use: "create", Short: "Make a one-time join token", Args: args(0, "no arguments"),
		Long: `Makes a token with which one node may join. It names the group's certificate authority, so the joining node knows whom to believe, it works
once, and it expires. Treat it as a password until then.`,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			r, err := cl.CreateToken(c.Context(), api.TokenRequest{Role: role, TTL: ttl})
			if err != nil {
				return noAgent(c, err)
			}
			if asJSON {
				return printJSON(c, r)
			}
			say(c, "on the new node, until %s:", r.Expires.Local().Format("15:04"))
			_, err = fmt.Fprintln(c.OutOrStdout(), r.Command)
			return err
		},
	}
	create.Flags().StringVar(&role, "role", "replica", "replica or witness")
	create.Flags().DurationVar(&ttl, "ttl", 15*time.Minute, "how long it works")
	create.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(create)
	return c
}

func removeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", GroupID: "group", Short: "Take a member out of the group",
		Long: `Takes a member out: the primary stops counting it, its vote is taken, its certificate is refused, its replication slot is dropped. Its
own node directory is left as it is.`,
		Args: args(1, "the member's name"),
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
			defer cancel()
			if err := cl.Remove(ctx, ag.ReplicaID(a[0])); err != nil {
				return noAgent(c, err)
			}
			say(c, "%s is not a member any more", a[0])
			return nil
		},
	}
}

func resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "resume NAME", GroupID: "group", Short: "Let a suspended replica follow again", Args: args(1, "the replica's name"),
		Long: `Continues the data movement of a replica that a forced failover suspended. A copy that went another way than the new primary is brought
back by rewinding it or copying it anew; what only it had is kept in its forked/ directory.`,
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			if err := cl.Resume(c.Context(), ag.ReplicaID(a[0])); err != nil {
				return noAgent(c, err)
			}
			say(c, "%s follows again", a[0])
			return nil
		},
	}
}

func setCommand() *cobra.Command {
	var rule string
	var required int
	var timeout time.Duration
	c := &cobra.Command{
		Use: "set", GroupID: "group", Short: "Change how the group commits and fails over",
		Long: `Changes settings of the group; the primary carries them out in an order that is safe at every step.

--commit-rule QUORUM waits for as many secondaries as there are failures to survive; ALL waits for every synchronized one.
--required is REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT: with fewer, commits wait. -1 follows the commit rule's own table.`,
		Example: "  coterie set --commit-rule ALL\n  coterie set --required 0 --session-timeout 15s",
		Args:    args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			var req api.SettingsRequest
			f := c.Flags()
			if f.Changed("commit-rule") {
				r := ag.CommitRule(strings.ToUpper(rule))
				req.CommitRule = &r
			}
			if f.Changed("required") {
				req.Required = &required
			}
			if f.Changed("session-timeout") {
				req.SessionTimeout = &timeout
			}
			if req == (api.SettingsRequest{}) {
				return usage("nothing to set; see %s --help", c.CommandPath())
			}
			if err := cl.Set(c.Context(), req); err != nil {
				return noAgent(c, err)
			}
			say(c, "recorded; coterie status shows what commits wait for")
			return nil
		},
	}
	c.Flags().StringVar(&rule, "commit-rule", "", "QUORUM or ALL")
	c.Flags().IntVar(&required, "required", -1, "fewest secondaries a commit waits for")
	c.Flags().DurationVar(&timeout, "session-timeout", 0, "silence after which a secondary is not waited for any more")
	return c
}

func explainCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "explain", GroupID: "group", Short: "Show what this node decided lately, and why", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			raw, err := cl.Decisions(c.Context())
			if err != nil {
				return noAgent(c, err)
			}
			if asJSON {
				return printJSON(c, raw)
			}
			var ds []struct {
				At      time.Time `json:"at"`
				Rule    string    `json:"rule"`
				Because string    `json:"because"`
				Epoch   ag.Epoch  `json:"epoch"`
			}
			if err := json.Unmarshal(raw, &ds); err != nil {
				return err
			}
			t := tabwriter.NewWriter(c.OutOrStdout(), 2, 8, 2, ' ', 0)
			for _, d := range ds {
				_, _ = fmt.Fprintf(t, "%s\tepoch %d\t%s\t%s\n", d.At.Local().Format("15:04:05.000"), d.Epoch, d.Rule, d.Because)
			}
			return t.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the view each decision saw")
	return c
}
