package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

func resumeCommand() *cobra.Command {
	var trust bool
	c := &cobra.Command{
		Use: "resume NAME", GroupID: "group", Short: "Let a suspended or quarantined replica follow again", Args: args(1, "the replica's name"),
		Long: `Continues the data movement of a replica that a forced failover suspended, or that is under quarantine because its storage lost a write.
A copy that went another way than the new primary is brought back by rewinding it or copying it anew; what only it had is kept in its
forked/ directory. A copy under quarantine is made anew, from the primary.

--trust keeps a copy that is under quarantine as it is: after you have checked the storage, or when it is the only copy there is. It also
lets a replica that gave up the leadership for its health, or because its server kept ending, be chosen again at once.`,
		Example: "  coterie resume n2\n  coterie resume n1 --trust",
		RunE: func(c *cobra.Command, a []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), 30*time.Second)
			defer cancel()
			if trust {
				was, err := cl.Trust(ctx, ag.ReplicaID(a[0]))
				if err != nil {
					return noAgent(c, err)
				}
				if was != "" {
					say(c, "%s is trusted again (it was under quarantine: %s)", a[0], was)
				}
			}
			if err := cl.Resume(ctx, ag.ReplicaID(a[0])); err != nil {
				return noAgent(c, err)
			}
			say(c, "%s follows again", a[0])
			return nil
		},
	}
	c.Flags().BoolVar(&trust, "trust", false, "keep a copy under quarantine as it is, and forget crashes and ills")
	return c
}

// printHealth says below a status who is not well, and what to do about it.
func printHealth(w io.Writer, s api.Status) {
	for _, r := range s.Replicas {
		switch {
		case r.Quarantine != "":
			_, _ = fmt.Fprintf(w, "\n%s is under QUARANTINE: %s\n  coterie resume %s makes its copy anew; coterie resume %s --trust keeps it\n", r.Name, r.Quarantine, r.Name, r.Name)
		case r.Ill != "":
			_, _ = fmt.Fprintf(w, "\n%s is ILL: %s\n", r.Name, r.Ill)
		case r.Concern != "":
			_, _ = fmt.Fprintf(w, "\n%s: %s (no failure at this FAILURE_CONDITION_LEVEL)\n", r.Name, r.Concern)
		}
		if r.NoVote != "" {
			_, _ = fmt.Fprintf(w, "\n%s does not VOTE in the quorum: %s\n", r.Name, r.NoVote)
		}
		if r.StoodDown != "" {
			_, _ = fmt.Fprintf(w, "\n%s gave up the leadership at %s\n  it does not do so again for now, nor is it chosen before others; coterie resume %s --trust forgets it\n",
				r.Name, r.StoodDown, r.Name)
		}
	}
}

// Trust ends the quarantine of a replica's copy as it is.
func (m *admin) Trust(ctx context.Context, id ag.ReplicaID) (string, error) {
	r, ok := m.n.replica(id)
	switch {
	case !ok:
		return "", api.Refused(fmt.Sprintf("the group has no member %s", id))
	case !r.HasData():
		return "", api.Refused(fmt.Sprintf("%s is a witness and holds no data", id))
	case id == m.n.self:
		return m.n.agent.Trust(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var was string
	if err := m.n.control.Call(ctx, r, "trust", nil, &was); err != nil {
		return "", fmt.Errorf("tell %s that its copy is trusted: %w", id, err)
	}
	return was, nil
}

// Resume continues data movement.
func (m *admin) Resume(ctx context.Context, id ag.ReplicaID) error {
	if s := m.n.agent.Snapshot(); s != nil && s.Record.Epoch.Leader == id {
		if st, ok := s.Statuses[id]; ok && st.Quarantine != "" {
			return api.Refused(fmt.Sprintf("%s led last, its copy is under quarantine, and there is no primary to make it anew from: check its storage and run coterie resume %s --trust, or coterie failover --to another --allow-data-loss", id, id))
		}
	}
	return m.n.updateGroup(ctx, func(g *ag.Group) error { return setSuspended(g, id, false) })
}
