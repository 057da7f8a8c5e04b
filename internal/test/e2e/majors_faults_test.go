package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// held is an installation whose pg_upgrade waits before it begins.
type held struct {
	programs.Install
	dir string
}

// hold makes one for the nodes of a group. looks has pg_upgrade --check wait, else the upgrade itself waits.
func (g *group) hold(t *testing.T, in programs.Install, looks bool) held {
	t.Helper()
	h := held{in, filepath.Join(filepath.Dir(g.Dir()), "held-"+strconv.FormatBool(looks))}
	h.BinDir = filepath.Join(h.dir, "bin")
	mkdir(t, h.dir)
	mkdir(t, h.BinDir)
	names, err := os.ReadDir(in.BinDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n.Name() != "pg_upgrade" {
			err = errors.Join(err, os.Symlink(filepath.Join(in.BinDir, n.Name()), filepath.Join(h.BinDir, n.Name())))
		}
	}
	wait := fmt.Sprintf("touch %[1]s/begun; while [ ! -e %[1]s/go ]; do sleep 0.1; done", h.dir)
	look, upgrade := ":", wait
	if looks {
		look, upgrade = wait, ":"
	}
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *--check*) %s;; *) %s;; esac\nexec %s/pg_upgrade \"$@\"\n", look, upgrade, in.BinDir)
	if err := errors.Join(err, os.Chmod(h.dir, 0o777), os.WriteFile(filepath.Join(h.BinDir, "pg_upgrade"), []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(filepath.Join(h.dir, "go"), nil, 0o600) }) // it must not wait for ever
	return h
}

// begun waits until pg_upgrade waits.
func (h held) begun(t *testing.T, g *group) {
	t.Helper()
	t.Helper()
	g.await(t, "pg_upgrade to begin", func(lab.Status) bool { return g.exists(filepath.Join(h.dir, "begun")) })
}

// goOn has pg_upgrade begin.
func (h held) goOn(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// aside is a command that goes on beside the test.
type aside struct {
	said  bytes.Buffer
	ended chan struct{}
	err   error // its end
}

// beside starts a command and ends it with the test.
func beside(t *testing.T, args ...string) *aside {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &aside{ended: make(chan struct{})}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = "/", &r.said, &r.said, 5*time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.err = cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.ended
	})
	return r
}

// code waits for the end of the command.
func (r *aside) code(t *testing.T) (code int, said string) {
	t.Helper()
	select {
	case <-r.ended:
		var exit *exec.ExitError
		if errors.As(r.err, &exit) {
			return exit.ExitCode(), r.said.String()
		}
		return 0, r.said.String()
	case <-time.After(patience):
		t.Fatalf("the command has not ended: %s", r.said.String())
	}
	return 0, ""
}

// stays checks that the group goes on with the old cluster, and that nothing is left of the new one.
func (g *group) stays(t *testing.T, node string, older, newer programs.Install, system string) {
	t.Helper()
	g.haveMajor(t, older)
	if now := sql(t, g.ReadWrite(), systemOf); now != system {
		t.Errorf("the group has cluster %s in place of %s", now, system)
	}
	if g.exists(g.newData(t, node, older, newer)) {
		t.Error("the new cluster was left behind")
	}
	g.acknowledged(t, 20)
	g.judge(t)
}

const systemOf = "SELECT system_identifier FROM pg_control_system()"

// TestForcedDuringMajorUpgrade has an administrator force the leadership to a secondary while pg_upgrade runs on the
// primary. The group goes on with the old cluster, every acknowledged row is there, and the upgrade is given up.
func TestForcedDuringMajorUpgrade(t *testing.T) {
	long(t)
	older, newer := twoMajors(t)
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	primary, to := *s.Primary, secondaries(s)[0]
	system := sql(t, g.ReadWrite(), systemOf)
	h := g.hold(t, newer, false)
	upgrade := beside(t, g.upgradeMajor(primary, h.Install)...)
	h.begun(t, g)
	must(t, "failover", "--to", to, "--allow-data-loss", "--yes", "--node", g.node(to))
	g.await(t, to+" leads", func(s lab.Status) bool { return s.Primary != nil && *s.Primary == to })
	g.acknowledged(t, 50)
	h.goOn(t)
	if code, said := upgrade.code(t); code == 0 || !strings.Contains(said, "gone on without it") {
		t.Errorf("the upgrade: exit code %d: %s", code, said)
	}
	for _, x := range append(secondaries(s), primary) { // a forced failover suspends the others, until somebody has looked
		if x != to {
			must(t, "replica", "resume", x, "--node", g.node(to))
		}
	}
	g.stays(t, primary, older, newer, system)
	g.down(t)
}

