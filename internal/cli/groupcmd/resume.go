package groupcmd

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
)

// Resume returns the command resume, which lets a suspended or quarantined replica follow again.
func Resume() *cobra.Command {
	var trust, asJSON bool
	c := &cobra.Command{
		Use: "resume NAME", Short: "Let a suspended or quarantined replica follow again", Args: cli.OneReplica("the replica's name"),
		Long: `Continues the data movement of a replica that a forced failover suspended, or that is under quarantine because its storage lost a write.
A copy that went another way than the new primary is brought back by rewinding it or copying it anew; what only it had is kept in its
forked/ directory. A copy under quarantine is made anew.

--trust keeps a copy that is under quarantine as it is: after you have checked the storage, or when it is the only copy there is. It also
lets a replica that gave up the leadership for its health, or because its server kept ending, be chosen again at once.`,
		Example: "  coterie replica resume n2\n  coterie replica resume n1 --trust",
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			id := ag.ReplicaID(cli.MemberName(a[0]))
			ctx, cancel := context.WithTimeout(c.Context(), 30*time.Second)
			defer cancel()
			r, well := wellAlready(ctx, cl, id)
			if well && (!trust || r.StoodDown == "") {
				cli.Say(c, "%s is not suspended, and its copy is trusted; nothing was changed", id)
				if r.StoodDown != "" {
					cli.Say(c, "it gave up the leadership at %s; to forget that: coterie replica resume %s --trust", r.StoodDown, id)
				}
				return resumed(c, id, false, asJSON)
			}
			if trust {
				was, err := cl.Trust(ctx, id)
				if err != nil {
					return cli.NoAgent(c, err)
				}
				if was != "" {
					cli.Say(c, "%s is trusted again (it was under quarantine: %s)", id, was)
				}
				if well {
					cli.Say(c, "it is forgotten that %s gave up the leadership at %s: it may be chosen again at once", id, r.StoodDown)
					return resumed(c, id, true, asJSON)
				}
			}
			if err := cl.Resume(ctx, id); err != nil {
				return cli.NoAgent(c, err)
			}
			cli.Say(c, "%s follows again", id)
			return resumed(c, id, true, asJSON)
		},
	}
	c.Flags().BoolVar(&trust, "trust", false, "keep a copy under quarantine as it is, and forget crashes and ills")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// resumed prints the JSON document of coterie replica resume, if it is asked for.
func resumed(c *cobra.Command, name ag.ReplicaID, changed, asJSON bool) error {
	if !asJSON {
		return nil
	}
	return cli.PrintJSON(c, map[string]any{"replica": name, "changed": changed})
}

// wellAlready returns a replica, and whether it is known to be neither suspended nor under quarantine.
func wellAlready(ctx context.Context, cl *api.Client, id ag.ReplicaID) (r api.Replica, well bool) {
	s, err := cl.Status(ctx)
	i := slices.IndexFunc(s.Replicas, func(r api.Replica) bool { return r.Name == id })
	if err != nil || !s.Quorum || i < 0 {
		return r, false
	}
	r = s.Replicas[i]
	return r, r.Connected == "CONNECTED" && r.Mode != ag.ConfigurationOnly && !r.Suspended && r.Quarantine == "" && r.Join == ""
}

// printHealth prints the replicas with problems below a status, each with the command that helps.
func printHealth(w io.Writer, s api.Status) {
	for _, r := range s.Replicas {
		switch {
		case r.Quarantine != "":
			cli.Linef(w, "\n%s is under QUARANTINE: %s\n  coterie replica resume %s makes its copy anew; coterie replica resume %s --trust keeps it\n", r.Name, r.Quarantine, r.Name, r.Name)
		case r.Ill != "":
			cli.Linef(w, "\n%s is ILL: %s\n", r.Name, r.Ill)
		case r.Concern != "":
			cli.Linef(w, "\n%s: %s (no failure at this FAILURE_CONDITION_LEVEL)\n", r.Name, r.Concern)
		}
		if r.NoVote != "" {
			cli.Linef(w, "\n%s does not VOTE in the quorum: %s\n", r.Name, r.NoVote)
		}
		if r.StoodDown != "" {
			cli.Linef(w, "\n%s gave up the leadership at %s\n  it does not do so again for now, nor is it chosen before others; coterie replica resume %s --trust forgets it\n",
				r.Name, r.StoodDown, r.Name)
		}
	}
}
