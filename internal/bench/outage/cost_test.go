package outage

import (
	"io"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestForwarderCopiesAndEnds(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	echo, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	c, err := NewForwarder(socket)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port())))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	if err := c.Close(); err != nil { // a connection is open: Close must not wait for its end
		t.Error(err)
	}
	if _, err := conn.Read(b); err == nil {
		t.Error("the connection outlived the relay")
	}
}

func TestCostIsStatedTwice(t *testing.T) {
	t.Parallel()
	s := Samples{Cost: []CostRound{{Plain: 2000, Relayed: 1600, Private: 1700, Listener: 1520}}}
	for _, f := range s.costFigures("") {
		if want := map[string]float64{"cost-of-a-relay": 20, "cost-beyond-a-relay": 5}[f.Name]; f.Measured < want-0.01 || f.Measured > want+0.01 {
			t.Errorf("%+v, want %v", f, want)
		}
	}
	for _, f := range (Samples{}).costFigures("an error") {
		if f.NotRun != "an error" {
			t.Errorf("%+v", f)
		}
	}
}
