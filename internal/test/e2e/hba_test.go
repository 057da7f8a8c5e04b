package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndHBA gives a group its rules for logins, by which every node judges, the one that was down meanwhile too.
// A node that follows a file of its own is told of, and the rules survive a failover.
func TestEndToEndHBA(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	sql(t, g.ReadWrite(), "CREATE ROLE guest LOGIN")
	if err := g.Kill("n3", lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("host all all all ldap\n")
	if a := coterie(t, "hba", "set", file, "--node", g.node("n2")); a.code != exitUsage || !strings.Contains(a.err, "line 1: method ldap") {
		t.Errorf("exit code %d: %s", a.code, a.err)
	}
	write("# guests stay outside\nhost all guest all reject\nlocal all all peer\nhost all all all scram-sha-256\n")
	must(t, "hba", "set", "--check", file, "--node", g.node("n2"))
	if a := must(t, "hba", "show", "--node", g.node("n2")); !strings.Contains(a.err, "the group has no rules") {
		t.Errorf("after --check: %s %s", a.out, a.err)
	}
	must(t, "hba", "set", file, "--node", g.node("n2"))
	g.revive(t, "n3")
	for _, node := range []string{"n1", "n2", "n3"} {
		g.await(t, node+" keeps the guest out", func(lab.Status) bool { return state(t, g.DSN(node), "guest") == "28000" })
		if s := state(t, g.DSN(node), ""); s != "" {
			t.Errorf("%s keeps others out, too: %s", node, s)
		}
	}
	if a := must(t, "hba", "show", "--node", g.node("n3")); !strings.HasPrefix(a.out, "# guests stay outside\nhost all guest all reject\n") {
		t.Errorf("the rules are %q", a.out)
	}
	if a := must(t, "hba", "history", "--node", g.node("n1")); !strings.Contains(a.out, "SET HBA") {
		t.Errorf("the history is %s", a.out)
	}
	g.lockedOut(t, file)
	own := secondaries(was)[0]
	g.own(t, own, "host all all all trust\n")
	if s := state(t, g.DSN(own), "guest"); s != "" {
		t.Errorf("by its own rules %s keeps the guest out: %s", own, s)
	}
	if a := must(t, "hba", "--node", g.node("n1")); strings.Count(a.out, "the group") != 2 || !strings.Contains(a.out, "own.conf") {
		t.Errorf("where the rules are from:\n%s", a.out)
	}
	if a := coterie(t, "check", "settings", "--node", g.node("n1")); !strings.Contains(a.out, "coterie.hba differs") {
		t.Errorf("the check does not tell of it: %s", a.out)
	}
	must(t, "failover", "--to", own, "--node", g.node(own))
	g.ready(t)
	if a := must(t, "hba", "unset", "--node", g.node(own)); !strings.Contains(a.err, "which its coterie.yaml names") {
		t.Errorf("nothing is said of the node with rules of its own: %s", a.err)
	}
	g.down(t)
}

// lockedOut lets nobody in by the longest rules that a group may have, which are set on a secondary, and takes that
// back by the command, which needs no login.
func (g *group) lockedOut(t *testing.T, file string) {
	t.Helper()
	other := secondaries(g.ready(t))[0]
	before := must(t, "hba", "show", "--node", g.node(other)).out
	set := func(text string) answer {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return must(t, "hba", "set", file, "--node", g.node(other))
	}
	if a := set(strings.Repeat("host all all all reject\n", 500)); !strings.Contains(a.err, "admit nobody from the network") {
		t.Errorf("it says %q", a.err)
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		g.await(t, node+" keeps everybody out", func(lab.Status) bool { return state(t, g.DSN(node), "") == "28000" })
	}
	set(before)
	for _, node := range []string{"n1", "n2", "n3"} {
		g.await(t, node+" lets others in again", func(lab.Status) bool { return state(t, g.DSN(node), "") == "" })
	}
	if s := state(t, g.DSN(other), "guest"); s != "28000" {
		t.Errorf("the guest is told %q", s)
	}
}

// state returns the SQLSTATE with which a login of a role, or of the lab's own, ends; empty: it succeeds.
func state(t *testing.T, dsn, role string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	parsed, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if role != "" {
		parsed.User = role
	}
	c, err := pgx.ConnectConfig(ctx, parsed)
	var bad *pgconn.PgError
	switch {
	case err == nil:
		_ = c.Close(ctx)
		return ""
	case errors.As(err, &bad):
		return bad.Code
	}
	t.Fatal(err)
	return ""
}

// own gives a node a file of rules of its own, and restarts its agent.
func (g *group) own(t *testing.T, node, rules string) {
	t.Helper()
	dir := g.node(node)
	file := filepath.Join(dir, "own.conf")
	c, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.HBA = file
	l, err := config.NewLayout(dir)
	if err == nil {
		err = errors.Join(os.WriteFile(file, []byte(rules), 0o600), c.Save(dir), os.Chown(file, l.Owner(), -1), os.Chown(filepath.Join(dir, config.File), l.Owner(), -1))
	}
	if err != nil {
		t.Fatal(err)
	}
	must(t, "config", "check", "--node", dir)
	must(t, "restart", "--node", dir)
	g.ready(t)
}
