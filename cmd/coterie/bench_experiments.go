package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// suiteOptions say on what a command's experiments run and where their results go.
type suiteOptions struct {
	lab                    lab.Options
	targetA, targetB       string // connection strings of two targets that are compared; "": none
	group                  string // connection string of a group's listeners; "": a lab
	report, preset         string // directory of the report; presetScaled, presetPublished or "" where nobody published conditions
	clientAt, link         string // a node of the lab whose network the client runs in; the shape of the lab's links
	blocks                 int    // how often each arm runs
	seed                   uint64
	cpu                    float64 // processors of each node of the lab; 0: as the experiment needs
	memory                 string  // memory of each node of the lab, such as 512MiB
	yes, keep, json, apart bool
	figures                bool // print those that have goals
}

// experimentFlags are common to all experiments.
type experimentFlags struct{ suiteOptions }

const (
	presetScaled    = "scaled"
	presetPublished = "published"
)

func (f *experimentFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.preset, "preset", presetScaled, "sizes: scaled, which takes minutes, or published, which can take hours")
	f.addOthers(c)
}

// addOthers adds all but --preset, which an experiment has only if somebody published its conditions.
func (f *experimentFlags) addOthers(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.report, "report", "", "write result.json, summary.csv, series.csv and report.html into this directory")
	fs.StringVar(&f.group, "group", "", "connection string of the listeners of a group that is there (default: a lab, made and removed)")
	fs.StringVar(&f.targetA, "target-a", "", "connection string of the first of two servers or ways to them that are compared; writes go there")
	fs.StringVar(&f.targetB, "target-b", "", "that of the second")
	fs.BoolVar(&f.apart, "nodes-apart", false, "the nodes of --group are machines of their own")
	fs.BoolVar(&f.yes, "yes", false, "measure on a target that looks as if somebody needed it")
	fs.BoolVar(&f.keep, "keep-data", false, "leave what was loaded into --group or --target-a, for another run")
	fs.IntVar(&f.blocks, "blocks", 6, "how often each arm runs, in turns; fewer than 6 give no verdict")
	fs.Uint64Var(&f.seed, "seed", 1, "of everything random")
	fs.BoolVar(&f.json, "json", false, "print the result as JSON")
	fs.StringVar(&f.clientAt, "client-at", "", "run the client in the network of this node of the lab, through that node's listener (root)")
	fs.Float64Var(&f.cpu, "node-cpu", 0, "processors that each node of the lab may use (default: what the experiment needs)")
	fs.StringVar(&f.memory, "node-memory", "", "memory that each node of the lab may use, pages of files included, such as 512MiB (default: what the experiment needs)")
	fs.StringVar(&f.link, "link", "", "what the links of the lab are like (default: what the experiment needs): "+shapeHelp)
	fs.IntVar(&f.lab.Port, "port", 0, "of the first node's listener, of a lab on the loopback interface (default 6432)")
	fs.StringVar(&f.lab.Dir, "dir", "", "the lab's directory (default "+lab.DefaultDir()+"-bench)")
}

// check refuses options that contradict each other.
func (f *suiteOptions) check() error {
	switch {
	case f.preset != "" && f.preset != presetScaled && f.preset != presetPublished: // none: nobody published conditions
		return fail.Usagef("--preset %s: choose scaled or published", f.preset)
	case (f.targetA == "") != (f.targetB == ""):
		return fail.Usagef("--target-a and --target-b are two things that are compared: give both, or neither")
	case f.targetA != "" && f.group != "":
		return fail.Usagef("choose a group (--group) or two targets (--target-a, --target-b)")
	case f.blocks < 1:
		return fail.Usagef("--blocks %d: choose 1 or more", f.blocks)
	case f.clientAt != "" && (f.targetA != "" || f.group != ""):
		return fail.Usagef("--client-at is a node of a lab; on a real group, run this command on the node")
	}
	return nil
}

// sizes refuses, of a run with the published sizes, flags that say other ones: its columns would stand beside figures of something else.
func (f *experimentFlags) sizes(c *cobra.Command, flags ...string) error {
	if f.preset != presetPublished {
		return nil
	}
	for _, one := range flags {
		if c.Flags().Changed(one) {
			return fail.Usagef("--%s is a size of its own, and --preset published says the sizes: leave one of the two out", one)
		}
	}
	return nil
}

// piece is one experiment of a command.
type piece struct {
	name, title, question string // said of it if it cannot run
	run                   func(context.Context, *experiment.Bed) (benchreport.Experiment, error)
}

// stageOf is a lab and what is measured on it.
type stageOf struct {
	need   need
	pieces []piece
}

