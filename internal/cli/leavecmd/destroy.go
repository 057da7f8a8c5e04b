package leavecmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/adopt"
	"github.com/coteriedb/coterie/internal/provision"
)

// destroying is one run of coterie destroy: the node leaves, and its directory is erased.
type destroying struct {
	leaving
	part string // what root has its owner do: partLeave, partErase; "": this is not run by root
}

// The parts of the command that root has the node's owner do: between them root does what only root can.
const (
	partLeave = "leave"
	partErase = "erase"
)

// destroyed is the JSON document of coterie destroy.
type destroyed struct {
	outcome
	Removes []string `json:"removes"` // what is removed for good
	Left    []string `json:"left"`    // files in the node directory that no node makes, which stay
}

// Destroy returns the command destroy, which ends this node, and with the last one the group, for good.
func Destroy() *cobra.Command {
	x := &destroying{leaving: leaving{destroy: true}}
	c := &cobra.Command{
		Use: "destroy", GroupID: "node", Short: "End this node, and with the last one the group, and remove its data and keys",
		Long: `Ends this node for good: another member removes it from the group, its agent, keeper and PostgreSQL stop, and its data, its keys and
certificates, its part in the quorum and its logs are removed. The last node of a group ends the group. It says what it removes and asks for
the group's name; a script says --yes.

While the group has other members it is refused without --this-node. To end a whole group, run it with --this-node on each secondary and
witness, and at last without on the primary. Refused as by coterie leave are a primary with other members, and a removal that would leave no
majority of the votes or no synchronized secondary.

--keep-data keeps the data as coterie leave does. An adopted cluster is never deleted: it is given back as it was found. Tablespaces and an
etcd of yours are not touched; what is left there is named. If it ends before it is done, run it again: it goes on.`,
		Example: `  coterie destroy --dry-run                                        # what would be removed, or why it is refused
  coterie destroy --this-node                                      # a secondary or a witness; the group goes on
  coterie destroy --keep-data /var/lib/postgresql/orders           # the node goes, its data stays`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return x.noRoom(x.run(c)) },
	}
	f := c.Flags()
	f.StringVar(&x.keep, "keep-data", "", "keep the data directory, and move it to this place, which must not exist")
	f.BoolVar(&x.thisNode, "this-node", false, "end this node alone; the group goes on without it")
	f.BoolVar(&x.yes, "yes", false, "do not ask for the group's name")
	f.BoolVar(&x.dryRun, "dry-run", false, "say what would be removed, and change nothing")
	f.BoolVar(&x.asJSON, "json", false, "print JSON")
	f.BoolVar(&x.force, "force", false, "do not ask a group that is not in reach; coterie member remove on another member remains to be done")
	f.BoolVar(&x.oneCopy, "leave-one-copy", false, "go although the primary then has the only copy")
	f.StringVar(&x.part, "part", "", "")
	_ = f.MarkHidden("part")
	return c
}

func (x *destroying) run(c *cobra.Command) (err error) {
	d, err := x.open(c)
	if err != nil {
		return err
	}
	if d == nil && provision.Bare(x.layout) {
		provision.RemoveEmpty(x.layout)
		cli.Say(c, "there is nothing of a node in %s", x.layout.Dir)
		return nil
	}
	if x.cfg, err = config.Load(x.layout.Dir); err != nil && d == nil {
		return fail.Error{Kind: fail.Usage, Err: fmt.Errorf("there is no node in %s; nothing was changed: %w", x.layout.Dir, err)}
	}
	begun := d != nil
	p := plan{}
	if !begun {
		if p, d, err = x.prepare(c); err != nil {
			return err
		}
	}
	if x.dryRun {
		return x.foretell(c, p, d)
	}
	if err := x.confirm(c, d, begun && d.Destroy); err != nil {
		return err
	}
	if os.Getuid() == 0 && x.layout.Owner() != 0 {
		return x.asOwner(c)
	}
	if !begun {
		if err := x.begin(c.Context(), c, p, d); err != nil {
			return err
		}
	}
	return x.goOn(c, d)
}

