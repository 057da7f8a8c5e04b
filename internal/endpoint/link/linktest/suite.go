// Package linktest is the contract of every transport of a link, as tests that run on each of them.
//
// It owns the suite and nothing else. Start reading at Run.
package linktest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lib/codec"
)

// Net is a path between two nodes.
type Net struct {
	// Open opens a leg of a kind; its other end is given to the hub.
	Open func(ctx context.Context, kind string) (link.Transport, error)
	// Attach sets the hub that receives the other ends of Open's legs.
	Attach func(h *link.Hub)
	// Cut breaks every leg that is open now; nil if the path does not support it.
	Cut func()
	// Silence makes every leg that is open now silent both ways, while new ones work; nil if the path does not support
	// it.
	Silence func()
	// Kinds are the transports it has.
	Prefer link.Preference
}

// Pair is a link over a Net.
type Pair struct {
	Near, Far *link.Conn
	Hub       *link.Hub
	stop      chan struct{}
}

// Config is a configuration with a fast heartbeat.
func Config(compression string) link.Config {
	w, err := codec.Parse("LOG_COMPRESSION", compression)
	if err != nil {
		panic(err)
	}
	return link.Config{Compression: func() codec.Setting { return w }, Heartbeat: 30 * time.Millisecond, Grace: 10 * time.Second, Suspect: time.Minute}
}

// Open makes a link over n.
func Open(t *testing.T, n Net, cfg link.Config) *Pair {
	t.Helper()
	far := make(chan *link.Conn, 1)
	p := &Pair{stop: make(chan struct{})}
	p.Hub = &link.Hub{
		Configure: func(string) link.Config { return cfg },
		Serve: func(ctx context.Context, c *link.Conn) {
			far <- c
			select {
			case <-p.stop:
			case <-ctx.Done():
			}
		},
	}
	n.Attach(p.Hub)
	d := &link.Dialer{Config: cfg, Peer: "far", Prefer: func() link.Preference { return n.Prefer }, Open: n.Open, Calm: 200 * time.Millisecond}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	near, err := d.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.Near = near
	select {
	case p.Far = <-far:
	case <-ctx.Done():
		t.Fatal("the link did not reach the other side")
	}
	t.Cleanup(func() {
		_ = near.Close()
		p.within(t, "the end of every goroutine of the near side", near.Wait)
		close(p.stop)
		p.within(t, "the end of every goroutine of the far side", p.Hub.Close)
	})
	return p
}

// patience bounds every wait of the suite; a loaded machine takes seconds.
const patience = 2 * time.Minute

// within runs f, which waits for what. If f has not returned after patience, it ends the link, so that f and its
// helpers can return, and fails the test with the state of both sides and the stacks of all goroutines.
func (p *Pair) within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return
	case <-time.After(patience):
	}
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	t.Errorf("waited %v in vain for %s\nnear: %+v\nfar: %+v\n%s", patience, what, p.Near.Status(), p.Far.Status(), stacks)
	_ = p.Near.Close()
	_ = p.Far.Close()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Errorf("the end of the link did not end the wait for %s", what)
	}
	t.FailNow()
}

// Run runs the suite over paths that make returns, one per test.
func Run(t *testing.T, make func(t *testing.T) Net) {
	for _, compression := range []string{"OFF", "LZ4", "ZSTD:1", "ZSTD:3"} {
		t.Run("both ways/"+compression, func(t *testing.T) {
			t.Parallel()
			p := Open(t, make(t), Config(compression))
			BothWays(t, p, 4<<20)
		})
	}
	t.Run("ends", func(t *testing.T) { t.Parallel(); ends(t, Open(t, make(t), Config("ZSTD"))) })
	t.Run("deadlines", func(t *testing.T) { t.Parallel(); deadlines(t, Open(t, make(t), Config("OFF"))) })
	t.Run("slow reader", func(t *testing.T) { t.Parallel(); slowReader(t, Open(t, make(t), Config("OFF"))) })
	t.Run("status", func(t *testing.T) { t.Parallel(); status(t, Open(t, make(t), Config("ZSTD"))) })
	t.Run("cuts", func(t *testing.T) {
		t.Parallel()
		n := make(t)
		if n.Cut == nil {
			t.Skip("this way cannot be cut")
		}
		p := Open(t, n, Config("ZSTD"))
		cuts(t, n, p)
	})
	t.Run("silent legs", func(t *testing.T) {
		t.Parallel()
		n := make(t)
		if n.Silence == nil {
			t.Skip("this way cannot be silenced")
		}
		cfg := Config("ZSTD")
		cfg.Suspect, cfg.DeadAfter = 150*time.Millisecond, time.Hour
		silent(t, n, Open(t, n, cfg))
	})
}

// silent holds that a leg by which nothing arrives is replaced long before it counts as dead, and that no part of the
// stream is lost.
func silent(t *testing.T, n Net, p *Pair) {
	t.Helper()
	for range 2 {
		before := len(p.Near.Status().Events)
		n.Silence()
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if e := p.Near.Status().Events[before:]; slices.ContainsFunc(e, func(e link.Event) bool { return e.What == "leg lost" }) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the silent leg stays: %+v", p.Near.Status().Events)
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(20 * time.Millisecond) // somewhere in the middle
		n.Silence()
	})
	BothWays(t, p, 4<<20)
	wg.Wait()
}

