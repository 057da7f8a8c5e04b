package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// The kinds of node an Identity names.
const (
	KindReplica = "replica"
	KindWitness = "witness"
)

const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 90 * 24 * time.Hour // they are renewed: see Renewer
	clockSkew    = time.Hour           // certificates begin this early, so that a node whose clock is behind accepts them
	caSkew       = caLifetime / 10     // so does an authority, which cannot be renewed if the clock was ahead when it was made
	maxHosts     = 32
	dnsLabel     = `[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?`
)

var (
	groupPattern   = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	replicaPattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,29}$`)
	dnsPattern     = regexp.MustCompile(`^` + dnsLabel + `(\.` + dnsLabel + `)*$`)
)

// Identity identifies a node: it is the URI coterie://<group>/<kind>/<id> in its certificate.
type Identity struct {
	Group ag.GroupID
	Kind  string // KindReplica or KindWitness
	ID    ag.ReplicaID
}

// String returns the identity as the URI its certificate carries.
func (id Identity) String() string {
	return "coterie://" + string(id.Group) + "/" + id.Kind + "/" + string(id.ID)
}

// Validate refuses an identity that no certificate may carry.
func (id Identity) Validate() error {
	switch {
	case !groupPattern.MatchString(string(id.Group)):
		return fmt.Errorf("%q is not a group id (a UUID in lower case)", id.Group)
	case id.Kind != KindReplica && id.Kind != KindWitness:
		return fmt.Errorf("%q is not a kind of node: replica or witness", id.Kind)
	}
	return ValidateID(id.ID)
}

// ValidateID refuses a name that no node may have.
func ValidateID(id ag.ReplicaID) error {
	if !replicaPattern.MatchString(string(id)) {
		return fmt.Errorf("%q is not a node name: a lower-case letter, then at most 29 of a-z, 0-9 and _", id)
	}
	return nil
}

// ValidGroup reports whether id is a UUID in lower case, as every group's is.
func ValidGroup(id ag.GroupID) bool { return groupPattern.MatchString(string(id)) }

// identityOf reads the identity from a certificate. The certificate must have exactly one URI, well-formed, so that it
// cannot be read in two ways.
func identityOf(cert *x509.Certificate) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, errors.New("the certificate names no node of a group")
	}
	u := cert.URIs[0]
	parts := strings.Split(u.Path, "/")
	if u.Scheme != "coterie" || len(parts) != 3 || parts[0] != "" {
		return Identity{}, errors.New("the certificate names no node of a group")
	}
	id := Identity{Group: ag.GroupID(u.Host), Kind: parts[1], ID: ag.ReplicaID(parts[2])}
	if err := id.Validate(); err != nil || id.String() != u.String() {
		return Identity{}, errors.New("the certificate names no node of a group")
	}
	return id, nil
}

// KeyPin returns the hex SHA-256 of the certificate's public key (its SubjectPublicKeyInfo), by which the group's
// configuration and the join tokens know a key.
func KeyPin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// NewKey makes a private key for a node or a listener: ECDSA P-256.
func NewKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// CSRKey checks a certificate request's signature and returns its key, with the key's pin.
func CSRKey(der []byte) (crypto.PublicKey, string, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, "", fmt.Errorf("read the certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, "", fmt.Errorf("check the certificate request: %w", err)
	}
	if err := requireP256(csr.PublicKey); err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	return csr.PublicKey, hex.EncodeToString(sum[:]), nil
}

// requireP256 holds every key to ECDSA P-256: with Ed25519 stock libpq fails as soon as channel binding is offered.
func requireP256(pub crypto.PublicKey) error {
	if k, ok := pub.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		return fmt.Errorf("the key is %T: only ECDSA P-256 keys are used", pub)
	}
	return nil
}

// CA is a group's certificate authority: ECDSA P-256 with SHA-256, ten years. Replicas hold its key, the witness does
// not.
type CA struct {
	CertPEM []byte
	Cert    *x509.Certificate
	Group   ag.GroupID
	Life    time.Duration // of the certificates it issues; 90 days unless it is changed

	key       *ecdsa.PrivateKey
	bundlePEM []byte // all trusted authorities, this one first
	keysPEM   []byte // their keys, in any order
}

// NewCA makes the authority of a new group.
func NewCA(group ag.GroupID, name string) (*CA, error) {
	if !groupPattern.MatchString(string(group)) {
		return nil, fmt.Errorf("%q is not a group id (a UUID in lower case)", group)
	}
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	tmpl, err := template(caLifetime, "Coterie group "+name)
	if err != nil {
		return nil, err
	}
	tmpl.URIs = []*url.URL{{Scheme: "coterie", Host: string(group)}}
	tmpl.NotBefore = now().Add(-caSkew)
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.MaxPathLenZero = true, true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	return newCA(der, key)
}

func newCA(der []byte, key *ecdsa.PrivateKey) (*CA, error) {
	cert, err := parseCACert(der)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("the authority's key does not belong to its certificate")
	}
	keyPEM, err := pemKey(key)
	if err != nil {
		return nil, err
	}
	certPEM := pemCert(der)
	return &CA{
		CertPEM: certPEM, Cert: cert, Group: ag.GroupID(cert.URIs[0].Host), key: key, bundlePEM: certPEM, keysPEM: keyPEM, Life: leafLifetime,
	}, nil
}

// parseCACert reads a certificate and insists that it is a group's authority.
func parseCACert(der []byte) (*x509.Certificate, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	if !cert.IsCA || !cert.BasicConstraintsValid || len(cert.URIs) != 1 || cert.URIs[0].Scheme != "coterie" ||
		!groupPattern.MatchString(cert.URIs[0].Host) || cert.URIs[0].Path != "" {
		return nil, errors.New("the certificate is not that of a group's authority")
	}
	return cert, requireP256(cert.PublicKey)
}

// ParseCA reads the issuing authority from the PEM files of a pki directory: the first certificate, and the key that
// belongs to it.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	all, err := parseAuthorities(certPEM)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	key, err := keyOf(keyPEM, KeyPin(all[0]))
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	ca, err := newCA(all[0].Raw, key)
	if err != nil {
		return nil, err
	}
	ca.bundlePEM, ca.keysPEM = certPEM, keyPEM
	return ca, nil
}

// LoadCA reads ca.crt and ca.key of dir.
func LoadCA(dir string) (*CA, error) {
	cert, err := os.ReadFile(filepath.Join(dir, fileCACert))
	if err != nil {
		return nil, fmt.Errorf("load the group's authority: %w", err)
	}
	key, err := readPrivate(filepath.Join(dir, fileCAKey))
	if err != nil {
		return nil, fmt.Errorf("load the group's authority: %w", err)
	}
	ca, err := ParseCA(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load the group's authority from %s: %w", dir, err)
	}
	return ca, nil
}

// Save writes ca.key and ca.crt into dir, durably.
func (ca *CA) Save(dir string) error {
	if err := writeFile(dir, fileCAKey, ca.keysPEM, 0o600); err != nil {
		return fmt.Errorf("save the group's authority: %w", err)
	}
	if err := writeFile(dir, fileCACert, ca.bundlePEM, 0o644); err != nil {
		return fmt.Errorf("save the group's authority: %w", err)
	}
	return nil
}

// KeyPEM returns the content of ca.key: the private keys of this and the other trusted authorities. Their holder can
// admit nodes.
func (ca *CA) KeyPEM() []byte { return ca.keysPEM }

// Pin returns the pin of the authority's key, as join tokens carry it.
func (ca *CA) Pin() string { return KeyPin(ca.Cert) }

// Name returns the group's name at the time the authority was made.
func (ca *CA) Name() string { return strings.TrimPrefix(ca.Cert.Subject.CommonName, "Coterie group ") }

// IssueNode signs the certificate of a node, valid for 90 days as client and as server under the addresses of hosts and
// of the machine itself. It returns the chain in PEM: the node's certificate, then the authority's.
func (ca *CA) IssueNode(id Identity, pub crypto.PublicKey, hosts []string) ([]byte, error) {
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("issue a node certificate: %w", err)
	}
	if id.Group != ca.Group {
		return nil, fmt.Errorf("issue a node certificate: this is the authority of group %s, not of %s", ca.Group, id.Group)
	}
	uri, err := url.Parse(id.String())
	if err != nil {
		return nil, fmt.Errorf("issue a node certificate: %w", err)
	}
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	return ca.issue(pub, leaf{string(id.ID), uri, usage}, hosts)
}

// IssueListener makes a key and a certificate for a node's client port. It carries no identity and cannot be used as a
// client, so that it opens nothing between nodes.
func (ca *CA) IssueListener(hosts []string) (certPEM, keyPEM []byte, err error) {
	key, err := NewKey()
	if err != nil {
		return nil, nil, fmt.Errorf("make the listener's key: %w", err)
	}
	certPEM, err = ca.issueListener(key.Public(), hosts)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = pemKey(key)
	return certPEM, keyPEM, err
}

// leaf is what a certificate says of its holder beside the names.
type leaf struct {
	name  string   // the common name
	uri   *url.URL // the identity; nil: none
	usage []x509.ExtKeyUsage
}

// issue signs a certificate for the key and the hosts, and returns the chain in PEM.
func (ca *CA) issue(pub crypto.PublicKey, l leaf, hosts []string) ([]byte, error) {
	if err := requireP256(pub); err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	tmpl, err := template(ca.Life, l.name)
	if err != nil {
		return nil, err
	}
	if err := addHosts(tmpl, hosts); err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	if l.uri != nil {
		tmpl.URIs = []*url.URL{l.uri}
	}
	tmpl.KeyUsage, tmpl.ExtKeyUsage = x509.KeyUsageDigitalSignature, l.usage
	tmpl.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.Cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	return slices.Concat(pemCert(der), ca.CertPEM), nil
}

func template(life time.Duration, cn string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber:       serial.Add(serial, big.NewInt(1)),
		Subject:            pkix.Name{CommonName: cn},
		NotBefore:          now().Add(-min(clockSkew, life/10)),
		NotAfter:           now().Add(life),
		SignatureAlgorithm: x509.ECDSAWithSHA256,
	}, nil
}

// addHosts sets the subject alternative names, which always include the machine's loopback names.
func addHosts(tmpl *x509.Certificate, hosts []string) error {
	if err := ValidateHosts(hosts); err != nil {
		return err
	}
	for _, h := range slices.Concat([]string{"localhost", "127.0.0.1", "::1"}, hosts) {
		if ip := net.ParseIP(h); ip != nil {
			if !slices.ContainsFunc(tmpl.IPAddresses, ip.Equal) {
				tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
			}
		} else if !slices.Contains(tmpl.DNSNames, h) {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	return nil
}

// ValidateHosts refuses host names that no certificate may carry.
func ValidateHosts(hosts []string) error {
	if len(hosts) > maxHosts {
		return fmt.Errorf("%d host names are more than a certificate may carry (%d)", len(hosts), maxHosts)
	}
	for _, h := range hosts {
		if net.ParseIP(h) == nil && (len(h) > 253 || !dnsPattern.MatchString(h)) {
			return fmt.Errorf("%q is neither an IP address nor a host name (no port, no brackets)", h)
		}
	}
	return nil
}

// Grant holds the certificates of an admitted node; see CA.Admit and InstallNode.
type Grant struct {
	CertPEM   []byte `json:"cert"` // the node's certificate, then the authority's
	CACertPEM []byte `json:"ca_cert"`
	CAKeyPEM  []byte `json:"ca_key,omitempty"` // replicas only
	Salts     []byte `json:"salts,omitempty"`  // replicas only: see the function Salts
}

// Admit makes the grant for a node whose token was checked and consumed: its certificate, for the key and the names of
// the request, and for a replica the authority's key.
func (ca *CA) Admit(id Identity, csr []byte, hosts []string) (Grant, error) {
	pub, _, err := CSRKey(csr)
	if err != nil {
		return Grant{}, err
	}
	grant := Grant{CACertPEM: ca.bundlePEM}
	if grant.CertPEM, err = ca.IssueNode(id, pub, hosts); err != nil {
		return Grant{}, err
	}
	if id.Kind == KindReplica {
		grant.CAKeyPEM = ca.keysPEM
	}
	return grant, nil
}

// NewCSR makes a certificate request for the key. It names no host: the authority decides the names.
func NewCSR(key *ecdsa.PrivateKey) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA256}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return csr, nil
}