// prepare returns how the node is to go, and the record of that, which is not on disk yet.
func (x *destroying) prepare(c *cobra.Command) (plan, *provision.Departure, error) {
	others := x.others(c)
	if len(others) > 0 && !x.thisNode {
		return plan{}, nil, fail.Refusedf("the group %[1]s has other members: %[2]s; nothing was changed. To end this node alone: %[3]s --this-node. "+
			"To end the group: coterie destroy --this-node at each of the others first, at the primary last. One that is lost for good: coterie member remove NAME", x.cfg.GroupName, strings.Join(others, ", "), x.command())
	}
	p, d, err := x.departure(c.Context(), c)
	if err != nil {
		return p, nil, err
	}
	d.Destroy = true
	if x.keep == "" {
		if d.Data, err = x.spared(d); err != nil {
			return p, nil, err
		}
	}
	if p.forced && len(others) == 0 { // by what this node saw last
		d.Last, d.Forced = true, false
	}
	if d.Data == "" && x.cfg.PostgreSQL != nil {
		d.Outside = provision.OutsideData(x.cfg.PostgreSQL.Data)
	}
	if d.Last && x.cfg.Quorum != nil {
		d.Outside = append(d.Outside, "the group's record in your etcd: etcdctl del --prefix /coterie/v1/"+x.cfg.Group+"/")
	}
	return p, d, nil
}

