package listener

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
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
			conn := &bareConn{fd: ours}
			c := s.newClient(conn, false)
			c.start, c.intent = &startup.Message{User: "u", Database: "d"}, ag.ReadWrite
			st := &preauthConn{c: c, loop: l, conn: conn}
			l.preauth[st] = struct{}{}
			if !s.enter() {
				t.Fatal("it is closing")
			}
			x := c.newSession(route{}, &bareConn{fd: backend})
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
			st.opened(x, []byte("greeting"))
			<-over
			l.work()
			l.batch.flush()
			l.closeEnded()
			got := make([]byte, 1000)
			if n, err := receive(client, got); err != nil || !bytes.Contains(got[:n], []byte(want)) {
				t.Errorf("the client gets %q, %v", got[:max(n, 0)], err)
			}
			x.onLoop.Load().close()
			l.closeEnded()
			s.wg.Wait()
			if n, err := receive(client, got); n != 0 || err != nil {
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
			s.flushed.query = func(context.Context) (ag.LSN, error) { return 1, nil }
			ours, client := givenAway(t)
			backend, server := givenAway(t)
			x := &session{srv: s, cut: make(chan struct{}), moving: newMoving(nil), raw: &bareConn{fd: -1}, backend: &bareConn{fd: -1}, onPrimary: true}
			x.setGate(true, x.cut)
			p := x.attach(l, ours, backend, func() {})
			p.first(func() { p.start() })()
			x.owed.Store(1)
			p.backend.stuck, p.single = true, single // as finishReclaim leaves it
			if err := p.backend.send([]byte("next"), true); err != nil {
				t.Fatal(err)
			}
			open.Store(!single)
			answer := pgwire.AppendMessage(pgwire.AppendMessage(nil, 'C', []byte("INSERT 0 1\x00")), 'Z', []byte{'I'})
			if _, err := transmit(server, answer); err != nil {
				t.Fatal(err)
			}
			p.backend.Ready(unix.EPOLLIN)
			if !p.awaiting {
				t.Fatal("the answer is not held")
			}
			open.Store(true)
			got := make([]byte, 100)
			waitFor(t, "the answer is passed on", func() bool {
				l.work()
				l.batch.flush()
				n, _ := receive(client, got)
				return bytes.HasSuffix(got[:n], answer[len(answer)-6:])
			})
			if n, err := receive(server, got); err != nil || string(got[:n]) != "next" {
				t.Errorf("PostgreSQL gets %q, %v", got[:max(n, 0)], err)
			}
			p.close()
			l.closeEnded()
			s.wg.Wait()
		})
	}
}
