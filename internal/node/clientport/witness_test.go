package clientport

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// watching returns the port of a witness whose console is served, with rules by which vera's certificate lets her in
// from everywhere and other methods let in everybody else.
func watching(t *testing.T) (*fakeNode, *Port) {
	t.Helper()
	dir := t.TempDir()
	authority, _ := pemFiles(t)
	write(t, filepath.Join(dir, "ca.pem"), authority)
	write(t, filepath.Join(dir, "hba"), `hostssl coterie +fired 0.0.0.0/0 reject
hostssl coterie vera 0.0.0.0/0 cert
hostssl coterie sam 0.0.0.0/0 scram-sha-256
hostssl coterie both 0.0.0.0/0 scram-sha-256 clientcert=verify-full
hostssl coterie tom 0.0.0.0/0 trust
hostssl sales all 0.0.0.0/0 cert
`)
	n := primary()
	n.server = nil
	n.peers.viewer = func(ag.ReplicaID, string) (Viewer, error) { return Viewer{Looks: true}, nil }
	p := n.port(t, func(c *config.Config) {
		c.Kind, c.HTTPS.Listen = "witness", ":8443"
		c.HBA, c.ClientCA = filepath.Join(dir, "hba"), filepath.Join(dir, "ca.pem")
	})
	p.c.Self = "w"
	if err := p.Open(func(string, func(context.Context) error) {}); err != nil {
		t.Fatal(err)
	}
	return n, p
}

// by returns a login by the certificate of that name; "": without one.
func by(user, certificate, password string) listener.PasswordLogin {
	l := listener.PasswordLogin{User: user, Password: password, Client: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 4711}}
	if certificate != "" {
		subject, err := asn1.Marshal(pkix.Name{CommonName: certificate}.ToRDNSequence())
		if err != nil {
			panic(err)
		}
		l.Certificate = &x509.Certificate{RawSubject: subject}
	}
	return l
}

// TestLoginAtAWitness holds that only a certificate for the name lets in at a witness, by a rule that says so, and only
// to look.
func TestLoginAtAWitness(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		login  listener.PasswordLogin
		viewer Viewer
		in     bool
	}{
		"by her certificate":                    {by("vera", "vera", ""), Viewer{Looks: true, MemberOf: []string{"coterie_admin"}}, true},
		"by a password":                         {by("vera", "", "right"), Viewer{Looks: true}, false},
		"by another's certificate":              {by("vera", "sam", ""), Viewer{Looks: true}, false},
		"a role that may not look":              {by("vera", "vera", ""), Viewer{}, false},
		"a role that a rule rejects by another": {by("vera", "vera", ""), Viewer{Looks: true, MemberOf: []string{"fired"}}, false},
		"a rule that asks for a password":       {by("sam", "sam", "x"), Viewer{Looks: true}, false},
		"a rule that asks for both":             {by("both", "both", "x"), Viewer{Looks: true}, false},
		"a rule that asks for nothing":          {by("tom", "tom", ""), Viewer{Looks: true}, false},
		"a rule of another database":            {by("app", "app", ""), Viewer{Looks: true}, false},
	} {
		n, p := watching(t)
		n.peers.viewer = func(ag.ReplicaID, string) (Viewer, error) { return tt.viewer, nil }
		who, err := p.LogIn(t.Context(), tt.login)
		if (err == nil) != tt.in {
			t.Errorf("%s: %v", name, err)
		}
		if bad, ok := pgwire.AsError(err); err != nil && (!ok || bad.Code != pgwire.StateInvalidAuth) {
			t.Errorf("%s: %v", name, err)
		}
		if tt.in && who.May != ddl.MayLook {
			t.Errorf("%s: privilege %v", name, who.May)
		}
		if asked := len(n.peers.asked); tt.login.Certificate == nil && asked > 0 {
			t.Errorf("%s: %d replicas were asked for a stranger", name, asked)
		}
	}
}

