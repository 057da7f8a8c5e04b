package console

import (
	"crypto/sha1" // the checksum that Maven Central publishes for each file
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// runDriver runs a program of another language and returns its output.
func runDriver(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestPsycopg(t *testing.T) {
	python := "python3"
	if dir := os.Getenv("COTERIE_DRIVERS"); dir != "" {
		python = filepath.Join(dir, "venv", "bin", "python3")
	}
	if exec.Command(python, "-c", "import psycopg").Run() != nil {
		t.Skip("NOT RUN: psycopg 3 is not here, and what it sends is replayed by TestSessions only; make test-drivers installs and runs it")
	}
	addr := serve(t, newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	if got, want := runDriver(t, python, "testdata/probe.py", dsn(addr), "shop", "a", "b"), "a 10 True\n2\n1\n42601 27\n1"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The driver, as Maven Central has it.
const (
	pgjdbc     = "https://repo1.maven.org/maven2/org/postgresql/postgresql/42.7.4/postgresql-42.7.4.jar"
	pgjdbcSHA1 = "264310fd7b2cd76738787dc0b9f7ea2e3b11adc1"
)

// TestPgjdbc runs the real driver, which is fetched once.
func TestPgjdbc(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("fetches a driver; make test-long runs it (COTERIE_LONG=1)")
	}
	for _, p := range []string{"java", "javac"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("NOT RUN: there is no %s here; what pgjdbc sends is replayed by TestSessions only", p)
		}
	}
	jar := fetchPgjdbc(t)
	addr := serve(t, newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	host, port, _ := net.SplitHostPort(addr)
	got := runDriver(t, "java", "-cp", jar, "testdata/Probe.java", "jdbc:postgresql://"+net.JoinHostPort(host, port)+"/coterie?sslmode=disable", "me", "", "shop", "a", "b")
	if want := "PostgreSQL\ncoterie.replicas\na 10 true\n2\n42601\ntrue"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func fetchPgjdbc(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	path := filepath.Join(cache, "coterie-test", filepath.Base(pgjdbc))
	sum := func(b []byte) string { s := sha1.Sum(b); return hex.EncodeToString(s[:]) }
	if b, err := os.ReadFile(path); err == nil && sum(b) == pgjdbcSHA1 {
		return path
	}
	client := http.Client{Timeout: time.Minute}
	r, err := client.Get(pgjdbc)
	if err != nil {
		t.Skipf("NOT RUN: the driver cannot be fetched: %v", err)
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
	if err != nil || r.StatusCode != http.StatusOK {
		t.Skipf("NOT RUN: the driver cannot be fetched: %s %v", r.Status, err)
	}
	if got := sum(b); got != pgjdbcSHA1 {
		t.Fatalf("the driver is not the one that is expected: %s", got)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
