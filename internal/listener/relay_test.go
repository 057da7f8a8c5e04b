package listener

import (
	"context"
	"crypto/md5"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

func md5Hex(s string) string { sum := md5.Sum([]byte(s)); return hex.EncodeToString(sum[:]) }

func pgxConnect(ctx context.Context, s string) (*pgx.Conn, error) { return pgx.Connect(ctx, s) }

func TestCancel(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.Node = trustAll, 5 })
	conn := g.mustDial(g.rw, "user=postgres")
	if key := conn.PgConn().SecretKey(); key[0]>>4 != 5 {
		t.Errorf("the secret %x does not name node 5", key)
	}
	done := make(chan error, 1)
	const long = "select pg_sleep(30), 'TestCancel'"
	go func() { _, err := conn.Exec(context.Background(), long); done <- err }()
	g.servers["a"].sleeping(t, long)
	began := time.Now()
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; sqlstate(err) != "57014" {
		t.Errorf("cancelled: %v", err)
	}
	if d := time.Since(began); d > 10*time.Second { // 100 ms on a machine of one's own
		t.Errorf("cancel took %v", d)
	}
	value[string](t, conn, "show cluster_name")
	// wrong keys hit nothing and are limited
	for i := range 15 {
		raw, err := net.Dial("tcp", g.rw)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = raw.Write(cancelkey.Packet([8]byte{0, 0, 0, byte(i), 0x50, 1, 2, 3}))
		_, _ = io.ReadAll(raw)
		_ = raw.Close()
	}
	st := g.srv.Stats()
	if st.Cancels != 1 || st.Rejected["wrong cancel"]+st.Rejected["cancel limit"] != 15 {
		t.Errorf("stats %+v", st)
	}
}

func TestForwardedCancel(t *testing.T) {
	var got atomic.Value
	g := newGroup(t, func(c *Config) {
		c.Rules, c.Node = trustAll, 1
		c.ForwardCancel = func(_ context.Context, node uint8, key CancelKey) error { got.Store(fmt.Sprint(node, key)); return nil }
	})
	raw, err := net.Dial("tcp", g.rw)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	_, _ = raw.Write(cancelkey.Packet([8]byte{0, 0, 0, 9, 0x30, 0, 0, 1}))
	_, _ = io.ReadAll(raw)
	if want := fmt.Sprint(3, CancelKey{PID: 9, Secret: 0x30000001}); got.Load() != want {
		t.Errorf("forwarded %v, want %v", got.Load(), want)
	}
}

// counter is a COPY source of n bytes in lines.
type counter struct{ left int64 }

var line = []byte(strings.Repeat("x", 127) + "\n")

func (c *counter) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.EOF
	}
	n := 0
	for n+len(line) <= len(p) && c.left > 0 {
		n += copy(p[n:], line)
		c.left -= int64(len(line))
	}
	return n, nil
}

func TestCopyBothWaysInBoundedMemory(t *testing.T) {
	size := int64(100 << 20)
	if testing.Short() {
		size = 16 << 20
	}
	g := newGroup(t, trusting)
	conn := g.mustDial(g.rw, "user=postgres")
	if _, err := conn.Exec(t.Context(), "create unlogged table big(t text)"); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = conn.Exec(context.Background(), "drop table big") }()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tag, err := conn.PgConn().CopyFrom(t.Context(), &counter{size}, "copy big from stdin")
	if err != nil {
		t.Fatal(err)
	}
	if want := size / int64(len(line)); tag.RowsAffected() != want {
		t.Errorf("%d rows, want %d", tag.RowsAffected(), want)
	}
	var out countingWriter
	if _, err := conn.PgConn().CopyTo(t.Context(), &out, "copy big to stdout"); err != nil {
		t.Fatal(err)
	}
	if int64(out) != size {
		t.Errorf("%d bytes came back", out)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 32<<20 {
		t.Errorf("the heap grew by %d MB", grown>>20)
	}
	// one row of 40 MB is streamed as well
	runtime.ReadMemStats(&before)
	conn2, err := net.Dial("tcp", g.rw)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn2.Close() }()
	_, _ = conn2.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, conn2, 'Z')
	_, _ = conn2.Write(pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "select repeat('y', 40000000)")))
	var f pgwire.Framer
	var rows, total int
	buf := make([]byte, 64<<10)
	for done := false; !done; {
		n, err := conn2.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		total += n
		_ = f.Scan(buf[:n], func(typ byte, _ []byte) { rows += b2i(typ == 'D'); done = done || typ == 'Z' })
	}
	runtime.ReadMemStats(&after)
	if rows != 1 || total < 40_000_000 || after.HeapSys > before.HeapSys+(16<<20) {
		t.Errorf("%d rows, %d bytes, heap %d -> %d MB", rows, total, before.HeapSys>>20, after.HeapSys>>20)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

type countingWriter int64

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}

