package endpoint

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// TestPacing sends copies over a path with a queue, beside WAL that takes its full demand.
func TestPacing(t *testing.T) {
	t.Parallel()
	const capacity, base, tick = 2.5e6, 60 * time.Millisecond, 10 * time.Millisecond
	var y pacer
	var now, queue, smooth time.Duration
	rate := 0.0
	var sent, waited float64
	play := func(d time.Duration, wal float64) {
		sent, waited = 0, 0
		for end := now + d; now < end; now += tick {
			copies := rate
			if copies == 0 || copies > capacity {
				copies = capacity
			}
			through := min(copies, capacity*copies/(copies+wal)) // the rate that leaves the queue
			queue += time.Duration((copies + wal - capacity) / capacity * float64(tick))
			queue = min(max(queue, 0), 100*time.Millisecond)
			smooth += (base + queue - smooth) / 4
			if now == 0 {
				smooth = base
			}
			sent += through * tick.Seconds()
			waited = max(waited, queue.Seconds())
			rate = y.step(now, smooth, uint64(through*tick.Seconds()))
		}
		sent /= d.Seconds()
	}
	play(10*time.Second, 0)
	if rate != 0 || sent < 0.99*capacity {
		t.Errorf("with nothing to give way to %.0f bytes per second went, rate %.0f", sent, rate)
	}
	play(2*time.Second, 0.6*capacity) // WAL comes
	play(10*time.Second, 0.6*capacity)
	if sent < 0.25*capacity || sent > 0.42*capacity || waited > 0.02 {
		t.Errorf("beside WAL at 60 %% copies have %.2f of the path, and the queue reaches %.0f ms", sent/capacity, waited*1000)
	}
	play(5*time.Second, 0)
	play(5*time.Second, 0)
	if sent < 0.8*capacity || waited > 0.02 {
		t.Errorf("once the WAL is gone copies have %.2f of the path, and the queue reaches %.0f ms", sent/capacity, waited*1000)
	}
	play(2*time.Second, 1.2*capacity)
	if rate != paceLeast {
		t.Errorf("beside WAL that wants all, copies go at %.0f bytes per second, want the least", rate)
	}
}

// TestBucket takes from a bucket with a rate that changes.
func TestBucket(t *testing.T) {
	t.Parallel()
	b := &bucket{}
	if d := b.take(time.Second, 1<<30); d != 0 {
		t.Errorf("an unbounded bucket asked to wait for %v", d)
	}
	b.set(1000)
	if d := b.take(time.Second, 100); d != 0 {
		t.Errorf("a full bucket asked to wait for %v", d)
	}
	if d := b.take(time.Second, 100); d != 100*time.Millisecond {
		t.Errorf("100 bytes owed at 1000 per second: %v", d)
	}
	if d := b.take(time.Second+150*time.Millisecond, 1); d != 0 {
		t.Errorf("what was owed is paid: %v", d)
	}
	over := make(chan struct{})
	close(over)
	b.set(1)
	b.take(boottime.Now(), 1000)
	if b.pass(1, over) {
		t.Error("a closed connection passed")
	}
}

// TestWALBeforeCopies commits over an emulated long path, alone and beside a copy that takes all free capacity.
func TestWALBeforeCopies(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("sends for seconds; COTERIE_LONG=1 runs it")
	}
	shape := linkem.Shape{Delay: 20 * time.Millisecond, RateBits: 40_000_000, Queue: 1 << 20} // a queue of 200 ms
	network, err := linkem.Start(linkem.Options{Lab: "yield", Nodes: []string{"a", "b"}, Shape: shape})
	if errors.Is(err, linkem.ErrNotRoot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = network.Close() })
	ca := newTestCA(t, groupA)
	far := inside(t, network, "b", Config{Node: newTestNode(t, ca, "b"), Handlers: map[Class]Handler{
		ClassWAL: func(_ context.Context, _ certs.Identity, conn net.Conn) {
			for b := make([]byte, 8<<10); ; {
				if _, err := io.ReadFull(conn, b); err != nil {
					return
				}
				_, _ = conn.Write(b[:34])
			}
		},
		ClassSeed: func(_ context.Context, _ certs.Identity, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) },
	}})
	near := inside(t, network, "a", Config{Node: newTestNode(t, ca, "a"), Handlers: map[Class]Handler{ClassWAL: echo}})
	reach := func(class Class) (c net.Conn) {
		err := network.Do("a", func() (err error) {
			c, err = near.Dial(within(t), far.Addr().String(), class, "b")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	wal := reach(ClassWAL)
	commits := func(n int) time.Duration {
		var all []time.Duration
		for b := make([]byte, 8<<10); len(all) < n; time.Sleep(5 * time.Millisecond) {
			began := time.Now()
			if _, err := wal.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(wal, b[:34]); err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return all[n*9/10]
	}
	commits(20)
	alone := commits(60)
	var copies []net.Conn
	var sending sync.WaitGroup
	for range 4 {
		c := reach(ClassSeed)
		copies = append(copies, c)
		sending.Go(func() {
			for b := make([]byte, 1<<20); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		})
	}
	t.Cleanup(sending.Wait)
	t.Cleanup(func() {
		for _, c := range copies {
			_ = c.Close()
		}
	})
	gone := func() (n uint64) {
		for _, c := range copies {
			f, _ := c.(*Conn).socketState()
			n += f.acked
		}
		return n
	}
	// The machine may be busy, which makes the path longer than configured: one good stretch is enough.
	var beside time.Duration
	var rate float64
	for range 12 {
		was, began := gone(), time.Now()
		beside = commits(60)
		rate = float64(gone()-was) * 8 / time.Since(began).Seconds()
		t.Logf("commits of 8 KB, 90th percentile: %v alone, %v beside a copy of %.1f Mbit/s", alone, beside, rate/1e6)
		if beside < alone+40*time.Millisecond && rate > 10e6 {
			return
		}
	}
	t.Errorf("commits of 8 KB take %v alone and %v beside a copy, which has %.1f Mbit/s of 40", alone, beside, rate/1e6)
}

// inside serves an endpoint on a node of an emulated network.
func inside(t *testing.T, network *linkem.Network, node string, c Config) *Endpoint {
	t.Helper()
	c.Listen = net.JoinHostPort(network.Addr(node).String(), "0")
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	c.Authorize = new(allow).authorize
	e := New(c)
	if err := network.Do(node, e.Listen); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return e
}
