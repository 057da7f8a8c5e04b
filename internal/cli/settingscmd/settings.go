package settingscmd

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

const about = `The settings of PostgreSQL that the group has for its servers: set once, on any node, and in force on every replica, also on one that
joins later or is copied anew. Each replica judges a new value before it is written. A setting that needs a restart of PostgreSQL
waits for one, and "coterie settings" says so. A replica may have a value of its own (--replica).

A value that may be secret, as of archive_command, is shown as (hidden), and with --json its row has "hidden": true.
"coterie settings diff" says beside that which servers have the same: (hidden, same), (hidden, differs), (hidden, same as n1).

What somebody sets by ALTER SYSTEM for a setting that the group has is put back within seconds; other settings are left alone.`

// list shows each setting once if all replicas have the same, and once for each replica otherwise.
const list = `SELECT name, CASE WHEN hidden THEN '(hidden)' ELSE value END AS value, replica,
  CASE WHEN hidden AND in_force <> '' THEN '(hidden)' ELSE in_force END AS in_force, waits_for_restart, hidden FROM (
  SELECT name, value, '(all)' AS replica, min(in_force) AS in_force, max(pending_restart) AS waits_for_restart, hidden
  FROM coterie.parameters WHERE NOT of_replica GROUP BY name, value, hidden HAVING count(DISTINCT in_force) <= 1
  UNION ALL SELECT name, value, node, in_force, pending_restart, hidden FROM coterie.parameters WHERE of_replica OR name IN (
    SELECT name FROM coterie.parameters WHERE NOT of_replica GROUP BY name HAVING count(DISTINCT in_force) > 1)
) ORDER BY name, replica`

// diff says of values that may be secret which servers have the same: all of them, or the ones after which one.
const diff = `SELECT name, node, CASE WHEN hidden THEN CASE
  WHEN (SELECT count(DISTINCT o.value) FROM coterie.settings o WHERE o.name = s.name) = 1 THEN '(hidden, same)'
  WHEN (SELECT min(o.node) FROM coterie.settings o WHERE o.name = s.name AND o.value = s.value) = node THEN '(hidden, differs)'
  ELSE '(hidden, same as ' || (SELECT min(o.node) FROM coterie.settings o WHERE o.name = s.name AND o.value = s.value) || ')' END
  ELSE value END AS value, source, pending_restart, hidden FROM coterie.settings s WHERE pending_restart
OR name IN (SELECT name FROM coterie.settings GROUP BY name HAVING count(DISTINCT value) > 1) ORDER BY name, node`

const answering = `SELECT DISTINCT node FROM coterie.settings`

const history = `SELECT at, node, what AS statement, SUBSTRING(because, 4, 100) AS by FROM coterie.events WHERE kind = 'statement' AND what LIKE '% PARAMETER %' ORDER BY at, node`

// Settings returns coterie settings.
func Settings() *cobra.Command {
	c := &cobra.Command{
		Use: "settings", GroupID: "group", Short: "Show and change the settings of PostgreSQL for all replicas", Long: about, Args: cli.Args(0, "no arguments"),
		Example: "  coterie settings\n  coterie settings set work_mem=64MB max_connections=200\n  coterie settings set work_mem=1GB --replica n3\n" +
			"  coterie settings unset max_connections\n  coterie settings diff",
	}
	sqlrun.Query(c, list, noSettings, silent)
	c.AddCommand(
		sqlrun.Query(&cobra.Command{Use: "list", Short: "Show the settings that the group has, and whether they are in force", Args: cli.Args(0, "no arguments")}, list, noSettings, silent),
		getCommand(), setCommand(), unsetCommand(),
		sqlrun.Query(&cobra.Command{Use: "diff", Short: "Show the settings in which the servers differ, or that wait for a restart", Args: cli.Args(0, "no arguments")}, diff, noDifference, silent),
		sqlrun.Query(&cobra.Command{Use: "history", Short: "Show the latest changes, as the nodes remember them", Args: cli.Args(0, "no arguments")}, history, noHistory),
	)
	return c
}

// silent returns a warning for each replica whose settings this node is not told, where it is told of any.
func silent(c *cobra.Command, cl *api.Client, _ console.Result) []console.Notice {
	told, err := sqlrun.Ask(c, cl, answering)
	if err != nil {
		return nil
	}
	return sqlrun.Silent(c, cl, told, "%s does not say which settings it has: it does not answer, or its server does not run")
}