// spared returns the data directory that is never deleted; "": it is. One that is not the node directory's own stays.
func (x *destroying) spared(d *provision.Departure) (string, error) {
	if x.cfg.PostgreSQL == nil {
		return "", nil
	}
	if _, err := adopt.Load(x.layout.State()); err == nil {
		if d.Data == "" {
			return "", fail.Refusedf("the adopted cluster in %s is no whole copy now, so it cannot be given back; nothing was changed: wait for the copy (coterie status)", x.cfg.PostgreSQL.Data)
		}
		return d.Data, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if filepath.Clean(x.cfg.PostgreSQL.Data) != x.layout.Data() {
		return d.Data, nil
	}
	return "", nil
}

// others returns the other members of the group, by the agent or else as this node saw them last.
func (x *destroying) others(c *cobra.Command) (names []string) {
	st, err := x.client.Status(c.Context())
	switch {
	case err == nil && st.Availability.Removed:
		return nil
	case err != nil || len(st.Replicas) == 0:
		return provision.OthersSeen(x.layout, x.cfg.Node)
	}
	for _, r := range st.Replicas {
		if r.Name == st.Node {
			continue
		}
		text := string(r.Name)
		if r.Connected != "CONNECTED" {
			text += " (does not answer)"
		}
		names = append(names, text)
	}
	return names
}

// removes returns what is removed for good.
func (x *destroying) removes(d *provision.Departure) (all []string) {
	l := x.layout
	if _, err := os.Stat(l.Data()); err == nil && d.Data == "" {
		all = append(all, "the data: "+l.Data())
	}
	all = append(all, "keys and certificates: "+l.PKI())
	if _, err := os.Stat(l.Backup()); err == nil {
		all = append(all, "the configuration of its backups, and the repository's key (the repository stays): "+l.Backup())
	}
	if _, err := os.Stat(l.Etcd()); err == nil {
		all = append(all, "its part in the quorum: "+l.Etcd())
	}
	if kept, err := os.ReadDir(l.Forked()); err == nil && len(kept) > 0 {
		all = append(all, fmt.Sprintf("%d tails of diverged WAL: %s", len(kept), l.Forked()))
	}
	return append(all, "configuration, marks and logs: "+l.Dir)
}

// confirm names the things that are removed, and has a person type the group's name. A run that goes on is not
// confirmed again.
func (x *destroying) confirm(c *cobra.Command, d *provision.Departure, begun bool) error {
	if x.yes || begun {
		return nil
	}
	if !cli.Interactive(c) {
		return fail.Refusedf("%s would be removed for good; nothing was changed: say --yes where nobody can be asked, or --dry-run to see what is removed", d.Node)
	}
	cli.Say(c, "removed for good:\n  %s", strings.Join(x.removes(d), "\n  "))
	if d.Data != "" {
		cli.Say(c, "kept: the data, in %s", d.Data)
	}
	what := fmt.Sprintf("%s leaves the group %s", d.Node, d.Group)
	if d.Last {
		what = fmt.Sprintf("%s is the last member: the group %s ends", d.Node, d.Group)
	}
	return cli.Confirm(c, d.Group, "%s. Type the group's name to go on:", what)
}

// asOwner runs the command as the user that owns the node directory, and between the departure and the erasure does
// what only root can.
func (x *destroying) asOwner(c *cobra.Command) error {
	if err := x.leaving.asOwner(c, "--part", partLeave); err != nil {
		return err
	}
	if err := x.leaving.asOwner(c, "--part", partErase); err != nil {
		return err
	}
	provision.RemoveEmpty(x.layout) // its parent may be root's
	return nil
}

// goOn does what is left to do for a node that is out of its group.
func (x *destroying) goOn(c *cobra.Command, d *provision.Departure) error {
	switch {
	case !d.Completed:
		if err := x.finish(c, d); err != nil {
			return err
		}
	case x.keep != "" && filepath.Clean(x.keep) != d.Data:
		return fail.Usagef("%s has left already, so --keep-data comes too late; nothing was changed: leave it away", d.Node)
	}
	if !d.Destroy { // it was left by coterie leave, whose data directory stays
		if d.Destroy = true; d.Save(x.layout) != nil {
			return fail.Unhealthyf("%s cannot be written; nothing was removed", x.layout.LeavingFile())
		}
	}
	if x.part == partLeave {
		return nil
	}
	if a, err := adopt.Load(x.layout.State()); err == nil && x.part == "" {
		if unit, _ := a.MaskedUnit(); unit != "" {
			d.Outside = append(d.Outside, "as root: systemctl unmask "+unit)
		}
	}
	removes := x.removes(d)
	left, err := provision.Erase(x.layout, d, func(s string) { x.say(c, s) })
	if err != nil {
		return err
	}
	return x.report(c, d, removes, left)
}

// report tells of the end, with the things that are left outside the node.
func (x *destroying) report(c *cobra.Command, d *provision.Departure, removes, left []string) error {
	rest := slices.Concat(remaining(*d), d.Outside)
	if x.asJSON {
		return cli.PrintJSON(c, destroyed{outcome{Departure: *d, Steps: append([]string{}, x.steps...), Remaining: append([]string{}, rest...)}, removes, append([]string{}, left...)})
	}
	for _, s := range rest {
		cli.Say(c, "it remains: %s", s)
	}
	for _, s := range left {
		cli.Say(c, "not made by a node, and left: %s", s)
	}
	if d.Last {
		cli.Say(c, "the group %s has ended; nothing of %s is left", d.Group, d.Node)
	} else {
		cli.Say(c, "%s has left the group %s for good", d.Node, d.Group)
	}
	if d.Data == "" {
		return nil
	}
	cli.Say(c, "its data is in %s. Start PostgreSQL on it, as its owner, with:", d.Data)
	_, err := fmt.Fprintln(cli.Out(c), d.Start)
	return err
}

// foretell prints what a run without --dry-run would do.
func (x *destroying) foretell(c *cobra.Command, p plan, d *provision.Departure) error {
	steps := x.foretold(p, *d)
	if d.Completed {
		steps = nil
	}
	removes := x.removes(d)
	rest := slices.Concat(remaining(*d), d.Outside)
	if x.asJSON {
		return cli.PrintJSON(c, destroyed{outcome{Departure: *d, DryRun: true, Steps: append([]string{}, steps...), Remaining: append([]string{}, rest...)}, removes, []string{}})
	}
	out := cli.Out(c)
	for _, s := range steps {
		_, _ = fmt.Fprintln(out, s)
	}
	for _, s := range removes {
		_, _ = fmt.Fprintln(out, "removed for good: "+s)
	}
	if d.Data != "" {
		_, _ = fmt.Fprintln(out, "kept: the data, in "+d.Data)
	}
	for _, s := range rest {
		_, _ = fmt.Fprintln(out, "it remains: "+s)
	}
	cli.Say(c, "nothing was changed")
	return nil
}
