package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// aNodeDir is the pki directory of a node of its own, of a replica with a listener or of a witness.
func aNodeDir(t *testing.T, ca *CA, kind string) (dir string, n *Node) {
	t.Helper()
	dir = t.TempDir()
	if kind == KindReplica {
		if err := ca.Save(dir); err != nil {
			t.Fatal(err)
		}
		cert, key, err := ca.IssueListener([]string{"db.example.org", "10.0.0.7"})
		if err != nil {
			t.Fatal(err)
		}
		if err := SaveListener(dir, cert, key); err != nil {
			t.Fatal(err)
		}
	}
	n, err := CreateNode(dir, ca, Identity{ca.Group, kind, "a"}, []string{"a.example.org", "10.0.0.7"})
	if err != nil {
		t.Fatal(err)
	}
	return dir, n
}

func leafIn(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return leafOf(t, data)
}

// A replica and a witness run for a year. On no day does one of their certificates come near its end, nor does a key
// change. A renewal that its receiver could not use is announced again.
func TestRenewerOverAYear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, groupA)
		dir, replica := aNodeDir(t, ca, KindReplica)
		listenerPin := KeyPin(leafIn(t, dir, fileListenerCert))
		witnessDir, witness := aNodeDir(t, ca, KindWitness)
		fails := 0
		issue := func(_ context.Context, csr []byte) ([]byte, error) {
			if fails++; fails%5 != 0 {
				return nil, errors.New("nobody answers")
			}
			return ca.RenewFor(witness.Identity, witness.Pin, csr, []string{"w.example.org"})
		}
		told := map[string]int{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, r := range []*Renewer{
			{Dir: dir, Node: replica, Renewed: func(f string) error {
				if told[f]++; told[f]%2 == 1 {
					return errors.New("not now")
				}
				return nil
			}, Logger: slog.New(slog.DiscardHandler)},
			{Dir: witnessDir, Node: witness, Issue: issue, Logger: slog.New(slog.DiscardHandler)},
		} {
			go func() { _ = r.Run(ctx) }()
		}
		for range 365 {
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			for _, end := range []time.Time{replica.NotAfter(), witness.NotAfter(), leafIn(t, dir, fileListenerCert).NotAfter} {
				if left := time.Until(end); left < leafLifetime/5 {
					t.Fatalf("%s: a certificate expires in %s", time.Now().Format(time.DateOnly), left)
				}
			}
		}
		if told[fileNodeCert] < 8 || told[fileListenerCert] < 8 || told[fileNodeCert]%2+told[fileListenerCert]%2 != 0 {
			t.Errorf("told in a year, twice for each: %v", told)
		}
		l := leafIn(t, dir, fileListenerCert)
		if !replica.cert.Load().Leaf.Equal(leafIn(t, dir, fileNodeCert)) || KeyPin(leafIn(t, witnessDir, fileNodeCert)) != witness.Pin ||
			listenerPin != KeyPin(l) {
			t.Error("a key has changed, or what is in use is not what is on disk")
		}
		if err := l.VerifyHostname("db.example.org"); err != nil {
			t.Error(err)
		}
		if err := leafIn(t, dir, fileNodeCert).VerifyHostname("10.0.0.7"); err != nil {
			t.Error(err)
		}
	})
}

// A clock that is set, or that went on while the machine slept, is noticed within seconds: a certificate that is due
// by it is renewed at once.
func TestRenewerFollowsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		defer func() { now = time.Now }()
		dir, n := aNodeDir(t, newTestCA(t, groupA), KindReplica)
		var renewed atomic.Int64
		r := &Renewer{Dir: dir, Node: n, Renewed: func(string) error { renewed.Add(1); return nil }, Logger: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = r.Run(ctx) }()
		time.Sleep(time.Minute)
		if renewed.Load() != 0 {
			t.Error("renewed before the time")
		}
		ahead.Store(int64(leafLifetime - 30*time.Second))
		time.Sleep(2 * renewGlance)
		if renewed.Load() == 0 {
			t.Error("a clock that was set forward is not noticed")
		}
		cancel()
		synctest.Wait()
	})
}