// TestWitnessRemembersViewers holds that a role that may look is remembered for when no replica answers, and forgotten
// once one says that it may not.
func TestWitnessRemembersViewers(t *testing.T) {
	t.Parallel()
	n, p := watching(t)
	look := func() (ddl.Privilege, error) {
		t.Helper()
		who, err := p.Look(t.Context(), "vera")
		return who.May, err
	}
	answers := n.peers.viewer
	n.peers.viewer = nil
	if may, err := look(); err == nil || may != ddl.MayNothing {
		t.Errorf("of a role that was never heard of: %v, %v", may, err)
	}
	if _, err := p.LogIn(t.Context(), by("vera", "vera", "")); err == nil {
		t.Error("a role that was never heard of is let in")
	} else if bad, ok := pgwire.AsError(err); !ok || bad.Code != pgwire.StateCannotConnect {
		t.Error(err)
	}
	n.peers.viewer = answers
	if may, err := look(); err != nil || may != ddl.MayLook {
		t.Errorf("%v, %v", may, err)
	}
	n.peers.viewer = nil
	if may, err := look(); err != nil || may != ddl.MayLook {
		t.Errorf("with no replica left: %v, %v", may, err)
	}
	if who, err := p.LogIn(t.Context(), by("vera", "vera", "")); err != nil || who.May != ddl.MayLook {
		t.Errorf("with no replica left: %+v, %v", who, err)
	}
	n.peers.viewer = func(ag.ReplicaID, string) (Viewer, error) { return Viewer{}, nil }
	if may, err := look(); err != nil || may != ddl.MayNothing {
		t.Errorf("once it may not: %v, %v", may, err)
	}
	n.peers.viewer = nil
	if may, err := look(); err == nil || may != ddl.MayNothing {
		t.Errorf("it is remembered as one that may: %v, %v", may, err)
	}
}

// TestWitnessWithoutAuthorities holds that nobody logs in at a witness whose coterie.yaml names no authorities, nor
// before its rules are read.
func TestWitnessWithoutAuthorities(t *testing.T) {
	t.Parallel()
	n := primary()
	n.server = nil
	n.peers.viewer = func(ag.ReplicaID, string) (Viewer, error) { return Viewer{Looks: true}, nil }
	p := n.port(t, func(c *config.Config) { c.Kind, c.HTTPS.Listen = "witness", ":8443" })
	if _, err := p.LogIn(t.Context(), by("vera", "vera", "")); err == nil {
		t.Error("let in before the rules are read")
	}
	if err := p.Open(func(string, func(context.Context) error) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.LogIn(t.Context(), by("vera", "vera", "")); err == nil {
		t.Error("let in by the default rules, which ask for a password")
	}
	if p.ClientCAs() != nil {
		t.Error("certificates are asked for")
	}
}

// TestViewerTellsNoVerifier holds what a replica tells a witness of a role.
func TestViewerTellsNoVerifier(t *testing.T) {
	t.Parallel()
	past := time.Now().Add(-time.Hour)
	for name, tt := range map[string]struct {
		role login.Role
		err  error
		want bool
		fail bool
	}{
		"a viewer":             {login.Role{CanLogin: true, MemberOf: []string{"coterie_viewer", "x"}, Password: "secret"}, nil, true, false},
		"a superuser":          {login.Role{CanLogin: true, Super: true}, nil, true, false},
		"a role without":       {login.Role{CanLogin: true, MemberOf: []string{"x"}}, nil, false, false},
		"one without a login":  {login.Role{MemberOf: []string{"coterie_viewer"}}, nil, false, false},
		"an expired one":       {login.Role{CanLogin: true, MemberOf: []string{"coterie_viewer"}, ValidUntil: &past}, nil, false, false},
		"one that is not":      {login.Role{}, login.ErrNoRole, false, false},
		"a server that is not": {login.Role{}, errors.New("down"), false, true},
	} {
		n := primary()
		n.server.role, n.server.roleErr = tt.role, tt.err
		v, err := n.port(t).Viewer(t.Context(), "vera")
		if v.Looks != tt.want || (err != nil) != tt.fail || !v.Looks && v.MemberOf != nil {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
		if strings.Contains(strings.Join(v.MemberOf, " "), "secret") {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestLoginsAtAWitnessAreBounded holds that one address cannot have a witness ask replicas without an end.
func TestLoginsAtAWitnessAreBounded(t *testing.T) {
	t.Parallel()
	_, p := watching(t)
	for i := range 1000 {
		_, err := p.LogIn(t.Context(), by("vera", "vera", ""))
		if bad, ok := pgwire.AsError(err); ok && bad.Code == pgwire.StateTooMany {
			if float64(i) < eachViewers.Burst {
				t.Errorf("refused after %d logins", i)
			}
			return
		}
	}
	t.Error("a thousand logins of one address were looked up")
}
