package gate

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/counters"
)

// behind returns a reader behind a gate with that deadline, and the server's end of its connection.
func behind(t *testing.T, deadline time.Duration) (g *Reader, set func(time.Duration), server net.Conn) {
	t.Helper()
	var at atomic.Int64
	set = func(d time.Duration) { at.Store(int64(d)) }
	set(deadline)
	here, there := net.Pipe()
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	all := Config{Deadline: func() time.Duration { return time.Duration(at.Load()) }, Hold: time.Minute, Counts: new(counters.Counters)}
	return &Reader{Config: all, Conn: here, Done: make(chan struct{}), Lost: new(atomic.Bool)}, set, there
}

// far is a deadline that no test reaches.
func far() time.Duration { return boottime.Now() + time.Hour }

// reads begins a read of what the server sends.
func reads(g *Reader, server net.Conn, sent string) <-chan error {
	done := make(chan error, 1)
	go func() { _, _ = server.Write([]byte(sent)) }()
	go func() {
		b := make([]byte, 100)
		n, err := g.Read(b)
		if err == nil && string(b[:n]) != sent {
			err = errors.New("read " + string(b[:n]))
		}
		done <- err
	}()
	return done
}

// gated returns when a read is held.
func gated(t *testing.T, g *Reader) {
	t.Helper()
	for until := time.Now().Add(time.Minute); g.Counts.Gated.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("nothing is held")
		}
	}
}

// Bytes pass an open gate, and wait at a closed one until it opens again.
func TestGateOpens(t *testing.T) {
	g, set, server := behind(t, far())
	if err := <-reads(g, server, "open"); err != nil || !g.Passed() || !g.Sticky() {
		t.Error(err)
	}
	set(1)
	done := reads(g, server, "late")
	gated(t, g)
	set(far())
	if err := <-done; err != nil || !g.Passed() {
		t.Error(err)
	}
	g.Arrived()
	if g.Passed() {
		t.Error("what has just arrived has passed already")
	}
}

// A server that was never a primary has no gate. One that was keeps its bytes when its role has ended.
func TestRoleEnds(t *testing.T) {
	g, set, server := behind(t, 0)
	if err := <-reads(g, server, "secondary"); err != nil || g.Sticky() {
		t.Error(err)
	}
	set(far())
	if open, err := g.Look(); !open || err != nil {
		t.Errorf("open %v, %v", open, err)
	}
	set(0)
	if err := <-reads(g, server, "late"); !errors.Is(err, ErrClosed) || g.Passed() {
		t.Errorf("bytes of a primary that is none any more: %v", err)
	}
}

// A wait ends with its session, when the session leaves its server, and after Hold.
func TestWaitEnds(t *testing.T) {
	for name, ends := range map[string]func(*Reader, chan struct{}, func(time.Duration)){
		"its session ends":     func(_ *Reader, done chan struct{}, _ func(time.Duration)) { close(done) },
		"it leaves its server": func(g *Reader, _ chan struct{}, _ func(time.Duration)) { g.Lost.Store(true) },
		"its role has ended":   func(_ *Reader, _ chan struct{}, set func(time.Duration)) { set(0) },
		"it was held for long": nil,
	} {
		t.Run(name, func(t *testing.T) {
			g, set, server := behind(t, 1)
			over := make(chan struct{})
			if g.Done = over; ends == nil {
				g.Hold = time.Millisecond
			}
			done := reads(g, server, "held")
			if gated(t, g); ends != nil {
				ends(g, over, set)
			}
			if err := <-done; !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
}
