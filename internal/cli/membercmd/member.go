package membercmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Member returns the command member, with what can be done to the members of the group.
func Member() *cobra.Command {
	c := &cobra.Command{Use: "member", GroupID: "group", Short: "Show the members, admit, remove and replace them"}
	c.AddCommand(list(), addToken("add-token"), cli.Former(nodecmd.Join(false)), Remove(), replace())
	return c
}

// Token returns the command token, an earlier name of member add-token.
func Token() *cobra.Command {
	c := &cobra.Command{Use: "token", GroupID: "group", Short: "Admit nodes to the group"}
	c.AddCommand(addToken("create"))
	return c
}

// removeLimit is longer than the longest removal: up to 30 s until the primary votes in place of the only voter, twice
// up to 45 s until the primary has dropped the member, and what the quorum needs for the votes.
const removeLimit = 4 * time.Minute

// within asks the agent, for at most removeLimit. Without an answer the operator is told that the removal goes on where
// it stopped when the command is run again.
func within(c *cobra.Command, again string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	err := ask(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fail.Unhealthyf("the agent has not answered within %v, and how far it came is not known; see coterie member list, then run it again, it continues: %s", limit, again)
	}
	return cli.NoAgent(c, err)
}

// limit is removeLimit; tests shorten it.
var limit = removeLimit

// Remove returns the command remove, which takes a member out of the group.
func Remove() *cobra.Command {
	var yes, asJSON bool
	c := &cobra.Command{
		Use: "remove NAME", Short: "Take a member out of the group",
		Long: `Takes a member out: the primary stops counting it, its vote is taken, its certificate is refused, its replication slot is dropped. Its
own node directory is left as it is; coterie leave there goes on with it and keeps the data, coterie destroy removes it. Run it on any other
member. If it ends before it is done, run it again: it continues. On a terminal it asks for the name; a script gives --yes.`,
		Args: cli.OneReplica("the member's name"),
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			id := ag.ReplicaID(cli.MemberName(a[0]))
			st, err := cl.Status(c.Context())
			if err := known(st, id, err); err != nil {
				return err
			}
			if err := confirm(c, string(id), yes, "%s leaves the group: its copy no longer counts, its vote is taken, and it can come back only by joining anew. Type its name to go on:"); err != nil {
				return err
			}
			if err := within(c, "coterie member remove "+string(id), func(ctx context.Context) error { return cl.Remove(ctx, id) }); err != nil {
				return err
			}
			if slices.Contains(st.Awaited, id) {
				cli.Say(c, "the replacement of %s is given up: nobody is awaited by that name; a token that was made for it is refused", id)
			} else {
				cli.Say(c, "%s is not a member any more", id)
			}
			if asJSON {
				return cli.PrintJSON(c, map[string]any{"member": id, "removed": true})
			}
			return nil
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for the name")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// known returns an error if a node that is in touch with its group has no member of that name, before a person is asked
// to confirm what cannot be done. Without such a status, the agent answers.
func known(st api.Status, id ag.ReplicaID, err error) error {
	is := slices.ContainsFunc(st.Replicas, func(r api.Replica) bool { return r.Name == id }) || slices.Contains(st.Awaited, id)
	if err != nil || is || !st.Quorum || st.Availability.Removed || st.Availability.QuorumDiffers != "" {
		return nil
	}
	return fail.Usagef("the group has no member %q; nothing was changed (see coterie member list)", id)
}

// confirm has a person type the member's name. A script says --yes.
func confirm(c *cobra.Command, name string, yes bool, question string) error {
	switch {
	case yes:
		return nil
	case !cli.Interactive(c):
		return fail.Refusedf("%s would leave the group for good; nothing was changed: add --yes to do it from a script", name)
	}
	return cli.Confirm(c, name, question, name)
}

// addToken returns the command of that name that makes a join token.
func addToken(name string) *cobra.Command {
	var role string
	var ttl time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use: name, Short: "Make a one-time join token", Args: cli.Args(0, "no arguments"),
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
			return printToken(c, r, "the new node", asJSON)
		},
	}
	c.Flags().StringVar(&role, "role", certs.KindReplica, "replica or witness")
	c.Flags().DurationVar(&ttl, "ttl", 15*time.Minute, "how long it works")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// printToken prints a token and where it is used.
func printToken(c *cobra.Command, r api.TokenResult, where string, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c, r)
	}
	cli.Say(c, "on %s, until %s:", where, moment(r.Expires.Local(), time.Now()))
	_, err := fmt.Fprintln(cli.Out(c), r.Command)
	return err
}

// moment returns a time of day, with its date unless that is today's.
func moment(at, now time.Time) string {
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format("15:04")
	}
	return at.Format("2006-01-02 15:04")
}

// replace returns the command replace, which puts a new node in the place of a lost one.
func replace() *cobra.Command {
	var ttl time.Duration
	var yes, asJSON bool
	c := &cobra.Command{
		Use: "replace NAME", Short: "Put a new node in the place of a member that is lost",
		Long: `Takes a member whose machine is lost out of the group, as coterie member remove does, and makes a join token for its successor: the node
that joins with it gets the name, the kind and the settings of the lost member, and addresses and a copy of its own. A member that answers is
refused. Run it on any replica.

If it ends before it prints the token, or the token has expired, run it again: until a node has joined by the name it makes another one.
coterie member remove NAME gives the replacement up.`,
		Example: "  coterie member replace n3               # prints the command for the new machine",
		Args:    cli.OneReplica("the member's name"),
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			id := ag.ReplicaID(cli.MemberName(a[0]))
			st, err := cl.Status(c.Context())
			if err := known(st, id, err); err != nil {
				return err
			}
			if err := confirm(c, string(id), yes, "%s leaves the group for good, and a new node takes its name. Type it to go on:"); err != nil {
				return err
			}
			var r api.TokenResult
			err = within(c, "coterie member replace "+string(id), func(ctx context.Context) (err error) {
				r, err = cl.Replace(ctx, api.ReplaceRequest{Member: id, TTL: ttl})
				return err
			})
			if err != nil {
				return err
			}
			return printToken(c, r, "the machine that replaces "+string(id), asJSON)
		},
	}
	c.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the token works")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for the name")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
