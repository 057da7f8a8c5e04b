package nodecmd

import (
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Config returns the command config.
func Config() *cobra.Command {
	c := &cobra.Command{Use: "config", GroupID: "node", Short: "Look at this node's configuration file"}
	c.AddCommand(&cobra.Command{
		Use: "check", Short: "Check coterie.yaml: unknown keys, wrong values, by line", Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir := cli.Node(c)
			cfg, err := config.Load(dir)
			if err != nil {
				return fail.Error{Kind: fail.Usage, Err: err}
			}
			cli.Say(c, "%s is good: node %s of group %s", filepath.Join(dir, config.File), strconv.Quote(cfg.Node), strconv.Quote(cfg.GroupName))
			return nil
		},
	})
	return c
}
