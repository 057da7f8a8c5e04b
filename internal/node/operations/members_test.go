package operations

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestRemove holds the order in which a member goes: held off, out of V, its vote, its place, and then what is left of
// it. An even number of votes is not left.
func TestRemove(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id      ag.ReplicaID
		counted bool // it is in V, until the primary drops it after a second
		removed []uint64
		voters  string
	}{
		"counted, with a vote":   {"b", true, []uint64{2}, "a c w"},
		"not counted, no vote":   {"c", false, nil, "a b w"},
		"the witness":            {"w", false, []uint64{4}, "a b c"},
		"counted, votes to even": {"b", true, []uint64{2, 5}, "a c w"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			if strings.HasSuffix(name, "to even") { // five members, five votes: one of the four that stay gives its vote up
				b.store.alter(func(x *etcd.Snapshot) {
					x.Group.Replicas[2].Voter, x.Group.Replicas[2].EtcdID = true, 3
					x.Group.Replicas = append(x.Group.Replicas, ag.Replica{ID: "d", Voter: true, EtcdID: 5, AvailabilityMode: ag.SynchronousCommit})
				})
			}
			if tt.counted {
				defer time.AfterFunc(time.Second, func() {
					if r := b.replica(tt.id); !r.Suspended || r.SuspendedBy != ag.SuspendRemoval || len(b.store.removed) > 0 {
						t.Errorf("%s: while it counts: %+v, votes taken: %v", name, r, b.store.removed)
					}
					b.store.alter(func(x *etcd.Snapshot) { x.Record.State.V, x.Record.State.K = nil, 0 })
				}).Stop()
			}
			began := time.Now()
			if err := b.Remove(t.Context(), tt.id); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if took := time.Since(began); took >= time.Second != tt.counted {
				t.Errorf("%s: it took %v", name, took)
			}
			var voters []string
			var members []ag.ReplicaID
			for _, r := range b.group().Replicas {
				members = append(members, r.ID)
				if r.Voter {
					voters = append(voters, string(r.ID))
				}
			}
			_, there := b.group().Replica(tt.id)
			if there || !slices.Equal(b.store.removed, tt.removed) || strings.Join(voters, " ") != tt.voters || !slices.Equal(b.store.kept, members) {
				t.Errorf("%s: there %v, votes taken %v, voters %v, statuses kept of %v", name, there, b.store.removed, voters, b.store.kept)
			}
		})
	}
}

// onlyVote makes that member the only voter, as after a failover in a group of two.
func (b *bed) onlyVote(id ag.ReplicaID) {
	for i := range b.store.x.Group.Replicas {
		if r := &b.store.x.Group.Replicas[i]; r.ID != id {
			r.Voter, r.EtcdID = false, 0
		}
	}
}

// TestRemoveOfTheOnlyVoter holds that the primary votes before the vote of the only voter is taken, which would be
// refused, and before the member is suspended.
func TestRemoveOfTheOnlyVoter(t *testing.T) {
	t.Parallel()
	for _, id := range []ag.ReplicaID{"b", "w"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.onlyVote(id)
			vote, _ := b.group().Replica(id)
			b.store.x.Record.State.V, b.store.x.Record.State.K = nil, 0
			b.later(func(x *etcd.Snapshot) {
				x.Group.Replicas = slices.Clone(x.Group.Replicas)
				if !x.Group.Replicas[0].Voter || b.store.removed != nil || slices.ContainsFunc(x.Group.Replicas, func(r ag.Replica) bool { return r.Suspended }) {
					t.Errorf("%s: before the primary votes: %+v, votes taken %v", id, x.Group.Replicas, b.store.removed)
				}
				x.Group.Replicas[0].EtcdID = 9
			})
			if err := b.Remove(t.Context(), id); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			if _, there := b.group().Replica(id); there || !slices.Equal(b.store.removed, []uint64{vote.EtcdID}) || !b.group().Votes(b.replica("a")) {
				t.Errorf("%s: votes taken %v, %+v", id, b.store.removed, b.group().Replicas)
			}
		})
	}
}

