package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/postgres"
)

// nodeFlags are what init, join and witness have in common.
type nodeFlags struct {
	name, address, endpoint, readWrite, readOnly, http, binDir string
	superuser                                                  string
	noStart                                                    bool
	major                                                      int
	quorum                                                     quorumFlags
}

// add registers the flags, of a node that founds a group or of one that joins it.
func (f *nodeFlags) add(c *cobra.Command, founds bool) {
	f.quorum.add(c, founds)
	host, _ := os.Hostname()
	fl := c.Flags()
	fl.StringVar(&f.name, "name", sanitizeName(host), "this node's name in the group")
	fl.StringVar(&f.address, "address", "", "host or IP address at which the other nodes and the clients reach this node (default: the address of the default route's interface, or the host name)")
	fl.StringVar(&f.endpoint, "endpoint", ":5022", "port between nodes, host:port to bind")
	fl.StringVar(&f.readWrite, "read-write", ":5432", "port for clients that write; empty: none")
	fl.StringVar(&f.readOnly, "read-only", ":5433", "port for clients that only read; empty: none")
	fl.StringVar(&f.http, "http", ":8008", "port for health checks and metrics; empty: none")
	fl.StringVar(&f.binDir, "pg-bindir", "", "directory of the PostgreSQL binaries (default: the newest supported version found)")
	fl.IntVar(&f.major, "pg-major", 0, "PostgreSQL major version to use (default: the newest found)")
	fl.StringVar(&f.superuser, "superuser", "", "the bootstrap superuser of a cluster that was adopted (default: with --adopt the one found, else postgres)")
	fl.BoolVar(&f.noStart, "no-start", false, "make the node directory only; start it later with coterie agent")
}

func sanitizeName(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, host)
	name = strings.TrimLeft(name, "_0123456789")
	if name == "" {
		name = "n1"
	}
	return name[:min(len(name), 30)]
}

// config fills a node's configuration from the flags.
func (f *nodeFlags) config(ctx context.Context, kind string) (config.Config, error) {
	c := config.Config{Node: f.name, Kind: kind}
	if err := config.CheckName(f.name); err != nil {
		return c, fail.Usagef("%w; choose one with --name", err)
	}
	var err error
	if c.Quorum, err = f.quorum.config(); err != nil {
		return c, err
	}
	host := f.address
	if host == "" {
		host = ownAddress(ctx)
	}
	for _, p := range []struct {
		flag string
		in   string
		out  *config.Address
	}{{"endpoint", f.endpoint, &c.Endpoint}, {"read-write", f.readWrite, &c.ReadWrite}, {"read-only", f.readOnly, &c.ReadOnly}, {"http", f.http, &c.HTTP}} {
		if p.in == "" {
			continue
		}
		bind, port, err := net.SplitHostPort(p.in)
		if err != nil {
			return c, fail.Usagef("--%s %q: %w", p.flag, p.in, err)
		}
		if bind != "" && bind != "0.0.0.0" && bind != "::" && f.address == "" {
			host = bind
		}
		if err := portFree(ctx, p.in); err != nil {
			return c, fmt.Errorf("--%s %s cannot be used: %w; stop the program that uses it or choose another port", p.flag, p.in, err)
		}
		*p.out = config.Address{Listen: p.in, Advertise: net.JoinHostPort(host, port)}
	}
	if path := usualSocket(c.ReadWrite, usualSockets, "/etc/postgresql"); path != "" && kind == "replica" {
		c.ReadWrite.Listen += "," + path
	}
	return c, nil
}

func portFree(ctx context.Context, addr string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return l.Close()
}

