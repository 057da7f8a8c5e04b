package clientcert

import (
	"crypto/x509"
	"fmt"
	"io"

	"github.com/coteriedb/coterie/internal/lib/regular"
)

// maxAuthorities is the size of a file of authorities, in bytes, above which it is refused.
const maxAuthorities = 16 << 20

// Authorities reads the authorities that issue client certificates, in PEM, from a file.
func Authorities(path string) (*x509.CertPool, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxAuthorities+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxAuthorities {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxAuthorities)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("no certificate in PEM is in %s", path)
	}
	return pool, nil
}
