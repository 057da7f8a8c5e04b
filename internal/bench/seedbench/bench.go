package seedbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// PublishedSeedMB is the size, in MB, of the database whose copy was published. SeedMB is the default size.
const (
	PublishedSeedMB = 32 << 10
	SeedMB          = 2 << 10
)

// SeedingOptions are the flags of coterie bench seeding.
type SeedingOptions struct {
	SizeMB int      // size of the pgbench database
	Rounds int      // rounds in which every arm runs once
	Dir    string   // directory of the copies; empty: a new one in /var/tmp
	Out    string   // file for the samples
	Prof   string   // beginning of the names of processor profiles; empty: none
	Only   []string // names of SeedingParts; none: all
	Report string   // directory of the report; empty: none
	JSON   bool     // print the samples instead of the figures

	OtherwiseMB int // the size to use where the disk has no room for SizeMB; 0: none
}

// Samples are the raw measurements of a run.
type Samples struct {
	Version string       `json:"version"`
	Server  string       `json:"postgresql"`
	SizeMB  int          `json:"size_mb"`
	Scaled  bool         `json:"scaled"` // the size is not the published one, so the figures do not compare with published ones
	Date    time.Time    `json:"date"`
	Copies  []copySample `json:"copies"`
	TPCB    []tpcbSample `json:"tpcb"`
}

// copySample is one copy.
type copySample struct {
	Arm     string  `json:"arm"`
	Link    string  `json:"link"`
	Seconds float64 `json:"seconds"`
	Wire    int64   `json:"wire_bytes"`
	Bytes   int64   `json:"file_bytes"`
	// Processor time. That of the source is the server's and, for our arms, that of the process that serves the copy.
	SourceCPU float64 `json:"source_cpu_seconds"`
	TargetCPU float64 `json:"target_cpu_seconds"`

	Codec  string `json:"codec,omitempty"`
	Phases string `json:"phases,omitempty"`
	Err    string `json:"error,omitempty"`

	track *track
}

type tpcbSample struct {
	Seeding bool    `json:"seeding"`
	TPS     float64 `json:"tps"`
}

// Print prints the copies and the runs of pgbench as tables.
func (s *Samples) Print(w io.Writer) {
	if s.Scaled {
		_, _ = fmt.Fprintf(w, "scaled run: %d MB instead of the published %d\n", s.SizeMB, PublishedSeedMB)
	}
	_, _ = fmt.Fprintf(w, "%-12s %-34s %10s %12s %14s %9s %9s   %s\n", "link", "arm", "seconds", "wire MB", "MB/s of files", "source s", "target s", "codec")
	for _, c := range s.Copies {
		if c.Err != "" {
			_, _ = fmt.Fprintf(w, "%-12s %-34s failed: %s\n", c.Link, c.Arm, c.Err)
			continue
		}
		_, _ = fmt.Fprintf(w, "%-12s %-34s %10.2f %12.1f %14.1f %9.2f %9.2f   %s\n", c.Link, c.Arm, c.Seconds, float64(c.Wire)/1e6, float64(c.Bytes)/1e6/c.Seconds, c.SourceCPU, c.TargetCPU, c.Codec)
	}
}

// SeedingParts are the parts of a run, in order.
var SeedingParts = []struct {
	Name string
	run  func(*seedBench, context.Context) error
}{
	{"metro", (*seedBench).metro}, {"wan", (*seedBench).wan}, {"mend", (*seedBench).mend}, {"tpcb", (*seedBench).tpcb}, {"others", (*seedBench).others},
}

// asked reports whether the part is to run.
func (o SeedingOptions) asked(part string) bool {
	return len(o.Only) == 0 || slices.Contains(o.Only, part)
}

// seedingNeeds returns the bytes of disk that a database of that many MB, its WAL and one copy need: twice the size and
// a tenth of it, and 2 GiB.
func seedingNeeds(sizeMB int) uint64 { return uint64(max(sizeMB, 0))<<20*21/10 + 2<<30 }

// room refuses a size for which the disks have no space.
func (o SeedingOptions) room() error {
	for _, dir := range []string{os.TempDir(), cmp.Or(o.Dir, "/var/tmp")} { // directories of the server and of its copies
		if err := bed.EnoughDisk(dir, seedingNeeds(o.SizeMB)); err != nil {
			return err
		}
	}
	return nil
}

// Fit changes SizeMB to OtherwiseMB if the disks have no space for SizeMB, and returns the reason in words. The result
// is empty if it changes nothing.
func (o *SeedingOptions) Fit() (why string) {
	no := o.room()
	if no == nil || o.OtherwiseMB == 0 {
		return ""
	}
	o.SizeMB = o.OtherwiseMB
	return fmt.Sprintf("Scaled to %d MB: %v.", o.SizeMB, no)
}