// ownAddress guesses how other machines reach this one: the address a packet to the outside would carry.
func ownAddress(ctx context.Context) string {
	if c, err := (&net.Dialer{}).DialContext(ctx, "udp", "192.0.2.1:9"); err == nil { // nothing is sent
		defer func() { _ = c.Close() }()
		if a, ok := c.LocalAddr().(*net.UDPAddr); ok && !a.IP.IsLoopback() {
			return a.IP.String()
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return "127.0.0.1"
	}
	return host
}

// install finds the PostgreSQL to use.
func (f *nodeFlags) install(ctx context.Context) (postgres.Install, error) {
	if f.binDir != "" {
		return postgres.Inspect(ctx, f.binDir)
	}
	found, err := postgres.Find(ctx)
	if err != nil {
		return postgres.Install{}, err
	}
	var have []string
	for _, in := range found {
		if f.major == 0 || in.Major == f.major {
			return in, nil
		}
		have = append(have, in.Version)
	}
	if len(have) > 0 {
		return postgres.Install{}, fmt.Errorf("PostgreSQL %d is not installed here; found %s", f.major, strings.Join(have, ", "))
	}
	return postgres.Install{}, errors.New("no PostgreSQL server (14 to 18) found; install it, as with apt-get install postgresql, or name its directory with --pg-bindir")
}

func initCommand() *cobra.Command {
	var f nodeFlags
	var a adoptFlags
	var group, profile string
	var noGroup, interactive bool
	c := &cobra.Command{
		Use:     "init",
		GroupID: "node",
		Short:   "Found a group: make its first node here",
		Long: `Makes this machine the first node of a new availability group: a new database cluster with data checksums, the group's certificate
authority, and the record. It ends with the agent running in the foreground (--no-start: ready to be started) and prints the command
with which the next node joins.

With --interactive it asks, as the New Availability Group wizard does: name, health detection, databases, replicas and their modes,
listener and seeding; then a validation page, a summary, and the choice to make the group or to write the script that makes it.

With --adopt it takes an existing, cleanly stopped cluster under management in place instead; it first prints what it found and
changes nothing until --yes is given. coterie release gives the cluster back.`,
		Example: `  coterie init --group orders                        # on the first machine
  coterie init --node /tmp/n1 --endpoint 127.0.0.1:7022 --read-write 127.0.0.1:7432 --read-only 127.0.0.1:7433 --http 127.0.0.1:7008`,
		Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, _ := c.Flags().GetString("node")
			if _, ok := ag.Profiles[profile]; !ok {
				return fail.Usagef("--profile %q: default, fast or wan", profile)
			}
			if a.target != "" {
				return adoptNode(c, dir, &f, &a, group, profile)
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
			if err := becomeServerUser(dir); err != nil {
				return err
			}
			if err := initNode(c, dir, &f, group, profile, noGroup); err != nil {
				return err
			}
			return startOrSay(c, dir, f.noStart)
		},
	}
	f.add(c, true)
	a.add(c)
	c.Flags().StringVar(&group, "group", "coterie", "what people call the group")
	c.Flags().StringVar(&profile, "profile", "default", "lease profile: default, fast or wan")
	c.Flags().BoolVar(&noGroup, "no-group", false, "make nodes that join each other, and no group yet: CREATE AVAILABILITY GROUP and JOIN make it (see docs/language.md)")
	c.Flags().BoolVar(&interactive, "interactive", false, "ask for everything, validate it, and make the group once the other nodes have joined; or write the script that does")
	return c
}

// check finds what is wrong with a node to be before root makes its directory and gives it away: a refusal leaves no trace. The user
// that runs the node looks again, with its own eyes.
//
// group is the one to join, "" for a group to be.
func (f *nodeFlags) check(ctx context.Context, kind, dir string, group ag.GroupID) error {
	cfg, err := f.config(ctx, kind)
	if err != nil {
		return err
	}
	if kind == "replica" {
		if _, err := f.install(ctx); err != nil {
			return err
		}
	}
	if _, err := emptyLayout(dir); err != nil {
		return err
	}
	_, err = reachQuorum(ctx, cfg, cmp.Or(group, newGroup()), group == "")
	return err
}

// newGroup makes the id of a group to be.
func newGroup() ag.GroupID { return ag.GroupID(uuid.NewString()) }

// emptyLayout refuses a node directory that holds anything.
func emptyLayout(dir string) (config.Layout, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return l, err
	}
	if entries, err := os.ReadDir(l.Dir); err == nil && len(entries) > 0 {
		return l, fail.Refusedf("%s is not empty; nothing was changed: choose another --node directory, or start what is there with coterie agent", l.Dir)
	}
	return l, nil
}

// freshDir makes a node directory where there is none, or an empty one.
func freshDir(dir string) (config.Layout, error) {
	l, err := emptyLayout(dir)
	if err != nil {
		return l, err
	}
	if err := l.Make(); err != nil {
		return l, err
	}
	return config.NewLayout(dir)
}

func initNode(c *cobra.Command, dir string, f *nodeFlags, group, profile string, noGroup bool) (err error) {
	ctx := c.Context()
	cfg, err := f.config(ctx, "replica")
	if err != nil {
		return err
	}
	in, err := f.install(ctx)
	if err != nil {
		return err
	}
	l, err := freshDir(dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			takeBack(l)
		}
	}()
	cfg.Group, cfg.GroupName = string(newGroup()), group
	cfg.PostgreSQL = &config.PostgreSQL{BinDir: in.BinDir, Data: l.Data(), Superuser: "postgres"}
	say(c, "PostgreSQL %s in %s: making the database cluster in %s", in.Version, in.BinDir, l.Data())
	pg, err := newInstance(cfg, l, nil)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	if err := pg.Init(ctx); err != nil {
		return err
	}
	return found(ctx, l, cfg, pg, in, profile, noGroup)
}

