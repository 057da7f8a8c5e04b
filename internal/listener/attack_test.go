package listener

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/scram"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// rawDial connects without a client library.
func (g *group) rawDial(address string) net.Conn {
	g.t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		g.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	g.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// fate returns how the listener ended a connection: the SQLSTATE of its error, "closed", or "open" if it answered
// otherwise.
func fate(t *testing.T, conn net.Conn) string {
	t.Helper()
	typ, body, err := pgwire.ReadMessage(conn, 1<<20)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.Fatal("neither answered nor closed")
	case err != nil:
		return "closed"
	case typ == 'E':
		return pgwire.ErrorField(body, 'C')
	}
	return "open"
}

func packet(code uint32, rest ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(rest)))
	return append(binary.BigEndian.AppendUint32(b, code), rest...)
}

func TestAttacksBeforeLogin(t *testing.T) {
	cert, _ := certificate(t)
	g := newGroup(t, func(c *Config) { c.Certificate = func() *tls.Certificate { return cert } })
	ssl, gss := packet(pgwire.SSLRequest), packet(pgwire.GSSENCRequest)
	cases := []struct {
		name string
		send []byte
		want string
	}{
		{"length zero", []byte{0, 0, 0, 0}, "closed"},
		{"length seven", []byte{0, 0, 0, 7, 0, 3, 0}, "closed"},
		{"length over the limit", []byte{0, 0, 0x27, 0x11, 0, 3, 0, 0}, "closed"},
		{"length over 2^31", []byte{0x80, 0, 0, 8, 0, 3, 0, 0}, "closed"},
		{"length all ones", []byte{0xff, 0xff, 0xff, 0xff, 0, 3, 0, 0}, "closed"},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), "closed"},
		{"NUL in the middle", packet(pgwire.Protocol3, []byte("user\x00u\x00\x00database\x00d\x00\x00")...), "08P01"},
		{"no user", packet(pgwire.Protocol3, 0), "28000"},
		{"protocol 4", packet(4<<16, []byte("user\x00u\x00\x00")...), "0A000"},
		{"empty option name", packet(pgwire.Protocol3, []byte("user\x00u\x00options\x00-c=\x00\x00")...), "42601"},
		{"short cancel", packet(pgwire.CancelRequest), "closed"},
		{"cancel with a key of 256 bytes", packet(pgwire.CancelRequest, make([]byte, 260)...), "closed"},
		{"SSLRequest with bytes behind it", append(ssl[:8:8], packet(pgwire.Protocol3, []byte("user\x00postgres\x00\x00")...)...), "08P01"},
		{"TLS record that is none", []byte{pgwire.FirstTLSByte, 3, 1, 0, 5, 1, 2, 3, 4, 5}, "closed"},
		{"long SSLRequest", packet(pgwire.SSLRequest, 0, 0, 0, 0), "0A000"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			conn := g.rawDial(g.rw)
			_, _ = conn.Write(c.send)
			if c.want == "closed" {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			if got := fate(t, conn); got != c.want && !(c.want == "closed" && strings.HasPrefix(c.name, "TLS")) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	t.Run("GSSENCRequest again and again", func(t *testing.T) {
		conn := g.rawDial(g.rw)
		_, _ = conn.Write(append(gss[:8:8], gss...))
		var b [1]byte
		if _, err := io.ReadFull(conn, b[:]); err != nil || b[0] != 'N' {
			t.Fatalf("answered %q, %v", b, err)
		}
		if got := fate(t, conn); got != "0A000" {
			t.Error(got)
		}
	})
	waitFor(t, "nothing is left behind", func() bool { st := g.srv.Stats(); return st.PreAuth == 0 && st.Open == 0 })
}

func TestSSLRequestWithoutCertificate(t *testing.T) {
	g := newGroup(t, nil)
	conn := g.rawDial(g.rw)
	_, _ = conn.Write(append(packet(pgwire.SSLRequest), packet(pgwire.SSLRequest)...))
	var b [1]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil || b[0] != 'N' {
		t.Fatalf("answered %q, %v", b, err)
	}
	if got := fate(t, conn); got != "0A000" {
		t.Errorf("second SSLRequest: %s", got)
	}
}

// beginSCRAM logs in as alice up to AuthenticationSASL.
func (g *group) beginSCRAM() net.Conn {
	g.t.Helper()
	conn := g.rawDial(g.rw)
	_, _ = conn.Write((&startup.Message{User: "alice", Database: "postgres"}).Packet())
	if body := readUntil(g.t, conn, 'R'); binary.BigEndian.Uint32(body) != auth.SASL {
		g.t.Fatalf("request %v", body)
	}
	return conn
}

func TestAttacksDuringLogin(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Limits.FailureDelay = time.Millisecond })
	g.role("alice", "login password 'secret'")
	initial := func(mechanism, message string) []byte {
		b := pgwire.AppendCString(nil, mechanism)
		b = binary.BigEndian.AppendUint32(b, uint32(len(message)))
		return pgwire.AppendMessage(nil, 'p', append(b, message...))
	}
	cases := []struct {
		name string
		send []byte
		want string
	}{
		{"second StartupMessage", (&startup.Message{User: "postgres", Database: "postgres"}).Packet(), "08P01"},
		{"a query", pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "select 1")), "08P01"},
		{"unknown mechanism", initial("PLAIN", "x"), "08P01"},
		{"PLUS without TLS", initial(scram.MechanismPlus, "p=tls-server-end-point,,n=,r=a"), "08P01"},
		{"length lies", []byte{'p', 0x7f, 0xff, 0xff, 0xff}, "08P01"},
		{"length of 3", []byte{'p', 0, 0, 0, 3}, "08P01"},
		{"inner length lies", pgwire.AppendMessage(nil, 'p', append(pgwire.AppendCString(nil, scram.Mechanism), 0xff, 0xff, 0xff, 0xff, 'n')), "08P01"},
		{"empty", pgwire.AppendMessage(nil, 'p', nil), "08P01"},
		{"no message and one", pgwire.AppendMessage(nil, 'p', append(pgwire.AppendCString(nil, scram.Mechanism), 0xff, 0xff, 0xff, 0xff)), "open"},
		{"a length below -1", pgwire.AppendMessage(nil, 'p', append(pgwire.AppendCString(nil, scram.Mechanism), 0xff, 0xff, 0xff, 0xfe)), "08P01"},
		{"no nonce", initial(scram.Mechanism, "n,,n=,r="), "08P01"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			conn := g.beginSCRAM()
			_, _ = conn.Write(c.send)
			if got := fate(t, conn); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestLengthLiesInASession(t *testing.T) {
	g := newGroup(t, trusting)
	for _, lie := range [][]byte{{'Q', 0, 0, 0, 3}, {'Q', 0xff, 0xff, 0xff, 0xff}, {'P', 0x80, 0, 0, 0}} {
		conn := g.rawDial(g.rw)
		_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
		readUntil(t, conn, 'Z')
		_, _ = conn.Write(lie)
		if got := fate(t, conn); got != "08P01" {
			t.Errorf("% x: %s", lie, got)
		}
	}
	waitFor(t, "sessions are gone", func() bool { return g.srv.Stats().Open == 0 })
}

func TestPreAuthTimeIsTotal(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Limits.PreAuthTime = 300 * time.Millisecond })
	conn := g.rawDial(g.rw)
	began := time.Now()
	for i, b := range (&startup.Message{User: "alice", Database: "postgres"}).Packet() {
		time.Sleep(20 * time.Millisecond) // never idle, never done
		if _, err := conn.Write([]byte{b}); err != nil {
			break
		}
		if i > 100 {
			t.Fatal("still accepted")
		}
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("closed after %v", d)
	}
	waitFor(t, "counted", func() bool { return g.srv.Stats().Rejected["timeout"] == 1 })
}

