package clientcert

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/regular"
)

// Limits of what is read: bytes of all lists together, and files of a directory.
const (
	maxBytes = 64 << 20
	maxFiles = 1024
)

// lookEvery is how often the files are looked at for a change, at most. retryEvery is how often files that could not be
// used are read again though they have not changed: the reason may be outside of them.
const (
	lookEvery  = time.Second
	retryEvery = 10 * time.Second
)

// pemBegin begins each list in a file.
const pemBegin = "-----BEGIN X509 CRL-----"

// CRL has the certificate revocation lists in a file, or in the files of a directory, and reads them again when they
// change. It is safe for concurrent use.
type CRL struct {
	path string
	warn func(error) // told when changed files cannot be used, once for each state of them

	mu     sync.Mutex
	looked time.Time
	seen   string    // the state of the files at the last reading, whether it succeeded or not
	failed time.Time // the time of the last reading if it failed, else the zero time
	lists  []list
}

// list is one revocation list.
type list struct {
	*x509.RevocationList
	serials map[string]bool // in hexadecimal
}

// Open reads the lists at path. warn is told later, from any goroutine, of changed files that cannot be used; the lists
// read before stay in force then.
func Open(path string, warn func(error)) (*CRL, error) {
	c := &CRL{path: path, warn: warn}
	return c, c.Read()
}

// Read reads the lists again. After an error those read before stay in force.
func (c *CRL) Read() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

func (c *CRL) read() error {
	files, state, err := c.files()
	c.seen, c.looked, c.failed = state, time.Now(), time.Now()
	if err != nil {
		return err
	}
	lists, err := readAll(files)
	if err == nil && len(lists) == 0 {
		err = fmt.Errorf("no revocation list in PEM is in %s; convert one in DER with: openssl crl -inform DER -in LIST -out LIST.pem", c.path)
	}
	if err == nil {
		c.lists, c.failed = lists, time.Time{}
	}
	return err
}

// files returns the files to read, and a text that changes when one of them does.
func (c *CRL) files() (files []string, state string, err error) {
	st, err := os.Stat(c.path)
	if err != nil {
		return nil, err.Error(), err
	}
	if files = []string{c.path}; st.IsDir() {
		entries, err := os.ReadDir(c.path)
		if err != nil {
			return nil, err.Error(), err
		}
		if len(entries) > maxFiles {
			err := fmt.Errorf("%s has more than %d files", c.path, maxFiles)
			return nil, err.Error(), err
		}
		files = nil
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				files = append(files, filepath.Join(c.path, e.Name()))
			}
		}
	}
	var b strings.Builder
	files = slices.DeleteFunc(files, func(f string) bool {
		st, err := os.Stat(f) // of the file behind a link, as c_rehash makes them
		if err != nil || !st.Mode().IsRegular() {
			return f != c.path
		}
		changed := st.Sys().(*syscall.Stat_t).Ctim // the time of the last change of its permissions, too
		fmt.Fprintf(&b, "%s %d %d %d\n", f, st.Size(), st.ModTime().UnixNano(), changed.Nano())
		return false
	})
	return files, b.String(), nil
}

func readAll(files []string) (lists []list, err error) {
	left := int64(maxBytes)
	for _, path := range files {
		f, err := regular.Open(path)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(io.LimitReader(f, left+1))
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		if left -= int64(len(text)); left < 0 {
			return nil, fmt.Errorf("%s: the revocation lists have more than %d bytes", path, maxBytes)
		}
		read := 0
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "X509 CRL" {
				continue // a directory of c_rehash has authorities, too
			}
			l, err := parse(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("revocation list in %s: %w", path, err)
			}
			lists = append(lists, l)
			read++
		}
		if read < bytes.Count(text, []byte(pemBegin)) { // package pem passes over a block that is not whole
			return nil, fmt.Errorf("a revocation list in %s is not whole", path)
		}
	}
	return lists, nil
}

// parse reads one list. A critical extension, of the list or of an entry, changes which certificates it is about.
func parse(der []byte) (list, error) {
	crl, err := x509.ParseRevocationList(der)
	if err != nil {
		return list{}, err
	}
	l := list{crl, map[string]bool{}}
	for _, e := range crl.Extensions {
		if e.Critical {
			return l, unsupported(e.Id)
		}
	}
	for _, r := range crl.RevokedCertificateEntries {
		for _, e := range r.Extensions {
			if e.Critical {
				return l, unsupported(e.Id)
			}
		}
		l.serials[r.SerialNumber.Text(16)] = true
	}
	return l, nil
}

func unsupported(id asn1.ObjectIdentifier) error {
	return fmt.Errorf("it is only about a part of the certificates, or about those of other authorities (critical extension %s), which is not supported: use the whole list of the authority", id)
}

// Errors of Check.
var (
	ErrRevoked = errors.New("the certificate is revoked")
	ErrNoList  = errors.New("there is no revocation list of the certificate's issuer")
	ErrExpired = errors.New("the revocation list of the certificate's issuer has expired, or is not valid yet")
)

// Check returns nil if one of the verified chains is good at the time now. As PostgreSQL has it, every certificate of a
// chain, the authority at its end included, needs a list that its issuer signed and that is valid now.
func (c *CRL) Check(chains [][]*x509.Certificate, now time.Time) error {
	lists := c.current()
	err := ErrNoList
	for _, chain := range chains {
		if err = checkChain(lists, chain, now); err == nil {
			return nil
		}
	}
	return err
}

// current returns the lists in force, after a look at the files if the last one was a while ago.
func (c *CRL) current() []list {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookEvery {
		return c.lists
	}
	c.looked = time.Now()
	_, state, _ := c.files()
	changed := state != c.seen
	if changed || !c.failed.IsZero() && time.Since(c.failed) >= retryEvery {
		if err := c.read(); err != nil && changed && c.warn != nil {
			c.warn(err)
		}
	}
	return c.lists
}

func checkChain(lists []list, chain []*x509.Certificate, now time.Time) error {
	for i, cert := range chain {
		issuer := chain[min(i+1, len(chain)-1)] // the last one is its own
		if err := checkOne(lists, cert, issuer, now); err != nil {
			return fmt.Errorf("%w (certificate %q, issued by %q)", err, cert.Subject, cert.Issuer)
		}
	}
	return nil
}

func checkOne(lists []list, cert, issuer *x509.Certificate, now time.Time) error {
	err := ErrNoList
	for _, l := range lists {
		if !bytes.Equal(l.RawIssuer, cert.RawIssuer) || l.CheckSignatureFrom(issuer) != nil {
			continue
		}
		if l.serials[cert.SerialNumber.Text(16)] {
			return ErrRevoked // an expired list revoked it, too
		}
		if now.Before(l.ThisUpdate) || !l.NextUpdate.IsZero() && now.After(l.NextUpdate) {
			if err != nil {
				err = ErrExpired
			}
			continue
		}
		err = nil
	}
	return err
}
