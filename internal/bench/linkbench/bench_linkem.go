package linkbench

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lab/linkem/probe"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
)

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

// counters records the counters of the links.
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

// notRun adds a figure with the reason why it was not measured, unless the figure exists.
func (b *linkBench) notRun(name string, err error) {
	for _, f := range b.Figures {
		if f.Name == name {
			return
		}
	}
	b.figure(goals.Figure{Name: name, NotRun: strings.ReplaceAll(err.Error(), "\n", "; ")})
}

func (b *linkBench) ping(context.Context) error {
	worst := goals.Figure{Name: "ping-error"}
	for _, rtt := range []time.Duration{5 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
		if err := b.Set(linkem.Any, linkem.Any, linkem.Shape{Delay: rtt / 2}); err != nil {
			return err
		}
		p, err := probe.Ping(b.in("n1"), b.Addr("n2"), probe.Echoes{Count: 100, Interval: 10 * time.Millisecond, Wait: time.Second})
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
		if mean, half := method.MeanAndHalf(off); math.Abs(mean) >= worst.Measured {
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
	h, err := probe.Datagrams(b.in("n1"), b.in("n2"), b.Addr("n2"), probe.Burst{Count: count, Size: 200, PerSecond: 10_000, Wait: 500 * time.Millisecond})
	if err != nil {
		return err
	}
	b.Loss = &lossSample{Set: share, Sent: count, Received: h.Received()}
	got := 1 - float64(h.Received())/count
	half := 1.96 * math.Sqrt(share*(1-share)/count) / share * 100
	b.figure(deviation("loss-error", got/share, half))
	return nil
}

// mathis runs cubic over 30 ms from n1 to n2 and over 60 ms from n1 to n3 at the same time. The two do not share a
// link, and need little bandwidth.
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
			mean, half := method.MeanAndHalf(rates)
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

// flow measures TCP from n1 to n2 over links of that shape in both directions.
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
	h, err := probe.Datagrams(b.in("n1"), b.in("n2"), b.Addr("n2"), probe.Burst{Count: 400_000, Size: 64, Wait: 300 * time.Millisecond})
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
