package clientport

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/vip"
)

// TestListenAt holds where the group's listener is served beside the addresses of the node itself.
func TestListenAt(t *testing.T) {
	four, six := "10.0.0.9/24", "fd00::9/64"
	for _, c := range []struct {
		own, want string
		l         ag.Listener
	}{
		{":5432", "", ag.Listener{}},
		{":5432", "", ag.Listener{Addresses: []string{four}}}, // served already
		{":5432", "", ag.Listener{Port: 5432}},
		{"10.0.0.1:5432", "10.0.0.9:5432 [fd00::9]:5432", ag.Listener{Addresses: []string{four, six}}},
		{"10.0.0.1:5432,/var/run/postgresql/.s.PGSQL.5432", "10.0.0.9:1433", ag.Listener{Addresses: []string{four}, Port: 1433}},
		{":5432", ":1433", ag.Listener{Port: 1433}},
		{":5432", "10.0.0.9:1433", ag.Listener{Addresses: []string{four}, Port: 1433}},
		{"10.0.0.9:5432", "", ag.Listener{Addresses: []string{four}}},
		{"127.0.0.1:5432,10.0.0.1:1433", "", ag.Listener{Port: 1433}},
		{"0.0.0.0:5432,[::]:5432", "", ag.Listener{Addresses: []string{four, six}}},
		{"10.0.0.1:5432,[fd00::1]:5432", "10.0.0.9:5432 [fd00::9]:5432", ag.Listener{Addresses: []string{four, six}}},
		{"", "", ag.Listener{Addresses: []string{four}}},
	} {
		own, _ := config.Address{Listen: c.own}.Places()
		if got := strings.Join(listenAt(c.l, own), " "); got != c.want {
			t.Errorf("%+v beside %q: %q, want %q", c.l, c.own, got, c.want)
		}
	}
}

// fakeBinder is a listener that cannot open the addresses in failed.
type fakeBinder struct {
	failed map[string]error
	set    []string
}

func (b *fakeBinder) SetNamed(addresses []string) map[string]error {
	b.set = addresses
	return b.failed
}

func (b *fakeBinder) LeaveAddress(context.Context, netip.Addr, string) {}

// TestReconcile holds that the ports, their rows in the views and the names in the certificate follow the group's
// listener. A port that cannot be opened does not keep the others closed.
func TestReconcile(t *testing.T) {
	t.Parallel()
	n := primary()
	p := n.port(t, func(c *config.Config) { c.ReadWrite.Listen = "10.0.0.1:5432" })
	issue(t, p)
	b := &fakeBinder{}
	a := &ListenerAddresses{port: p, server: b, said: map[string]string{}, log: p.c.Logger}
	a.served.Store(new([]catalog.Place))
	a.reconcile()
	if len(b.set) != 0 || len(a.places()) != 0 {
		t.Errorf("no listener: %v, %+v", b.set, a.places())
	}
	n.group.Options.Listeners = []ag.Listener{{Name: "sales.example", Addresses: []string{"10.0.0.8/24", "10.0.0.9/24"}, Port: 1433}}
	b.failed = map[string]error{"10.0.0.9:1433": errors.New("address in use")}
	a.reconcile()
	if want := []string{"10.0.0.8:1433", "10.0.0.9:1433"}; !slices.Equal(b.set, want) {
		t.Errorf("it serves %v, want %v", b.set, want)
	}
	places := a.places()
	if len(places) != 2 || places[0].Problem != "" || places[0].State == places[1].State || !strings.Contains(places[1].Problem, "address in use; end the program that has it") {
		t.Errorf("places %+v", places)
	}
	cert, err := x509.ParseCertificate(p.cert.Load().Certificate[0])
	if err != nil || cert.VerifyHostname("sales.example") != nil || cert.VerifyHostname("10.0.0.9") != nil {
		t.Errorf("the certificate is for %v %v, %v", cert.DNSNames, cert.IPAddresses, err)
	}
	b.failed = nil
	a.reconcile()
	if places := a.places(); len(places) != 2 || places[1].Problem != "" || a.said["10.0.0.9:1433"] != "" {
		t.Errorf("the port is free: %+v", places)
	}
}

// TestCertificateIsReadAgain holds that a certificate which was issued for the listener's name comes into use although
// it could not be read at first, as by a process that had no descriptor left.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	n := primary()
	p := n.port(t, func(c *config.Config) { c.ReadWrite.Listen = "10.0.0.1:5432" })
	issue(t, p)
	a := &ListenerAddresses{port: p, server: &fakeBinder{}, said: map[string]string{}, log: p.c.Logger}
	a.served.Store(new([]catalog.Place))
	n.group.Options.Listeners = []ag.Listener{{Name: "sales.example", Port: 1433}}
	_, key := certs.ListenerFiles(p.c.Layout.PKI())
	if err := os.Rename(key, key+".away"); err != nil {
		t.Fatal(err)
	}
	if a.reconcile(); p.cert.Load() != nil {
		t.Fatal("a certificate was read without its key")
	}
	if err := os.Rename(key+".away", key); err != nil {
		t.Fatal(err)
	}
	a.reconcile()
	if cert := p.cert.Load(); cert == nil || cert.Leaf.VerifyHostname("sales.example") != nil {
		t.Errorf("in use is %+v", cert)
	}
}

// TestAddressesUntil holds that virtual addresses are held for as long as the lease, and only by the node that sessions
// go to.
func TestAddressesUntil(t *testing.T) {
	t.Parallel()
	p := primary().port(t)
	for primary, want := range map[ag.ReplicaID]bool{"n1": true, "n2": false, "": false} {
		p.routes.Store(&ag.Routes{Primary: primary})
		if got := p.addressesUntil(); (got == 42) != want || !want && got != 0 {
			t.Errorf("the primary is %q: until %v", primary, got)
		}
	}
	p.routes.Store(nil)
	if got := p.addressesUntil(); got != 0 {
		t.Errorf("no routes: until %v", got)
	}
}

// TestVirtualAddressesAreKeptOff holds that a node whose coterie.yaml says so never reaches for the host's network, and
// says why an address is not up where it is the primary.
func TestVirtualAddressesAreKeptOff(t *testing.T) {
	t.Parallel()
	n := primary()
	p := n.port(t, func(c *config.Config) { c.ReadWrite.Listen, c.NoVirtualAddresses = "10.0.0.1:5432", true })
	n.group.Options.Listeners = []ag.Listener{{Name: "sales.example", Addresses: []string{"10.0.0.8/24"}, Port: 1433}}
	a := p.newAddresses(&fakeBinder{})
	if a.holder != nil {
		t.Error("it holds addresses")
	}
	for leads, want := range map[bool]vip.State{true: vip.Failed, false: vip.Offline} {
		p.c.Lease = func() time.Duration { return 0 }
		if leads {
			p.routes.Store(&ag.Routes{Primary: "n1"})
			p.c.Lease = func() time.Duration { return boottime.Now() + time.Minute }
		}
		places := a.places()
		if len(places) != 1 || places[0].Address != "10.0.0.8/24" || places[0].State != string(want) || strings.Contains(places[0].Problem, "no_virtual_addresses in coterie.yaml") != leads {
			t.Errorf("it leads %v: %+v", leads, places)
		}
	}
}
