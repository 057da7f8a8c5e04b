package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

const testGroup ag.GroupID = "6f1c1f3e-6a2b-4c57-9d0a-0c9a3a5b7e11"

// patience is for waits whose end is certain on a healthy machine; tests never wait for it to pass.
const patience = 2 * time.Minute

func testLogger(t testing.TB) *slog.Logger {
	if os.Getenv("ETCD_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// shortDir is a directory whose sockets fit into an address.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cot-etcd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// pki is an authority and the files of one certificate of it.
type pki struct {
	ca, cert, key string
	config        *tls.Config // as server, requiring a client certificate
}

func newPKI(t testing.TB, dir string) pki {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	check(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	check(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	p := pki{ca: filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "node.crt"), key: filepath.Join(dir, "node.key")}
	check(os.WriteFile(p.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), 0o600))
	check(os.WriteFile(p.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(os.WriteFile(p.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	pair, err := tls.LoadX509KeyPair(p.cert, p.key)
	check(err)
	parsed, err := x509.ParseCertificate(caDER)
	check(err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	p.config = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}
	return p
}

// relay is a small stand-in for the endpoint: it ends TLS with a client certificate and gives the connection to the
// member.
type relay struct {
	listener net.Listener
	member   func() *embedded.Member // nil: none runs
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	offers map[string]int // the ALPN protocols that were offered
	cut    bool           // refuse, and drop open connections
}

func newRelay(t testing.TB, p pki, address string, member func() *embedded.Member) *relay {
	t.Helper()
	r := &relay{member: member, conns: map[net.Conn]struct{}{}, offers: map[string]int{}}
	config := p.config.Clone()
	config.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.offers[fmt.Sprint(h.SupportedProtos)]++
		return nil, nil
	}
	var err error
	if r.listener, err = tls.Listen("tcp", address, config); err != nil {
		t.Fatal(err)
	}
	r.wg.Go(r.serve)
	t.Cleanup(r.close)
	return r
}

func (r *relay) serve() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.wg.Go(func() { r.pass(c) })
	}
}

func (r *relay) pass(c net.Conn) {
	defer func() { _ = c.Close() }()
	if err := c.(*tls.Conn).Handshake(); err != nil {
		return
	}
	r.mu.Lock()
	m := r.member()
	if r.cut || m == nil {
		r.mu.Unlock()
		return
	}
	r.conns[c] = struct{}{}
	r.mu.Unlock()
	m.ServePeer(context.Background(), c)
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
}

// setCut cuts off the node's incoming peer traffic, or lets it pass again.
func (r *relay) setCut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	for c := range r.conns {
		if cut {
			_ = c.Close()
		}
	}
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.setCut(true)
	r.wg.Wait()
}

// node is one member with its relay.
type node struct {
	t      testing.TB
	config embedded.Config
	relay  *relay
	member *embedded.Member
	// running is member, for the relay.
	running atomic.Pointer[embedded.Member]
}

// cluster is a quorum on this machine.
type cluster struct {
	t     testing.TB
	dir   string
	pki   pki
	nodes map[string]*node
}

func newCluster(t testing.TB, names ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: shortDir(t), nodes: map[string]*node{}}
	c.pki = newPKI(t, c.dir)
	initial := map[string]string{}
	for _, name := range names {
		c.add(name, true, nil)
		initial[name] = c.nodes[name].config.AdvertisePeer
	}
	for _, n := range c.nodes {
		n.config.Initial = initial
		n.start()
	}
	for _, n := range c.nodes {
		n.ready()
	}
	return c
}

// add prepares a node and starts its relay.
func (c *cluster) add(name string, isNew bool, initial map[string]string) *node {
	c.t.Helper()
	dir := filepath.Join(c.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	n := &node{t: c.t, config: embedded.Config{
		Name: name, Dir: filepath.Join(dir, "etcd"), IdentityFile: filepath.Join(dir, "mark.json"),
		ClientSocket: filepath.Join(dir, "c.sock"),
		Initial:      initial, New: isNew, Token: string(testGroup),
		CertFile: c.pki.cert, KeyFile: c.pki.key, CAFile: c.pki.ca,
		Logger: testLogger(c.t).With("node", name), HeartbeatMS: 50, ElectionMS: 500,
	}}
	n.relay = newRelay(c.t, c.pki, "127.0.0.1:0", n.running.Load)
	n.config.AdvertisePeer = "https://" + n.relay.listener.Addr().String()
	c.nodes[name] = n
	return n
}

func (n *node) start() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := embedded.Start(ctx, n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	n.member = m
	n.running.Store(m)
	n.relay.setCut(false)
	n.t.Cleanup(func() { _ = m.Close() })
}

func (n *node) ready() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.member.Ready(ctx); err != nil {
		n.t.Fatal(err)
	}
}

// stop ends the node as its death looks to the others: connections are cut, then the member ends without notice.
func (n *node) stop() {
	n.t.Helper()
	n.relay.setCut(true)
	n.member.Kill()
	if err := n.member.Close(); err != nil {
		n.t.Fatal(err)
	}
}

// dial opens a connection to the node that is named.
func (c *cluster) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	n := c.nodes[endpoint]
	if n == nil {
		return nil, errors.New("no such node")
	}
	return n.member.DialClient(ctx)
}

func (c *cluster) store(attempt string, endpoints ...string) *Store {
	c.t.Helper()
	return openTest(c.t, StoreConfig{
		Group: testGroup, Dial: c.dial, Endpoints: endpoints, Attempt: attempt, CallTimeout: 3 * time.Second,
		Logger: testLogger(c.t).With("store", attempt),
	})
}

func openTest(t testing.TB, cfg StoreConfig) *Store {
	t.Helper()
	s, err := OpenStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// leader returns the node that all others take for the quorum's leader.
func (c *cluster) leader() *node {
	c.t.Helper()
	var found *node
	eventually(c.t, "one leader", func() bool {
		found = nil
		for _, n := range c.nodes {
			if n.member.Err() != nil {
				continue
			}
			if n.member.IsLeader() {
				found = n
			}
		}
		return found != nil
	})
	return found
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("did not happen: %s", what)
}