func TestLimits(t *testing.T) {
	g := newGroup(t, func(c *Config) {
		c.Rules, c.Limits.PreAuth, c.Limits.Connections, c.Limits.PerAddress = trustAll, 3, 4, 2
	})
	a := g.mustDial(g.rw, "user=postgres")
	g.mustDial(g.rw, "user=postgres")
	if _, err := g.dial(g.rw, "user=postgres"); sqlstate(err) != "53300" {
		t.Errorf("third from an address: %v", err)
	}
	_ = a.Close(t.Context())
	waitFor(t, "the place is free", func() bool { return len(g.srv.Sessions()) == 1 })
	g.mustDial(g.rw, "user=postgres")
	first := g.rawDial(g.rw)
	waitFor(t, "it says nothing", func() bool { return g.srv.Stats().PreAuth == 1 })
	for range 3 {
		g.rawDial(g.rw)
	}
	if got := fate(t, first); got != "53300" {
		t.Errorf("who kept silent longest: %s", got)
	}
	if st := g.srv.Stats(); st.Rejected["pre-auth limit"] != 1 || st.Refused["53300"] < 1 || st.PreAuth != 3 {
		t.Errorf("%d rejected, %v told why, %d left", st.Rejected["pre-auth limit"], st.Refused, st.PreAuth)
	}
}