// measureAll runs the stages one after the other and leaves a report. What fails does not keep the others from running.
func measureAll(c *cobra.Command, f *suiteOptions, title string, stages []stageOf) error {
	if err := f.check(); err != nil {
		return err
	}
	ctx := c.Context()
	r := &benchreport.Report{
		Title: title, Command: benchreport.CommandLine(os.Args), Version: version, Started: time.Now(), Seed: f.seed,
		Settings: map[string]string{"blocks": fmt.Sprint(f.blocks), "go": runtime.Version()},
	}
	if f.preset != "" {
		r.Settings["preset"] = f.preset
	}
	p := benchreport.NewProgress(c.ErrOrStderr(), isTerminal(c.ErrOrStderr()))
	var failed error
	for _, s := range stages {
		failed = errors.Join(failed, f.stage(ctx, r, p, s))
	}
	p.Say("")
	r.Ended = time.Now()
	if r.Machine.Cores == 0 {
		r.Machine = benchreport.Describe(os.TempDir())
	}
	if f.report != "" {
		if err := r.Save(f.report); err != nil {
			return errors.Join(failed, err)
		}
	}
	if f.json {
		return errors.Join(failed, printJSON(c, r))
	}
	if err := r.Print(c.OutOrStdout()); err != nil {
		return errors.Join(failed, err)
	}
	if f.figures {
		if _, err := fmt.Fprintln(c.OutOrStdout()); err != nil {
			return errors.Join(failed, err)
		}
		if _, err := goals.Report(c.OutOrStdout(), "experiments", experimentFigures(r)); err != nil {
			return errors.Join(failed, err)
		}
	}
	if f.report != "" {
		say(c, "\nreport: %s", filepath.Join(f.report, "report.html"))
	}
	return failed
}

// stage measures on one bed.
func (f *suiteOptions) stage(ctx context.Context, r *benchreport.Report, p *benchreport.Progress, s stageOf) (failed error) {
	on, end, err := f.bed(ctx, r, p, s.need)
	if err != nil {
		for _, one := range s.pieces {
			r.Experiments = append(r.Experiments, benchreport.Experiment{Name: one.name, Title: one.title, Question: one.question, NotRun: benchreport.Redact(err.Error())})
		}
		return err
	}
	defer func() { failed = errors.Join(failed, end()) }()
	for _, one := range s.pieces {
		if ctx.Err() != nil {
			return errors.Join(failed, context.Cause(ctx))
		}
		e, err := one.run(ctx, on)
		e.Name, e.Title, e.Question = one.name, one.title, one.question
		if err != nil {
			if errors.Is(err, method.ErrUncapped) {
				err = fail.Refusedf("%w", err)
			}
			e.NotRun = benchreport.Redact(err.Error())
			failed = errors.Join(failed, fmt.Errorf("%s: %w", one.name, err))
			p.Say("%s: not run: %v", one.name, err)
		} else {
			p.Say("%s: %s", one.name, e.Answer)
		}
		r.Experiments = append(r.Experiments, e)
	}
	return failed
}

// bed is what the flags name, or a lab; end removes what was made.
func (f *suiteOptions) bed(ctx context.Context, r *benchreport.Report, p *benchreport.Progress, n need) (on *experiment.Bed, end func() error, err error) {
	var write string
	end = func() error { return nil }
	switch {
	case f.targetA != "":
		if err := errors.Join(answers(ctx, "--target-a", f.targetA), answers(ctx, "--target-b", f.targetB)); err != nil {
			return nil, nil, err
		}
		on, write = &experiment.Bed{A: f.targetA, B: f.targetB}, f.targetA
	case f.group != "":
		if err := answers(ctx, "--group", f.group); err != nil {
			return nil, nil, err
		}
		g, err := openGroup(ctx, f.group)
		if err != nil {
			return nil, nil, err
		}
		on, write = &experiment.Bed{Group: g, Apart: f.apart}, f.group
	default:
		if on, end, err = f.labBed(ctx, p, n); err != nil {
			return nil, nil, err
		}
		r.Machine = benchreport.Describe(f.lab.Dir)
	}
	on.Seed, on.Blocks, on.Published, on.Progress = f.seed, f.blocks, f.preset == presetPublished, p
	if write == "" {
		write = on.Group.ReadWrite()
	} else {
		if err := f.mayUse(ctx, on); err != nil {
			return nil, nil, err
		}
		if !f.keep {
			end = func() error {
				c, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
				defer cancel()
				return errors.Join(workload.Drop(c, write), tpcc.Drop(c, write))
			}
		}
	}
	return on, end, noteServer(ctx, r, write)
}