// TestRemoveGivesTheVoteOnFirst holds that a spare member votes before the vote of a member that lives is taken, so
// that the primary may die at any moment, and that nothing waits for one that is down, that never votes or is not
// needed.
func TestRemoveGivesTheVoteOnFirst(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		down  []ag.ReplicaID // they answer no ping
		votes bool           // c comes to vote when it may
		first bool           // c votes before b does not
		took  time.Duration
	}{
		"both live":               {nil, true, true, time.Second},
		"the member is lost":      {[]ag.ReplicaID{"b"}, true, false, 0},
		"the spare one is down":   {[]ag.ReplicaID{"c"}, false, false, 0},
		"it does not get to vote": {nil, false, false, spareLimit},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.store.x.Record.State.V, b.store.x.Record.State.K = nil, 0
			b.calls["ping"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
				if slices.Contains(tt.down, to) {
					return nil, errTest
				}
				return marks.Seen{}, nil
			}
			first := false
			b.later(func(x *etcd.Snapshot) {
				x.Group.Replicas = slices.Clone(x.Group.Replicas)
				if r := &x.Group.Replicas[min(2, len(x.Group.Replicas)-1)]; tt.votes && r.ID == "c" && r.Voter {
					r.EtcdID, first = 9, b.store.removed == nil
				}
			})
			began := time.Now()
			if err := b.Remove(t.Context(), "b"); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if took := time.Since(began); first != tt.first || took < tt.took || took > tt.took+time.Second {
				t.Errorf("%s: first %v after %v", name, first, took)
			}
			if _, there := b.group().Replica("b"); there || !slices.Equal(b.store.removed, []uint64{2}) || !b.replica("c").Voter {
				t.Errorf("%s: votes taken %v, %+v", name, b.store.removed, b.group().Replicas)
			}
		})
	}
}

// TestRemoveTakesWhatALostMemberLeftInTheQuorum holds that no member of the quorum is left of a node that was lost
// between becoming one and the configuration's saying so, whichever command ended before it came to that; and that one
// of a node that is about to vote is left alone.
func TestRemoveTakesWhatALostMemberLeftInTheQuorum(t *testing.T) {
	t.Parallel()
	about := etcd.MemberInfo{ID: 30, PeerURLs: []string{"https://d:5022"}, Learner: true}
	ids := []etcd.MemberInfo{{ID: 1, Name: "a"}, {ID: 2, Name: "b"}, {ID: 4, Name: "w"}, about}
	for name, stray := range map[string]etcd.MemberInfo{
		"a voter":                          {ID: 20, Name: "c", PeerURLs: []string{"https://c:5022"}},
		"a learner that has never started": {ID: 20, PeerURLs: []string{"https://c:5022"}, Learner: true},
	} {
		for command, run := range map[string]func(ctx context.Context, b *bed) error{
			"remove": func(ctx context.Context, b *bed) error { return b.Remove(ctx, "c") },
			"replace": func(ctx context.Context, b *bed) error {
				_, err := b.Replace(ctx, api.ReplaceRequest{Member: "c", TTL: time.Hour})
				return err
			},
			"remove again": func(ctx context.Context, b *bed) error {
				b.leaves("c")
				return b.Remove(ctx, "c")
			},
			"replace again": func(ctx context.Context, b *bed) error {
				b.store.alter(func(x *etcd.Snapshot) { x.Group.Await("c") })
				_, err := b.Replace(ctx, api.ReplaceRequest{Member: "c", TTL: time.Hour})
				return err
			},
			"the wait is given up": func(ctx context.Context, b *bed) error {
				b.store.alter(func(x *etcd.Snapshot) { x.Group.Await("c") })
				return b.Remove(ctx, "c")
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.withAuthority(t)
				b.store.members = append(slices.Clone(ids), stray)
				b.store.alter(func(x *etcd.Snapshot) {
					x.Group.Replicas[2].Voter = true
					x.Group.Replicas = append(x.Group.Replicas, ag.Replica{ID: "d", Endpoint: "d:5022", Voter: true, AvailabilityMode: ag.SynchronousCommit})
				})
				if err := run(t.Context(), b); err != nil {
					t.Fatalf("%s, %s: %v", command, name, err)
				}
				if b.store.mu.Lock(); !slices.EqualFunc(b.store.members, ids, func(m, o etcd.MemberInfo) bool { return m.ID == o.ID }) {
					t.Errorf("%s, %s: %+v", command, name, b.store.members)
				}
				b.store.mu.Unlock()
			})
		}
	}
	b := newBed(t)
	b.store.members = append(slices.Clone(ids[:3]), etcd.MemberInfo{ID: 20, Name: "c"})
	if err := b.Remove(t.Context(), "z"); fail.KindOf(err) != fail.Usage {
		t.Errorf("a name that the group has never had, beside what another left: %v", err)
	}
	b = newBed(t)
	b.store.x.Group.External, b.store.members = 3, []etcd.MemberInfo{{ID: 5, Name: "etcd-1"}}
	if err := b.Remove(t.Context(), "z"); fail.KindOf(err) != fail.Usage || len(b.store.removed) > 0 {
		t.Errorf("an external quorum: %v, removed %v", err, b.store.removed)
	}
}

