package groupcmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Clauses returns the commands for scripts that write and run statements: group, database, replica, listener and
// routing.
func Clauses() []*cobra.Command {
	return []*cobra.Command{groupCommand(), databaseCommand(), replicaCommand(), listenerCommand(), routingCommand()}
}

// usage describes a command in its help.
type usage struct {
	line, short, example string
}

// alter returns the command that runs one clause of ALTER AVAILABILITY GROUP, written by clauseOf from the arguments.
// The command takes at least n arguments. It takes no more than the usage line names, except that a line ending with …
// has no upper limit.
func alter(u usage, n int, clauseOf func([]string) (string, error)) *cobra.Command {
	var asJSON, noWait bool
	_, what, some := strings.Cut(u.line, " ")
	most := len(strings.Fields(what))
	switch {
	case !some:
		what = "no arguments"
	case strings.HasSuffix(what, "…"):
		most = -1
	}
	c := &cobra.Command{
		Use: u.line, Short: u.short, Example: u.example, Args: cli.ArgsBetween(n, most, what),
		RunE: func(c *cobra.Command, a []string) error {
			clause, err := clauseOf(a)
			if err != nil {
				return err
			}
			return runClause(c, clause, noWait, asJSON)
		},
	}
	c.Flags().BoolVar(&noWait, "no-wait", false, "return when it is accepted, not when it has its effect")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// explained returns the command with a text for its help that says more than its short one.
func explained(c *cobra.Command, long string) *cobra.Command {
	c.Long = long
	return c
}

// runClause runs a clause of ALTER AVAILABILITY GROUP on the node's group.
func runClause(c *cobra.Command, clause string, noWait, asJSON bool) error {
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

// show returns a command that prints the results of one or more queries.
func show(short, query string) *cobra.Command {
	var asJSON, asScript bool
	c := &cobra.Command{
		Use: "show", Aliases: []string{"list", "ls"}, Short: short, Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			if asScript {
				query = "SCRIPT"
			}
			return sqlrun.Printer{C: c, JSON: asJSON}.Run(c.Context(), cl, query)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	if strings.Contains(short, "group") {
		c.Flags().BoolVar(&asScript, "script", false, "print the statements that make the group")
	}
	return c
}

// assignments turns OPTION=VALUE arguments into an option list. The parser checks the names and values later.
func assignments(list []string) (string, error) {
	var out []string
	for _, a := range list {
		name, value, ok := strings.Cut(a, "=")
		if !ok {
			return "", fail.Usagef("%q is not OPTION=VALUE", a)
		}
		name, value = strings.ToUpper(strings.ReplaceAll(name, "-", "_")), strings.TrimSpace(value)
		for _, o := range ddl.Options() {
			if o.Name == name && o.Form == ddl.Text {
				value = ddl.Literal(strings.Trim(value, "'"))
			}
		}
		out = append(out, name+" = "+value)
	}
	return strings.Join(out, ", "), nil
}

// ofRole returns a usage error if an assignment is that of an option which a replica has only in its roles.
func ofRole(assignment string) error {
	name, value, _ := strings.Cut(assignment, "=")
	var roles []string
	for _, o := range ddl.Options() {
		if !strings.EqualFold(o.Name, name) {
			continue
		}
		switch o.Place {
		case ddl.InSecondary:
			roles = append(roles, "secondary."+strings.ToLower(name)+"="+value)
		case ddl.InPrimary:
			roles = append(roles, "primary."+strings.ToLower(name)+"="+value)
		default:
			return nil
		}
	}
	if len(roles) == 0 {
		return nil // it is not known at all: the parser says so
	}
	return fail.Usagef("%s is an option of a replica's role: write %s", strings.ToLower(name), strings.Join(roles, " or "))
}

// placed sorts assignments into options of the replica and of its roles: secondary.X=… and primary.X=….
func placed(list []string) (string, error) {
	var own, secondary, primary []string
	for _, a := range list {
		switch place, rest, _ := strings.Cut(a, "."); {
		case strings.EqualFold(place, "secondary"):
			secondary = append(secondary, rest)
		case strings.EqualFold(place, "primary"):
			primary = append(primary, rest)
		default:
			if err := ofRole(place); err != nil {
				return "", err
			}
			own = append(own, a)
		}
	}
	var parts []string
	for _, p := range []struct {
		format string
		list   []string
	}{{"%s", own}, {"SECONDARY_ROLE (%s)", secondary}, {"PRIMARY_ROLE (%s)", primary}} {
		if len(p.list) == 0 {
			continue
		}
		text, err := assignments(p.list)
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf(p.format, text))
	}
	return strings.Join(parts, ", "), nil
}

func groupCommand() *cobra.Command {
	c := &cobra.Command{Use: "group", GroupID: "group", Short: "Show and change the group's options"}
	c.AddCommand(
		show("Show the group's options", "SELECT option, value, is_set, verdict FROM coterie.options WHERE replica IS NULL AND (is_set OR verdict <> 'accepted, no effect')"),
		explained(alter(usage{"set OPTION=VALUE…", "Change options of the group", "  coterie group set db_failover=ON commit_rule=ALL"}, 1, func(a []string) (string, error) {
			list, err := assignments(a)
			return "SET (" + list + ")", err
		}), `Changes options of the group, as ALTER AVAILABILITY GROUP … SET does. coterie group show lists them with their values,
docs/language.md (Options) says what each does and which values it has.`),
		cli.Former(addDatabase("add DATABASE")), cli.Former(removeDatabase("remove DATABASE")),
	)
	return c
}

func databaseCommand() *cobra.Command {
	c := &cobra.Command{Use: "database", GroupID: "group", Short: "Show and change which databases the group has registered"}
	list := show("Show the registered databases", "SELECT name, registered, present FROM coterie.databases")
	list.Use, list.Aliases = "list", []string{"show", "ls"}
	c.AddCommand(list, addDatabase("add NAME"), removeDatabase("remove NAME"))
	return c
}

func addDatabase(line string) *cobra.Command {
	return explained(alter(usage{line, "Register a database, and create it where it is absent", "  coterie database add shop"}, 1, func(a []string) (string, error) {
		return "ADD DATABASE " + ddl.Brackets(a[0]), nil
	}), `Registers a database with the group, as ALTER AVAILABILITY GROUP … ADD DATABASE does, and creates it on the primary if it is absent.
The name keeps its case, as with createdb: Orders is another database than orders.`)
}

func removeDatabase(line string) *cobra.Command {
	return alter(usage{line, "Take a database off the register; it stays", "  coterie database remove shop"}, 1, func(a []string) (string, error) {
		return "REMOVE DATABASE " + ddl.Brackets(a[0]), nil
	})
}

func replicaCommand() *cobra.Command {
	c := &cobra.Command{Use: "replica", GroupID: "group", Short: "Show and change the replicas and their options"}
	list := show("Show the replicas", "SELECT name, role, synchronization_state, health, availability_mode, failover_mode, join_state, suspended FROM coterie.replicas")
	list.Use, list.Aliases = "list", []string{"show", "ls"}
	c.AddCommand(
		list, Resume(), Seed(),
		explained(alter(usage{"set NAME OPTION=VALUE…", "Change options of a replica", "  coterie replica set n2 availability_mode=ASYNCHRONOUS_COMMIT failover_mode=MANUAL\n  coterie replica set n2 secondary.allow_connections=NO backup_priority=90"}, 2, func(a []string) (string, error) {
			list, err := placed(a[1:])
			return "MODIFY REPLICA ON " + ddl.Literal(a[0]) + " WITH (" + list + ")", err
		}), `Changes options of a replica, as ALTER AVAILABILITY GROUP … MODIFY REPLICA does. Those of SECONDARY_ROLE and PRIMARY_ROLE begin with
secondary. and primary. SELECT * FROM coterie.options, in coterie sql, has their values; docs/language.md (Options) says what each does.`),
		explained(alter(usage{"add NAME", "Make a node of the group a replica again", "  coterie replica add n3"}, 1, func(a []string) (string, error) {
			return "ADD REPLICA ON " + ddl.Literal(a[0]), nil
		}), `Makes a member that is no replica any more, as after coterie replica remove, a replica again. It gets a copy once JOIN has been run on
it, in coterie sql: ALTER AVAILABILITY GROUP name JOIN.`),
		alter(usage{"remove NAME", "End a replica's part in the group; its node keeps its vote and its copy", "  coterie replica remove n3"}, 1, func(a []string) (string, error) {
			return "REMOVE REPLICA ON " + ddl.Literal(a[0]), nil
		}),
	)
	return c
}

func routingCommand() *cobra.Command {
	c := &cobra.Command{Use: "routing", GroupID: "group", Short: "Show and change where readers are sent"}
	var when, list string
	set := alter(usage{"set", "Set the routing list that holds while a replica is the primary", "  coterie routing set --when-primary n1 --list '(n2,n3),n1'\n  coterie routing set --when-primary n1 --list NONE"}, 0, func([]string) (string, error) {
		if when == "" || list == "" {
			return "", fail.Usagef("routing set needs --when-primary NAME and --list LIST")
		}
		value := strings.TrimSpace(list)
		if strings.Count(value, "(") != strings.Count(value, ")") {
			return "", fail.Usagef("the brackets of the list %q do not match; write it as '(n2,n3),n1'", value)
		}
		if !strings.EqualFold(value, "NONE") && !strings.EqualFold(value, "DEFAULT") {
			value = "(" + value + ")"
		}
		return "MODIFY REPLICA ON " + ddl.Literal(when) + " WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = " + value + "))", nil
	})
	set.Flags().StringVar(&when, "when-primary", "", "the replica whose list it is")
	set.Flags().StringVar(&list, "list", "", "replicas in order; those in brackets take turns; NONE or DEFAULT")
	remove := alter(usage{"remove", "Go back to the default list", "  coterie routing remove --when-primary n1"}, 0, func([]string) (string, error) {
		if when == "" {
			return "", fail.Usagef("routing remove needs --when-primary NAME")
		}
		return "MODIFY REPLICA ON " + ddl.Literal(when) + " WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = DEFAULT))", nil
	})
	remove.Flags().StringVar(&when, "when-primary", "", "the replica whose list it is")
	c.AddCommand(show("Show where each node sends sessions now", "VERIFY ROUTING"), set, remove)
	return c
}
