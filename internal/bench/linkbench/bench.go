package linkbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/report"
)

// Samples are the raw measurements of a run, and the figures made of them.
type Samples struct {
	Version    string             `json:"version"`
	Kernel     string             `json:"kernel"`
	Congestion string             `json:"congestion_controls"`
	Cores      int                `json:"cores"`
	Seed       uint64             `json:"seed"`
	Pings      []pingSample       `json:"pings"`
	Loss       *lossSample        `json:"loss,omitempty"`
	Flows      map[string]flowSet `json:"flows"`
	Links      []linkem.Stats     `json:"links"`   // counters at the end of the run
	Overrun    map[string]uint64  `json:"overrun"` // by node, packets that it sent faster than this machine forwards them
	Figures    []goals.Figure     `json:"figures"`
}

type pingSample struct {
	SetMS float64   `json:"set_ms"`
	RTTMS []float64 `json:"rtt_ms"`
	Lost  int       `json:"lost"`
}

type lossSample struct {
	Set      float64 `json:"set"`
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
}

type flowSet struct {
	Congestion string       `json:"congestion,omitempty"`
	Shape      linkem.Shape `json:"shape"`
	BitsPerS   []float64    `json:"bits_per_s"`
	Theory     float64      `json:"theory_bits_per_s,omitempty"`
	PacketsPS  float64      `json:"packets_per_s,omitempty"`
}

// linkBench is a network of benchNodes, and its measurements.
type linkBench struct {
	*linkem.Remote
	Samples
	mu sync.Mutex // guards Flows and Figures
}

// MeasureLinks makes a network with that seed, runs every measurement in turn and prints what it does to progress. The
// figures of a measurement that fails are in the samples as not run, with the reason.
func MeasureLinks(ctx context.Context, seed uint64, progress io.Writer) Samples {
	b := &linkBench{Samples: Samples{Version: buildinfo.Describe(), Cores: runtime.NumCPU(), Seed: seed, Flows: map[string]flowSet{}}}
	b.Kernel, b.Congestion = report.KernelText("kernel/osrelease"), report.KernelText("net/ipv4/tcp_available_congestion_control")
	steps := []struct {
		what    string
		figures []string
		run     func(context.Context) error
	}{
		{"round trips", []string{"ping-error"}, b.ping},
		{"loss", []string{"loss-error"}, b.loss},
		{"TCP cubic under loss, 14 s", []string{"cubic-30ms-mathis-error", "cubic-60ms-mathis-error"}, b.mathis},
		{"TCP BBR under loss, 11 s", []string{"bbr-of-100mbit"}, b.bbr},
		{"throughput", []string{"link-throughput"}, b.throughput},
		{"packets", []string{"link-packets"}, b.packets},
	}
	var stop func() error
	var startErr error
	b.Remote, stop, startErr = StartBenchNetwork(seed)
	for _, step := range steps {
		err := startErr
		if err == nil {
			_, _ = fmt.Fprintf(progress, "%s …\n", step.what)
			err = errors.Join(ctx.Err(), b.Set(linkem.Any, linkem.Any, linkem.Shape{}))
		}
		if err == nil {
			err = step.run(ctx)
		}
		if err != nil {
			for _, name := range step.figures {
				b.notRun(name, err)
			}
		}
	}
	if startErr != nil {
		return b.Samples
	}
	if err := errors.Join(b.counters(), stop()); err != nil {
		_, _ = fmt.Fprintf(progress, "the network's process: %v\n", err)
	}
	return b.Samples
}

// deviation returns the figure of a ratio that ought to be 1: its distance from 1 in percent. half is half the width of
// its interval.
func deviation(name string, ratio, half float64) goals.Figure {
	off := math.Abs(ratio-1) * 100
	return goals.Figure{Name: name, Measured: off, Low: max(0, off-half), High: off + half, HasInterval: true}
}
