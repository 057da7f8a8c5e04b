package endpointbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/bench/linkbench"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// Table prints the published workload: the published figures and ours.
func (s *Samples) Table(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%-10s %-24s %8s %10s\n%-10s %-24s %8s %10s\n%-10s %-24s %8s %10s\n",
		"link", "way", "seconds", "rows", "a VPN", "published: standard", "142.5", "10000", "a VPN", "published: tunnel", "82.2", "10000")
	for _, r := range s.Runs {
		name := r.Arm
		if r.Random {
			name += ", random"
		}
		_, e := fmt.Fprintf(w, "%-10s %-24s %8.1f %10d\n", r.Link, name, r.Seconds, r.Rows)
		err = errors.Join(err, e)
	}
	return err
}

func (b *EndpointBench) say(format string, a ...any) {
	_, _ = fmt.Fprintf(b.Progress, format+"\n", a...)
}

func (b *EndpointBench) figure(f goals.Figure) { b.Figures = append(b.Figures, f) }

// Run measures the chosen parts. A figure that could not be measured is in the samples with its reason, so Run returns
// no error.
func (b *EndpointBench) Run(ctx context.Context) *Samples {
	b.Version, b.Cores, b.Seed = buildinfo.Describe(), runtime.NumCPU(), b.O.Seed
	b.Kernel, b.Congestion = report.KernelText("kernel/osrelease"), report.KernelText("net/ipv4/tcp_available_congestion_control")
	b.Times, b.Links = map[string][]float64{}, map[string]*link.Status{}
	emulated := []endpointPart{
		{"wan-good", []string{"wan-good-less-than-cubic", "wan-good-less-than-bbr", "wan-good-floor-to-bbr", "wan-good-less-than-ssh"}, func(ctx context.Context) error {
			return b.published(ctx, "wan-good", 3*time.Minute)
		}},
		{"wan-bad", []string{"wan-bad-less-than-cubic", "wan-bad-less-than-bbr", "wan-bad-floor-to-bbr"}, func(ctx context.Context) error {
			return b.published(ctx, "wan-bad", 160*time.Second)
		}},
		{"random", []string{"random-rows-to-bbr"}, b.random},
		{"commits", []string{"commit-8k-wan-bad-p99"}, b.commits},
		{"loaded", []string{"commit-loaded-wan-bad-p99"}, b.loaded},
		{"bulk", []string{"bulk-wan-good", "bulk-wan-good-without-bbr", "bulk-wan-good-without-udp"}, b.bulk},
		{"beside", []string{"commit-beside-copy-p99", "copy-beside-commits"}, b.beside},
		{"change", []string{"change-restarts"}, b.change},
		{"idle", []string{"idle-wan-good-rate", "idle-wan-bad-rate"}, b.idle},
	}
	b.parts(ctx, emulated, b.openNetwork)
	b.parts(ctx, []endpointPart{
		{"lan", []string{"lan-commit-added", "lan-throughput-8"}, b.lan},
		{"zstd", []string{"zstd-rate", "zstd-ratio"}, b.zstd},
	}, b.openHost)
	return &b.Samples
}

// parts runs some parts on one pair of servers. The figures of a part that fails are reported as not run.
func (b *EndpointBench) parts(ctx context.Context, parts []endpointPart, open func(context.Context) (func() error, error)) {
	wanted := func(p endpointPart) bool { return len(b.O.Only) == 0 || slices.Contains(b.O.Only, p.name) }
	var closePair func() error
	var openErr error
	if slices.ContainsFunc(parts, wanted) {
		closePair, openErr = open(ctx)
	}
	for _, p := range parts {
		err := openErr
		if !wanted(p) {
			err = errors.New("not among --only")
		}
		if err == nil {
			b.say("%s …", p.name)
			err = errors.Join(p.run(ctx), ctx.Err())
		}
		for _, name := range p.figures {
			if err != nil && !slices.ContainsFunc(b.Figures, func(f goals.Figure) bool { return f.Name == name }) {
				b.figure(goals.Figure{Name: name, NotRun: strings.ReplaceAll(err.Error(), "\n", "; ")})
			}
		}
	}
	if closePair != nil {
		if err := closePair(); err != nil {
			b.say("clean up: %v", err)
		}
	}
}

// openNetwork makes the pair in two network namespaces.
func (b *EndpointBench) openNetwork(ctx context.Context) (func() error, error) {
	net, stop, err := linkbench.StartBenchNetwork(b.O.Seed)
	if err != nil {
		return nil, err
	}
	at := func(node string) Site {
		return Site{In: func(f func() error) error { return net.Do(node, f) }, Addr: net.Addr(node), Port: 5432, End: 5022}
	}
	s, err := NewPair(ctx, at("n1"), at("n2"))
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	b.net, b.pair = net, s
	return func() error { return errors.Join(s.Close(context.WithoutCancel(ctx)), stop()) }, nil
}

// openHost makes the pair on this machine.
func (b *EndpointBench) openHost(ctx context.Context) (func() error, error) {
	here := func(f func() error) error { return f() }
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	s, err := NewPair(ctx, Site{here, local, b.O.Port, b.O.Port + 1}, Site{here, local, b.O.Port + 2, b.O.Port + 3})
	if err != nil {
		return nil, err
	}
	b.pair = s
	return func() error { return s.Close(context.WithoutCancel(ctx)) }, nil
}

// shape sets the link between the two sites. Joining needs a link without faults.
func (b *EndpointBench) shape(name string) error {
	return errors.Join(b.net.Set("n1", "n2", linkem.Profiles[name]), b.net.Set("n2", "n1", linkem.Profiles[name]))
}

