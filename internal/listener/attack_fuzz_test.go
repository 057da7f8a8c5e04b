package listener

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// script is a client that has sent all it will ever send.
type script struct {
	said io.Reader
	mu   sync.Mutex
	out  bytes.Buffer // guarded by mu
}

func (s *script) Read(p []byte) (int, error) { return s.said.Read(p) }
func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}
func (s *script) Close() error        { return nil }
func (s *script) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5432} }

func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 40000} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// attacks are inputs that broke other programs that speak this protocol.
func attacks() [][]byte {
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	start := func(pairs string) []byte { return packet(pgwire.Protocol3, append([]byte(pairs), 0)...) }
	alice := start("user\x00alice\x00")
	ssl, gss := packet(pgwire.SSLRequest), packet(pgwire.GSSENCRequest)
	initial := func(length uint32, response string) []byte {
		return pgwire.AppendMessage(nil, 'p', append(binary.BigEndian.AppendUint32([]byte("SCRAM-SHA-256\x00"), length), response...))
	}
	const first = "n,,n=,r=abcdef"
	return [][]byte{
		join(ssl, alice), // CVE-2021-3935, 2021-23214: said in clear, used after the handshake
		join(ssl, []byte{pgwire.FirstTLSByte, 3, 1, 0, 5, 1, 2, 3, 4, 5}),
		join(gss, ssl, alice), join(gss, gss, gss), join(ssl, ssl),
		start("user\x00alice\x00search_path\x00evil\x00"),                  // CVE-2025-12819
		start("user\x00alice\x00synchronous_commit\x00off\x00"),            // a promise taken back by its client
		start("user\x00alice\x00options\x00-c synchronous_commit=off\x00"), // the same
		start("user\x00alice\x00options\x00-c=\x00"),                       // CVE-2026-107349: spun for ever
		start("user\x00alice\x00replication\x00t\x00"),
		start("user\x00alice\x00user\x00postgres\x00"),
		join(alice, start("user\x00postgres\x00")), // CVE-2026-107350: a second startup during SCRAM
		join(alice, initial(uint32(len(first)), first), start("user\x00postgres\x00")),
		join(alice, initial(1<<31, first)), join(alice, initial(1<<32-1, first)), join(alice, initial(3, first)), // CVE-2026-6664
		join(alice, initial(uint32(len(first)), first), pgwire.AppendMessage(nil, 'p', []byte("c=biws,r=abcdef,p=AAAA"))),
		{0x80, 0, 0, 8, 0, 3, 0, 0},
		{0xff, 0xff, 0xff, 0xff, 0, 3, 0, 0}, // CVE-2026-107348: a length over 2^31
		{0, 0, 0, 0},
		{0, 0, 0, 3},
		{0, 0, 0x27, 0x11, 0, 3, 0, 0},
		join(alice, []byte{'p', 0x7f, 0xff, 0xff, 0xff}), // the declared length was allocated
		join(alice, []byte{'p', 0, 1, 0, 4}),             // a length that sixteen bits cut to four
		packet(pgwire.CancelRequest), packet(pgwire.CancelRequest, make([]byte, 8)...), packet(pgwire.CancelRequest, make([]byte, 260)...),
		packet(pgwire.CancelRequest, append([]byte{0, 0, 0, 1, 0, 0, 0, 2}, make([]byte, cancelkey.LongLength)...)...),
		packet(pgwire.Protocol3|9999, []byte("user\x00alice\x00_pq_.fancy\x001\x00\x00")...),
		packet(pgwire.Protocol3, []byte("user\x00u\x00\x00database\x00d\x00\x00")...),
		[]byte("GET / HTTP/1.1\r\n\r\n"),
	}
}

// FuzzConversation has a client send anything. It is never let in, the listener ends the conversation, and what it
// sends follows the protocol.
func FuzzConversation(f *testing.F) {
	for _, a := range attacks() {
		f.Add(a, false)
		f.Add(a, true)
	}
	cert, _ := certificate(f)
	var secured bool
	routes := fullRoutes(1)
	s, err := New(Config{
		Rules: hba.DefaultRules(false), Logger: slog.New(slog.DiscardHandler), Limits: Limits{FailureDelay: 1},
		Certificate: func() *tls.Certificate {
			if secured {
				return cert
			}
			return nil
		},
		Routes:  func() *ag.Routes { return routes },
		Backend: func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) { return nil, errors.New("none") },
		Verifier: func(_ context.Context, _ ag.ReplicaID, user string) (Role, error) {
			return Role{Found: user == "alice", CanLogin: true, Password: scramSecret("secret", 1)}, nil
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Shutdown(context.Background()) })
	f.Fuzz(func(t *testing.T, said []byte, encrypted bool) {
		secured = encrypted
		conn := &script{said: bytes.NewReader(said)}
		s.logins.Accept(conn, false)
		checkAnswers(t, conn.out.Bytes())
		if st := s.Stats(); st.PreAuth != 0 || st.Open != 0 || st.Rejected["panic"] != 0 {
			t.Fatalf("left behind: %+v", st)
		}
	})
}

// checkAnswers reads what a client without a password may receive.
func checkAnswers(t *testing.T, b []byte) {
	t.Helper()
	for len(b) > 0 && b[0] == 'N' && (len(b) == 1 || b[1] != 0) { // the answer to a request for encryption; a notice would have a length
		b = b[1:]
	}
	if len(b) > 0 && b[0] == 'S' || len(b) > 0 && b[0] == 0x15 {
		return // TLS from here on, or its alert
	}
	for len(b) > 0 {
		if len(b) < 5 || int(binary.BigEndian.Uint32(b[1:])) > len(b)-1 {
			t.Fatalf("no message: %q", b)
		}
		end := 1 + int(binary.BigEndian.Uint32(b[1:]))
		switch body := b[5:end]; b[0] {
		case 'R':
			if binary.BigEndian.Uint32(body) == auth.OK {
				t.Fatal("it was let in")
			}
		case 'E':
			if len(pgwire.ErrorField(body, 'C')) != 5 || pgwire.ErrorField(body, 'M') == "" {
				t.Fatalf("an error without state or words: %q", body)
			}
		case 'v':
		default:
			t.Fatalf("message %q", b[0])
		}
		b = b[end:]
	}
}
