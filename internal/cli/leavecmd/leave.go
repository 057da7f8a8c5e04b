package leavecmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/provision"
)

// The longest waits: for the answer of the member that removes this node, until this node knows that it was removed,
// and for the end of its agent. A fast shutdown of PostgreSQL writes a checkpoint.
const (
	removalLimit = 2 * time.Minute
	knownLimit   = 10 * time.Second
	stopLimit    = 10 * time.Minute
)

// leaving is one run of coterie leave.
type leaving struct {
	keep                       string
	yes, dryRun, asJSON, force bool
	oneCopy                    bool
	destroy                    bool // it is a run of coterie destroy
	steps                      []string

	layout   config.Layout
	cfg      config.Config
	client   *api.Client
	thisNode bool // of destroy: the group goes on
}

// outcome is the JSON document of coterie leave.
type outcome struct {
	provision.Departure
	DryRun    bool     `json:"dry_run,omitempty"`
	Steps     []string `json:"steps"`
	Remaining []string `json:"remaining"` // what is still to be done on other members
}

// Leave returns the command leave, with which a node leaves its group and keeps its data.
func Leave() *cobra.Command {
	x := &leaving{}
	c := &cobra.Command{
		Use: "leave", GroupID: "node", Short: "Leave the group, and keep the data as an ordinary data directory",
		Long: `Takes this node out of its group, stops its agent, and leaves its data behind as a data directory that pg_ctl starts by itself: a primary
with every row that had arrived here, and a history of its own from then on. No user data is deleted. Run it where the node is.

In this order: another member removes this node as coterie member remove does; the agent is stopped; PostgreSQL replays the WAL that is here; what
marks the data as the group's is taken out (standby.signal, coterie.copy, the members' slots, settings such as synchronous_standby_names, and
archive_mode and archive_command set with coterie settings while other members go on); the directory is moved, if --keep-data names another
place on its file system. If it ends before it is done, run it again: it goes on from where it was. An adopted cluster is given back as it
was found, as by coterie release.

Refused are: a primary that has other members (fail over first), a removal that would leave no majority of the votes that answers or no
synchronized secondary, and a group that is not in reach. With --force it leaves although the group is not
in reach; another member must run coterie member remove then. Of a group of two replicas, --leave-one-copy lets the primary go on as the only one. The last member of a group ends it.`,
		Example: `  coterie leave --dry-run                                          # what would be done, or why it is refused
  coterie leave --keep-data /var/lib/postgresql/orders             # then: pg_ctl -D /var/lib/postgresql/orders start
  coterie failover --to db2 && coterie leave                       # on a primary`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return x.noRoom(x.run(c)) },
	}
	f := c.Flags()
	f.StringVar(&x.keep, "keep-data", "", "move the data directory to this place, which must not exist (default: it stays where it is)")
	f.BoolVar(&x.yes, "yes", false, "do not ask for the name on a terminal")
	f.BoolVar(&x.dryRun, "dry-run", false, "say what would be done, and change nothing")
	f.BoolVar(&x.asJSON, "json", false, "print JSON")
	f.BoolVar(&x.force, "force", false, "leave without asking a group that is not in reach; coterie member remove on another member remains to be done")
	f.BoolVar(&x.oneCopy, "leave-one-copy", false, "leave although the primary then has the only copy")
	return c
}

// noRoom adds to an error of a full disk what to do: nothing is recorded, and no server starts, without room.
func (x *leaving) noRoom(err error) error {
	full := err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || strings.Contains(strings.ToLower(err.Error()), syscall.ENOSPC.Error()))
	if !full {
		return err
	}
	return fail.Unhealthyf("%w; make room there (old files in %s may go), and run %s again: it goes on", err, x.layout.Log(), x.command())
}

// command returns the command that this is a run of.
func (x *leaving) command() string {
	c := (&provision.Departure{Destroy: x.destroy}).Command(x.layout)
	if x.thisNode {
		c += " --this-node"
	}
	return c
}

// open finds the node, and returns the record of its departure; nil if there is none.
func (x *leaving) open(c *cobra.Command) (d *provision.Departure, err error) {
	if x.client, err = cli.Client(c); err != nil {
		return nil, err
	}
	if x.layout, err = config.NewLayout(cli.Node(c)); err != nil {
		return nil, err
	}
	return provision.ReadDeparture(x.layout)
}

