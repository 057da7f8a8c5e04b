package checkcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

func checkBackupCommand() *cobra.Command {
	var database string
	var asJSON bool
	c := &cobra.Command{
		Use: "backup-preferred", Short: "Should a backup job run on this node?",
		Long: `Answers by exit code, for a backup job that runs on every node: 0 on the node that AUTOMATED_BACKUP_PREFERENCE and BACKUP_PRIORITY
choose now, 3 on the others.`,
		Example: "  coterie check backup-preferred && pg_dump …",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			call := "backup_is_preferred_replica()"
			if database != "" {
				call = "fn_hadr_backup_is_preferred_replica(" + ddl.Literal(database) + ")"
			}
			r, err := sqlrun.Ask(c, cl, "SELECT "+call+" AS preferred, @@SERVERNAME AS node")
			if err != nil {
				return err
			}
			preferred, node := fmt.Sprint(r.Rows[0][0]) == "1", r.Rows[0][1]
			switch {
			case asJSON:
				err = cli.PrintJSON(c, map[string]any{"node": node, "preferred": preferred})
			case preferred:
				cli.Say(c, "%s is preferred for backups", node)
			default:
				cli.Say(c, "%s is not preferred for backups; SELECT * FROM coterie.options WHERE option LIKE '%%BACKUP%%' shows why", node)
			}
			if err == nil && !preferred {
				err = cli.ErrUnhealthy
			}
			return err
		},
	}
	c.Flags().StringVar(&database, "database", "", "a database; one that is not in the group is backed up where it is")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// routingVerdict returns an unhealthy error for the first route without a target.
func routingVerdict(r console.Result) error {
	for _, row := range r.Rows {
		if row[2] == nil {
			return fail.Unhealthyf("%v sends %v sessions nowhere: %v; see coterie status", row[0], row[1], row[4])
		}
	}
	return nil
}