// Pump writes size bytes, half noise and half text, in writes of many sizes, and ends the direction.
func Pump(c *link.Conn, seed uint64, size int, sum io.Writer) error {
	r := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // test data that can be made again
	buf := make([]byte, 200<<10)
	for size > 0 {
		n := min(size, 1+r.IntN(1<<(4+r.IntN(14))))
		b := buf[:n]
		if r.IntN(2) == 0 {
			for i := range b {
				b[i] = byte(r.Uint32())
			}
		} else {
			copy(b, bytes.Repeat([]byte("some row of some table;"), n/23+1))
		}
		_, _ = sum.Write(b)
		if _, err := c.Write(b); err != nil {
			return err
		}
		size -= n
	}
	return c.CloseWrite()
}

// BothWays sends size bytes in each direction at once and compares them with what arrives.
func BothWays(t *testing.T, p *Pair, size int) {
	t.Helper()
	var wg sync.WaitGroup
	for i, dir := range []struct{ from, to *link.Conn }{{p.Near, p.Far}, {p.Far, p.Near}} {
		sent, got := sha256.New(), sha256.New()
		var done sync.WaitGroup
		done.Go(func() {
			if err := Pump(dir.from, uint64(i), size, sent); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		done.Go(func() {
			var err error
			if i == 0 {
				err = dir.to.Receive(func(b []byte) error { _, err := got.Write(b); return err })
			} else {
				_, err = io.Copy(got, dir.to)
			}
			if err != nil {
				t.Errorf("read: %v", err)
			}
		})
		wg.Go(func() {
			done.Wait()
			if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Errorf("direction %d: what was read is not what was written", i)
			}
		})
	}
	p.within(t, "the data of both directions", wg.Wait)
}

// ends closes one side: the other reads the data written before, and then an error.
func ends(t *testing.T, p *Pair) {
	if _, err := p.Near.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	_ = p.Near.Close()
	_ = p.Far.SetReadDeadline(time.Now().Add(20 * time.Second))
	got := make([]byte, 10)
	if _, err := io.ReadFull(p.Far, got); err != nil || string(got) != "last words" {
		t.Errorf("read %q, %v", got, err)
	}
	var timeout interface{ Timeout() bool }
	if _, err := p.Far.Read(got); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("after the end: %v", err)
	}
	if _, err := p.Near.Write([]byte("more")); err == nil {
		t.Error("a closed link was written to")
	}
}

func deadlines(t *testing.T, p *Pair) {
	_ = p.Near.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	var timeout interface{ Timeout() bool }
	if _, err := p.Near.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read past its deadline: %v", err)
	}
	_ = p.Near.SetReadDeadline(time.Time{})
	if _, err := p.Far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = p.Near.SetReadDeadline(time.Now().Add(patience))
	if n, err := p.Near.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("after a deadline: %d, %v", n, err)
	}
}

// slowReader stops reading: the writer is stopped, and memory bounded; then everything arrives.
func slowReader(t *testing.T, p *Pair) {
	const size = 64 << 20
	var written atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 64<<10)
		for range size / len(b) {
			if _, err := p.Near.Write(b); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			written.Add(int64(len(b)))
		}
		_ = p.Near.CloseWrite()
	})
	time.Sleep(500 * time.Millisecond)
	if n := written.Load(); n >= size {
		t.Errorf("%d bytes were written though nobody reads", n)
	}
	wg.Go(func() {
		var read int64
		if err := p.Far.Receive(func(b []byte) error { read += int64(len(b)); return nil }); err != nil || read != size {
			t.Errorf("%d bytes were read, %v", read, err)
		}
	})
	p.within(t, "64 MiB to a reader that begins late", wg.Wait)
}

func status(t *testing.T, p *Pair) {
	if _, err := p.Near.Write(bytes.Repeat([]byte("again and "), 5000)); err != nil {
		t.Fatal(err)
	}
	_ = p.Far.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(p.Far, make([]byte, 50000)); err != nil {
		t.Fatal(err)
	}
	s := p.Near.Status()
	if s.Sent != 50000 || s.SentEncoded == 0 || s.SentEncoded > 5000 || s.Codec != "ZSTD:1" || len(s.Legs) == 0 || s.Ratio() < 10 {
		t.Errorf("near: %+v", s)
	}
	if f := p.Far.Status(); f.Received != 50000 || f.ReceivedCoded != s.SentEncoded {
		t.Errorf("far: %+v", f)
	}
	deadline := time.Now().Add(20 * time.Second)
	for p.Near.Status().RTT == 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if p.Near.Status().RTT == 0 {
		t.Error("the round trip was not measured")
	}
}

// cuts breaks every leg again and again under load in both directions.
func cuts(t *testing.T, n Net, p *Pair) {
	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cuts := 0
	cutting.Go(func() {
		for cuts < 8 {
			select {
			case <-stop:
				return
			case <-time.After(60 * time.Millisecond):
				n.Cut()
				cuts++
			}
		}
	})
	BothWays(t, p, 24<<20)
	close(stop)
	cutting.Wait()
	if s := p.Near.Status(); cuts > 2 && s.Resent == 0 && p.Far.Status().Resent == 0 {
		t.Errorf("%d cuts, and nothing was sent again: %+v", cuts, s.Events)
	}
}