func readUntil(t *testing.T, r io.Reader, want byte) []byte {
	t.Helper()
	for {
		typ, body, err := pgwire.ReadMessage(r, 1<<20)
		if err != nil {
			t.Fatalf("waiting for %q: %v", want, err)
		}
		if typ == want {
			return body
		}
		if typ == 'E' {
			t.Fatalf("waiting for %q: %s", want, pgwire.ErrorField(body, 'M'))
		}
	}
}

func TestPipelineAndNotifications(t *testing.T) {
	g := newGroup(t, trusting)
	conn := g.mustDial(g.rw, "user=postgres")
	var batch pgx.Batch
	for i := range 500 {
		batch.Queue("select $1::int * 2", i)
	}
	res := conn.SendBatch(t.Context(), &batch)
	for i := range 500 {
		var n int
		if err := res.QueryRow().Scan(&n); err != nil || n != 2*i {
			t.Fatalf("answer %d is %d, %v", i, n, err)
		}
	}
	if err := res.Close(); err != nil {
		t.Fatal(err)
	}
	p := conn.PgConn().StartPipeline(t.Context())
	for range 3 { // an error in each, the session continues
		p.SendQueryParams("select 1/0", nil, nil, nil, nil)
		if err := p.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	errs := 0
	for {
		r, err := p.GetResults()
		if sqlstate(err) == "22012" {
			errs++
			continue
		}
		if _, ok := r.(*pgconn.PipelineSync); ok {
			continue
		}
		if r == nil {
			break
		}
	}
	if err := p.Close(); errs != 3 {
		t.Errorf("%d errors, %v", errs, err)
	}
	waitFor(t, "nothing is owed", func() bool { return g.srv.Sessions()[0].State == "idle" })
	if _, err := conn.Exec(t.Context(), "listen news"); err != nil {
		t.Fatal(err)
	}
	g.servers["a"].sql(t, "notify news, 'hello'")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil || n.Payload != "hello" {
		t.Errorf("notification %v, %v", n, err)
	}
	if _, err := conn.Exec(t.Context(), "begin"); err != nil {
		t.Fatal(err)
	}
	if s := g.srv.Sessions()[0].State; s != "idle in transaction" {
		t.Errorf("state %s", s)
	}
}

// After an extended-protocol COPY the counters are right: the Sync that PostgreSQL ignored is not owed forever.
func TestCopyKeepsCount(t *testing.T) {
	g := newGroup(t, trusting)
	raw, err := net.Dial("tcp", g.rw)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	_, _ = raw.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, raw, 'Z')
	_, _ = raw.Write(pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "create temp table c(t text)")))
	readUntil(t, raw, 'Z')
	var b []byte
	b = pgwire.AppendMessage(b, 'P', append(pgwire.AppendCString(pgwire.AppendCString(nil, ""), "copy c from stdin"), 0, 0))
	b = pgwire.AppendMessage(b, 'B', []byte{0, 0, 0, 0, 0, 0, 0, 0})
	b = pgwire.AppendMessage(b, 'E', []byte{0, 0, 0, 0, 0})
	b = pgwire.AppendMessage(b, 'S', nil)
	_, _ = raw.Write(b)
	readUntil(t, raw, 'G')
	b = pgwire.AppendMessage(nil, 'd', []byte("row\n"))
	b = pgwire.AppendMessage(b, 'c', nil)
	b = pgwire.AppendMessage(b, 'S', nil)
	_, _ = raw.Write(b)
	readUntil(t, raw, 'Z')
	waitFor(t, "nothing is owed", func() bool { return g.srv.Sessions()[0].State == "idle" })
}

func TestGateHoldsBytes(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.GateHold = trustAll, 700*time.Millisecond })
	g.gate.Store(openGate())
	conn := g.mustDial(g.rw, "user=postgres")
	remote := g.mustDial(g.ro, "user=postgres") // not produced here: no gate of ours
	g.gate.Store(closedGate())
	done := make(chan error, 1)
	go func() { _, err := conn.Exec(context.Background(), "select 1"); done <- err }()
	waitFor(t, "the answer is held", func() bool { return g.srv.Stats().Gated == 1 })
	value[string](t, remote, "show cluster_name")
	select {
	case err := <-done:
		t.Fatalf("an answer passed an expired gate: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	g.gate.Store(openGate())
	if err := <-done; err != nil {
		t.Error(err)
	}
	if st := g.srv.Stats(); st.GatedTime < 40*time.Millisecond {
		t.Errorf("held for %v", st.GatedTime)
	}
	// the gate does not open again: the bytes are discarded and the outcome is called unknown
	g.gate.Store(closedGate())
	if _, err := conn.Exec(t.Context(), "select 1"); sqlstate(err) != "08007" {
		t.Errorf("gate stayed closed: %v", err)
	}
	// the role is lost while an answer is held: it is never passed, although a secondary has no gate
	g.gate.Store(openGate())
	conn = g.mustDial(g.rw, "user=postgres")
	g.gate.Store(closedGate())
	go func() { _, err := conn.Exec(context.Background(), "select 1"); done <- err }()
	waitFor(t, "the answer is held", func() bool { return g.srv.Stats().Gated == 3 })
	g.gate.Store(0)
	if err := <-done; sqlstate(err) != "08007" {
		t.Errorf("demoted: %v", err)
	}
}

func TestBackendLost(t *testing.T) {
	g := newGroup(t, trusting)
	conn := g.mustDial(g.rw, "user=postgres")
	pid := conn.PgConn().PID()
	g.servers["a"].sql(t, fmt.Sprintf("select pg_terminate_backend(%d)", pid))
	if _, err := conn.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" || !strings.Contains(err.Error(), "administrator") {
		t.Errorf("PostgreSQL's own words: %v", err)
	}
}

