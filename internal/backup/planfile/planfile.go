// Package planfile keeps a node's plan of backups in the node directory, with the configuration of its tool.
//
// It owns the files of the directory backup. Start reading at Open.
package planfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/pgbackrest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// name is the file of the plan.
const name = "plan.json"

// maxFile bounds what is read of a file.
const maxFile = 1 << 20

// ErrNone means that the node has no plan.
var ErrNone = fail.Error{Kind: fail.Refused, Err: errors.New("this node has no backups configured: coterie backup enable --repo DIR|s3://BUCKET/PREFIX")}

// Path returns the path of a node's plan.
func Path(l config.Layout) string { return filepath.Join(l.Backup(), name) }

// Load returns the plan of the node, ErrNone if there is none.
func Load(l config.Layout) (p backup.Plan, err error) {
	b, err := read(Path(l))
	if errors.Is(err, fs.ErrNotExist) {
		return p, ErrNone
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err == nil && p.Tool != pgbackrest.Name {
		err = fmt.Errorf("the tool %q is not known to this release", p.Tool)
	}
	if err != nil {
		return p, fmt.Errorf("the plan of backups in %s: %w", l.Backup(), err)
	}
	return p, nil
}

// Open returns the plan of the node and its tool, ErrNone if there is none.
func Open(l config.Layout) (backup.Plan, *pgbackrest.Tool, error) {
	p, err := Load(l)
	if err != nil {
		return p, nil, err
	}
	s, err := Secrets(l.Backup())
	return p, pgbackrest.New(p, s, l.Backup()), err
}

// Secrets returns those of the tool's configuration in dir, which are kept out of messages.
func Secrets(dir string) (backup.Secrets, error) {
	b, err := read(filepath.Join(dir, pgbackrest.ConfigFile))
	if err != nil {
		return backup.Secrets{}, fmt.Errorf("the configuration of the backups: %w; run coterie backup enable again", err)
	}
	return pgbackrest.SecretsOf(string(b)), nil
}

// Prepare makes the directory and writes the tool's configuration for a plan.
func Prepare(dir string, p backup.Plan, s backup.Secrets, on pgbackrest.Server) error {
	for _, d := range []string{dir, filepath.Join(dir, "conf.d"), filepath.Join(dir, "log"), filepath.Join(dir, "lock"), filepath.Join(dir, "spool")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make the directory of backups: %w", err)
		}
	}
	return durable.Replace(filepath.Join(dir, pgbackrest.ConfigFile), []byte(pgbackrest.Config(p, s, on, dir)), 0o600)
}

// Remember returns a function that puts back what the node has now: its plan and the tool's configuration, or none.
func Remember(l config.Layout) (undo func() error, err error) {
	path := filepath.Join(l.Backup(), pgbackrest.ConfigFile)
	was, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return Remove(l) }, nil
	}
	return func() error { return durable.Replace(path, was, 0o600) }, err
}

// Save makes the plan the node's. Its configuration is there already.
func Save(l config.Layout, p backup.Plan) error {
	return durable.ReplaceJSON(Path(l), p)
}

// Remove takes the plan and the configuration away, secrets included. The files of an administrator in conf.d stay.
func Remove(l config.Layout) error {
	return errors.Join(durable.Remove(Path(l)), durable.Remove(filepath.Join(l.Backup(), pgbackrest.ConfigFile)))
}

func read(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return nil, fmt.Errorf("%s is no file of this program", path)
	}
	return os.ReadFile(path)
}

// ReadSecrets returns the secrets of a file and of the environment, which goes before it. A file that others may read
// is refused.
func ReadSecrets(path string, getenv func(string) string) (s backup.Secrets, err error) {
	if path != "" {
		st, err := os.Stat(path)
		if err != nil {
			return s, fail.Usagef("--secrets: %w", err)
		}
		if st.Mode().Perm()&0o077 != 0 {
			return s, fail.Refusedf("%s can be read by others: chmod 600 %[1]s", path)
		}
		b, err := read(path)
		if err != nil {
			return s, fmt.Errorf("--secrets: %w", err)
		}
		if s, err = backup.ParseSecrets(string(b)); err != nil {
			return s, fail.Usagef("%s: %w", path, err)
		}
	}
	for name, to := range map[string]*string{KeyEnv: &s.Key, SecretEnv: &s.Secret, PassphraseEnv: &s.Passphrase} {
		if v := strings.TrimSpace(getenv(name)); v != "" {
			*to = v
		}
	}
	return s, nil
}

// The variables of the environment in which secrets may be given.
const (
	KeyEnv        = "COTERIE_BACKUP_KEY"
	SecretEnv     = "COTERIE_BACKUP_SECRET"     //nolint:gosec // the name, not a secret
	PassphraseEnv = "COTERIE_BACKUP_PASSPHRASE" //nolint:gosec // the same
)
