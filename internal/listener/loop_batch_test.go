package listener

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// A COMMIT that ends a batch and cannot be written to a dead server takes the question before it along. Of the batch
// the server has executed the rest, and the client has the answers: it does not get them a second time, from the next
// server.
func TestBatchWhoseCommitIsNotWritten(t *testing.T) {
	m := func(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }
	of := func(text string) []byte {
		return slices.Concat(m('P', "\x00"+text+"\x00\x00\x00"), m('B', "\x00\x00\x00\x00\x00\x00\x00\x00"), m('E', "\x00\x00\x00\x00\x00"))
	}
	ownPaths(t, func(t *testing.T, g *group, with string) {
		if strings.HasSuffix(t.Name(), PathGoroutines) {
			t.Skip("loops only")
		}
		defer g.rowsOnce()()
		conn := g.mustDial(g.rw, "user=postgres "+with)
		g.known()
		g.unasked()
		g.do(conn, "select 1")
		x := g.sessionOf(conn.PgConn().Conn())
		raw, err := conn.PgConn().Hijack()
		must(t, err)
		defer func() { _ = raw.Conn.Close() }()
		must(t, raw.Conn.SetDeadline(time.Now().Add(time.Minute)))
		hears := func(until string) (types string) {
			for !strings.HasSuffix(types, until) {
				typ, body, err := pgwire.ReadMessage(raw.Conn, 1<<20)
				if err != nil {
					return types + " " + err.Error()
				}
				if types += string(typ); typ == 'E' {
					types += pgwire.ErrorField(body, 'V')
				}
			}
			return types
		}
		_, err = raw.Conn.Write(slices.Concat(of("begin"), of("insert into once values (1, 1)"), m('H', "")))
		must(t, err)
		if got := hears("12C12C"); got != "12C12C" {
			t.Fatalf("before its server dies the client hears %s", got)
		}
		p := x.onLoop.Load()
		dead, sent := make(chan struct{}), make(chan struct{})
		p.loop.Post(func() { // before the loop sees the end of its server
			_ = unix.Shutdown(p.backend.FD, unix.SHUT_RDWR)
			close(dead)
			<-sent
			p.fromClient()
			p.updateInterest()
		})
		<-dead
		_, err = raw.Conn.Write(slices.Concat(of("commit"), m('S', "")))
		must(t, err)
		waitFor(t, "the request is in the socket", func() bool {
			var b [1]byte
			n, _, _ := unix.Recvfrom(p.client.FD, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return n > 0
		})
		close(sent)
		waitFor(t, "its session has noticed", func() bool { return x.ended.Load() != nil || x.moving.isOver.Load() })
		g.succeeds()
		if got := hears("Z"); !strings.HasPrefix(got, "EFATAL") {
			t.Errorf("the client hears %s", got)
		}
	})
}

// The rest of a message of which the client has got the beginning is passed on, and not taken for the beginning of
// another one: nothing else may be written to the client between the two.
func TestRestOfAMessageOnALoop(t *testing.T) {
	l := batchingLoop(t)
	ours, _ := givenAway(t)
	backend, _ := givenAway(t)
	x := &session{srv: l.srv, cut: make(chan struct{}), moving: newMoving(nil), raw: socket.NewBare(-1), backend: socket.NewBare(-1)}
	x.work.Rules, x.work.Local = &underway.Rules{Continuity: func() bool { return true }}, true
	x.work.Known.Follows = true
	x.work.Knows(&continuity.State{Extensions: []string{"plpgsql 1.0"}})
	x.work.Ready('I')
	p := x.attach(l, ours, backend, func() {})
	p.first(func() {
		p.start()
		p.forward(query("select 1"))
		row := pgwire.AppendMessage(nil, 'D', append([]byte("\x00\x01\x00\x00\x20\x00"), make([]byte, 8<<10)...))
		p.pass(row[:len(row)-4], 0) // a short one would be held until it is whole
		p.pass(row[len(row)-4:len(row)-2], 0)
		if len(p.held) > 0 {
			t.Errorf("%q is kept from the client", p.held)
		}
		p.close()
	})()
	l.closeEnded()
}
