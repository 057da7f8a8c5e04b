package seedbench

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

func copies(link, arm string, seconds ...float64) (out []copySample) {
	for _, s := range seconds {
		out = append(out, copySample{Link: link, Arm: arm, Seconds: s, Wire: 1000, Bytes: 4000})
	}
	return out
}

func benchOf(lists ...[]copySample) *seedBench {
	return &seedBench{samples: &Samples{Copies: slices.Concat(lists...)}, say: func(string, ...any) {}}
}

func named(t *testing.T, all []goals.Figure, name string) goals.Figure {
	t.Helper()
	i := slices.IndexFunc(all, func(f goals.Figure) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no figure %s", name)
	}
	return all[i]
}

// TestToBest checks that our time stands beside the fastest of the peers, and that failed copies count for nobody.
func TestToBest(t *testing.T) {
	t.Parallel()
	failed := copies("metro", "pg_basebackup lz4", 1)
	failed[0].Err = "it failed"
	b := benchOf(copies("metro", armOurs, 9, 6, 12), copies("metro", "pg_basebackup none", 30, 10, 11), copies("metro", "pg_basebackup zstd", 6, 60, 6), failed, copies("wan-good", armOurs, 1))
	f := b.toBest()
	if f.Measured != 1.5 || f.Low != 1 || f.High != 2 || !f.HasInterval {
		t.Errorf("%+v", f)
	}
	for name, b := range map[string]*seedBench{"no peer": benchOf(copies("metro", armOurs, 9)), "not ours": benchOf(copies("metro", "pg_basebackup none", 30)), "nothing": benchOf(failed)} {
		if f := b.toBest(); f.NotRun != "an arm failed" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestResumedTakesTheWorse checks that of both ways to say "half way" the worse one counts, and that the figure is
// missing while one of the two is.
func TestResumedTakesTheWorse(t *testing.T) {
	t.Parallel()
	whole, again, half := copies("wan-good", armOurs, 10), copies("wan-good", armResumed, 5), copies("wan-good", armHalfway, 5)
	again[0].Wire, half[0].Wire = 520, 610
	if f := named(t, benchOf(whole, again, half).figures(), "resumed-at-half-wire"); math.Abs(f.Measured-61) > 1e-9 {
		t.Errorf("%+v", f)
	}
	if f := named(t, benchOf(whole, again).figures(), "resumed-at-half-wire"); f.NotRun == "" {
		t.Errorf("of one way only: %+v", f)
	}
}

func TestSlowLinkFigures(t *testing.T) {
	t.Parallel()
	rate := float64(linkem.Profiles["wan-good"].RateBits / 8)
	ours, plain := copies("wan-good", armOurs, 11, 12, 10), copies("wan-good", armPlain, 44)
	for i := range ours {
		ours[i].Wire = int64(10 * rate) // ten seconds of the link
	}
	mended, cold := copies("wan-good", armMended, 1.1), copies("wan-good", armMendedCold, 2.2)
	mended[0].Wire = int64(rate)
	all := benchOf(ours, plain, mended, cold).figures()
	for name, want := range map[string]float64{
		"wan-good-over-wire-time": 10, "wan-good-compression-gain": 4, "reseed-1-percent-wire": 10, "reseed-1-percent-time": 10, "reseed-1-percent-time-cold": 20,
	} {
		if f := named(t, all, name); math.Abs(f.Measured-want) > 0.01 || f.NotRun != "" {
			t.Errorf("%s: %+v, want %v", name, f, want)
		}
	}
}

func TestThrottled(t *testing.T) {
	t.Parallel()
	b := benchOf()
	for _, tps := range []float64{100, 80, 120} {
		b.samples.TPCB = append(b.samples.TPCB, tpcbSample{TPS: tps}, tpcbSample{Seeding: true, TPS: tps - 10})
	}
	if f := b.tpcbFigure(); f.Measured != 0.9 || f.Low != 0.7 || f.High != 1.1 {
		t.Errorf("%+v", f)
	}
	b.samples.TPCB = b.samples.TPCB[:1]
	if f := b.tpcbFigure(); f.NotRun == "" {
		t.Errorf("without a run beside a seeding: %+v", f)
	}
}

// TestHalfOfTheWire checks that a copy is killed at half of the whole copy, not of a failed or of a mended one.
func TestHalfOfTheWire(t *testing.T) {
	t.Parallel()
	last, failed := copies("wan-good", armOurs, 1), copies("wan-good", armOurs, 1)
	last[0].Wire, failed[0].Wire, failed[0].Err = 3000, 10, "it failed"
	half := benchOf(copies("wan-good", armOurs, 1), last, failed, copies("wan-good", armMended, 1), copies("metro", armOurs, 1)).halfOfTheWire()
	if half(progress.Progress{Wire: 1499}) || !half(progress.Progress{Wire: 1500}) {
		t.Error("half of 3000 bytes is not 1500")
	}
	if n := benchOf(failed).wholeWire(); n != 0 {
		t.Errorf("without a whole copy: %v", n)
	}
}

func TestSamplesPrint(t *testing.T) {
	t.Parallel()
	s := &Samples{Scaled: true, SizeMB: 64, Copies: copies("metro", armOurs, 2)}
	s.Copies = append(s.Copies, copySample{Link: "wan-good", Arm: armPlain, Err: "no space"})
	var out strings.Builder
	s.Print(&out)
	for _, want := range []string{"scaled run: 64 MB instead of the published 32768\n", "failed: no space\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing of %q in\n%s", want, out.String())
		}
	}
}
