package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestApplications runs the programs of examples/ through a planned failover and the death of the primary's node: each
// ends with 0, every order that one has printed is there, and each was made once.
func TestApplications(t *testing.T) {
	long(t)
	g := raise(t, lab.Options{})
	schema, err := os.ReadFile("../../../examples/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	for statement := range strings.SplitSeq(strings.TrimSpace(string(schema)), ";\n") {
		sql(t, g.ReadWrite(), statement)
	}
	var apps []*application
	for _, a := range examples(t) {
		apps = append(apps, g.application(t, a))
	}
	advance(t, apps)
	was := g.ready(t)
	g.failover(t, secondaries(was)[0])
	advance(t, apps)
	was = g.ready(t)
	if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.newPrimary(t, was)
	advance(t, apps)
	if err := g.Start(*was.Primary); err != nil {
		t.Fatal(err)
	}
	g.ready(t)
	made := 0
	for _, a := range apps {
		made += a.finish(t, g)
	}
	if got := sql(t, g.ReadWrite(), "SELECT taken FROM stock"); got != fmt.Sprint(made) {
		t.Errorf("%s books taken for %d orders", got, made)
	}
	g.down(t)
}

// sample is a program of examples/.
type sample struct {
	name, needs string // needs is a file without which the program cannot run
	command     []string
}

// examples returns the programs that can run here. Those of other languages than Go need what make test-drivers
// installs.
func examples(t *testing.T) (found []sample) {
	t.Helper()
	inGo := filepath.Join(root, "example")
	if out, err := exec.Command("go", "build", "-o", inGo, "../../../examples/go").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	jar := filepath.Join(driversDir(), "postgresql-*.jar")
	if jars, _ := filepath.Glob(jar); len(jars) > 0 {
		jar = jars[0]
	}
	python := filepath.Join(driversDir(), "venv", "bin", "python3")
	for _, e := range []sample{
		{"go", inGo, []string{inGo}},
		{"python", python, []string{python, "../../../examples/python/app.py"}},
		{"node", filepath.Join(driversDir(), "node_modules", "pg"), []string{"node", "../../../examples/node/app.js"}},
		{"java", jar, []string{"java", "-cp", jar, "../../../examples/java/App.java"}},
	} {
		if _, err := os.Stat(e.needs); err != nil {
			t.Logf("NOT RUN: the example in %s: %v; make test-drivers installs and runs it", e.name, err)
			continue
		}
		found = append(found, e)
	}
	return found
}

// application is a running example.
type application struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	made  atomic.Int64  // orders that it has printed
	stop  chan struct{} // closed when it shall get no further order
	ended chan error    // why the orders ended; nil as they should
	said  bytes.Buffer
}

func (g *group) application(t *testing.T, e sample) *application {
	t.Helper()
	u, err := url.Parse(g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	a := &application{name: e.name, cmd: exec.Command(e.command[0], e.command[1:]...), stop: make(chan struct{}), ended: make(chan error, 1)}
	a.cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(driversDir(), "node_modules"),
		"APP_HOSTS="+u.Host, "PGUSER="+u.User.Username(), "PGPASSWORD="+password, "PGDATABASE=postgres")
	a.cmd.Stderr = &a.said
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.cmd.Process.Kill() })
	go func() { a.ended <- a.orders(bufio.NewScanner(out)) }()
	return a
}

// orders sends one order after the other, each when the one before was printed.
func (a *application) orders(out *bufio.Scanner) error {
	for {
		select {
		case <-a.stop:
			return a.in.Close()
		default:
		}
		key := fmt.Sprintf("%s-%d", a.name, a.made.Load()+1)
		if _, err := fmt.Fprintln(a.in, key); err != nil {
			return err
		}
		if !out.Scan() || out.Text() != key {
			return fmt.Errorf("printed %q for %s: %w", out.Text(), key, out.Err())
		}
		a.made.Add(1)
	}
}

// advance waits until each program has made twenty more orders.
func advance(t *testing.T, apps []*application) {
	t.Helper()
	for _, a := range apps {
		want := a.made.Load() + 20
		for end := time.Now().Add(patience); a.made.Load() < want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) || len(a.ended) > 0 {
				t.Fatalf("%s does not go on after %d orders", a.name, a.made.Load())
			}
		}
	}
}

// finish ends the program, compares the table with what it has printed, and returns how many orders it made.
func (a *application) finish(t *testing.T, g *group) int {
	t.Helper()
	close(a.stop)
	if err := <-a.ended; err != nil {
		t.Errorf("%s: %v", a.name, err)
	}
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("%s: %v", a.name, err)
	}
	made := int(a.made.Load())
	t.Logf("%s: %d orders. It said:\n%s", a.name, made, a.said.String())
	count := "SELECT count(*) FROM generate_series(1, " + fmt.Sprint(made) + ") n JOIN orders ON key = '" + a.name + "-' || n"
	if got := sql(t, g.ReadWrite(), count); got != fmt.Sprint(made) {
		t.Errorf("%s: %s of %d orders are there", a.name, got, made)
	}
	return made
}
