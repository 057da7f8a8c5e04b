package listener

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/hba"
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
		_, err := s.CheckPassword(t.Context(), PasswordLogin{tt.user, tt.password, from(tt.at)})
		state := ""
		if bad, ok := pgwire.AsError(err); ok {
			state = bad.Code
		}
		if state != tt.want {
			t.Errorf("%d: %s with %q from %s: %v", i, tt.user, tt.password, tt.at, err)
		}
	}
}

// TestPasswordsOfBothPortsAreCounted holds that a guesser gains nothing by a second port: failures there delay here.
func TestPasswordsOfBothPortsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := passwordServer(t, "hostssl all all all scram-sha-256\n")
		key, site := limitKeysOf(from("192.0.2.1"), "192.0.2.1")
		for range 40 {
			if _, err := s.CheckPassword(t.Context(), PasswordLogin{"vera", "wrong", from("192.0.2.1")}); err == nil {
				t.Fatal("a wrong password lets in")
			}
		}
		if wait, bad := s.nextTry(key+"\x00vera", site); wait == 0 && bad == nil {
			t.Error("after 40 failures a login at the client port waits for nothing")
		}
		if _, err := s.CheckPassword(t.Context(), PasswordLogin{"vera", "right", from("192.0.2.2")}); err != nil {
			t.Errorf("another address: %v", err)
		}
	})
}
