package listener

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/offload/offloadtest"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// relayTests are the tests of open sessions, which hold on all data paths.
const relayTests = "^(TestCancel|TestCancelled.*|TestUnconfirmedIsUnknown|TestStrictBarrier|TestReadsWaitWithoutTheLog|TestCancelOfARunningQueryIsNotHeld|" +
	"TestSuspicionEnds|TestEndOfSessionEndsTheHold|TestDurableReads|TestConfirmedReads|TestDrain.*|TestCloseServerSaysWhatBecameOfIt|TestHeldRequestsHaveALimit|" +
	"TestWhatAClientHears|TestCopy.*|TestPipelineAndNotifications|TestGateHoldsBytes|TestBackendLost|TestShutdownIsPolite|TestCloseEpoch|TestLengthLiesInASession|" +
	"TestSlowReaderPushesBack|TestLastRequestComesBeforeTheEnd|TestNothingIsLeft|TestReplication|TestLogicalStreamIsNoMember)$"

// writingSingly is the value of pathEnv for a loop without io_uring.
const writingSingly = "loop, writing singly"

// The tests run with the event loops that plain sessions get. Those of the relay run again without loops, and with
// loops that make one system call per write.
func TestOnOtherPaths(t *testing.T) {
	if os.Getenv(pathEnv) != "" {
		t.Skip("this is that run")
	}
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("the tests of the relay on the other paths run with COTERIE_LONG=1; by default TestBothPaths stands for them")
	}
	for _, path := range []string{PathGoroutines, writingSingly, PathKernel} {
		t.Run(path, func(t *testing.T) {
			if path == PathKernel {
				offloadtest.Need(t)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", relayTests, "-test.timeout", "10m")
			cmd.Env = append(os.Environ(), pathEnv+"="+path)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Log(strings.TrimSpace(string(out)))
		})
	}
}

// The shortest tests of each rule, on the other paths.
func TestBothPaths(t *testing.T) {
	if os.Getenv(pathEnv) != "" {
		t.Skip("one path was chosen")
	}
	for _, path := range []string{PathGoroutines, writingSingly, PathKernel} {
		if path == PathKernel && !slices.Contains(dataPaths(t), path) {
			continue
		}
		t.Setenv(pathEnv, path)
		for name, test := range map[string]func(*testing.T){
			"gate": TestGateHoldsBytes, "hold": TestEndOfSessionEndsTheHold, "strict": TestStrictBarrier, "drain": TestDrainHoldsWhatIsNew, "drain in a pipeline": TestDrainFindsTheBoundaryInAPipeline,
			"verdicts": TestWhatAClientHears, "pipeline": TestPipelineAndNotifications, "slow reader": TestSlowReaderPushesBack, "length": TestLengthLiesInASession, "left": TestNothingIsLeft,
		} {
			t.Run(path+"/"+name, test)
		}
	}
}

func wantedPath() string {
	if os.Getenv(pathEnv) == PathGoroutines {
		return PathGoroutines
	}
	return PathLoop
}

func TestWhichPathServes(t *testing.T) {
	cert, _ := certificate(t)
	g := newGroup(t, func(c *Config) { c.Rules, c.Certificate = trustAll, func() *tls.Certificate { return cert } })
	g.mustDial(g.rw, "user=postgres")
	g.mustDial(g.ro, "user=postgres")
	g.mustDial(g.rw, "user=postgres sslmode=require")
	for i, want := range []string{wantedPath(), PathGoroutines, wantedPath()} {
		waitFor(t, fmt.Sprintf("session %d is served by %s", i, want), func() bool { return g.srv.Sessions()[i].Path == want })
	}
}

// TLS on a loop: rows that fill many records, a request of many records, a pipeline that is inside TLS before it is
// read, and the final error.
func TestTLSOnBothPaths(t *testing.T) {
	for _, path := range []string{PathLoop, PathGoroutines, writingSingly} {
		t.Run(path, func(t *testing.T) {
			t.Setenv(pathEnv, path)
			cert, _ := certificate(t)
			g := newGroup(t, func(c *Config) { c.Rules, c.Certificate = trustAll, func() *tls.Certificate { return cert } })
			conn := g.mustDial(g.rw, "user=postgres sslmode=require")
			waitFor(t, "it is served by "+path, func() bool { return g.srv.Sessions()[0].Path == wantedPath() })
			if n := value[int](t, conn, "select length(string_agg(repeat('x', 1000), '')) from generate_series(1, 5000)"); n != 5_000_000 {
				t.Errorf("%d", n)
			}
			var rows countingWriter
			if _, err := conn.PgConn().CopyTo(t.Context(), &rows, "copy (select repeat('x', 999) from generate_series(1, 30000)) to stdout"); err != nil || rows != 30_000_000 {
				t.Errorf("%d bytes came, %v", rows, err)
			}
			if n := value[int](t, conn, "select length($1::text)", strings.Repeat("y", 3_000_000)); n != 3_000_000 {
				t.Errorf("%d bytes arrived", n)
			}
			batch := &pgx.Batch{}
			for range 200 {
				batch.Queue("select repeat('z', 2000)")
			}
			if err := conn.SendBatch(t.Context(), batch).Close(); err != nil {
				t.Error(err)
			}
			g.srv.CloseReplica("a", "", "a test")
			if _, err := conn.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" {
				t.Errorf("the last words: %v", err)
			}
			waitFor(t, "it is gone", func() bool { return g.srv.Stats().Open == 0 && len(g.srv.Sessions()) == 0 })
		})
	}
}

