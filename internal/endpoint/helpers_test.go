package endpoint

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

const (
	groupA = ag.GroupID("6f1c2f3e-0c55-4a0e-9a51-6a4d3c5a7b01")
	groupB = ag.GroupID("0b7e4c62-9f0d-4f6e-8a3c-1d2e3f405162")
)

// patience bounds waits for events that are immediate on an idle machine.
const patience = 60 * time.Second

func newTestCA(t *testing.T, group ag.GroupID) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(group, "sales")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newTestNode(t *testing.T, ca *certs.CA, id ag.ReplicaID) *certs.Node {
	t.Helper()
	n, err := certs.CreateNode(t.TempDir(), ca, certs.Identity{Group: ca.Group, Kind: certs.KindReplica, ID: id}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// allow is an Authorize whose refusals can be changed.
type allow struct {
	mu      sync.Mutex
	refused map[ag.ReplicaID]bool
}

func (a *allow) authorize(peer certs.Identity, _ string, _ Class) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused[peer.ID] {
		return errors.New("not a member of the group any more")
	}
	return nil
}

func (a *allow) refuse(id ag.ReplicaID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused == nil {
		a.refused = make(map[ag.ReplicaID]bool)
	}
	a.refused[id] = true
}

func (a *allow) pardon(id ag.ReplicaID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.refused, id)
}

// start serves an endpoint until the test ends; the test fails if any part of it still runs then.
func start(t *testing.T, c Config, prepare ...func(*Endpoint)) *Endpoint {
	t.Helper()
	noLeaks(t)
	return startBeside(t, c, prepare...)
}

// startBeside is start for tests that run beside others, whose goroutines cannot be distinguished.
func startBeside(t *testing.T, c Config, prepare ...func(*Endpoint)) *Endpoint {
	t.Helper()
	c.Listen = "127.0.0.1:0"
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	if c.Authorize == nil {
		c.Authorize = new(allow).authorize
	}
	e := New(c)
	for _, f := range prepare {
		f(e)
	}
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(patience):
			t.Error("Serve does not return")
		}
		if peers := e.Peers(); len(peers) > 0 {
			t.Errorf("connections left: %v", peers)
		}
	})
	return e
}

// client returns an endpoint that only dials.
func client(n *certs.Node) *Endpoint { return New(Config{Node: n}) }

// watched are the tests that noLeaks has been called in.
var watched sync.Map

// noLeaks fails the test if more goroutines run at its end than at the first call. At a later call, some goroutines of
// an endpoint that was started before may not have begun yet.
func noLeaks(t *testing.T) {
	t.Helper()
	if _, again := watched.LoadOrStore(t, true); again {
		return
	}
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		watched.Delete(t)
		deadline := time.Now().Add(patience)
		for runtime.NumGoroutine() > before {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<20)
				t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func echo(_ context.Context, _ certs.Identity, conn net.Conn) { _, _ = io.Copy(conn, conn) }

// dial opens a stream that is closed at the test's end.
func dial(t *testing.T, from, to *Endpoint, class Class, want ag.ReplicaID) (net.Conn, error) {
	t.Helper()
	conn, err := from.Dial(within(t), to.Addr().String(), class, want)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(patience))
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

func mustDial(t *testing.T, from, to *Endpoint, class Class, want ag.ReplicaID) net.Conn {
	t.Helper()
	conn, err := dial(t, from, to, class, want)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// cutPeer cuts every live connection with that node and returns how many.
func cutPeer(e *Endpoint, id ag.ReplicaID) int {
	n := 0
	for _, c := range e.live() {
		if c.peer.ID == id {
			c.abort()
			n++
		}
	}
	return n
}

// roundTrip checks that an echoing stream lives.
func roundTrip(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "ping" {
		t.Fatalf("got %q, %v", buf, err)
	}
}

// isCut waits until the stream is dead.
func isCut(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err := conn.Read(make([]byte, 1))
	var ne net.Error
	if err == nil || errors.As(err, &ne) && ne.Timeout() {
		t.Fatalf("the stream lives on: %v", err)
	}
}