func (x *leaving) run(c *cobra.Command) (err error) {
	d, err := x.open(c)
	if err != nil {
		return err
	}
	if d != nil && d.Destroy {
		return fail.Refusedf("%s is being destroyed; coterie destroy --node %s goes on with it", d.Node, x.layout.Dir)
	}
	if d != nil && d.Completed {
		if err := x.release(c); err != nil { // what root does may have been interrupted
			return err
		}
		cli.Say(c, "%s has left the group %s already", d.Node, d.Group)
		return x.report(c, *d, nil)
	}
	if x.cfg, err = config.Load(x.layout.Dir); err != nil && d == nil { // one that leaves may have none any more
		return fail.Error{Kind: fail.Usage, Err: err}
	}
	if d == nil && !x.dryRun {
		if err := x.confirm(c); err != nil {
			return err
		}
	}
	if os.Getuid() == 0 && x.layout.Owner() != 0 {
		return x.asOwner(c)
	}
	if d == nil {
		p, d, err := x.departure(c.Context(), c)
		if err != nil {
			return err
		}
		if x.dryRun {
			return x.foretell(c, p, *d)
		}
		if err := x.begin(c.Context(), c, p, d); err != nil {
			return err
		}
		return x.goOn(c, d)
	}
	cli.Say(c, "going on: %s is out of the group %s since %s", d.Node, d.Group, d.Since.Local().Format(time.DateTime))
	return x.goOn(c, d)
}

// goOn does what is left to do for a node that is out of its group, and reports it.
func (x *leaving) goOn(c *cobra.Command, d *provision.Departure) error {
	if err := x.finish(c, d); err != nil {
		return err
	}
	return x.report(c, *d, x.steps)
}

// finish stops the agent of a node that is out of its group, and makes its data an ordinary data directory.
func (x *leaving) finish(c *cobra.Command, d *provision.Departure) error {
	if err := x.place(d); err != nil {
		return err
	}
	if err := x.stop(c.Context(), c, d); err != nil {
		return err
	}
	return provision.Depart(c.Context(), x.layout, d, func(s string) { x.say(c, s) })
}

// say tells of a step that is done.
func (x *leaving) say(c *cobra.Command, step string) {
	x.steps = append(x.steps, step)
	cli.Say(c, "%s", step)
}

// place takes over a place that --keep-data names when the command is run again.
func (x *leaving) place(d *provision.Departure) error {
	if x.keep == "" || filepath.Clean(x.keep) == d.Data || x.cfg.PostgreSQL == nil {
		return nil
	}
	if d.Data == "" && !(d.Destroy && provision.HoldsCopy(x.layout, x.cfg)) {
		return fail.Usagef("%s held no whole copy when it began to leave, and there is none that could be moved; nothing was changed: leave --keep-data away", d.Node)
	}
	if err := x.checkKeep(); err != nil {
		return err
	}
	d.Data = filepath.Clean(x.keep)
	return d.Save(x.layout)
}

// checkKeep refuses a place for the data to which it cannot be moved. A node directory that is removed is none.
func (x *leaving) checkKeep() error {
	if x.destroy && provision.Inside(x.layout, x.keep) {
		return fail.Usagef("--keep-data %s is in the node directory, which is removed; nothing was changed: choose another place", x.keep)
	}
	return provision.CheckKeep(x.layout, x.cfg, x.keep)
}

// asOwner runs the command as the user that owns the node directory, and does what only root can.
func (x *leaving) asOwner(c *cobra.Command, flags ...string) error {
	args := append(append(slices.Clone(os.Args[1:]), "--node", x.layout.Dir, "--yes"), flags...)
	if err := nodecmd.AsOwner(c.Context(), x.layout, c.OutOrStdout(), c.ErrOrStderr(), args); err != nil || x.dryRun {
		return err
	}
	return x.release(c)
}

// release has the service manager not start the agent any more, and start an adopted cluster again. Only root can.
func (x *leaving) release(c *cobra.Command) error {
	if os.Getuid() != 0 || x.dryRun {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), releaseLimit) // also after a Ctrl-C that came too late
	defer cancel()
	if unit := nodecmd.Unit(ctx, x.layout.Dir); unit != "" {
		if out, err := exec.CommandContext(ctx, "systemctl", "disable", "--now", unit).CombinedOutput(); err != nil {
			cli.Say(c, "the unit was not disabled: %s; run systemctl disable --now %s", strings.TrimSpace(string(out)), unit)
		}
	}
	return nodecmd.Unmask(ctx, x.layout)
}

