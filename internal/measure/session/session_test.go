package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	pg := func(severity, code string) error {
		return fmt.Errorf("op: %w", &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code})
	}
	for _, c := range []struct {
		err     error
		outcome Outcome
		state   string
	}{
		{nil, OK, "00000"},
		{pg("ERROR", "40001"), Fail, "40001"},
		{pg("ERROR", "25006"), Fail, "25006"},
		{pg("ERROR", "40003"), Unknown, "40003"},
		{pg("ERROR", "08007"), Unknown, "08007"},
		{pg("FATAL", "40001"), Fail, "40001"},
		{pg("FATAL", "40003"), Unknown, "40003"},
		{pg("FATAL", "57P01"), Unknown, "57P01"},
		{pg("PANIC", "XX000"), Unknown, "XX000"},
		{&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "23505"}, Fail, "23505"},
		{io.ErrUnexpectedEOF, Unknown, "eof"},
		{&net.OpError{Err: syscall.ECONNRESET}, Unknown, "reset"},
		{context.DeadlineExceeded, Unknown, "timeout"},
		{os.ErrDeadlineExceeded, Unknown, "timeout"},
		{errors.New("cannot scan"), Unknown, "client"},
	} {
		if o, state := Classify(c.err); o != c.outcome || state != c.state {
			t.Errorf("%v: %v %s, want %v %s", c.err, o, state, c.outcome, c.state)
		}
	}
}

func TestHostsAreSplit(t *testing.T) {
	t.Parallel()
	s, err := New(Options{DSN: "postgres://u:p@127.0.0.1:6432,127.0.0.1:6442,127.0.0.1:6452/db?sslmode=prefer", Start: 4})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.hosts) != 3 || s.next != 1 || s.timeout != DefaultTimeout {
		t.Fatalf("%d hosts, starting with %d, timeout %v", len(s.hosts), s.next, s.timeout)
	}
	for i, h := range s.hosts {
		if int(h.Port) != 6432+10*i || h.TLSConfig == nil || len(h.Fallbacks) != 1 || h.ConnectTimeout != perHost || h.Password != "p" {
			t.Errorf("host %d: port %d, %d fallbacks, connect timeout %v", i, h.Port, len(h.Fallbacks), h.ConnectTimeout)
		}
	}
	if _, err := New(Options{DSN: "postgres://h:x/"}); err == nil {
		t.Error("a bad URI was accepted")
	}
}

// deaf listens like a stopped server: the kernel accepts the connection, no program answers.
func deaf(t *testing.T) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // nothing depends on it
	ln, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return dir
}

// TestSession finds the one server that answers, and the one after it.
func TestSession(t *testing.T) {
	t.Parallel()
	server, err := pgtest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Remove(); err != nil {
			t.Error(err)
		}
	})
	dsn := fmt.Sprintf("postgres://postgres@/postgres?host=/nonexistent,%s,%s", deaf(t), server.Dir())
	s, err := New(Options{DSN: dsn, Name: "session test", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if o, state, err := s.Do(t.Context(), nil); o != Fail || state != "not-sent" || err == nil {
		t.Errorf("without a connection: %v %s %v", o, state, err)
	}
	start := time.Now()
	if err := s.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < perHost || took > 5*perHost {
		t.Errorf("connected after %v, want %v for the deaf host and little more", took, perHost)
	}
	if s.Host() != server.Dir() || s.Connects() != 1 {
		t.Errorf("connected to %s, %d times", s.Host(), s.Connects())
	}

	query := func(sql string) func(context.Context, *pgx.Conn) error {
		return func(ctx context.Context, conn *pgx.Conn) error { _, err := conn.Exec(ctx, sql); return err }
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if o, _, err := s.Do(cancelled, query("select 1")); o != OK {
		t.Errorf("the caller's end cut an operation short: %v", err)
	}
	if o, state, _ := s.Do(t.Context(), query("select 1/0")); o != Fail || state != "22012" || s.Conn() == nil {
		t.Errorf("division by zero: %v %s, connection kept %t", o, state, s.Conn() != nil)
	}
	if o, state, _ := s.Do(t.Context(), query("set transaction_read_only = on; create table t ()")); o != Fail || state != "25006" || s.Conn() != nil {
		t.Errorf("a read-only server: %v %s, connection kept %t", o, state, s.Conn() != nil)
	}

	one, err := New(Options{DSN: server.DSN(), Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	start = time.Now()
	if o, state, _ := one.Do(t.Context(), query("select pg_sleep(30)")); o != Unknown || state != "timeout" || one.Conn() != nil {
		t.Errorf("an endless query: %v %s, connection kept %t", o, state, one.Conn() != nil)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("giving up took %v", took)
	}
}

func TestConnectGivesUpOnlyWhereWaitingIsVain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	s, err := New(Options{DSN: "postgres://postgres@/postgres?host=/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Connect(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no server: %v, want the caller's deadline", err)
	}
	for code, want := range map[string]bool{"28P01": true, "28000": true, "3D000": true, "42501": true, "57P03": false, "53300": false} {
		if got := hopeless(fmt.Errorf("connect: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: %t, want %t", code, got, want)
		}
	}
}

// TestLostAnswer holds that a statement is in doubt whose server has it and goes away, by whichever protocol it was
// sent: pgx says of some of them that they were never sent.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	defer served.Wait()
	defer func() { _ = l.Close() }()
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 10_000)) // the startup packet
			_, _ = conn.Write([]byte("R\x00\x00\x00\x08\x00\x00\x00\x00Z\x00\x00\x00\x05I"))
			_, _ = conn.Read(make([]byte, 10_000)) // the statement
			_ = conn.Close()
		}
	})
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
		s, err := New(Options{DSN: "postgres://u@" + l.Addr().String() + "/db?sslmode=disable"})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		outcome, state, err := s.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "insert into t values (1)", mode)
			return err
		})
		if outcome != Unknown || err == nil {
			t.Errorf("%v: %v %s, %v", mode, outcome, state, err)
		}
		s.Close()
	}
}
