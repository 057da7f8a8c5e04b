package quorum

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

// TestSuperviseSuspends: a member whose disk is nearly full is closed, the others are asked from then on, and the
// member starts again when there is space for it.
func TestSuperviseSuspends(t *testing.T) {
	b := newBed(t)
	m := b.run(t)
	if done, err := b.supervise(t.Context(), true); done || err != nil || m.closed {
		t.Fatalf("with space: done %v, closed %v, %v", done, m.closed, err)
	}
	b.free = suspendBelow - 1
	if done, err := b.supervise(t.Context(), true); !done || err != nil || !m.closed || b.running() != nil {
		t.Fatalf("without space: done %v, closed %v, %v", done, m.closed, err)
	}
	if !strings.Contains(b.NoVote(), "3 MB are free") {
		t.Errorf("the reason is %q", b.NoVote())
	}
	if want := []string{"n2", "w1"}; !slices.Equal(b.etcd.endpoints, want) {
		t.Errorf("asked are %v, want %v", b.etcd.endpoints, want)
	}
	b.free = startAbove - 1
	if done, err := b.supervise(t.Context(), true); !done || err != nil || len(b.started) > 0 {
		t.Fatalf("with too little space: done %v, started %d, %v", done, len(b.started), err)
	}
	b.free = startAbove
	if done, err := b.supervise(t.Context(), true); !done || err != nil || b.running() == nil || b.NoVote() != "" {
		t.Fatalf("with space again: done %v, %q, %v", done, b.NoVote(), err)
	}
	if b.started[0].New || b.started[0].Token != "g" {
		t.Errorf("started with %+v", b.started[0])
	}
	if want := []string{"n1", "n2", "w1"}; !slices.Equal(b.etcd.endpoints, want) {
		t.Errorf("asked are %v, want %v", b.etcd.endpoints, want)
	}
}

// TestSuperviseFailed: a member that gave up, or that could not be closed, is never started again by this process. The
// agent restarts in place once there is space, and not more often than the pause allows.
func TestSuperviseFailed(t *testing.T) {
	full := fmt.Errorf("%w: %w", embedded.ErrFailed, embedded.ErrNoSpace)
	for name, c := range map[string]struct {
		err, closeErr error
		free          int64
		pause         int64 // seconds
	}{
		"gave up on a full disk":                {full, nil, 0, 60},
		"gave up for another reason":            {embedded.ErrFailed, nil, 1 << 30, 600},
		"gave up while it was closed":           {nil, full, 0, 60},
		"was not closed, and may use its files": {nil, errTest, 0, 600},
	} {
		b := newBed(t)
		m := b.run(t)
		m.err, m.closeErr, b.free = c.err, c.closeErr, c.free
		if done, err := b.supervise(t.Context(), true); !done || err != nil || b.running() != nil || b.NoVote() == "" {
			t.Errorf("%s: done %v, %q, %v", name, done, b.NoVote(), err)
		}
		for _, turn := range []struct {
			free, after int64
			want        int
		}{{startAbove - 1, c.pause, 0}, {startAbove, 0, 1}, {startAbove, c.pause - 1, 1}, {startAbove, 1, 2}} {
			b.free, b.clock = turn.free, b.clock.Add(seconds(turn.after))
			if done, err := b.supervise(t.Context(), true); !done || err != nil || b.restarts != turn.want {
				t.Errorf("%s, %+v: done %v, %d restarts, %v", name, turn, done, b.restarts, err)
			}
		}
		if len(b.started) > 0 {
			t.Errorf("%s: it was started again", name)
		}
	}
}

// TestSuperviseWithoutAMajority: where no majority answers, a member that gave up begins again within a minute, once
// its disk takes writes.
func TestSuperviseWithoutAMajority(t *testing.T) {
	b := newBed(t)
	m := b.run(t)
	m.err, b.free = embedded.ErrFailed, startAbove
	b.view.Quorum = false
	turn := func(what string, after int64, want int) {
		t.Helper()
		b.clock = b.clock.Add(seconds(after))
		if done, err := b.supervise(t.Context(), true); !done || err != nil || b.restarts != want {
			t.Errorf("%s: done %v, %d restarts, want %d, %v", what, done, b.restarts, want, err)
		}
	}
	turn("it gives up", 0, 0)
	turn("before the pause has passed", 59, 0)
	dir := b.Layout.Etcd()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	turn("its disk takes no writes", 60, 0)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	turn("it takes them again", 1, 1)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	b.view.Quorum = true
	turn("a majority answers", 61, 1)
}

