package listener

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/routing"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// givenAway returns a pair of sockets. The caller closes the first.
func givenAway(t *testing.T) (mine, peer int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pair[1]) })
	return pair[0], pair[1]
}

// TestEndedWhileItIsHandedOver: a session whose login a loop has completed may be ended by another goroutine before it
// is given to a loop. Its end puts a deadline on its sockets, which Go watches from then on. Its client is told.
func TestEndedWhileItIsHandedOver(t *testing.T) {
	for _, name := range []string{"open", "ended before", "ended meanwhile"} {
		t.Run(name, func(t *testing.T) {
			l := batchingLoop(t)
			s := l.srv
			s.loops.Store(&[]*loop{l})
			ours, client := givenAway(t)
			backend, _ := givenAway(t)
			conn := socket.NewBare(ours)
			st := l.logins.NewClient(conn, netip.MustParseAddrPort("127.0.0.1:5432"), &net.TCPAddr{}, false)
			st.Start, st.Intent = &startup.Message{User: "u", Database: "d"}, ag.ReadWrite
			e := &entering{client: s.clientOf(st.Proved), login: st, loop: l}
			if !s.enter() {
				t.Fatal("it is closing")
			}
			x := e.newSession(routing.Route{}, socket.NewBare(backend))
			if !s.activate(nil, x) {
				t.Fatal("it cannot be opened")
			}
			want, over := "the primary has changed", make(chan struct{})
			end := func() { x.end(ending{"closed", want, true}); close(over) }
			switch name {
			case "ended before":
				end()
			case "ended meanwhile":
				go end()
			default:
				want = "greeting"
				close(over)
			}
			e.opened(x, []byte("greeting"))
			<-over
			l.RunPosted()
			l.Batch.Flush()
			l.closeEnded()
			got := make([]byte, 1000)
			if n, err := socket.Receive(client, got); err != nil || !bytes.Contains(got[:n], []byte(want)) {
				t.Errorf("the client gets %q, %v", got[:max(n, 0)], err)
			}
			x.onLoop.Load().close()
			l.closeEnded()
			s.wg.Wait()
			if n, err := socket.Receive(client, got); n != 0 || err != nil {
				t.Errorf("the client's connection is not closed: %d bytes, %v", n, err)
			}
		})
	}
}

// TestHeldAnswerProvesItsRequest: the answer to a request that the kernel has relayed proves that the request has
// arrived, also where it is held at first. The client's later requests go to PostgreSQL then.
func TestHeldAnswerProvesItsRequest(t *testing.T) {
	for name, single := range map[string]bool{"at the gate": true, "to be confirmed": false} {
		t.Run(name, func(t *testing.T) {
			l := batchingLoop(t)
			s := l.srv
			var open atomic.Bool
			s.cfg.Gate = func() time.Duration {
				if !open.Load() {
					return 1
				}
				return boottime.Now() + time.Minute
			}
			s.cfg.GateHold = time.Minute
			s.cfg.Durable = func(context.Context, ag.LSN) error { return nil }
			s.flushed.Do = func(context.Context) (ag.LSN, error) { return 1, nil }
			ours, client := givenAway(t)
			backend, server := givenAway(t)
			x := &session{srv: s, cut: make(chan struct{}), moving: newMoving(nil), raw: socket.NewBare(-1), backend: socket.NewBare(-1), work: underway.Work{OnPrimary: true, Rules: &s.rules}}
			x.setGate(true, x.cut)
			p := x.attach(l, ours, backend, func() {})
			p.first(func() { p.start() })()
			x.work.Owed.Store(1)
			p.backend.Stuck, p.single = true, single // as finishReclaim leaves it
			if err := p.backend.Send([]byte("next"), true); err != nil {
				t.Fatal(err)
			}
			open.Store(!single)
			answer := pgwire.AppendMessage(pgwire.AppendMessage(nil, 'C', []byte("INSERT 0 1\x00")), 'Z', []byte{'I'})
			if _, err := socket.Transmit(server, answer); err != nil {
				t.Fatal(err)
			}
			p.backend.Ready(unix.EPOLLIN)
			if !p.awaiting {
				t.Fatal("the answer is not held")
			}
			open.Store(true)
			got := make([]byte, 100)
			waitFor(t, "the answer is passed on", func() bool {
				l.RunPosted()
				l.Batch.Flush()
				n, _ := socket.Receive(client, got)
				return bytes.HasSuffix(got[:n], answer[len(answer)-6:])
			})
			if n, err := socket.Receive(server, got); err != nil || string(got[:n]) != "next" {
				t.Errorf("PostgreSQL gets %q, %v", got[:max(n, 0)], err)
			}
			p.close()
			l.closeEnded()
			s.wg.Wait()
		})
	}
}

