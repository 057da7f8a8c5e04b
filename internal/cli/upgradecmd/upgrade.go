package upgradecmd

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/majors"
)

const about = `Gives the group another major version of PostgreSQL, with pg_upgrade and an outage. Run it on the primary's node; the programs of both
versions are on every replica. Try it with --dry-run first: that looks at everything that the upgrade needs, and changes nothing.

In this order: the group is put under maintenance, so that no failover begins; the primary's server ends; pg_upgrade makes a new data
directory beside the old one; the group passes to it in one transaction of its record; PostgreSQL starts on it; then the other replicas
follow, one after the other, with a copy of the new cluster, for which only pages that differ are sent. Writes are taken as soon as the
commit rule allows: without another copy, or with the first. All votes are kept.

Until the group has passed, nothing has changed for it: whatever is killed, it goes on with the old cluster or the new one, never with both.
The agent goes on by itself when it starts again, and so does this command when it is run again. coterie upgrade major --status shows
where the upgrade stands. --rollback gives it up. After the group has passed, the way back loses what was written since (--allow-data-loss),
and --link has none. Without --link the upgrade needs room for a second copy of the data, and takes longer.

With --blue-green the outage is a few seconds: the new cluster gets the rows by logical replication while clients go on, and they wait only
when the group passes to it. Most sessions go on at the new version. That needs wal_level=logical, room for a second copy, a primary key or replica identity for every table,
and nobody who changes definitions meanwhile; --dry-run names each object that stands in the way, and the command that mends it. A failover
or the end of the agent before the group has passed gives the upgrade up, and the old cluster goes on.
After the group has passed, the old cluster follows the new one by logical replication, for --return-within. Until then --rollback brings the
group back with every row, and clients wait as on the way there. --status shows how far it is, and --finish ends it. It ends by itself, and
the journal (coterie explain) says why, by a change of definitions, a failover, too much WAL that is kept for it, or a disk that is nearly full.

Refused are replicas that are not synchronized, logical slots, subscriptions, prepared transactions, tablespaces, an archive with a command
of yours, adopted clusters, a coterie.yaml that cannot be replaced, and whatever pg_upgrade --check finds. With coterie backup the archive
stays, and takes no WAL of the new cluster until coterie backup enable is run on the primary.`

// upgrading is one run of the command.
type upgrading struct {
	req                          api.MajorRequest
	dryRun, yes, asJSON          bool
	status, rollback, onlyLeader bool
	finishes                     bool
	returns                      time.Duration // for how long the old cluster follows

	c      *cobra.Command
	cl     *api.Client
	layout config.Layout
	was    time.Time     // when the upgrade was asked for that the node had begun before this command; zero: none
	began  time.Time     // the request; zero: an earlier run made it
	outage time.Duration // from then until writes were taken again
}

// outcome is the JSON document of the command.
type outcome struct {
	Plan      *api.MajorPlan `json:"plan,omitempty"`
	State     *state         `json:"state,omitempty"`
	Outage    time.Duration  `json:"outage_ns,omitempty"` // from the request until writes were taken again
	Followed  []ag.ReplicaID `json:"followed"`
	Remaining []string       `json:"remaining"`
}

// state is the state of the upgrade on this node.
type state struct {
	Phase major.Phase `json:"phase"`
	From  string      `json:"from"`
	To    string      `json:"to"`
	Mode  major.Mode  `json:"mode,omitempty"`
	Back  bool        `json:"back,omitempty"`
	Asked time.Time   `json:"asked"`
	Why   string      `json:"why,omitempty"`
	Next  string      `json:"next"`
	// Stage and Progress say how far a new cluster is that is filled by logical replication.
	Stage    major.Stage `json:"stage,omitempty"`
	Progress string      `json:"progress,omitempty"`
	// Return is the way back that loses nothing; absent: there was none.
	Return *major.Return `json:"return,omitempty"`
}

