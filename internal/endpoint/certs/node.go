package certs

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/durable"
)

// The files of a node's pki directory.
const (
	fileCACert       = "ca.crt"
	fileCAKey        = "ca.key"
	fileNodeCert     = "node.crt"
	fileNodeKey      = "node.key"
	fileListenerCert = "listener.crt"
	fileListenerKey  = "listener.key"
)

// Node is this node's identity with the key that proves it. Its certificate can be replaced while it is in use
// (Reload).
type Node struct {
	Identity Identity
	Pin      string // of the node's key, as the record carries it

	cert  atomic.Pointer[tls.Certificate]
	trust atomic.Pointer[trust]

	reloading sync.Mutex // so that the files read last are those in use
}

// NotAfter returns when the certificate in use expires.
func (n *Node) NotAfter() time.Time { return n.cert.Load().Leaf.NotAfter }

// Authority returns the pin of the authority that issued the certificate in use.
func (n *Node) Authority() string { return KeyPin(n.trust.Load().issuer(n.cert.Load().Leaf)) }

// TrustedPins returns the pins of the trusted authorities, the issuing one first.
func (n *Node) TrustedPins() (pins []string) {
	for _, ca := range n.trust.Load().cas {
		pins = append(pins, KeyPin(ca))
	}
	return pins
}

// Reload reads the certificate and the authorities from pkiDir and uses them for new connections; existing connections
// keep theirs. The identity and the key must be unchanged.
func (n *Node) Reload(pkiDir string) error {
	n.reloading.Lock()
	defer n.reloading.Unlock()
	fresh, err := LoadNode(pkiDir)
	if err != nil {
		return err
	}
	if fresh.Identity != n.Identity || fresh.Pin != n.Pin {
		return fmt.Errorf("%s holds the certificate of another node or key than the one in use: start the node again", pkiDir)
	}
	n.trust.Store(fresh.trust.Load()) // first: a new certificate needs its issuer
	n.cert.Store(fresh.cert.Load())
	return nil
}

// CreateNode makes this node's key, has ca sign its certificate and writes node.key, node.crt and ca.crt into pkiDir.
func CreateNode(pkiDir string, ca *CA, id Identity, hosts []string) (*Node, error) {
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("create the node's identity: %w", err)
	}
	chain, err := ca.IssueNode(id, key.Public(), hosts)
	if err != nil {
		return nil, fmt.Errorf("create the node's identity: %w", err)
	}
	return saveNode(pkiDir, chain, ca.CertPEM, key)
}

// InstallNode writes the files of a grant into pkiDir: node.key, node.crt, ca.crt and, for a replica, ca.key
// and salts.key.
func InstallNode(pkiDir string, grant Grant, key *ecdsa.PrivateKey) (*Node, error) {
	if len(grant.CAKeyPEM) > 0 {
		ca, err := ParseCA(grant.CACertPEM, grant.CAKeyPEM)
		if err != nil {
			return nil, fmt.Errorf("install the granted identity: %w", err)
		}
		if err := ca.Save(pkiDir); err != nil {
			return nil, err
		}
	}
	if len(grant.Salts) > 0 {
		if err := saveSalts(pkiDir, grant.Salts); err != nil {
			return nil, err
		}
	}
	return saveNode(pkiDir, grant.CertPEM, grant.CACertPEM, key)
}

// saveNode writes the certificate last: a directory with node.crt in it is complete.
func saveNode(pkiDir string, chain, caPEM []byte, key *ecdsa.PrivateKey) (*Node, error) {
	keyPEM, err := pemKey(key)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		data []byte
		mode fs.FileMode
	}{
		{fileCACert, caPEM, 0o644},
		{fileNodeKey, keyPEM, 0o600},
		{fileNodeCert, chain, 0o644},
	} {
		if err := writeFile(pkiDir, f.name, f.data, f.mode); err != nil {
			return nil, fmt.Errorf("save the node's identity: %w", err)
		}
	}
	return LoadNode(pkiDir)
}

// LoadNode reads this node's identity from pkiDir and checks that the group's other nodes would accept it.
func LoadNode(pkiDir string) (*Node, error) { return loaded(pkiDir, time.Now()) }

// LoadAnyTime is LoadNode whatever the time is, for a node that only asks who is there: other nodes do not accept a
// certificate that has expired, and prove themselves before they see it.
func LoadAnyTime(pkiDir string) (*Node, error) { return loaded(pkiDir, time.Time{}) }

func loaded(pkiDir string, now time.Time) (*Node, error) {
	n, err := loadNode(pkiDir, now)
	if err != nil {
		return nil, fmt.Errorf("load the node's identity from %s: %w", pkiDir, err)
	}
	return n, nil
}

func loadNode(pkiDir string, now time.Time) (*Node, error) {
	caPEM, err := os.ReadFile(filepath.Join(pkiDir, fileCACert))
	if err != nil {
		return nil, err
	}
	chain, err := os.ReadFile(filepath.Join(pkiDir, fileNodeCert))
	if err != nil {
		return nil, err
	}
	keyPEM, err := readPrivate(filepath.Join(pkiDir, fileNodeKey))
	if err != nil {
		return nil, err
	}
	return parseNode(chain, keyPEM, caPEM, now)
}

