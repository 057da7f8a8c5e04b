package nodecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/adopt"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/provision"
)

// maskedEnv names the environment variable in which root passes the unit that it has masked to the process of the
// server's user.
const maskedEnv = "COTERIE_MASKED_UNIT"

// adoptFlags are the flags of init that take over an existing cluster.
type adoptFlags struct {
	target, configFile, root  string
	yes, dryRun, dropStandbys bool
}

func (a *adoptFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&a.target, "adopt", "", "take over a stopped cluster: its data directory, or VERSION/NAME as in pg_lsclusters; prints a report and changes nothing without --yes")
	fl.StringVar(&a.configFile, "config-file", "", "with --adopt: postgresql.conf, where it is neither in the data directory nor in /etc/postgresql")
	fl.BoolVar(&a.yes, "yes", false, "with --adopt: go ahead")
	fl.BoolVar(&a.dryRun, "dry-run", false, "with --adopt: print the report only, also with --yes")
	fl.BoolVar(&a.dropStandbys, "drop-standbys", false, "with --adopt: drop physical replication slots; standbys of the cluster are cut off")
	fl.StringVar(&a.root, "adopt-root", "", "directory that stands before /etc, /lib and /run")
	_ = fl.MarkHidden("adopt-root")
}

// given reports whether a flag was given that has no meaning without --adopt.
func (a *adoptFlags) given() bool {
	return a.configFile != "" || a.yes || a.dryRun || a.dropStandbys
}

// adoption is one run of init --adopt.
type adoption struct {
	*adoptFlags
	node    *NodeFlags
	layout  config.Layout
	cfg     config.Config
	install programs.Install
	pg      *postgres.Instance
	report  *adopt.Report
}

// adoptNode reports on the cluster and, with --yes, makes it the first node of a new group.
func adoptNode(c *cobra.Command, f *NodeFlags, a *adoptFlags, g newGroup) error {
	if os.Getuid() == 0 {
		if done, err := adoptAsRoot(c, g.dir, a); done || err != nil {
			return err
		}
	}
	if err := daemon.BecomeServerUser(g.dir); err != nil {
		return err
	}
	defer daemon.TakeBack()
	x := &adoption{adoptFlags: a, node: f}
	var err error
	if x.layout, err = config.NewLayout(g.dir); err != nil {
		return err
	}
	if err := x.inspect(c, g.name); err != nil {
		return err
	}
	defer func() { _ = x.pg.Close() }()
	x.report.Print(c.OutOrStdout(), strings.Split(x.cfg.ReadWrite.Listen, ","))
	switch {
	case len(x.report.Refusals) > 0:
		return fail.Refusedf("%s cannot be adopted, for %d reason(s) named above; nothing was changed", x.report.Data, len(x.report.Refusals))
	case !a.yes || a.dryRun:
		cli.Say(c, "\nThe cluster can be adopted. Nothing was changed; to go ahead, run the same command with --yes.")
		return nil
	}
	if err := x.take(c, g.profile); err != nil {
		return err
	}
	daemon.TakeBack()
	return startOrSay(c, g.dir, f.noStart)
}

// inspect finds and examines the cluster, and decides the configuration of the new node. It writes nothing.
func (x *adoption) inspect(c *cobra.Command, group string) error {
	ctx := c.Context()
	cluster, err := adopt.Find(x.root, x.target, x.configFile)
	if err != nil {
		return asRefusal(err)
	}
	if x.node.major != 0 && x.node.major != cluster.Major {
		return fail.Usagef("--pg-major %d: the cluster has PostgreSQL %d", x.node.major, cluster.Major)
	}
	x.node.major = cluster.Major
	if x.install, err = x.node.Install(ctx); err != nil {
		return err
	}
	if x.install.Major != cluster.Major {
		return fail.Refusedf("the cluster has PostgreSQL %d, the programs in %s are of %s: name the right directory with --pg-bindir", cluster.Major, x.install.BinDir, x.install.Version)
	}
	takeOver := !c.Flags().Changed("read-write")
	readWrite := x.node.ReadWrite
	if takeOver {
		x.node.ReadWrite = "" // decided when the port of the cluster is known
	}
	if x.cfg, err = x.node.config(ctx, "replica"); err != nil {
		return err
	}
	x.cfg.Group, x.cfg.GroupName = uuid.NewString(), group
	x.cfg.PostgreSQL = &config.PostgreSQL{BinDir: x.install.BinDir, Data: cluster.Data, Superuser: x.node.superuser}
	if cluster.Apart() {
		x.cfg.PostgreSQL.ConfigFile = cluster.ConfigFile
	}
	if x.pg, err = pgserver.NewInstance(x.cfg, x.layout, nil); err != nil {
		return err
	}
	x.report, err = adopt.Inspect(ctx, cluster, adopt.Options{
		BinDir: x.install.BinDir, NodeDir: x.layout.Dir, DropStandbys: x.dropStandbys, Superuser: x.node.superuser,
		JudgeRules: func(text string) []adopt.Rule { return judgeRules(text, cluster.Major) },
		CheckCRL:   func(path string) error { _, err := clientcert.Open(path, nil); return err },
		Overrides:  func() map[string]string { return commandLine(x.pg.Args()) },
	})
	if err != nil {
		return err
	}
	if takeOver {
		readWrite = takenOverPort(x.report)
	}
	if readWrite != "" {
		if err := provision.PortFree(ctx, readWrite); err != nil && len(x.report.Refusals) == 0 {
			return fmt.Errorf("the port of the clients, %s, cannot be used: %w; stop the program that uses it, or choose another with --read-write", readWrite, err)
		}
		x.cfg.ReadWrite = x.clientAddress(ctx, readWrite)
	}
	return x.settleSuperuser()
}

