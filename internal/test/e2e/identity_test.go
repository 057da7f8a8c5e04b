package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndIdentity puts data directories where they do not belong.
func TestEndToEndIdentity(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	if t.Run("disks are swapped", func(t *testing.T) { swapped(t, g) }) &&
		t.Run("a node is put back to an older state", func(t *testing.T) { restored(t, g) }) &&
		t.Run("the file system is not mounted", func(t *testing.T) { unmounted(t, g) }) &&
		t.Run("another cluster is in its place", func(t *testing.T) { foreign(t, g) }) {
		g.down(t)
	}
}

func (g *group) kill(t *testing.T, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		if err := g.Kill(n, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}
}

func (g *group) start(t *testing.T, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		if err := g.Start(n); err != nil {
			t.Fatal(err)
		}
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func (g *group) data(node string) string { return filepath.Join(g.node(node), "pgdata") }

// leftAlone waits until a node reports that its data directory is not its own, and checks that nothing happens to it.
func (g *group) leftAlone(t *testing.T, node string) {
	t.Helper()
	g.await(t, node+" leaves the data directory alone", func(lab.Status) bool {
		st, err := g.status(t, node)
		return err == nil && member(st, node).Data == "FOREIGN"
	})
	before := listing(t, g.data(node))
	time.Sleep(5 * time.Second)
	if after := listing(t, g.data(node)); after != before {
		t.Errorf("something happened in %s:\n%s", g.data(node), difference(before, after))
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-printf", "%p %s %T@\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// swapped exchanges the disks of two secondaries, and later exchanges them back.
func swapped(t *testing.T, g *group) {
	was := g.ready(t)
	x, y := secondaries(was)[0], secondaries(was)[1]
	swap := func() {
		rename(t, g.data(x), g.data(x)+".away")
		rename(t, g.data(y), g.data(x))
		rename(t, g.data(x)+".away", g.data(y))
	}
	g.kill(t, x) // one after the other, so that the primary keeps its quorum
	g.kill(t, y)
	swap()
	g.start(t, x, y)
	g.leftAlone(t, x)
	g.leftAlone(t, y)
	g.kill(t, x)
	g.kill(t, y)
	swap()
	g.start(t, x, y)
	g.back(t, x)
	g.back(t, y)
	g.acknowledged(t, 20)
	g.judgeAndGoOn(t)
}

// restored puts the data directory and the marks of a secondary back to an earlier state, as restoring a snapshot of
// the machine would. The quorum's own directory stays: another test checks it.
func restored(t *testing.T, g *group) {
	was := g.ready(t)
	x := secondaries(was)[0]
	g.kill(t, x)
	old := filepath.Join(filepath.Dir(g.Dir()), "old")
	mkdir(t, old)
	run1(t, "cp", "-a", g.data(x), filepath.Join(g.node(x), "state"), old)
	g.start(t, x)
	g.back(t, x)
	g.acknowledged(t, 200)
	time.Sleep(6 * time.Second) // its status shows how far it is
	g.kill(t, x)
	for _, d := range []string{"pgdata", "state"} {
		if err := os.RemoveAll(filepath.Join(g.node(x), d)); err != nil {
			t.Fatal(err)
		}
		run1(t, "cp", "-a", filepath.Join(old, d), g.node(x))
	}
	mark := len(g.log(x, "agent.log"))
	g.start(t, x)
	g.back(t, x)
	if log := g.log(x, "agent.log")[mark:]; !strings.Contains(log, "this copy is older than it was") {
		t.Error("it was not noticed that the copy went back in time")
	}
	g.judgeAndGoOn(t)
}

// unmounted leaves an empty directory where a file system with the copy was mounted.
func unmounted(t *testing.T, g *group) {
	was := g.ready(t)
	x := secondaries(was)[0]
	g.kill(t, x)
	rename(t, g.data(x), g.data(x)+".volume")
	mkdir(t, g.data(x))
	run1(t, "chown", "--reference", g.data(x)+".volume", g.data(x))
	mark := filepath.Join(g.node(x), "state", "data-mount.json")
	noted, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mark, []byte(`{"mount_point":"/volumes/`+x+`"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	g.start(t, x)
	g.leftAlone(t, x)
	if log := g.log(x, "agent.log"); !strings.Contains(log, "it is not mounted now") {
		t.Error("its log does not say why")
	}
	g.kill(t, x) // mounted again
	if err := os.Remove(g.data(x)); err != nil {
		t.Fatal(err)
	}
	rename(t, g.data(x)+".volume", g.data(x))
	if err := os.WriteFile(mark, noted, 0o644); err != nil {
		t.Fatal(err)
	}
	g.start(t, x)
	g.back(t, x)
	g.judgeAndGoOn(t)
}

// foreign puts another cluster, with this copy's mark in it, where the copy was.
func foreign(t *testing.T, g *group) {
	was := g.ready(t)
	x := secondaries(was)[0]
	g.kill(t, x)
	rename(t, g.data(x), g.data(x)+".own")
	run1(t, "cp", "-a", g.data(x)+".own", g.data(x))
	control := filepath.Join(g.data(x), "global", "pg_control")
	b, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff // another system identifier
	f, err := os.OpenFile(control, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	g.start(t, x)
	g.leftAlone(t, x)
	if log := g.log(x, "agent.log"); !strings.Contains(log, "the group's is") {
		t.Error("its log does not say why")
	}
	g.kill(t, x)
	if err := os.RemoveAll(g.data(x)); err != nil {
		t.Fatal(err)
	}
	rename(t, g.data(x)+".own", g.data(x))
	g.start(t, x)
	g.back(t, x)
	g.judgeAndGoOn(t)
}