// Thousands of handshakes that stop at any point stop no other login, of the same address or another.
func TestHalfOpenHandshakes(t *testing.T) {
	const flood = 5000
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if l.Cur = l.Max; l.Max < flood+1000 {
		l.Cur, l.Max = flood+1000, flood+1000
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		t.Skipf("SKIPPED: not that many open files are allowed: %v", err)
	}
	cert, _ := certificate(t)
	g := newGroup(t, func(c *Config) { c.Certificate = func() *tls.Certificate { return cert } })
	g.role("alice", "login password 'secret'")
	for i := range flood {
		conn := g.rawDial(g.rw)
		switch i % 50 {
		case 1:
			_, _ = conn.Write(packet(pgwire.SSLRequest)[:5])
		case 2:
			_, _ = conn.Write(packet(pgwire.SSLRequest))
		case 3:
			_, _ = conn.Write([]byte{pgwire.FirstTLSByte, 3, 1, 1, 0, 1})
		case 4: // these cost the server a question
			_, _ = conn.Write((&startup.Message{User: "alice", Database: "postgres"}).Packet())
		}
	}
	for _, rest := range []string{"sslmode=disable", "sslmode=require"} {
		g.mustDial(g.rw, "user=alice password=secret "+rest)
	}
	if st := g.srv.Stats(); st.PreAuth > 200 || st.Rejected["pre-auth limit"] < flood/2 {
		t.Errorf("%d wait at once, %d had to leave", st.PreAuth, st.Rejected["pre-auth limit"])
	}
}

func TestNegotiateProtocolVersion(t *testing.T) {
	g := newGroup(t, trusting)
	conn := g.rawDial(g.rw)
	_, _ = conn.Write(packet(pgwire.Protocol3|9999, []byte("user\x00postgres\x00_pq_.fancy\x001\x00\x00")...))
	body := readUntil(t, conn, 'v')
	if binary.BigEndian.Uint32(body) != pgwire.Protocol3|2 || string(body[8:]) != "_pq_.fancy\x00" {
		t.Errorf("answered %q", body)
	}
	if key := readUntil(t, conn, 'K'); len(key) != 36 {
		t.Errorf("key of %d bytes", len(key))
	}
	readUntil(t, conn, 'Z')
	conn = g.rawDial(g.rw)
	_, _ = conn.Write(packet(pgwire.Protocol3, []byte("user\x00postgres\x00_pq_.fancy\x001\x00\x00")...))
	if body := readUntil(t, conn, 'v'); binary.BigEndian.Uint32(body) != pgwire.Protocol3 {
		t.Errorf("a client of 3.0 was answered %q", body)
	}
	if key := readUntil(t, conn, 'K'); len(key) != 8 {
		t.Errorf("key of %d bytes", len(key))
	}
}

