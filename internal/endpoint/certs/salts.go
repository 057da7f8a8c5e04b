package certs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// fileSalts is beside ca.key, on replicas only.
const fileSalts = "salts.key"

// saltsSize is the size of the secret in bytes.
const saltsSize = 32

// Salts returns the secret of which the replicas of a group derive salts for names that do not exist. It is the same on
// every replica for the life of the group: a salt that changed with the authority would tell such names apart. The
// first call derives it from the authority's key, and keeps it in a file of its own; a joiner is handed that file.
func Salts(pkiDir string) ([]byte, error) {
	text, err := readPrivate(filepath.Join(pkiDir, fileSalts))
	if errors.Is(err, fs.ErrNotExist) {
		return makeSalts(pkiDir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the secret of salts: %w", err)
	}
	secret, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) != saltsSize {
		return nil, fmt.Errorf("%s in %s has to be %d bytes in hexadecimal: copy it from another replica", fileSalts, pkiDir, saltsSize)
	}
	return secret, nil
}

func makeSalts(pkiDir string) ([]byte, error) {
	from, err := NewSecret(pkiDir, "salts")
	if err != nil {
		return nil, err
	}
	secret := from.Get()
	return secret, saveSalts(pkiDir, secret)
}

func saveSalts(pkiDir string, secret []byte) error {
	if len(secret) != saltsSize {
		return fmt.Errorf("the secret of salts has %d bytes, and not %d", len(secret), saltsSize)
	}
	return writeFile(pkiDir, fileSalts, []byte(hex.EncodeToString(secret)+"\n"), 0o600)
}