// found writes what the first node needs to start: identity, configuration and the record to be.
func found(ctx context.Context, l config.Layout, cfg config.Config, pg *postgres.Instance, in postgres.Install, profile string, noGroup bool) error {
	members, err := reachQuorum(ctx, cfg, ag.GroupID(cfg.Group), true)
	if err != nil {
		return err
	}
	if _, err := saveFence(ctx, l, profile); err != nil {
		return err
	}
	ctl, err := pg.Control(ctx)
	if err != nil {
		return err
	}
	ca, err := endpoint.NewCA(ag.GroupID(cfg.Group), cfg.GroupName)
	if err != nil {
		return err
	}
	if err := ca.Save(l.PKI()); err != nil {
		return err
	}
	hosts := certHosts(cfg)
	id := endpoint.Identity{Group: ag.GroupID(cfg.Group), Kind: "replica", ID: ag.ReplicaID(cfg.Node)}
	identity, err := endpoint.CreateNode(l.PKI(), ca, id, hosts)
	if err != nil {
		return err
	}
	if err := issueListener(l, ca, hosts); err != nil {
		return err
	}
	rules, err := ownRules(cfg)
	if err != nil {
		return err
	}
	cp := agent.NewCopyID()
	if err := (&instance{pg: pg, layout: l}).WriteCopy(cp); err != nil {
		return err
	}
	if err := agent.OpenMarks(l.State()).SetCopy(agent.CopyMark{Copy: cp}); err != nil {
		return err
	}
	self := ag.ReplicaID(cfg.Node)
	tli := ctl.Timeline
	f := founding{
		Group: ag.Group{
			ID: ag.GroupID(cfg.Group), Name: cfg.GroupName, SystemID: ctl.SystemID, CommitRule: ag.RuleQuorum, SessionTimeout: 10 * time.Second,
			Profile: profile, HBA: rules, Superuser: cfg.PostgreSQL.Superuser, External: members, Replicas: []ag.Replica{{
				ID: self, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic,
				Endpoint: cfg.Endpoint.Advertise, Listener: cfg.ReadWrite.Advertise, ReadOnly: cfg.ReadOnly.Advertise, HTTP: cfg.HTTP.Advertise,
				KeyPin: identity.Pin, Voter: true, Major: in.Major, Allow: ag.AllowReadOnly,
			}},
		},
		Epoch: ag.EpochRecord{Epoch: 1, Phase: ag.PhasePromote, Leader: self, TLI: tli + 1, MaxTLI: tli + 1, Reason: "founded"},
		State: ag.State{Leader: self, Copy: cp, V: []ag.Member{}, Timelines: []ag.TimelineEntry{{TLI: tli}}},
	}
	if noGroup {
		f.Group.Draft, f.Group.Replicas[0].Join = true, ag.Detached
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.State(), "founding.json"), b, 0o600); err != nil {
		return err
	}
	if err := saveGroup(l.GroupFile(), f.Group); err != nil {
		return err
	}
	return cfg.Save(l.Dir)
}

// ownRules reads the listener rules that an adopted cluster brings: they become the group's, so that no node that joins is more open.
func ownRules(cfg config.Config) (string, error) {
	if cfg.HBA == "" {
		return "", nil
	}
	b, err := os.ReadFile(cfg.HBA)
	return string(b), err
}

func issueListener(l config.Layout, ca *endpoint.CA, hosts []string) error {
	cert, key, err := ca.IssueListener(hosts)
	if err != nil {
		return err
	}
	return endpoint.SaveListener(l.PKI(), cert, key)
}

// certHosts lists the names and addresses under which a node may be reached.
func certHosts(cfg config.Config) []string {
	var hosts []string
	for _, a := range []config.Address{cfg.Endpoint, cfg.ReadWrite, cfg.ReadOnly} {
		listen, _ := a.Places()
		for _, hp := range append([]string{a.Advertise}, listen...) {
			if h, _, err := net.SplitHostPort(hp); err == nil && h != "" && h != "0.0.0.0" && h != "::" && !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
	}
	if h, err := os.Hostname(); err == nil && !slices.Contains(hosts, h) {
		hosts = append(hosts, h)
	}
	return hosts
}

// takeBack removes what a failed init or join wrote. The directory itself stays where its parent is another user's.
func takeBack(l config.Layout) {
	_ = os.RemoveAll(l.Run)
	entries, _ := os.ReadDir(l.Dir)
	for _, e := range entries {
		_ = os.RemoveAll(filepath.Join(l.Dir, e.Name()))
	}
}

// say tells the person what is going on; data goes to standard output, talk to standard error.
func say(c *cobra.Command, format string, a ...any) {
	_, _ = fmt.Fprintf(c.ErrOrStderr(), format+"\n", a...)
}

func configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", GroupID: "node", Short: "Look at this node's configuration file"}
	c.AddCommand(&cobra.Command{
		Use: "check", Short: "Check coterie.yaml: unknown keys, wrong values, by line", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir, _ := c.Flags().GetString("node")
			cfg, err := config.Load(dir)
			if err != nil {
				return fail.Error{Kind: fail.Usage, Err: err}
			}
			say(c, "%s is good: node %s of group %s", filepath.Join(dir, config.File), strconv.Quote(cfg.Node), strconv.Quote(cfg.GroupName))
			return nil
		},
	})
	return c
}
