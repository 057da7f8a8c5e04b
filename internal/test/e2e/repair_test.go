package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndRepair brings back a primary that wrote rows that no other replica has. It is rewound where pg_rewind
// exists, else copied anew, and its diverged tail is kept in both cases.
func TestEndToEndRepair(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	sql(t, g.ReadWrite(), "create table alone (id int)")
	bin := config.PostgreSQL{}
	t.Run("by a rewind", func(t *testing.T) {
		old, mark := g.diverge(t)
		c, err := config.Load(g.node(old))
		if err != nil {
			t.Fatal(err)
		}
		bin = *c.PostgreSQL
		if _, err := os.Stat(filepath.Join(bin.BinDir, "pg_rewind")); err != nil {
			g.repaired(t, old, mark, "seed", "rewind") // an installation without pg_rewind, as some packages are
			return
		}
		g.repaired(t, old, mark, "rewind", "seed")
	})
	if t.Failed() {
		return
	}
	t.Run("by a new copy", func(t *testing.T) {
		old, mark := g.diverge(t)
		g.hideRewind(t, old, bin.BinDir)
		g.repaired(t, old, mark, "seed", "rewind")
	})
	if !t.Failed() {
		g.down(t)
	}
}

// diverge makes the primary commit rows that no secondary gets, because its walsenders are stopped, and kills it. It
// returns when another leads.
func (g *group) diverge(t *testing.T) (old string, mark int) {
	t.Helper()
	was := g.ready(t)
	old = *was.Primary
	mark = len(g.log(old, "agent.log"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, g.DSN(old))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	senders := g.walsenders(old)
	if len(senders) < 2 {
		t.Fatalf("%s has %d walsenders", old, len(senders))
	}
	for _, p := range senders {
		signal(t, p, syscall.SIGSTOP)
	}
	if _, err := c.Exec(ctx, "begin; set local synchronous_commit = local; insert into alone values (1); commit"); err != nil {
		t.Fatalf("a commit that waits for nobody: %v", err)
	}
	if err := g.Kill(old, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.newPrimary(t, was)
	g.acknowledged(t, 20)
	return old, mark
}

// walsenders lists the processes of a node's server that send WAL.
func (g *group) walsenders(node string) []int {
	return slices.DeleteFunc(g.servers(node), func(p int) bool {
		title, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p), "cmdline"))
		return !strings.HasPrefix(string(title), "postgres: walsender")
	})
}

// hideRewind gives the node an installation that lacks pg_rewind.
func (g *group) hideRewind(t *testing.T, node, binDir string) {
	t.Helper()
	dir := filepath.Join(filepath.Dir(g.Dir()), "bin")
	mkdir(t, dir)
	programs, err := os.ReadDir(binDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if p.Name() == "pg_rewind" {
			continue
		}
		if err := os.Symlink(filepath.Join(binDir, p.Name()), filepath.Join(dir, p.Name())); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(g.node(node), config.File)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(b), "bin_dir: "+binDir, "bin_dir: "+dir, 1)
	if changed == string(b) {
		t.Fatalf("no bin_dir in %s", b)
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// repaired starts the diverged node and checks how it came back.
func (g *group) repaired(t *testing.T, old string, mark int, by, notBy string) {
	t.Helper()
	forks := len(g.forks(old))
	if err := g.Start(old); err != nil {
		t.Fatal(err)
	}
	s := g.ready(t)
	log := g.log(old, "agent.log")[mark:]
	if !done(log, by) || done(log, notBy) {
		t.Errorf("%s was not brought back by a %s", old, by)
	}
	if n := len(g.forks(old)); n <= forks { // a rewind that was tried in vain kept one, too
		t.Errorf("%s keeps %d diverged tails, had %d", old, n, forks)
	}
	if got := sql(t, g.ReadWrite(), "select count(*) from alone"); got != "0" {
		t.Errorf("what %s wrote alone is in the group of %s: %s rows", old, *s.Primary, got)
	}
	g.judgeAndGoOn(t)
}
