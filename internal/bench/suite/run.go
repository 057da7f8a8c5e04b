package suite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/cgroup"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/units"
	"github.com/coteriedb/coterie/internal/measure/method"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// Options are the flags that all experiments share: the bed and the place of the results.
type Options struct {
	Lab                    lab.Options
	TargetA, TargetB       string // connection strings of two targets to compare; "": none
	Group                  string // connection string of a group's listeners; "": a lab
	Report, Preset         string // directory of the report; PresetScaled, PresetPublished or "" for an experiment without published conditions
	ClientAt, Link         string // a node of the lab whose network the client runs in; the shape of the lab's links
	Blocks                 int    // how often each arm runs
	Seed                   uint64
	CPU                    float64 // processors of each node of the lab; 0: as the experiment needs
	Memory                 string  // memory of each node of the lab, such as 512MiB
	Yes, Keep, JSON, Apart bool
	Figures                bool // print the figures that have goals
}

// Values of Options.Preset.
const (
	PresetScaled    = "scaled"    // sizes that take minutes
	PresetPublished = "published" // the sizes of the published experiment
)

// Check refuses options that contradict each other.
func (f *Options) Check() error {
	switch {
	case f.Preset != "" && f.Preset != PresetScaled && f.Preset != PresetPublished: // "": an experiment without published conditions
		return fail.Usagef("--preset %s: choose scaled or published", f.Preset)
	case (f.TargetA == "") != (f.TargetB == ""):
		return fail.Usagef("--target-a and --target-b are two things that are compared: give both, or neither")
	case f.TargetA != "" && f.Group != "":
		return fail.Usagef("choose a group (--group) or two targets (--target-a, --target-b)")
	case f.Blocks < 1:
		return fail.Usagef("--blocks %d: choose 1 or more", f.Blocks)
	case f.ClientAt != "" && (f.TargetA != "" || f.Group != ""):
		return fail.Usagef("--client-at is a node of a lab; on a real group, run this command on the node")
	case f.Lab.Storage != "" && f.Lab.Storage != lab.StorageMirror:
		return fail.Usagef("--storage %s: there is %s, or leave it out", f.Lab.Storage, lab.StorageMirror)
	case f.Lab.Storage != "" && (f.TargetA != "" || f.Group != ""):
		return fail.Usagef("--storage is of a lab; a real group has what it stands on: coterie check storage")
	}
	return nil
}

// Experiment is one experiment of a command, ready to run on a bed.
type Experiment struct {
	Name, Title, Question string // the report has them even if it cannot run
	Run                   func(context.Context, *experiment.Bed) (benchreport.Experiment, error)
}

// BedRun is the need of a bed, and the experiments that run on it.
type BedRun struct {
	Need        bed.Need
	Experiments []Experiment
}

// RunOn makes one bed, runs the experiments of run on it, and appends their results to r. An experiment that fails is
// in the report with its error as the reason, and the next one runs.
func (f *Options) RunOn(ctx context.Context, r *benchreport.Report, p *benchreport.Progress, run BedRun) (failed error) {
	on, end, err := f.bed(ctx, r, p, run.Need)
	if err != nil {
		for _, one := range run.Experiments {
			r.Experiments = append(r.Experiments, benchreport.Experiment{Name: one.Name, Title: one.Title, Question: one.Question, NotRun: benchreport.Redact(err.Error())})
		}
		return err
	}
	defer func() { failed = errors.Join(failed, end()) }()
	for _, one := range run.Experiments {
		if ctx.Err() != nil {
			return errors.Join(failed, context.Cause(ctx))
		}
		e, err := one.Run(ctx, on)
		e.Name, e.Title, e.Question = one.Name, one.Title, one.Question
		if err != nil {
			if errors.Is(err, method.ErrUncapped) {
				err = fail.Refusedf("%w", err)
			}
			e.NotRun = benchreport.Redact(err.Error())
			failed = errors.Join(failed, fmt.Errorf("%s: %w", one.Name, err))
			p.Say("%s: not run: %v", one.Name, err)
		} else {
			p.Say("%s: %s", one.Name, e.Answer)
		}
		r.Experiments = append(r.Experiments, e)
	}
	return failed
}

// bed opens the targets or the group that the options name, or makes a lab. end removes what was made.
func (f *Options) bed(ctx context.Context, r *benchreport.Report, p *benchreport.Progress, n bed.Need) (on *experiment.Bed, end func() error, err error) {
	var write string
	end = func() error { return nil }
	switch {
	case f.TargetA != "":
		if err := errors.Join(answers(ctx, "--target-a", f.TargetA), answers(ctx, "--target-b", f.TargetB)); err != nil {
			return nil, nil, err
		}
		on, write = &experiment.Bed{A: f.TargetA, B: f.TargetB}, f.TargetA
	case f.Group != "":
		if err := answers(ctx, "--group", f.Group); err != nil {
			return nil, nil, err
		}
		g, err := bed.OpenGroup(ctx, f.Group)
		if err != nil {
			return nil, nil, err
		}
		on, write = &experiment.Bed{Group: g, Apart: f.Apart}, f.Group
	default:
		if on, end, err = f.labBed(ctx, p, n); err != nil {
			return nil, nil, err
		}
		r.Machine = benchreport.Describe(f.Lab.Dir)
	}
	on.Seed, on.Blocks, on.Published, on.Progress = f.Seed, f.Blocks, f.Preset == PresetPublished, p
	if write == "" {
		write = on.Group.ReadWrite()
	} else {
		if err := f.mayUse(ctx, on); err != nil {
			return nil, nil, err
		}
		if !f.Keep {
			end = func() error {
				c, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
				defer cancel()
				return errors.Join(workload.Drop(c, write), tpcc.Drop(c, write))
			}
		}
	}
	return on, end, noteServer(ctx, r, write)
}

// labBed makes a lab that meets n and the limits of the options, after it has checked the free disk space.
func (f *Options) labBed(ctx context.Context, p *benchreport.Progress, n bed.Need) (*experiment.Bed, func() error, error) {
	dir, err := lab.DemoDir(f.Lab.Dir, "bench")
	if err != nil {
		return nil, nil, err
	}
	f.Lab.Dir = dir
	copies := uint64(1)
	if f.Lab.Storage == lab.StorageMirror {
		copies = 2
	}
	if err := bed.EnoughDisk(filepath.Dir(dir), copies*(bed.LabNeeds+n.Bytes)); err != nil {
		return nil, nil, err
	}
	if f.CPU > 0 {
		n.CPU = f.CPU
	}
	if f.Memory != "" {
		bytes, err := units.ParseBytes(f.Memory, cgroup.MinMemory)
		if err != nil {
			return nil, nil, fail.Usagef("--node-memory %s: %w", f.Memory, err)
		}
		n.Memory = bytes
	}
	if f.Link != "" {
		n.Network, n.Links = true, f.Link
	}
	o := f.Lab
	start := time.Now()
	o.Progress = func(string) {}
	p.Say("making a lab in %s", dir)
	l, on, err := bed.LabFor(ctx, n, o, f.ClientAt)
	if err != nil {
		return nil, nil, err
	}
	p.Say("a lab of three replicas is up after %.1f s", time.Since(start).Seconds())
	return on, func() error { return l.Remove(ctx) }, nil
}
