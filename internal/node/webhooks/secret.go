package webhooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/regular"
)

// Bounds of a file with secrets, in bytes, and of a file with authorities; of the secrets in one; of the bytes of each.
const (
	maxSecretFile = 4 << 10
	maxCAFile     = 1 << 20
	maxSecrets    = 2
	minKey        = 24
	maxKey        = 64
)

// secretPrefix begins a secret, by the convention of Standard Webhooks. The rest is its key in base64.
const secretPrefix = "whsec_"

// Check returns why a receiver gets nothing: its files cannot be used by owner, the user that runs the node.
func Check(w config.Webhook, owner int) error {
	if _, err := keys(w.SecretFile, owner); err != nil {
		return fmt.Errorf("secret_file: %w", err)
	}
	if _, err := authorities(w.CA); err != nil {
		return fmt.Errorf("ca: %w", err)
	}
	return nil
}

// keys reads the keys of a file of secrets, the newest first. Each request is signed by all of them, so that a receiver
// and its senders need not change their secret at the same moment. Only root and owner may have rights to the file, and
// the group of a file of root may read it. No error tells what is in it.
func keys(path string, owner int) ([][]byte, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	others := os.FileMode(0o077)
	if ok && st.Uid == 0 && owner != 0 {
		others = 0o037
	}
	switch perm := info.Mode().Perm(); {
	case !ok || !slices.Contains([]int{0, owner}, int(st.Uid)):
		return nil, fmt.Errorf("%s belongs to another user than root and the node's", path)
	case perm&others != 0:
		return nil, fmt.Errorf("%s may be used by other users: chmod 600", path)
	case int(st.Uid) == owner && perm&0o400 == 0, int(st.Uid) != owner && perm&0o040 == 0: // root may run this, and reads everything
		return nil, fmt.Errorf("%s may not be read by the node's user", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	lines := strings.Fields(string(text))
	if len(lines) == 0 || len(lines) > maxSecrets || len(text) > maxSecretFile {
		return nil, fmt.Errorf("%s has %d secrets; one is needed, or two while it is changed", path, len(lines))
	}
	var out [][]byte
	for i, line := range lines {
		rest, ok := strings.CutPrefix(line, secretPrefix)
		key, err := base64.StdEncoding.DecodeString(rest)
		if !ok || err != nil || len(key) < minKey || len(key) > maxKey {
			return nil, fmt.Errorf("%s: secret %d is not %s and %d to %d bytes in base64", path, i+1, secretPrefix, minKey, maxKey)
		}
		out = append(out, key)
	}
	return out, nil
}

// authorities reads the authorities of a receiver's certificate; nil, those of the system, if path is empty.
func authorities(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxCAFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(path + " has no certificate in PEM")
	}
	return pool, nil
}

// sign returns the signatures of a body that is sent at a time, in seconds since 1970. The time is signed, too: a
// receiver refuses a request that was recorded and is sent again later.
func sign(keys [][]byte, id, at string, body []byte) string {
	var out []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(id + "." + at + "."))
		_, _ = mac.Write(body)
		out = append(out, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(out, " ")
}