// TestRemoveWaitsForAnElectionAtItsEnd holds the same of the last look at the quorum's members, behind votes that were
// taken from others.
func TestRemoveWaitsForAnElectionAtItsEnd(t *testing.T) {
	t.Parallel()
	for turns, says := range map[int]string{20: "", 10000: "the removal is not complete: b is no member of the group any more"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.store.x.Record.State.V, b.store.x.Record.State.K = nil, 0
			b.store.unlisted = turns
			err := b.Remove(t.Context(), "b")
			if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "Run coterie member remove b again")) {
				t.Errorf("%d turns: %v", turns, err)
			}
			if _, there := b.group().Replica("b"); there {
				t.Errorf("%d turns: still a member", turns)
			}
		})
	}
}

// TestRemoveWaitsForAnElection holds that a removal goes on when the quorum has elected a leader in place of the
// member, and that one which does not come to its end says what is done and how it goes on.
func TestRemoveWaitsForAnElection(t *testing.T) {
	t.Parallel()
	for turns, says := range map[int]string{20: "", 10000: "the removal is not complete: the vote of b is taken, and the configuration still lists it. Run coterie member remove b again"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.store.x.Record.State.V, b.store.x.Record.State.K = nil, 0
			b.store.electing = turns
			err := b.Remove(t.Context(), "b")
			_, there := b.group().Replica("b")
			if says == "" && (err != nil || there) || says != "" && (err == nil || !there || !strings.Contains(err.Error(), says)) {
				t.Errorf("%d turns: %v, still a member: %v", turns, err, there)
			}
			if !slices.Contains(b.store.removed, 2) {
				t.Errorf("%d turns: votes taken %v", turns, b.store.removed)
			}
			b.store.electing = 0
			if err := b.Remove(t.Context(), "b"); says != "" && err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

// TestRemoveRefuses holds what is not removed, and that a member that still counts is not.
func TestRemoveRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id     ag.ReplicaID
		change func(b *bed)
		kind   fail.Kind
		text   string
	}{
		"the primary":  {"a", nil, fail.Refused, "failover first"},
		"itself":       {"a", func(b *bed) { b.store.x.Record.Epoch.Leader = "b" }, fail.Refused, "Run coterie member remove a on b or c; or, here, coterie leave"},
		"on a witness": {"b", func(b *bed) { b.store.x.Group.SignedOnly = true }, fail.Refused, "cannot change who is a member; nothing was changed. Run coterie member remove b on c"},
		"its name, on a witness": {"d", func(b *bed) {
			b.store.x.Group.SignedOnly, b.store.x.Group.Awaited = true, []ag.Replica{{ID: "d"}}
		}, fail.Refused, "Run coterie member remove d on b or c"},
		"with the only vote, and the primary gets none": {"b", func(b *bed) { b.onlyVote("b") }, fail.Unhealthy, "a has not come to vote beside it within 30s"},
		"with the only vote, and none leads": {"b", func(b *bed) {
			b.onlyVote("b")
			b.store.x.Record.Epoch.Leader = ""
		}, fail.Unhealthy, "nothing was changed"},
		"REQUIRED asks for it": {"b", func(b *bed) {
			two := 2
			b.store.alter(func(x *etcd.Snapshot) { x.Group.Required = &two })
		}, fail.Refused, "without b the group has 1 of the 2 secondaries"},
		"nobody":           {"z", nil, fail.Usage, "the group has no member z"},
		"without a quorum": {"b", func(b *bed) { b.store.readErr = etcd.ErrNoQuorum }, fail.Unhealthy, etcd.ErrNoQuorum.Error()},
		"on a node that was removed": {"b", func(b *bed) {
			b.store.readErr = fmt.Errorf("read: %w: rpc error", etcd.ErrNoQuorum)
			b.status.removed = true
		}, fail.Unhealthy, "a was removed from the group and can change nothing of it; run the command on a member"},
		"it is never dropped":   {"b", nil, fail.Unhealthy, "has dropped b"},
		"the vote is not taken": {"w", func(b *bed) { b.store.removeErr = errTest }, fail.Ordinary, "take the vote of w"},
		"gone in this moment":   {"c", func(b *bed) { b.store.overtaken, b.store.other = 1, func() { b.leaves("c") } }, fail.Usage, "the group has no member c"},
		"a failover makes it the primary": {"b", func(b *bed) {
			b.later(func(x *etcd.Snapshot) {
				x.Record.Epoch.Epoch, x.Record.Epoch.Leader, x.Record.Epoch.Phase = 8, "b", ag.PhasePromote
				x.Record.State.V = nil
			})
		}, fail.Refused, "has become the primary meanwhile"},
		"it is resumed": {"b", func(b *bed) {
			b.later(func(x *etcd.Snapshot) {
				x.Group.Replicas = slices.Clone(x.Group.Replicas)
				x.Group.Replicas[1].Suspended = false
			})
		}, fail.Unhealthy, "was resumed"},
		"it is resumed in this moment": {"b", func(b *bed) {
			b.store.alter(func(x *etcd.Snapshot) { x.Record.State.V, x.Group.Replicas[1].EtcdID = nil, 0 })
			b.store.other = func() {
				b.store.alter(func(x *etcd.Snapshot) {
					x.Group.Replicas = slices.Clone(x.Group.Replicas)
					x.Group.Replicas[1].Suspended = false
				})
			}
			update := b.Update
			b.Update = func(ctx context.Context, change func(*ag.Group) error) error {
				defer func() { b.store.overtaken = 1 }() // from the second one on
				return update(ctx, change)
			}
		}, fail.Unhealthy, "was resumed"},
		"a failover to it ends in this moment": {"b", func(b *bed) {
			b.store.alter(func(x *etcd.Snapshot) { x.Record.State.V, x.Group.Replicas[1].EtcdID = nil, 0 })
			b.store.unlisting = func() {
				b.store.mu.Lock() // the configuration stays as it is
				defer b.store.mu.Unlock()
				e := &b.store.x.Record.Epoch
				e.Epoch, e.Leader, e.Phase, b.store.x.Record.Revs.Epoch = 8, "b", ag.PhaseLead, 99
			}
		}, fail.Refused, "has become the primary meanwhile"},
		"it led last, and none leads since": {"b", func(b *bed) {
			b.store.alter(func(x *etcd.Snapshot) {
				x.Record.Epoch.Epoch, x.Record.Epoch.Leader, x.Record.Epoch.Phase = 8, "c", ag.PhaseSeal
				x.Record.State.Leader, x.Record.State.V = "b", []ag.Member{{ID: "a"}, {ID: "c"}}
			})
		}, fail.Unhealthy, "no primary has dropped b"},
		"a primary that retires": {"b", func(b *bed) { b.store.x.Record.Epoch.Leader = "b" }, fail.Refused, "failover first"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			if tt.change != nil {
				tt.change(b)
			}
			began := time.Now()
			err := b.Remove(t.Context(), tt.id)
			if took := time.Since(began); took > dropLimit {
				t.Errorf("%s: it took %v", name, took)
			}
			if err == nil || fail.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v", name, err)
			}
			if strings.HasPrefix(name, "with the only vote") && b.replica(tt.id).Suspended {
				t.Errorf("%s: it is suspended", name)
			}
			if _, there := b.store.x.Group.Replica(tt.id); there != (tt.id != "z" && tt.id != "c" && tt.id != "d") || len(b.store.removed) > 0 || b.store.kept != nil {
				t.Errorf("%s: there %v, votes taken %v", name, there, b.store.removed)
			}
		})
	}
}

