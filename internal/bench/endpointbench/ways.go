package endpointbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// prepared joins the secondary over a link, and gives our link the time to measure it.
func (b *EndpointBench) prepared(ctx context.Context, profile string, a arm) (*pgx.Conn, error) {
	if err := b.shape(profile); err != nil {
		return nil, err
	}
	if err := b.pair.Join(ctx, a); err != nil {
		return nil, err
	}
	if a.options != nil && !method.Pause(ctx, 12*time.Second) {
		return nil, ctx.Err()
	}
	return pgx.Connect(ctx, b.pair.Primary.DSN())
}

func (b *EndpointBench) commits(ctx context.Context) error {
	w := workload.Commits{Bytes: 8000, Count: 400, Pause: 20 * time.Millisecond}
	floor := wayBBR
	floor.name = "plain TCP BBR, without loss" // the delay that this machine adds to any commit over such a link
	for _, a := range []arm{floor, wayBBR, wayOurs} {
		c, err := b.prepared(ctx, "wan-bad", a)
		if err != nil {
			return err
		}
		if a.name == floor.name {
			s := linkem.Profiles["wan-bad"]
			s.Loss = 0
			if err := errors.Join(b.net.Set("n1", "n2", s), b.net.Set("n2", "n1", s)); err != nil {
				return err
			}
		}
		times, err := w.Run(ctx, c)
		_ = c.Close(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		b.latency("commit 8 KB, wan-bad, "+a.name, times)
		b.keep("commits " + a.name)
		if a.options != nil {
			b.figure(goals.Figure{Name: "commit-8k-wan-bad-p99", Measured: method.Percentile(times, 99)})
		}
	}
	return nil
}

func (b *EndpointBench) loaded(ctx context.Context) error {
	rate := linkem.Profiles["wan-bad"].RateBits / 8 * 60 / 100
	for _, a := range []arm{wayBBR, wayOurs} {
		c, err := b.prepared(ctx, "wan-bad", a)
		if err != nil {
			return err
		}
		other, err := pgx.Connect(ctx, b.pair.Primary.DSN())
		if err != nil {
			return err
		}
		lctx, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		logged := 0
		began := time.Now()
		go func() {
			var err error
			logged, err = workload.WALLoad{BytesPerSecond: int(rate), Chunk: 16 << 10, Noise: 20}.Run(lctx, other)
			done <- err
		}()
		method.Pause(ctx, 2*time.Second)
		times, err := workload.Commits{Bytes: 100, Count: 300, Pause: 10 * time.Millisecond}.Run(ctx, c)
		stop()
		loadErr := <-done
		_, _ = c.Close(context.WithoutCancel(ctx)), other.Close(context.WithoutCancel(ctx))
		if err := errors.Join(err, loadErr); err != nil {
			return err
		}
		b.say("  load of %.1f Mbit/s", float64(logged)*8/time.Since(began).Seconds()/1e6)
		b.latency("commit under load, wan-bad, "+a.name, times)
		b.keep("loaded " + a.name)
		if a.options != nil {
			b.figure(goals.Figure{Name: "commit-loaded-wan-bad-p99", Measured: method.Percentile(times, 99)})
		}
		if err := b.pair.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *EndpointBench) bulk(ctx context.Context) error {
	for _, a := range []arm{wayBBR, wayOurs, wayStriped, wayNoUDP} {
		c, err := b.prepared(ctx, "wan-good", a)
		if err != nil {
			return err
		}
		began := time.Now()
		lctx, stop := context.WithTimeout(ctx, 5*time.Second)
		logged, err := workload.WALLoad{BytesPerSecond: 30 << 20, Chunk: 128 << 10, Noise: 128}.Run(lctx, c)
		stop()
		_ = c.Close(context.WithoutCancel(ctx))
		if err == nil {
			err = b.pair.settle(ctx)
		}
		if err != nil {
			return err
		}
		rate := float64(logged) * 8 / time.Since(began).Seconds() / 1e6
		b.say("  %-24s %.1f Mbit/s over %.1f s", a.name, rate, time.Since(began).Seconds())
		b.keep("bulk " + a.name)
		if name := map[string]string{wayOurs.name: "bulk-wan-good", wayStriped.name: "bulk-wan-good-without-bbr", wayNoUDP.name: "bulk-wan-good-without-udp"}[a.name]; name != "" {
			b.figure(goals.Figure{Name: name, Measured: rate})
		}
	}
	return nil
}

// beside measures commits alone, and commits beside a copy that takes all the bandwidth it can get.
func (b *EndpointBench) beside(ctx context.Context) error {
	c, err := b.prepared(ctx, "wan-good", wayOurs)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	w := workload.Commits{Bytes: 8000, Count: 400, Pause: 10 * time.Millisecond}
	alone, err := w.Run(ctx, c)
	if err != nil {
		return err
	}
	b.latency("commit 8 KB, wan-good, alone", alone)
	var before, after int64
	far := b.pair.ends[1]
	if err := far.tell(benchCopy, &before); err != nil {
		return err
	}
	method.Pause(ctx, 2*time.Second)
	began := time.Now().Add(-2 * time.Second)
	during, err := w.Run(ctx, c)
	if err := errors.Join(err, far.tell(benchCopyEnd, &after)); err != nil {
		return err
	}
	rate := float64(after-before) * 8 / time.Since(began).Seconds() / 1e6
	b.latency("commit 8 KB, wan-good, beside a copy", during)
	b.say("  the copy had %.1f Mbit/s", rate)
	b.keep("beside")
	b.figure(goals.Figure{Name: "commit-beside-copy-p99", Measured: method.Percentile(during, 99) / method.Percentile(alone, 99)})
	b.figure(goals.Figure{Name: "copy-beside-commits", Measured: rate})
	return nil
}

// change turns a local network into a lossy long link and back while rows are written. It counts the walsenders that
// ended before the run did.
func (b *EndpointBench) change(ctx context.Context) error {
	c, err := b.prepared(ctx, "lan", wayOurs)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	walsender := func() (pid int, err error) {
		return pid, b.pair.admin.QueryRow(ctx, "SELECT coalesce(max(pid), 0) FROM pg_stat_replication").Scan(&pid)
	}
	before, err := walsender()
	if err != nil {
		return err
	}
	lctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := workload.WALLoad{BytesPerSecond: 200_000, Chunk: 8 << 10, Noise: 20}.Run(lctx, c)
		done <- err
	}()
	restarts := 0
	for _, step := range []struct{ profile, main string }{{"wan-bad", "twice"}, {"lan", "once"}} {
		if err = b.shape(step.profile); err != nil {
			break
		}
		if err = b.awaitLink(ctx, step.main == "twice"); err != nil {
			break
		}
		after, perr := walsender()
		if err = perr; err != nil {
			break
		}
		if after != before {
			restarts++
			before = after
		}
	}
	stop()
	b.keep("change")
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	for _, e := range b.Links["change, secondary"].Events {
		b.say("  %s %s: %s", e.At.Format("15:04:05"), e.What, e.Reason)
	}
	b.figure(goals.Figure{Name: "change-restarts", Measured: float64(restarts)})
	return b.pair.settle(ctx)
}

// awaitLink waits until the link has detected its present path: far and lossy, or near.
func (b *EndpointBench) awaitLink(ctx context.Context, lossy bool) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		s, err := b.pair.ends[0].status()
		if err != nil {
			return err
		}
		if len(s) > 0 && s[0].Twice == lossy && (s[0].Codec == "OFF") != lossy {
			return nil
		}
		if !method.Pause(ctx, 200*time.Millisecond) {
			return fmt.Errorf("the link did not follow its way: %+v", s)
		}
	}
}

