package certs

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

const (
	renewLook   = 6 * time.Hour    // the longest time between two checks of the files
	renewGlance = 10 * time.Second // between two looks at the clock, which may have been set, or gone on while the machine slept
	renewRetry  = time.Minute      // after a renewal that failed
)

// renewalTime returns when a certificate is renewed: after two thirds of its life and up to a tenth more. The tenth
// depends on the serial number, so that the nodes of a group do not all renew at once.
func renewalTime(c *x509.Certificate) time.Time {
	life := c.NotAfter.Sub(c.NotBefore)
	share := new(big.Int).Mod(c.SerialNumber, big.NewInt(1000)).Int64()
	return c.NotBefore.Add(life*2/3 + life/10*time.Duration(share)/1000)
}

// isDue reports whether a certificate is renewed now: its time has come, or it is not valid yet, as after a clock that
// was ahead was set right.
func isDue(c *x509.Certificate) bool {
	t := now()
	return t.Before(c.NotBefore) || !t.Before(renewalTime(c))
}

// Renewer keeps the certificates in a node's pki directory from expiring. Their keys do not change, so neither do the
// pins in the configuration.
type Renewer struct {
	Dir  string
	Node *Node // the identity in use

	// Issue requests a certificate for this node's key from the group: a chain in PEM, as CA.IssueNode returns it. ctx
	// has a deadline. Only a node without the authority's key needs it.
	Issue func(ctx context.Context, csr []byte) (chain []byte, err error)

	// Renewed is called with each renewed file after the node's own certificate is in use, and again until it returns
	// no error. It may be nil.
	Renewed func(file string) error

	Logger *slog.Logger
	Life   time.Duration // of the certificates that this node issues to itself; 0: 90 days

	mu   sync.Mutex // one renewal at a time
	late []string   // files that Renewed has failed on
}

// Run renews due certificates until ctx is done. A failed renewal is tried again each minute; it never ends Run.
func (r *Renewer) Run(ctx context.Context) error {
	for {
		next, err := r.round(ctx)
		if err != nil {
			r.Logger.Warn("certificates are not as they should be", "expires", r.Node.NotAfter(), "error", err, "retry_in", renewRetry)
		}
		// A timer does not run while the machine sleeps and knows nothing of a clock that is set. So the time of day,
		// without the monotonic clock, decides. Where it goes back, what was awaited may be far away.
		seen := now().Round(0)
		due := seen.Add(next)
		for left := next; left > 0; left = due.Sub(seen) {
			if retry.Sleep(ctx, min(left, renewGlance)) != nil {
				return nil
			}
			last := seen
			if seen = now().Round(0); seen.Before(last) {
				break
			}
		}
	}
}

// now is the time of day. Tests replace it.
var now = time.Now

// round renews due certificates and returns how long to wait for the next check.
func (r *Renewer) round(ctx context.Context) (next time.Duration, err error) {
	if isDue(r.Node.cert.Load().Leaf) || ownsAuthority(r.Dir) {
		if err := r.Renew(ctx); err != nil {
			return renewRetry, err
		}
	}
	due := renewalTime(r.Node.cert.Load().Leaf)
	if t, ok := listenerDue(r.Dir); ok && t.Before(due) {
		due = t
	}
	return min(renewLook, max(due.Sub(now()), time.Second)), nil
}

// listenerDue returns when this node renews the listener's certificate; ok is false if it does not.
func listenerDue(pkiDir string) (due time.Time, ok bool) {
	ca, err := LoadCA(pkiDir)
	if err != nil {
		return time.Time{}, false
	}
	all, err := parseAuthorities(ca.bundlePEM)
	if err != nil {
		return time.Time{}, false
	}
	c, err := readCertificate(pkiDir, fileListenerCert)
	if err != nil || newTrust(all...).issuer(c) == nil {
		return time.Time{}, false
	}
	return renewalTime(c), true
}

