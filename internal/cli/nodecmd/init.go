package nodecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/provision"
)

// add registers the flags of a node. founds reports whether the node founds a group; otherwise it joins one.
func (f *NodeFlags) add(c *cobra.Command, founds bool) {
	f.quorum.add(c, founds)
	host, _ := os.Hostname()
	fl := c.Flags()
	fl.StringVar(&f.name, "name", sanitizeName(host), "this node's name in the group")
	fl.StringVar(&f.address, "address", "", "host or IP address at which the other nodes and the clients reach this node (default: the address of the default route's interface, or the host name)")
	fl.StringVar(&f.Endpoint, "endpoint", ":5022", "port between nodes, host:port to bind")
	fl.StringVar(&f.ReadWrite, "read-write", ":5432", "port for clients that write; empty: none")
	fl.StringVar(&f.ReadOnly, "read-only", ":5433", "port for clients that only read; empty: none")
	fl.StringVar(&f.HTTP, "http", ":8008", "port for health checks and metrics; empty: none")
	fl.StringVar(&f.HTTPS, "https", "", "port for the console in the browser and the API, with TLS and a login; empty: none")
	fl.Bool("json", false, "print JSON: the node that was made, and the token for the next one")
	fl.BoolVar(&f.noStart, "no-start", false, "make the node directory only; start it later with coterie agent")
}

// hideClients takes the client ports away, which a witness has none of. Their flags take nothing but the empty text.
func (f *NodeFlags) hideClients(c *cobra.Command) {
	f.ReadWrite, f.ReadOnly = "", ""
	for _, name := range []string{"read-write", "read-only"} {
		x := c.Flags().Lookup(name)
		x.DefValue, x.Hidden = "", true
	}
}

// addServer registers the flags of a node's PostgreSQL, which a witness has none of.
func (f *NodeFlags) addServer(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.binDir, "pg-bindir", "", "directory of the PostgreSQL binaries (default: the newest supported version found)")
	fl.IntVar(&f.major, "pg-major", 0, "PostgreSQL major version to use (default: the newest found)")
	fl.StringVar(&f.superuser, "superuser", "", "the bootstrap superuser of a cluster that was adopted (default: with --adopt the one found, else postgres)")
}

// config returns the configuration of a node of that kind from the flags. It fails if a port is in use.
func (f *NodeFlags) config(ctx context.Context, kind string) (config.Config, error) {
	c := config.Config{Node: f.name, Kind: kind}
	if err := config.CheckName(f.name); err != nil {
		return c, fail.Usagef("%w; choose one with --name", err)
	}
	if kind == "witness" && f.ReadWrite+f.ReadOnly != "" {
		return c, fail.Usagef("a witness serves no clients: leave --read-write and --read-only away")
	}
	var err error
	if c.Quorum, err = f.quorum.config(); err != nil {
		return c, err
	}
	host := f.address
	if host == "" {
		host = provision.OwnAddress(ctx)
	}
	used := map[string]string{} // by flag
	for _, p := range []struct {
		flag string
		in   string
		out  *config.Address
	}{{"endpoint", f.Endpoint, &c.Endpoint}, {"read-write", f.ReadWrite, &c.ReadWrite}, {"read-only", f.ReadOnly, &c.ReadOnly}, {"http", f.HTTP, &c.HTTP}, {"https", f.HTTPS, &c.HTTPS}} {
		if p.in == "" {
			continue
		}
		bind, port, err := net.SplitHostPort(p.in)
		if err != nil {
			return c, fail.Usagef("--%s %q: %w", p.flag, p.in, err)
		}
		if _, err := net.DefaultResolver.LookupPort(ctx, "tcp", port); err != nil {
			return c, fail.Usagef("--%s %s: %q is no port: choose a number from 1 to 65535", p.flag, p.in, port)
		}
		if bind != "" && bind != "0.0.0.0" && bind != "::" && f.address == "" {
			host = bind
		}
		if err := provision.PortFree(ctx, p.in); err != nil {
			return c, fmt.Errorf("--%s %s cannot be used: %w; stop the program that uses it or choose another port", p.flag, p.in, err)
		}
		for flag, at := range used {
			if config.Overlap(at, p.in) {
				return c, fail.Usagef("--%s and --%s cannot both be %s: choose another port for one of them", flag, p.flag, p.in)
			}
		}
		used[p.flag] = p.in
		*p.out = config.Address{Listen: p.in, Advertise: net.JoinHostPort(host, port)}
	}
	if path := provision.DefaultSocket(c.ReadWrite, provision.DefaultSocketDir, "/etc/postgresql"); path != "" && kind == "replica" {
		c.ReadWrite.Listen += "," + path
	}
	return c, nil
}