// settleSuperuser makes the instance again when the name of the bootstrap superuser is known, because that name is on
// the server's command line.
func (x *adoption) settleSuperuser() error {
	if x.node.superuser == "" {
		x.cfg.PostgreSQL.Superuser = "postgres"
		if found := x.report.Roles.Superuser; found != "" {
			x.cfg.PostgreSQL.Superuser = found
		}
	}
	err := x.pg.Close()
	if err == nil {
		x.pg, err = pgserver.NewInstance(x.cfg, x.layout, nil)
	}
	return err
}

// asRefusal gives a refusal of package adopt the exit code of a refusal. It returns other errors unchanged.
func asRefusal(err error) error {
	var r adopt.RefusedError
	if errors.As(err, &r) {
		return fail.Refusedf("%w; nothing was changed", err)
	}
	return err
}

// commandLine reads the -c name=value pairs of a server's arguments.
func commandLine(args []string) map[string]string {
	set := map[string]string{}
	for i, a := range args {
		if name, value, ok := strings.Cut(a, "="); ok && i > 0 && args[i-1] == "-c" {
			set[name] = value
		}
	}
	return set
}

// takenOverPort returns the address and port at which the clients reach the cluster today.
func takenOverPort(r *adopt.Report) string {
	var hosts []string
	for h := range strings.SplitSeq(r.Addresses, ",") {
		if h = strings.TrimSpace(h); h != "" {
			hosts = append(hosts, h)
		}
	}
	switch {
	case len(hosts) == 0, len(hosts) == 1 && hosts[0] == "localhost":
		return net.JoinHostPort("127.0.0.1", r.Port)
	case len(hosts) == 1 && hosts[0] != "*":
		return net.JoinHostPort(hosts[0], r.Port)
	}
	return ":" + r.Port
}

// clientAddress returns the address for clients: listen and the local sockets of the cluster.
func (x *adoption) clientAddress(ctx context.Context, listen string) config.Address {
	host, port, _ := net.SplitHostPort(listen)
	if host == "" || host == "0.0.0.0" || host == "::" {
		if host = x.node.address; host == "" {
			host = provision.OwnAddress(ctx)
		}
	}
	a := config.Address{Listen: listen, Advertise: net.JoinHostPort(host, port)}
	for _, dir := range x.report.Sockets {
		path := filepath.Join(dir, ".s.PGSQL."+x.report.Port)
		if len(path) < 107 && !strings.ContainsAny(path, ",:[]") && syscall.Access(dir, 2) == nil {
			a.Listen += "," + path
		}
	}
	return a
}