// Protocol 3.1 is the same as 3.0 and was never released; PostgreSQL 18 speaks it with any client that requests it.
func TestProtocol31(t *testing.T) {
	g := newGroup(t, trusting)
	conn := g.rawDial(g.rw)
	_, _ = conn.Write(packet(pgwire.Protocol3|1, []byte("user\x00postgres\x00\x00")...))
	var said []byte
	for {
		typ, body, err := pgwire.ReadMessage(conn, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		if typ == 'K' && len(body) != 8 {
			t.Errorf("key of %d bytes", len(body))
		}
		if said = append(said, typ); typ == 'Z' {
			break
		}
	}
	if bytes.ContainsAny(said, "vE") || !bytes.Contains(said, []byte("K")) {
		t.Errorf("it was answered %q", said)
	}
}

// After a request for encryption the client's startup packet follows, encrypted or not. PostgreSQL takes a second
// request of the same kind for a startup packet of an unknown version.
func TestRequestsForEncryption(t *testing.T) {
	cert, pool := certificate(t)
	g := newGroup(t, func(c *Config) { c.Rules, c.Certificate = trustAll, func() *tls.Certificate { return cert } })
	settings := &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: []string{"postgresql"}}
	ssl, gss, start := packet(pgwire.SSLRequest), packet(pgwire.GSSENCRequest), (&startup.Message{User: "postgres", Database: "postgres"}).Packet()
	answer := func(conn net.Conn, request []byte, want byte) {
		t.Helper()
		var b [1]byte
		_, _ = conn.Write(request)
		if _, err := io.ReadFull(conn, b[:]); err != nil || b[0] != want {
			t.Fatalf("answered %q, %v, want %q", b, err, want)
		}
	}
	upgrade := func(gssFirst bool) net.Conn {
		t.Helper()
		conn := g.rawDial(g.rw)
		if gssFirst {
			answer(conn, gss, 'N')
		}
		answer(conn, ssl, 'S')
		return tls.Client(conn, settings)
	}
	for name, c := range map[string]struct {
		conn func() net.Conn
		send []byte
		want string
	}{
		"GSSENC, SSL, startup":   {func() net.Conn { return upgrade(true) }, start, "open"},
		"SSL, SSL inside":        {func() net.Conn { return upgrade(false) }, ssl, "0A000"},
		"SSL, GSSENC inside":     {func() net.Conn { c := upgrade(false); answer(c, gss, 'N'); return c }, start, "open"},
		"direct, SSL inside":     {func() net.Conn { return tls.Client(g.rawDial(g.rw), settings) }, ssl, "0A000"},
		"GSSENC, startup":        {func() net.Conn { c := g.rawDial(g.rw); answer(c, gss, 'N'); return c }, start, "open"},
		"SSL, TLS inside of TLS": {func() net.Conn { return upgrade(false) }, []byte{pgwire.FirstTLSByte, 3, 1, 0, 5, 1, 2, 3, 4, 5}, "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := c.conn()
			_, _ = conn.Write(c.send)
			if got := fate(t, conn); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A client of protocol 3.2 gets a key of 32 bytes, and only that whole key cancels. A key that no node minted never
// leaves this one.
func TestLongCancelKeys(t *testing.T) {
	forwarded := make(chan CancelKey, 10)
	g := newGroup(t, func(c *Config) {
		c.Rules, c.Node = trustAll, 3
		c.ForwardCancel = func(_ context.Context, _ uint8, k CancelKey) error { forwarded <- k; return nil }
	})
	conn := g.rawDial(g.rw)
	_, _ = conn.Write(packet(pgwire.Protocol3|2, []byte("user\x00postgres\x00\x00")...))
	key := readUntil(t, conn, 'K') // no NegotiateProtocolVersion: 3.2 it is
	readUntil(t, conn, 'Z')
	if len(key) != 36 {
		t.Fatalf("key of %d bytes", len(key))
	}
	_, _ = conn.Write(pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, "select pg_sleep(60)")))
	watch := g.mustDial(g.rw, "user=postgres")
	waitFor(t, "the query runs", func() bool {
		return value[bool](t, watch, "select exists(select 1 from pg_stat_activity where state = 'active' and query = 'select pg_sleep(60)')")
	})
	cancel := func(key []byte) {
		c := g.rawDial(g.rw)
		_, _ = c.Write(packet(pgwire.CancelRequest, key...))
		_, _ = io.Copy(io.Discard, c)
	}
	forged := bytes.Clone(key)
	forged[35] ^= 1
	cancel(forged)
	cancel(key[:8])                                      // as a client of 3.0 would
	cancel(append(key[:36:36], make([]byte, 256-32)...)) // as long as the protocol allows
	cancel(append([]byte{0, 0, 0, 9}, forged[4:]...))    // of another session
	if st := g.srv.Stats(); st.Cancels != 0 || st.Rejected["wrong cancel"] != 4 {
		t.Errorf("wrong keys: %d delivered, %d rejected", st.Cancels, st.Rejected["wrong cancel"])
	}
	other, _ := New(Config{Node: 5, KeySecret: g.srv.cfg.KeySecret, Routes: g.routes.Load, Backend: g.backend, Verifier: g.verifier})
	foreign := other.mintKey(7, true)
	cancel(append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, foreign.PID), foreign.Secret), foreign.Long[:]...))
	if got := <-forwarded; got != foreign {
		t.Errorf("forwarded %v, want %v", got, foreign)
	}
	if len(forwarded) > 0 {
		t.Error("a forged key was forwarded")
	}
	cancel(key)
	readUntilError(t, conn, "57014")
}

func readUntilError(t *testing.T, r io.Reader, want string) {
	t.Helper()
	for {
		typ, body, err := pgwire.ReadMessage(r, 1<<20)
		if err != nil {
			t.Fatalf("waiting for %s: %v", want, err)
		}
		if typ == 'E' {
			if got := pgwire.ErrorField(body, 'C'); got != want {
				t.Errorf("error %s, want %s", got, want)
			}
			return
		}
	}
}

