package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// This file changes which authorities a node trusts. ca.crt holds their certificates; the first one issues. On a
// replica, ca.key holds their keys in any order. Each step replaces one file after the other, in such an order that the
// directory is valid after every write: a key without a certificate does no harm.

// maxAuthorities is how many authorities a node trusts at once: the group's, and during a rotation the next one.
const maxAuthorities = 2

// trust is the set of trusted authorities; it is immutable.
type trust struct {
	cas  []*x509.Certificate
	pool *x509.CertPool
}

func newTrust(cas ...*x509.Certificate) *trust {
	t := &trust{cas, x509.NewCertPool()}
	for _, ca := range cas {
		t.pool.AddCert(ca)
	}
	return t
}

// issuer returns the authority that signed a certificate, or nil.
func (t *trust) issuer(leaf *x509.Certificate) *x509.Certificate {
	for _, ca := range t.cas {
		if bytes.Equal(leaf.RawIssuer, ca.RawSubject) && leaf.CheckSignatureFrom(ca) == nil {
			return ca
		}
	}
	return nil
}

// verify checks that a certificate belongs to a node of the group and returns that node's identity.
func (t *trust) verify(leaf *x509.Certificate, usage x509.ExtKeyUsage) (Identity, error) {
	opts := x509.VerifyOptions{Roots: t.pool, KeyUsages: []x509.ExtKeyUsage{usage}}
	if _, err := leaf.Verify(opts); err != nil {
		return Identity{}, fmt.Errorf("the certificate is not of this group: %w", err)
	}
	return t.named(leaf)
}

// issued is verify whatever the time is.
func (t *trust) issued(leaf *x509.Certificate, usage x509.ExtKeyUsage) (Identity, error) {
	id, err := t.named(leaf)
	if t.issuer(leaf) == nil || !slices.Contains(leaf.ExtKeyUsage, usage) {
		return id, ErrAuthority
	}
	return id, err
}

// ErrAuthority means that a certificate is of no authority that is trusted here.
var ErrAuthority = errors.New("the certificate is not of this group: none of the authorities that are known here has signed it for that use")

// named returns the node that a certificate names, which must be of the group.
func (t *trust) named(leaf *x509.Certificate) (Identity, error) {
	id, err := identityOf(leaf)
	if err != nil {
		return Identity{}, err
	}
	if group := groupOf(t.cas[0]); id.Group != group {
		return Identity{}, fmt.Errorf("the certificate is of group %s, not of %s", id.Group, group)
	}
	return id, nil
}

func groupOf(ca *x509.Certificate) ag.GroupID { return ag.GroupID(ca.URIs[0].Host) }

// parseAuthorities reads the authorities of one group from PEM.
func parseAuthorities(caPEM []byte) (all []*x509.Certificate, err error) {
	for block, rest := pem.Decode(caPEM); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a %s, and not a certificate", block.Type)
		}
		ca, err := parseCACert(block.Bytes)
		if err != nil {
			return nil, err
		}
		if all = append(all, ca); len(all) > maxAuthorities || groupOf(ca) != groupOf(all[0]) {
			return nil, fmt.Errorf("more than %d authorities, or of more than one group", maxAuthorities)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return all, nil
}

// PinOfAuthority returns the pin of an authority of that group from its certificate in PEM.
func PinOfAuthority(certPEM []byte, group ag.GroupID) (string, error) {
	all, err := parseAuthorities(certPEM)
	if err != nil {
		return "", fmt.Errorf("read the new authority: %w", err)
	}
	if len(all) != 1 || groupOf(all[0]) != group {
		return "", errors.New("read the new authority: it is not one authority of this group")
	}
	return KeyPin(all[0]), nil
}

// SaveAuthorityKey adds the key of the next authority to ca.key, so that a replica can issue with it. It removes the
// keys of authorities that are not trusted.
func SaveAuthorityKey(pkiDir string, keyPEM []byte) error {
	believed, keys, err := readAuthorities(pkiDir)
	if err != nil {
		return err
	}
	return saveKeys(pkiDir, believed, append(slices.Clone(keyPEM), keys...), keyPEM)
}

