package groupcmd

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Set returns the command set, which changes how the group commits and fails over.
func Set() *cobra.Command {
	var rule string
	var required int
	var timeout time.Duration
	c := &cobra.Command{
		Use: "set", Short: "Change how the group commits and fails over",
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