// releaseLimit is how long the service manager may take to let go of a node.
const releaseLimit = time.Minute

// confirm has a person type the node's name. A script is not asked.
func (x *leaving) confirm(c *cobra.Command) error {
	if x.yes || !cli.Interactive(c) {
		return nil
	}
	return cli.Confirm(c, x.cfg.Node, "%s leaves the group %s: its copy no longer counts, PostgreSQL here stops, and it can come back only by joining anew. Its data is kept. Type its name to go on:",
		x.cfg.Node, x.cfg.GroupName)
}

// departure returns how this node leaves its group, and the record of that, which is not on disk yet.
func (x *leaving) departure(ctx context.Context, c *cobra.Command) (plan, *provision.Departure, error) {
	st, err := x.client.Status(ctx)
	p := plan{forced: true}
	switch {
	case errors.Is(err, api.ErrNoAgent) && !x.force:
		return p, nil, fail.Unhealthyf("no agent runs %[1]s, so the group cannot be asked to remove %[2]s; nothing was changed. Start it: coterie agent --node %[1]s. "+
			"If that cannot be, or the group has removed %[2]s already: %[3]s --force", x.layout.Dir, x.cfg.Node, x.command())
	case err != nil && !errors.Is(err, api.ErrNoAgent):
		return p, nil, cli.NoAgent(c, err)
	case err == nil:
		if p, err = decide(st, wish{x.force, x.oneCopy, x.command()}); err != nil {
			return p, nil, err
		}
	}
	d := &provision.Departure{Node: x.cfg.Node, Group: x.cfg.GroupName, Last: p.last, Forced: p.forced, Since: time.Now().UTC().Truncate(time.Second)}
	if provision.HoldsCopy(x.layout, x.cfg) {
		d.Data = x.cfg.PostgreSQL.Data
	}
	if x.keep == "" {
		return p, d, nil
	}
	if err := x.checkKeep(); err != nil {
		return p, nil, err
	}
	if d.Data == "" {
		return p, nil, fail.Usagef("this node holds no whole copy that could be kept; nothing was changed: leave --keep-data away, or wait for the copy (coterie status)")
	}
	d.Data = filepath.Clean(x.keep)
	return p, d, nil
}

// begin has another member take this node out of the group, and records that the node leaves.
func (x *leaving) begin(ctx context.Context, c *cobra.Command, p plan, d *provision.Departure) error {
	if !p.removed && !p.last && !p.forced {
		cli.Say(c, "asking the group to remove %s", d.Node)
		if err := x.ask(ctx, c); err != nil {
			return err
		}
		cli.Say(c, "%s is not a member any more", d.Node)
	}
	fault.Point("leave.removed") // the group does not have this node; the node directory does not say so
	if err := d.Save(x.layout); err != nil {
		return err
	}
	fault.Point("leave.recorded") // the node directory says that the node leaves; its agent runs
	return nil
}

// ask returns once the group does not have this node any more. The answer to the request is often lost, because the
// removal ends the connection, and the quorum may need a moment where it loses the vote of the member that led it: then
// it is asked again.
func (x *leaving) ask(ctx context.Context, c *cobra.Command) error {
	ctx, cancel := context.WithTimeout(ctx, removalLimit)
	defer cancel()
	for {
		asked := x.client.Leave(ctx)
		if kind := fail.KindOf(asked); kind == fail.Refused || kind == fail.Usage {
			return asked
		}
		if x.out(ctx) {
			return nil
		}
		if asked == nil {
			asked = errors.New("the members still answer it as one of theirs")
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return fmt.Errorf("interrupted: the group may have removed %s already; its data is as it was. Run %s again: it goes on", x.cfg.Node, x.command())
		}
		if ctx.Err() != nil {
			return fail.Unhealthyf("%s was not seen to be out of the group within %v: %w; its data is as it was. See coterie status, and run %s again: it goes on", x.cfg.Node, removalLimit, asked, x.command())
		}
		cli.Say(c, "not yet; asking again")
	}
}

