package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/suite"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/measure/goals"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// experimentFlags are the flags of all experiments.
type experimentFlags struct{ suite.Options }

func (f *experimentFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.Preset, "preset", suite.PresetScaled, "sizes: scaled, which takes minutes, or published, which can take hours")
	f.addOthers(c)
}

// addOthers adds all flags but --preset, which only experiments with published conditions have.
func (f *experimentFlags) addOthers(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.Report, "report", "", "write result.json, summary.csv, series.csv and report.html into this directory")
	fs.StringVar(&f.Group, "group", "", "connection string of the listeners of a group that is there (default: a lab, made and removed)")
	fs.StringVar(&f.TargetA, "target-a", "", "connection string of the first of two servers or ways to them that are compared; writes go there")
	fs.StringVar(&f.TargetB, "target-b", "", "that of the second")
	fs.BoolVar(&f.Apart, "nodes-apart", false, "the nodes of --group are machines of their own")
	fs.BoolVar(&f.Yes, "yes", false, "measure on a target that looks as if somebody needed it")
	fs.BoolVar(&f.Keep, "keep-data", false, "leave what was loaded into --group or --target-a, for another run")
	fs.IntVar(&f.Blocks, "blocks", 6, "how often each arm runs, in turns; fewer than 6 give no verdict")
	fs.Uint64Var(&f.Seed, "seed", 1, "of everything random")
	fs.BoolVar(&f.JSON, "json", false, "print the result as JSON")
	fs.StringVar(&f.ClientAt, "client-at", "", "run the client in the network of this node of the lab, through that node's listener (root)")
	fs.Float64Var(&f.CPU, "node-cpu", 0, "processors that each node of the lab may use (default: what the experiment needs)")
	fs.StringVar(&f.Memory, "node-memory", "", "memory that each node of the lab may use, pages of files included, such as 512MiB (default: what the experiment needs)")
	fs.StringVar(&f.Link, "link", "", "what the links of the lab are like (default: what the experiment needs): "+linkem.ShapeHelp)
	fs.StringVar(&f.Lab.Storage, "storage", "", "mirror: every node of the lab is on a mirror of its own (btrfs RAID 1 on loop devices; root)")
	fs.IntVar(&f.Lab.Port, "port", 0, "of the first node's listener, of a lab on the loopback interface (default 6432)")
	fs.StringVar(&f.Lab.Dir, "dir", "", "the lab's directory (default "+lab.DefaultDir()+"-bench)")
}

// sizes refuses flags that change the published sizes. The published figures would stand beside figures of other sizes.
func (f *experimentFlags) sizes(c *cobra.Command, flags ...string) error {
	if f.Preset != suite.PresetPublished {
		return nil
	}
	for _, one := range flags {
		if c.Flags().Changed(one) {
			return fail.Usagef("--%s is a size of its own, and --preset published says the sizes: leave one of the two out", one)
		}
	}
	return nil
}

// measureAll runs the beds' experiments in turn and leaves a report. A failure does not stop the others.
func measureAll(c *cobra.Command, f *suite.Options, title string, stages []suite.BedRun) error {
	if err := f.Check(); err != nil {
		return err
	}
	ctx := c.Context()
	r := &benchreport.Report{
		Title: title, Command: benchreport.CommandLine(os.Args), Version: buildinfo.Describe(), Started: time.Now(), Seed: f.Seed,
		Settings: map[string]string{"blocks": fmt.Sprint(f.Blocks), "go": runtime.Version()},
	}
	if f.Preset != "" {
		r.Settings["preset"] = f.Preset
	}
	if f.Lab.Storage != "" {
		r.Settings["storage"] = f.Lab.Storage
	}
	p := benchreport.NewProgress(c.ErrOrStderr(), cli.IsTerminal(c.ErrOrStderr()))
	var failed error
	for _, s := range stages {
		failed = errors.Join(failed, f.RunOn(ctx, r, p, s))
	}
	p.Say("")
	r.Ended = time.Now()
	if r.Machine.Cores == 0 {
		r.Machine = benchreport.Describe(os.TempDir())
	}
	if f.Report != "" {
		if err := r.Save(f.Report); err != nil {
			return errors.Join(failed, err)
		}
	}
	if f.JSON {
		return errors.Join(failed, cli.PrintJSON(c, r))
	}
	if err := r.Print(c.OutOrStdout()); err != nil {
		return errors.Join(failed, err)
	}
	if f.Figures {
		if _, err := fmt.Fprintln(c.OutOrStdout()); err != nil {
			return errors.Join(failed, err)
		}
		if _, err := goals.Report(c.OutOrStdout(), "experiments", suite.ExperimentFigures(r)); err != nil {
			return errors.Join(failed, err)
		}
	}
	if f.Report != "" {
		cli.Say(c, "\nreport: %s", filepath.Join(f.Report, "report.html"))
	}
	return failed
}

// positive refuses an empty list, and numbers outside 1 to 10000.
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

// withoutPreset makes an experiment refuse --preset with the reason. Without it, the error of an unknown flag would
// look like a misspelling.
func withoutPreset(c *cobra.Command, why string) {
	c.Flags().Var(noPreset(why), "preset", "")
	if err := c.Flags().MarkHidden("preset"); err != nil {
		panic(err) // it was added above
	}
}

// noPreset is a flag that refuses every value. Its text is the reason.
type noPreset string

func (p noPreset) String() string { return "" }

func (p noPreset) Type() string { return "string" }

func (p noPreset) Set(string) error {
	return fmt.Errorf("%s: there are no sizes to choose; leave it out", string(p))
}

// presets returns the values of an experiment's --preset; none if it does not have the flag.
func presets(command string) []string {
	c, _, err := Bench().Find([]string{command})
	if err != nil {
		return nil
	}
	if f := c.Flags().Lookup("preset"); f == nil || f.Hidden {
		return nil
	}
	return []string{suite.PresetScaled, suite.PresetPublished}
}

// upLab makes a lab for a benchmark that needs more of it than every one does, as L says.
func upLab[L any](ctx context.Context, o lab.Options) (one L, err error) {
	l, err := bed.UpLab(ctx, o, func(string) {})
	if err != nil {
		return one, err
	}
	one, ok := l.(L)
	if !ok {
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return one, errors.Join(fmt.Errorf("a lab of another kind: %T", l), l.Down(down, false))
	}
	return one, nil
}
