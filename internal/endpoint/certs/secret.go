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

// A Secret is 32 bytes for one purpose that all replicas of a group have and nobody else: they are derived (HKDF, RFC 5869) from the private
// key of the authority that issues, which witnesses and clients do not hold. It changes when the authority is rotated.
type Secret struct {
	dir, purpose string

	mu  sync.Mutex
	at  time.Time // when the certificates on which it rests were written
	now []byte    // guarded by mu
}

// NewSecret returns the secret for a purpose of the replica with that pkiDir; an error where the authority's key is not, as on a witness.
func NewSecret(pkiDir, purpose string) (*Secret, error) {
	s := &Secret{dir: pkiDir, purpose: purpose}
	return s, s.read()
}

// Get returns the secret as it is now. While the authority's files cannot be read it is what it was.
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
