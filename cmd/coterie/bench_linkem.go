package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lab/linkem/probe"
	"github.com/coteriedb/coterie/internal/measure/goals"
)

func benchLinkemCommand() *cobra.Command {
	var seed uint64
	var out string
	var asJSON bool
	c := &cobra.Command{
		Use: "linkem", Short: "How true the lab's links are: round trips, loss, TCP against theory, throughput",
		Long: `Makes a network of three nodes without servers in it, and compares what its links do with what they were told to: round trips, loss,
TCP under loss with Mathis' formula, and how much passes through one link. It takes about 40 seconds, and needs root. Nobody published such links,
so there is no --preset.`,
		Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s := measureLinks(c.Context(), seed, c.ErrOrStderr())
			return handOver(c, s, out, asJSON, func(w io.Writer) error {
				_, err := goals.Report(w, "linkem", s.Figures)
				return err
			})
		},
	}
	c.AddCommand(benchLinkemNetwork())
	withoutPreset(c, "nobody published such links")
	c.Flags().Uint64Var(&seed, "seed", 1, "of the links' randomness")
	c.Flags().BoolVar(&asJSON, "json", false, "print the samples instead of the figures")
	c.Flags().StringVar(&out, "out", "bench-linkem.json", "file for the samples")
	return c
}

// benchLinkemNetwork is the process that passes the packets, as a lab has it.
func benchLinkemNetwork() *cobra.Command {
	var seed uint64
	c := &cobra.Command{
		Use: "network", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			signal.Ignore(os.Interrupt) // the end of the pipe is the end
			log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			if err := linkem.Dedicate(); err != nil {
				log.Warn("links are late when processors are busy", "err", err)
			}
			n, err := startBeside(linkem.Options{Nodes: benchNodes, Seed: seed, Log: log})
			if err != nil {
				return err
			}
			return errors.Join(n.Serve(pipe{c.InOrStdin(), c.OutOrStdout()}), n.Close())
		},
	}
	c.Flags().Uint64Var(&seed, "seed", 1, "of the links' randomness")
	return c
}

var benchNodes = []string{"n1", "n2", "n3"}

// startBeside makes a network under the first name that no other bench's has. The names are few and fixed, so that what a killed one left
// is removed by the next that takes its name.
func startBeside(o linkem.Options) (*linkem.Network, error) {
	const most = 9
	for i := 1; ; i++ {
		o.Lab = fmt.Sprintf("bench%d", i)
		n, err := linkem.Start(o)
		if !errors.Is(err, linkem.ErrRunning) {
			return n, err
		}
		if i == most {
			return nil, fmt.Errorf("%d networks of benches run on this machine: wait for the end of one (ps -eo pid,args | grep 'bench linkem network' lists them): %w", most, err)
		}
	}
}

type pipe struct {
	io.Reader
	io.Writer
}

// startBenchNetwork starts that process; stop ends it and returns what went wrong in it.
func startBenchNetwork(seed uint64) (r *linkem.Remote, stop func() error, err error) {
	if os.Geteuid() != 0 {
		return nil, nil, linkem.ErrNotRoot
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	var said strings.Builder
	child := exec.Command(self, "bench", "linkem", "network", "--seed", strconv.FormatUint(seed, 10)) //nolint:noctx // ends with its pipe
	child.Stderr = &said
	in, err := child.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := child.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() error {
		err := errors.Join(in.Close(), child.Wait())
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
		}
		return err
	}
	if r, err = linkem.Connect(pipe{out, in}); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return r, stop, nil
}

// linkSamples is all that a run found.
type linkSamples struct {
	Version    string             `json:"version"`
	Kernel     string             `json:"kernel"`
	Congestion string             `json:"congestion_controls"`
	Cores      int                `json:"cores"`
	Seed       uint64             `json:"seed"`
	Pings      []pingSample       `json:"pings"`
	Loss       *lossSample        `json:"loss,omitempty"`
	Flows      map[string]flowSet `json:"flows"`
	Links      []linkem.Stats     `json:"links"`   // the counters at the end
	Overrun    map[string]uint64  `json:"overrun"` // packets per node that were sent faster than this machine passes them on
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

// linkBench is a network of benchNodes, and what was found in it.
type linkBench struct {
	*linkem.Remote
	linkSamples
	mu sync.Mutex // guards Flows and Figures
}

func (b *linkBench) in(node string) probe.In {
	return func(f func() error) error { return b.Do(node, f) }
}

func (b *linkBench) figure(f goals.Figure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Figures = append(b.Figures, f)
}

func (b *linkBench) keep(name string, f flowSet) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Flows[name] = f
}

