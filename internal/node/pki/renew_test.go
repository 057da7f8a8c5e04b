package pki

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// TestWitnessAsksForCertificate: a witness does not hold the authority's key. A replica signs for it, over a real
// connection, for the key and the address in the group's configuration and for the names that the witness has, but for
// those at which clients reach the group, and for no other key.
func TestWitnessAsksForCertificate(t *testing.T) {
	t.Parallel()
	ca := authority(t, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11")
	dirs := map[ag.ReplicaID]string{}
	member := func(kind string, id ag.ReplicaID, hosts ...string) *certs.Node {
		dirs[id] = t.TempDir()
		n, err := certs.CreateNode(dirs[id], ca, certs.Identity{Group: ca.Group, Kind: kind, ID: id}, hosts)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	replica, witness, second := member(certs.KindReplica, "n1"), member(certs.KindWitness, "w1", "10.0.0.7", "w1.example", "sales-clients"), member(certs.KindWitness, "w2")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String() // no process listens there
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	group := &ag.Group{ID: ca.Group, Options: ag.Options{Listeners: []ag.Listener{{Name: "sales-clients"}}}, Replicas: []ag.Replica{
		{ID: "n0", Endpoint: gone, KeyPin: replica.Pin, AvailabilityMode: ag.SynchronousCommit},
		{ID: "w1", Endpoint: "10.0.0.9:5022", KeyPin: witness.Pin, AvailabilityMode: ag.ConfigurationOnly},
		{ID: "w2", Endpoint: "10.0.0.8:5022", KeyPin: second.Pin, AvailabilityMode: ag.ConfigurationOnly},
		{ID: "n1", KeyPin: replica.Pin, AvailabilityMode: ag.SynchronousCommit},
	}}
	log := slog.New(slog.DiscardHandler)
	n := &Service{Config: Config{Self: "n1", Logger: log, CallersHosts: endpoint.CallersHosts, Members: membership.New("n1", config.Layout{}, log)}}
	n.ca.Store(ca)
	group.Replicas[3].Endpoint = serving(t, replica, n.Members.Authorize, func(e *endpoint.Endpoint) {
		rpc.Handle(endpoint.NewControl(e), rpc.Renew, n.RenewFor)
	})
	control := endpoint.NewControl(endpoint.New(endpoint.Config{Node: witness}))
	defer control.Close()
	w := &Service{Config: Config{
		Self: "w1", Members: membership.New("w1", config.Layout{}, log),
		AskCertificate: func(ctx context.Context, r ag.Replica, csr []byte) ([]byte, error) {
			return rpc.Call(ctx, control, r, rpc.Renew, csr)
		},
	}}
	if _, err := w.askForCertificate(t.Context(), nil); err == nil {
		t.Error("a certificate without a group")
	}
	w.Members.Set(*group)
	n.Members.Set(*group)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	chain, err := w.askForCertificate(ctx, requestOf(t, dirs["w1"]))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(chain)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if certs.KeyPin(c) != witness.Pin || c.URIs[0].String() != witness.Identity.String() || c.VerifyHostname("10.0.0.9") != nil {
		t.Errorf("the certificate is for %s, %v", c.URIs[0], c.IPAddresses)
	}
	if got := strings.Join(certs.HostsOf(c), " "); got != "w1.example 10.0.0.9 10.0.0.7" {
		t.Errorf("the witness was admitted with two more names, and had the listener's; the new certificate names %s", got)
	}
	if _, err := w.askForCertificate(ctx, requestOf(t, dirs["w2"])); err == nil || !strings.Contains(err.Error(), "not for the key") {
		t.Errorf("another member's key was signed: %v", err)
	}
	if _, err := w.RenewFor(ctx, replica.Identity, nil); err == nil || !strings.Contains(err.Error(), "a witness does not hold") {
		t.Errorf("a witness signs: %v", err)
	}
	if _, err := n.RenewFor(ctx, certs.Identity{Group: ca.Group, ID: "n9"}, nil); err == nil || !strings.Contains(err.Error(), "not a member") {
		t.Errorf("a stranger's request was signed: %v", err)
	}
	w.Members.Set(ag.Group{ID: ca.Group, Replicas: []ag.Replica{{ID: "w1", AvailabilityMode: ag.ConfigurationOnly}}})
	if _, err := w.askForCertificate(ctx, nil); err == nil || !strings.Contains(err.Error(), "no other replica") {
		t.Errorf("without another replica: %v", err)
	}
}

func authority(t *testing.T, group ag.GroupID) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(group, "sales")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// serving runs an endpoint and returns its address.
func serving(t *testing.T, self *certs.Node, authorize func(certs.Identity, string, endpoint.Class) error, prepare func(*endpoint.Endpoint)) string {
	t.Helper()
	e := endpoint.New(endpoint.Config{Node: self, Listen: "127.0.0.1:0", Authorize: authorize, Logger: slog.New(slog.DiscardHandler)})
	prepare(e)
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return e.Addr().String()
}

// requestOf makes a certificate request for a node's key.
func requestOf(t *testing.T, pki string) []byte {
	t.Helper()
	cert, key, _ := certs.TLSFiles(pki)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA256}, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}
