package checkcmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
)

// checkLinkTime bounds the request. Another member may have to answer it, perhaps through a third one.
const checkLinkTime = 10 * time.Second

func checkLink() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "link A B", Short: "Show the measurements of the link between two replicas, and how WAL is carried over it for that reason",
		Long: `Prints round trip, loss, rate, the transport chosen for the WAL between two replicas, and why it was chosen. A is asked, from any node
(--node). Where no WAL flows between the two, the way is measured by a few calls, and what is printed is the choice that AUTO would begin with. Exit
code 3 if one of them does not answer.`,
		Args: cli.Args(2, "the names of two replicas"),
		RunE: func(c *cobra.Command, names []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), checkLinkTime)
			defer cancel()
			from, to := ag.ReplicaID(cli.MemberName(names[0])), ag.ReplicaID(cli.MemberName(names[1]))
			l, err := cl.Link(ctx, api.LinkRequest{From: from, To: to})
			if err != nil {
				return cli.NoAgent(c, err)
			}
			if l.Reason == "" && !l.Idle {
				l = askDialler(ctx, cl, from, l)
			}
			if asJSON {
				return cli.PrintJSON(c, l)
			}
			_, err = fmt.Fprint(cli.Out(c), describeLink(from, l))
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// askDialler adds what only the other end of a link knows, which dialled: why it is as it is, and who relays it. Where
// that end does not answer, the link is returned as it was.
func askDialler(ctx context.Context, cl *api.Client, self ag.ReplicaID, l api.Link) api.Link {
	there, err := cl.Link(ctx, api.LinkRequest{From: l.Peer, To: self})
	if err != nil || there.Idle || there.Reason == "" {
		return l
	}
	l.Reason = "chosen at " + string(l.Peer) + ", which dialled: " + there.Reason
	if there.Via != "" {
		l.Via, l.Legs = there.Via, there.Legs
	}
	return l
}

func describeLink(self ag.ReplicaID, l api.Link) string {
	loss, since := "no packets counted yet", "the last 10 s"
	if l.Idle {
		since = "the open connections"
	}
	if l.Packets > 0 {
		loss = fmt.Sprintf("%.2g %% (%d of %d packets of %s)", float64(l.Lost)*100/float64(l.Packets), l.Lost, l.Packets, since)
	}
	rate := "unknown"
	if l.Rate > 0 {
		rate = fmt.Sprintf("%.3g Mbit/s, by the latest traffic", float64(l.Rate)*8/1e6)
	}
	if l.Carried > 0 {
		rate += fmt.Sprintf("; %.3g Mbit/s when there was more to send", float64(l.Carried)*8/1e6)
	}
	twice := "once"
	if l.Twice {
		twice = "twice, so that a lost packet costs no round trip"
	}
	reason := l.Reason
	if reason == "" {
		reason = fmt.Sprintf("chosen at %s, which dialled: coterie check link %s %s", l.Peer, l.Peer, self)
	}
	lines := [][2]string{
		{"round trip", fmt.Sprintf("%.3g ms", l.RTT)},
		{"loss", loss},
		{"rate", rate},
		{"transport", fmt.Sprintf("%s; open: %s", strings.TrimSpace(l.Transport+" "+l.Congestion), strings.Join(l.Legs, ", "))},
		{"small frames", twice},
		{"compression", fmt.Sprintf("%s at %s, ratio %.3g so far", l.Codec, self, l.Ratio)},
		{"reason", reason},
	}
	if l.Idle {
		lines[3][1] = fmt.Sprintf("none now: no WAL flows between %s and %s; AUTO would begin with %s", self, l.Peer, strings.Join(l.Legs, ", "))
		lines[5][1] = l.Codec
	}
	var b strings.Builder
	for _, line := range lines {
		cli.Linef(&b, "%-13s %s\n", line[0], line[1])
	}
	return b.String()
}