func TestShutdownIsPolite(t *testing.T) {
	g := newGroup(t, trusting)
	idle := g.mustDial(g.rw, "user=postgres")
	busy := g.mustDial(g.rw, "user=postgres")
	done := make(chan error, 1)
	go func() { _, err := busy.Exec(context.Background(), "select pg_sleep(0.5)"); done <- err }()
	waitFor(t, "the query runs", func() bool { return g.srv.Sessions()[1].State == "active" })
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	g.srv.Shutdown(ctx)
	if ctx.Err() != nil {
		t.Error("it went on after the last session had ended")
	}
	if err := <-done; err != nil {
		t.Errorf("the running query: %v", err)
	}
	if _, err := idle.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" {
		t.Errorf("idle: %v", err)
	}
	if n := len(g.srv.Sessions()); n != 0 {
		t.Errorf("%d sessions left", n)
	}
}

func TestPanicStaysInItsSession(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules = trustAll })
	other := g.mustDial(g.rw, "user=postgres")
	verify := g.srv.cfg.Backend
	g.srv.cfg.Backend = func(ctx context.Context, id ag.ReplicaID, h BackendHello) (net.Conn, error) {
		if h.User == "bomb" {
			panic("boom")
		}
		return verify(ctx, id, h)
	}
	if _, err := g.dial(g.rw, "user=bomb"); err == nil {
		t.Error("the bomb got a session")
	}
	value[string](t, other, "show cluster_name")
	if n := g.srv.Stats().Rejected["panic"]; n != 1 {
		t.Errorf("%d panics counted", n)
	}
}

// A panic while answers are relayed, by an event loop or by goroutines, ends that session and no other.
func TestPanicInARelay(t *testing.T) {
	cert, _ := certificate(t)
	var bomb atomic.Bool
	g := newGroup(t, func(c *Config) {
		c.Rules, c.Certificate = trustAll, func() *tls.Certificate { return cert }
		c.NoKernelPath = true // only the relay asks the gate
		c.Gate = func() time.Duration {
			if bomb.CompareAndSwap(true, false) {
				panic("boom")
			}
			return boottime.Now() + time.Hour
		}
	})
	other := g.mustDial(g.rw, "user=postgres sslmode=disable")
	for _, way := range []string{"sslmode=disable", "sslmode=require"} {
		conn := g.mustDial(g.rw, "user=postgres "+way)
		bomb.Store(true)
		if _, err := conn.Exec(t.Context(), "select 1"); err == nil || bomb.Load() {
			t.Errorf("%s: nothing happened: %v", way, err)
		}
		waitFor(t, "the session is gone", func() bool { return len(g.srv.Sessions()) == 1 })
		value[string](t, other, "show cluster_name")
		g.mustDial(g.rw, "user=postgres "+way).Close(t.Context())
	}
}

// Background work may panic, too: opening backends ahead.
func TestPanicBesideSessions(t *testing.T) {
	var bomb atomic.Bool
	g := poolGroup(t, reusing(), func(c *Config) {
		backend := c.Backend
		c.Limits.PoolAhead = 1
		c.Backend = func(ctx context.Context, id ag.ReplicaID, h BackendHello) (net.Conn, error) {
			if bomb.Load() {
				panic("boom")
			}
			return backend(ctx, id, h)
		}
	})
	g.role("warm", "login")
	other := g.mustDial(g.rw, "user=postgres")
	first := g.mustDial(g.rw, "user=warm")
	bomb.Store(true)
	second, err := g.dial(g.rw, "user=warm") // takes what was opened ahead, or panics itself; the next is opened ahead then
	waitFor(t, "it panicked", func() bool { return g.srv.Stats().Rejected["panic"] > 0 })
	bomb.Store(false)
	value[string](t, other, "show cluster_name")
	value[string](t, first, "show cluster_name")
	if err == nil {
		value[string](t, second, "show cluster_name")
	}
}