// TestPanicBeforeThereIsABackend: a panic ends a session of another node's client, and nothing else, also while it has
// no backend yet.
func TestPanicBeforeThereIsABackend(t *testing.T) {
	s := batchingLoop(t).srv
	s.cfg.Routes = func() *ag.Routes { panic("a test") }
	ours, client := net.Pipe()
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.ServeBackend(t.Context(), ours, t.TempDir())
	}()
	body := append(binary.BigEndian.AppendUint32(nil, pgwire.Protocol3), "user\x00u\x00coterie.intent\x00READ_WRITE\x00\x00"...)
	if _, err := client.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)); err != nil {
		t.Fatal(err)
	}
	<-over
	if n, err := client.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("its connection is still open")
	}
	if n := s.Stats().Cut["panic"]; n != 1 {
		t.Errorf("%d panics are counted", n)
	}
}

// TestDeadlineOfALostBackend: a session that was woken to be asked does not overwrite the deadline by which the end of
// its client stops the wait for its backend.
func TestDeadlineOfALostBackend(t *testing.T) {
	ours, backend := net.Pipe()
	defer func() { _, _ = ours.Close(), backend.Close() }()
	x := &session{srv: batchingLoop(t).srv, cut: make(chan struct{}), moving: newMoving(nil), backend: ours}
	x.keepsBackend.Store(true)
	_ = x.backend.SetReadDeadline(time.Unix(1, 0)) // as upstream does
	x.woken(0)
	read := make(chan error)
	go func() {
		_, err := x.backend.Read(make([]byte, 1))
		read <- err
	}()
	select {
	case err := <-read:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(60 * time.Second):
		t.Error("it waits for a backend that has nothing to say")
	}
}

// lentSession returns a session on a loop that does not run, which the kernel is taken to relay.
func lentSession(t *testing.T) (x *session, p *loopSession) {
	t.Helper()
	l := batchingLoop(t)
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", port.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here, err := port.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = port.Close(), client.Close(), here.Close() })
	ours, err := socket.Duplicate(here)
	if err != nil {
		t.Fatal(err)
	}
	backend, _ := givenAway(t)
	returns, _ := givenAway(t)
	x = &session{srv: l.srv, cut: make(chan struct{}), moving: newMoving(nil), raw: here, backend: socket.NewBare(-1)}
	p = x.attach(l, ours, backend, func() {})
	p.first(func() { p.start() })()
	l.offloaded = make([]*loopSession, 1)
	p.kernel = &offload.Session{Slot: new(offload.Slot), Returns: returns}
	l.offloaded[0] = p
	p.returns.open(p, returns)
	l.SetWatcher(returns, &p.returns)
	x.work.Kernel.Store(p.kernel)
	return x, p
}