// take adopts the cluster as the report announced. If a step fails, it undoes the earlier ones.
func (x *adoption) take(c *cobra.Command, profile string) (err error) {
	l, err := provision.FreshDir(x.layout.Dir)
	if err != nil {
		return err
	}
	x.layout = l
	var taken *adopt.Adopted
	defer func() {
		if err == nil {
			return
		}
		if taken != nil {
			if undo := taken.Undo(x.cleanAutoConf); undo != nil {
				err = fmt.Errorf("%w; and not everything could be taken back: %w; %s says what was changed", err, undo, filepath.Join(l.State(), adopt.RecordFile))
				return
			}
		}
		provision.Rollback(l)
	}()
	rules, err := os.ReadFile(x.report.HBAFile)
	if err != nil {
		return err
	}
	if _, err := hba.Parse(strings.NewReader(string(rules))); err != nil {
		return fmt.Errorf("%s changed while it was looked at: %w", x.report.HBAFile, err)
	}
	x.cfg.HBA, x.cfg.ClientCA, x.cfg.ClientCRL = filepath.Join(l.Dir, "pg_hba.conf"), x.report.ClientCA, x.report.ClientCRL
	if err := durable.Replace(x.cfg.HBA, rules, 0o600); err != nil {
		return err
	}
	fault.Point("adopt.rules") // the rules are copied; the cluster is as it was
	x.report.Start.Masked = x.report.Start.Unit != "" && os.Getenv(maskedEnv) == x.report.Start.Unit
	if taken, err = adopt.Take(x.report, x.install.BinDir, l.State(), x.cleanAutoConf); err != nil {
		return fmt.Errorf("adopt %s: %w", x.report.Data, err)
	}
	if err := provision.FoundGroup(c.Context(), provision.FirstNode{Layout: l, Config: x.cfg, PostgreSQL: x.pg, Major: x.install.Major, Profile: profile}); err != nil {
		return err
	}
	cli.Say(c, "\nadopted %s; coterie release --node %s gives it back", x.report.Data, l.Dir)
	return nil
}

func (x *adoption) cleanAutoConf() error { return x.pg.WriteAutoConf(nil) }

// adoptAsRoot does the part of the adoption that needs root; the server's user does the rest. It first checks in a
// process of that user, because nothing may be written before every check has passed. Then it masks the unit. done
// reports whether no work remains.
func adoptAsRoot(c *cobra.Command, dir string, a *adoptFlags) (done bool, err error) {
	if !filepath.IsAbs(dir) {
		return true, fail.Usagef("--node %s: give an absolute path", dir)
	}
	if !a.yes || a.dryRun {
		return true, AsServerUser(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), os.Args[1:])
	}
	var out strings.Builder
	if err := AsServerUser(c.Context(), &out, &out, append(os.Args[1:], "--dry-run")); err != nil {
		_, _ = io.WriteString(c.OutOrStdout(), out.String())
		return true, err
	}
	cluster, err := findAs(a)
	if err != nil {
		return true, err
	}
	s := adopt.FindStart(cluster)
	if s.Systemd && s.Unit != "" {
		if err := adopt.Mask(c.Context(), s.Unit); err != nil {
			return true, err
		}
		cli.Say(c, "masked %s; if what follows fails, run: systemctl unmask %s", s.Unit, s.Unit)
		return false, os.Setenv(maskedEnv, s.Unit)
	}
	return false, nil
}

// findAs finds the cluster as root. Its owner is the server's user; a process of that user has checked this already.
func findAs(a *adoptFlags) (adopt.Cluster, error) {
	u, err := daemon.ServerUser()
	if err != nil {
		return adopt.Cluster{}, err
	}
	return adopt.FindOwned(a.root, a.target, a.configFile, u.UID)
}

// AsServerUser runs this program with args as daemon.ServerUser. An exit code of that process becomes a cli.ExitError.
func AsServerUser(ctx context.Context, out, errOut io.Writer, args []string) error {
	u, err := daemon.ServerUser()
	if err != nil {
		return err
	}
	return runAs(ctx, u, out, errOut, args)
}

// AsOwner is AsServerUser, as the user that owns the node directory: an ordinary user may have made it. In one that is
// root's, no server has run.
func AsOwner(ctx context.Context, l config.Layout, out, errOut io.Writer, args []string) error {
	u, err := daemon.Owner(l.Dir)
	if err == nil && u.UID == 0 {
		u, err = daemon.ServerUser()
	}
	if err != nil {
		return err
	}
	return runAs(ctx, u, out, errOut, args)
}

// asUserStop is how long a command that is told to end may take: that of a server which it has to stop in order.
const asUserStop = 6 * time.Minute

// runAs runs this program with args as the user. If the context ends, that process is told to end, and waited for.
func runAs(ctx context.Context, u daemon.User, out, errOut io.Writer, args []string) error {
	exe, err := daemon.ReachableExe(u.UID)
	if err != nil {
		return err
	}
	var groups []uint32
	if ids, err := u.Groups(); err == nil {
		for _, id := range ids {
			groups = append(groups, uint32(id))
		}
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it puts things in order before it ends
	cmd.WaitDelay = asUserStop
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, errOut
	cmd.Env = append(os.Environ(), "HOME="+u.Home, "USER="+u.Name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID), Groups: groups}}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return cli.ExitError{Code: exit.ExitCode()} // the process has printed the reason
	}
	if cmd.ProcessState != nil && cmd.ProcessState.Success() {
		return nil // it was told to end when it was done
	}
	return err
}

