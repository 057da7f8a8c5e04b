package listener

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Real drivers through a real listener: a parameter, a prepared statement, where writers and readers go, and what a failover sounds like.
// COTERIE_DRIVERS is a directory with node_modules/pg, venv (SQLAlchemy, Django, psycopg) and postgresql-*.jar: "make test-drivers" makes
// it. What is missing there is said and not taken for tested.
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
		idle        string // what an idle connection hears
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
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, said lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
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

// waitSoftly is waitFor without the verdict.
func waitSoftly(ok func() bool) {
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end) && !ok(); time.Sleep(10 * time.Millisecond) {
	}
}
