package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/bench/outage"
	"github.com/coteriedb/coterie/internal/bench/patroni"
	"github.com/coteriedb/coterie/internal/bench/suite"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/measure/goals"
)

// ofTheOther refuses flags of bench failover that have no effect with --report, or without it. Otherwise a mistake
// would start a run of hours.
func ofTheOther(c *cobra.Command, report bool) error {
	flags, hint := []string{"actions", "at", "clients", "workload", "query"}, "it is of the report: give --report DIR as well"
	if report {
		flags, hint = []string{"only", "with-peers", "out"}, "it is not of the report: leave it or --report away"
	}
	for _, name := range flags {
		if c.Flags().Changed(name) {
			return fail.Usagef("--%s: %s", name, hint)
		}
	}
	return nil
}

func benchFailover() *cobra.Command {
	var o outage.Options
	var lo lab.Options
	var out, page, beside, query string
	var only, actions []string
	var asJSON, peers bool
	e := experiment.FailoverOptions{Every: 10 * time.Millisecond, Before: 3 * time.Second, After: 3 * time.Second}
	c := &cobra.Command{
		Use: "failover", Short: "Outage and losses of unplanned and planned failover, and what an idle agent needs",
		Long: `Makes a group of three replicas on this machine and repeats: under one writer that sends a row every 5 ms, kill the primary's node, have it
come back, move the leadership as planned, stop every process of the primary (a silent death), and kill a synchronous secondary and have it
come back. Then it does the same to the witness of a group of two and to its only secondary, measures what that group costs beside plain
PostgreSQL and beside PostgreSQL behind a process on each node that only copies bytes, and repeats the silent death at the lease profile fast. It prints a line per figure with
its goal, and keeps every sample in a JSON file. A repetition takes about three minutes; --only runs some of it.

With --with-peers the same writer and the same deaths go to Patroni with HAProxy and etcd, in turns with ours: once with the settings they
have unless told otherwise, and once with the shortest times they accept. It needs the packages patroni, etcd-server and haproxy; a
repetition then takes about three minutes. Their etcd is never killed, ours dies with the node.

With --report it instead has --clients writers lose their primary by each of --actions, --runs times, and writes a page with the outage of each
client and a chart of what was acknowledged every 100 ms. --workload gives the group something else to do meanwhile, and draws that, too.

Nobody published an outage, so there are no published conditions to take, and no --preset.`,
		Args: cli.Args(0, "no arguments"), PreRunE: func(c *cobra.Command, _ []string) error { return ofTheOther(c, page != "") },
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Runs < 0 {
				return fail.Usagef("--runs %d: choose 0 or more", o.Runs)
			}
			if page != "" {
				var err error
				if e.Beside, err = besideOutage(beside, query, e.Clients); err != nil {
					return err
				}
				e.Runs = o.Runs
				return reportOutages(c, e, actions, suite.Options{Report: page, Lab: lo, Blocks: o.Runs, Seed: 1, JSON: asJSON})
			}
			for _, name := range only {
				if !slices.Contains(outage.Arms, outage.Arm(name)) {
					return fail.Usagef("--only %s: the arms are %v", name, outage.Arms)
				}
				o.Only = append(o.Only, outage.Arm(name))
			}
			var err error
			if lo.Dir, err = lab.DemoDir(lo.Dir, "bench"); err != nil {
				return err
			}
			s, measureErr := measure(c, o, lo, peers)
			if err := s.Save(out); err != nil {
				return errors.Join(measureErr, err)
			}
			if asJSON {
				return errors.Join(measureErr, cli.PrintJSON(c, s))
			}
			return errors.Join(measureErr, reportFigures(c, s, measureErr, out))
		},
	}
	withoutPreset(c, "nobody published an outage")
	c.Flags().IntVar(&o.Runs, "runs", 50, "how often")
	c.Flags().StringSliceVar(&only, "only", nil, "arms to run: death, planned, silent, secondary, witness, last, cost, silent-fast (default all)")
	c.Flags().StringVar(&page, "report", "", "write a report of the outage of each client into this directory")
	c.Flags().StringSliceVar(&actions, "actions", []string{"kill", "planned"}, "with --report, what happens to the primary: kill, pause, cut (root), planned")
	c.Flags().IntVar(&e.Clients, "clients", 8, "with --report, writers")
	c.Flags().DurationVar(&e.Before, "at", 3*time.Second, "with --report, how long the writers write before it happens")
	c.Flags().StringVar(&beside, "workload", "", "with --report, what goes on beside the writers, by as many clients: query (see --query) or tprocc, on one warehouse, whose consistency is checked after every run")
	c.Flags().StringVar(&query, "query", "select 1", "with --workload query, what is asked through the read-write port")
	c.Flags().BoolVar(&asJSON, "json", false, "print the samples instead of the figures")
	c.Flags().BoolVar(&peers, "with-peers", false, "measure Patroni with HAProxy too, where installed, in turns with ours")
	c.Flags().StringVar(&out, "out", "bench-failover.json", "file for the samples")
	c.Flags().IntVar(&lo.Port, "port", 0, "of the first node's listener (default 6432)")
	c.Flags().StringVar(&lo.Dir, "dir", "", "the lab's directory (default "+lab.DefaultDir()+"-bench)")
	return c
}

// besideOutage returns the workload of that name; nil for the empty name.
func besideOutage(name, query string, clients int) (*experiment.Workload, error) {
	switch name {
	case "":
		return nil, nil //nolint:nilnil // nothing beside the writers
	case "query":
		return experiment.QueryWorkload(query, clients), nil
	case "tprocc":
		return experiment.TproccWorkload(clients, 1), nil
	}
	return nil, fail.Usagef("--workload %s: choose query or tprocc", name)
}