// ServeBackend accepts the packet of a listener and nothing else.
func TestServeBackendIsStrict(t *testing.T) {
	g := newGroup(t, trusting)
	ok := "user\x00postgres\x00database\x00postgres\x00coterie.intent\x00READ_WRITE\x00"
	for name, c := range map[string]struct{ params, want string }{
		"as a listener":        {ok, "open"},
		"physical replication": {ok + "replication\x00true\x00", "open"},
		"another spelling":     {ok + "replication\x00yes\x00", "08P01"},
		"options":              {ok + "options\x00-c a=b\x00", "08P01"},
		"duplicate":            {ok + "User\x00other\x00", "08P01"},
		"no intent":            {"user\x00postgres\x00", "08P01"},
		"not a listener":       {"user\x00postgres\x00coterie.intent\x00maybe\x00", "08P01"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := throughNode(t.Context(), t, g.srv, g.servers["a"].dir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
			_, _ = conn.Write(packet(pgwire.Protocol3, []byte(c.params+"\x00")...))
			if got := fate(t, conn); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A client that guesses passwords waits long before each guess, and keeps no other client out meanwhile: neither one of
// another address or name, nor one that needs its place.
func TestGuessersKeepNobodyOut(t *testing.T) {
	const guessers = 3
	g := newGroup(t, func(c *Config) { c.Limits.PreAuth, c.Limits.FailureDelay = guessers+2, time.Second })
	g.role("alice", "login password 'secret'")
	g.role("bob", "login password 'secret'")
	if _, err := g.dial(g.rw, "user=alice password=wrong"); sqlstate(err) != "28P01" {
		t.Errorf("a wrong password: %v", err)
	}
	var wg sync.WaitGroup
	for range guessers {
		wg.Go(func() {
			if _, err := g.dial(g.rw, "user=alice password=wrong"); sqlstate(err) != "28P01" && sqlstate(err) != "53300" {
				t.Errorf("a wrong password: %v", err)
			}
		})
	}
	g.mustDial(g.rw, "user=bob password=secret")
	_, err := g.beginFrom(t, flooder, "alice")
	if err != nil {
		t.Errorf("another address: %v", err)
	}
	wg.Wait()
}

// The limit on wrong cancel requests counts only those without a session: 20 for sessions of another node all arrive.
func TestForwardedCancelsAreNotWrong(t *testing.T) {
	var hits atomic.Bool
	var asked atomic.Int64
	hits.Store(true)
	g := newGroup(t, func(c *Config) {
		c.Rules, c.Node = trustAll, 1
		c.ForwardCancel = func(context.Context, uint8, CancelKey) error {
			asked.Add(1)
			if hits.Load() {
				return nil
			}
			return errors.New("nobody knows it")
		}
	})
	cancel := func(n int) {
		for range n {
			c := g.rawDial(g.rw)
			_, _ = c.Write(cancelkey.Packet([8]byte{0, 0, 0, 9, 0x10, 0, 0, 1})) // the number is this node's: it was another's when the key was made
			_, _ = io.ReadAll(c)
			_ = c.Close()
		}
	}
	if cancel(20); asked.Load() != 20 {
		t.Errorf("%d of 20 were forwarded", asked.Load())
	}
	hits.Store(false)
	cancel(40)
	if st := g.srv.Stats().Rejected; st["wrong cancel"]+st["cancel limit"] != 40 {
		t.Errorf("%v of 40 that hit nothing were counted", st)
	}
}

// A session's long key is valid after the secret that it was made with has changed.
func TestCancelKeysOutliveTheSecret(t *testing.T) {
	secret := []byte("before")
	s, err := New(Config{
		KeySecret: func() []byte { return secret }, Routes: func() *ag.Routes { return nil },
		Backend:  func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) { return nil, errors.New("none") },
		Verifier: func(context.Context, ag.ReplicaID, string) (Role, error) { return Role{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(t.Context())
	mine, other := s.mintKey(7, true), s.mintKey(8, true)
	s.keys[mine] = nil
	secret = []byte("after")
	for key, want := range map[CancelKey]bool{mine: true, other: false} {
		body := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, key.PID), key.Secret)
		if _, ok := s.cancelKeys().Read(append(body, key.Long[:]...), s.isOpen); ok != want {
			t.Errorf("process %d: known %t, want %t", key.PID, ok, want)
		}
	}
}
