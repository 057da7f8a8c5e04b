package restartcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// serverOptions are those of a restart of PostgreSQL.
type serverOptions struct {
	req                api.RestartRequest
	name               ag.ReplicaID // "": this node's
	all, pending, json bool
	dryRun             bool
}

// Restart returns the command restart, which replaces the agent and keeps PostgreSQL running, or restarts PostgreSQL.
func Restart() *cobra.Command {
	var o serverOptions
	var postgres bool
	c := &cobra.Command{
		Use: "restart [NAME]", GroupID: "node", Short: "Restart this node's agent while its PostgreSQL goes on; or PostgreSQL, with --postgres",
		Long: `Replaces the running agent by the program as it is installed now, for an upgrade or a changed coterie.yaml, without stopping PostgreSQL.

On every node the sessions of its own listener end (57P01) and may connect again at once: readers, and on a secondary also writers that it
passed on to the primary. Its ports, its console among them, do not answer for a moment, and a backup that it makes ends.

A secondary's server goes on. Its readers that came through another node's listener go on at another secondary, if they can be moved, else
they get what a lost server gives them. Replication and commits that count on it wait for its stream. A witness has no server.

On the primary new transactions wait and running ones end first, as in a planned failover. Sessions that came through another node's
listener go on at the same server, if they can be moved. The leadership stays where it is, in the same epoch. If the new agent has not taken over within three seconds, the server
is fenced and another replica takes over. Where a client must see nothing of it, make another replica the primary first: coterie failover.

With --postgres it is PostgreSQL that restarts, of this node or of NAME, as changed settings may need: --pending chooses the replicas that
wait for it, --all every replica. They restart one after the other, each when the one before is as well as it was, the primary last:
it gives the leadership away first, by a planned failover. Where a setting is lowered of which no secondary may have less than the primary,
such as max_connections, the primary restarts before them, in place: it leads on, its sessions are closed, and new transactions wait.
Readers of a replica that restarts are closed and may connect again.

With --dry-run it says in which order that would be, and what each restart would do, and changes nothing. Interrupted, it asks for no
further restart; the one that was asked for goes on, and the same command begins anew.`,
		Example: "  coterie restart\n  coterie restart --drain 30s --cut\n  coterie restart --postgres n2\n  coterie restart --postgres --pending\n  coterie restart --postgres --all --dry-run",
		Args:    cli.ArgsBetween(0, 1, "[NAME]"),
		RunE: func(c *cobra.Command, a []string) error {
			if !postgres && (len(a) > 0 || o.all || o.pending || o.dryRun) {
				return fail.Usagef("coterie restart alone restarts this node's agent, and PostgreSQL goes on; to restart PostgreSQL: %s", withPostgres(a, o))
			}
			if len(a) > 0 {
				if o.all || o.pending {
					return fail.Usagef("%s or --all or --pending: choose one", a[0])
				}
				o.name = ag.ReplicaID(cli.MemberName(a[0]))
			}
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			if o.req.Drain < time.Millisecond || o.req.Drain > cli.MaxDrain {
				return fail.Usagef("--drain %v: choose between 1ms and %v", o.req.Drain, cli.MaxDrain)
			}
			if postgres {
				return restartServers(c, cl, o)
			}
			return restart(c, cl, o.req, o.json)
		},
	}
	c.Flags().BoolVar(&postgres, "postgres", false, "restart PostgreSQL, not the agent")
	c.Flags().BoolVar(&o.all, "all", false, "with --postgres: of every replica, one after the other, the primary last")
	c.Flags().BoolVar(&o.pending, "pending", false, "with --postgres: of the replicas with a setting that waits for a restart")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "with --postgres: say what would be done, and change nothing")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.Flags().DurationVar(&o.req.Drain, "drain", 10*time.Second, "how long running transactions may take to end, on the primary")
	c.Flags().BoolVar(&o.req.Cut, "cut", false, "cut transactions that still run then, instead of giving up")
	return c
}

// withPostgres returns the command that was meant, where --postgres is missing.
func withPostgres(a []string, o serverOptions) string {
	words := append([]string{"coterie restart --postgres"}, a...)
	for _, f := range []struct {
		given bool
		flag  string
	}{{o.all, "--all"}, {o.pending, "--pending"}, {o.dryRun, "--dry-run"}, {o.json, "--json"}} {
		if f.given {
			words = append(words, f.flag)
		}
	}
	return strings.Join(words, " ")
}

// successorBudget is the time in which the new agent must answer.
const successorBudget = 30 * time.Second

// replaced is what coterie restart --json prints of an agent.
type replaced struct {
	Node   ag.ReplicaID  `json:"node"`
	Epoch  ag.Epoch      `json:"epoch"`
	TookNS time.Duration `json:"took_ns"`
}

// beside returns what there is to say beside that an agent was restarted.
func beside(s api.Status) string {
	switch {
	case s.Availability.Removed:
		return fmt.Sprintf("; %s was removed from the group and serves nobody. To take the node apart: coterie leave; to bring this machine back: coterie join in an empty directory", s.Node)
	case s.Witness():
		return ""
	}
	return "; PostgreSQL went on"
}

// restart asks the agent to restart and waits until the new agent answers. A moved leadership is an unhealthy error.
func restart(c *cobra.Command, cl *api.Client, req api.RestartRequest, asJSON bool) error {
	was, err := cl.Status(c.Context())
	if err != nil {
		return cli.NoAgent(c, err)
	}
	if err := cl.Restart(c.Context(), req); err != nil {
		var answered fail.Error
		if errors.As(err, &answered) || errors.Is(err, api.ErrNoAgent) || c.Context().Err() != nil {
			return cli.NoAgent(c, err)
		}
		// The agent ended before its answer was read.
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.Context(), successorBudget)
	defer cancel()
	for {
		s, err := cl.Status(ctx)
		if err == nil && s.Restarted(time.Since(began)) && (s.WriteOpen || !was.WriteOpen || s.Availability.Removed) {
			if was.Primary == was.Node && (s.Primary != s.Node || s.Epoch != was.Epoch) {
				return fail.Unhealthyf("the agent restarted, but the leadership moved: %s leads epoch %d; see coterie explain", s.Primary, s.Epoch)
			}
			if asJSON {
				return cli.PrintJSON(c, replaced{s.Node, s.Epoch, time.Since(began)})
			}
			cli.Say(c, "the agent of %s was restarted in %v%s", s.Node, time.Since(began).Round(time.Millisecond), beside(s))
			return nil
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			return fail.Unhealthyf("the new agent has not answered within %v; see its log, and coterie status", successorBudget)
		}
	}
}
