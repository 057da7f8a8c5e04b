package listener

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/login"
)

// These tests hold that a mistake in what serves clients does not end the process, in which all other clients are, and
// the agent.

// panicky is a server without PostgreSQL and without loops, whose functions panic while boom is set.
func panicky(t *testing.T, boom *atomic.Bool) *Server {
	t.Helper()
	bang := func() {
		if boom.Load() {
			panic("boom")
		}
	}
	routes := fullRoutes(1)
	routes.Self = "b"
	s, err := New(Config{
		ReadWrite: "127.0.0.1:0", Rules: trustAll, Continuity: always, Loops: -1,
		Routes: func() *ag.Routes { bang(); return routes },
		Backend: func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) {
			return nil, errors.New("there is none here")
		},
		Verifier: func(context.Context, ag.ReplicaID, string) (Role, error) {
			return Role{}, errors.New("there is none here")
		},
		Position: func(context.Context, ag.ReplicaID) (Progress, error) { bang(); return Progress{Epoch: 1, LSN: 7}, nil },
		FlushLSN: func(context.Context) (ag.LSN, error) { bang(); return 7, nil },
		Durable:  func(context.Context, ag.LSN) error { return nil },
		Confirm:  func(context.Context) error { bang(); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.ports.Close)
	return s
}

// panics returns how many panics were counted that ended no session.
func (s *Server) panics() uint64 { return s.Stats().Rejected["panic"] }

// A question that many callers share fails for all of them, and is asked again by the next.
func TestPanicInASharedQuestion(t *testing.T) {
	var boom atomic.Bool
	s := panicky(t, &boom)
	ask := func() (errs []error) {
		_, flushed := s.flushed.Ask(t.Context())
		_, leads := s.leads.Ask(t.Context())
		_, progress := s.lag.Primary(t.Context())
		return []error{flushed, leads, progress}
	}
	boom.Store(true)
	for i, err := range ask() {
		if !errors.Is(err, errInternal) {
			t.Errorf("question %d: %v", i, err)
		}
	}
	boom.Store(false)
	for i, err := range ask() {
		if err != nil {
			t.Errorf("question %d, asked again: %v", i, err)
		}
	}
	if n := s.panics(); n != 3 {
		t.Errorf("%d panics were counted", n)
	}
	s.wg.Wait()
}

// The looks at the routing list and at the age of the copy go on with their next turn.
func TestPanicInATurn(t *testing.T) {
	var boom atomic.Bool
	s := panicky(t, &boom)
	boom.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Serve(ctx) }()
	waitFor(t, "both have panicked", func() bool { return s.panics() >= 2 })
	boom.Store(false)
	x := &session{srv: s, id: 1, intent: ag.ReadOnly, replica: "z", cut: make(chan struct{}), moving: newMoving(nil)}
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	x.client, x.raw, x.backend = ours, ours, theirs
	x.work.Status.Store('I')
	s.mu.Lock()
	s.sessions[x.id] = x
	s.mu.Unlock()
	waitFor(t, "the reader of a replica that is not listed is ended", func() bool { return x.ended.Load() != nil })
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// bomb is a connection of which one call panics.
type bomb struct {
	net.Conn
	onRead bool // SetReadDeadline, or else SetDeadline
}

func (b bomb) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func (b bomb) SetReadDeadline(time.Time) error {
	if b.onRead {
		panic("boom")
	}
	return nil
}

func (b bomb) SetDeadline(time.Time) error { panic("boom") }

// Sessions are asked for their states before a failover, and by an inquiry. One of which that fails stays, with a
// reason, and the caller gets its answer.
func TestPanicWhileAStateIsRead(t *testing.T) {
	s := panicky(t, new(atomic.Bool))
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	x := &session{srv: s, id: 1, client: ours, raw: ours, backend: bomb{theirs, true}, cut: make(chan struct{}), moving: newMoving(&client{})}
	x.work.Local = true
	s.sessions[x.id] = x
	s.ReadStates(t.Context())
	if x.moving.inquiry.State != nil || x.moving.inquiry.Refusal != errInternal.Error() {
		t.Errorf("%+v, %q", x.moving.inquiry.State, x.moving.inquiry.Refusal)
	}
	if moves := s.Moves(t.Context()); len(moves) != 1 || moves[0].Why != errInternal.Error() {
		t.Errorf("%+v", moves)
	}
	if n := s.panics(); n != 2 {
		t.Errorf("%d panics were counted", n)
	}
}

// A session that fails while it leaves its backend ends, and is given up.
func TestPanicOfALeavingSession(t *testing.T) {
	s := panicky(t, new(atomic.Bool))
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	c := s.clientOf(login.Proved{Raw: ours, Conn: ours})
	x := &session{srv: s, client: ours, raw: ours, backend: bomb{ours, false}, cut: make(chan struct{}), moving: newMoving(c)}
	x.in = bufio.NewReader(x.backend)
	x.startLeaving()
	over := make(chan struct{})
	c.carry(x, func() { close(over) })
	select {
	case <-over:
	case <-time.After(60 * time.Second):
		t.Fatal("the session has not ended")
	}
	if _, err := theirs.Read(make([]byte, 1)); err == nil {
		t.Error("its client is still connected")
	}
}