func (b *EndpointBench) latency(name string, times []time.Duration) {
	for _, t := range times {
		b.Times[name] = append(b.Times[name], t.Seconds()*1000)
	}
	b.say("  %-42s p50 %.1f  p95 %.1f  p99 %.1f  max %.1f ms", name, method.Percentile(times, 50), method.Percentile(times, 95), method.Percentile(times, 99), method.Percentile(times, 100))
}

// idle counts the bytes that a link without traffic sends.
func (b *EndpointBench) idle(ctx context.Context) error {
	for _, profile := range []string{"wan-good", "wan-bad"} {
		c, err := b.prepared(ctx, profile, wayOurs)
		if err != nil {
			return err
		}
		_ = c.Close(ctx)
		method.Pause(ctx, 10*time.Second)
		passed := func() (packets, bytes uint64, err error) {
			stats, err := b.net.Stats()
			for _, s := range stats {
				packets, bytes = packets+s.Packets, bytes+s.Bytes
			}
			return packets, bytes, err
		}
		const while = 30 * time.Second
		packets, bytes, err := passed()
		if err != nil || !method.Pause(ctx, while) {
			return errors.Join(err, ctx.Err())
		}
		morePackets, moreBytes, err := passed()
		if err != nil {
			return err
		}
		rate := float64(moreBytes-bytes) * 8 / 2 / while.Seconds() / 1000
		b.say("  %-24s %.1f kbit/s, %.0f packets/s in each direction", profile, rate, float64(morePackets-packets)/2/while.Seconds())
		b.keep("idle " + profile)
		b.figure(goals.Figure{Name: "idle-" + profile + "-rate", Measured: rate})
	}
	return nil
}