// A client that reads nothing makes PostgreSQL wait, and costs no memory; the others continue.
func TestSlowReaderPushesBack(t *testing.T) {
	g := newGroup(t, trusting)
	slow, err := net.Dial("tcp", g.rw)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
	_, _ = slow.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, slow, 'Z')
	_, _ = slow.Write(pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "select repeat('x', 1000) from generate_series(1, 300000)")))
	other := g.mustDial(g.rw, "user=postgres")
	waitFor(t, "PostgreSQL waits for its client", func() bool {
		return value[bool](t, other, "select exists(select 1 from pg_stat_activity where wait_event = 'ClientWrite' and query like 'select repeat%')")
	})
	if passed := g.srv.Sessions()[0].BytesOut; passed > 100<<20 {
		t.Errorf("%d MB went out to a client that reads nothing", passed>>20)
	}
	rows := 0
	var f pgwire.Framer
	buf := make([]byte, 64<<10)
	for done := false; !done; {
		_ = slow.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := slow.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Scan(buf[:n], func(typ byte, _ []byte) { rows += b2i(typ == 'D'); done = done || typ == 'Z' })
	}
	if rows != 300_000 {
		t.Errorf("%d rows came", rows)
	}
}

// Sessions that end in every way leave no descriptor and no goroutine behind.
func TestNothingIsLeft(t *testing.T) {
	outer := newGroup(t, trusting) // starts the servers, and all that stays
	_ = outer.mustDial(outer.rw, "user=postgres").Close(t.Context())
	waitFor(t, "the first session is gone", func() bool { return outer.srv.Stats().Open == 0 })
	files, routines := openFiles(t), runtime.NumGoroutine()
	t.Run("sessions", func(t *testing.T) {
		g := newGroup(t, trusting)
		for range 5 {
			polite := g.mustDial(g.rw, "user=postgres")
			rude := g.mustDial(g.rw, "user=postgres")
			cut := g.mustDial(g.rw, "user=postgres")
			killed := g.mustDial(g.rw, "user=postgres")
			_ = polite.Close(t.Context())
			_ = rude.PgConn().Conn().(*net.TCPConn).SetLinger(0) // a reset
			_ = rude.PgConn().Conn().Close()
			g.srv.endWhere(ending{reason: "test", why: "a test"}, func(x *session) bool { return x.pid == cut.PgConn().PID() })
			g.servers["a"].sql(t, fmt.Sprintf("select pg_terminate_backend(%d)", killed.PgConn().PID()))
			for _, conn := range []*pgx.Conn{cut, killed} {
				if _, err := conn.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" {
					t.Errorf("heard %v", err)
				}
				_ = conn.Close(context.Background())
			}
		}
		placesAreFree(t, g.srv)
	})
	nothingIsLeft(t, files, routines)
}

// placesAreFree waits until no session is left in the listener.
func placesAreFree(t *testing.T, srv *Server) {
	t.Helper()
	waitFor(t, "no session is left", func() bool { return len(srv.Sessions()) == 0 })
	waitFor(t, "all places are free", func() bool {
		taken := srv.logins.Taken()
		srv.mu.Lock()
		defer srv.mu.Unlock()
		return taken.Open == 0 && len(srv.keys) == 0 && srv.attempts.Len() == 0 && taken.Addresses == 0
	})
}

// nothingIsLeft waits until at most that many files are open and goroutines run.
func nothingIsLeft(t *testing.T, files, routines int) {
	t.Helper()
	waitFor(t, "files and goroutines are as before", func() bool { return openFiles(t) <= files && runtime.NumGoroutine() <= routines })
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Bytes that PostgreSQL sent after its greeting arrive before everything else.
func TestPrefetchedBytesAtHandOver(t *testing.T) {
	g := newGroup(t, trusting)
	g.srv.cfg.Backend = fakeBackend(t, func(conn net.Conn) {
		greeting := pgwire.AppendMessage(pgwire.AppendAuth(nil, auth.OK, nil), 'K', []byte("\x00\x00\x00\x07abcd"))
		greeting = pgwire.AppendMessage(pgwire.AppendMessage(greeting, 'Z', []byte{'I'}), 'N', []byte("SNOTICE\x00Mfirst\x00\x00"))
		_, _ = conn.Write(pgwire.AppendMessage(greeting, 'N', []byte("SNOTICE\x00Msecond\x00\x00"))[:len(greeting)+9]) // ends with a part of the next
		time.Sleep(50 * time.Millisecond)
		_, _ = conn.Write(pgwire.AppendMessage(nil, 'N', []byte("SNOTICE\x00Msecond\x00\x00"))[9:])
		_, _ = conn.Read(make([]byte, 1))
	})
	conn, err := net.Dial("tcp", g.rw)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, conn, 'Z')
	for _, want := range []string{"first", "second"} {
		if got := pgwire.ErrorField(readUntil(t, conn, 'N'), 'M'); got != want {
			t.Errorf("got notice %q, want %q", got, want)
		}
	}
}

// fakeBackend returns a function that connects to a server made of serve; the startup packet was read.
func fakeBackend(t *testing.T, serve func(net.Conn)) func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) {
	t.Helper()
	dial, _ := fakeServer(t, serve)
	return dial
}

// fakeServer is fakeBackend with the directory of the server's socket. Clients are served concurrently.
func fakeServer(t *testing.T, serve func(net.Conn)) (dial func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error), dir string) {
	t.Helper()
	return unixServer(t, func(conn net.Conn) {
		if _, err := pgwire.ReadPacket(conn, 10_000); err == nil {
			serve(conn)
		}
	})
}

// unixServer is fakeServer, but the startup packet is left to serve.
func unixServer(t *testing.T, serve func(net.Conn)) (dial func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error), dir string) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(dir, socketName)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				serve(conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	return func(ctx context.Context, _ ag.ReplicaID, _ BackendHello) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}, dir
}