// later changes what the record holds after a second.
func (b *bed) later(change func(x *etcd.Snapshot)) {
	time.AfterFunc(time.Second, func() { b.store.alter(change) })
}

// TestLeave holds which members are asked to remove this node, in which order, and which answers end that.
func TestLeave(t *testing.T) {
	t.Parallel()
	refused, lost := fail.Refusedf("not now"), errors.New("the connection ended")
	for name, tt := range map[string]struct {
		leader  ag.ReplicaID
		answers map[ag.ReplicaID]error
		change  func(b *bed)
		asked   string
		kind    fail.Kind
		text    string
	}{
		"the primary is asked first":  {"c", nil, nil, "c", "", ""},
		"then others, no witness":     {"c", map[ag.ReplicaID]error{"c": lost, "b": lost}, nil, "c b", fail.Ordinary, "ask b: the connection ended"},
		"a refusal ends it":           {"b", map[ag.ReplicaID]error{"b": refused}, nil, "b", fail.Refused, "not now"},
		"the primary does not leave":  {"a", nil, nil, "", fail.Refused, "failover first"},
		"it has left":                 {"b", nil, func(b *bed) { b.leaves("a") }, "", "", ""},
		"no quorum":                   {"b", nil, func(b *bed) { b.store.readErr = etcd.ErrNoQuorum }, "", fail.Unhealthy, etcd.ErrNoQuorum.Error()},
		"nobody could take it out":    {"w", nil, func(b *bed) { b.leaves("b"); b.leaves("c") }, "", fail.Refused, "no other replica"},
		"without a primary all asked": {"", map[ag.ReplicaID]error{"b": lost}, nil, "b c", "", ""},
	} {
		b := newBed(t)
		b.store.x.Record.Epoch.Leader = tt.leader
		if tt.change != nil {
			tt.change(b)
		}
		var asked []string
		b.calls["leave"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
			asked = append(asked, string(to))
			return nil, tt.answers[to]
		}
		err := b.Leave(t.Context())
		if strings.Join(asked, " ") != tt.asked || (err == nil) != (tt.text == "") || err != nil && (fail.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text)) {
			t.Errorf("%s: asked %v, %v", name, asked, err)
		}
	}
}

