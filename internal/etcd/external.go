package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// External is an etcd that an administrator runs in place of a member in every node: its endpoints and the client's
// files.
type External struct {
	// Endpoints are client URLs as in https://host:2379, the preferred ones first. http is for this machine's own
	// addresses only.
	Endpoints []string
	// CAFile holds the authorities of the servers' certificates; empty: those of the system.
	CAFile string
	// CertFile and KeyFile are this client's certificate; both empty: it has none.
	CertFile, KeyFile string
}

// maxExternal bounds the endpoints of an external etcd: more members than it is ever given.
const maxExternal = 9

// Check returns an error if the settings are invalid. It reads no file.
func (x External) Check() error {
	if n := len(x.Endpoints); n == 0 || n > maxExternal {
		return fmt.Errorf("%d endpoints: name 1 to %d", n, maxExternal)
	}
	seen := map[string]bool{}
	for _, e := range x.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("%q is not an endpoint such as https://10.0.0.1:2379", e)
		}
		if u.Scheme == "http" && !loopback(u.Hostname()) {
			return fmt.Errorf("%s is not encrypted, and a program that can write there decides which node leads; use https", e)
		}
		if seen[e] {
			return fmt.Errorf("%s is named twice", e)
		}
		seen[e] = true
	}
	if (x.CertFile == "") != (x.KeyFile == "") {
		return errors.New("a client certificate and its key belong together: name both or neither")
	}
	return nil
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// Dial connects to one of the endpoints. It is meant for StoreConfig.Dial: the files are read again each time, so that
// certificates can be renewed under a running agent.
func (x External) Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	var config *tls.Config
	if u.Scheme == "https" {
		if config, err = x.tls(u.Hostname()); err != nil {
			return nil, err
		}
	}
	raw, err := (&net.Dialer{Timeout: maxDialTime, KeepAlive: 15 * time.Second}).DialContext(ctx, "tcp", u.Host)
	if err != nil || config == nil {
		return raw, err
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

func (x External) tls(host string) (*tls.Config, error) {
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}} // etcd serves gRPC to clients that offer h2
	if x.CAFile != "" {
		b, err := os.ReadFile(x.CAFile)
		if err != nil {
			return nil, fmt.Errorf("the quorum's authority: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("the quorum's authority: %s holds no certificate in PEM", x.CAFile)
		}
	}
	if x.CertFile == "" {
		return c, nil
	}
	if err := private(x.KeyFile); err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(x.CertFile, x.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("the client certificate for the quorum: %w", err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// private refuses a key that others can read. A key of the node's own user must be mode 0600; one of root may be
// readable by a group.
func private(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("the key for the quorum: %w", err)
	}
	may, say := os.FileMode(0o600), "0600"
	if st.Sys().(*syscall.Stat_t).Uid == 0 {
		may, say = 0o640, "0640"
	}
	if extra := st.Mode().Perm() &^ may; extra != 0 {
		return fmt.Errorf("the key for the quorum: %s may be read or changed by others (mode %04o); run: chmod %s %s, and consider the key stolen",
			path, st.Mode().Perm(), say, path)
	}
	return nil
}

// Reached is the result of probing one endpoint of an external etcd.
type Reached struct {
	Endpoint string
	Took     time.Duration // of one linearizable read
	Members  int           // voting members, as this endpoint lists them
	Known    bool          // the store holds a record of the group
	Err      error         // any error, except that the record is absent
}

// probeLimit bounds the probe of one endpoint, for a name that does not resolve or an address that drops packets.
const probeLimit = 5 * time.Second

// Probe probes every endpoint in turn, with a linearizable read and a list of the members. It changes nothing.
func (x External) Probe(ctx context.Context, group ag.GroupID) []Reached {
	out := make([]Reached, 0, len(x.Endpoints))
	for _, e := range x.Endpoints {
		out = append(out, x.probe(ctx, group, e))
	}
	return out
}

func (x External) probe(ctx context.Context, group ag.GroupID, endpoint string) Reached {
	r := Reached{Endpoint: endpoint}
	s, err := OpenStore(StoreConfig{Group: group, Dial: x.Dial, Endpoints: []string{endpoint}, Attempt: "probe", CallTimeout: probeLimit})
	if err != nil {
		r.Err = err
		return r
	}
	defer func() { _ = s.Close() }()
	dial, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	if r.Err = x.greet(dial, endpoint); r.Err != nil {
		return r
	}
	if _, r.Err = s.Read(ctx); r.Err != nil && !errors.Is(r.Err, ErrNoRecord) {
		return r
	}
	start := time.Now() // connected by now
	_, err = s.Read(ctx)
	r.Took, r.Known, r.Err = time.Since(start), err == nil, nil
	if err != nil && !errors.Is(err, ErrNoRecord) {
		r.Err = err
		return r
	}
	r.Members, r.Err = s.VotingMembers(ctx)
	return r
}

// greetTime is how long a server has to refuse a certificate: with TLS 1.3 a client learns of it only after its
// handshake.
const greetTime = 500 * time.Millisecond

// greet connects without gRPC, which would retry and hide the reason of a failure.
func (x External) greet(ctx context.Context, endpoint string) error {
	conn, err := x.Dial(ctx, endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadDeadline(time.Now().Add(greetTime)); err != nil {
		return err
	}
	var silent net.Error
	if _, err := conn.Read(make([]byte, 1)); err != nil && (!errors.As(err, &silent) || !silent.Timeout()) {
		return err
	}
	return nil
}

// VotingMembers returns how many members of the quorum vote.
func (s *Store) VotingMembers(ctx context.Context) (n int, err error) {
	members, err := s.Members(ctx)
	for _, m := range members {
		if !m.Learner {
			n++
		}
	}
	return n, err
}
