package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/measure/ledger"
)

// earlier are the commits whose programs made the labs that TestUpgrade starts: the last one before the packages were
// moved, and the last one before the next release was begun.
var earlier = []string{"61b08b8", "556a763"}

// TestUpgrade starts a lab that an earlier program has made, as fault F54 of docs/internals/faults.md says. The
// directory of a node stays valid, and a group of both programs replicates and fails over in both directions. Every
// acknowledged row is still present when the last node has been upgraded.
func TestUpgrade(t *testing.T) {
	long(t)
	for _, commit := range earlier {
		t.Run("F54 from "+commit, func(t *testing.T) { upgradeFrom(t, buildEarlier(t, commit)) })
	}
}

func upgradeFrom(t *testing.T, old string) {
	u := newUpgrade(t, old)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}

	// The earlier program makes the lab, takes rows and stops.
	u.use(t, old)
	u.command(t, "lab", "up", "--dir", u.dir, "--port", strconv.Itoa(freePorts(t)))
	l, err := lab.Open(u.dir)
	must("open the lab of the earlier program", err)
	u.group = &group{Lab: l, end: func() {}, ended: make(chan error)}
	close(u.ended)
	t.Cleanup(func() { u.destroy(t) })
	sql(t, l.ReadWrite(), "CREATE TABLE kept AS SELECT i FROM generate_series(1, 10000) AS i")
	u.ledger, err = ledger.Open(filepath.Join(filepath.Dir(u.dir), "ledger"))
	must("open the ledger", err)
	must("prepare the ledger", u.ledger.Prepare(t.Context(), l.ReadWrite()))
	u.write(t)
	u.judge(t)
	u.command(t, "lab", "down", "--keep", "--dir", u.dir)

	// One node starts with the new program, the others with the earlier one.
	names := []string{"n1", "n2", "n3"}
	for i, name := range names {
		if i == 0 {
			u.use(t, exe)
			must("start "+name, u.Start(name))
			continue
		}
		u.use(t, old) // its lab writes nothing into coterie.yaml that its agent does not know
		u.command(t, "lab", "start", name, "--dir", u.dir)
	}
	u.ready(t)
	u.write(t)
	u.runsProgram(t, "n1", exe)
	u.runsProgram(t, "n2", old)
	u.use(t, exe)
	if a := u.agents(t, "n1"); a.code != 4 || !strings.Contains(a.err, "n2, n3 run a version of Coterie that cannot be asked by another node; there, one after the other, run coterie restart") {
		t.Errorf("members of an earlier program: %d, %s", a.code, a.err)
	}
	if a := u.agents(t, "n2"); a.code != 4 || !strings.Contains(a.err, "the agent of this node is of a version that does not know this command; nothing was changed.") {
		t.Errorf("on a node of an earlier program: %d, %s", a.code, a.err)
	}
	if s, err := u.status(t, "n1"); err != nil || s.Configuration.SignedOnly {
		t.Errorf("with two members of the earlier program the configuration is to be signed: %v", err)
	}

	// The leadership moves from either program to the other, as planned and by a death.
	u.moveTo(t, "n1")
	u.moveTo(t, "n2")
	u.moveTo(t, "n1")
	for _, name := range []string{"n1", "n2"} {
		was := u.ready(t)
		if *was.Primary != name {
			u.moveTo(t, name)
			was = u.ready(t)
		}
		must("kill "+name, u.Kill(name, lab.WhatNode))
		u.newPrimary(t, was)
		u.acknowledged(t, 20)
		must("start "+name, u.Start(name))
		u.ready(t)
		u.runsProgram(t, name, exe)
	}
	must("kill n3", u.Kill("n3", lab.WhatNode))
	must("start n3", u.Start("n3"))
	u.ready(t)
	u.runsProgram(t, "n3", exe)
	u.awaitSigned(t, names...)
	u.judge(t)
	if n := sql(t, u.ReadWrite(), "SELECT count(*) FROM kept"); n != "10000" {
		t.Errorf("%s of the 10000 rows that the earlier program took are present", n)
	}
	must("take the lab down", u.Down(t.Context()))
}

// upgrade is a lab whose program is replaced.
type upgrade struct {
	*group
	dir string // of the lab
	exe string // the path under which the lab starts its program
}

func newUpgrade(t *testing.T, program string) *upgrade {
	t.Helper()
	home, err := os.MkdirTemp(root, "u")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reap(home) })
	return &upgrade{dir: filepath.Join(home, "lab"), exe: filepath.Join(home, "coterie")}
}

// use replaces the lab's program as a package manager does: by renaming a new file over it. Running processes keep the
// earlier one.
func (u *upgrade) use(t *testing.T, program string) {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	next := u.exe + ".new"
	if err := os.WriteFile(next, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, u.exe); err != nil {
		t.Fatal(err)
	}
}

// command runs the lab's program.
func (u *upgrade) command(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, u.exe, args...)
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}

// runsProgram checks that the agent of a node is a process of the program.
func (u *upgrade) runsProgram(t *testing.T, node, program string) {
	t.Helper()
	running, err := os.ReadFile(fmt.Sprintf("/proc/%d/exe", pid(t, u.ready(t), node, lab.WhatAgent)))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(running, want) {
		t.Errorf("the agent of %s does not run %s", node, program)
	}
}

// moveTo makes a node the primary as an operator does, if it is not.
func (u *upgrade) moveTo(t *testing.T, node string) {
	t.Helper()
	if s := u.ready(t); *s.Primary == node {
		return
	}
	u.failover(t, node)
	u.await(t, node+" leads and every replica is SYNCHRONIZED", func(s lab.Status) bool {
		return s.Ready() && s.Primary != nil && *s.Primary == node
	})
	u.acknowledged(t, 20)
}

// buildEarlier builds the program of the earlier commit. The test is skipped where the repository does not have that
// commit.
func buildEarlier(t *testing.T, earlier string) (program string) {
	t.Helper()
	top, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Skipf("NOT RUN: the upgrade from %s is not tested, since this is not a git repository: %v", earlier, err)
	}
	repository := string(bytes.TrimSpace(top))
	if err := exec.CommandContext(t.Context(), "git", "-C", repository, "cat-file", "-e", earlier+"^{commit}").Run(); err != nil {
		t.Skipf("NOT RUN: the upgrade from %s is not tested, since this repository does not have that commit (a shallow clone?): git fetch --unshallow", earlier)
	}
	source := t.TempDir()
	archive := filepath.Join(source, "source.tar")
	for _, args := range [][]string{
		{"git", "-C", repository, "archive", "--output", archive, earlier},
		{"tar", "-x", "-f", archive, "-C", source},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	program = filepath.Join(root, "coterie-"+earlier)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/coterie")
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", earlier, err, out)
	}
	return program
}
