package nodecmd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/fencetime"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/provision"
)

// Restored is the first node of a new group whose cluster comes from a backup.
type Restored struct {
	NodeFlags
	Dir   string // the node directory, empty or not there
	Group string // the name of the group
	Major int    // PostgreSQL's, of the backup

	Profile string
}

// Place is what a cluster is restored with, and into.
type Place struct {
	Node, Data, BinDir, Superuser string
}

// AboutJSON says in a help what --json prints of a node that was restored.
const AboutJSON = aboutJSON

// AddFlags adds the flags of a node.
func (r *Restored) AddFlags(c *cobra.Command) {
	r.add(c, true)
	r.addServer(c)
	c.Flags().Lookup("pg-major").Usage = "PostgreSQL major version: that of the backup, and no other"
	c.Flags().Lookup("superuser").Usage = `the bootstrap superuser of the cluster that was backed up (default "postgres")`
	c.Flags().StringVar(&r.Profile, "profile", "default", "lease profile: default, fast or wan")
}

// CheckDir returns an error unless a new node can be made in the directory. A node that is there is never written over.
func (r *Restored) CheckDir() error {
	if _, err := os.Lstat(filepath.Join(r.Dir, config.File)); err == nil {
		cfg, err := config.Load(r.Dir)
		if err != nil {
			return err
		}
		return fail.Refusedf("%s is the node %s of the group %s, and nothing is restored into a group that is there: its replicas hold what came after the backup, and would not follow. "+
			"Nothing was changed. Name an empty directory with --new-group: copy the rows back that you miss, or let the clients go to the new group and then end the old one (docs/how-to/restore.md)", r.Dir, cfg.Node, cfg.GroupName)
	}
	if _, ok := ag.Profiles[r.Profile]; !ok {
		return fail.Usagef("--profile %q: default, fast or wan", r.Profile)
	}
	if !groupName.MatchString(r.Group) {
		return fail.Usagef("--group %q: a group's name has letters, digits, and _ - . between them, 128 at most", r.Group)
	}
	_, err := provision.EmptyLayout(r.Dir)
	return err
}

// GiveDir makes the node directory and gives it to the server's user, if this process is root. args are run as that
// user then, and done is true. Where they fail and leave nothing in the directory, the disk is as it was before.
func (r *Restored) GiveDir(c *cobra.Command, args []string) (done bool, err error) {
	if os.Getuid() != 0 {
		return false, nil
	}
	u, err := daemon.ServerUser()
	if err != nil {
		return true, err
	}
	takeBack, err := daemon.MakeDirectory(r.Dir, u, "--new-group")
	if err != nil {
		return true, err
	}
	if err := AsServerUser(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), args); err != nil {
		takeBack()
		return true, err
	}
	return true, nil
}

// Check looks for problems of the new node before anything is restored.
func (r *Restored) Check(ctx context.Context) error {
	if _, err := r.config(ctx, "replica"); err != nil {
		return err
	}
	if r.major != 0 && r.major != r.Major {
		return fail.Usagef("--pg-major %d: the backup is of PostgreSQL %d, and is restored to that; leave the flag away", r.major, r.Major)
	}
	r.major = r.Major
	_, err := r.Install(ctx)
	return err
}

// Found makes the node directory, has fill restore a cluster into it which has shut down as a primary, and founds a
// group on that. If it fails, nothing stays. The quorum and the time to fence are checked before fill, which may take
// hours.
func (r *Restored) Found(c *cobra.Command, fill func(ctx context.Context, p Place) error) (err error) {
	ctx := c.Context()
	cfg, err := r.config(ctx, "replica")
	if err != nil {
		return err
	}
	r.major = r.Major
	in, err := r.Install(ctx)
	if err != nil {
		return err
	}
	l, err := provision.FreshDir(r.Dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			provision.Rollback(l)
		}
	}()
	cfg.Group, cfg.GroupName = string(provision.NewGroup()), r.Group
	cfg.PostgreSQL = &config.PostgreSQL{BinDir: in.BinDir, Data: l.Data(), Superuser: cmp.Or(r.superuser, "postgres")}
	if _, err := provision.ReachQuorum(ctx, cfg, ag.GroupID(cfg.Group), true); err != nil {
		return err
	}
	if _, err := fencetime.Save(ctx, l, r.Profile); err != nil {
		return err
	}
	if err := fill(ctx, Place{Node: l.Dir, Data: l.Data(), BinDir: in.BinDir, Superuser: cfg.PostgreSQL.Superuser}); err != nil {
		return err
	}
	pg, err := pgserver.NewInstance(cfg, l, nil)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	ctl, err := pg.Control(ctx)
	if err != nil {
		return err
	}
	if ctl.State != "shut down" {
		return fmt.Errorf("the restored cluster is %q, not shut down", ctl.State)
	}
	if err := durable.Replace(filepath.Join(l.Data(), "standby.signal"), nil, 0o600); err != nil { // as every node's
		return fmt.Errorf("create standby.signal: %w", err)
	}
	return provision.FoundGroup(ctx, provision.FirstNode{Layout: l, Config: cfg, PostgreSQL: pg, Major: in.Major, Profile: r.Profile})
}

// Start starts the agent of the new node, or says how that is done.
func (r *Restored) Start(c *cobra.Command) error {
	if !r.noStart {
		cli.Say(c, "the group %s is made of %s", r.Group, r.Dir)
	}
	return startOrSay(c, r.Dir, r.noStart)
}