func (f *suiteOptions) labBed(ctx context.Context, p *benchreport.Progress, n need) (*experiment.Bed, func() error, error) {
	dir, err := demoDir(f.lab.Dir, "bench")
	if err != nil {
		return nil, nil, err
	}
	f.lab.Dir = dir
	if err := enoughDisk(filepath.Dir(dir), labNeeds+n.bytes); err != nil {
		return nil, nil, err
	}
	if f.cpu > 0 {
		n.cpu = f.cpu
	}
	if f.memory != "" {
		bytes, err := parseBytes(f.memory)
		if err != nil {
			return nil, nil, fail.Usagef("--node-memory %s: %w", f.memory, err)
		}
		n.memory = bytes
	}
	if f.link != "" {
		n.network, n.links = true, f.link
	}
	o := f.lab
	start := time.Now()
	o.Progress = func(string) {}
	p.Say("making a lab in %s", dir)
	l, on, err := labFor(ctx, n, o, f.clientAt)
	if err != nil {
		return nil, nil, err
	}
	p.Say("a lab of three replicas is up after %.1f s", time.Since(start).Seconds())
	return on, func() error { return l.remove(ctx) }, nil
}

// labNeeds is what three replicas of a lab take before anything is loaded: their clusters, and the WAL that is kept.
const labNeeds = 4 << 30

func enoughDisk(dir string, bytes uint64) error {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil //nolint:nilerr // who cannot be asked will say so when it is full
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < bytes {
		return fail.Refusedf("what is made here needs about %.1f GiB, and %s has %.1f GiB free: make room, choose smaller sizes, or another place with --dir",
			float64(bytes)/(1<<30), dir, float64(free)/(1<<30))
	}
	return nil
}

// answers tells whether a target lets us in now. Clients of an experiment look for a server until the end, so a wrong string has to show
// before they begin.
func answers(ctx context.Context, flag, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fail.Usagef("%s: %w", flag, err)
	}
	cfg.RuntimeParams["application_name"] = "coterie bench" // it may still be there when others are looked for
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("%s: %w; see whether psql gets in with the same string", flag, err)
	}
	return conn.Close(ctx)
}

// mayUse refuses a target that somebody seems to need: any of its servers.
func (f *suiteOptions) mayUse(ctx context.Context, bed *experiment.Bed) error {
	if f.yes {
		return nil
	}
	if bed.Group == nil {
		if err := unused(ctx, "--target-a", bed.A); err != nil {
			return err
		}
		return unused(ctx, "--target-b", bed.B)
	}
	if err := unused(ctx, "the group's primary", bed.Group.ReadWrite()); err != nil {
		return err
	}
	members, err := bed.Group.Members(ctx)
	if err != nil {
		return err
	}
	for range members { // the listeners send readers to the secondaries in turn
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		why, err := workload.LooksUsed(short, bed.Group.ReadOnly())
		cancel()
		if err != nil {
			return context.Cause(ctx) // where nobody takes readers, nobody is disturbed
		}
		if why != "" {
			return looksUsed("a readable secondary of the group", why)
		}
	}
	return nil
}

// unused refuses one server that somebody seems to need.
func unused(ctx context.Context, what, dsn string) error {
	why, err := workload.LooksUsed(ctx, dsn)
	if err != nil || why == "" {
		return err
	}
	return looksUsed(what, why)
}

func looksUsed(what, why string) error {
	return fail.Refusedf("%s looks as if somebody needed it: %s. A benchmark takes all it can get of a server; use one of its own, or say --yes", what, why)
}

// noteServer writes down which server it is, and what of its settings is not as shipped.
func noteServer(ctx context.Context, r *benchreport.Report, dsn string) error {
	conn, err := workload.Open(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, `select name, current_setting(name) from pg_settings where source not in ('default', 'override', 'client', 'session')
		and name !~ '(password|secret|ssl_.*file|command|conninfo|path|directory)' or name in ('server_version', 'synchronous_commit', 'synchronous_standby_names')`)
	if err != nil {
		return err
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		r.Settings["postgresql: "+name] = benchreport.Redact(value)
		return nil
	})
	return err
}

// list reads numbers separated by commas.
func positive(flag string, list []int) error {
	for _, n := range list {
		if n < 1 || n > 10_000 {
			return fail.Usagef("--%s %v: choose numbers from 1 to 10000", flag, strings.Trim(fmt.Sprint(list), "[]"))
		}
	}
	if len(list) == 0 {
		return fail.Usagef("--%s: give at least one number", flag)
	}
	return nil
}
