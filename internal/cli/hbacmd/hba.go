package hbacmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/regular"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

const about = `The rules by which the group's listeners decide who may log in, in the syntax of pg_hba.conf: written once, on any node, and in force on
all nodes within seconds, also on one that joins later. Without rules every role may log in by scram-sha-256.

A node whose coterie.yaml names a file (hba) follows that file instead. "coterie hba" says which nodes do and whether their rules differ.
Sessions that are open stay open. This command needs no login: rules that let nobody in can be taken back by it.`

// maxFile is the largest file of rules that is read, in bytes. A group takes less.
const maxFile = 1 << 20

// The queries of the commands.
const (
	list    = `SELECT node, value AS rules, source FROM coterie.settings WHERE name = 'coterie.hba' ORDER BY node`
	show    = `SELECT line_number, rule FROM coterie.hba ORDER BY line_number`
	history = `SELECT at, node, what AS statement, SUBSTRING(because, 4, 100) AS by FROM coterie.events WHERE kind = 'statement' AND what LIKE '% SET HBA %' OR kind = 'statement' AND what LIKE '% RESET HBA%' ORDER BY at, node`
)

// The texts in place of tables without rows.
const (
	noNode    = "nothing is told here of any node's rules: a witness is not told of them, and no other node that serves clients answers; run this on a replica"
	noRules   = "the group has no rules: every role may log in by scram-sha-256, and on a Unix socket the user of its name; coterie hba set FILE gives it some"
	noHistory = "the nodes that answer remember no change of the rules"
)

// HBA returns coterie hba.
func HBA() *cobra.Command {
	c := &cobra.Command{
		Use: "hba", GroupID: "group", Short: "Show and change the rules for logins of all nodes", Long: about, Args: cli.Args(0, "no arguments"),
		Example: "  coterie hba\n  coterie hba show >rules.conf\n  coterie hba set rules.conf\n  coterie hba unset",
	}
	sqlrun.Query(c, list, noNode, silent)
	c.AddCommand(
		sqlrun.Query(&cobra.Command{Use: "list", Short: "Show where each node has its rules from, and whether they are the same", Args: cli.Args(0, "no arguments")}, list, noNode, silent),
		showCommand(), setCommand(), unsetCommand(),
		sqlrun.Query(&cobra.Command{Use: "history", Short: "Show the latest changes, as the nodes remember them", Args: cli.Args(0, "no arguments")}, history, noHistory),
	)
	return c
}

// silent returns a warning for each replica whose rules are not in the list, where this node is told of any.
func silent(c *cobra.Command, cl *api.Client, listed console.Result) []console.Notice {
	return sqlrun.Silent(c, cl, listed, "%s does not say which rules it has: it does not answer, or its server does not run. It has the group's once it does, unless its coterie.yaml names a file")
}

// overtaken returns a warning if the group's rules are not those that this command has given it.
func overtaken(c *cobra.Command, cl *api.Client, mine ddl.SetHBA) (out []console.Notice) {
	r, err := sqlrun.Ask(c, cl, show)
	if err != nil {
		return nil
	}
	var lines []string
	for _, row := range r.Rows {
		lines = append(lines, fmt.Sprint(row[1]))
	}
	if slices.Equal(lines, mine.Lines) {
		return nil
	}
	return []console.Notice{{Severity: "WARNING", Message: "somebody else has changed the rules at the same time: those of this command are not in force; see coterie hba show and coterie hba history"}}
}

func showCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show", Short: "Print the group's rules, as coterie hba set reads them", Args: cli.Args(0, "no arguments"), Example: "  coterie hba show >rules.conf",
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			r, err := sqlrun.Ask(c, cl, show)
			if err != nil {
				return err
			}
			if asJSON || len(r.Rows) == 0 {
				return sqlrun.Printer{C: c, JSON: asJSON, Empty: noRules}.Print(r)
			}
			for _, row := range r.Rows {
				if _, err := fmt.Fprintln(cli.Data(c), row[1]); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func setCommand() *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use: "set FILE", Short: "Give all nodes the rules of a file (- reads standard input)", Args: cli.Args(1, "FILE"),
		Example: "  coterie hba set rules.conf\n  coterie hba set --check rules.conf\n  echo 'hostssl all all 10.0.0.0/8 scram-sha-256' | coterie hba set -",
	}
	c.Flags().BoolVar(&check, "check", false, "say whether the file can be used, and change nothing")
	return changing(c, func(c *cobra.Command, a []string) (ddl.SetHBA, bool, error) {
		rules, err := fileOf(c.InOrStdin(), a[0])
		if err == nil && check {
			cli.Say(c, "%s can be used", nameOf(a[0]))
		}
		return rules, !check, err
	})
}

func unsetCommand() *cobra.Command {
	return changing(&cobra.Command{
		Use: "unset", Short: "Take the group's rules back: every role may log in by scram-sha-256", Args: cli.Args(0, "no arguments"), Example: "  coterie hba unset",
	}, func(*cobra.Command, []string) (ddl.SetHBA, bool, error) { return ddl.SetHBA{}, true, nil })
}

// nameOf returns what to call a file of rules.
func nameOf(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

// fileOf reads rules from a file. It returns a usage error that names the lines a listener could not honour.
func fileOf(in io.Reader, file string) (a ddl.SetHBA, err error) {
	if file != "-" {
		f, err := regular.Open(file)
		if err != nil {
			return a, fail.Usagef("the rules cannot be read: %v", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	switch {
	case err != nil:
		return a, fail.Usagef("the rules cannot be read: %v", err)
	case len(text) > maxFile:
		return a, fail.Usagef("%s has more than %d bytes", nameOf(file), maxFile)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // which editors put before a text
	_, err = hba.Parse(strings.NewReader(string(text)))
	if errors.Is(err, hba.ErrNoRule) {
		return a, fail.Usagef("%s has no rule, and would let nobody in; coterie hba unset takes the group's rules back", nameOf(file))
	}
	if err != nil {
		return a, fail.Usagef("%s cannot be used; nothing was changed:\n  %s", nameOf(file), strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	a = ddl.RulesOf(string(text))
	var bad *ddl.Error
	if _, err := ddl.Parse("ALTER AVAILABILITY GROUP [group] " + a.String()); errors.As(err, &bad) { // too many, or too long
		return a, fail.Usagef("%s cannot be used; nothing was changed: %s", nameOf(file), bad.Message)
	}
	return a, nil
}

// changing makes c give the group the rules that its arguments tell, if they say so, and show what each node has then.
func changing(c *cobra.Command, rulesOf func(*cobra.Command, []string) (rules ddl.SetHBA, change bool, err error)) *cobra.Command {
	var asJSON, noWait bool
	c.Flags().BoolVar(&noWait, "no-wait", false, "return when it is accepted, not when every node has read it")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, a []string) error {
		rules, change, err := rulesOf(c, a)
		if err != nil || !change {
			return err
		}
		cl, err := cli.Client(c)
		if err != nil {
			return err
		}
		changed, err := sqlrun.Alter(c, cl, rules.String(), noWait)
		if err != nil {
			return err
		}
		now, err := sqlrun.Ask(c, cl, list)
		if err != nil {
			return err
		}
		now.Notices = slices.Concat(changed.Notices, now.Notices, own(now), silent(c, cl, now))
		if !noWait { // else this node may not have read them yet
			now.Notices = append(now.Notices, overtaken(c, cl, rules)...)
		}
		return sqlrun.Printer{C: c, JSON: asJSON, Empty: noNode}.Print(now)
	}
	return c
}

// own returns a notice for each node that follows a file of its own.
func own(r console.Result) (out []console.Notice) {
	for _, row := range r.Rows {
		if source := fmt.Sprint(row[2]); strings.HasPrefix(source, "/") {
			out = append(out, console.Notice{Severity: "WARNING", Message: fmt.Sprintf(
				"%v follows %s, which its coterie.yaml names (hba), and not the group's rules; without that line and after coterie restart it follows the group", row[0], source)})
		}
	}
	return out
}
