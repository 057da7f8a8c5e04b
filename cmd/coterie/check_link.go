package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/api"
)

func checkLink() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "link A B", Short: "What the link between two replicas measures, and how it is carried for that reason",
		Long: `Prints round trip, loss, rate, the transport chosen for the WAL between two replicas, and why it was chosen. One of the two is this
node (--node). There are links between the primary and each of its secondaries. Exit code 3 if there is none between these two now.`,
		Args: args(2, "the names of two replicas"),
		RunE: func(c *cobra.Command, names []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
			defer cancel()
			s, err := cl.Status(ctx)
			if err != nil {
				return noAgent(c, err)
			}
			peer, err := otherOf(s.Node, names)
			if err != nil {
				return err
			}
			at := slices.IndexFunc(s.Links, func(l api.Link) bool { return l.Peer == peer })
			if at < 0 {
				return unhealthy("no WAL flows between %s and %s now; links are between the primary (%s) and its secondaries, see coterie status", s.Node, peer, s.Primary)
			}
			if asJSON {
				return printJSON(c, s.Links[at])
			}
			_, err = fmt.Fprint(c.OutOrStdout(), describeLink(s.Node, s.Links[at]))
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func otherOf(self ag.ReplicaID, names []string) (ag.ReplicaID, error) {
	switch string(self) {
	case names[0]:
		return ag.ReplicaID(names[1]), nil
	case names[1]:
		return ag.ReplicaID(names[0]), nil
	}
	return "", usage("this node is %s: ask the agent of %s or %s with --node, on its machine", self, names[0], names[1])
}

func describeLink(self ag.ReplicaID, l api.Link) string {
	loss := "no packets counted yet"
	if l.Packets > 0 {
		loss = fmt.Sprintf("%.2g %% (%d of %d packets of the last 10 s)", float64(l.Lost)*100/float64(l.Packets), l.Lost, l.Packets)
	}
	rate := "unknown"
	if l.Rate > 0 {
		rate = fmt.Sprintf("%.3g Mbit/s, by the latest traffic", float64(l.Rate)*8/1e6)
	}
	twice := "once"
	if l.Twice {
		twice = "twice, so that a lost packet costs no round trip"
	}
	reason := l.Reason
	if reason == "" {
		reason = "chosen at " + string(l.Peer) + ", which dialled: ask there"
	}
	var b strings.Builder
	for _, line := range [][2]string{
		{"round trip", fmt.Sprintf("%.3g ms", l.RTT)},
		{"loss", loss},
		{"rate", rate},
		{"transport", fmt.Sprintf("%s (%s); open: %s", l.Transport, l.Congestion, strings.Join(l.Legs, ", "))},
		{"small frames", twice},
		{"compression", fmt.Sprintf("%s at %s, ratio %.3g so far", l.Codec, self, l.Ratio)},
		{"reason", reason},
	} {
		fmt.Fprintf(&b, "%-13s %s\n", line[0], line[1])
	}
	return b.String()
}
