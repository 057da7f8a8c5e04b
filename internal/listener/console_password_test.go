package listener

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/guessing"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/routing"
)

// passwordServer returns a listener that serves nothing and knows some roles of the console.
func passwordServer(t *testing.T, rules string) *Server {
	t.Helper()
	parsed, err := hba.Parse(strings.NewReader(rules))
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]Role{
		"vera":    {Found: true, CanLogin: true, Password: scramSecret("right", 4096), MemberOf: []string{"coterie_viewer"}},
		"umlaut":  {Found: true, CanLogin: true, Password: scramSecret("\u00c5", 4096)},
		"nologin": {Found: true, Password: scramSecret("right", 4096)},
		"old":     {Found: true, CanLogin: true, Password: scramSecret("right", 4096), ValidUntil: time.Unix(1, 0)},
		"weak":    {Found: true, CanLogin: true, Password: "md5" + strings.Repeat("0", 32)},
		"none":    {Found: true, CanLogin: true},
	}
	s, err := New(Config{
		ReadWrite: "127.0.0.1:0", Rules: parsed, Logger: slog.New(slog.DiscardHandler), Routes: func() *ag.Routes { return nil }, Changed: func() <-chan struct{} { return nil },
		Backend: func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) {
			return nil, errors.New("no backend")
		},
		Verifier: func(context.Context, ag.ReplicaID, string) (Role, error) { return Role{}, nil },
		ConsoleRole: func(_ context.Context, user string) (Role, error) {
			if user == "lost" {
				return Role{}, errors.New("no replica answers")
			}
			return roles[user], nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func from(address string) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address + ":4711"))
}

// TestCheckPassword holds that a password over TLS lets in whom a login to the console would let in, and nobody else.
func TestCheckPassword(t *testing.T) {
	t.Parallel()
	s := passwordServer(t, "hostssl coterie barred all reject\nhostssl coterie certified all scram-sha-256 clientcert=verify-full\nhostssl other all all scram-sha-256\nhostssl coterie trusted all trust\nhostssl coterie all 127.0.0.0/8 scram-sha-256\nhostnossl all all all trust\n")
	for i, tt := range []struct{ user, password, at, want string }{
		{"vera", "right", "127.0.0.1", ""},
		{"umlaut", "A\u030a", "127.0.0.1", ""}, // the same letter in another form
		{"vera", "wrong", "127.0.0.1", pgwire.StateInvalidPassword},
		{"vera", "", "127.0.0.1", pgwire.StateInvalidPassword},
		{"vera", "right", "10.0.0.1", pgwire.StateInvalidPassword},
		{"nobody", "right", "127.0.0.1", pgwire.StateInvalidPassword},
		{"nologin", "right", "127.0.0.1", pgwire.StateInvalidPassword},
		{"old", "right", "127.0.0.1", pgwire.StateInvalidPassword},
		{"weak", "right", "127.0.0.1", pgwire.StateInvalidPassword},
		{"none", "", "127.0.0.1", pgwire.StateInvalidPassword},
		{"barred", "right", "127.0.0.1", pgwire.StateInvalidPassword},
		{"certified", "right", "127.0.0.1", pgwire.StateInvalidPassword},
		{"trusted", "", "127.0.0.1", pgwire.StateInvalidPassword},
		{"lost", "right", "127.0.0.1", pgwire.StateCannotConnect},
	} {
		_, err := s.CheckPassword(t.Context(), PasswordLogin{User: tt.user, Password: tt.password, Client: from(tt.at)})
		state := ""
		if bad, ok := pgwire.AsError(err); ok {
			state = bad.Code
		}
		if state != tt.want {
			t.Errorf("%d: %s with %q from %s: %v", i, tt.user, tt.password, tt.at, err)
		}
	}
}

// A node that was removed from its group says so, in the words of a login to any other database, where it can ask no
// server about a role of the console: by a password over TLS, and at the client port.
func TestRemovedNodeTellsTheConsoleSo(t *testing.T) {
	t.Parallel()
	s := passwordServer(t, "host coterie all all trust\n")
	s.logins.Removed = func() bool { return true }
	s.logins.Console = func(context.Context, net.Conn, ConsoleHello) { t.Error("a role that nobody knows has a console") }
	_, byPassword := s.CheckPassword(t.Context(), PasswordLogin{User: "lost", Password: "right", Client: from("127.0.0.1")})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	rw, _ := s.Addrs()
	_, atPort := pgx.Connect(ctx, "host=127.0.0.1 user=lost dbname=coterie sslmode=disable port="+strconv.Itoa(rw[0].(*net.TCPAddr).Port))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	want := routing.Removed()
	if bad, ok := pgwire.AsError(byPassword); !ok || bad.Code != want.Code || bad.Message != want.Message || bad.Hint != want.Hint {
		t.Errorf("by a password: %v", byPassword)
	}
	var bad *pgconn.PgError
	if !errors.As(atPort, &bad) || bad.Code != want.Code || bad.Message != want.Message || bad.Hint != want.Hint {
		t.Errorf("at the client port: %v", atPort)
	}
}