// TestSuperviseLeavesAlone: a node without a member of its own, and one that the configuration does not know, start
// none.
func TestSuperviseLeavesAlone(t *testing.T) {
	b := newBed(t)
	if done, err := b.supervise(t.Context(), true); done || err != nil || len(b.started) > 0 {
		t.Errorf("never a member: done %v, %v", done, err)
	}
	b.mark(t)
	if done, err := b.supervise(t.Context(), false); done || err != nil || len(b.started) > 0 {
		t.Errorf("not in the configuration: done %v, %v", done, err)
	}
	b.startErr = errTest
	if done, err := b.supervise(t.Context(), true); !done || err == nil || b.NoVote() != "" {
		t.Errorf("a start that fails: done %v, %v", done, err)
	}
	b.startErr = embedded.ErrFailed
	if done, err := b.supervise(t.Context(), true); !done || err != nil || b.NoVote() == "" {
		t.Errorf("a start that gives up: done %v, %q, %v", done, b.NoVote(), err)
	}
}

// TestSuperviseRestartsForTrust: the member restarts for a new authority only in this node's turn, with the quorum, and
// while every other voter answers.
func TestSuperviseRestartsForTrust(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*bed)
		restarts bool
	}{
		"its turn":                  {func(*bed) {}, true},
		"trusts the same":           {func(b *bed) { b.trusts = "old" }, false},
		"no quorum":                 {func(b *bed) { b.view.Quorum = false }, false},
		"no view yet":               {func(b *bed) { b.view = nil }, false},
		"no record yet":             {func(b *bed) { b.snap = nil }, false},
		"no rotation":               {func(b *bed) { b.snap.Group.Rotation = nil }, false},
		"done already":              {func(b *bed) { b.snap.Group.Rotation.Done = []ag.ReplicaID{"n1"} }, false},
		"a voter does not answer":   {func(b *bed) { b.view.Reach = []ag.ReplicaID{"n2"} }, false},
		"a member without a vote":   {func(b *bed) { b.view.Reach = nil; noOtherVotes(&b.snap.Group) }, true},
		"another's turn before it":  {func(b *bed) { r := b.snap.Group.Replicas; r[0], r[1] = r[1], r[0] }, false},
		"the one before it is done": {func(b *bed) { swapDone(&b.snap.Group) }, true},
	} {
		b := newBed(t)
		m := b.run(t)
		b.alter(func(g *ag.Group) { g.Rotation = &ag.Rotation{Pin: "new", Phase: ag.RotationTrust} })
		b.trusts = "new old"
		if b.MemberTrusts() {
			t.Errorf("%s: the member trusts what it has not read", name)
		}
		c.change(b)
		done, err := b.supervise(t.Context(), true)
		if err != nil || done != c.restarts || m.closed != c.restarts || len(b.started) == 1 != c.restarts {
			t.Errorf("%s: done %v, closed %v, started %d, %v", name, done, m.closed, len(b.started), err)
		}
		if c.restarts && (!b.MemberTrusts() || b.running() == nil) {
			t.Errorf("%s: the member does not trust the authorities", name)
		}
	}
	b := newBed(t)
	m := b.run(t)
	m.closeErr = errTest
	if err := b.restartMember(t.Context(), m); err == nil || len(b.started) > 0 || b.failed == nil {
		t.Errorf("a member that was not closed was started again: %v", err)
	}
}

func noOtherVotes(g *ag.Group) {
	for i := range g.Replicas[1:] {
		g.Replicas[i+1].Voter, g.Replicas[i+1].EtcdID = false, 0
	}
}

func swapDone(g *ag.Group) {
	g.Replicas[0], g.Replicas[1] = g.Replicas[1], g.Replicas[0]
	g.Rotation.Done = []ag.ReplicaID{"n2"}
}

// TestNoVoteSaysWhenItVotesAgain holds that the reason names the pause that is kept: a member that gave up waits even
// if there is room again.
func TestNoVoteSaysWhenItVotesAgain(t *testing.T) {
	for want, failed := range map[string]error{
		"when 16 MB are free there: remove":                                                                                   nil,
		"when 16 MB are free there, and 1 min after it gave up at the earliest":                                               fmt.Errorf("%w: %w", embedded.ErrFailed, embedded.ErrNoSpace),
		"10 min after it gave up, or 1 min where no majority answers; at once, when its disk is sound: coterie restart on n1": embedded.ErrFailed,
	} {
		s := Service{failed: failed, self: "n1"}
		if got := s.beginsAgain(); !strings.HasPrefix(strings.TrimPrefix(got, "the quorum's member begins again by itself "), want) {
			t.Errorf("%v: %s", failed, got)
		}
	}
}

