package endpoint

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
)

// KeyPin returns the hex SHA-256 of the certificate's public key (its SubjectPublicKeyInfo), by which the record and the
// join tokens know a key.
func KeyPin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}
