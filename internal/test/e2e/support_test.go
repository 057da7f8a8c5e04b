package e2e

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndSupportBundle plants secrets in a real group, by a role, by settings, by a failed statement and by a join
// token, and holds that the bundle of a node has what helps, from a node that runs and from one that does not, and none
// of the secrets.
func TestEndToEndSupportBundle(t *testing.T) {
	long(t)
	const secret = "hunter2hunter2"
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	node, dir := *s.Primary, t.TempDir()
	c, err := pgx.Connect(t.Context(), g.DSN(node))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	for _, statement := range []string{"CREATE ROLE secretive LOGIN PASSWORD '" + secret + "'", "SELECT '" + secret + "'::integer", "CREATE ROLE secretive PASSWORD '" + secret + "'"} {
		_, _ = c.Exec(t.Context(), statement) // the last two fail, and are in the server's log
	}
	var verifier string
	if err := c.QueryRow(t.Context(), "SELECT rolpassword FROM pg_authid WHERE rolname = 'secretive'").Scan(&verifier); err != nil || !strings.HasPrefix(verifier, "SCRAM") {
		t.Fatal(verifier, err)
	}
	g.says(t, node, "ALTER AVAILABILITY GROUP lab SET PARAMETER archive_command = 'AWS_SECRET_ACCESS_KEY="+secret+" false'")
	token := must(t, "token", "create", "--node", g.node(node)).out
	planted := []string{secret, verifier, strings.Split(verifier, "$")[2], "coterie1."}
	if strings.TrimSpace(token) == "" {
		t.Error("no token was made")
	}
	key, err := os.ReadFile(filepath.Join(g.node(node), "pki", "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	planted = append(planted, strings.Split(string(key), "\n")[1])
	onDisk := []string{"README.txt", "coterie.yaml", "state/group.json", "log/agent.log", "log/postgres.log", "host/facts.json"}
	g.holdsBundle(t, node, filepath.Join(dir, "running.tar.gz"), planted, append(onDisk, "status.json", "explain.json", "views/coterie.replicas.json"))
	if err := g.Kill(node, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.newPrimary(t, s)
	g.holdsBundle(t, node, filepath.Join(dir, "stopped.tar.gz"), planted, onDisk)
	g.start(t, node)
	g.ready(t)
	g.down(t)
}

// holdsBundle makes a bundle of a node and looks into it.
func (g *group) holdsBundle(t *testing.T, node, path string, planted, want []string) {
	t.Helper()
	must(t, "support-bundle", "--output", path, "--node", g.node(node))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		files[name] = string(text)
	}
	for name, text := range files {
		for _, p := range planted {
			if at := strings.Index(text, p); at >= 0 {
				t.Errorf("%s has a secret: …%s…", name, text[max(0, at-80):min(len(text), at+len(p)+20)])
			}
		}
	}
	for _, name := range want {
		if files[name] == "" {
			t.Errorf("no %s: %s", name, files["README.txt"])
		}
	}
}
