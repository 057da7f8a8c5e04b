package clientcert

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzCRL reads files of revocation lists: whatever they hold, a list is whole or the file is refused.
func FuzzCRL(f *testing.F) {
	f.Add([]byte("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"))
	f.Add([]byte("-----BEGIN X509 CRL-----\nMAA=\n"))
	f.Add([]byte("no list"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "crl")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		lists, err := readAll([]string{path})
		if err != nil && lists != nil {
			t.Error("a file that is refused has lists")
		}
		for _, l := range lists {
			if l.serials == nil {
				t.Error("a list without its serial numbers")
			}
		}
	})
}