// parseNode checks a node's identity at a time; the zero time: at none.
func parseNode(chain, keyPEM, caPEM []byte, now time.Time) (*Node, error) {
	all, err := parseAuthorities(caPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fileCACert, err)
	}
	pair, err := tls.X509KeyPair(chain, keyPEM)
	if err != nil {
		return nil, err
	}
	leaf := pair.Leaf
	if now.After(leaf.NotAfter) {
		return nil, fmt.Errorf("the node's certificate expired on %s, while no agent ran here that could renew it. On a replica: coterie member remove %s, then coterie member add-token --role witness; "+
			"here: remove this node directory and run the command that add-token prints", leaf.NotAfter.Format(time.DateTime), leaf.Subject.CommonName)
	}
	if !now.IsZero() && now.Before(leaf.NotBefore) {
		return nil, fmt.Errorf("the node's certificate is valid from %s on, and this machine's clock says %s: set the clock. If it is right, the clock was ahead when a replica signed the certificate: "+
			"run coterie member replace %s on a replica, and here coterie destroy and what the first command prints",
			leaf.NotBefore.Format(time.DateTime), now.Format(time.DateTime), leaf.Subject.CommonName)
	}
	n := &Node{Pin: KeyPin(leaf)}
	n.trust.Store(newTrust(all...))
	check := n.Verify
	if now.IsZero() {
		check = n.Issued
	}
	if n.Identity, err = check(leaf, x509.ExtKeyUsageServerAuth); err != nil {
		return nil, err
	}
	// Every handshake includes the authority: a joiner that knows only its pin must see it.
	pair.Certificate = [][]byte{leaf.Raw, n.trust.Load().issuer(leaf).Raw}
	n.cert.Store(&pair)
	return n, nil
}

// Certificate returns the certificate in use, with its key and its authority.
func (n *Node) Certificate() *tls.Certificate { return n.cert.Load() }

// Authorities returns the trusted authorities. The pool is not changed later; a rotation replaces it.
func (n *Node) Authorities() *x509.CertPool { return n.trust.Load().pool }

// Node checks that the grant makes a usable identity with that key, and returns it. Nothing is written.
func (g Grant) Node(key *ecdsa.PrivateKey) (*Node, error) {
	keyPEM, err := pemKey(key)
	if err != nil {
		return nil, err
	}
	return parseNode(g.CertPEM, keyPEM, g.CACertPEM, time.Now())
}

// Verify checks that a certificate belongs to a node of this node's group and returns that node's identity.
func (n *Node) Verify(leaf *x509.Certificate, usage x509.ExtKeyUsage) (Identity, error) {
	return n.trust.Load().verify(leaf, usage)
}

// Issued is Verify whatever the time is: it takes a certificate that has expired, or is not valid yet by this host's
// clock, for what tells who is there. It allows nothing. One that none of the authorities here has signed is an
// ErrAuthority; if it names a node of the group all the same, that is returned too.
func (n *Node) Issued(leaf *x509.Certificate, usage x509.ExtKeyUsage) (Identity, error) {
	return n.trust.Load().issued(leaf, usage)
}

// SaveListener writes listener.key and listener.crt into pkiDir.
func SaveListener(pkiDir string, certPEM, keyPEM []byte) error {
	if err := writeFile(pkiDir, fileListenerKey, keyPEM, 0o600); err != nil {
		return fmt.Errorf("save the listener's certificate: %w", err)
	}
	if err := writeFile(pkiDir, fileListenerCert, certPEM, 0o644); err != nil {
		return fmt.Errorf("save the listener's certificate: %w", err)
	}
	return nil
}

// ListenerFiles returns the paths of the files that SaveListener writes.
func ListenerFiles(pkiDir string) (cert, key string) {
	return filepath.Join(pkiDir, fileListenerCert), filepath.Join(pkiDir, fileListenerKey)
}

// TLSFiles returns the paths of the node's certificate, its key and the authorities' certificates, for programs that
// load them themselves.
func TLSFiles(pkiDir string) (cert, key, ca string) {
	return filepath.Join(pkiDir, fileNodeCert), filepath.Join(pkiDir, fileNodeKey), filepath.Join(pkiDir, fileCACert)
}

func pemCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func pemKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// keyOf finds the private key with that pin among those in PEM.
func keyOf(keysPEM []byte, pin string) (*ecdsa.PrivateKey, error) {
	found := 0
	for block, rest := pem.Decode(keysPEM); block != nil; block, rest = pem.Decode(rest) {
		if found++; block.Type != "PRIVATE KEY" {
			return nil, errors.New("no PEM private key found")
		}
		key, err := parseKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		if got, err := pinOf(key); err != nil || got == pin {
			return key, err
		}
	}
	if found == 0 {
		return nil, errors.New("no PEM private key found")
	}
	return nil, errors.New("the authority's key does not belong to its certificate")
}

// pinOf returns the pin of a private key's public half.
func pinOf(key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the key is %T: only ECDSA P-256 keys are used", k)
	}
	return key, requireP256(key.Public())
}

// readPrivate reads a private key. It refuses a file that others may read.
func readPrivate(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s may be read by others (mode %04o): run chmod 600 %s, and consider the key stolen", path, st.Mode().Perm(), path)
	}
	return os.ReadFile(path)
}

// writeFile replaces dir/name in one step and returns when it is on disk.
func writeFile(dir, name string, data []byte, mode fs.FileMode) error {
	return durable.Replace(filepath.Join(dir, name), data, mode)
}