// MeasureSeeding runs the parts that o names and reports with say what it does. The disk must have room for the copies,
// and only root may make the emulated links.
func MeasureSeeding(ctx context.Context, o SeedingOptions, say func(string, ...any)) (*Samples, []goals.Figure, error) {
	if err := o.room(); err != nil {
		return nil, nil, err
	}
	b, err := newSeedBench(ctx, o, say)
	if err != nil {
		return nil, nil, err
	}
	defer b.close()
	if err := b.identify(ctx); err != nil {
		return nil, nil, err
	}
	if !slices.Equal(o.Only, []string{"others"}) { // the part others has databases of its own
		if err := b.load(ctx); err != nil {
			return nil, nil, err
		}
	}
	for _, part := range SeedingParts {
		if !o.asked(part.Name) {
			continue
		}
		if err := part.run(b, ctx); err != nil {
			return nil, nil, err
		}
	}
	return b.samples, b.figures(), nil
}

const (
	armOurs    = "coterie AUTO"
	armPlain   = "coterie OFF"
	armResumed = "coterie AUTO, killed at 50 % of the wire"
	armHalfway = "coterie AUTO, killed at 50 % of files"
	armMended  = "coterie AUTO, 1 % of pages differ"

	armMendedCold = "coterie AUTO, 1 % differ, not cached"
)

// baseBackups are the arms of pg_basebackup, with their options.
var baseBackups = []struct{ name, compress string }{
	{"pg_basebackup none", "none"}, {"pg_basebackup server-lz4", "server-lz4"}, {"pg_basebackup server-zstd:1,workers=2", "server-zstd:level=1,workers=2"},
}