// reportOutages measures the outages of each action and leaves a report. Without --runs each action is repeated 5
// times.
func reportOutages(c *cobra.Command, e experiment.FailoverOptions, actions []string, f suite.Options) error {
	if e.Runs < 1 || e.Clients < 1 {
		return fail.Usagef("--runs %d, --clients %d: choose 1 or more", e.Runs, e.Clients)
	}
	var n bed.Need
	for _, a := range actions {
		action := experiment.Action(a)
		if !slices.Contains(experiment.Actions, action) {
			return fail.Usagef("--actions %s: they are %v", a, experiment.Actions)
		}
		n.Network = n.Network || action == experiment.Cut
		e.Actions = append(e.Actions, action)
	}
	if !c.Flags().Changed("runs") {
		e.Runs = 5
	}
	return measureAll(c, &f, "The outage", []suite.BedRun{{Need: n, Experiments: []suite.Experiment{suite.OutageExperiment(e, "")}}})
}

func measure(c *cobra.Command, o outage.Options, lo lab.Options, peers bool) (s outage.Samples, err error) {
	var f nodecmd.NodeFlags
	in, err := f.Install(c.Context())
	if err != nil {
		return s, err
	}
	ledgers, err := os.MkdirTemp("/var/tmp", "coterie-bench-") // on a disk: every acknowledgement is synced there
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(ledgers)) }()
	o.Dir, o.Version, o.Server = ledgers, buildinfo.Describe(), in.Version
	if peers {
		withPeers(c.Context(), &o, lo.Dir+"-patroni", in.BinDir)
	}
	o.Screen = observe.NewScreen(c.ErrOrStderr(), cli.IsTerminal(c.ErrOrStderr()))
	defer o.Screen.Close()
	o.Up = func(ctx context.Context, progress func(string)) (observe.Lab, error) {
		return bed.UpLab(ctx, lo, progress)
	}
	o.Witness = func(ctx context.Context, progress func(string)) (observe.Lab, error) {
		w := lo
		w.Replicas, w.Witness = 2, true
		return bed.UpLab(ctx, w, progress)
	}
	o.Fast = func(ctx context.Context, progress func(string)) (observe.Lab, error) {
		f := lo
		f.Profile = "fast"
		return bed.UpLab(ctx, f, progress)
	}
	o.Relay = outage.StartForwarder
	return outage.Measure(c.Context(), o)
}

// reportFigures prints the figures of both benches that use these samples.
func reportFigures(c *cobra.Command, s outage.Samples, failed error, out string) error {
	why := "--runs 0"
	if failed != nil {
		why = "an error ended the measurement"
	}
	failover, footprint := s.Figures(why)
	w := c.OutOrStdout()
	if _, err := goals.Report(w, "failover", failover); err != nil {
		return err
	}
	if _, err := goals.Report(w, "footprint", footprint); err != nil {
		return err
	}
	if abs, err := filepath.Abs(out); err == nil {
		out = abs
	}
	_, err := fmt.Fprintf(w, "samples: %s\n", out)
	return err
}

// withPeers adds Patroni to the measurement twice: with its default settings and with the shortest times that it
// accepts. If it is not installed, its figures have the reason.
func withPeers(ctx context.Context, o *outage.Options, dir, bin string) {
	programs, err := patroni.Find(ctx)
	if err != nil {
		o.PeersWhy = err.Error()
		return
	}
	o.Peers = func(ctx context.Context) ([]outage.Peer, func() error, error) {
		return startPatroni(ctx, programs, dir, bin)
	}
}

func startPatroni(ctx context.Context, programs patroni.Programs, dir, bin string) ([]outage.Peer, func() error, error) {
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		u, err := daemon.ServerUser()
		if err != nil {
			return nil, nil, err
		}
		uid, gid = u.UID, u.GID
	}
	// The last run's directory exists only if that run was killed. Its processes may then still run.
	if err := errors.Join(patroni.Sweep(dir), os.RemoveAll(dir), os.MkdirAll(filepath.Dir(dir), 0o755), os.Mkdir(dir, 0o700)); err != nil { //nolint:gosec // the servers' user passes through
		return nil, nil, err
	}
	c, err := patroni.Start(ctx, patroni.Options{Programs: programs, Dir: dir, Bin: bin, UID: uid, GID: gid})
	end := func() error {
		if c == nil {
			return os.RemoveAll(dir)
		}
		return errors.Join(c.Stop(), os.RemoveAll(dir))
	}
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return []outage.Peer{
		patroniArm{c, "patroni", patroni.Default, programs.Versions}, patroniArm{c, "patroni-floor", patroni.Floor, programs.Versions},
	}, end, nil
}

// patroniArm is the one Patroni cluster with one set of settings.
type patroniArm struct {
	*patroni.Cluster
	name     string
	settings patroni.Settings
	versions map[string]string
}

func (a patroniArm) Name() string { return a.name }

func (a patroniArm) About() map[string]string {
	about := maps.Clone(a.versions)
	about["settings"] = fmt.Sprintf("synchronous_mode, %v", a.settings)
	return about
}

func (a patroniArm) ReadWrite() string { return a.Cluster.ReadWrite(a.settings) }

func (a patroniArm) Start(node string) error { return a.Restart(node) }

// Settle puts the settings in force once every replica is back.
func (a patroniArm) Settle(ctx context.Context) error {
	if err := a.Ready(ctx); err != nil {
		return err
	}
	if err := a.Use(ctx, a.settings); err != nil {
		return err
	}
	return a.Ready(ctx)
}
