package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
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

// TestEndToEndMemberReplace loses a replica's machine for good. One command takes it out and makes a token, and the
// node that joins with it has the name, the kind and the settings of the lost one, and its vote. Until then the status
// says that it is awaited.
func TestEndToEndMemberReplace(t *testing.T) {
	long(t)
	c := &crash{group: newGroup(t, lab.Options{})}
	was := c.ready(t)
	x := secondaries(was)[1]
	c.says(t, *was.Primary, "ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'"+x+"' WITH (FAILOVER_MODE = MANUAL, BACKUP_PRIORITY = 77)")
	if a := coterie(t, "member", "replace", x, "--yes", "--node", c.node(*was.Primary)); a.code != exitRefused || !strings.Contains(a.err, x+" answers") {
		t.Errorf("one that lives is replaced: exit code %d: %s", a.code, a.err)
	}
	c.replaced(t, x, func(x string) {
		if err := c.Kill(x, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	})
	now := c.revive(t, x)
	c.voters(t, *now.Primary, 3)
	c.goesOn(t, *now.Primary, 3)
	if got, err := c.answered(t, *now.Primary, "SELECT failover_mode_desc, backup_priority FROM sys.availability_replicas WHERE replica_server_name = '"+x+"'"); err != nil || !strings.Contains(fmt.Sprint(got), "MANUAL") || !strings.Contains(fmt.Sprint(got), "77") {
		t.Errorf("the settings of %s: %v, %v", x, got, err)
	}
	c.judgeAndGoOn(t)
	c.down(t)
}

// replaced has a member die and another node take its place, as often as it takes. The node is made with the flags of
// the one before, or with those given in their place.
func (c *crash) replaced(t *testing.T, x string, dies func(x string), flags ...string) {
	t.Helper()
	args := joinFlags(t, c.node(x))
	for i := 0; i < len(flags); i += 2 { // each with its value; one that is given twice is refused
		if at := slices.Index(args, flags[i]); at >= 0 {
			args = slices.Delete(args, at, at+2)
		}
	}
	args = append(args, flags...)
	dies(x)
	rename(t, c.node(x), c.node(x)+".removed"+strconv.Itoa(len(leftovers(c.node(x)))))
	mkdir(t, c.node(x))
	for end := time.Now().Add(patience); ; time.Sleep(300 * time.Millisecond) {
		by := c.serving(t, x)
		made := coterie(t, "member", "replace", x, "--yes", "--json", "--node", c.node(by))
		var token api.TokenResult
		if err := json.Unmarshal([]byte(made.out), &token); err == nil {
			c.await(t, "every node says that "+x+" is awaited", func(lab.Status) bool {
				st, err := c.status(t, c.serving(t, x))
				return err == nil && slices.Equal(st.Awaited, []ag.ReplicaID{ag.ReplicaID(x)}) && st.Availability.Level == availability.Degraded
			})
			a := coterie(t, append([]string{"join", token.Token}, args...)...)
			if a.code == 0 {
				break
			}
			made = a
		}
		t.Logf("again: exit code %d: %s", made.code, strings.TrimSpace(made.err))
		if time.Now().After(end) {
			t.Fatalf("%s is not replaced", x)
		}
	}
	c.again(t, x)
}

// TestEndToEndMemberLostWhileItGetsItsVote loses a node for good between its becoming a member of the quorum and the
// configuration's saying so. The quorum keeps no member of it, and the next node that takes its place, with another
// address, gets the vote.
func TestEndToEndMemberLostWhileItGetsItsVote(t *testing.T) {
	long(t)
	c := newCrash(t)
	x := secondaries(c.ready(t))[1]
	for _, point := range []string{"vote.learner", "vote.promoted"} {
		t.Run(point, func(t *testing.T) {
			if err := c.points.Arm(point); err != nil {
				t.Fatal(err)
			}
			c.elsewhere(t, x)
			c.fired(t, point)
			c.elsewhere(t, x)
			now := c.revive(t, x)
			c.voters(t, *now.Primary, 3)
		})
	}
	c.judgeAndGoOn(t)
	c.down(t)
}

// elsewhere has a member die and another node take its place, which has another address for the other nodes.
func (c *crash) elsewhere(t *testing.T, x string) {
	t.Helper()
	c.replaced(t, x, func(x string) {
		if err := c.Kill(x, lab.WhatNode); err != nil {
			t.Logf("kill %s: %v", x, err)
		}
	}, "--endpoint", net.JoinHostPort("127.0.0.1", strconv.Itoa(freePorts(t))))
}

// TestEndToEndPrimaryDiesAsAVoteIsTaken removes a member of four, of which three vote, and has the primary's node die
// for good as the vote of that member has just been taken. Another replica leads without it: the fourth member votes by
// then.
func TestEndToEndPrimaryDiesAsAVoteIsTaken(t *testing.T) {
	long(t)
	d := armable(t)
	c := &crash{group: newGroup(t, lab.Options{Replicas: 4}), points: d}
	if err := c.run(t, "CREATE TABLE alone (n int)"); err != nil {
		t.Fatal(err)
	}
	was := c.ready(t)
	st, err := c.status(t, *was.Primary)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(st.Replicas, func(r api.Replica) bool { return r.Voter && r.Name != st.Primary })
	x := string(st.Replicas[i].Name)
	if err := d.Arm("remove.unvoted"); err != nil {
		t.Fatal(err)
	}
	a := coterie(t, "remove", x, "--yes", "--node", c.node(*was.Primary))
	if !d.Fired() {
		t.Fatalf("the primary lives: exit code %d: %s", a.code, a.err)
	}
	if err := c.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	now := c.await(t, "another primary takes writes", func(s lab.Status) bool {
		return s.Primary != nil && *s.Primary != *was.Primary && c.run(t, "INSERT INTO alone VALUES (1)") == nil
	})
	c.again(t, *was.Primary)
	c.remove(t, x)
	c.voters(t, *now.Primary, 3)
	if err := c.Kill(x, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	c.down(t)
}

// TestEndToEndRemovalIsGivenUp ends a removal when the vote of the member was just taken, and has the replica resumed
// in place of removing it again. It votes again.
func TestEndToEndRemovalIsGivenUp(t *testing.T) {
	long(t)
	c := newCrash(t)
	was := c.ready(t)
	x := secondaries(was)[1]
	if err := c.points.Arm("remove.unvoted"); err != nil {
		t.Fatal(err)
	}
	c.command(t, "remove", x, "--yes", "--node", c.node(*was.Primary))
	c.fired(t, "remove.unvoted")
	for end := time.Now().Add(patience); ; time.Sleep(300 * time.Millisecond) {
		a := coterie(t, "replica", "resume", x, "--node", c.node(c.serving(t, x)))
		if a.code == 0 {
			break
		}
		if t.Logf("resume: exit code %d: %s", a.code, strings.TrimSpace(a.err)); time.Now().After(end) {
			t.Fatalf("%s is not resumed", x)
		}
	}
	c.whole(t)
	c.judgeAndGoOn(t)
	c.down(t)
}
