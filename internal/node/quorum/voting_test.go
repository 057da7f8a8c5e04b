package quorum

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// TestMembershipTurnJoins: a node with a vote in the configuration becomes a learner, starts its member, is promoted,
// and writes its id into the configuration.
func TestMembershipTurnJoins(t *testing.T) {
	b := newBed(t)
	b.alter(func(g *ag.Group) { g.Replicas[0].EtcdID = 0 })
	if err := b.membershipTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.running() == nil || !slices.Equal(b.etcd.promoted, []uint64{7}) || b.etcd.group.Replicas[0].EtcdID != 7 {
		t.Errorf("promoted %v, the configuration has %+v", b.etcd.promoted, b.etcd.group.Replicas[0])
	}
	if c := b.started[0]; c.New || c.Token != "g" || len(c.Initial) != 1 {
		t.Errorf("started with %+v", c)
	}
}

// TestMembershipTurnWaits: nothing is begun before it is this node's turn, and a step that failed is repeated without
// another start.
func TestMembershipTurnWaits(t *testing.T) {
	b := newBed(t)
	b.alter(func(g *ag.Group) {
		r := g.Replicas
		r[0], r[1] = r[1], r[0]
		r[0].EtcdID, r[1].EtcdID = 0, 0
	})
	if err := b.membershipTurn(t.Context()); err == nil || !strings.Contains(err.Error(), "n2 is to vote first") || b.etcd.learners > 0 {
		t.Errorf("it did not wait for n2: %v", err)
	}
	b.alter(func(g *ag.Group) { g.Replicas[0].EtcdID = 2 })
	b.etcd.err = errTest
	if err := b.membershipTurn(t.Context()); !errors.Is(err, errTest) || b.running() != nil {
		t.Errorf("a learner that the quorum refused was started: %v", err)
	}
	b.etcd.err, b.startErr = nil, embedded.ErrFailed
	if err := b.membershipTurn(t.Context()); !errors.Is(err, embedded.ErrFailed) || b.NoVote() == "" || len(b.etcd.promoted) > 0 {
		t.Errorf("a member that gave up: %q, %v", b.NoVote(), err)
	}
	b.snap = nil
	if err := b.membershipTurn(t.Context()); err != nil {
		t.Errorf("before the record was read: %v", err)
	}
}

// TestComesBackToAnyFounder holds that a node which follows a new quorum asks every other member for it: by what the
// node knows the founder does not vote, or nobody does, as after it gave up to found one itself.
func TestComesBackToAnyFounder(t *testing.T) {
	for name, votes := range map[string][]uint64{"the founder did not vote": {1, 0, 3}, "no vote is known": {0, 0, 0}} {
		b := newBed(t)
		b.alter(func(g *ag.Group) {
			for i, id := range votes {
				g.Replicas[i].Voter, g.Replicas[i].EtcdID = id != 0, id
			}
		})
		if err := os.WriteFile(b.Layout.ComebackFile(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s := Store{self: "n1", member: b.running, voters: b.mayVote}
		if names, last := s.endpoints(""); !slices.Equal(names, []string{"n2"}) || !slices.Equal(last, []string{"w1"}) {
			t.Errorf("%s: it asks %v, then %v", name, names, last)
		}
	}
}

// TestWaitForAVoteIsTold holds that the status says why a member does not come to vote, once that lasts, and no longer
// than it lasts.
func TestWaitForAVoteIsTold(t *testing.T) {
	b := newBed(t)
	b.alter(func(g *ag.Group) { g.Replicas[0].EtcdID = 0 })
	why := errors.New("n2 is to vote first")
	b.noteWait(why)
	b.clock = b.clock.Add(rosterPatience - 1)
	if b.noteWait(why); b.NoVote() != "" {
		t.Errorf("at once: %q", b.NoVote())
	}
	b.clock = b.clock.Add(1)
	if b.noteWait(why); b.NoVote() != why.Error() {
		t.Errorf("after a while: %q", b.NoVote())
	}
	if b.noteWait(nil); b.NoVote() != "" {
		t.Errorf("once it gets on: %q", b.NoVote())
	}
	b.alter(func(g *ag.Group) { g.Replicas[0].EtcdID = 1 })
	b.clock = b.clock.Add(rosterPatience)
	b.noteWait(why)
	b.clock = b.clock.Add(rosterPatience)
	if b.noteWait(why); b.NoVote() != "" {
		t.Errorf("of a member that votes: %q", b.NoVote())
	}
}

// TestMembershipTurnLeaves: a member whose vote was taken is closed and its log deleted. A configuration without
// members, which no group has, deletes nothing.
func TestMembershipTurnLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ag.Group)
		leaves bool
	}{
		"its vote was taken": {func(g *ag.Group) { g.Replicas[0].Voter = false }, true},
		"it was removed":     {func(g *ag.Group) { g.Replicas = g.Replicas[1:] }, true},
		"nothing is known":   {func(g *ag.Group) { g.Replicas = nil }, false},
		"it votes":           {func(*ag.Group) {}, false},
	} {
		b := newBed(t)
		m := b.run(t)
		b.alter(c.change)
		if err := b.membershipTurn(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, dirErr := os.Stat(b.Layout.Etcd())
		if m.closed != c.leaves || (b.running() == nil) != c.leaves || os.IsNotExist(dirErr) != c.leaves || b.wasMember() == c.leaves {
			t.Errorf("%s: closed %v, its directory: %v, was a member: %v", name, m.closed, dirErr, b.wasMember())
		}
	}
}

