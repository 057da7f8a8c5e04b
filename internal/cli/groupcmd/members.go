package groupcmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Remove returns the command remove, which takes a member out of the group.
func Remove() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "remove NAME", GroupID: "group", Short: "Take a member out of the group",
		Long: `Takes a member out: the primary stops counting it, its vote is taken, its certificate is refused, its replication slot is dropped. Its
own node directory is left as it is; coterie leave there goes on with it and keeps the data. Run it on any other member. If it ends before it is done, run it again: it continues.`,
		Args: cli.Args(1, "the member's name"),
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			if err := confirmRemoval(c, a[0], yes); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
			defer cancel()
			if err := cl.Remove(ctx, ag.ReplicaID(a[0])); err != nil {
				return cli.NoAgent(c, err)
			}
			cli.Say(c, "%s is not a member any more", a[0])
			return nil
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for the name on a terminal")
	return c
}

// confirmRemoval has a person type the member's name. A script is not asked.
func confirmRemoval(c *cobra.Command, name string, yes bool) error {
	if yes || !cli.Interactive(c) {
		return nil
	}
	return cli.Confirm(c, name, "%s leaves the group: its copy no longer counts, its vote is taken, and it can come back only by joining anew. Type its name to go on:", name)
}

// Set returns the command set, which changes how the group commits and fails over.
func Set() *cobra.Command {
	var rule string
	var required int
	var timeout time.Duration
	c := &cobra.Command{
		Use: "set", GroupID: "group", Short: "Change how the group commits and fails over",
		Long: `Changes settings of the group; the primary carries them out in an order that is safe at every step.

--commit-rule QUORUM waits for as many secondaries as there are failures to survive; ALL waits for every synchronized one.
--required is REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT: with fewer, commits wait. -1 follows the commit rule's own table.`,
		Example: "  coterie set --commit-rule ALL\n  coterie set --required 0 --session-timeout 15s",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
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
				return fail.Usagef("nothing to set; see %s --help", c.CommandPath())
			}
			if err := cl.Set(c.Context(), req); err != nil {
				return cli.NoAgent(c, err)
			}
			cli.Say(c, "recorded; coterie status shows what commits wait for")
			return nil
		},
	}
	c.Flags().StringVar(&rule, "commit-rule", "", "QUORUM or ALL")
	c.Flags().IntVar(&required, "required", -1, "fewest secondaries a commit waits for")
	c.Flags().DurationVar(&timeout, "session-timeout", 0, "silence after which a secondary is not waited for any more")
	return c
}

// Token returns the command token, which admits nodes to the group.
func Token() *cobra.Command {
	var role string
	var ttl time.Duration
	var asJSON bool
	c := &cobra.Command{Use: "token", GroupID: "group", Short: "Admit nodes to the group"}
	create := &cobra.Command{
		Use: "create", Short: "Make a one-time join token", Args: cli.Args(0, "no arguments"),
		Long: `Makes a token with which one node may join. It names the group's certificate authority, so the joining node knows whom to believe, it works
once, and it expires. Treat it as a password until then.`,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			r, err := cl.CreateToken(c.Context(), api.TokenRequest{Role: role, TTL: ttl})
			if err != nil {
				return cli.NoAgent(c, err)
			}
			if asJSON {
				return cli.PrintJSON(c, r)
			}
			cli.Say(c, "on the new node, until %s:", r.Expires.Local().Format("15:04"))
			_, err = fmt.Fprintln(cli.Out(c), r.Command)
			return err
		},
	}
	create.Flags().StringVar(&role, "role", "replica", "replica or witness")
	create.Flags().DurationVar(&ttl, "ttl", 15*time.Minute, "how long it works")
	create.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(create)
	return c
}
