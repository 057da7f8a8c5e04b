package e2e

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd/standalone"
	"github.com/coteriedb/coterie/internal/lab"
)

// outside starts an etcd with mutual TLS whose client key belongs to the user that the servers run as.
func outside(t *testing.T) (s *standalone.Server, flags []string) {
	t.Helper()
	dir, err := os.MkdirTemp(root, "etcd")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s = standalone.New(t, filepath.Join(dir, "x"))
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		if err := os.Chown(s.Key, uid, -1); err != nil {
			t.Fatal(err)
		}
	}
	return s, []string{"--quorum-endpoints", s.Endpoint(), "--quorum-ca", s.CA, "--quorum-cert", s.Cert, "--quorum-key", s.Key}
}

// TestExternalQuorum: three replicas whose quorum is an administrator's etcd survive the death of their primary without
// help, do nothing without the etcd, and come back with it. When it is lost for good, a person has one of them lead in
// a new one.
func TestExternalQuorum(t *testing.T) {
	long(t)
	etcd, flags := outside(t)
	g := newGroup(t, lab.Options{Quorum: flags})
	for _, step := range []struct {
		name string
		test func(*testing.T, *group, *standalone.Server)
	}{
		{"it says so", externalIsShown},
		{"the primary dies", func(t *testing.T, g *group, _ *standalone.Server) {
			was := g.ready(t)
			if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
				t.Fatal(err)
			}
			g.newPrimary(t, was)
			g.acknowledged(t, 5)
			g.revive(t, *was.Primary)
			g.judgeAndGoOn(t)
		}},
		{"the etcd stops", externalStops},
		{"the etcd is lost", externalIsLost},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g, etcd) }) {
			return
		}
	}
	g.down(t)
}

func externalIsShown(t *testing.T, g *group, etcd *standalone.Server) {
	was := g.ready(t)
	for _, n := range g.Nodes() {
		if _, err := os.Stat(filepath.Join(n.Dir, "etcd")); err == nil {
			t.Errorf("%s has a quorum member of its own", n.Name)
		}
		s, err := g.status(t, n.Name)
		if err != nil || s.External != 1 || len(s.QuorumEndpoints) != 1 || s.QuorumEndpoints[0] != etcd.Endpoint() {
			t.Errorf("%s: %d %v %v", n.Name, s.External, s.QuorumEndpoints, err)
		}
	}
	at := g.node(*was.Primary)
	if a := must(t, "status", "--node", at); !strings.Contains(a.out, "external etcd of 1") {
		t.Errorf("%s", a.out)
	}
	if a := must(t, "check", "quorum", "--node", at); !strings.Contains(a.out, "answers in") || !strings.Contains(a.out, "no fast takeover") {
		t.Errorf("%s", a.out)
	}
	if a := must(t, "sql", "--node", at, "-c", "SELECT quorum_type_desc FROM sys.dm_hadr_cluster"); !strings.Contains(a.out, "EXTERNAL") {
		t.Errorf("%s", a.out)
	}
	nowhere := filepath.Join(filepath.Dir(g.Dir()), "nowhere")
	a := coterie(t, "init", "--node", nowhere, "--no-start", "--endpoint", "127.0.0.1:0", "--read-write", "", "--read-only", "", "--http", "",
		"--quorum-endpoints", etcd.Endpoint(), "--quorum-ca", etcd.CA)
	if a.code != 1 || !strings.Contains(a.err, "certificate required") {
		t.Errorf("without a client certificate: exit code %d: %s", a.code, a.err)
	}
	a = coterie(t, "init", "--node", nowhere, "--no-start", "--endpoint", "127.0.0.1:0", "--quorum-endpoints", "http://192.0.2.1:2379")
	if a.code != 2 || !strings.Contains(a.err, "not encrypted") {
		t.Errorf("without TLS: exit code %d: %s", a.code, a.err)
	}
	if _, err := os.Stat(nowhere); err == nil {
		t.Error("a refused init left something behind")
	}
}

// externalStops: without the store no replica may lead, however healthy it is.
func externalStops(t *testing.T, g *group, etcd *standalone.Server) {
	was := g.ready(t)
	etcd.Stop()
	g.await(t, "the primary is fenced", func(s lab.Status) bool {
		r, ok := s.Replica(*was.Primary)
		return ok && s.Primary == nil && r.Role != ag.RolePrimary
	})
	g.silent(t, 3*time.Second)
	if a := coterie(t, "check", "quorum", "--node", g.node(*was.Primary)); a.code != 3 {
		t.Errorf("check with the etcd stopped: exit code %d: %s", a.code, a.out)
	}
	etcd.Start()
	g.acknowledged(t, 5)
	g.ready(t)
	g.judgeAndGoOn(t)
}

// externalIsLost: a new etcd at the same address is not trusted, and a person has the furthest copy lead in it.
func externalIsLost(t *testing.T, g *group, etcd *standalone.Server) {
	was := g.ready(t)
	etcd.Stop()
	etcd.Forget()
	etcd.Start()
	g.await(t, "nobody leads", func(s lab.Status) bool { return s.Primary == nil })
	g.silent(t, 3*time.Second)
	g.recovered(t, was)
}

// recovered has the furthest copy lead in the store that answers now, as docs/operating.md says.
func (g *group) recovered(t *testing.T, was lab.Status) {
	t.Helper()
	nodes := append(secondaries(was), *was.Primary)
	for _, n := range nodes {
		if err := g.Kill(n, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}
	texts, accounts := g.accounts(t, nodes)
	lead := nodes[0]
	for _, n := range nodes {
		if accounts[n].Newer(accounts[lead]) > 0 {
			lead = n
		}
	}
	args := []string{"recover", "lead", "--node", g.node(lead), "--yes"}
	for _, n := range nodes {
		if n != lead {
			args = append(args, "--account", texts[n])
		}
	}
	must(t, args...)
	if err := g.Start(lead); err != nil {
		t.Fatal(err)
	}
	s := g.await(t, lead+" leads", func(s lab.Status) bool { return s.Primary != nil && *s.Primary == lead })
	if s.Epoch <= was.Epoch {
		t.Errorf("epoch %d after %d", s.Epoch, was.Epoch)
	}
	for _, n := range nodes {
		if n == lead {
			continue
		}
		must(t, "recover", "follow", "--node", g.node(n))
		if err := g.Start(n); err != nil {
			t.Fatal(err)
		}
	}
	g.ready(t)
	g.acknowledged(t, 5)
}