// Upgrade returns the command upgrade.
func Upgrade() *cobra.Command {
	c := &cobra.Command{
		Use: "upgrade", GroupID: "group", Short: "Give the group another version of Coterie, or another major version of PostgreSQL", Args: cli.Args(0, "a subcommand: agents or major"),
		Long: "Upgrades what the group runs: Coterie itself, or PostgreSQL to another major version. A minor version of PostgreSQL needs no command but coterie restart --postgres --all.",
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(agentsCommand(), majorCommand())
	return c
}

func majorCommand() *cobra.Command {
	x := &upgrading{}
	c := &cobra.Command{
		Use: "major", Short: "Upgrade PostgreSQL to another major version, with an outage", Long: about, Args: cli.Args(0, "no arguments"),
		Example: "  coterie upgrade major --to 17 --dry-run\n  coterie upgrade major --to 17 --link\n  coterie upgrade major --to 17 --blue-green --dry-run\n  coterie upgrade major --status\n  coterie upgrade major --rollback",
		RunE: func(c *cobra.Command, _ []string) error {
			x.c = c
			if c.Flags().Changed("return-within") {
				x.req.Return = &x.returns
			}
			return x.run()
		},
	}
	f := c.Flags()
	f.IntVar(&x.req.To, "to", 0, "the major version that the group is to have")
	f.StringVar(&x.req.BinDir, "pg-bindir", "", "the directory of its programs, on every replica (default: where each finds them)")
	f.BoolVar(&x.dryRun, "dry-run", false, "say what would be done and what stands in the way, and change nothing")
	f.BoolVar(&x.req.Link, "link", false, "by hard links: quicker, without room for a second copy, and without a way back once the group has passed")
	f.BoolVar(&x.req.BlueGreen, "blue-green", false, "by logical replication into a second cluster: clients wait for seconds; more is refused than without")
	f.BoolVar(&x.onlyLeader, "primary-only", false, "leave the copies of the other replicas as they are; run it again without this, and they follow")
	f.DurationVar(&x.req.Within, "within", 0, "how long automatic failover may be off for it (default: 2h)")
	f.DurationVar(&x.returns, "return-within", 24*time.Hour, "with --blue-green: how long the old cluster follows the new one, for a way back that loses nothing (0s: not at all)")
	f.BoolVar(&x.finishes, "finish", false, "have the old cluster follow no more after --blue-green: the way back loses what is written from then on")
	f.BoolVar(&x.yes, "yes", false, "do not ask for the name of the group on a terminal")
	f.BoolVar(&x.status, "status", false, "say where the upgrade on this node stands, and how it goes on")
	f.BoolVar(&x.rollback, "rollback", false, "give the upgrade up, or go back to the old cluster")
	f.BoolVar(&x.req.AllowDataLoss, "allow-data-loss", false, "with --rollback: accept the loss of what was written since the group has passed")
	f.BoolVar(&x.asJSON, "json", false, "print JSON")
	return c
}

func (x *upgrading) run() (err error) {
	if err := x.usage(); err != nil {
		return err
	}
	if x.cl, err = cli.Client(x.c); err != nil {
		return err
	}
	if x.layout, err = config.NewLayout(cli.Node(x.c)); err != nil {
		return err
	}
	u, err := majors.Read(x.layout)
	x.was = u.Asked
	switch {
	case err != nil:
		return err
	case x.status:
		return x.show(u)
	case x.rollback:
		return x.back(u)
	case x.finishes:
		return x.endReturn()
	case underWay(u) && !x.dryRun:
		cli.Say(x.c, "an upgrade of this node is under way (%s); going on with it", u.Phase)
		return x.finish(nil)
	case u.Phase == major.Done && !u.Back && u.To.Major == x.req.To && !x.dryRun: // it may lead since it has followed
		return x.finish(nil)
	}
	return x.begin()
}

func (x *upgrading) usage() error {
	switch {
	case x.status && (x.rollback || x.dryRun || x.req.To != 0), x.rollback && (x.dryRun || x.req.To != 0):
		return fail.Usagef("--status and --rollback go with no other request; choose one")
	case x.finishes && (x.status || x.rollback || x.dryRun || x.req.To != 0):
		return fail.Usagef("--finish goes with no other request")
	case x.req.Return != nil && !x.req.BlueGreen:
		return fail.Usagef("--return-within belongs to --blue-green: after pg_upgrade the old cluster does not follow")
	case x.req.Link && x.req.BlueGreen:
		return fail.Usagef("--link and --blue-green are two ways; choose one")
	case x.req.AllowDataLoss && !x.rollback:
		return fail.Usagef("--allow-data-loss belongs to --rollback: an upgrade loses nothing")
	case !x.status && !x.rollback && !x.finishes && x.req.To == 0:
		return fail.Usagef("name the version with --to, as in coterie upgrade major --to 17 --dry-run")
	}
	if x.req.BinDir != "" { // the agents work elsewhere
		dir, err := filepath.Abs(x.req.BinDir)
		if err != nil {
			return fail.Usagef("--pg-bindir %s: %w", x.req.BinDir, err)
		}
		x.req.BinDir = dir
	}
	return nil
}

// underWay reports whether the node's agent goes on with an upgrade when it starts.
func underWay(u major.Upgrade) bool {
	return u.Phase != "" && u.Phase != major.Done && u.Phase != major.GivenUp || u.Phase == major.Done && u.Return != nil && u.Return.Open && (u.Return.Asked || u.Return.Ended)
}

// begin shows the plan and, if that was asked for, has the agent begin.
func (x *upgrading) begin() error {
	s, err := x.cl.Status(x.c.Context())
	if err != nil {
		return cli.NoAgent(x.c, err)
	}
	req := x.req
	req.Act = api.MajorLook
	if x.onlyLeader && s.Required > 0 {
		return fail.Usagef("--primary-only: commits wait for at least %d of the other replicas here (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT), so the primary would take no writes until one follows; leave the flag away", s.Required)
	}
	if x.req.BlueGreen {
		cli.Say(x.c, "looking at the group, its databases and the new programs")
	} else {
		cli.Say(x.c, "looking at the group; where nothing stands in the way, pg_upgrade --check runs, too")
	}
	plan, err := x.cl.Major(x.c.Context(), req)
	if err != nil {
		return cli.NoAgent(x.c, err)
	}
	if !x.asJSON || len(plan.Obstacles) > 0 && !x.dryRun {
		x.print(plan)
	}
	if len(plan.Obstacles) > 0 {
		if x.asJSON {
			if err := cli.PrintJSON(x.c, outcome{Plan: &plan, Followed: []ag.ReplicaID{}, Remaining: []string{}}); err != nil {
				return err
			}
		}
		return fail.Refusedf("the group cannot be upgraded to PostgreSQL %d as it is (%d obstacles); nothing was changed", x.req.To, len(plan.Obstacles))
	}
	if x.dryRun {
		cli.Say(x.c, "nothing was changed")
		if x.asJSON {
			return cli.PrintJSON(x.c, outcome{Plan: &plan, Followed: []ag.ReplicaID{}, Remaining: []string{}})
		}
		return nil
	}
	if !x.yes && cli.Interactive(x.c) {
		if err := cli.Confirm(x.c, s.Group, "Writes wait for about %v. Type the name of the group to go on:", plan.Outage.Round(time.Second)); err != nil {
			return err
		}
	}
	req.Act = api.MajorBegin
	x.began = time.Now()
	begun, err := x.cl.Major(x.c.Context(), req)
	if err = x.answered(err); err != nil {
		return err
	}
	if len(begun.Obstacles) > 0 {
		x.print(begun)
		return fail.Refusedf("the group has changed since it was looked at; nothing was changed")
	}
	return x.finish(&plan)
}

// answered returns the error of a request after which the agent ends: its answer may be lost.
func (x *upgrading) answered(err error) error {
	var refused fail.Error
	if err == nil || !errors.As(err, &refused) && !errors.Is(err, api.ErrNoAgent) && x.c.Context().Err() == nil {
		return nil
	}
	return cli.NoAgent(x.c, err)
}
