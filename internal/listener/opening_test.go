package listener

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/giveback"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// The state of a session is not read before its server has greeted the client: the greeting would be taken for the
// answer.
func TestStatesAreNotReadOfSessionsThatOpen(t *testing.T) {
	g := movingGroup(t, func(c *Config) { c.Limits.BackendHandshake = time.Second }) // the node looks at the answer for that long
	greet := make(chan struct{})
	_, dir := fakeServer(t, func(conn net.Conn) {
		<-greet
		b := pgwire.AppendMessage(pgwire.AppendAuth(nil, auth.OK, nil), 'K', []byte("\x00\x00\x00\x07abcd"))
		_, _ = conn.Write(pgwire.AppendMessage(b, 'Z', []byte{'I'}))
		_, _, _ = pgwire.ReadMessage(conn, 1<<20)
	})
	conn, err := throughNode(t.Context(), t, g.srv, dir)
	must(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	_, err = conn.Write(relayedPacket("postgres", ag.ReadWrite))
	must(t, err)
	waitFor(t, "the session is known", func() bool { return len(g.srv.localSessions()) == 1 })
	g.srv.Drain(true)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	g.srv.ReadStates(ctx)
	if ctx.Err() != nil {
		t.Error("an answer was waited for")
	}
	close(greet)
	var heard []byte
	for typ := byte(0); typ != 'Z'; heard = append(heard, typ) {
		if typ, _, err = pgwire.ReadMessage(conn, 1<<20); err != nil {
			t.Fatalf("heard %q, then %v", heard, err)
		}
	}
	if string(heard) != "RKZ" {
		t.Errorf("heard %q", heard)
	}
	g.srv.Drain(false)
}

// relayedPacket is the startup packet of a session of another node's client.
func relayedPacket(user string, intent ag.Intent) []byte {
	b := binary.BigEndian.AppendUint32(nil, pgwire.Protocol3)
	for _, s := range []string{"user", user, "database", "postgres", "coterie.intent", string(intent), hello.Moves, giveback.Version} {
		b = pgwire.AppendCString(b, s)
	}
	b = append(b, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b)+4)), b...)
}

// While new sessions are held at the primary, no node's listener opens one there, for whichever intent: it would be
// opened after the states of the others were read, and be ended.
func TestHeldPrimaryOpensNoSessions(t *testing.T) {
	far, near := movingGroup(t, nil), movingGroup(t, nil)
	near.remote["a"] = far.srv
	list := [][]ag.ReplicaID{{"a"}}
	far.publish(&ag.Routes{Epoch: 1, Self: "a", Primary: "a", WriteOpen: true, ReadList: list, Targets: []ag.Target{{ID: "a", Local: true, Healthy: true}}})
	near.publish(&ag.Routes{Epoch: 1, Self: "b", Primary: "a", WriteOpen: true, ReadList: list, Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true}}})
	far.srv.HoldNew(true)
	opened := make(chan error, 4)
	for _, address := range []string{far.rw, far.ro, near.rw, near.ro} {
		go func() {
			conn, err := far.dial(address, "user=postgres")
			if err == nil {
				_, err = conn.Exec(t.Context(), "select 1")
			}
			opened <- err
		}()
	}
	select {
	case err := <-opened:
		t.Fatalf("one was opened: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	if n := len(far.srv.localSessions()); n != 0 {
		t.Errorf("%d sessions", n)
	}
	far.srv.HoldNew(false)
	for range 4 {
		must(t, <-opened)
	}
}

// Sessions whose servers do not answer do not keep the states of others from being read.
func TestSilentServersHoldNobodyUp(t *testing.T) {
	g := movingGroup(t, nil)
	open := g.srv.cfg.Backend
	g.srv.cfg.Backend = fakeBackend(t, func(conn net.Conn) {
		b := pgwire.AppendMessage(pgwire.AppendAuth(nil, auth.OK, nil), 'K', []byte("\x00\x00\x00\x07abcd"))
		_, _ = conn.Write(pgwire.AppendMessage(b, 'Z', []byte{'I'}))
		_, _ = io.Copy(io.Discard, conn)
	})
	for range 3 * inquiry.AtOnce {
		conn, err := net.Dial("tcp", g.rw)
		must(t, err)
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
		_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
		readUntil(t, conn, 'Z')
	}
	g.srv.cfg.Backend = open
	g.mustDial(g.rw, "user=postgres")
	g.srv.Drain(true)
	defer g.srv.Drain(false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan struct{})
	go func() { defer close(over); g.srv.ReadStates(ctx) }()
	read := func() (n int) {
		for _, x := range g.srv.localSessions() {
			x.work.Lock()
			n += b2i(x.moving.inquiry.State != nil)
			x.work.Unlock()
		}
		return n
	}
	waitFor(t, "the state of the session whose server answers is read", func() bool { return read() > 0 })
	cancel()
	<-over
	if n := read(); n != 1 {
		t.Errorf("%d states were read", n)
	}
}