// Install finds the PostgreSQL installation that the flags select: by default the newest one.
func (f *NodeFlags) Install(ctx context.Context) (programs.Install, error) {
	if f.binDir != "" {
		in, err := programs.Inspect(ctx, f.binDir)
		if err != nil && ctx.Err() == nil {
			err = fail.Usagef("--pg-bindir %s: %w; name the directory that has postgres and initdb, such as /usr/lib/postgresql/15/bin, or leave the flag away to use the newest that is found", f.binDir, err)
		}
		return in, err
	}
	found, err := programs.Find(ctx)
	if err != nil {
		return programs.Install{}, err
	}
	var have []string
	for _, in := range found {
		if f.major == 0 || in.Major == f.major {
			return in, nil
		}
		have = append(have, in.Version)
	}
	switch {
	case f.major != 0 && (f.major < programs.MinMajor || f.major > programs.MaxMajor):
		return programs.Install{}, fail.Usagef("PostgreSQL %d is not supported, %d to %d are; found here: %s. Choose one of them with --pg-major, or leave the flag away to use the newest",
			f.major, programs.MinMajor, programs.MaxMajor, cmp.Or(strings.Join(have, ", "), "none"))
	case len(have) > 0:
		return programs.Install{}, fail.Usagef("PostgreSQL %d is not installed here; found here: %s. Install it, as with apt-get install postgresql-%[1]d, or name its directory with --pg-bindir", f.major, strings.Join(have, ", "))
	}
	return programs.Install{}, errors.New("no PostgreSQL server (14 to 18) found; install it, as with apt-get install postgresql, or name its directory with --pg-bindir")
}

// Init returns the command init, which makes the first node of a group.
func Init() *cobra.Command {
	var f NodeFlags
	var a adoptFlags
	var group, profile string
	var noGroup, interactive bool
	c := &cobra.Command{
		Use:     "init",
		GroupID: "node",
		Short:   "Create a new group; this machine becomes its first node",
		Long: `Makes this machine the first node of a new availability group: a new database cluster with data checksums, the group's certificate
authority, and the record. Then it starts the agent and prints the command with which the next node joins. Root on a machine that has the
service unit starts it by the unit; otherwise, and with --interactive or --adopt, the agent stays in the foreground. --no-start only makes
the node.

With --interactive it asks, as the New Availability Group wizard does: name, health detection, databases, replicas and their modes,
listener and seeding; then a validation page, a summary, and the choice to make the group or to write the script that makes it.

With --adopt it takes an existing, cleanly stopped cluster under management in place instead; it first prints what it found and
changes nothing until --yes is given. coterie release gives the cluster back.` + aboutJSON,
		Example: `  coterie init --group orders                        # on the first machine
  coterie init --node /tmp/n1 --endpoint 127.0.0.1:7022 --read-write 127.0.0.1:7432 --read-only 127.0.0.1:7433 --http 127.0.0.1:7008`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, _ := c.Flags().GetString("node")
			if _, ok := ag.Profiles[profile]; !ok {
				return fail.Usagef("--profile %q: default, fast or wan", profile)
			}
			if !groupName.MatchString(group) {
				return fail.Usagef("--group %q: a group's name has letters, digits, and _ - . between them, 128 at most", group)
			}
			if asJSON(c) && (a.target != "" || interactive) {
				return fail.Usagef("--json is not for --adopt and --interactive, which print for people; coterie status --json tells of the node afterwards")
			}
			if a.target != "" {
				return adoptNode(c, &f, &a, newGroup{dir: dir, name: group, profile: profile})
			}
			if interactive {
				return initInteractive(c, dir, &f, profile)
			}
			if a.given() {
				return fail.Usagef("--config-file, --yes, --dry-run and --drop-standbys belong to --adopt; see coterie init --help")
			}
			if err := f.check(c.Context(), "replica", dir, ""); err != nil {
				return err
			}
			if !f.noStart {
				if done, err := throughUnit(c, dir); done {
					return err
				}
			}
			if err := makeNode(dir, func() error {
				return initNode(c, &f, newGroup{dir: dir, name: group, profile: profile, draft: noGroup})
			}); err != nil {
				return err
			}
			return startOrSay(c, dir, f.noStart)
		},
	}
	f.add(c, true)
	f.addServer(c)
	a.add(c)
	c.Flags().StringVar(&group, "group", "coterie", "what people call the group")
	c.Flags().StringVar(&profile, "profile", "default", "lease profile: default, fast or wan")
	c.Flags().BoolVar(&noGroup, "no-group", false, "make nodes that join each other, and no group yet: CREATE AVAILABILITY GROUP and JOIN make it (see docs/language.md)")
	c.Flags().BoolVar(&interactive, "interactive", false, "ask for everything, validate it, and make the group once the other nodes have joined; or write the script that does")
	return c
}

