package e2e

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/faketime"
)

// TestEndToEndExpiry sets the clocks of all nodes to the minute in which the certificates of all members expire: fault
// F62 of docs/internals/faults.md. Every node makes itself a new one, while streams and sessions go on, and the group
// fails over with the new ones.
func TestEndToEndExpiry(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: the clocks of other users' processes need root")
	}
	if err := faketime.Possible(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	g := newGroup(t, lab.Options{})
	t.Run("F62 all within one minute", func(t *testing.T) {
		was := g.ready(t)
		ends := g.expire(t)
		shift := time.Until(ends.Add(-40 * time.Second)).Truncate(time.Second)
		for _, r := range was.Replicas {
			if _, err := g.Clock(r.Name, shift); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		g.await(t, "no certificate is one of before, and those have expired", func(lab.Status) bool {
			return g.expire(t).After(ends.Add(time.Hour)) && time.Now().Add(shift).After(ends.Add(10*time.Second))
		})
		g.acknowledged(t, 50)
		t.Logf("writes stood still for %v", g.ledger.OutageBetween(began, time.Now()).Longest.Round(time.Millisecond))
		if now := g.ready(t); now.Epoch != was.Epoch {
			t.Logf("epoch %d after %d", now.Epoch, was.Epoch)
		}
		g.judgeAndGoOn(t)
	})
	t.Run("F62 a failover with the new ones", func(t *testing.T) {
		was := g.ready(t)
		if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		g.newPrimary(t, was)
		g.acknowledged(t, 20)
		g.revive(t, *was.Primary)
		g.judgeAndGoOn(t)
	})
	g.down(t)
}

// expire returns when the first certificate of a member expires.
func (g *group) expire(t *testing.T) time.Time {
	t.Helper()
	var first time.Time
	for _, n := range g.Nodes() {
		for _, name := range []string{"node.crt", "listener.crt"} {
			b, err := os.ReadFile(filepath.Join(n.Dir, "pki", name))
			if err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(b)
			if block == nil {
				t.Fatalf("%s of %s is no certificate", name, n.Name)
			}
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if first.IsZero() || c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
	}
	return first
}