// TestVoteThatWasNotRecorded: a node whose member became a voter, and which died before the configuration said so, has
// only that left to do. Its member's address is taken, by itself.
func TestVoteThatWasNotRecorded(t *testing.T) {
	b := newBed(t)
	b.run(t)
	b.alter(func(g *ag.Group) { g.Replicas[0].EtcdID = 0 })
	b.etcd.taken = true
	if err := b.membershipTurn(t.Context()); err != nil || b.etcd.group.Replicas[0].EtcdID != 1 {
		t.Errorf("the configuration has %+v: %v", b.etcd.group.Replicas[0], err)
	}
}

// TestVoteIsGivenBackBeforeItsMemberEnds: a member that is to vote no more, of a node that stays in the group, runs
// until the quorum does not count it. One of two voters that ended before would take the majority with it, for ever.
func TestVoteIsGivenBackBeforeItsMemberEnds(t *testing.T) {
	b := newBed(t)
	m := b.run(t)
	b.alter(func(g *ag.Group) { g.Replicas[0].Voter, g.Replicas[0].EtcdID = false, 0 })
	b.etcd.err = errTest
	if err := b.membershipTurn(t.Context()); err == nil || m.closed || b.running() == nil {
		t.Errorf("the member ended while the quorum counts it: %v", err)
	}
	b.etcd.err = nil
	if err := b.membershipTurn(t.Context()); err != nil || !m.closed || len(b.etcd.removed) != 1 || b.etcd.removed[0] != 1 {
		t.Errorf("closed %v, votes given back %v: %v", m.closed, b.etcd.removed, err)
	}
}

// TestRemovedMemberBeginsAnew holds that a node whose vote was taken while it was away, and given to it again, votes
// with a new member: the quorum refuses for ever the one that it has removed.
func TestRemovedMemberBeginsAnew(t *testing.T) {
	b := newBed(t)
	m := b.run(t)
	m.err = embedded.ErrRemoved
	b.alter(func(g *ag.Group) { g.Replicas[0].EtcdID = 0 })
	if err := b.membershipTurn(t.Context()); err != nil || !m.closed || b.running() != nil || b.wasMember() || len(b.etcd.promoted) > 0 {
		t.Errorf("closed %t, was a member %t, promoted %v: %v", m.closed, b.wasMember(), b.etcd.promoted, err)
	}
	if _, err := os.Stat(b.Layout.Etcd()); !os.IsNotExist(err) {
		t.Errorf("its log is still there: %v", err)
	}
	if err := b.membershipTurn(t.Context()); err != nil || !slices.Equal(b.etcd.promoted, []uint64{7}) || b.etcd.group.Replicas[0].EtcdID != 7 {
		t.Errorf("promoted %v, the configuration has %+v: %v", b.etcd.promoted, b.etcd.group.Replicas[0], err)
	}
}

