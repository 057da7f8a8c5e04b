package listener

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/listener/hba"
)

// Real drivers through a real listener: a parameter, a prepared statement, where writers and readers go, and the
// errors of a failover. COTERIE_DRIVERS is a directory with node_modules/pg, venv (SQLAlchemy, Django, psycopg) and
// postgresql-*.jar; "make test-drivers" makes it. A missing driver is reported and does not count as tested.
func TestDrivers(t *testing.T) {
	dir := os.Getenv("COTERIE_DRIVERS")
	if dir == "" {
		t.Skip("NOT RUN: node-postgres, pgjdbc, SQLAlchemy, Django; \"make test-drivers\" installs and runs them")
	}
	jars, _ := filepath.Glob(filepath.Join(dir, "postgresql-*.jar"))
	python := filepath.Join(dir, "venv", "bin", "python3")
	java := ""
	if len(jars) > 0 {
		java = jars[0]
	}
	for _, d := range []struct {
		name, needs string
		command     []string
		idle        string // the message that an idle connection gets
	}{
		{"node-postgres", filepath.Join(dir, "node_modules", "pg"), []string{"node", "testdata/drivers/node.js"}, "57P01"},
		{"pgjdbc", java, []string{"java", "-cp", java, "testdata/drivers/Drive.java"}, "57P01"},
		{"SQLAlchemy", python, []string{python, "testdata/drivers/alchemy.py"}, "57P01"},
		{"Django", python, []string{python, "testdata/drivers/djan.py"}, "57P01"},
	} {
		t.Run(d.name, func(t *testing.T) {
			if _, err := os.Stat(d.needs); err != nil {
				t.Fatalf("NOT RUN: %s is not in %s: %v", d.name, dir, err)
			}
			drive(t, dir, d.command, d.idle)
		})
	}
}

// pgjdbc logs in by an Ed25519 certificate, whose authority has such a key, too; psql as well.
func TestDriversEd25519(t *testing.T) {
	dir := os.Getenv("COTERIE_DRIVERS")
	if dir == "" {
		t.Skip("NOT RUN: pgjdbc; \"make test-drivers\" installs and runs it")
	}
	jars, _ := filepath.Glob(filepath.Join(dir, "postgresql-*.jar"))
	if len(jars) == 0 {
		t.Fatalf("NOT RUN: pgjdbc is not in %s", dir)
	}
	cert, _ := certificate(t)
	client, clients := anEd25519(t, "alice")
	rules, err := hba.Parse(strings.NewReader("hostssl all all all cert\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, func(c *Config) {
		c.Certificate, c.ClientCAs, c.Rules = func() *tls.Certificate { return cert }, func() *x509.CertPool { return clients }, rules
	})
	g.role("alice", "login")
	key, err := x509.MarshalPKCS8PrivateKey(client.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(g.rw)
	if err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	file := func(name string, b []byte) string {
		if err := os.WriteFile(filepath.Join(files, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(files, name)
	}
	own := file("client.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: client.Certificate[0]}))
	root := file("server.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), "HOME="+files)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return strings.TrimSpace(string(out))
	}
	if got := run("java", "-cp", jars[0], "testdata/drivers/Certificate.java", host, port, own, file("client.pk8", key), root); got != "logged in as alice" {
		t.Errorf("pgjdbc: %s", got)
	}
	inText := file("client.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	if got := run("psql", "-XAtc", "select session_user", "host="+host+" port="+port+" user=alice dbname=postgres sslmode=require sslcert="+own+" sslkey="+inText); got != "alice" {
		t.Errorf("psql: %s", got)
	}
}

func drive(t *testing.T, dir string, command []string, idle string) {
	t.Helper()
	g := newGroup(t, trusting)
	host, rw, err := net.SplitHostPort(g.rw)
	if err != nil {
		t.Fatal(err)
	}
	_, ro, err := net.SplitHostPort(g.ro)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], host, rw, ro)...)
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	in, out, said := converse(t, cmd)
	for range 4 { // of 15 s: a virtual machine and a compiler may have to start
		if strings.Contains(out.String(), "\n") || said.String() != "" {
			break
		}
		waitSoftly(func() bool { return strings.Contains(out.String(), "\n") })
	}
	if first, _, _ := strings.Cut(out.String(), "\n"); first != "ready 42 a b" && first != "ready 42 a c" {
		t.Fatalf("%q %s", first, said.String())
	}
	r := fullRoutes(2)
	r.Primary, r.WriteOpen = "", false
	g.publish(r)
	g.srv.CloseEpoch(2, "the group has a new primary")
	_, _ = in.Write([]byte("\n"))
	waitFor(t, "what they heard", func() bool { return strings.Count(out.String(), "\n") >= 2 })
	if got := strings.Split(out.String(), "\n")[1]; got != "heard "+idle+" 40001" {
		t.Errorf("%q, want 57P01 and 40001; %s", got, said.String())
	}
}

// waitSoftly is waitFor without failing the test.
func waitSoftly(ok func() bool) {
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end) && !ok(); time.Sleep(10 * time.Millisecond) {
	}
}