// TestDismiss holds that a removal goes on when the connection of the member that asked for it has ended.
func TestDismiss(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Dismiss(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	if _, there := b.group().Replica("c"); there {
		t.Error("c is still a member")
	}
	if err := b.Dismiss(t.Context(), "c"); err != nil {
		t.Errorf("it was removed already: %v", err)
	}
	if err := b.Dismiss(t.Context(), "a"); fail.KindOf(err) != fail.Refused {
		t.Errorf("the primary: %v", err)
	}
}

// TestTwoDoNotLeaveAtOnce holds that of two synchronized secondaries that leave at the same moment one stays, whichever
// is first; that one beside which another is synchronized leaves, and so does the only secondary.
func TestTwoDoNotLeaveAtOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		counted string
		change  func(g *ag.Group)
		refused bool
	}{
		"another is synchronized":              {"b c", func(*ag.Group) {}, false},
		"the other is being removed":           {"b c", func(g *ag.Group) { g.Replicas[2].Suspended = true }, true},
		"the other is not synchronized":        {"b", func(*ag.Group) {}, true},
		"it is not synchronized itself":        {"c", func(g *ag.Group) { g.Replicas[2].Suspended = true }, false},
		"it is the only secondary":             {"b", func(g *ag.Group) { g.Replicas = slices.Delete(slices.Clone(g.Replicas), 2, 3) }, false},
		"the other is an asynchronous replica": {"b", func(g *ag.Group) { g.Replicas[2].AvailabilityMode = ag.AsynchronousCommit }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.store.alter(func(x *etcd.Snapshot) {
				x.Record.State.V = nil
				for _, id := range strings.Fields(tt.counted) {
					x.Record.State.V = append(x.Record.State.V, ag.Member{ID: ag.ReplicaID(id)})
				}
				if x.Group.Replicas = slices.Clone(x.Group.Replicas); !tt.refused {
					tt.change(&x.Group)
				}
			})
			if tt.refused { // the other one is first, after the configuration was read
				b.store.overtaken, b.store.other = 1, func() { b.store.alter(func(x *etcd.Snapshot) { tt.change(&x.Group) }) }
			}
			b.later(func(x *etcd.Snapshot) { x.Record.State.V = nil })
			err := b.Dismiss(t.Context(), "b")
			if (fail.KindOf(err) == fail.Refused) != tt.refused || !tt.refused && err != nil || b.replica("b").Suspended {
				t.Errorf("%s: %v, %+v", name, err, b.replica("b"))
			}
		})
	}
}

