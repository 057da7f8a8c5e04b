package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Roles is the contents of the shared catalogs that an adoption reports.
type Roles struct {
	Superuser string   `json:"superuser"` // the bootstrap superuser
	Databases []string `json:"databases"`
	Roles     []Role   `json:"roles"` // that may log in
}

// Role is a role that may log in.
type Role struct {
	Name     string `json:"name"`
	Password string `json:"password"` // none, md5, scram-sha-256 or other
}

// maxRoleCopy bounds the temporary copy of the catalogs.
const maxRoleCopy = 1 << 30

// The result is one line of output: jsonb escapes line breaks.
const rolesQuery = `SELECT jsonb_build_object(
 'superuser', (SELECT rolname FROM pg_authid WHERE oid = 10),
 'databases', (SELECT jsonb_agg(datname ORDER BY datname) FROM pg_database),
 'roles', (SELECT jsonb_agg(jsonb_build_object('name', rolname, 'password', CASE
   WHEN rolpassword IS NULL THEN 'none' WHEN rolpassword LIKE 'SCRAM-SHA-256$%' THEN 'scram-sha-256'
   WHEN rolpassword LIKE 'md5%' THEN 'md5' ELSE 'other' END) ORDER BY rolname) FROM pg_authid WHERE rolcanlogin)) AS facts`

// The single-user server prints one attribute per line.
var factsLine = regexp.MustCompile(`(?m)^\s*1: facts = "(.*)"\t\(typeid`)

// readRoles queries a copy of the shared catalogs and of template1: a few megabytes, in a private directory that is
// removed. The cluster itself is not opened, since even a single-user server writes WAL and pg_control. The cluster
// must be cleanly shut down.
func (x *inspection) readRoles(ctx context.Context) (Roles, error) {
	tmp, err := os.MkdirTemp("", "coterie-adopt")
	if err != nil {
		return Roles{}, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := x.copyCatalogs(tmp); err != nil {
		return Roles{}, fmt.Errorf("copy the catalogs: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(x.opt.BinDir, "postgres"), "--single", "-D", tmp, "-c", "fsync=off", "-c", "log_min_messages=fatal",
		"-c", "autovacuum=off", "-c", "shared_buffers=4MB", "-j", "template1")
	cmd.Env, cmd.Dir = toolEnv(), tmp
	cmd.Stdin = strings.NewReader(rolesQuery + ";\n\n")
	out, err := cmd.Output()
	m := factsLine.FindSubmatch(out)
	if m == nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = errors.New(strings.TrimSpace(string(exit.Stderr)))
		}
		return Roles{}, fmt.Errorf("a copy of the catalogs gave no answer: %w", err)
	}
	var r Roles
	if err := json.Unmarshal(m[1], &r); err != nil {
		return Roles{}, fmt.Errorf("a copy of the catalogs gave an unreadable answer: %w", err)
	}
	return r, nil
}

func (x *inspection) copyCatalogs(tmp string) error {
	for _, d := range []string{
		"base", "pg_wal/archive_status", "pg_wal/summaries", "pg_subtrans", "pg_commit_ts", "pg_dynshmem", "pg_logical/mappings",
		"pg_logical/snapshots", "pg_notify", "pg_replslot", "pg_serial", "pg_snapshots", "pg_stat", "pg_stat_tmp", "pg_tblspc", "pg_twophase",
	} {
		if err := os.MkdirAll(filepath.Join(tmp, d), 0o700); err != nil {
			return err
		}
	}
	left := int64(maxRoleCopy)
	for _, d := range []string{"global", "base/1", "pg_xact", "pg_multixact", "PG_VERSION"} { // 1 is template1, always
		if err := copyTree(filepath.Join(x.Data, d), filepath.Join(tmp, d), &left); err != nil {
			return err
		}
	}
	// Copy the segment that holds the shutdown checkpoint, and the next one in case the record crosses its end.
	first := x.control["Latest checkpoint's REDO WAL file"]
	entries, err := os.ReadDir(filepath.Join(x.Data, "pg_wal"))
	if err != nil {
		return err
	}
	copied := 0
	for _, e := range entries { // sorted by name
		history := strings.HasSuffix(e.Name(), ".history")
		if !history && (len(e.Name()) != 24 || e.Name() < first || copied == 2) {
			continue
		}
		if err := copyTree(filepath.Join(x.Data, "pg_wal", e.Name()), filepath.Join(tmp, "pg_wal", e.Name()), &left); err != nil {
			return err
		}
		if !history {
			copied++
		}
	}
	return os.WriteFile(filepath.Join(tmp, "postgresql.conf"), nil, 0o600)
}

func copyTree(from, to string, left *int64) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		in, err := os.Open(path) //nolint:gosec // whoever could swap a file for a link owns the cluster
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(filepath.Join(to, rel), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(out, io.LimitReader(in, *left+1))
		if *left -= n; *left < 0 && err == nil {
			err = fmt.Errorf("they are larger than %d MiB", maxRoleCopy>>20)
		}
		return errors.Join(err, out.Close())
	})
}
