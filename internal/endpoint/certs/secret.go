package certs

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Secret is 32 bytes for one purpose that only the replicas of a group have. It is derived (HKDF, RFC 5869) from the
// private key of the issuing authority, which witnesses and clients do not hold, so it changes when the authority is
// rotated.
type Secret struct {
	dir, purpose string

	mu  sync.Mutex
	at  time.Time // modification time of the ca.crt that it was derived for
	now []byte    // guarded by mu
}

// NewSecret returns the secret for a purpose, or an error if pkiDir holds no key of the authority, as on a witness.
func NewSecret(pkiDir, purpose string) (*Secret, error) {
	s := &Secret{dir: pkiDir, purpose: purpose}
	return s, s.read()
}

// Get returns the current secret. While the authority's files cannot be read it returns the last one.
func (s *Secret) Get() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.read()
	return s.now
}

func (s *Secret) read() error {
	st, err := os.Stat(filepath.Join(s.dir, fileCACert))
	if err != nil || st.ModTime().Equal(s.at) {
		return err
	}
	all, keys, err := readAuthorities(s.dir)
	if err != nil {
		return err
	}
	if keys == nil {
		return errors.New("this node has no key of the group's authority")
	}
	key, err := keyOf(keys, KeyPin(all[0]))
	if err != nil {
		return fmt.Errorf("read the authority's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	now, err := hkdf.Key(sha256.New, der, nil, "coterie "+s.purpose, sha256.Size)
	if err == nil {
		s.now, s.at = now, st.ModTime()
	}
	return err
}
