// Package standalone is an etcd as an administrator runs one: a server of its own on a TCP port, with mutual TLS. Tests
// start it for groups whose quorum is not embedded. It must not know the product: it contains only etcd's own server.
//
// Start reading at New.
package standalone

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// patience bounds the wait for a server to be ready.
const patience = time.Minute

// Server is an etcd of one member. Its methods are for one goroutine.
type Server struct {
	t       testing.TB
	dir     string
	client  url.URL
	peer    url.URL
	running *embed.Etcd

	// CA, Cert and Key are the files with which a client reaches it.
	CA, Cert, Key string
}

// New makes the keys and starts the server in dir, which must not exist yet. The server ends with the test.
func New(t testing.TB, dir string) *Server {
	t.Helper()
	s := &Server{t: t, dir: dir, CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "client.crt"), Key: filepath.Join(dir, "client.key")}
	s.must(os.Mkdir(dir, 0o755)) //nolint:gosec // a client may be another user
	s.must(s.makeKeys())
	s.client, s.peer = s.free("https"), s.free("http")
	t.Cleanup(s.Stop)
	s.Start()
	return s
}

// Endpoint is the server's client URL. It stays the same.
func (s *Server) Endpoint() string { return s.client.String() }

// Start starts the stopped server with its former contents, and returns when it answers.
func (s *Server) Start() {
	s.t.Helper()
	c := embed.NewConfig()
	c.Name, c.Dir = "outside", filepath.Join(s.dir, "data")
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{s.client}, []url.URL{s.client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{s.peer}, []url.URL{s.peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ClientTLSInfo = transport.TLSInfo{
		CertFile: filepath.Join(s.dir, "server.crt"), KeyFile: filepath.Join(s.dir, "server.key"), TrustedCAFile: s.CA, ClientCertAuth: true,
	}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	s.must(err)
	s.running = e
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(patience):
		s.t.Fatal("the etcd did not get ready")
	}
}

// Stop stops the server, if it runs.
func (s *Server) Stop() {
	if s.running != nil {
		s.running.Close()
		s.running = nil
	}
}

// Forget discards the stopped server's contents: the next Start makes another store at the same address.
func (s *Server) Forget() {
	s.t.Helper()
	s.must(os.RemoveAll(filepath.Join(s.dir, "data")))
}

// Save keeps a copy of the stopped server's contents for Restore.
func (s *Server) Save() {
	s.t.Helper()
	s.must(os.RemoveAll(filepath.Join(s.dir, "saved")))
	s.must(os.CopyFS(filepath.Join(s.dir, "saved"), os.DirFS(filepath.Join(s.dir, "data"))))
}

// Restore puts back into the stopped server what Save kept, as a restored disk does: it is the same store, at an
// earlier revision.
func (s *Server) Restore() {
	s.t.Helper()
	s.Forget()
	s.must(os.CopyFS(filepath.Join(s.dir, "data"), os.DirFS(filepath.Join(s.dir, "saved"))))
}

// Dump returns every key of the running server.
func (s *Server) Dump() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	s.with(func(ctx context.Context, c *clientv3.Client) error {
		a, err := c.Get(ctx, "", clientv3.WithPrefix())
		if err == nil {
			for _, kv := range a.Kvs {
				all[string(kv.Key)] = string(kv.Value)
			}
		}
		return err
	})
	return all
}

// Load puts keys into the running server.
func (s *Server) Load(all map[string]string) {
	s.t.Helper()
	s.with(func(ctx context.Context, c *clientv3.Client) error {
		for k, v := range all {
			if _, err := c.Put(ctx, k, v); err != nil {
				return err
			}
		}
		return nil
	})
}

// Compact discards every revision but the latest: a watch that is behind gets an error.
func (s *Server) Compact() {
	s.t.Helper()
	s.with(func(ctx context.Context, c *clientv3.Client) error {
		a, err := c.Get(ctx, "none")
		if err == nil {
			_, err = c.Compact(ctx, a.Header.Revision)
		}
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil // nothing has changed since the last time
		}
		return err
	})
}

// with runs f with a client of the running server.
func (s *Server) with(f func(context.Context, *clientv3.Client) error) {
	s.t.Helper()
	config, err := transport.TLSInfo{CertFile: s.Cert, KeyFile: s.Key, TrustedCAFile: s.CA}.ClientConfig()
	s.must(err)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, TLS: config, DialTimeout: patience, Logger: zap.NewNop()})
	s.must(err)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.must(f(ctx, c))
}

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// free finds an unused port.
func (s *Server) free(scheme string) url.URL {
	s.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", "127.0.0.1:0")
	s.must(err)
	defer func() { _ = l.Close() }()
	return url.URL{Scheme: scheme, Host: l.Addr().String()}
}

// makeKeys makes an authority, and certificates of it for the server and one client.
func (s *Server) makeKeys() error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	valid := x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), BasicConstraintsValid: true}
	ca := valid
	ca.SerialNumber, ca.Subject, ca.IsCA, ca.KeyUsage = big.NewInt(1), pkix.Name{CommonName: "authority of the etcd"}, true, x509.KeyUsageCertSign
	own := certificate{file: s.CA, template: &ca, key: caKey}
	if err := own.issue(&ca, caKey); err != nil {
		return err
	}
	for i, name := range []string{"server", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		leaf := valid
		leaf.SerialNumber, leaf.Subject, leaf.KeyUsage = big.NewInt(int64(i)+2), pkix.Name{CommonName: name}, x509.KeyUsageDigitalSignature
		leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} // etcd's gateway is its own client
		leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		c := certificate{filepath.Join(s.dir, name+".crt"), filepath.Join(s.dir, name+".key"), &leaf, key}
		if err := c.issue(&ca, caKey); err != nil {
			return err
		}
	}
	return nil
}

// certificate is one to be issued: where it is written, its contents and its key.
type certificate struct {
	file, keyFile string // keyFile "": the key is not written
	template      *x509.Certificate
	key           *ecdsa.PrivateKey
}

// issue signs the certificate with an authority's key and writes its files.
func (c certificate) issue(ca *x509.Certificate, caKey *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, c.template, ca, c.key.Public(), caKey)
	if err != nil {
		return fmt.Errorf("%s: %w", c.file, err)
	}
	err = os.WriteFile(c.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644) //nolint:gosec // a certificate is public
	if err != nil || c.keyFile == "" {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(c.key)
	return errors.Join(err, os.WriteFile(c.keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
}
