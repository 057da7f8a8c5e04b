package membercmd

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
)

// entry is a member as list prints it.
type entry struct {
	Name     ag.ReplicaID `json:"name"`
	Kind     string       `json:"kind"` // replica or witness
	Role     ag.Role      `json:"role,omitempty"`
	Vote     string       `json:"vote"` // yes, no, or why a vote is not there
	Endpoint string       `json:"endpoint,omitempty"`
	State    string       `json:"state"` // CONNECTED, DISCONNECTED, or AWAITED: a node that takes its place is to join
	Next     string       `json:"next,omitempty"`
}

func list() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"show", "ls"}, Short: "Show the members, their votes and whether they answer",
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			st, err := cl.Status(c.Context())
			if err != nil {
				return cli.NoAgent(c, err)
			}
			all := entries(st)
			if asJSON {
				return cli.PrintJSON(c, all)
			}
			w := tabwriter.NewWriter(cli.Out(c), 0, 0, 3, ' ', 0)
			_, _ = fmt.Fprintln(w, "MEMBER\tKIND\tROLE\tVOTE\tENDPOINT\tSTATE")
			for _, e := range all {
				cli.Linef(w, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Name, e.Kind, e.Role, e.Vote, e.Endpoint, e.State)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			for _, e := range all {
				if e.Next != "" {
					cli.Say(c, "%s", e.Next)
				}
			}
			switch {
			case st.Availability.Removed:
				cli.Say(c, "%s is no member of the group any more: this is what it saw last; run it on a member", st.Node)
			case !st.Quorum:
				cli.Say(c, "no majority of the quorum answers %s: this is what it saw last; see coterie status", st.Node)
			}
			if d := st.Availability.QuorumDiffers; d != "" {
				cli.Say(c, "the members of the quorum are others: %s; see coterie check quorum", d)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// entries returns the members of a status, and those that are to be replaced.
func entries(st api.Status) []entry {
	all := []entry{}
	for _, r := range st.Replicas {
		e := entry{Name: r.Name, Kind: "replica", Role: r.Role, Vote: "no", Endpoint: r.Endpoint, State: r.Connected}
		if r.Mode == ag.ConfigurationOnly {
			e.Kind, e.Role = "witness", ""
		}
		switch {
		case r.NoVote != "":
			e.Vote = "no: " + r.NoVote
		case r.Voter:
			e.Vote = "yes"
		}
		if r.Name == st.Node {
			e.State += " (this node)"
		}
		if r.Connected != "CONNECTED" && !st.Availability.Removed { // nobody answers a node that was removed
			e.Next = fmt.Sprintf("%s does not answer: start it; if its machine is lost, coterie member replace %[1]s", r.Name)
		}
		all = append(all, e)
	}
	for _, id := range st.Awaited {
		all = append(all, entry{Name: id, Kind: "-", Vote: "no", State: "AWAITED", Next: fmt.Sprintf(
			"%s was taken out to be replaced: coterie member replace %[1]s makes a token for its successor, coterie member remove %[1]s gives it up", id)})
	}
	return all
}