// metro compares our transfer with pg_basebackup over a fast link.
func (b *seedBench) metro(ctx context.Context) error {
	if err := b.link("metro"); err != nil {
		return err
	}
	for round := range b.o.Rounds {
		arms := []func(context.Context) copySample{func(ctx context.Context) copySample {
			defer b.profile(round)()
			return b.seedOnce(ctx, armOurs, "AUTO", b.profileOf(round, "target"))
		}}
		for _, p := range baseBackups {
			arms = append(arms, func(ctx context.Context) copySample { return b.baseBackup(ctx, p.name, p.compress) })
		}
		for i := range arms { // each round begins with another arm, and no arm finds dirty pages of another
			unix.Sync()
			b.add("metro", arms[(i+round)%len(arms)](ctx))
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// profile writes a processor profile of the source until stop is called.
func (b *seedBench) profile(round int) (stop func()) {
	if b.o.Prof == "" {
		return func() {}
	}
	f, err := os.Create(b.profileOf(round, "source"))
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	if err != nil {
		b.say("no profile: %v", err)
		return func() {}
	}
	return func() { pprof.StopCPUProfile(); _ = f.Close() }
}

func (b *seedBench) profileOf(round int, side string) string {
	if b.o.Prof == "" {
		return ""
	}
	return fmt.Sprintf("%s.%d.%s", b.o.Prof, round, side)
}

// wan measures what compression gives over a slow link.
func (b *seedBench) wan(ctx context.Context) error {
	return b.slowly(ctx, func(round int) {
		b.add("wan-good", b.seedOnce(ctx, armOurs, "AUTO", b.profileOf(round, "wan")))
		b.add("wan-good", b.seedOnce(ctx, armPlain, "OFF", ""))
	})
}

// mend resumes a killed seeding and repairs a damaged copy, both over the slow link. Both are compared with a whole
// copy, which mend makes if no other part does.
func (b *seedBench) mend(ctx context.Context) error {
	return b.slowly(ctx, func(round int) {
		if !b.o.asked("wan") {
			b.add("wan-good", b.seedOnce(ctx, armOurs, "AUTO", b.profileOf(round, "wan")))
		}
		b.add("wan-good", b.resumed(ctx, armResumed, b.halfOfTheWire()))
		b.add("wan-good", b.resumed(ctx, armHalfway, func(p progress.Progress) bool { return p.Total > 0 && p.Done >= p.Total/2 }))
		defer b.profile(round)()
		b.add("wan-good", b.damaged(ctx, armMendedCold, ""))
		b.add("wan-good", b.damaged(ctx, armMended, b.profileOf(round, "target")))
	})
}

// slowly runs every round over the slow link.
func (b *seedBench) slowly(ctx context.Context, each func(round int)) error {
	if err := b.link("wan-good"); err != nil {
		return err
	}
	for round := range b.o.Rounds {
		if each(round); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (b *seedBench) figures() []goals.Figure {
	s := b.samples
	median := func(link, arm string, of func(copySample) float64) (float64, bool) {
		var v []float64
		for _, c := range s.Copies {
			if c.Link == link && c.Arm == arm && c.Err == "" {
				v = append(v, of(c))
			}
		}
		if len(v) == 0 {
			return 0, false
		}
		slices.Sort(v)
		return v[len(v)/2], true
	}
	seconds := func(c copySample) float64 { return c.Seconds }
	wire := func(c copySample) float64 { return float64(c.Wire) }
	var out []goals.Figure
	figure := func(name string, ok bool, v func() float64, parts ...string) {
		f := goals.Figure{Name: name, NotRun: b.o.notRun(parts...)}
		if ok {
			f.NotRun, f.Measured = "", v()
		}
		out = append(out, f)
	}
	out = append(out, b.toBest())
	auto, ok1 := median("wan-good", armOurs, seconds)
	autoWire, _ := median("wan-good", armOurs, wire)
	plain, ok2 := median("wan-good", armPlain, seconds)
	rate := linkem.Profiles["wan-good"].RateBits / 8
	figure("wan-good-over-wire-time", ok1, func() float64 { return 100 * (auto/(autoWire/float64(rate)) - 1) }, "wan", "mend")
	figure("wan-good-compression-gain", ok1 && ok2, func() float64 { return plain / auto }, "wan")
	again, ok3 := median("wan-good", armResumed, wire) // two definitions of half way; the worse result counts
	halfway, ok3files := median("wan-good", armHalfway, wire)
	figure("resumed-at-half-wire", ok1 && ok3 && ok3files, func() float64 { return 100 * max(again, halfway) / autoWire }, "mend")
	mended, ok4 := median("wan-good", armMended, wire)
	mendedTime, _ := median("wan-good", armMended, seconds)
	figure("reseed-1-percent-wire", ok1 && ok4, func() float64 { return 100 * mended / autoWire }, "mend")
	figure("reseed-1-percent-time", ok1 && ok4, func() float64 { return 100 * mendedTime / auto }, "mend")
	cold, ok5 := median("wan-good", armMendedCold, seconds)
	figure("reseed-1-percent-time-cold", ok1 && ok5, func() float64 { return 100 * cold / auto }, "mend")
	return append(out, b.tpcbFigure())
}

// notRun returns the reason why a figure of these parts is missing.
func (o SeedingOptions) notRun(parts ...string) string {
	if slices.ContainsFunc(parts, o.asked) {
		return "an arm failed"
	}
	return "not asked for: it is of " + strings.Join(parts, " or ")
}

// toBest returns our time over that of the best peer of the same round.
func (b *seedBench) toBest() goals.Figure {
	ours, best := []float64{}, map[string][]float64{}
	for _, c := range b.samples.Copies {
		switch {
		case c.Link != "metro" || c.Err != "":
		case c.Arm == armOurs:
			ours = append(ours, c.Seconds)
		default:
			best[c.Arm] = append(best[c.Arm], c.Seconds)
		}
	}
	fastest := 0.0
	for _, v := range best {
		slices.Sort(v)
		if m := v[len(v)/2]; fastest == 0 || m < fastest {
			fastest = m
		}
	}
	if len(ours) == 0 || fastest == 0 {
		return goals.Figure{Name: "metro-pgbench-to-best", NotRun: b.o.notRun("metro")}
	}
	slices.Sort(ours)
	return goals.Figure{
		Name: "metro-pgbench-to-best", Measured: ours[len(ours)/2] / fastest, HasInterval: true,
		Low: ours[0] / fastest, High: ours[len(ours)-1] / fastest,
	}
}

func (b *seedBench) tpcbFigure() goals.Figure {
	var with, without []float64
	for _, t := range b.samples.TPCB {
		if t.Seeding {
			with = append(with, t.TPS)
		} else {
			without = append(without, t.TPS)
		}
	}
	f := goals.Figure{Name: "tpcb-while-throttled"}
	if len(with) == 0 || len(without) == 0 {
		f.NotRun = b.o.notRun("tpcb")
		return f
	}
	slices.Sort(with)
	slices.Sort(without)
	base := without[len(without)/2]
	f.Measured, f.HasInterval, f.Low, f.High = with[len(with)/2]/base, true, with[0]/base, with[len(with)-1]/base
	return f
}

func (b *seedBench) add(link string, c copySample) {
	c.Link = link
	b.samples.Copies = append(b.samples.Copies, c)
	b.say("%s: %s: %.1f s, %.1f MB on the wire %s", link, c.Arm, c.Seconds, float64(c.Wire)/1e6, cmp.Or(c.Err, strings.TrimSuffix(c.Codec+"; "+c.Phases, "; ")))
}

func fresh(dir, name string) (string, error) {
	d := filepath.Join(dir, name)
	return d, errors.Join(os.RemoveAll(d), os.MkdirAll(d, 0o700))
}