// The texts in place of tables without rows.
const (
	noSettings   = "the group has no settings of PostgreSQL: each server's own configuration counts; coterie settings set NAME=VALUE gives every replica one"
	noDifference = "the servers that answer have the same settings, and none waits for a restart"
	noHistory    = "the nodes that answer remember no change of the group's settings"
)

func getCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "get NAME", Short: "Show what each server has of one setting, whether or not the group has it", Args: cli.Args(1, "NAME"),
		Example: "  coterie settings get work_mem",
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			name := strings.ReplaceAll(strings.ToLower(a[0]), "'", "''")
			r, err := sqlrun.Ask(c, cl, "SELECT s.node, CASE WHEN s.hidden THEN '(hidden)' ELSE s.value END AS value, "+
				"CASE WHEN p.hidden THEN '(hidden)' ELSE p.value END AS group_has, s.source, s.pending_restart, s.hidden FROM coterie.settings s "+
				"LEFT JOIN coterie.parameters p ON p.node = s.node AND p.name = s.name WHERE lower(s.name) = '"+name+"' ORDER BY s.node")
			if err != nil {
				return err
			}
			if len(r.Rows) == 0 {
				return fail.Usagef("no server that answers has a setting %s; SELECT DISTINCT name FROM coterie.settings in coterie sql lists them", a[0])
			}
			return sqlrun.Printer{C: c, JSON: asJSON, ForJSON: sqlrun.ForJSON}.Print(r)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func setCommand() *cobra.Command {
	return changing(&cobra.Command{
		Use: "set NAME=VALUE…", Short: "Give every replica's server settings, or one replica's", Args: cli.ArgsBetween(1, -1, "NAME=VALUE…"),
		Example: "  coterie settings set work_mem=64MB\n  coterie settings set \"shared_preload_libraries=pg_stat_statements, auto_explain\"\n  coterie settings set work_mem=1GB --replica n3",
	}, func(a []string) (string, error) {
		var out []string
		for _, x := range a {
			name, value, ok := strings.Cut(x, "=")
			if !ok {
				return "", fail.Usagef("%q is not NAME=VALUE, as work_mem=64MB", x)
			}
			out = append(out, quoted(name)+" = "+ddl.Literal(strings.TrimSpace(value)))
		}
		return "SET PARAMETER " + strings.Join(out, ", "), nil
	})
}

func unsetCommand() *cobra.Command {
	return changing(&cobra.Command{
		Use: "unset NAME…", Short: "Take settings back: the servers' own configuration counts again", Args: cli.ArgsBetween(1, -1, "NAME…"),
		Example: "  coterie settings unset work_mem",
	}, func(a []string) (string, error) {
		names := slices.Clone(a)
		for i := range names {
			names[i] = quoted(names[i])
		}
		return "RESET PARAMETER " + strings.Join(names, ", "), nil
	})
}

// quoted returns a setting's name as the language has it.
func quoted(name string) string {
	parts := strings.Split(strings.TrimSpace(name), ".")
	for i, p := range parts {
		parts[i] = ddl.Brackets(p)
	}
	return strings.Join(parts, ".")
}

// changing makes c run a clause of ALTER AVAILABILITY GROUP, which clauseOf makes of its arguments.
func changing(c *cobra.Command, clauseOf func([]string) (string, error)) *cobra.Command {
	var asJSON, noWait bool
	var replica string
	c.Flags().StringVar(&replica, "replica", "", "for this replica only, in place of the group's value")
	c.Flags().BoolVar(&noWait, "no-wait", false, "return when it is accepted, not when every node has read it")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, a []string) error {
		clause, err := clauseOf(a)
		if err != nil {
			return err
		}
		if replica != "" {
			clause += " FOR REPLICA " + ddl.Literal(replica)
		}
		cl, err := cli.Client(c)
		if err != nil {
			return err
		}
		r, err := sqlrun.Alter(c, cl, clause, noWait)
		if err != nil {
			return err
		}
		return sqlrun.Printer{C: c, JSON: asJSON}.Print(r)
	}
	return c
}
