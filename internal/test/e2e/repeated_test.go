package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// TestEndToEndRepeated has packets come twice, late and damaged on every link between nodes, and sends a member's
// handshake a second time: fault F19 of docs/internals/faults.md. No answer is wrong, and the second handshake opens
// nothing.
func TestEndToEndRepeated(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: networks of their own need root")
	}
	c := &chaos{group: newGroup(t, lab.Options{Net: lab.NetNamespaces}), rng: rand.New(rand.NewPCG(19, 0))}
	c.begin(t, 19)
	t.Run("F19 packets come twice and out of order", func(t *testing.T) { repeatedPackets(t, c) })
	t.Run("F19 a handshake is sent again", func(t *testing.T) { repeatedHandshake(t, c) })
	c.stop(t)
	c.judgeAll(t, 2)
	c.down(t)
}

func repeatedPackets(t *testing.T, c *chaos) {
	was := c.whole(t)
	bad := linkem.Shape{Delay: time.Millisecond, Reorder: 0.1, Duplicate: 0.2, Corrupt: 0.005}
	if _, err := c.Link(t.Context(), lab.AllNodes, lab.AllNodes, bad, false); err != nil {
		t.Fatal(err)
	}
	c.progress(t, 500)
	c.planned(t, was, *was.Primary)
	was = c.whole(t)
	c.kill(t, *was.Primary, lab.WhatNode)
	c.newPrimary(t, was)
	c.progress(t, 200)
	links, err := c.Link(t.Context(), lab.AllNodes, lab.AllNodes, linkem.Shape{}, false)
	if err != nil {
		t.Fatal(err)
	}
	var twice, late uint64
	for _, l := range links {
		twice, late = twice+l.Duplicated, late+l.Reordered
	}
	if t.Logf("%d packets came twice, %d late", twice, late); twice == 0 || late == 0 {
		t.Error("nothing was repeated: this test shows nothing")
	}
	c.whole(t)
}

// recorder is a connection that keeps what is sent.
type recorder struct {
	net.Conn
	mu   sync.Mutex
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.sent.Write(b)
	r.mu.Unlock()
	return r.Conn.Write(b)
}

// repeatedHandshake opens a connection as a member, with that member's key, and sends the same bytes again.
func repeatedHandshake(t *testing.T, c *chaos) {
	was := c.whole(t)
	member := secondaries(was)[0]
	pki := filepath.Join(c.node(member), "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "node.crt"), filepath.Join(pki, "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(c.node(*was.Primary))
	if err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		n, err := net.DialTimeout("tcp", cfg.Endpoint.Advertise, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = n.SetDeadline(time.Now().Add(time.Minute))
		return n
	}
	for _, class := range []string{"coterie-wal/1", "coterie-control/1", "coterie-heart/1"} {
		r := &recorder{Conn: dial()}
		own := tls.Client(r, &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{class}, MinVersion: tls.VersionTLS13})
		if err := own.HandshakeContext(t.Context()); err != nil {
			t.Fatalf("%s: the member itself is refused: %v", class, err)
		}
		_ = own.Close()
		again := dial()
		if _, err := again.Write(r.sent.Bytes()); err != nil {
			t.Logf("%s: %v", class, err)
		}
		answer := make([]byte, 1<<16)
		total := 0
		for err = nil; err == nil; { // the server's half of a handshake, then the end
			var n int
			n, err = again.Read(answer)
			total += n
		}
		_ = again.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: a connection by a repeated handshake stays open", class)
		}
		t.Logf("%s: %d bytes again, answered by %d and %v", class, r.sent.Len(), total, err)
	}
	if now := c.whole(t); now.Epoch != was.Epoch || len(c.walsenders(*was.Primary)) != len(secondaries(was)) {
		t.Errorf("epoch %d after %d, %d walsenders", now.Epoch, was.Epoch, len(c.walsenders(*was.Primary)))
	}
}