// leaves has a member leave the configuration, by another administrator.
func (b *bed) leaves(id ag.ReplicaID) {
	b.store.alter(func(x *etcd.Snapshot) {
		x.Group.Replicas = slices.DeleteFunc(slices.Clone(x.Group.Replicas), func(r ag.Replica) bool { return r.ID == id })
	})
}

// TestLink holds who is asked for the path between two members.
func TestLink(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.calls["link"] = func(_ context.Context, to ag.ReplicaID, in any) (any, error) {
		return api.Link{Peer: "asked " + to, Reason: fmt.Sprint(in)}, nil
	}
	for _, tt := range []struct {
		from, to ag.ReplicaID
		peer     ag.ReplicaID
		refused  string
	}{
		{"a", "b", "b", ""},
		{"b", "a", "asked b", ""},
		{"a", "z", "", "the group has no member z: its members are a, b, c, w"},
		{"z", "a", "", "the group has no member z: its members are a, b, c, w"},
		{"b", "b", "", "b has no link to itself; run coterie check link b a"},
		{"a", "a", "", "a has no link to itself; run coterie check link a b"},
		{"w", "w", "", "w is a witness, and no WAL flows to it; run coterie check link a b"},
		{"b", "w", "", "w is a witness, and no WAL flows to it; run coterie check link b a"},
		{"w", "b", "", "w is a witness, and no WAL flows to it; run coterie check link b a"},
	} {
		l, err := b.Link(t.Context(), api.LinkRequest{From: tt.from, To: tt.to})
		if l.Peer != tt.peer || (err == nil) != (tt.refused == "") || err != nil && (fail.KindOf(err) != fail.Usage || !strings.Contains(err.Error(), tt.refused)) {
			t.Errorf("from %s to %s: %+v, %v", tt.from, tt.to, l, err)
		}
	}
	b.status.removed = true
	if _, err := b.Link(t.Context(), api.LinkRequest{From: "b", To: "c"}); fail.KindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), "a was removed from the group") {
		t.Errorf("on a node that was removed: %v", err)
	}
}

// TestRestartWithABadConfiguration holds that an agent goes on where its successor could not start: a mistyped line of
// coterie.yaml would else stop the node, and a primary would lose the leadership.
func TestRestartWithABadConfiguration(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ old, new, says string }{
		"an unknown key":  {"node: a", "nod: a", `unknown field "nod"`},
		"no YAML":         {"node: a", "node: [a", "coterie.yaml"},
		"another name":    {"node: a", "node: b", `coterie.yaml is now of replica "b" of group`},
		"another group":   {"group: " + string(groupID), "group: 5", "of group 5, and this node is"},
		"a wrong port":    {"127.0.0.1:5022", "127.0.0.1:70000", "70000"},
		"nothing changed": {"", "", ""},
	} {
		b := newBed(t)
		path := filepath.Join(b.Layout.Dir, config.File)
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), tt.old) {
			t.Fatalf("%v: %s", err, text)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), tt.old, tt.new)), 0o600); err != nil {
			t.Fatal(err)
		}
		err = b.Restart(t.Context(), api.RestartRequest{})
		if tt.says == "" {
			if err != nil || len(b.agent.restarts) != 1 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "coterie config check --node "+b.Layout.Dir) || len(b.agent.restarts) != 0 {
			t.Errorf("%s: restarted %d times, %v", name, len(b.agent.restarts), err)
		}
	}
}

// TestRestart holds that an agent is asked to restart, also a witness's, and that a restart that fails says so.
func TestRestart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if err := b.Restart(t.Context(), api.RestartRequest{Drain: time.Minute, Cut: true}); err != nil || len(b.agent.restarts) != 1 ||
		b.agent.restarts[0].Drain != time.Minute || !b.agent.restarts[0].Cut {
		t.Errorf("%+v, %v", b.agent.restarts, err)
	}
	b.agent.err = errors.New("it is busy")
	if err := b.Restart(t.Context(), api.RestartRequest{}); fail.KindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), "it is busy") {
		t.Errorf("an agent that does not want to: %v", err)
	}
	b.Service.Server, b.agent.err = nil, nil
	if err := b.Restart(t.Context(), api.RestartRequest{}); err != nil || len(b.agent.restarts) != 3 {
		t.Errorf("a witness: %v", err)
	}
}