// TestDamagedMemberIsReplaced: a member whose files are damaged costs a replica its vote until a majority of the others
// answers. Then the quorum removes it, and another one begins in its place. The agent is never restarted for it.
func TestDamagedMemberIsReplaced(t *testing.T) {
	damaged := fmt.Errorf("%w: %w", embedded.ErrFailed, embedded.ErrCorrupt)
	b := newBed(t)
	b.mark(t)
	b.startErr = damaged
	if err := b.startMember(t.Context()); err != nil || !strings.Contains(b.NoVote(), "another member begins in its place by itself") {
		t.Fatalf("%q, %v", b.NoVote(), err)
	}
	turn := func() {
		t.Helper()
		b.clock = b.clock.Add(brokenPause)
		if err := b.membershipTurn(t.Context()); err != nil || b.restarts > 0 {
			t.Fatalf("%d restarts, %v", b.restarts, err)
		}
		b.snap.Group = b.etcd.group // as the agent reads it
	}
	b.view.Quorum = false
	turn()
	b.view.Quorum = true
	b.alter(func(g *ag.Group) { g.Replicas[0].Suspended = true }) // its removal is under way
	turn()
	if b.etcd.group.Replicas[0].EtcdID != 1 || len(b.etcd.removed) > 0 || !b.wasMember() {
		t.Fatalf("without a majority, or while it is removed: %+v, removed %v", b.etcd.group.Replicas[0], b.etcd.removed)
	}
	b.alter(func(g *ag.Group) { g.Replicas[0].Suspended = false })
	turn()
	if b.etcd.group.Replicas[0].EtcdID != 0 || !slices.Equal(b.etcd.removed, []uint64{1}) || !b.wasMember() {
		t.Fatalf("%+v, removed %v, still a member %v", b.etcd.group.Replicas[0], b.etcd.removed, b.wasMember())
	}
	turn()
	if b.wasMember() || b.NoVote() != "" {
		t.Fatalf("its files are there: %v, %q", b.wasMember(), b.NoVote())
	}
	b.startErr = nil
	turn()
	if b.etcd.group.Replicas[0].EtcdID != 7 || b.running() == nil {
		t.Errorf("%+v", b.etcd.group.Replicas[0])
	}

	w := newBed(t)
	w.mark(t)
	w.startErr, w.Node.Kind = damaged, "witness"
	w.alter(func(g *ag.Group) { g.Replicas[0].AvailabilityMode = ag.ConfigurationOnly })
	if err := w.startMember(t.Context()); err != nil || !strings.Contains(w.NoVote(), "coterie member replace n1") {
		t.Errorf("a witness: %q, %v", w.NoVote(), err)
	}
	if err := w.membershipTurn(t.Context()); err != nil || len(w.etcd.removed) > 0 {
		t.Errorf("a witness removed %v, %v", w.etcd.removed, err)
	}

	alone := newBed(t)
	alone.mark(t)
	alone.startErr = damaged
	alone.alter(noOtherVotes)
	if err := alone.startMember(t.Context()); err != nil || !strings.Contains(alone.NoVote(), "coterie recover") {
		t.Errorf("the only voter: %q, %v", alone.NoVote(), err)
	}
	if err := alone.membershipTurn(t.Context()); err != nil || len(alone.etcd.removed) > 0 {
		t.Errorf("the only voter removed %v, %v", alone.etcd.removed, err)
	}
}

// TestDamagedMemberOfFewVotes holds that nobody waits for a majority which the damaged member was part of, and that
// nobody is told to found a quorum anew beside one that goes on.
func TestDamagedMemberOfFewVotes(t *testing.T) {
	for _, c := range []struct {
		name  string
		votes []bool // of n1, whose member is damaged, n2 and w1
		want  string
	}{
		{"one of three", []bool{true, true, true}, "another member begins in its place"},
		{"one of two", []bool{true, true, false}, "coterie recover"},
		{"the only one", []bool{true, false, false}, "coterie recover"},
		{"two others", []bool{false, true, true}, "another member begins in its place"},
		{"one other", []bool{false, true, false}, "another member begins in its place"},
	} {
		b := newBed(t)
		b.alter(func(g *ag.Group) {
			for i, votes := range c.votes {
				if !votes {
					g.Replicas[i].EtcdID = 0
				}
			}
		})
		if b.failed = embedded.ErrCorrupt; !strings.Contains(b.beginsAgain(), c.want) {
			t.Errorf("%s: %s", c.name, b.beginsAgain())
		}
	}
}

// TestHangingStartCostsTheVote holds that a member whose start hangs, as on a disk that does not answer, keeps the
// agent waiting for a while only.
func TestHangingStartCostsTheVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.mark(t)
		b.Service.start = func(ctx context.Context, _ embedded.Config) (member, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if err := b.startMember(t.Context()); err != nil || !strings.Contains(b.NoVote(), "10 min after it gave up") {
			t.Errorf("%q, %v", b.NoVote(), err)
		}
	})
}
