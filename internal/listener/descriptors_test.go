package listener

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

const (
	fewDescriptors = "COTERIE_TEST_FEW_DESCRIPTORS"
	fewSocket      = "COTERIE_TEST_FEW_SOCKET"
)

// TestOutOfDescriptors has more clients connect than the listener may have files open. Clients with a session keep it
// and are answered; the others get an error, or wait. As soon as some have left, clients are served again, on the
// port of the loops and on that of goroutines.
func TestOutOfDescriptors(t *testing.T) {
	if how := os.Getenv(fewDescriptors); how != "" {
		serveWithFew(t, how)
		return
	}
	t.Parallel()
	_, server := fakeServer(t, func(conn net.Conn) {
		greeting := pgwire.AppendMessage(pgwire.AppendAuth(nil, auth.OK, nil), 'K', []byte("\x00\x00\x00\x07abcd"))
		_, _ = conn.Write(pgwire.AppendMessage(greeting, 'Z', []byte{'I'}))
		for {
			if typ, _, err := pgwire.ReadMessage(conn, 1<<10); err != nil || typ == 'X' {
				return
			}
			_, _ = conn.Write(pgwire.AppendMessage(pgwire.AppendMessage(nil, 'C', []byte("SELECT 0\x00")), 'Z', []byte{'I'}))
		}
	})
	for _, how := range []string{PathLoop, PathGoroutines} {
		t.Run(how, func(t *testing.T) { testFew(t, fewServer(t, how, filepath.Join(server, socketName))) })
	}
}

// fewServer runs this test in a process of its own, which prints its address.
func fewServer(t *testing.T, how, server string) (address string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOutOfDescriptors$", "-test.v") // it ends with its input
	cmd.Env = append(os.Environ(), fewDescriptors+"="+how, fewSocket+"="+server)
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var said []string
	t.Cleanup(func() {
		_ = end.Close()
		for lines.Scan() {
			said = append(said, lines.Text())
		}
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the listener's process: %v\n%s", err, strings.Join(said, "\n"))
		}
	})
	for lines.Scan() {
		said = append(said, lines.Text())
		if a, ok := strings.CutPrefix(lines.Text(), "address "); ok {
			return a
		}
	}
	t.Fatal("it did not begin")
	return ""
}

// serveWithFew is that process: a listener that may have 40 files open more than it has.
func serveWithFew(t *testing.T, how string) {
	g := new(group)
	g.routes.Store(fullRoutes(1))
	cfg := Config{
		ReadWrite: "127.0.0.1:0", Routes: g.routes.Load, Rules: trustAll,
		Backend: func(ctx context.Context, _ ag.ReplicaID, _ BackendHello) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", os.Getenv(fewSocket))
		},
		Verifier: func(context.Context, ag.ReplicaID, string) (Role, error) {
			return Role{Found: true, CanLogin: true}, nil
		},
		FingerprintSession: func(context.Context) (net.Conn, error) { return nil, errors.New("there is none here") },
	}
	if how == PathGoroutines {
		cfg.Loops = -1
	}
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- srv.Serve(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	rw, _ := srv.Addrs()
	visit(t, rw[0].String()) // code that opens files once has them
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open)) + 40, Max: uint64(len(open)) + 40}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("address", rw[0])
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// visit is a client that connects and leaves.
func visit(t *testing.T, address string) {
	t.Helper()
	conn := comesIn(t, address)
	defer conn.Close()
	if err := served(conn, time.Minute); err != nil {
		t.Errorf("the first client: %v", err)
	}
}

// comesIn sends the first packet of a session.
func comesIn(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	return conn
}

// served waits until a client is ready for its next query.
func served(conn net.Conn, within time.Duration) error {
	_ = conn.SetDeadline(time.Now().Add(within))
	for {
		typ, body, err := pgwire.ReadMessage(conn, 1<<10)
		switch {
		case err != nil:
			return err
		case typ == 'E':
			return pgwire.Fatal("", pgwire.ErrorField(body, 'C'), "%s", pgwire.ErrorField(body, 'M'))
		case typ == 'Z':
			return nil
		}
	}
}

func testFew(t *testing.T, address string) {
	const many = 60 // a session takes two files
	var all, in []net.Conn
	var heard sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	for range many {
		conn := comesIn(t, address)
		all = append(all, conn)
		heard.Go(func() {
			err := served(conn, 10*time.Second)
			mu.Lock()
			defer mu.Unlock()
			switch bad, told := pgwire.AsError(err); {
			case err == nil:
				in = append(in, conn)
			case told && bad.Code == pgwire.StateTooMany:
				refused++
			case !errors.Is(err, os.ErrDeadlineExceeded): // it waits
				t.Errorf("a client without a session: %v", err)
			}
		})
	}
	heard.Wait()
	if len(in) == 0 || len(in) > many/2 {
		t.Fatalf("of %d clients %d were served", many, len(in))
	}
	t.Logf("of %d clients %d were served and %d refused", many, len(in), refused)
	for i, conn := range in {
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Write(pgwire.AppendMessage(nil, 'Q', []byte("select\x00"))); err != nil {
			t.Error(err)
		}
		if err := served(conn, time.Minute); err != nil {
			t.Errorf("session %d of %d is not answered: %v", i, len(in), err)
		}
	}
	for _, conn := range all {
		_ = conn.Close()
	}
	waitFor(t, "clients are served again", func() bool {
		conn := comesIn(t, address)
		defer conn.Close()
		return served(conn, 10*time.Second) == nil
	})
}