// groupName is what a group may be called: its name is typed in shells and statements.
var groupName = regexp.MustCompile(`^[\pL\d][\pL\d_.-]{0,127}$`)

// check looks for problems of a new node before root makes its directory and gives it to another user. A refusal
// therefore leaves no trace. The user that runs the node checks again, with its own permissions.
//
// group is the group to join; "" if the node founds one.
func (f *NodeFlags) check(ctx context.Context, kind, dir string, group ag.GroupID) error {
	cfg, err := f.config(ctx, kind)
	if err != nil {
		return err
	}
	if kind == "replica" {
		if _, err := f.Install(ctx); err != nil {
			return err
		}
	}
	if _, err := provision.EmptyLayout(dir); err != nil {
		return err
	}
	_, err = provision.ReachQuorum(ctx, cfg, cmp.Or(group, provision.NewGroup()), group == "")
	return err
}

// makeNode has the user that runs the node make it. A directory that root made for it is taken back if it is empty
// afterwards.
func makeNode(dir string, run func() error) error {
	if err := daemon.BecomeServerUser(dir); err != nil {
		return err
	}
	defer daemon.TakeBack()
	return run()
}

// newGroup describes the group that init makes, and the directory of its first node.
type newGroup struct {
	dir     string
	name    string
	profile string // lease profile
	draft   bool   // nodes can join, but the group is made later with CREATE AVAILABILITY GROUP
}

// initNode makes the node directory and the database cluster of the first node. If it fails, it removes them.
func initNode(c *cobra.Command, f *NodeFlags, g newGroup) (err error) {
	ctx := c.Context()
	cfg, err := f.config(ctx, "replica")
	if err != nil {
		return err
	}
	in, err := f.Install(ctx)
	if err != nil {
		return err
	}
	l, err := provision.FreshDir(g.dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			provision.Rollback(l)
		}
	}()
	cfg.Group, cfg.GroupName = string(provision.NewGroup()), g.name
	cfg.PostgreSQL = &config.PostgreSQL{BinDir: in.BinDir, Data: l.Data(), Superuser: "postgres"}
	cli.Say(c, "PostgreSQL %s in %s: making the database cluster in %s", in.Version, in.BinDir, l.Data())
	pg, err := pgserver.NewInstance(cfg, l, nil)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	if err := pg.Init(ctx); err != nil {
		return err
	}
	return provision.FoundGroup(ctx, provision.FirstNode{Layout: l, Config: cfg, PostgreSQL: pg, Major: in.Major, Profile: g.profile, Draft: g.draft})
}