// TestRecoveredDuringMajorUpgrade loses the quorum and the primary's agent while pg_upgrade runs, and an administrator
// has the other two recover. The group goes on with the old cluster, every acknowledged row is there, and the node of
// the lost primary starts no server of either cluster.
func TestRecoveredDuringMajorUpgrade(t *testing.T) {
	long(t)
	_, newer := twoMajors(t)
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	primary, left := *s.Primary, secondaries(s)
	system := sql(t, g.ReadWrite(), systemOf)
	h := g.hold(t, newer, false)
	_ = beside(t, g.upgradeMajor(primary, h.Install)...) // it waits for the agent to the end
	h.begun(t, g)
	if err := g.Kill(primary, lab.WhatAgent); err != nil { // an agent that runs may lead: nobody else is let lead then
		t.Fatal(err)
	}
	for _, n := range left {
		if err := errors.Join(g.Kill(n, lab.WhatNode), os.RemoveAll(filepath.Join(g.node(n), "etcd"))); err != nil {
			t.Fatal(err)
		}
	}
	texts, accounts := g.accounts(t, left)
	slices.SortFunc(left, func(x, y string) int { return -accounts[x].Newer(accounts[y]) })
	lead, follower := left[0], left[1]
	must(t, "recover", "lead", "--node", g.node(lead), "--yes", "--account", texts[follower], "--lost", primary)
	if err := g.Start(lead); err != nil {
		t.Fatal(err)
	}
	must(t, "recover", "follow", "--node", g.node(follower))
	if err := g.Start(follower); err != nil {
		t.Fatal(err)
	}
	g.await(t, lead+" leads", func(s lab.Status) bool { return s.Primary != nil && *s.Primary == lead })
	g.acknowledged(t, 50)
	h.goOn(t) // pg_upgrade may outlive its agent
	if err := g.Start(primary); err == nil {
		t.Error("the agent of the lost member answers, without the quorum")
	}
	g.await(t, "the upgrade to wait for the quorum that is lost", func(lab.Status) bool {
		return strings.Contains(g.log(primary, "agent.log"), "the major upgrade waits for the quorum")
	})
	s = g.await(t, lead+" still leads", func(s lab.Status) bool { return s.Primary != nil && *s.Primary == lead })
	if r, ok := s.Replica(primary); !ok || r.PIDs.Postgres != nil {
		t.Errorf("a server of the lost member runs: %+v", r)
	}
	if now := sql(t, g.ReadWrite(), systemOf); now != system {
		t.Errorf("the group has cluster %s in place of %s", now, system)
	}
	g.acknowledged(t, 20)
	g.judge(t)
}

// lead makes a replica the primary.
func (g *group) lead(t *testing.T, node string) {
	t.Helper()
	if s := g.ready(t); *s.Primary != node {
		g.failover(t, node)
		g.ready(t)
	}
}

// TestMajorUpgradeByHand upgrades a group on whose nodes somebody has worked by hand: the WAL of the primary is behind
// a link, a look was killed with its agent, and the data directory of the other replica is removed before it follows.
func TestMajorUpgradeByHand(t *testing.T) {
	long(t)
	older, newer := twoMajors(t)
	g := newGroup(t, lab.Options{Replicas: 2})
	s := g.ready(t)
	other, primary := *s.Primary, secondaries(s)[0]
	data, wal := filepath.Join(g.node(primary), "pgdata", "pg_wal"), filepath.Join(g.node(primary), "wal")
	if err := errors.Join(g.Kill(primary, lab.WhatNode), os.Rename(data, wal), os.Symlink(wal, data), g.Start(primary)); err != nil {
		t.Fatal(err)
	}
	g.lead(t, primary)

	h := g.hold(t, newer, true)
	look := beside(t, g.upgradeMajor(primary, h.Install, "--dry-run")...)
	h.begun(t, g)
	tried := filepath.Join(g.node(primary), "state", "major-look")
	if !g.exists(tried) || g.exists(g.newData(t, primary, older, newer)) {
		t.Error("the look is not in its own directory")
	}
	if err := g.Kill(primary, lab.WhatAgent); err != nil {
		t.Fatal(err)
	}
	if code, said := look.code(t); code == 0 {
		t.Errorf("the look of an agent that was killed: %s", said)
	}
	g.await(t, primary+" runs again", func(s lab.Status) bool {
		if r, _ := s.Replica(primary); r.PIDs.Agent == nil {
			return g.Start(primary) == nil
		}
		return true
	})
	g.ready(t)
	if g.exists(tried) {
		t.Error("the next agent has not removed what the look has left")
	}
	g.lead(t, primary)

	must(t, g.upgradeMajor(primary, newer, "--primary-only")...)
	if at, err := os.Readlink(filepath.Join(g.newData(t, primary, older, newer), "pg_wal")); at != wal+"-"+strconv.Itoa(newer.Major) {
		t.Errorf("the WAL of the new cluster is in %q (%v)", at, err)
	}
	g.acknowledged(t, 20)
	if err := errors.Join(g.Kill(other, lab.WhatNode), os.RemoveAll(filepath.Join(g.node(other), "pgdata")), g.Start(other)); err != nil {
		t.Fatal(err)
	}
	must(t, g.upgradeMajor(primary, newer)...)
	g.haveMajor(t, newer)
	g.acknowledged(t, 20)
	g.judge(t)
	g.down(t)
}