// TestPasswordsOfBothPortsAreCounted holds that a guesser gains nothing by a second port: failures there delay here.
func TestPasswordsOfBothPortsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := passwordServer(t, "hostssl all all all scram-sha-256\n")
		for range 40 {
			if _, err := s.CheckPassword(t.Context(), PasswordLogin{User: "vera", Password: "wrong", Client: from("192.0.2.1")}); err == nil {
				t.Fatal("a wrong password lets in")
			}
		}
		if wait, bad := s.logins.Failures.Begin(guessing.From(from("192.0.2.1")), "vera"); wait == 0 && bad == nil {
			t.Error("after 40 failures a login at the client port waits for nothing")
		}
		if _, err := s.CheckPassword(t.Context(), PasswordLogin{User: "vera", Password: "right", Client: from("192.0.2.2")}); err != nil {
			t.Errorf("another address: %v", err)
		}
	})
}

// TestCheckCertificate holds that a certificate lets in its user where the rule asks for one, alone by the method cert
// and beside the password else, and is of no use where the rule asks for a password.
func TestCheckCertificate(t *testing.T) {
	t.Parallel()
	s := passwordServer(t, "hostssl coterie barred all reject\nhostssl coterie vera 10.0.0.0/8 cert\nhostssl coterie nologin,old,nobody,none all cert\n"+
		"hostssl coterie vera 192.0.2.0/24 scram-sha-256 clientcert=verify-full\nhostssl coterie vera 198.51.100.0/24 trust clientcert=verify-full\nhostssl coterie vera 127.0.0.1/32 scram-sha-256\n")
	named := func(names ...string) *x509.Certificate {
		c := &x509.Certificate{}
		for _, n := range names {
			c.Subject.ExtraNames = append(c.Subject.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: n})
		}
		der, err := asn1.Marshal(c.Subject.ToRDNSequence())
		if err != nil {
			t.Fatal(err)
		}
		c.RawSubject = der
		if len(names) == 1 {
			c.Subject.CommonName = names[0]
		}
		return c
	}
	const refused, wrong = pgwire.StateInvalidAuth, pgwire.StateInvalidPassword
	for i, tt := range []struct {
		user, password string
		cert           *x509.Certificate
		at, want       string
	}{
		{"vera", "", named("vera"), "10.0.0.1", ""},
		{"vera", "", named("olaf"), "10.0.0.1", refused},
		{"vera", "right", named("olaf"), "10.0.0.1", wrong},
		{"vera", "right", nil, "10.0.0.1", wrong},
		{"vera", "", nil, "10.0.0.1", wrong},
		{"none", "", named("none"), "10.0.0.1", ""}, // a role without a password
		{"nologin", "", named("nologin"), "10.0.0.1", refused},
		{"old", "", named("old"), "10.0.0.1", refused},
		{"nobody", "", named("nobody"), "10.0.0.1", refused},
		{"barred", "", named("barred"), "10.0.0.1", refused},
		{"vera", "", named("vera"), "127.0.0.1", refused},
		{"vera", "", named("vera"), "192.0.2.1", refused},
		{"vera", "wrong", named("vera"), "192.0.2.1", wrong},
		{"vera", "right", named("olaf"), "192.0.2.1", wrong},
		{"vera", "right", nil, "192.0.2.1", wrong},
		{"vera", "right", named("vera"), "192.0.2.1", ""},
		{"vera", "", named("vera"), "198.51.100.1", refused},
		{"vera", "right", named("vera"), "198.51.100.1", ""},
		{"vera", "", named("vera"), "203.0.113.1", refused}, // no rule
	} {
		_, err := s.CheckPassword(t.Context(), PasswordLogin{User: tt.user, Password: tt.password, Client: from(tt.at), Certificate: tt.cert})
		state := ""
		if bad, ok := pgwire.AsError(err); ok {
			state = bad.Code
		}
		if state != tt.want {
			t.Errorf("%d: %s from %s: %v, want %q", i, tt.user, tt.at, err, tt.want)
		}
	}
}