// measureLinks measures one thing after the other; what fails is a figure that was not run.
func measureLinks(ctx context.Context, seed uint64, progress io.Writer) linkSamples {
	b := &linkBench{linkSamples: linkSamples{Version: version, Cores: runtime.NumCPU(), Seed: seed, Flows: map[string]flowSet{}}}
	b.Kernel, b.Congestion = kernelText("kernel/osrelease"), kernelText("net/ipv4/tcp_available_congestion_control")
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
	b.Remote, stop, startErr = startBenchNetwork(seed)
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
		return b.linkSamples
	}
	if err := errors.Join(b.counters(), stop()); err != nil {
		_, _ = fmt.Fprintf(progress, "the network's process: %v\n", err)
	}
	return b.linkSamples
}

// counters keeps what the links counted.
func (b *linkBench) counters() (err error) {
	if b.Links, err = b.Stats(); err != nil {
		return err
	}
	b.Overrun = map[string]uint64{}
	for _, node := range benchNodes {
		lost, e := b.Overruns(node)
		b.Overrun[node], err = lost, errors.Join(err, e)
	}
	return err
}

// notRun gives the reason unless there is a figure.
func (b *linkBench) notRun(name string, err error) {
	for _, f := range b.Figures {
		if f.Name == name {
			return
		}
	}
	b.figure(goals.Figure{Name: name, NotRun: strings.ReplaceAll(err.Error(), "\n", "; ")})
}