// saveKeys writes ca.key: extra, and those of keys that belong to the authorities in all.
func saveKeys(pkiDir string, all []*x509.Certificate, keys, extra []byte) error {
	out := slices.Clone(extra)
	for _, ca := range all {
		key, err := keyOf(keys, KeyPin(ca))
		if err != nil {
			return err
		}
		one, err := pemKey(key)
		if err != nil {
			return err
		}
		if !bytes.Contains(out, one) {
			out = append(out, one...)
		}
	}
	return writeFile(pkiDir, fileCAKey, out, 0o600)
}

// AuthorityKey returns the key of the authority with that pin from ca.key, in PEM, or an error if it is not there. Its
// holder can admit nodes.
func AuthorityKey(pkiDir, pin string) ([]byte, error) {
	keys, err := readPrivate(filepath.Join(pkiDir, fileCAKey))
	if err != nil {
		return nil, err
	}
	key, err := keyOf(keys, pin)
	if err != nil {
		return nil, err
	}
	return pemKey(key)
}

// TrustAuthority adds an authority to those that the directory's node trusts; it issues nothing yet.
func TrustAuthority(pkiDir string, certPEM []byte) error {
	added, err := parseAuthorities(certPEM)
	if err != nil {
		return err
	}
	return changeAuthorities(pkiDir, func(all []*x509.Certificate) []*x509.Certificate {
		if slices.ContainsFunc(all, added[0].Equal) {
			return all
		}
		return append(all[:1:1], added[0]) // replaces the next one of an abandoned rotation
	})
}

// PreferAuthority makes the authority with that pin the one that issues. It must be trusted already, and on a replica
// ca.key must hold its key.
func PreferAuthority(pkiDir, pin string) error {
	all, keys, err := readAuthorities(pkiDir)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(ca *x509.Certificate) bool { return KeyPin(ca) == pin })
	if at < 0 {
		return fmt.Errorf("this node does not believe the authority %s yet", pin)
	}
	if keys != nil {
		if _, err := keyOf(keys, pin); err != nil {
			return err
		}
	}
	return changeAuthorities(pkiDir, func(all []*x509.Certificate) []*x509.Certificate {
		return slices.Concat(all[at:at+1], all[:at], all[at+1:])
	})
}

// ForgetAuthorities removes all authorities but the issuing one, and their keys.
func ForgetAuthorities(pkiDir string) error {
	err := changeAuthorities(pkiDir, func(all []*x509.Certificate) []*x509.Certificate { return all[:1] })
	if err != nil {
		return err
	}
	all, keys, err := readAuthorities(pkiDir)
	if err != nil || keys == nil {
		return err
	}
	return saveKeys(pkiDir, all, keys, nil)
}

// changeAuthorities replaces ca.crt if change returns something else.
func changeAuthorities(pkiDir string, change func([]*x509.Certificate) []*x509.Certificate) error {
	all, _, err := readAuthorities(pkiDir)
	if err != nil {
		return err
	}
	var was, is []byte
	for _, ca := range all {
		was = append(was, pemCert(ca.Raw)...)
	}
	for _, ca := range change(all) {
		is = append(is, pemCert(ca.Raw)...)
	}
	if bytes.Equal(was, is) {
		return nil
	}
	return writeFile(pkiDir, fileCACert, is, 0o644)
}

// readAuthorities reads ca.crt and, on a replica, ca.key.
func readAuthorities(pkiDir string) (all []*x509.Certificate, keys []byte, err error) {
	data, err := os.ReadFile(filepath.Join(pkiDir, fileCACert))
	if err != nil {
		return nil, nil, err
	}
	if all, err = parseAuthorities(data); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", filepath.Join(pkiDir, fileCACert), err)
	}
	keys, err = readPrivate(filepath.Join(pkiDir, fileCAKey))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil, nil
	}
	return all, keys, err
}

// ErrNotPinned means that a chain holds no authority with the pin.
var ErrNotPinned = errors.New("the chain holds no authority with that pin")

// VerifyPinned returns the identity in the first certificate of a chain. The chain must hold the authority with that
// pin, which must have signed the certificate; ErrNotPinned otherwise if it holds no such authority.
func VerifyPinned(chain []*x509.Certificate, pin string, usage x509.ExtKeyUsage) (Identity, error) {
	i := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return c.IsCA && KeyPin(c) == pin })
	if i < 1 {
		return Identity{}, ErrNotPinned
	}
	ca, err := parseCACert(chain[i].Raw)
	if err != nil {
		return Identity{}, err
	}
	return newTrust(ca).verify(chain[0], usage)
}
