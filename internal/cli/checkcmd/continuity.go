package checkcmd

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
)

// prospects is what would become of the sessions of one application and user on one replica.
type prospects struct {
	Application string   `json:"application_name"`
	User        string   `json:"user"`
	Replica     string   `json:"replica"`
	Sessions    int      `json:"sessions"`
	Failover    int      `json:"kept_in_failover"`
	Node        int      `json:"kept_when_node_dies"`
	Server      int      `json:"kept_when_server_dies"`
	Open        int      `json:"transactions_open"`           // of sessions that would be kept when the server dies
	Replayed    int      `json:"transactions_executed_again"` // of these
	Unknown     int      `json:"commits_unknown"`             // sessions whose client would not hear how a COMMIT ended
	Not         []notice `json:"not_kept,omitempty"`
}

// notice is why some of them would not be kept in an event.
type notice struct {
	Event     string `json:"event"`
	Reason    string `json:"reason"`
	Statement string `json:"statement,omitempty"`
	Sessions  int    `json:"sessions"`
}

// Events, as a notice names them.
const (
	inFailover  = "planned failover"
	nodeDies    = "node dies"
	serverDies  = "PostgreSQL dies"
	ofOpen      = "open transaction, if either dies"
	ofCommit    = "commit in doubt, 08007"
	restOfNode  = "(the rest)"
	notKeptFate = "ENDS"
	unknownFate = "UNKNOWN"
)

const continuityQuery = `SELECT coalesce(application_name, '` + restOfNode + `'), coalesce(user_name, '` + restOfNode + `'), replica, sessions,
failover, failover_reason, node_loss, node_loss_reason, server_loss, server_loss_reason, statement, open_transaction, open_transaction_reason,
commit_in_doubt, commit_in_doubt_reason FROM coterie.continuity`

func checkContinuityCommand() *cobra.Command {
	var asJSON, history bool
	c := &cobra.Command{
		Use: "continuity", Short: "Show which sessions a failover now would keep, by application and user, and why not the others",
		Long: `Shows, for each application and user, how many of its sessions a planned failover now would keep, and the sudden death of their server's
node or of its PostgreSQL alone; and of the others why not, with the keywords of the statement that is the reason where it is known.
Of the transactions that are open now in sessions that would be kept it says which would fail with 40001, and why: with CONTINUITY = REPLAY
most are executed again.
Every listener answers from its memory: no server is asked. coterie failover --dry-run asks the primary.
With --history it shows the last week, day by day: each node looks at the sessions of its listener once a minute, and keeps the sums over
restarts of its agent. The most frequent reason that each node has seen in a day is printed.`,
		Example: "  coterie check continuity\n  coterie check continuity --history",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			if history {
				return shown[daily]{coverageQuery, dailyOf, printDaily}.show(c, cl, asJSON)
			}
			return shown[prospects]{continuityQuery, prospectsOf, printProspects}.show(c, cl, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&history, "history", false, "show the last week by day instead of this moment")
	return c
}

// shown is a query of the node's views, and how its answer is read and printed for people.
type shown[T any] struct {
	query string
	read  func(rows [][]any) []T
	text  func(*cobra.Command, []T) error
}

func (s shown[T]) show(c *cobra.Command, cl *api.Client, asJSON bool) error {
	r, err := sqlrun.Ask(c, cl, s.query)
	if err != nil {
		return err
	}
	list := s.read(r.Rows)
	if asJSON {
		return cli.PrintJSON(c, list)
	}
	return s.text(c, list)
}

// prospectsOf sums the rows of continuityQuery, which come from several listeners.
func prospectsOf(rows [][]any) []prospects {
	byOwner := map[[3]string]*prospects{}
	for _, row := range rows {
		cell := func(i int) string {
			if row[i] == nil {
				return ""
			}
			return fmt.Sprint(row[i])
		}
		key, n := [3]string{cell(0), cell(1), cell(2)}, 0
		_, _ = fmt.Sscan(cell(3), &n) // a number
		p := byOwner[key]
		if p == nil {
			p = &prospects{Application: key[0], User: key[1], Replica: key[2]}
			byOwner[key] = p
		}
		p.Sessions += n
		p.add(&p.Failover, n, notice{Event: inFailover, Reason: cell(5), Statement: cell(10)}, cell(4))
		p.add(&p.Node, n, notice{Event: nodeDies, Reason: cell(7), Statement: cell(10)}, cell(6))
		p.add(&p.Server, n, notice{Event: serverDies, Reason: cell(9), Statement: cell(10)}, cell(8))
		if fate := cell(11); fate != "" {
			p.Open += n
			p.add(&p.Replayed, n, notice{Event: ofOpen, Reason: cell(12)}, fate)
		}
		if cell(13) == unknownFate {
			p.Unknown += n
			p.note(n, notice{Event: ofCommit, Reason: cell(14)})
		}
	}
	list := []prospects{}
	for _, p := range byOwner {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b prospects) int {
		return cmp.Or(cmp.Compare(a.Application, b.Application), cmp.Compare(a.User, b.User), cmp.Compare(a.Replica, b.Replica))
	})
	return list
}

// add counts n sessions of a fate in an event.
func (p *prospects) add(kept *int, n int, why notice, fate string) {
	if fate != notKeptFate {
		*kept += n
		return
	}
	p.note(n, why)
}

// note counts n sessions of a notice.
func (p *prospects) note(n int, why notice) {
	i := slices.IndexFunc(p.Not, func(x notice) bool {
		return x.Event == why.Event && x.Reason == why.Reason && x.Statement == why.Statement
	})
	if i < 0 {
		p.Not = append(p.Not, why)
		i = len(p.Not) - 1
	}
	p.Not[i].Sessions += n
}

func printProspects(c *cobra.Command, list []prospects) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(cli.Out(c), "no client has a session")
		return err
	}
	t := tabwriter.NewWriter(cli.Out(c), 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "APPLICATION\tUSER\tSERVER\tSESSIONS\tKEPT IN A PLANNED FAILOVER\tIF THE NODE DIES\tIF POSTGRESQL DIES")
	for _, p := range list {
		cli.Linef(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", named(p.Application), p.User, p.Replica, p.Sessions, share(p.Failover, p.Sessions), share(p.Node, p.Sessions), share(p.Server, p.Sessions))
	}
	_, _ = fmt.Fprintln(t)
	for _, p := range list {
		for _, x := range p.Not {
			reason := x.Reason
			if x.Statement != "" {
				reason += " (" + x.Statement + ")"
			}
			cli.Linef(t, "%s\t%s\t%s\t%d\t%s: %s\n", named(p.Application), p.User, p.Replica, x.Sessions, x.Event, strings.TrimSpace(reason))
		}
	}
	return t.Flush()
}

func named(application string) string { return cmp.Or(application, "-") }

// share returns n of all in words.
func share(n, all int) string { return fmt.Sprintf("%d (%d %%)", n, 100*n/max(all, 1)) }
