package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/measure/ledger"
)

// upgradedAgents is what coterie upgrade agents --json prints.
type upgradedAgents struct {
	Agents []struct {
		Node, How, Running, Installed, State string
	}
	Failover *struct{ From, To string }
}

// in returns the nodes whose agents are in that state, in order.
func (u upgradedAgents) in(state string) string {
	var out []string
	for _, a := range u.Agents {
		if a.State == state {
			out = append(out, a.Node)
		}
	}
	return strings.Join(out, " ")
}

// TestEndToEndUpgradeAgents gives a group of three and a witness another version of the program by one command. It is
// interrupted, meets a node on which the package was forgotten, and then a program that does not start. Sessions
// through the listener of a node whose agent does not restart go on, and no acknowledged row is lost.
func TestEndToEndUpgradeAgents(t *testing.T) {
	long(t)
	u := newUpgrade(t, exe)
	next := filepath.Join(filepath.Dir(u.dir), "next")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-X github.com/coteriedb/coterie/internal/lib/buildinfo.Version=0.2.0-test", "-o", next, "../../../cmd/coterie")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	u.use(t, exe)
	u.command(t, "lab", "up", "--dir", u.dir, "--port", strconv.Itoa(freePorts(t)), "--witness")
	l, err := lab.Open(u.dir)
	if err != nil {
		t.Fatal(err)
	}
	u.group = &group{Lab: l, end: func() {}, ended: make(chan error)}
	close(u.ended)
	t.Cleanup(func() { u.destroy(t) })
	if u.ledger, err = ledger.Open(filepath.Join(filepath.Dir(u.dir), "ledger")); err != nil {
		t.Fatal(err)
	}
	if err := u.ledger.Prepare(t.Context(), l.ReadWrite()); err != nil {
		t.Fatal(err)
	}
	sql(t, l.ReadWrite(), "CREATE TABLE counted (session text, n int, PRIMARY KEY (session, n))")
	was := u.ready(t)
	former, others := *was.Primary, secondaries(was)
	kept, last := others[0], others[1]

	// The package is forgotten on one node, which has a program of its own.
	own := filepath.Join(filepath.Dir(u.dir), "own")
	u.copyTo(t, exe, own)
	u.runOwn(t, last, own)
	u.ready(t)
	u.use(t, next)
	a := u.agents(t, former, "--dry-run")
	if a.code != 4 || !strings.Contains(a.err, "the nodes have different versions installed: ") || !strings.Contains(a.err, " on "+last+". Install one version on all of them") ||
		!strings.Contains(a.out, last+": runs ") {
		t.Errorf("%+v", a)
	}
	u.copyTo(t, next, own)

	// One agent is replaced by hand; the sessions of its listener stay through all that follows.
	must(t, "restart", "--node", u.node(kept))
	u.ready(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x := u.survivor(t, kept, kept)
	done := make(chan struct{})
	go func() { defer close(done); x.work(ctx, t) }()
	x.advances(t)
	u.write(t)

	u.interrupted(t, former)
	u.ready(t)
	var out upgradedAgents
	a = u.agents(t, former, "--json")
	if err := json.Unmarshal([]byte(a.out), &out); err != nil || a.code != 0 {
		t.Fatalf("%v: %+v", err, a)
	}
	if got := out.in("upgraded"); got != last+" "+former && got != "w "+last+" "+former || out.Failover == nil || out.Failover.From != former {
		t.Errorf("upgraded %q, failover %+v: %s", got, out.Failover, a.out)
	}
	x.advances(t)
	s := u.ready(t)
	if *s.Primary == former {
		t.Errorf("%s still leads", former)
	}
	for _, node := range []string{"w", former, kept, last} {
		u.runsProgram(t, node, next)
	}
	if a = u.agents(t, former); a.code != 0 || !strings.Contains(a.err, "nothing to do") {
		t.Errorf("again: %+v", a)
	}
	cancel()
	<-done
	u.judge(t)
	u.doesNotStart(t, former, next)

	// Back to the version before, with the leadership where it is.
	u.use(t, exe)
	u.copyTo(t, exe, own)
	u.write(t)
	leads := *u.ready(t).Primary
	if a = u.agents(t, leads, "--in-place", "--json"); a.code != 0 {
		t.Fatalf("%+v", a)
	}
	if s := u.ready(t); *s.Primary != leads {
		t.Errorf("%s leads, was %s", *s.Primary, leads)
	}
	for _, node := range []string{"w", former, kept, last} {
		u.runsProgram(t, node, exe)
	}
	u.judge(t)
	if err := u.Down(t.Context()); err != nil {
		t.Error(err)
	}
}

// agents runs coterie upgrade agents on a node, by the installed program.
func (u *upgrade) agents(t *testing.T, node string, args ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, u.exe, append([]string{"upgrade", "agents", "--node", u.node(node)}, args...)...)
	cmd.Dir = "/"
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Logf("coterie upgrade agents %q: %d\n%s%s", args, cmd.ProcessState.ExitCode(), out.String(), said.String())
	return answer{cmd.ProcessState.ExitCode(), out.String(), said.String()}
}

