package upgradecmd

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

const aboutAgents = `Replaces the agents of all nodes by the program that is installed there now, one after the other, while PostgreSQL goes on. Install the
package on every machine first: nothing that runs is touched by that. Then run this on any replica.

Witnesses come first, then secondaries, each when the one before is as well as it was: its agent answers with the installed version, its
vote counts, and a replica that was SYNCHRONIZED is so again. The primary comes last. It gives the leadership to a synchronized replica that has
the new program by then, in a planned failover, so that its clients notice least, and restarts as a secondary. With --in-place it stays the
primary: new transactions wait meanwhile, as for coterie restart, and no failover happens.

The sessions of a node's own listener end when its agent restarts, and may connect again at once. Other sessions go on, if they can be moved.

A node that runs its installed version is left alone. So the command can be run again after an interruption: what was done is left out.
It is refused while the nodes have different versions installed, as where the package was forgotten on one; --allow-mixed restarts those that would
change, and leaves the others. It is refused while a member does not answer, or runs a version that cannot be asked: run coterie restart there.

With --dry-run it prints the order and, for each node, the version that runs and the one that is installed, and changes nothing. To go back, install
the old program everywhere, and run this again.`

// upgradingAgents is one run of coterie upgrade agents.
type upgradingAgents struct {
	drain, wait                         time.Duration
	cut, inPlace, mixed, dryRun, asJSON bool

	c        *cobra.Command
	cl       *api.Client
	result   agentsResult
	upgraded map[ag.ReplicaID]bool
}

// agentsResult is the JSON document of the command.
type agentsResult struct {
	Agents   []agentLine `json:"agents"` // those to be restarted first, in that order
	Failover *moved      `json:"failover,omitempty"`
	DryRun   bool        `json:"dry_run,omitempty"`
}

// moved is the planned failover of the command.
type moved struct {
	From ag.ReplicaID `json:"from"`
	To   ag.ReplicaID `json:"to"`
}

func agentsCommand() *cobra.Command {
	x := &upgradingAgents{upgraded: map[ag.ReplicaID]bool{}}
	c := &cobra.Command{
		Use: "agents", Short: "Replace the agents of all nodes by the installed program, the primary's last", Long: aboutAgents, Args: cli.Args(0, "no arguments"),
		Example: "  coterie upgrade agents --dry-run\n  coterie upgrade agents\n  coterie upgrade agents --in-place --drain 30s",
		RunE: func(c *cobra.Command, _ []string) error {
			x.c = c
			return x.run()
		},
	}
	f := c.Flags()
	f.BoolVar(&x.dryRun, "dry-run", false, "print the order and the versions, and change nothing")
	f.BoolVar(&x.inPlace, "in-place", false, "restart the primary's agent where it is, without a failover: new transactions wait")
	f.BoolVar(&x.mixed, "allow-mixed", false, "go on although the nodes have different versions installed")
	f.DurationVar(&x.drain, "drain", 10*time.Second, "how long running transactions may take to end, on the primary")
	f.BoolVar(&x.cut, "cut", false, "cut transactions that still run then, instead of giving up")
	f.DurationVar(&x.wait, "wait", 10*time.Minute, "how long a node may take to be as well as before")
	f.BoolVar(&x.asJSON, "json", false, "print JSON")
	return c
}

// leastWait is the least time in which a node can be found to be well.
const leastWait = 5 * time.Second

func (x *upgradingAgents) run() (err error) {
	if x.drain < time.Millisecond || x.drain > cli.MaxDrain {
		return fail.Usagef("--drain %v: choose between 1ms and %v", x.drain, cli.MaxDrain)
	}
	if x.wait < leastWait {
		return fail.Usagef("--wait %v: choose at least %v", x.wait, leastWait)
	}
	if x.cl, err = cli.Client(x.c); err != nil {
		return err
	}
	l, err := x.look()
	if err != nil {
		return err
	}
	order := l.order()
	x.begin(l, order)
	err = l.judge(order)
	if x.dryRun {
		return errors.Join(x.foretell(), err)
	}
	if err == nil && l.s.Witness() && len(order) > 0 {
		err = fail.Refusedf("%s is a witness, which may not ask other nodes for that; run coterie upgrade agents on a replica. Nothing was changed", l.s.Node)
	}
	if err == nil {
		err = x.all(l, order)
	}
	if x.asJSON {
		return errors.Join(cli.PrintJSON(x.c, x.result), err)
	}
	return err
}