// Certificates that were renewed while the clock was ahead are renewed again within seconds once the clock is right, by
// a replica that runs and by one that starts: no node accepts them before their time. The authority of a group that was
// founded then is valid at once.
func TestRenewerFollowsTheClockBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		defer func() { now = time.Now }()
		dir, n := aNodeDir(t, newTestCA(t, groupA), KindReplica)
		r := &Renewer{Dir: dir, Node: n, Logger: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = r.Run(ctx) }()
		early := func(file string) bool { return time.Now().Before(leafIn(t, dir, file).NotBefore) }
		time.Sleep(time.Minute)
		ahead.Store(int64(100 * 24 * time.Hour))
		time.Sleep(2 * renewGlance)
		if !early(fileNodeCert) || !early(fileListenerCert) {
			t.Error("nothing was renewed by the clock that is ahead")
		}
		ahead.Store(0)
		time.Sleep(2 * renewGlance)
		if early(fileNodeCert) || early(fileListenerCert) || time.Now().Before(n.cert.Load().Leaf.NotBefore) {
			t.Error("certificates that are not valid yet are kept")
		}
		cancel()
		synctest.Wait()

		ahead.Store(int64(300 * 24 * time.Hour))
		late, _ := NewCA(groupA, "late")
		chain, err := late.IssueNode(n.Identity, leafIn(t, dir, fileNodeCert).PublicKey, nil)
		if err := errors.Join(err, late.Save(dir), writeFile(dir, fileNodeCert, chain, 0o644)); err != nil {
			t.Fatal(err)
		}
		ahead.Store(0)
		if _, err := LoadNode(dir); err == nil || !strings.Contains(err.Error(), "coterie member replace") {
			t.Errorf("before it is renewed: %v", err)
		}
		if _, err := RenewOwn(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadNode(dir); err != nil {
			t.Errorf("a group that was founded while the clock was ahead: %v", err)
		}
	})
}

// Certificates that live for two minutes are renewed at the time of each, whichever is due first.
func TestRenewerLooksAtBoth(t *testing.T) {
	for range 20 { // their times are drawn
		synctest.Test(t, func(t *testing.T) {
			ca := newTestCA(t, groupA)
			ca.Life = 2 * time.Minute
			dir, n := aNodeDir(t, ca, KindReplica)
			r := &Renewer{Dir: dir, Node: n, Life: ca.Life, Logger: slog.New(slog.DiscardHandler)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { _ = r.Run(ctx) }()
			for range 600 {
				time.Sleep(time.Second)
				synctest.Wait()
				for _, end := range []time.Time{n.NotAfter(), leafIn(t, dir, fileListenerCert).NotAfter} {
					if left := time.Until(end); left < ca.Life/5 {
						t.Fatalf("a certificate expires in %s", left)
					}
				}
			}
		})
	}
}

// A certificate that is on disk and failed to come into use does so with the next look, though nothing is due.
func TestRenewerReloadsWhatIsThere(t *testing.T) {
	ca := newTestCA(t, groupA)
	dir, n := aNodeDir(t, ca, KindReplica)
	chain, err := ca.IssueNode(n.Identity, leafIn(t, dir, fileNodeCert).PublicKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFile(dir, fileNodeCert, chain, 0o644); err != nil {
		t.Fatal(err)
	}
	r := &Renewer{Dir: dir, Node: n, Logger: slog.New(slog.DiscardHandler)}
	if _, err := r.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !n.cert.Load().Leaf.Equal(leafOf(t, chain)) {
		t.Error("the old certificate is in use")
	}
}

// A certificate that expired while the node was down is renewed before its use, by a node with the authority's key.
func TestRenewOwnExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, groupA)
		dir, _ := aNodeDir(t, ca, KindReplica)
		witnessDir, _ := aNodeDir(t, ca, KindWitness)
		if renewed, err := RenewOwn(dir); err != nil || len(renewed) != 0 {
			t.Errorf("renewed %v, %v while nothing was due", renewed, err)
		}
		time.Sleep(leafLifetime + time.Hour)
		if _, err := LoadNode(dir); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Errorf("an expired certificate was loaded: %v", err)
		}
		if renewed, err := RenewOwn(dir); err != nil || len(renewed) != 2 {
			t.Errorf("renewed %v, %v", renewed, err)
		}
		if _, err := LoadNode(dir); err != nil {
			t.Error(err)
		}
		if renewed, err := RenewOwn(witnessDir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a node without the authority's key renewed %v, %v", renewed, err)
		}
	})
}

