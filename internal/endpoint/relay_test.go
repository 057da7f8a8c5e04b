package endpoint

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

func TestRelayPassesHalfClose(t *testing.T) {
	noLeaks(t)
	ca := newTestCA(t, groupA)
	socket := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	served := make(chan error, 1)
	go func() { // answers only when it has seen the end of the question
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		question, err := io.ReadAll(conn)
		if err == nil {
			_, err = fmt.Fprintf(conn, "%d bytes", len(question))
		}
		served <- errors.Join(err, conn.Close())
	}()
	e := start(t, Config{Node: newTestNode(t, ca, "a")}, func(e *Endpoint) { e.handlers[ClassSQL] = RelayTo(socket, e.log) })
	conn := mustDial(t, client(newTestNode(t, ca, "b")), e, ClassSQL, "a")
	if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || string(answer) != "1048576 bytes" {
		t.Fatalf("got %q, %v", answer, err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the relay to end", func() bool { return len(e.Peers()) == 0 })
}

func TestRelayEndsWithEitherSide(t *testing.T) {
	noLeaks(t)
	for i := range 2 {
		a1, a2 := net.Pipe()
		b1, b2 := net.Pipe()
		done := make(chan struct{})
		go func() { Relay(a2, b1); close(done) }()
		_ = []net.Conn{a1, b2}[i].Close()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("the relay does not end")
		}
		_, _ = a1.Close(), b2.Close()
	}
}
