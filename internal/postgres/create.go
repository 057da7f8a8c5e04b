package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// Init creates a new cluster in PGData, with data checksums, UTF-8, and the locale C.UTF-8 if the system has it, else
// C. The directory must be absent or empty. initdb flushes everything it writes. Only superusers and pg_signal_backend
// may cancel sessions by SQL. standby.signal exists afterwards, as in every state (docs/internals/postgresql.md,
// "Standby signal"): the first primary is a promoted standby, too.
func (i *Instance) Init(ctx context.Context) error {
	entries, err := os.ReadDir(i.Config().PGData)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("create the cluster: %w", err)
	case len(entries) > 0:
		return fmt.Errorf("create the cluster: %s is not empty (it holds %s); give another directory, or adopt the cluster that is in it",
			i.Config().PGData, entries[0].Name())
	}
	out, err := i.initdb(ctx, "C.UTF-8")
	if err != nil && strings.Contains(string(out), "locale name") {
		i.log.Info("locale not available, using C", "locale", "C.UTF-8")
		out, err = i.initdb(ctx, "C")
	}
	if err != nil && ctx.Err() != nil {
		return errors.New("create the cluster: interrupted")
	}
	if err != nil {
		return fmt.Errorf("create the cluster: initdb: %w: %s", err, programs.LastText(out))
	}
	if err := i.RestrictCancel(ctx); err != nil {
		return fmt.Errorf("create the cluster: %w", err)
	}
	return i.createStandbySignal()
}

func (i *Instance) initdb(ctx context.Context, locale string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, i.bin("initdb"),
		"-D", i.Config().PGData, "-U", i.Config().Superuser, "--data-checksums", "--encoding=UTF8", "--locale="+locale,
		// The server does not use the pg_hba.conf of initdb (hba_file is on its command line). A server started by hand
		// gets the rules that a distribution would have made.
		"--auth-local=peer", "--auth-host=scram-sha-256")
	cmd.Env = programs.ToolEnv()
	return cmd.CombinedOutput()
}

// RestrictCancel revokes pg_cancel_backend and pg_terminate_backend from all but superusers and members of
// pg_signal_backend, in initdb's databases and so in all that are copied from them. Otherwise a role could cut short
// the wait of its own other sessions for the secondaries, past the listener. It runs in single-user mode, before the
// first start: only that mode can open template0.
func (i *Instance) RestrictCancel(ctx context.Context) error {
	var sql bytes.Buffer
	for _, f := range []string{"pg_cancel_backend(integer)", "pg_terminate_backend(integer, bigint)"} {
		fmt.Fprintf(&sql, "REVOKE EXECUTE ON FUNCTION pg_catalog.%s FROM PUBLIC\n", f)
		fmt.Fprintf(&sql, "GRANT EXECUTE ON FUNCTION pg_catalog.%s TO pg_signal_backend\n", f)
	}
	for _, database := range []string{"template0", "template1", "postgres"} {
		cmd := exec.CommandContext(ctx, i.Binary(), "--single", "-D", i.Config().PGData, "-c", "lc_messages=C", "-c", "log_min_messages=error", database)
		cmd.Env, cmd.Stdin = programs.ToolEnv(), bytes.NewReader(sql.Bytes())
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		if err == nil && bytes.Contains(out, []byte("ERROR:")) { // it continues after one and succeeds
			err = errors.New("refused")
		}
		if err != nil {
			return fmt.Errorf("restrict pg_cancel_backend in %s: %w: %s", database, err, programs.LastText(out))
		}
	}
	return nil
}

// CreateDatabase creates a database unless it exists, and reports whether it did. It returns when the creation is
// replicated as any commit is.
func (i *Instance) CreateDatabase(ctx context.Context, name string) (made bool, err error) {
	err = i.server.Fresh(ctx, func(c *pgx.Conn) error {
		var there bool
		if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there); err != nil || there {
			return err
		}
		made = true
		if _, err := c.Exec(ctx, "SET synchronous_commit = on"); err != nil {
			return err
		}
		_, err := c.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		return err
	})
	if err != nil {
		return false, fmt.Errorf("create database %q: %w", name, err)
	}
	return made, nil
}

// EnsureRoles creates missing roles, without LOGIN. Each is a member of the one before it.
func (i *Instance) EnsureRoles(ctx context.Context, names []string) error {
	err := i.server.Fresh(ctx, func(c *pgx.Conn) error {
		var before string
		for _, name := range names {
			role := pgx.Identifier{name}.Sanitize()
			var there bool
			if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", name).Scan(&there); err != nil {
				return err
			}
			statements := []string{"CREATE ROLE " + role + " NOLOGIN"}
			if before != "" {
				statements = append(statements, "GRANT "+before+" TO "+role)
			}
			if !there {
				if _, err := c.Exec(ctx, strings.Join(statements, "; "), pgx.QueryExecModeSimpleProtocol); err != nil {
					return err
				}
			}
			before = role
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("create the roles of the console: %w", err)
	}
	return nil
}

// mountMark is the content of data-mount.json: the file system on which a copy was made.
type mountMark struct {
	Point string `json:"mount_point"`
}

func (i *Instance) mountFile() string { return filepath.Join(i.Config().StateDir, "data-mount.json") }

// RememberMount records where the file system of the data directory is mounted, when a copy is made.
func (i *Instance) RememberMount() error {
	point, err := mountOf(i.Config().PGData)
	if err != nil {
		return err
	}
	b, err := json.Marshal(mountMark{point})
	if err != nil {
		return err
	}
	return durable.Replace(i.mountFile(), append(b, '\n'), 0o600)
}

// MountLost explains, for a data directory without a copy, that the file system of the recorded copy is not mounted.
// That copy is not lost, and none must be made in its place. The result is "" if the file system is mounted, or if none
// was recorded.
func (i *Instance) MountLost() string {
	b, err := os.ReadFile(i.mountFile())
	if err != nil {
		return ""
	}
	var m mountMark
	if json.Unmarshal(b, &m) != nil || m.Point == "" {
		return ""
	}
	now, err := mountOf(i.Config().PGData)
	if err != nil || now == m.Point {
		return ""
	}
	return fmt.Sprintf("the copy is on the file system that was mounted on %s, and it is not mounted now; mount it, or remove %s to have a new copy made on %s",
		m.Point, i.mountFile(), now)
}

// mountOf returns the mount point of the file system that a path is, or would be, on.
func mountOf(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			path = real
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || path == "/" {
			return "", fmt.Errorf("find the file system of %s: %w", path, err)
		}
		path = filepath.Dir(path)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find the file system of %s: %w", path, err)
	}
	return longestMount(string(b), path), nil
}

// longestMount returns the nearest mount point above a path, from the text of a mountinfo file.
func longestMount(mountinfo, path string) string {
	best := "/"
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		point := unescapeMount(f[4])
		under := path == point || strings.HasPrefix(path, strings.TrimSuffix(point, "/")+"/")
		if under && len(point) > len(best) {
			best = point
		}
	}
	return best
}

// unescapeMount reads the octal escapes of space, tab, newline and backslash.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