// tunnel runs the workload once by an arm.
func (b *EndpointBench) tunnel(ctx context.Context, profile string, a arm, w workload.Tunnel, limit time.Duration) (tunnelRun, error) {
	if err := b.shape(profile); err != nil {
		return tunnelRun{}, err
	}
	if err := b.pair.Join(ctx, a); err != nil {
		return tunnelRun{}, fmt.Errorf("%s over %s: %w", a.name, profile, err)
	}
	c, err := pgx.Connect(ctx, b.pair.Primary.DSN())
	if err != nil {
		return tunnelRun{}, err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	if err := w.Prepare(ctx, c); err != nil {
		return tunnelRun{}, err
	}
	if a.local {
		if _, err := c.Exec(ctx, "SET synchronous_commit = local"); err != nil {
			return tunnelRun{}, err
		}
	}
	if err := b.pair.settle(ctx); err != nil {
		return tunnelRun{}, err
	}
	if !method.Pause(ctx, 2*time.Second) { // each arm may measure its path first
		return tunnelRun{}, ctx.Err()
	}
	lctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	took, rows, err := w.Run(lctx, c)
	r := tunnelRun{Link: profile, Arm: a.name, Random: w.Payload == workload.PayloadRandom, Seconds: took.Seconds(), Rows: rows}
	if err != nil && lctx.Err() == nil {
		return r, err
	}
	b.Runs = append(b.Runs, r)
	b.say("  %-24s %6.1f s, %d rows", a.name, r.Seconds, r.Rows)
	b.keep(profile + " " + a.name)
	if rows < w.Rows { // WAL in flight would disturb the next run
		err = errors.Join(b.shape("lan"), b.pair.settle(ctx))
		return r, err
	}
	return r, nil
}

// keep stores the status that our link reported.
func (b *EndpointBench) keep(name string) {
	if len(b.pair.ends) == 0 {
		return
	}
	for i, side := range []string{"primary", "secondary"} {
		if s, err := b.pair.ends[i].status(); err == nil && len(s) > 0 {
			b.Links[name+", "+side] = &s[0]
		}
	}
}

// rounds runs the arms in turn and returns the seconds of each.
func (b *EndpointBench) rounds(ctx context.Context, profile string, w workload.Tunnel, limit time.Duration, arms ...arm) (map[string][]float64, error) {
	times := map[string][]float64{}
	for i := range b.O.Rounds {
		for _, a := range arms {
			if i > 0 && times[a.name][0] > 60 {
				continue // one run is enough for an arm that takes minutes
			}
			r, err := b.tunnel(ctx, profile, a, w, limit)
			if err != nil {
				return times, err
			}
			times[a.name] = append(times[a.name], r.Seconds)
		}
	}
	return times, nil
}

func (b *EndpointBench) published(ctx context.Context, profile string, limit time.Duration) error {
	arms := []arm{WayCubic, wayBBR, wayOurs}
	_, noSSH := findSSH()
	if profile == "wan-good" && noSSH == nil {
		arms = slices.Insert(arms, 2, waySSH)
	}
	times, err := b.rounds(ctx, profile, workload.PublishedTunnel, limit, arms...)
	if err != nil {
		return err
	}
	less := func(name string, than arm) {
		ratios := quotients(times[wayOurs.name], times[than.name])
		mean, half := method.MeanAndHalf(ratios)
		b.figure(goals.Figure{Name: name, Measured: (1 - mean) * 100, Low: (1 - mean - half) * 100, High: (1 - mean + half) * 100, HasInterval: len(ratios) > 1})
	}
	less(profile+"-less-than-cubic", WayCubic)
	less(profile+"-less-than-bbr", wayBBR)
	if err := b.floor(ctx, profile, workload.PublishedTunnel, times[wayBBR.name]); err != nil {
		return err
	}
	if profile == "wan-good" {
		b.lessThanSSH(less, noSSH)
	}
	return nil
}

// floor adds the least time that the workload can take, relative to plain TCP with BBR. It is the time of its inserts
// while no commit waits for the secondary (which still receives them), and a round trip for each commit.
func (b *EndpointBench) floor(ctx context.Context, profile string, w workload.Tunnel, bbr []float64) error {
	alone := wayOurs
	alone.name, alone.local = "ours, waited for by nobody", true
	times, err := b.rounds(ctx, profile, w, 3*time.Minute, alone)
	if err != nil {
		return err
	}
	var ratios []float64
	for i, inserts := range times[alone.name] {
		least := inserts + float64(w.Rows/w.Every)*2*linkem.Profiles[profile].Delay.Seconds()
		b.Runs = append(b.Runs, tunnelRun{Link: profile, Arm: "floor", Seconds: least, Rows: w.Rows})
		ratios = append(ratios, 1-least/bbr[min(i, len(bbr)-1)])
	}
	mean, half := method.MeanAndHalf(ratios)
	b.figure(goals.Figure{Name: profile + "-floor-to-bbr", Measured: mean * 100, Low: (mean - half) * 100, High: (mean + half) * 100, HasInterval: len(ratios) > 1})
	return nil
}

func (b *EndpointBench) random(ctx context.Context) error {
	w := workload.PublishedTunnel
	w.Payload = workload.PayloadRandom
	times, err := b.rounds(ctx, "wan-good", w, 3*time.Minute, wayBBR, wayOurs)
	if err != nil {
		return err
	}
	mean, half := method.MeanAndHalf(quotients(times[wayOurs.name], times[wayBBR.name]))
	b.figure(goals.Figure{Name: "random-rows-to-bbr", Measured: mean, Low: mean - half, High: mean + half, HasInterval: true})
	return nil
}
