package main

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
	b := &seedBench{say: func(string, ...any) {}, samples: &seedingSamples{SizeMB: 10, Scaled: true, Server: "15.0", Date: time.Now()}}
	b.add("wan-good", copySample{Arm: armOurs, Seconds: 10, Wire: 4e6, Bytes: 40e6, SourceCPU: 1, TargetCPU: 2, Codec: "AUTO: ZSTD:1", track: k})
	b.add("wan-good", copySample{Arm: armPlain, Seconds: 40, Wire: 40e6, Bytes: 40e6, SourceCPU: 1, TargetCPU: 2, track: k})
	b.add("metro", copySample{Arm: "pg_basebackup none", Err: "it failed"})
	r, err := seedingReport(b.samples)
	if err != nil {
		t.Fatal(err)
	}
	page, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4.0 times as fast (published: 3.3)", "pg_basebackup none", "it failed", "9567", "OFF: wire", "AUTO: source", "AUTO: target", "<svg"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if err := r.Save(t.TempDir()); err != nil {
		t.Error(err)
	}
}