// TestMajorUpgradeWithBackups upgrades a group that archives. The archive takes no WAL of the new cluster before it is
// told of it, and none of it is lost meanwhile; the backups of the old cluster stay.
func TestMajorUpgradeWithBackups(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		t.Skip("NOT RUN: pgbackrest is not installed, as with apt-get install pgbackrest")
	}
	_, newer := twoMajors(t)
	g := &backups{group: newGroup(t, lab.Options{Replicas: 2})}
	s := g.ready(t)
	g.repo = filepath.Join(filepath.Dir(g.Dir()), "repo")
	owner, err := os.Stat(g.node(*s.Primary))
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, g.repo)
	id := owner.Sys().(*syscall.Stat_t)
	if err := os.Chown(g.repo, int(id.Uid), int(id.Gid)); err != nil {
		t.Fatal(err)
	}
	for _, n := range append([]string{*s.Primary}, secondaries(s)...) {
		if a := g.verb(t, n, "enable", "--repo", g.repo); a.code != 0 {
			t.Fatalf("%s: %s%s", n, a.out, a.err)
		}
	}
	must(t, "restart", "--postgres", "--pending", "--node", g.node(*s.Primary))
	primary := g.primary(t)
	g.option(t, "SET (AUTOMATED_BACKUP_PREFERENCE = PRIMARY)")
	for _, args := range [][]string{{"enable"}, {"run", "--type", "full"}} {
		if a := g.verb(t, primary, args...); a.code != 0 {
			t.Fatalf("%q: %s%s", args, a.out, a.err)
		}
	}
	a := coterie(t, g.upgradeMajor(primary, newer)...)
	if strings.Contains(a.out, "the tool of the backups could not archive") { // the one that is installed is older
		if g.sound(t); a.code != 4 {
			t.Errorf("exit code %d: %s", a.code, a.err)
		}
		t.Skipf("NOT RUN: %s", a.out)
	}
	if a.code != 0 {
		t.Fatalf("exit code %d: %s%s", a.code, a.out, a.err)
	}
	if !strings.Contains(a.err, "coterie backup enable") {
		t.Errorf("nothing is said of the archive: %s", a.err)
	}
	g.haveMajor(t, newer)
	g.acknowledged(t, 20)
	sql(t, g.ReadWrite(), "SELECT pg_switch_wal()")
	g.await(t, "the archive to refuse WAL of the new cluster", func(lab.Status) bool {
		return sql(t, g.ReadWrite(), "SELECT failed_count > 0 FROM pg_stat_archiver") == "true"
	})
	if n := sql(t, g.ReadWrite(), "SELECT archived_count FROM pg_stat_archiver"); n != "0" {
		t.Errorf("%s files of the new cluster went to the archive of the old one", n)
	}
	for _, args := range [][]string{{"enable"}, {"run", "--type", "full"}} {
		if a := g.verb(t, primary, args...); a.code != 0 {
			t.Fatalf("%q after the upgrade: %s%s", args, a.out, a.err)
		}
	}
	g.sound(t)
	if n := g.listed(t, primary); n != 2 {
		t.Errorf("%d backups", n)
	}
	g.judge(t)
	g.down(t)
}
