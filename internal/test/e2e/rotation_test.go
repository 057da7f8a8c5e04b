package e2e

import (
	"context"
	"encoding/pem"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndRotation replaces the certificate authority of a group under a writer: undisturbed, then with a death in
// every phase.
func TestEndToEndRotation(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Replicas: 2, Witness: true})
	for _, step := range []struct {
		name string
		test func(*testing.T, *group)
	}{
		{"nobody notices", rotateQuietly},
		{"given up", rotateAndAbandon},
		{"nodes die", rotateUnderKills},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g) }) {
			return
		}
	}
	g.down(t)
}

// authorityFile writes what coterie ca prints on a node into a file for clients, and returns their number.
func (g *group) authorityFile(t *testing.T, node string) (file string, n int) {
	t.Helper()
	text := must(t, "ca", "--node", g.node(node)).out
	file = filepath.Join(t.TempDir(), "group.crt")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, pems(t, file)
}

func pems(t *testing.T, file string) (n int) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		n++
	}
	return n
}

// verified connects to a node's listener as a client that verifies it.
func (g *group) verified(t *testing.T, node, file string) error {
	t.Helper()
	c, err := config.Load(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	u.Host = c.ReadWrite.Advertise
	u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {file}}.Encode()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, u.String())
	if err == nil {
		err = conn.Close(ctx)
	}
	return err
}

// rotated waits for the end of a rotation and checks the certificates of every node.
func (g *group) rotated(t *testing.T, old string) {
	t.Helper()
	s := g.ready(t)
	new, n := g.authorityFile(t, "n1")
	if n != 1 {
		t.Errorf("%d authorities are believed at the end", n)
	}
	authority := ""
	for _, r := range s.Replicas {
		st, err := g.status(t, r.Name)
		if err != nil {
			t.Fatal(err)
		}
		if st.Rotation != nil || authority != "" && st.Authority != authority {
			t.Errorf("%s has a certificate of %s, the others one of %s; %+v", r.Name, st.Authority, authority, st.Rotation)
		}
		authority = st.Authority
		pki := filepath.Join(g.node(r.Name), "pki")
		keys, want := 0, 0
		if r.Role != "WITNESS" && st.Replicas[slices.IndexFunc(st.Replicas, func(x api.Replica) bool { return string(x.Name) == r.Name })].Mode != ag.ConfigurationOnly {
			want = 1
			keys = pems(t, filepath.Join(pki, "ca.key"))
			if err := g.verified(t, r.Name, new); err != nil {
				t.Errorf("a client that knows the new authority, at %s: %v", r.Name, err)
			}
			if g.verified(t, r.Name, old) == nil {
				t.Errorf("%s shows clients a certificate of the old authority", r.Name)
			}
		} else if _, err := os.Stat(filepath.Join(pki, "ca.key")); err == nil {
			t.Errorf("the witness %s holds an authority's key", r.Name)
		}
		if keys != want || pems(t, filepath.Join(pki, "ca.crt")) != 1 {
			t.Errorf("%s keeps more of the authorities than it needs", r.Name)
		}
	}
}

func rotateQuietly(t *testing.T, g *group) {
	was := g.ready(t)
	old, _ := g.authorityFile(t, "n1")
	before, err := g.status(t, "n2")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if a := must(t, "ca", "rotate", "--hold", "--node", g.node("n1")); !strings.Contains(a.err, "believe both") {
		t.Errorf("said: %s", a.err)
	}
	both, n := g.authorityFile(t, "n2")
	if n != 2 {
		t.Errorf("%d authorities are printed while both are believed", n)
	}
	for _, file := range []string{old, both} {
		if err := g.verified(t, "n1", file); err != nil {
			t.Errorf("in TRUST: %v", err)
		}
	}
	if a := must(t, "status", "--node", g.node("w")); !strings.Contains(a.out, "phase TRUST") {
		t.Errorf("the witness's status says nothing of it:\n%s", a.out)
	}
	must(t, "ca", "rotate", "--node", g.node("n2"))
	t.Logf("rotated in %v", time.Since(began).Round(time.Millisecond))
	if err := g.verified(t, "n2", both); err != nil {
		t.Errorf("a client that was given both: %v", err)
	}
	g.acknowledged(t, 100)
	outage := g.ledger.OutageBetween(began, time.Now()).Longest
	t.Logf("writes stood still for %v at most", outage)
	if s := g.ready(t); s.Epoch != was.Epoch || *s.Primary != *was.Primary {
		t.Errorf("epoch %d of %s after %d of %s", s.Epoch, *s.Primary, was.Epoch, *was.Primary)
	}
	after, err := g.status(t, "n2")
	if err != nil {
		t.Fatal(err)
	}
	if len(before.Links) != 1 || len(after.Links) != 1 || len(after.Links[0].Events) != len(before.Links[0].Events) || after.Links[0].Received < before.Links[0].Received {
		t.Errorf("the link was disturbed: %+v, then %+v", before.Links, after.Links)
	}
	g.rotated(t, old)
	g.judgeAndGoOn(t)
}

func rotateAndAbandon(t *testing.T, g *group) {
	old, _ := g.authorityFile(t, "n1")
	must(t, "ca", "rotate", "--hold", "--node", g.node("n2"))
	must(t, "ca", "rotate", "--abandon", "--node", g.node("n1"))
	g.await(t, "one authority", func(s lab.Status) bool {
		for _, r := range s.Replicas {
			if pems(t, filepath.Join(g.node(r.Name), "pki", "ca.crt")) != 1 {
				return false
			}
		}
		return true
	})
	if err := g.verified(t, "n2", old); err != nil {
		t.Errorf("after a rotation that was given up: %v", err)
	}
	if a := coterie(t, "ca", "rotate", "--abandon", "--node", g.node("n1")); a.code != exitRefused {
		t.Errorf("gave up a rotation that there is not: exit code %d: %s", a.code, a.err)
	}
}

// rotateUnderKills kills each node's agent during the rotation, also on the node where it was requested. A phase waits
// for absent nodes, and the members of the quorum do not start again meanwhile.
func rotateUnderKills(t *testing.T, g *group) {
	old, _ := g.authorityFile(t, "n1")
	must(t, "ca", "rotate", "--hold", "--node", g.node("n1"))
	began := make(chan answer, 1)
	for _, node := range []string{"n2", "w", "n1"} {
		if err := g.Kill(node, lab.WhatAgent); err != nil {
			t.Fatal(err)
		}
		if node == "n2" {
			go func() { began <- coterie(t, "ca", "rotate", "--wait", "4m", "--node", g.node("n1")) }()
			g.await(t, "a rotation that waits for n2", func(lab.Status) bool {
				s, err := g.status(t, "n1")
				return err == nil && s.Rotation != nil && s.Rotation.Phase == ag.RotationIssue && slices.Equal(s.Rotation.WaitsFor, []ag.ReplicaID{"n2"})
			})
		}
		g.revive(t, node)
	}
	<-began // it may have died with the agent that it asked
	g.await(t, "the end of the rotation", func(s lab.Status) bool {
		for _, r := range s.Replicas {
			if st, err := g.status(t, r.Name); err != nil || st.Rotation != nil {
				return false
			}
		}
		return true
	})
	g.rotated(t, old)
	g.judgeAndGoOn(t)
}
