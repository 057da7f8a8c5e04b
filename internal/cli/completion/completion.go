package completion

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
)

// patience is how long a shell waits for the names.
const patience = 2 * time.Second

// words returns the words that can stand at a place, given the arguments before it.
type words func(c *cobra.Command, before []string) []string

// arguments are the words that can follow a command.
var arguments = map[string]words{
	"member remove": once(members), "member replace": once(members), "replica resume": once(members), "replica seed": once(members),
	"remove": once(members), "resume": once(members), "seed": once(members), "restart": once(members),
	"maintenance on": once(members), "maintenance off": once(members),
	"replica add": once(members), "replica remove": once(members), "replica set": replicaOptions,
	"group set": groupOptions, "database remove": once(query("SELECT name FROM coterie.databases")),
	"settings get": once(settings), "settings set": suffixed(settings, "="), "settings unset": settings,
	"listener set": once(listeners), "listener remove": once(listeners), "listener restart": once(listeners),
	"check link": atMost(2, members), "failover": nil, "status": nil, "explain": nil,
}

var listeners = query("SELECT dns_name FROM sys.availability_group_listeners")

var settings = query("SELECT DISTINCT name FROM coterie.settings")

// flags are the words that can follow a flag of a command.
var flags = map[string]map[string]words{
	"failover":         {"to": members},
	"routing set":      {"when-primary": members},
	"routing remove":   {"when-primary": members},
	"member add-token": {"role": fixed("replica", "witness")},
	"set":              {"commit-rule": fixed("QUORUM", "ALL")},
}

// Add lets shells complete the arguments of the commands below root. It panics if a command or a flag that this package
// names does not exist, which a test finds.
func Add(root *cobra.Command) {
	for path, next := range arguments {
		find(root, path).ValidArgsFunction = answer(next)
	}
	for path, all := range flags {
		for flag, next := range all {
			if err := find(root, path).RegisterFlagCompletionFunc(flag, answer(next)); err != nil {
				panic(fmt.Sprintf("completion of %s: %v", path, err))
			}
		}
	}
}

func find(root *cobra.Command, path string) *cobra.Command {
	c, rest, err := root.Find(strings.Fields(path))
	if err != nil || len(rest) > 0 || c == root {
		panic("completion: there is no command " + path)
	}
	return c
}

// answer returns the function that cobra calls. Files are never offered.
func answer(next words) cobra.CompletionFunc {
	return func(c *cobra.Command, before []string, typed string) ([]string, cobra.ShellCompDirective) {
		if next == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		var out []string
		for _, w := range next(c, before) {
			if strings.HasPrefix(strings.ToLower(w), strings.ToLower(typed)) {
				out = append(out, cli.Cell(w))
			}
			if strings.HasSuffix(w, "=") {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
		}
		return out, directive
	}
}

// once offers the words as the first argument only.
func once(next words) words { return atMost(1, next) }

// atMost offers the words as the first n arguments.
func atMost(n int, next words) words {
	return func(c *cobra.Command, before []string) []string {
		if len(before) >= n {
			return nil
		}
		return next(c, before)
	}
}

// fixed offers words that need no agent.
func fixed(all ...string) words { return func(*cobra.Command, []string) []string { return all } }

// suffixed offers the words with something behind each.
func suffixed(next words, end string) words {
	return func(c *cobra.Command, before []string) (out []string) {
		for _, w := range next(c, before) {
			out = append(out, w+end)
		}
		return out
	}
}

// asked returns the words that an agent gives in time; none without one.
func asked(c *cobra.Command, ask func(context.Context, *api.Client) []string) []string {
	cl, err := cli.Client(c)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	return ask(ctx, cl)
}

// members returns the names of the group's members.
func members(c *cobra.Command, _ []string) []string {
	return asked(c, func(ctx context.Context, cl *api.Client) (out []string) {
		s, err := cl.Status(ctx)
		if err != nil {
			return nil
		}
		for _, r := range s.Replicas {
			out = append(out, string(r.Name))
		}
		return out
	})
}

// query offers the first column of a query on the views.
func query(text string) words {
	return func(c *cobra.Command, _ []string) []string {
		return asked(c, func(ctx context.Context, cl *api.Client) (out []string) {
			r, err := sqlrun.AskWithin(ctx, c, cl, text)
			if err != nil {
				return nil
			}
			for _, row := range r.Rows {
				if len(row) > 0 {
					out = append(out, fmt.Sprint(row[0]))
				}
			}
			return out
		})
	}
}

// replicaOptions offers the name of a replica, and then its options.
func replicaOptions(c *cobra.Command, before []string) []string {
	if len(before) == 0 {
		return members(c, before)
	}
	var out []string
	for _, o := range ddl.Options() {
		prefix := map[ddl.Place]string{ddl.InReplica: "", ddl.InSecondary: "secondary.", ddl.InPrimary: "primary."}
		if p, ok := prefix[o.Place]; ok && offered(o) {
			out = append(out, p+strings.ToLower(o.Name)+"=")
		}
	}
	return out
}

// groupOptions offers the options of the group.
func groupOptions(*cobra.Command, []string) (out []string) {
	for _, o := range ddl.Options() {
		if o.Place == ddl.InGroup && offered(o) {
			out = append(out, strings.ToLower(o.Name)+"=")
		}
	}
	return out
}

// offered reports whether an option can be changed with an effect.
func offered(o ddl.Option) bool { return o.Verdict == ddl.InEffect && !o.OnlyNew }