// A certificate for the clients that another authority has signed is left alone.
func TestRenewOwnLeavesForeignListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, groupA)
		dir, _ := aNodeDir(t, ca, KindReplica)
		cert, key, err := newTestCA(t, groupA).IssueListener([]string{"db.example.org"})
		if err != nil {
			t.Fatal(err)
		}
		if err := SaveListener(dir, cert, key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(leafLifetime + time.Hour)
		if renewed, err := RenewOwn(dir); err != nil || len(renewed) != 1 || renewed[0] != fileNodeCert {
			t.Errorf("renewed %v, %v", renewed, err)
		}
	})
}

// The requests that an issuer must not sign, and the certificates that a node must not install.
func TestRenewalRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, groupA)
		dir, n := aNodeDir(t, ca, KindWitness)
		other, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		csr, err := NewCSR(other)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ca.RenewFor(n.Identity, n.Pin, csr, nil); err == nil {
			t.Error("signed for a key that is not the member's")
		}
		time.Sleep(leafLifetime * 4 / 5)
		before, err := os.ReadFile(filepath.Join(dir, fileNodeCert))
		if err != nil {
			t.Fatal(err)
		}
		for what, issue := range map[string]func(context.Context, []byte) ([]byte, error){
			"another node's": func(_ context.Context, csr []byte) ([]byte, error) {
				return ca.RenewFor(Identity{groupA, KindReplica, "a"}, n.Pin, csr, nil)
			},
			"another authority's": func(_ context.Context, csr []byte) ([]byte, error) {
				return newTestCA(t, groupA).RenewFor(n.Identity, n.Pin, csr, nil)
			},
			"the old one": func(context.Context, []byte) ([]byte, error) { return before, nil },
			"nothing":     func(context.Context, []byte) ([]byte, error) { return nil, nil },
		} {
			r := &Renewer{Dir: dir, Node: n, Issue: issue, Logger: slog.New(slog.DiscardHandler)}
			if next, err := r.round(t.Context()); err == nil || next != renewRetry {
				t.Errorf("%s was installed (next look in %s)", what, next)
			}
		}
		if after, err := os.ReadFile(filepath.Join(dir, fileNodeCert)); err != nil || string(after) != string(before) {
			t.Errorf("the certificate on disk was replaced: %v", err)
		}
	})
}

// The listener's certificate follows the listener's names: same key, same authority. Certificates of another authority
// are left alone.
func TestNameListener(t *testing.T) {
	ca := newTestCA(t, groupA)
	dir, _ := aNodeDir(t, ca, KindReplica)
	pin := KeyPin(leafIn(t, dir, fileListenerCert))
	name := func(hosts ...string) bool {
		t.Helper()
		done, _, err := NameListener(dir, hosts)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if name("10.0.0.7", "db.example.org", "localhost", "127.0.0.1") {
		t.Error("issued anew for the names that it has")
	}
	if !name("db.example.org", "shop-l", "10.0.0.99", "fd00::99") {
		t.Error("not issued for new names")
	}
	leaf := leafIn(t, dir, fileListenerCert)
	for _, h := range []string{"shop-l", "10.0.0.99", "fd00::99", "localhost"} {
		if err := leaf.VerifyHostname(h); err != nil {
			t.Error(err)
		}
	}
	if leaf.VerifyHostname("10.0.0.7") == nil || KeyPin(leaf) != pin || leaf.CheckSignatureFrom(ca.Cert) != nil {
		t.Error("the certificate has an old name, another key or another authority")
	}
	if _, unnamed, err := NameListener(dir, []string{"no name at all", "shop-l"}); err != nil || !slices.Equal(unnamed, []string{"no name at all"}) {
		t.Errorf("what cannot be named: %q %v", unnamed, err)
	}
	cert, key, err := newTestCA(t, groupA).IssueListener([]string{"db.example.org"})
	if err == nil {
		err = SaveListener(dir, cert, key)
	}
	if err != nil {
		t.Fatal(err)
	}
	if name("shop-l") {
		t.Error("another authority's certificate was replaced")
	}
}