func kernelText(name string) string {
	text, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

func (b *linkBench) ping(context.Context) error {
	worst := goals.Figure{Name: "ping-error"}
	for _, rtt := range []time.Duration{5 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
		if err := b.Set(linkem.Any, linkem.Any, linkem.Shape{Delay: rtt / 2}); err != nil {
			return err
		}
		p, err := probe.Ping(b.in("n1"), b.Addr("n2"), 100, 10*time.Millisecond, time.Second)
		if err != nil {
			return err
		}
		if len(p.RoundTrips) == 0 {
			return errors.New("no echo request was answered")
		}
		s := pingSample{SetMS: rtt.Seconds() * 1000, Lost: p.Lost}
		var off []float64
		for _, r := range p.RoundTrips {
			s.RTTMS = append(s.RTTMS, r.Seconds()*1000)
			off = append(off, (r-rtt).Seconds()*1000)
		}
		b.Pings = append(b.Pings, s)
		if mean, half := meanAndHalf(off); math.Abs(mean) >= worst.Measured {
			worst.Measured, worst.HasInterval = math.Abs(mean), true
			worst.Low, worst.High = max(0, worst.Measured-half), worst.Measured+half
		}
	}
	b.figure(worst)
	return nil
}

func (b *linkBench) loss(context.Context) error {
	const share, count = 0.1, 20_000
	if err := b.Set("n1", "n2", linkem.Shape{Delay: time.Millisecond, Loss: share}); err != nil {
		return err
	}
	h, err := probe.Datagrams(b.in("n1"), b.in("n2"), b.Addr("n2"), probe.Burst{Count: count, Size: 200, PerSecond: 10_000}, 500*time.Millisecond)
	if err != nil {
		return err
	}
	b.Loss = &lossSample{Set: share, Sent: count, Received: h.Received()}
	got := 1 - float64(h.Received())/count
	half := 1.96 * math.Sqrt(share*(1-share)/count) / share * 100
	b.figure(deviation("loss-error", got/share, half))
	return nil
}

// mathis runs cubic over 30 ms from n1 to n2 and over 60 ms from n1 to n3 at once: they do not share a link, and need little.
func (b *linkBench) mathis(ctx context.Context) error {
	const flows, loss, mss = 12, 0.01, 1448 // of 1500 bytes, with timestamps
	var wait sync.WaitGroup
	results := make(chan error, 2)
	for _, c := range []struct {
		node, name string
		rtt        time.Duration
	}{{"n2", "cubic-30ms", 30 * time.Millisecond}, {"n3", "cubic-60ms", 60 * time.Millisecond}} {
		s := linkem.Shape{Delay: c.rtt / 2, Loss: loss}
		back := linkem.Shape{Delay: c.rtt / 2}
		if err := errors.Join(b.Set("n1", c.node, s), b.Set(c.node, "n1", back)); err != nil {
			return err
		}
		wait.Go(func() {
			rates, err := probe.Rates(ctx, b.in("n1"), b.in(c.node), b.Addr(c.node), probe.TCP{
				Congestion: "cubic", Flows: flows, Warmup: 4 * time.Second, Duration: 10 * time.Second,
			})
			if err != nil {
				results <- err
				return
			}
			theory := 1.22 * mss * 8 / (c.rtt.Seconds() * math.Sqrt(loss))
			b.keep(c.name, flowSet{Congestion: "cubic", Shape: s, BitsPerS: rates, Theory: theory})
			mean, half := meanAndHalf(rates)
			b.figure(deviation(c.name+"-mathis-error", mean/theory, half/theory*100))
		})
	}
	wait.Wait()
	close(results)
	var err error
	for e := range results {
		err = errors.Join(err, e)
	}
	return err
}

func (b *linkBench) bbr(ctx context.Context) error {
	s := linkem.Shape{Delay: 15 * time.Millisecond, Loss: 0.01, RateBits: 100_000_000}
	rates, err := b.flow(ctx, s, probe.TCP{Congestion: "bbr", Flows: 1, Warmup: 3 * time.Second, Duration: 8 * time.Second})
	if err != nil {
		return err
	}
	b.keep("bbr-100mbit", flowSet{Congestion: "bbr", Shape: s, BitsPerS: rates})
	b.figure(goals.Figure{Name: "bbr-of-100mbit", Measured: rates[0] / float64(s.RateBits) * 100})
	return nil
}

func (b *linkBench) throughput(ctx context.Context) error {
	s := linkem.Shape{Delay: 100 * time.Microsecond}
	rates, err := b.flow(ctx, s, probe.TCP{Congestion: "cubic", Flows: 1, Warmup: 500 * time.Millisecond, Duration: 3 * time.Second})
	if err != nil {
		return err
	}
	b.keep("throughput", flowSet{Congestion: "cubic", Shape: s, BitsPerS: rates})
	b.figure(goals.Figure{Name: "link-throughput", Measured: rates[0] / 1e6})
	return nil
}

// flow measures TCP from n1 to n2, with links of that shape both ways.
func (b *linkBench) flow(ctx context.Context, s linkem.Shape, o probe.TCP) ([]float64, error) {
	if err := errors.Join(b.Set("n1", "n2", s), b.Set("n2", "n1", s)); err != nil {
		return nil, err
	}
	return probe.Rates(ctx, b.in("n1"), b.in("n2"), b.Addr("n2"), o)
}

func (b *linkBench) packets(context.Context) error {
	s := linkem.Shape{Delay: 100 * time.Microsecond}
	if err := b.Set("n1", "n2", s); err != nil {
		return err
	}
	h, err := probe.Datagrams(b.in("n1"), b.in("n2"), b.Addr("n2"), probe.Burst{Count: 400_000, Size: 64}, 300*time.Millisecond)
	if err != nil {
		return err
	}
	if h.Span <= 0 {
		return errors.New("nothing arrived")
	}
	rate := float64(len(h.Order)) / h.Span.Seconds()
	b.keep("packets", flowSet{Shape: s, PacketsPS: rate})
	b.figure(goals.Figure{Name: "link-packets", Measured: math.Round(rate)})
	return nil
}

// deviation is the figure of a ratio that ought to be 1, in percent, with the half width of its interval.
func deviation(name string, ratio, half float64) goals.Figure {
	off := math.Abs(ratio-1) * 100
	return goals.Figure{Name: name, Measured: off, Low: max(0, off-half), High: off + half, HasInterval: true}
}

// meanAndHalf returns the mean, and half of its 95 % interval.
func meanAndHalf(v []float64) (mean, half float64) {
	n := float64(len(v))
	for _, x := range v {
		mean += x / n
	}
	if n < 2 {
		return mean, 0
	}
	var squares float64
	for _, x := range v {
		squares += (x - mean) * (x - mean)
	}
	return mean, 1.96 * math.Sqrt(squares/(n-1)/n)
}
