package listener

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// outlived is what a pool of two connections hears of a primary that is killed, at the listener of a node that lives:
// the error of its open transaction, the result of the retry, and that both connections are those from before.
const outlived = "heard 40001 then b both at b connections 2"

// TestPoolsOutlive holds what pools with a retry loop for 40001 hear when the primary's node dies: the idle connection
// goes on silently, and so does the one whose transaction was open, after its error.
func TestPoolsOutlive(t *testing.T) {
	dir := os.Getenv("COTERIE_DRIVERS")
	if dir == "" {
		t.Skip("NOT RUN: psycopg, SQLAlchemy, Django, node-postgres and HikariCP with pgjdbc; \"make test-drivers\" installs and runs them")
	}
	python := filepath.Join(dir, "venv", "bin", "python3")
	var jars []string
	for _, name := range []string{"postgresql-*.jar", "HikariCP-*.jar", "slf4j-api-*.jar"} {
		found, _ := filepath.Glob(filepath.Join(dir, name))
		jars = append(jars, found...)
	}
	path := strings.Join(jars, ":")
	for _, d := range []struct {
		name    string
		command []string
		here    bool
	}{
		{"psycopg", []string{python, "testdata/drivers/pool.py", "psycopg"}, exec.Command(python, "-c", "import psycopg_pool").Run() == nil},
		{"SQLAlchemy", []string{python, "testdata/drivers/pool.py", "sqlalchemy"}, exec.Command(python, "-c", "import sqlalchemy").Run() == nil},
		{"Django", []string{python, "testdata/drivers/pool.py", "django"}, exec.Command(python, "-c", "import django").Run() == nil},
		{"node-postgres", []string{"node", "testdata/drivers/pool.js"}, isThere(filepath.Join(dir, "node_modules", "pg"))},
		{"HikariCP", []string{"java", "-cp", path, "testdata/drivers/Pool.java"}, len(jars) >= 3},
	} {
		t.Run(d.name, func(t *testing.T) {
			if !d.here {
				t.Fatalf("NOT RUN: %s is not in %s", d.name, dir)
			}
			poolOutlives(t, dir, d.command)
		})
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// poolOutlives runs a program, and has the primary die while its transaction is open.
func poolOutlives(t *testing.T, dir string, command []string) {
	t.Helper()
	_, near := farPrimary(t)
	host, port, err := net.SplitHostPort(near.rw)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], host, port)...)
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	in, out, said := converse(t, cmd)
	line := func(n int) string {
		t.Helper()
		for range 4 { // a virtual machine and a compiler may have to start
			if strings.Count(out.String(), "\n") >= n {
				break
			}
			waitSoftly(func() bool { return strings.Count(out.String(), "\n") >= n })
		}
		lines := strings.Split(out.String(), "\n")
		if len(lines) <= n {
			t.Fatalf("no line %d in %q; %s", n, out.String(), said.String())
		}
		return lines[n-1]
	}
	if got := line(1); got != "pooled" {
		t.Fatalf("%q; %s", got, said.String())
	}
	near.known()
	_, _ = in.Write([]byte("\n"))
	if got := line(2); got != "open a" {
		t.Fatalf("%q; %s", got, said.String())
	}
	near.known()
	near.dies()
	_, _ = in.Write([]byte("\n"))
	if got := line(3); got != outlived {
		t.Errorf("%q, want %q; %s", got, outlived, said.String())
	}
}

// TestPgxOutlives is TestPoolsOutlive for two connections of pgx.
func TestPgxOutlives(t *testing.T) {
	_, near := farPrimary(t)
	const where = "select current_setting('cluster_name')"
	busy, idle := near.mustDial(near.rw, "user=postgres"), near.mustDial(near.rw, "user=postgres")
	near.one(busy, where)
	near.one(idle, where)
	near.known()
	tries, name := 0, ""
	attempt := func() error {
		return pgx.BeginFunc(t.Context(), busy, func(tx pgx.Tx) error {
			tries++
			if err := tx.QueryRow(t.Context(), where).Scan(&name); err != nil {
				return err
			}
			if tries == 1 {
				near.known()
				near.dies()
			}
			return tx.QueryRow(t.Context(), where).Scan(&name)
		})
	}
	var pg *pgconn.PgError
	if err := attempt(); !errors.As(err, &pg) || pg.Code != "40001" || pg.Severity != "ERROR" {
		t.Fatalf("the transaction that was open: %v", err)
	}
	if err := attempt(); err != nil || name != "b" || tries != 2 {
		t.Errorf("try %d: at %q, %v", tries, name, err)
	}
	if got := near.one(idle, where); got != "b" {
		t.Errorf("the idle connection is at %q", got)
	}
}