// Renew issues due certificates again and then uses the files of the directory. On a node with the authority's key, a
// certificate is due if it is too old or if another authority of the group issued it. On other nodes the node's own
// certificate is always due.
func (r *Renewer) Renew(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	renewed, err := renewOwn(r.Dir, cmp.Or(r.Life, leafLifetime))
	if errors.Is(err, fs.ErrNotExist) {
		renewed, err = []string{fileNodeCert}, r.ask(ctx)
	}
	if err != nil {
		return err
	}
	for _, f := range renewed {
		r.Logger.Info("certificate renewed", "file", f)
	}
	fault.Point("renew.written") // the renewed certificates are on disk; the old ones are in use
	// Also if nothing was renewed: an earlier Reload may have failed.
	err = r.Node.Reload(r.Dir)
	files := append(r.late, renewed...)
	r.late = nil
	for _, f := range files {
		if r.Renewed == nil {
			break
		}
		if rerr := r.Renewed(f); rerr != nil {
			r.late = append(r.late, f)
			err = errors.Join(err, fmt.Errorf("put the renewed %s into use: %w", f, rerr))
		}
	}
	return err
}

// ask requests a certificate from another node and installs it only if this node can use it.
func (r *Renewer) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewRetry)
	defer cancel()
	key := r.Node.cert.Load().PrivateKey.(*ecdsa.PrivateKey) //nolint:forcetypeassert // parseNode has looked
	csr, err := NewCSR(key)
	if err != nil {
		return err
	}
	chain, err := r.Issue(ctx, csr)
	if err != nil {
		return fmt.Errorf("ask the group for a certificate: %w", err)
	}
	keyPEM, err := pemKey(key)
	if err != nil {
		return err
	}
	believed, err := os.ReadFile(filepath.Join(r.Dir, fileCACert))
	if err != nil {
		return err
	}
	got, err := parseNode(chain, keyPEM, believed, time.Now())
	if err != nil {
		return fmt.Errorf("the certificate that the group issued: %w", err)
	}
	if got.Authority() != got.TrustedPins()[0] {
		return errors.New("the group issued a certificate of the authority that is on its way out: who signed it has yet to hear of that")
	}
	if got.Identity != r.Node.Identity {
		return fmt.Errorf("the group issued a certificate for %s", got.Identity)
	}
	if got.Authority() == r.Node.Authority() && !got.NotAfter().After(r.Node.NotAfter()) {
		return fmt.Errorf("the group issued a certificate that expires on %s, no later than the one in use", got.NotAfter().Format(time.DateTime))
	}
	return writeFile(r.Dir, fileNodeCert, chain, 0o644)
}

func ownsAuthority(pkiDir string) bool {
	_, err := os.Stat(filepath.Join(pkiDir, fileCAKey))
	return err == nil
}

// RenewOwn issues due certificates again, expired ones included, in a directory that holds the authority's key. It
// returns the names of the files it replaced, and fs.ErrNotExist if the key is missing. Call it before LoadNode, which
// refuses an expired certificate. It does not touch a listener's certificate that a foreign authority has signed: that
// is its administrator's.
func RenewOwn(pkiDir string) (renewed []string, err error) { return renewOwn(pkiDir, leafLifetime) }

func renewOwn(pkiDir string, life time.Duration) (renewed []string, err error) {
	ca, err := LoadCA(pkiDir)
	if err != nil {
		return nil, err
	}
	ca.Life = life
	all, err := parseAuthorities(ca.bundlePEM)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name  string
		issue func(old *x509.Certificate) ([]byte, error)
	}{
		{fileNodeCert, func(old *x509.Certificate) ([]byte, error) {
			id, err := identityOf(old)
			if err != nil {
				return nil, err
			}
			return ca.IssueNode(id, old.PublicKey, HostsOf(old))
		}},
		{fileListenerCert, func(old *x509.Certificate) ([]byte, error) {
			return ca.issueListener(old.PublicKey, HostsOf(old))
		}},
	} {
		done, err := renewFile(pkiDir, f.name, newTrust(all...), f.issue)
		if err != nil {
			return renewed, fmt.Errorf("renew %s: %w", filepath.Join(pkiDir, f.name), err)
		}
		if done {
			renewed = append(renewed, f.name)
		}
	}
	return renewed, nil
}