// Release returns the command release, which gives an adopted cluster back.
func Release() *cobra.Command {
	c := &cobra.Command{
		Use: "release", GroupID: "node", Short: "Release an adopted cluster: return it to standalone operation",
		Long: `Undoes coterie init --adopt on the only node of a group, whose agent is stopped; of a node that leaves others behind, coterie leave
does the same, after it has asked them. It restores who starts the cluster and the settings that the group had
reserved, removes standby.signal and what marks the data as the group's, and says how to start it. The data stays as it is. The node
directory is kept, with its configuration renamed, so that no agent can start it again; remove it when you need its logs no longer.`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, _ := c.Flags().GetString("node")
			return release(c, dir)
		},
	}
	return c
}

// lastOfGroup refuses to give the data back while other replicas hold it too. They would continue as a group, and there
// would be two primaries with a common history.
func lastOfGroup(l config.Layout, self string) error {
	b, err := os.ReadFile(l.GroupFile())
	if err != nil {
		return err
	}
	var g ag.Group
	if err := json.Unmarshal(b, &g); err != nil {
		return fmt.Errorf("the group as last seen: %w", err)
	}
	for _, r := range g.Replicas {
		if string(r.ID) != self && r.HasData() {
			return fail.Refusedf("replica %s has the data too, and the group would go on without this node; start the agent, run coterie member remove %s and then release again; nothing was changed", r.ID, r.ID)
		}
	}
	return nil
}

// release undoes the adoption of the node in dir, whose agent must be stopped.
func release(c *cobra.Command, dir string) error {
	l, err := config.NewLayout(dir)
	if err != nil {
		return err
	}
	a, err := adopt.Load(l.State())
	if errors.Is(err, fs.ErrNotExist) {
		return fail.Refusedf("%s runs no adopted cluster; nothing was changed", l.Dir)
	}
	if err != nil {
		return err
	}
	if os.Getuid() == 0 {
		if err := AsOwner(c.Context(), l, c.OutOrStdout(), c.ErrOrStderr(), []string{"release", "--node", l.Dir}); err != nil {
			return err
		}
		return unmask(c.Context(), a)
	}
	cfg := config.Config{PostgreSQL: a.Server()}
	_, missing := os.Stat(filepath.Join(l.Dir, config.File))
	finished := !errors.Is(missing, fs.ErrNotExist) // else no agent has ever run here, and no group has the data
	if finished {
		if cfg, err = config.Load(l.Dir); err != nil {
			return err
		}
	}
	unlock, err := config.Lock(l)
	if err != nil {
		return fail.Refusedf("%w; stop it first", err)
	}
	defer unlock()
	if finished {
		if err := lastOfGroup(l, cfg.Node); err != nil {
			return err
		}
	}
	if err := provision.EndKeeper(c.Context(), l); err != nil { // it would put standby.signal back
		return err
	}
	pg, err := pgserver.NewInstance(cfg, l, nil)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	ctl, err := pg.Control(c.Context())
	if err != nil {
		return err
	}
	if err := a.Releasable(ctl.State); err != nil {
		return asRefusal(err)
	}
	if err := a.Undo(func() error { return pg.WriteAutoConf(nil) }); err != nil {
		return fmt.Errorf("release %s: %w", a.Data, err)
	}
	if finished {
		if err := durable.Rename(filepath.Join(l.Dir, config.File), filepath.Join(l.Dir, config.File+".released")); err != nil {
			return err
		}
	}
	cli.Say(c, "released %s; start it with: %s", a.Data, a.StartCommand(a.BinDir))
	return nil
}

// unmask lets systemd start an adopted cluster again, if the adoption kept it from that. It needs root.
func unmask(ctx context.Context, a *adopt.Adopted) error {
	unit, err := a.MaskedUnit()
	if err != nil || unit == "" {
		return err
	}
	return adopt.Unmask(ctx, unit)
}

// Unmask lets systemd start the adopted cluster of a node again, once it is given back. It does nothing for a node that
// runs no adopted cluster. It needs root.
func Unmask(ctx context.Context, l config.Layout) error {
	a, err := adopt.Load(l.State())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return unmask(ctx, a)
}
