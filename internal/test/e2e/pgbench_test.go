package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// pgbenchWorks runs the commands of docs/how-to/pgbench.md, through both ports and in every query mode.
func pgbenchWorks(t *testing.T, g *group) {
	g.ready(t)
	program := filepath.Join(server(t).BinDir, "pgbench")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("NOT RUN: pgbench is not installed: %v", err)
	}
	conn, err := pgx.Connect(t.Context(), g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "create database bench"); err != nil {
		t.Fatal(err)
	}
	to := func(dsn string) string { return strings.Replace(dsn, "/postgres?", "/bench?", 1) }
	run := func(wantErr string, env []string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		text := string(out)
		switch {
		case wantErr == "" && (err != nil || strings.Contains(text, "aborted")):
			t.Errorf("pgbench %v: %v\n%s", args, err, text)
		case wantErr != "" && (err == nil || !strings.Contains(text, wantErr)):
			t.Errorf("pgbench %v: %v, want %q\n%s", args, err, wantErr, text)
		}
	}
	write, read := to(g.ReadWrite()), to(g.ReadOnly())
	run("", nil, "-i", "-q", "-s", "1", write)
	for _, mode := range []string{"simple", "extended", "prepared"} {
		run("", nil, "-n", "-c", "2", "-t", "20", "-M", mode, write)
		run("", nil, "-n", "-S", "-c", "2", "-t", "20", "-M", mode, read)
	}
	run("", []string{"PGOPTIONS=-c coterie.intent=READ_ONLY"}, "-n", "-S", "-C", "-c", "2", "-t", "5", write)
	run("read-only", nil, "-n", "-t", "1", read)
	script := filepath.Join(t.TempDir(), "who.sql")
	if err := os.WriteFile(script, []byte("\\startpipeline\nselect 1/pg_is_in_recovery()::int;\nselect 1;\n\\endpipeline\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("", nil, "-n", "-M", "prepared", "-t", "5", "-f", script, read) // a secondary answered, or it would have divided by zero
}