// renewFile replaces one certificate if an authority of the group issued it, and it is due (isDue) or not of the
// issuing authority.
func renewFile(dir, name string, believed *trust, issue func(*x509.Certificate) ([]byte, error)) (done bool, err error) {
	old, err := readCertificate(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // a witness has no listener
	}
	if err != nil {
		return false, err
	}
	by := believed.issuer(old)
	if by == nil || by.Equal(believed.cas[0]) && !isDue(old) {
		return false, nil
	}
	chain, err := issue(old)
	if err != nil {
		return false, err
	}
	return true, writeFile(dir, name, chain, 0o644)
}

// readCertificate reads the first certificate of a file in PEM.
func readCertificate(dir, name string) (*x509.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("it holds no PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// HostsOf returns the names and addresses of a certificate, without those that every certificate has.
func HostsOf(c *x509.Certificate) (hosts []string) {
	for _, name := range c.DNSNames {
		if name != "localhost" {
			hosts = append(hosts, name)
		}
	}
	for _, ip := range c.IPAddresses {
		if !ip.IsLoopback() {
			hosts = append(hosts, ip.String())
		}
	}
	return hosts
}

// JoinHosts returns the names of both, each once, and as many as a certificate may carry.
func JoinHosts(first, then []string) []string {
	var hosts []string
	for _, h := range slices.Concat(first, then) {
		if !slices.Contains(hosts, h) && len(hosts) < maxHosts {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// RenewFor signs the certificate request of the member peer for hosts. The request must be for the key with that pin,
// as in the configuration.
func (ca *CA) RenewFor(peer Identity, pin string, csr []byte, hosts []string) ([]byte, error) {
	pub, got, err := CSRKey(csr)
	if err != nil {
		return nil, err
	}
	if got != pin {
		return nil, fmt.Errorf("the request is not for the key by which the group knows %s", peer.ID)
	}
	return ca.IssueNode(peer, pub, hosts)
}

// issueListener signs a certificate for a client port.
func (ca *CA) issueListener(pub crypto.PublicKey, hosts []string) ([]byte, error) {
	return ca.issue(pub, leaf{name: "Coterie listener", usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, hosts)
}

// NameListener issues the listener's certificate in pkiDir again, for the same key, unless its names are exactly hosts.
// It reports whether it did, and returns the hosts that no certificate can name, which it leaves out. It does nothing
// to a certificate that a foreign authority has signed. The directory must hold the authority's key.
func NameListener(pkiDir string, hosts []string) (done bool, unnamed []string, err error) {
	ca, err := LoadCA(pkiDir)
	if err != nil {
		return false, nil, err
	}
	believed, err := parseAuthorities(ca.bundlePEM)
	if err != nil {
		return false, nil, err
	}
	var named []string
	for _, h := range hosts {
		if ValidateHosts([]string{h}) != nil || len(named) == maxHosts {
			unnamed = append(unnamed, h)
		} else if ip := net.ParseIP(h); h != "localhost" && (ip == nil || !ip.IsLoopback()) {
			named = append(named, h)
		}
	}
	pair, err := os.ReadFile(filepath.Join(pkiDir, fileListenerCert))
	if err != nil {
		return false, unnamed, fmt.Errorf("read the listener's certificate: %w", err)
	}
	block, _ := pem.Decode(pair)
	if block == nil {
		return false, unnamed, fmt.Errorf("%s holds no PEM certificate", fileListenerCert)
	}
	old, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false, unnamed, fmt.Errorf("%s: %w", fileListenerCert, err)
	}
	has := HostsOf(old)
	slices.Sort(has)
	slices.Sort(named)
	if named = slices.Compact(named); slices.Equal(has, named) || newTrust(believed...).issuer(old) == nil {
		return false, unnamed, nil
	}
	chain, err := ca.issueListener(old.PublicKey, named)
	if err != nil {
		return false, unnamed, err
	}
	return true, unnamed, writeFile(pkiDir, fileListenerCert, chain, 0o644)
}