// interrupted runs the command and interrupts it when it has begun.
func (u *upgrade) interrupted(t *testing.T, node string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), u.exe, "upgrade", "agents", "--node", u.node(node))
	cmd.Dir = "/"
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for b := make([]byte, 4096); ; {
		n, err := said.Read(b)
		if all = append(all, b[:n]...); n > 0 && !bytes.Contains(all[:len(all)-n], []byte("1 of 3: w,")) && bytes.Contains(all, []byte("1 of 3: w,")) {
			signal(t, cmd.Process.Pid, syscall.SIGINT)
		}
		if err != nil {
			break
		}
	}
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 3 || !bytes.Contains(all, []byte("interrupted; upgraded: none; ")) || !bytes.Contains(all, []byte("To go on: coterie upgrade agents")) {
		t.Errorf("%d: %s", cmd.ProcessState.ExitCode(), all)
	}
}

// doesNotStart installs a program that says a version and does not run, upgrades to it, and puts things right.
func (u *upgrade) doesNotStart(t *testing.T, node, good string) {
	t.Helper()
	broken := filepath.Join(filepath.Dir(u.dir), "broken")
	text := "#!/bin/sh\n[ \"$1\" = --version ] && exec echo 'coterie version 0.3.0 (commit bad, 2026-11-28)'\nexit 1\n"
	if err := os.WriteFile(broken, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	u.use(t, broken)
	cmd := exec.CommandContext(t.Context(), good, "upgrade", "agents", "--allow-mixed", "--wait", "10s", "--node", u.node(node))
	cmd.Dir = "/"
	said, err := cmd.CombinedOutput()
	t.Logf("a program that does not start: %v\n%s", err, said)
	if cmd.ProcessState.ExitCode() != 3 || !bytes.Contains(said, []byte("w does not answer 10s after its agent was asked to restart")) || !bytes.Contains(said, []byte("; upgraded: none; asked, which goes on by itself: w; not asked: ")) {
		t.Errorf("%d", cmd.ProcessState.ExitCode())
	}
	u.use(t, good)
	if err := u.Start("w"); err != nil {
		t.Fatal(err)
	}
	u.ready(t)
	if a := u.agents(t, node); a.code != 0 || !strings.Contains(a.err, "nothing to do") {
		t.Errorf("after the program was put right: %+v", a)
	}
}

// copyTo puts a program at a path as a package manager does.
func (u *upgrade) copyTo(t *testing.T, program, path string) {
	t.Helper()
	was := u.exe
	u.exe = path
	defer func() { u.exe = was }()
	u.use(t, program)
}

// runOwn ends a node and runs it by a program at another path.
func (u *upgrade) runOwn(t *testing.T, node, program string) {
	t.Helper()
	if err := u.Kill(node, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "agent", "--node", u.node(node))
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "COTERIE_NODE=") })
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
}
