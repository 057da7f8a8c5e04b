package listener

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/socket"
)

// batchingLoop returns a loop that is not running and queues writes.
func batchingLoop(t *testing.T) *loop {
	t.Helper()
	kernelRing(t)
	srv, err := New(Config{
		ReadWrite: "127.0.0.1:0", Routes: func() *ag.Routes { return fullRoutes(1) }, Rules: trustAll,
		Backend: func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) {
			return nil, errors.New("there is none here")
		},
		Verifier: func(context.Context, ag.ReplicaID, string) (Role, error) {
			return Role{}, errors.New("there is none here")
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.ports.Close()
	l, err := newLoop(srv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	l.enableBatching()
	return l
}

// TestStepsBeforeTheFirst: a step that is posted for a session after it was given to a loop, and before its first step
// there, is left out. The loop does not know its sockets yet; the first step itself looks whether the session has
// ended.
func TestStepsBeforeTheFirst(t *testing.T) {
	l := batchingLoop(t)
	client, server := socketPair(t), socketPair(t)
	high := func(fd int) int { // a number that the loop's table does not reach
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 900)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	conn := func(fd int) net.Conn {
		f := os.NewFile(uintptr(high(fd)), "")
		defer func() { _ = f.Close() }()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	x := &session{srv: l.srv, cut: make(chan struct{}), moving: newMoving(nil), raw: conn(client[0]), backend: conn(server[0])}
	x.client = x.raw
	finished := 0
	p := x.attach(l, high(client[0]), high(server[0]), func() { finished++ })
	l.Post(p.guarded(p.close))
	x.end(ending{"closed", "the primary has changed", true})
	l.Post(p.first(func() { p.start(); p.woken(); p.updateInterest() }))
	l.RunPosted()
	l.Batch.Flush()
	l.closeEnded()
	got := make([]byte, 1000)
	n, err := socket.Receive(client[1], got)
	if err != nil || !bytes.Contains(got[:n], []byte("the primary has changed")) || finished != 0 {
		t.Errorf("the client gets %q, %v; its end was told %d times", got[:max(n, 0)], err, finished)
	}
	p.close()
	l.closeEnded()
	if finished != 1 {
		t.Errorf("its end was told %d times", finished)
	}
}
