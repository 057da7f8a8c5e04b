package listener

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/uring"
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
	srv.closePorts()
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

// fingerprintConnOn returns a loop that is not running, whose session for fingerprints is one end of a pair of sockets.
func fingerprintConnOn(t *testing.T) (l *loop, server int) {
	t.Helper()
	l = batchingLoop(t)
	pair := socketPair(t)
	mine, err := unix.FcntlInt(uintptr(pair[0]), unix.F_DUPFD_CLOEXEC, 0) // the connection closes it
	if err != nil {
		t.Fatal(err)
	}
	l.fingerprints.opened = mine
	return l, pair[1]
}

// Two queries of one turn go to a server that has just ended: both callers get one error each.
func TestTwoAskWhereNobodyAnswers(t *testing.T) {
	l, server := fingerprintConnOn(t)
	_ = unix.Shutdown(server, unix.SHUT_RDWR)
	said := make([]int, 2)
	for i := range said {
		if !l.fingerprints.ask("postgres", "postgres", func(_ LoginFingerprint, ok bool) {
			if said[i]++; ok {
				t.Errorf("question %d was answered", i)
			}
		}) {
			t.Fatalf("question %d cannot be asked", i)
		}
	}
	l.Batch.Flush()
	if !slices.Equal(said, []int{1, 1}) {
		t.Errorf("who asked was told %v times", said)
	}
	if l.fingerprints.fd >= 0 {
		t.Error("the session is kept")
	}
}

// A query for which the batch has no room is not sent before those that are queued.
func TestQuestionsKeepTheirOrder(t *testing.T) {
	l, server := fingerprintConnOn(t)
	nobody := func(LoginFingerprint, bool) {}
	asked := 0
	for l.fingerprints.ask("postgres", "postgres", nobody) {
		if asked++; asked > 2*uring.Size {
			t.Fatalf("%d questions of one turn were taken", asked)
		}
	}
	if asked != uring.Size || len(l.fingerprints.waiting) != asked {
		t.Errorf("%d questions were asked, %d wait", asked, len(l.fingerprints.waiting))
	}
	got := make([]byte, eventloop.BufferSize)
	if n, err := socket.Receive(server, got); !socket.WouldWait(err) {
		t.Errorf("%d bytes came before the turn's end, %v", n, err)
	}
	l.Batch.Flush()
	want := bytes.Repeat(fingerprintQuery("postgres", "postgres"), asked)
	n, err := socket.Receive(server, got)
	if err != nil || !bytes.Equal(got[:n], want) {
		t.Errorf("%d bytes came, %v, want %d", n, err, len(want))
	}
}

// A panic of a caller ends the session for fingerprints, and no other.
func TestPanicOfWhoAskedIsKept(t *testing.T) {
	l, server := fingerprintConnOn(t)
	second := false
	if !l.fingerprints.ask("a", "b", func(LoginFingerprint, bool) { panic("boom") }) || !l.fingerprints.ask("c", "d", func(_ LoginFingerprint, ok bool) { second = !ok }) {
		t.Fatal("nobody can be asked")
	}
	l.Batch.Flush()
	if _, err := socket.Transmit(server, pgwire.AppendMessage(pgwire.AppendMessage(nil, 'C', []byte("SELECT 0\x00")), 'Z', []byte{'I'})); err != nil {
		t.Fatal(err)
	}
	l.fingerprints.Ready(unix.EPOLLIN)
	if !second || l.fingerprints.fd >= 0 || l.srv.Stats().Rejected["panic"] != 1 {
		t.Errorf("the second was told: %v, the session is %d, %d panics counted", second, l.fingerprints.fd, l.srv.Stats().Rejected["panic"])
	}
}
