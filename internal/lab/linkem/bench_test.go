package linkem

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lab/linkem/probe"
)

// BenchmarkStream measures what a stream of TCP over one link costs this machine's processors, sender and receiver
// included.
func BenchmarkStream(b *testing.B) {
	needRoot(b)
	for _, c := range []struct {
		name  string
		shape Shape
	}{
		{"unlimited", Shape{}},
		{"lan", Profiles["lan"]},
		{"metro", Profiles["metro"]},
		{"wan-good", Profiles["wan-good"]},
	} {
		b.Run(c.name, func(b *testing.B) {
			n, err := Start(Options{Lab: labName("b"), Nodes: []string{"n1", "n2"}, Shape: c.shape, Seed: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = n.Close() }()
			runtime.GC()
			for b.Loop() {
				before, sent := processorTime(b), n.Stats()
				rates, err := probe.Rates(b.Context(), in(n, "n1"), in(n, "n2"), n.Addr("n2"), probe.TCP{Flows: 1, Duration: 2 * time.Second, Warmup: 200 * time.Millisecond})
				if err != nil {
					b.Fatal(err)
				}
				used := processorTime(b) - before
				var bytes uint64
				for i, s := range n.Stats() {
					bytes += s.Bytes - sent[i].Bytes
				}
				b.ReportMetric(rates[0]/1e6, "Mbit/s")
				b.ReportMetric(used.Seconds()/(float64(bytes)/1e9), "cpu-s/GB")
			}
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
