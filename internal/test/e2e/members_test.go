package e2e

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndMembersChange removes a replica and lets it join again while the primary dies, at different moments:
// fault F55 of docs/internals/faults.md. Each command is done or can be repeated, and the quorum has the votes that the
// configuration wants.
func TestEndToEndMembersChange(t *testing.T) {
	long(t)
	c := &crash{group: newGroup(t, lab.Options{Witness: true})}
	for range 3 {
		if !t.Run("F55", func(t *testing.T) { membersChange(t, c) }) {
			return
		}
	}
	c.down(t)
}

func membersChange(t *testing.T, c *crash) {
	was := c.ready(t)
	by, x := secondaries(was)[0], secondaries(was)[1]
	args := joinFlags(t, c.node(x))
	c.meanwhile(t, *was.Primary, func() {
		a := coterie(t, "remove", x, "--yes", "--node", c.node(by))
		t.Logf("remove: exit code %d: %s", a.code, a.err)
	})
	c.remove(t, x)
	if err := c.Kill(x, lab.WhatNode); err != nil {
		t.Logf("kill %s: %v", x, err)
	}
	in := false
	for tried := 0; !in; tried++ {
		if tried > 5 {
			t.Fatalf("%s does not get in again", x)
		}
		if tried > 0 {
			c.remove(t, x) // it may have been listed before its command failed
		}
		primary := c.serving(t, x)
		rename(t, c.node(x), c.node(x)+".removed"+strconv.Itoa(len(leftovers(c.node(x)))))
		if tried == 0 {
			c.meanwhile(t, primary, func() { in = c.join(t, x, args) })
		} else {
			in = c.join(t, x, args)
		}
	}
	c.again(t, x)
	now := c.revive(t, x, *was.Primary)
	t.Logf("%s leads epoch %d after %s in %d", *now.Primary, now.Epoch, *was.Primary, was.Epoch)
	c.voters(t, *now.Primary, 3)
	c.judgeAndGoOn(t)
}

// meanwhile does something while the primary's node dies, and starts the node again.
func (c *crash) meanwhile(t *testing.T, primary string, do func()) {
	t.Helper()
	killed := make(chan error, 1)
	go func() {
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond) // any moment will do
		killed <- c.Kill(primary, lab.WhatNode)
	}()
	do()
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	c.again(t, primary)
}