// begin notes what the command finds.
func (x *upgradingAgents) begin(l look, order []agentLine) {
	x.result = agentsResult{Agents: append([]agentLine{}, order...), DryRun: x.dryRun}
	for _, p := range l.programs {
		if !p.Changed() {
			x.result.Agents = append(x.result.Agents, agentLine{Node: p.Node, Running: p.Running, Installed: p.Installed, State: stateCurrent, Problem: p.Problem})
		}
	}
}

// look asks the node of the command for the group and its programs.
func (x *upgradingAgents) look() (look, error) {
	s, err := x.cl.Status(x.c.Context())
	if err != nil {
		return look{}, cli.NoAgent(x.c, err)
	}
	programs, err := x.cl.Programs(x.c.Context())
	if err != nil {
		return look{}, cli.NoAgent(x.c, err)
	}
	return look{s, programs, x.upgraded, x.inPlace, x.mixed}, nil
}

// foretell prints what would be done now.
func (x *upgradingAgents) foretell() error {
	defer cli.Say(x.c, "nothing was changed")
	if x.asJSON {
		return cli.PrintJSON(x.c, x.result)
	}
	changes := 0
	for _, a := range x.result.Agents {
		if a.State == stateWaits {
			changes++
		}
	}
	for i, a := range x.result.Agents {
		text := fmt.Sprintf("%d of %d: %s, %s\n        runs %s, installed is %s\n", i+1, changes, a.Node, a.says(), a.Running, a.Installed)
		switch {
		case a.Problem != "":
			text = fmt.Sprintf("%s: %s\n", a.Node, a.Problem)
		case a.State == stateCurrent:
			text = fmt.Sprintf("%s: runs %s, which is the version installed there; its agent is left alone\n", a.Node, a.Running)
		}
		if _, err := fmt.Fprint(cli.Out(x.c), text); err != nil {
			return err
		}
	}
	return nil
}

// all replaces one agent after the other. l and order are the first look.
func (x *upgradingAgents) all(l look, order []agentLine) error {
	total := len(order)
	if total == 0 {
		cli.Say(x.c, "every agent runs the version that is installed on its node; nothing to do")
		return nil
	}
	for len(order) > 0 {
		a := order[0]
		cli.Say(x.c, "%d of %d: %s, %s", len(x.upgraded)+1, max(total, len(x.upgraded)+len(order)), a.Node, a.says())
		began := time.Now()
		if err := x.one(l, a); err != nil {
			return x.stopped(err)
		}
		x.upgraded[a.Node] = true
		x.note(a.Node, stateUpgraded, time.Since(began))
		cli.Say(x.c, "%s runs %s after %v", a.Node, brief(a.Installed), time.Since(began).Round(100*time.Millisecond))
		var err error
		if l, err = x.look(); err == nil {
			order = l.order()
			err = l.judge(order)
		}
		if err != nil {
			return x.stopped(err)
		}
	}
	return nil
}

// note changes the state of an agent in the document.
func (x *upgradingAgents) note(id ag.ReplicaID, state string, took time.Duration) {
	for i := range x.result.Agents {
		if a := &x.result.Agents[i]; a.Node == id {
			a.State, a.Took = state, took.Nanoseconds()
		}
	}
}

// stopped returns an error with how far the command has come, and how to go on.
func (x *upgradingAgents) stopped(err error) error {
	in := map[string][]string{}
	for _, a := range x.result.Agents {
		in[a.State] = append(in[a.State], string(a.Node))
	}
	kind := fail.KindOf(err)
	if x.c.Context().Err() != nil {
		err, kind = errors.New("interrupted"), fail.Unhealthy
	}
	text := "upgraded: " + cmpNone(in[stateUpgraded])
	if asked := in[stateAsked]; len(asked) > 0 {
		text += "; asked, which goes on by itself: " + strings.Join(asked, ", ")
	}
	text += "; not asked: " + cmpNone(in[stateWaits])
	return fail.Error{Kind: kind, Err: fmt.Errorf("%w; %s. To go on: coterie upgrade agents, which leaves out what is done", err, text)}
}

func cmpNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// one replaces the agent of one node. A primary gives the leadership away first, or restarts in place.
func (x *upgradingAgents) one(l look, a agentLine) error {
	ctx := x.c.Context()
	was, _ := l.s.Replica(a.Node)
	if a.How == afterFailover {
		if err := x.giveAway(l, a); err != nil {
			return err
		}
		was.Role, was.Server = ag.RoleSecondary, ag.ServerRecovery
	}
	x.note(a.Node, stateAsked, 0)
	err := x.cl.RestartAgent(ctx, api.AgentRequest{Node: a.Node, Leads: a.How == inPlace, Drain: x.drain, Cut: x.cut})
	var answered fail.Error
	own := a.Node == l.s.Node && !errors.As(err, &answered) && !errors.Is(err, api.ErrNoAgent) // it may end before it has answered
	if err != nil && (!own || ctx.Err() != nil) {
		if errors.As(err, &answered) && answered.Kind != fail.Unhealthy {
			x.note(a.Node, stateWaits, 0)
		}
		return err
	}
	if err := x.replaced(a); err != nil {
		return err
	}
	if err := cli.AwaitReplica(x.c, x.cl, cli.Awaited{ID: a.Node, What: "be as well as before", Limit: x.wait}, func(s api.Status, m api.Replica) bool { return s.Quorum && asWell(m, was) }); err != nil {
		return err
	}
	s, err := x.cl.Status(ctx)
	if err == nil && a.How == inPlace && s.Primary != a.Node {
		cli.Say(x.c, "the leadership moved meanwhile: %s leads epoch %d; see coterie explain", s.Primary, s.Epoch)
	}
	return err
}

// giveAway has another replica lead, and waits until the former primary is as well as before.
func (x *upgradingAgents) giveAway(l look, a agentLine) error {
	may := l.mayLead()
	if len(may) == 0 {
		return fail.Refusedf("%s is the primary, and no synchronized secondary has its new program", a.Node)
	}
	to := may[0]
	out, err := x.cl.Failover(x.c.Context(), api.FailoverRequest{To: to, Drain: x.drain, Cut: x.cut})
	if err != nil {
		return err
	}
	x.result.Failover = &moved{a.Node, out.To}
	cli.Say(x.c, "%s leads now; %s was the primary", out.To, a.Node)
	return cli.AwaitReplica(x.c, x.cl, cli.Awaited{ID: a.Node, What: "follow the new primary", Limit: x.wait}, func(s api.Status, m api.Replica) bool {
		return s.Quorum && m.Role == ag.RoleSecondary && m.Sync == ag.Synchronized
	})
}

// asWell reports whether a member is as well as it was. A failover may have changed who leads.
func asWell(is, was api.Replica) bool {
	switch {
	case is.Name == "" || is.Connected != "CONNECTED" || is.NoVote != "" && was.NoVote == "":
		return false
	case was.Mode == ag.ConfigurationOnly || is.Role == ag.RolePrimary:
		return true
	}
	return (is.Sync == was.Sync || is.Sync == ag.Synchronized) && (is.Server == was.Server || is.Server == ag.ServerRecovery)
}

// answerBudget is how long a new agent may take to answer.
const answerBudget = time.Minute

// replaced waits until the agent of a node is another one. An earlier version does not say which it is.
func (x *upgradingAgents) replaced(a agentLine) error {
	budget := min(answerBudget, x.wait)
	ctx, cancel := context.WithTimeout(x.c.Context(), budget)
	defer cancel()
	said := fmt.Sprintf("%s does not answer", a.Node)
	for {
		programs, err := x.cl.Programs(ctx)
		if err != nil && ctx.Err() == nil { // it is the node of the command
			said = fmt.Sprintf("%s does not answer", a.Node)
		}
		for _, p := range programs {
			switch {
			case err != nil || p.Node != a.Node:
			case p.Silent:
				said = fmt.Sprintf("%s does not answer", a.Node)
			case p.Older || p.Running == a.Installed:
				return nil
			case p.Running != a.Running:
				return fail.Unhealthyf("%s runs %s since its restart, where %s was installed before; was the program replaced meanwhile?", a.Node, p.Running, a.Installed)
			default:
				said = fmt.Sprintf("%s still runs %s", a.Node, p.Running)
			}
		}
		if retry.Sleep(ctx, 100*time.Millisecond) != nil {
			return fail.Unhealthyf("%s %v after its agent was asked to restart; look at log/agent.log in its node directory, or journalctl -u coterie, and coterie status", said, budget)
		}
	}
}
