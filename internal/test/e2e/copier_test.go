package e2e

import (
	"bufio"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/bench/outage"
	"github.com/coteriedb/coterie/internal/lib/reexec"
)

// The relay with which the group's cost is compared is a process that copies bytes, and ends with its input.
func TestCopierIsAProcess(t *testing.T) {
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
	start := func(to string) (port string, end func() error) {
		name, _ := outage.ForwarderHelper()
		p, err := reexec.Start(t.Context(), reexec.Spec{Exe: exe, Name: name, Config: map[string]string{"to": to}})
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(p.Out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line), p.Stop
	}
	near, endNear := start(socket)
	far, endFar := start(net.JoinHostPort("127.0.0.1", near)) // the second one behind the first
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", far))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, 5)
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	for _, end := range []func() error{endFar, endNear} {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}