// out waits, for a while, until this node knows that the group does not have it any more.
func (x *leaving) out(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, knownLimit)
	defer cancel()
	for {
		if st, err := x.client.Status(ctx); err == nil && st.Availability.Removed {
			return true
		}
		if retry.Sleep(ctx, 100*time.Millisecond) != nil {
			return false
		}
	}
}

// stop ends this node's agent, and PostgreSQL with it, in order. It does nothing if none runs.
func (x *leaving) stop(ctx context.Context, c *cobra.Command, d *provision.Departure) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	told, said := 0, time.Now()
	for {
		unlock, err := config.Lock(x.layout)
		if err == nil {
			unlock()
			return nil
		}
		if err := d.Goes(x.layout); err != nil {
			return err
		}
		if pid, err := x.client.Process(ctx); err == nil && pid != told {
			if pid == 0 || syscall.Kill(pid, syscall.SIGTERM) != nil {
				return fail.Unhealthyf("the agent of %[1]s could not be stopped from here; stop it (systemctl stop coterie, or Ctrl-C where it runs), and run %[2]s again: it goes on", x.layout.Dir, x.command())
			}
			told = pid
			cli.Say(c, "stopping the agent and PostgreSQL")
		}
		if time.Since(said) > 5*time.Second {
			said = time.Now()
			cli.Say(c, "waiting for the end of the agent")
		}
		if retry.Sleep(ctx, 100*time.Millisecond) != nil {
			return fail.Unhealthyf("the agent of %[1]s still runs; see %[1]s/log/agent.log, stop it, and run %[2]s again: it goes on", x.layout.Dir, x.command())
		}
	}
}

// foretold returns the steps of a run without --dry-run.
func (x *leaving) foretold(p plan, d provision.Departure) (steps []string) {
	switch {
	case p.last:
		steps = append(steps, fmt.Sprintf("%s is the only member: the group %s ends", d.Node, d.Group))
	case p.removed:
		steps = append(steps, fmt.Sprintf("the group %s has removed %s already", d.Group, d.Node))
	case !p.forced:
		steps = append(steps, fmt.Sprintf("another member removes %s from the group %s", d.Node, d.Group))
	}
	stops := "the agent and PostgreSQL stop"
	if x.cfg.PostgreSQL == nil {
		stops = "the agent stops"
	}
	steps = append(steps, stops)
	if d.Data != "" {
		steps = append(steps, "PostgreSQL replays the WAL that is here, and its recovery ends", "the group's marks are taken out of "+x.cfg.PostgreSQL.Data)
	}
	if x.keep != "" {
		steps = append(steps, "the data directory is moved to "+d.Data)
	}
	return steps
}

// foretell prints what a run without --dry-run would do.
func (x *leaving) foretell(c *cobra.Command, p plan, d provision.Departure) error {
	steps := x.foretold(p, d)
	if x.asJSON {
		return cli.PrintJSON(c, outcome{Departure: d, DryRun: true, Steps: steps, Remaining: remaining(d)})
	}
	out := cli.Out(c)
	for _, s := range append(steps, remaining(d)...) {
		_, _ = fmt.Fprintln(out, s)
	}
	cli.Say(c, "nothing was changed")
	return nil
}

// remaining returns what is to be done on other members.
func remaining(d provision.Departure) []string {
	if !d.Forced {
		return []string{}
	}
	return []string{"on another member, unless another node has joined by this name: coterie member remove " + d.Node}
}

// report prints where the data is and how PostgreSQL is started on it.
func (x *leaving) report(c *cobra.Command, d provision.Departure, steps []string) error {
	if x.asJSON {
		return cli.PrintJSON(c, outcome{Departure: d, Steps: append([]string{}, steps...), Remaining: remaining(d)})
	}
	for _, s := range remaining(d) {
		cli.Say(c, "nobody was asked; it remains to run %s", s)
	}
	if len(d.Unset) > 0 {
		cli.Say(c, "removed, because the group goes on with them: %s; set them anew for an archive of its own", strings.Join(d.Unset, ", "))
	}
	if d.Data == "" {
		cli.Say(c, "%s has left the group %s; it holds no copy", d.Node, d.Group)
		return nil
	}
	cli.Say(c, "%s has left the group %s; its data is in %s. Start PostgreSQL on it, as its owner, with:", d.Node, d.Group, d.Data)
	_, err := fmt.Fprintln(cli.Out(c), d.Start)
	return err
}
