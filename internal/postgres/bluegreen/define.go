package bluegreen

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// maxGlobals bounds the roles and their settings, which are held in memory because they have the roles' secrets.
const maxGlobals = 256 << 20

// Define gives green the roles and the definitions of blue, and returns the fingerprint of those. Definitions that
// change meanwhile are an error, and so is what cannot go along: it may have been made since the first look. As that
// comes after the fingerprint, whatever is made later changes it.
func (p *Pair) Define(ctx context.Context) (was string, err error) {
	databases, err := p.Databases(ctx)
	if err != nil {
		return "", err
	}
	if was, err = p.Fingerprint(ctx, databases); err != nil {
		return "", err
	}
	f, err := p.Look(ctx)
	if err != nil {
		return "", err
	}
	if len(f.Obstacles) > 0 {
		return "", fmt.Errorf("what cannot go along was made since the upgrade was asked for: %s", strings.Join(f.Obstacles, "; "))
	}
	if err := p.globals(ctx); err != nil {
		return "", fmt.Errorf("take the roles over: %w", err)
	}
	for _, d := range databases {
		if err := p.define(ctx, d); err != nil {
			return "", fmt.Errorf("take the definitions of database %s over: %w", d, err)
		}
	}
	now, err := p.Fingerprint(ctx, databases)
	if err == nil && now != was {
		err = errors.New("definitions have changed while they were taken over; begin again when nobody changes them")
	}
	return was, err
}

// toolSettings override what the owner of a database may have set for it.
const toolSettings = "-c synchronous_commit=local -c statement_timeout=0 -c lock_timeout=0 -c role=none -c default_transaction_read_only=off -c local_preload_libraries= -c session_preload_libraries="

// tool is a program of green's version.
func (p *Pair) tool(ctx context.Context, name, sockets string, args ...string) *exec.Cmd {
	args = append([]string{"-h", sockets, "-p", strconv.Itoa(session.Port), "-U", p.Superuser, "--no-password"}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(p.Install.BinDir, name), args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = append(programs.ToolEnv(), "PGOPTIONS="+toolSettings), p.Work, 10*time.Second
	return cmd
}

// globals takes the roles over, with their secrets, memberships and settings. The superuser is there already.
func (p *Pair) globals(ctx context.Context) error {
	dump := p.tool(ctx, "pg_dumpall", p.Sockets, "--globals-only", "-l", "template1")
	out, err := dump.StdoutPipe()
	if err != nil {
		return err
	}
	var said bytes.Buffer
	dump.Stderr = &said
	if err := dump.Start(); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(out, maxGlobals+1))
	if err == nil && len(b) > maxGlobals {
		err = fmt.Errorf("they are more than %d bytes", maxGlobals)
	}
	if werr := dump.Wait(); err == nil && werr != nil {
		err = fmt.Errorf("pg_dumpall: %w: %s", werr, programs.LastText(said.Bytes()))
	}
	if err != nil {
		return err
	}
	load := p.tool(ctx, "psql", p.Work, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "template1")
	load.Stdin = strings.NewReader(withoutRole(string(b), p.Superuser))
	return run(load)
}

// withoutRole removes the statement that makes a role.
func withoutRole(text, role string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		name, is := strings.CutPrefix(strings.TrimSpace(line), "CREATE ROLE ")
		if is && slices.Contains([]string{role + ";", `"` + strings.ReplaceAll(role, `"`, `""`) + `";`}, name) {
			continue
		}
		out.WriteString(line)
	}
	return out.String()
}

// define takes the definitions of one database over, with its settings and rights. Those that every cluster has are
// made anew.
func (p *Pair) define(ctx context.Context, database string) error {
	file := filepath.Join(p.Work, "definitions.sql")
	defer func() { _ = os.Remove(file) }()
	args := []string{"--schema-only", "--create", "--quote-all-identifiers", "-f", file}
	through := "template1"
	switch database {
	case "postgres":
		args = append(args, "--clean")
	case "template1":
		args, through = append(args, "--clean"), "postgres"
	}
	old := os.FileMode(0o600)
	if f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, old); err != nil { // pg_dump keeps the mode
		return err
	} else if err := f.Close(); err != nil {
		return err
	}
	if err := run(p.tool(ctx, "pg_dump", p.Sockets, append(args, "-d", conninfo(database))...)); err != nil {
		return err
	}
	return run(p.tool(ctx, "psql", p.Work, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", through, "-f", file))
}

// conninfo names a database to a tool, which would take some names for more than that.
func conninfo(database string) string {
	return "dbname='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(database) + "'"
}

// run runs a tool. Its error has the end of what it said.
func run(cmd *exec.Cmd) error {
	var said bytes.Buffer
	w := bufio.NewWriterSize(&said, 4<<10)
	cmd.Stdout, cmd.Stderr = nil, w
	err := cmd.Run()
	_ = w.Flush()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, programs.LastText(said.Bytes()))
	}
	return nil
}
