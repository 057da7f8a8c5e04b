package e2e

import (
	"cmp"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/etcd/standalone"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestExternalQuorumGoesBack restores an administrator's etcd from what it was, below a group that runs on it: fault
// F60 of docs/internals/faults.md. Nobody believes it, nobody answers, and the way out of docs/operating.md loses
// nothing. Before, its answers are late and its watches are cut (F61), and two candidates claim at one moment (F64).
func TestExternalQuorumGoesBack(t *testing.T) {
	long(t)
	etcd, flags := outside(t)
	way := newLate(t, strings.TrimPrefix(etcd.Endpoint(), "https://"))
	for i, f := range flags {
		if f == etcd.Endpoint() {
			flags[i] = "https://" + way.Addr().String()
		}
	}
	g := newGroup(t, lab.Options{Quorum: flags})
	for _, step := range []struct {
		name string
		test func(*testing.T, *group, *standalone.Server)
	}{
		{"F61 answers are late, watches are cut and compacted", func(t *testing.T, g *group, etcd *standalone.Server) { lateWatches(t, g, etcd, way) }},
		{"F64 two candidates at once", twoCandidates},
		{"F60 the disk of the etcd is restored", diskRestored},
		{"F60 the same within an epoch", restoredWithinEpoch},
		{"F60 an older record in another etcd", recordLoaded},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g, etcd) }) {
			return
		}
	}
	g.down(t)
}

// late is a way to a server on which answers can be held up, and connections end.
type late struct {
	net.Listener
	to    string
	delay atomic.Int64 // of every answer, in ns
	mu    sync.Mutex
	conns []net.Conn
}

func newLate(t *testing.T, to string) *late {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &late{Listener: l, to: to}
	t.Cleanup(func() { _ = l.Close(); w.cut() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(c)
		}
	}()
	return w
}

func (w *late) carry(c net.Conn) {
	defer func() { _ = c.Close() }()
	s, err := net.DialTimeout("tcp", w.to, time.Second)
	if err != nil {
		return
	}
	defer func() { _ = s.Close() }()
	w.mu.Lock()
	w.conns = append(w.conns, c, s)
	w.mu.Unlock()
	go func() { _, _ = io.Copy(s, c); _ = s.Close() }()
	b := make([]byte, 64<<10)
	for {
		n, err := s.Read(b)
		time.Sleep(time.Duration(w.delay.Load()))
		if _, werr := c.Write(b[:n]); err != nil || werr != nil {
			_ = c.Close()
			return
		}
	}
}

// cut ends every connection.
func (w *late) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// lateWatches lets the primary die while all news of the record is late and out of date.
func lateWatches(t *testing.T, g *group, etcd *standalone.Server, way *late) {
	for i, delay := range []time.Duration{100 * time.Millisecond, 250 * time.Millisecond} {
		was := g.ready(t)
		way.delay.Store(int64(delay))
		g.acknowledged(t, 20)
		etcd.Compact()
		way.cut()
		if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		etcd.Compact()
		if i > 0 {
			way.cut()
		}
		now := g.newPrimary(t, was)
		etcd.Compact()
		g.acknowledged(t, 20)
		way.delay.Store(0)
		t.Logf("answers late by %v: %s leads epoch %d", delay, *now.Primary, now.Epoch)
		g.revive(t, *was.Primary)
		g.judgeAndGoOn(t)
	}
}

// twoCandidates: both secondaries count the same silence from the same renewal, and claim in the same moment.
func twoCandidates(t *testing.T, g *group, _ *standalone.Server) {
	for range 3 {
		was := g.ready(t)
		if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		now := g.newPrimary(t, was)
		g.acknowledged(t, 20)
		t.Logf("%s leads epoch %d after %s in %d", *now.Primary, now.Epoch, *was.Primary, was.Epoch)
		g.revive(t, *was.Primary)
		g.judgeAndGoOn(t)
	}
	g.oneLeaderEach(t)
}

// The reasons for which a record is refused.
const (
	goneBack   = "the quorum's store is older than what this node has seen"
	fromAbroad = "the record is not believed"
)

// refused waits until nobody leads and every node says why, and checks that nobody answers, also after a restart.
func (g *group) refused(t *testing.T, was lab.Status, why string) {
	t.Helper()
	g.await(t, "nobody leads", func(s lab.Status) bool { return s.Primary == nil })
	says := func(n string) string {
		var out string
		g.await(t, n+" says why", func(lab.Status) bool {
			out = coterie(t, "status", "--node", g.node(n)).out
			return strings.Contains(out, why)
		})
		i := strings.Index(out, why)
		return cmp.Or(strings.SplitN(out[max(i, 0):], "\n", 2)[0], out)
	}
	for _, r := range was.Replicas {
		t.Logf("%s: %s", r.Name, says(r.Name))
	}
	g.silent(t, 5*time.Second)
	again := secondaries(was)[0]
	if err := g.Kill(again, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	g.start(t, again)
	says(again)
	g.silent(t, 3*time.Second)
}

// wayOut has a person decide, and gives failovers back to the replicas.
func (g *group) wayOut(t *testing.T, was lab.Status) {
	t.Helper()
	g.recovered(t, was)
	now := g.ready(t)
	for _, r := range now.Replicas {
		g.says(t, *now.Primary, "ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'"+r.Name+"' WITH (FAILOVER_MODE = AUTOMATIC)")
	}
	g.judgeAndGoOn(t)
}

// saved keeps what the etcd holds, as a snapshot of its disk does.
func (g *group) saved(t *testing.T, etcd *standalone.Server) lab.Status {
	t.Helper()
	g.ready(t)
	etcd.Stop()
	etcd.Save()
	etcd.Start()
	s := g.ready(t)
	g.acknowledged(t, 50)
	return s
}

func restore(etcd *standalone.Server) {
	etcd.Stop()
	etcd.Restore()
	etcd.Start()
}

// diskRestored: the store is the same, and as it was before a failover.
func diskRestored(t *testing.T, g *group, etcd *standalone.Server) {
	was := g.saved(t, etcd)
	g.failover(t, secondaries(was)[0])
	was = g.ready(t)
	g.acknowledged(t, 50)
	restore(etcd)
	g.refused(t, was, goneBack)
	g.wayOut(t, was)
}

// restoredWithinEpoch: epoch and state are those that everybody has seen; the revision is not.
func restoredWithinEpoch(t *testing.T, g *group, etcd *standalone.Server) {
	was := g.saved(t, etcd)
	restore(etcd)
	g.refused(t, was, goneBack)
	g.wayOut(t, was)
}

// recordLoaded: what the store held before a failover is put into another store.
func recordLoaded(t *testing.T, g *group, etcd *standalone.Server) {
	was := g.ready(t)
	all := etcd.Dump()
	g.failover(t, secondaries(was)[0])
	was = g.ready(t)
	g.acknowledged(t, 50)
	etcd.Stop()
	etcd.Forget()
	etcd.Start()
	etcd.Load(all)
	g.refused(t, was, fromAbroad)
	g.wayOut(t, was)
}
