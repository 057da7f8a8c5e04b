package checkcmd

import (
	"fmt"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
)

// daily is what failovers would have kept of the sessions of one application and user in a day.
type daily struct {
	Day         string   `json:"day"` // UTC, as 2026-11-27
	Application string   `json:"application_name"`
	User        string   `json:"user"`
	Sessions    float64  `json:"sessions"` // mean of the looks in which there was one
	Failover    *float64 `json:"kept_in_failover_pct"`
	Node        *float64 `json:"kept_when_node_dies_pct"`
	Server      *float64 `json:"kept_when_server_dies_pct"`
	Open        float64  `json:"transactions_open"`
	Replayed    *float64 `json:"transactions_executed_again_pct"` // null: there was none
	Not         []why    `json:"not_kept,omitempty"`
}

// why is the most frequent reason in an event, by what a node has seen.
type why struct {
	Event  string `json:"event"`
	Reason string `json:"reason"`
}

const coverageQuery = `SELECT day, coalesce(application_name, '` + restOfNode + `'), coalesce(user_name, '` + restOfNode + `'), sessions,
failover_pct, failover_reason, node_loss_pct, node_loss_reason, server_loss_pct, server_loss_reason, open_transactions, replayed_pct, replayed_reason
FROM coterie.continuity_by_application ORDER BY 2, 3, 1, node`

// dailyOf joins the rows of coverageQuery, which come from several nodes and are sorted by application, user and day.
func dailyOf(rows [][]any) []daily {
	list := []daily{}
	for _, row := range rows {
		text := func(i int) string {
			if row[i] == nil {
				return ""
			}
			return fmt.Sprint(row[i])
		}
		number := func(i int) (f float64) {
			_, _ = fmt.Sscan(text(i), &f) // a number, or nothing
			return f
		}
		day := text(0)[:min(len(text(0)), len(time.DateOnly))]
		if n := len(list); n == 0 || list[n-1].Day != day || list[n-1].Application != text(1) || list[n-1].User != text(2) {
			list = append(list, daily{Day: day, Application: text(1), User: text(2)})
		}
		d := &list[len(list)-1]
		add := func(share **float64, event string, at int, weight, before float64) {
			if row[at] != nil {
				*share = mean(*share, before, number(at), weight)
			}
			if reason := (why{event, text(at + 1)}); reason.Reason != "" && !slices.Contains(d.Not, reason) {
				d.Not = append(d.Not, reason)
			}
		}
		add(&d.Failover, inFailover, 4, number(3), d.Sessions)
		add(&d.Node, nodeDies, 6, number(3), d.Sessions)
		add(&d.Server, serverDies, 8, number(3), d.Sessions)
		add(&d.Replayed, ofOpen, 11, number(10), d.Open)
		d.Sessions += number(3)
		d.Open += number(10)
	}
	return list
}

// mean returns the mean of two shares of so many sessions; nil is the share of none.
func mean(a *float64, ofA, b, ofB float64) *float64 {
	if a != nil && ofA+ofB > 0 {
		b = (*a*ofA + b*ofB) / (ofA + ofB)
	}
	return &b
}

func printDaily(c *cobra.Command, list []daily) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(cli.Out(c), "no client had a session since the nodes began to look, which they do once a minute")
		return err
	}
	t := tabwriter.NewWriter(cli.Out(c), 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "APPLICATION\tUSER\tDAY\tSESSIONS\tKEPT IN A PLANNED FAILOVER\tIF THE NODE DIES\tIF POSTGRESQL DIES\tTRANSACTIONS EXECUTED AGAIN")
	for _, d := range list {
		cli.Linef(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", named(d.Application), d.User, d.Day, few(d.Sessions), percent(d.Failover), percent(d.Node), percent(d.Server), percent(d.Replayed))
	}
	_, _ = fmt.Fprintln(t)
	for _, d := range list {
		for _, x := range d.Not {
			cli.Linef(t, "%s\t%s\t%s\t%s: %s\n", named(d.Application), d.User, d.Day, x.Event, x.Reason)
		}
	}
	return t.Flush()
}

// few returns a mean number of sessions: with a decimal if that says more.
func few(n float64) string {
	if n >= 10 || n == math.Trunc(n) {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.1f", n)
}

// percent returns a share in words. It is rounded down: 100 % is all.
func percent(share *float64) string {
	if share == nil {
		return "-"
	}
	return fmt.Sprintf("%d %%", int(*share+1e-9))
}