// TestSlotOfASessionThatLeft: a goroutine that has just seen that the kernel relays a session finds its slot, also when
// the session leaves its loop in that moment.
func TestSlotOfASessionThatLeft(t *testing.T) {
	x, p := lentSession(t)
	x.work.Kernel.Store(nil)
	conn, err := p.takeClient()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.(*lentConn).TCPConn.Close() }() //nolint:forcetypeassert // the kernel knows it
	returns := p.kernel
	if returns == nil {
		t.Fatal("there is no slot any more")
	}
	p.close()
	p.loop.closeEnded()
	if _, err := unix.FcntlInt(uintptr(returns.Returns), unix.F_GETFD, 0); err != nil {
		t.Errorf("the socket of the answers that come back was closed with the session: %v", err)
	}
	_ = unix.Close(returns.Returns)
}

// TestReclaimSparesTheNextSession: the slot of a session that came back by itself may belong to another session by the
// time a goroutine reclaims the first. The other one stays with the kernel: nothing would wake its loop.
func TestReclaimSparesTheNextSession(t *testing.T) {
	x, p := lentSession(t)
	x.work.Lock()
	over := make(chan struct{})
	go func() { defer close(over); x.reclaim() }()
	waitFor(t, "it waits for the session", func() bool {
		stacks := make([]byte, 1<<20)
		for _, g := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(g, "(*session).reclaim") && strings.Contains(g, "sync.Mutex.Lock") {
				return true
			}
		}
		return false
	})
	x.work.Kernel.Store(nil)
	p.kernel.Slot.Armed = 1 // for the other one
	x.work.Unlock()
	<-over
	if p.kernel.Slot.Armed != 1 {
		t.Error("the other session was taken from the kernel")
	}
	p.kernel = nil
	p.close()
	p.loop.closeEnded()
	_ = unix.Close(p.returns.FD)
}

// TestHeldRequestOfALostBackend: nothing of a session stays behind whose backend has ended itself while a drain held a
// request of it, also while the drain lasts.
func TestHeldRequestOfALostBackend(t *testing.T) {
	l := batchingLoop(t)
	s := l.srv
	ours, client := givenAway(t)
	backend, server := givenAway(t)
	x := &session{srv: s, cut: make(chan struct{}), moving: newMoving(nil), raw: socket.NewBare(-1), backend: socket.NewBare(-1)}
	x.setGate(true, x.cut)
	x.work.Status.Store('I')
	p := x.attach(l, ours, backend, func() {})
	p.first(func() { p.start() })()
	s.Drain(true)
	if _, err := socket.Transmit(client, pgwire.AppendMessage(nil, 'Q', []byte("select 1\x00"))); err != nil {
		t.Fatal(err)
	}
	p.client.Ready(unix.EPOLLIN)
	if !p.draining {
		t.Fatal("the request is not held")
	}
	if _, err := socket.Transmit(server, pgwire.Fatal("", pgwire.StateAdminShutdown, "a test").Encode()); err != nil {
		t.Fatal(err)
	}
	_ = unix.Shutdown(server, unix.SHUT_RDWR)
	for p.phase == relaying {
		p.backend.Ready(unix.EPOLLIN)
	}
	p.close()
	l.closeEnded()
	over := make(chan struct{})
	go func() { s.wg.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(60 * time.Second):
		t.Error("its request is still held")
	}
	s.Drain(false)
	<-over
}

// TestStateOfASessionThatLeaves: a session leaves with the state that was read. Another reading, which its leaving
// ends, does not take that state away.
func TestStateOfASessionThatLeaves(t *testing.T) {
	x, p := lentSession(t)
	s := x.srv
	x.work.Kernel.Store(nil)
	x.moving.owner = &client{}
	over := make(chan struct{})
	go func() { defer close(over); s.inquirer.ReadStates(t.Context(), []*session{x}) }()
	waitFor(t, "it is asked", func() bool { return x.moving.inquiry.Wanted() })
	x.work.Lock()
	x.moving.inquiry.State = &continuity.State{}
	x.work.Unlock()
	x.moving.over()
	<-over
	if x.moving.inquiry.State == nil {
		t.Error("it has left without its state")
	}
	p.kernel = nil
	p.close()
	p.loop.closeEnded()
	_ = unix.Close(p.returns.FD)
}
