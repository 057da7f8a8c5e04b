package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestQuorumDiskIsFull: the disk below a primary's etcd/ fills up, first slowly, then at once. It costs the node its
// vote, and nothing else: the same agent or its successor still leads in the same epoch, commits continue, and the vote
// comes back with the free space.
func TestQuorumDiskIsFull(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("mounts a file system, which takes root")
	}
	g := newGroup(t, lab.Options{})
	x := secondaries(g.ready(t))[0]
	dir := g.node(x)
	disk := filepath.Join(dir, "etcd")
	if err := g.Kill(x, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	// Its directory moves to a disk of its own: the old one is kept beside it, and copied.
	run1(t, "mv", disk, disk+".was")
	run1(t, "cp", "-a", disk+".was", disk)
	run1(t, "mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk)
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	run1(t, "cp", "-a", disk+".was/.", disk)
	if err := g.Start(x); err != nil {
		t.Fatal(err)
	}
	g.back(t, x)
	g.failover(t, x)
	was := g.ready(t)

	ballast := filepath.Join(disk, "ballast")
	fill := func(leave int64) {
		t.Helper()
		var st syscall.Statfs_t
		if err := syscall.Statfs(disk, &st); err != nil {
			t.Fatal(err)
		}
		run1(t, "fallocate", "-l", fmt.Sprint(int64(st.Bavail)*st.Bsize-leave), ballast)
	}
	noVote := func() string {
		s, err := g.status(t, x)
		if err != nil {
			return "the agent does not answer"
		}
		return member(s, x).NoVote
	}
	for _, leave := range []int64{2 << 20, 0} {
		fill(leave)
		g.await(t, x+" does not vote", func(lab.Status) bool { return strings.Contains(noVote(), "begins again by itself") })
		g.acknowledged(t, 100)
		g.await(t, "the status of the primary to say so", func(lab.Status) bool { // which hears of it within a second or two
			return strings.Contains(coterie(t, "status", "--node", g.node(*was.Primary)).out, x+" does not vote: ")
		})
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		g.await(t, x+" votes again", func(lab.Status) bool { return noVote() == "" })
		g.acknowledged(t, 100)
		if s := g.ready(t); *s.Primary != x || s.Epoch != was.Epoch {
			t.Errorf("%s leads epoch %d, before it was %s in %d", *s.Primary, s.Epoch, x, was.Epoch)
		}
	}
	if log := g.log(x, "agent.log"); !strings.Contains(log, "the quorum member runs again") {
		t.Error("the member was not started again within the agent")
	}
	g.judge(t)
}
