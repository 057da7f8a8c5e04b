package seedbench

import (
	"strings"
	"testing"
	"time"
)

// TestSeedingReport makes the page of a small run: published beside measured, with a chart.
func TestSeedingReport(t *testing.T) {
	t.Parallel()
	n := int64(0)
	k := startTrack(func() float64 { return float64(n) / 10 }, ownTime, func() int64 { n += 1e6; return n })
	time.Sleep(3 * trackEvery)
	k.stop()
	b := &seedBench{say: func(string, ...any) {}, samples: &Samples{SizeMB: 10, Scaled: true, Server: "15.0", Date: time.Now()}}
	b.add("wan-good", copySample{Arm: armOurs, Seconds: 10, Wire: 4e6, Bytes: 40e6, SourceCPU: 1, TargetCPU: 2, Codec: "AUTO: ZSTD:1", track: k})
	b.add("wan-good", copySample{Arm: armPlain, Seconds: 40, Wire: 40e6, Bytes: 40e6, SourceCPU: 1, TargetCPU: 2, track: k})
	b.add("metro", copySample{Arm: "pg_basebackup none", Err: "it failed"})
	r, err := SeedingReport(b.samples)
	if err != nil {
		t.Fatal(err)
	}
	page, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4.0 times as fast", "3.3 times as fast, 32 GB", "pg_basebackup none", "it failed", "9567", "AUTO: source", "AUTO: target", "<svg"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if err := r.Save(t.TempDir()); err != nil {
		t.Error(err)
	}
}

// TestSeedingWithoutRoom: a size without disk space is refused before anything is made.
func TestSeedingWithoutRoom(t *testing.T) {
	t.Parallel()
	if _, _, err := MeasureSeeding(t.Context(), SeedingOptions{SizeMB: 1 << 40}, nil); err == nil || !strings.Contains(err.Error(), "make room") {
		t.Errorf("a database of 2^60 bytes: %v", err)
	}
}

// TestFiguresNobodyAskedFor: figures that were not requested have another reason than those whose copy failed.
func TestFiguresNobodyAskedFor(t *testing.T) {
	t.Parallel()
	b := &seedBench{o: SeedingOptions{Only: []string{"mend"}}, samples: &Samples{}}
	got := map[string]string{}
	for _, f := range b.figures() {
		got[f.Name] = f.NotRun
	}
	for name, want := range map[string]string{
		"metro-pgbench-to-best": "not asked for: it is of metro", "tpcb-while-throttled": "not asked for: it is of tpcb",
		"wan-good-compression-gain": "not asked for: it is of wan", "wan-good-over-wire-time": "an arm failed", "reseed-1-percent-time": "an arm failed",
	} {
		if got[name] != want {
			t.Errorf("%s was not run: %q, want %q", name, got[name], want)
		}
	}
}