// TestVoteOfARemovalThatWasGivenUp holds that a replica whose vote was taken by a removal, and which was resumed then,
// votes again with a new member, and that nothing is done while it is suspended: the removal may go on.
func TestVoteOfARemovalThatWasGivenUp(t *testing.T) {
	b := newBed(t)
	m := b.run(t)
	m.err = embedded.ErrRemoved
	b.alter(func(g *ag.Group) { g.Replicas[0].Suspended = true })
	if err := b.membershipTurn(t.Context()); err != nil || b.etcd.group.Replicas[0].EtcdID != 1 || m.closed {
		t.Errorf("while it is removed: %+v, closed %t, %v", b.etcd.group.Replicas[0], m.closed, err)
	}
	b.alter(func(g *ag.Group) { g.Replicas[0].Suspended = false })
	if err := b.membershipTurn(t.Context()); err != nil || b.etcd.group.Replicas[0].EtcdID != 0 || !b.etcd.group.Replicas[0].Voter {
		t.Errorf("resumed: %+v, %v", b.etcd.group.Replicas[0], err)
	}
	b.alter(func(g *ag.Group) { g.Replicas[0].EtcdID = 0 }) // as the agent reads it
	for range 2 {
		if err := b.membershipTurn(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if !m.closed || b.etcd.group.Replicas[0].EtcdID != 7 {
		t.Errorf("%+v, closed %t", b.etcd.group.Replicas[0], m.closed)
	}
}

// TestMarkGoesBeforeTheLog holds that no crash leaves a mark without a log: the node would not start again.
func TestMarkGoesBeforeTheLog(t *testing.T) {
	b := newBed(t)
	b.run(t)
	if err := errors.Join(os.Remove(b.Layout.MemberMark()), os.MkdirAll(filepath.Join(b.Layout.MemberMark(), "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	b.alter(func(g *ag.Group) { g.Replicas[0].Voter = false })
	if err := b.membershipTurn(t.Context()); err == nil || !b.wasMember() {
		t.Fatalf("the mark was removed, and the test proves nothing: %v", err)
	}
	if _, err := os.Stat(b.Layout.Etcd()); err != nil {
		t.Errorf("the log is gone before its mark: %v", err)
	}
}

// TestMembershipTurnComesBack: after coterie recover the votes are assigned anew, once.
func TestMembershipTurnComesBack(t *testing.T) {
	b := newBed(t)
	b.alter(func(g *ag.Group) {
		g.Replicas[0].Voter, g.Replicas[0].EtcdID = false, 0
		g.Replicas[1].Voter, g.Replicas[1].EtcdID = true, 2
		g.Replicas[2].Voter, g.Replicas[2].EtcdID = false, 0
	})
	if err := os.WriteFile(b.Layout.ComebackFile(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.membershipTurn(t.Context()); err != nil || b.comesBack() || !b.etcd.group.Replicas[0].Voter || b.etcd.learners > 0 {
		t.Errorf("%+v, %v", b.etcd.group.Replicas, err)
	}
}

// TestCountExternal: the primary alone keeps the number of the external etcd's members, at most once in countEvery, and
// never writes 0.
func TestCountExternal(t *testing.T) {
	b := newBed(t)
	b.Node.Quorum = &config.Quorum{}
	b.alter(func(g *ag.Group) { g.External = 1 })
	b.etcd.voting = 3
	turn := func(want int) {
		t.Helper()
		if err := b.membershipTurn(t.Context()); err != nil || b.etcd.group.External != want || len(b.started) > 0 {
			t.Errorf("%d members, want %d: %v", b.etcd.group.External, want, err)
		}
	}
	turn(1) // not the primary
	b.snap.Record.Epoch.Leader = "n1"
	turn(3)
	b.etcd.voting = 5
	turn(3) // too early
	b.clock = b.clock.Add(countEvery)
	turn(5)
	b.etcd.voting, b.clock = 0, b.clock.Add(countEvery)
	turn(5)
}

// TestUpdateGroup: a change is made again on what another writer left, and an error of the change writes nothing.
func TestUpdateGroup(t *testing.T) {
	b := newBed(t)
	b.etcd.overtaken = 2
	calls := 0
	err := b.UpdateGroup(t.Context(), func(g *ag.Group) error { calls++; g.Profile = "WAN"; return nil })
	if g := b.etcd.group; err != nil || calls != 3 || g.Profile != "WAN" || g.SessionTimeout != 2*time.Second {
		t.Errorf("%d calls, %+v, %v", calls, g, err)
	}
	rev := b.etcd.rev
	if err := b.UpdateGroup(t.Context(), func(*ag.Group) error { return errTest }); !errors.Is(err, errTest) || b.etcd.rev != rev {
		t.Errorf("a change that was refused: %v", err)
	}
}

// TestDial: without its own member this node's part of the quorum is not reached, nor one that the group does not have.
func TestDial(t *testing.T) {
	b := newBed(t)
	for name, want := range map[string]string{"n1": "does not run", "n9": "has no member n9", "n2": errTest.Error()} {
		if _, err := b.dial(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSameQuorum: a node whose configuration file and group disagree on the quorum does not start.
func TestSameQuorum(t *testing.T) {
	external := &config.Quorum{Endpoints: []string{"https://10.0.0.1:2379"}}
	for name, c := range map[string]struct {
		quorum *config.Quorum
		count  int
		want   string
	}{
		"embedded":                  {nil, 0, ""},
		"external":                  {external, 3, ""},
		"the file lost it":          {nil, 3, "put them back"},
		"the file has one too many": {external, 0, "remove them"},
		"not an endpoint":           {&config.Quorum{Endpoints: []string{"x"}}, 3, "quorum.endpoints"},
	} {
		err := sameQuorum(config.Config{Quorum: c.quorum}, ag.Group{External: c.count})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRosterDiffers holds that a difference between the quorum's own list of members and the configuration is told,
// and only after it has lasted longer than a member takes to join or leave.
func TestRosterDiffers(t *testing.T) {
	g := ag.Group{Replicas: []ag.Replica{{ID: "n1", Voter: true, EtcdID: 1}, {ID: "n2", Voter: true, EtcdID: 2}, {ID: "n3", Voter: true, EtcdID: 3}}}
	all := []etcd.MemberInfo{{ID: 1, Name: "n1"}, {ID: 2, Name: "n2"}, {ID: 3, Name: "n3"}}
	learner := append(slices.Clone(all[:2]), etcd.MemberInfo{ID: 3, Name: "n3", Learner: true})
	for name, c := range map[string]struct {
		members []etcd.MemberInfo
		want    string
	}{
		"alike":                    {all, ""},
		"half removed":             {all[:2], "the configuration counts the vote of n3, and the quorum has no such member"},
		"a learner":                {learner, "in the quorum it does not vote yet"},
		"another member":           {append(slices.Clone(all), etcd.MemberInfo{ID: 4, Name: "n4"}), "a voting member that the configuration does not count: n4"},
		"another one, not started": {append(slices.Clone(all), etcd.MemberInfo{ID: 10}), "a, which has never started"},
		"a learner that joins":     {append(slices.Clone(all), etcd.MemberInfo{ID: 4, Name: "n4", Learner: true}), ""},
	} {
		if got := compareRoster(g, c.members); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: %q", name, got)
		}
	}

	b := newBed(t)
	b.snap = &agent.Snapshot{Group: g}
	b.etcd.members = all[:2]
	b.rosterTurn(t.Context())
	if r := b.Roster(); r.Stray != "" || r.Voters != nil {
		t.Errorf("at once: %+v", r)
	}
	b.rosterTurn(t.Context())
	if r := b.Roster(); r.Stray != "" || len(r.Voters) != 2 {
		t.Errorf("at the second read: %+v", r)
	}
	b.clock = b.clock.Add(rosterPatience)
	b.rosterTurn(t.Context())
	if r := b.Roster(); r.Stray == "" {
		t.Errorf("after %v nothing is said", rosterPatience)
	}
	b.etcd.members = all
	b.rosterTurn(t.Context())
	if r := b.Roster(); r.Stray != "" || r.Voters != nil {
		t.Errorf("mended: %+v", r)
	}
}
