package ag

import (
	"slices"
	"testing"
	"time"
)

// suspicious is what b sees once it has evidence against a, and has acknowledged nothing for long enough.
func suspicious() View {
	v := following()
	v.Reach = []ReplicaID{"c"}
	v.Record.Lead = Lead{Epoch: 3, Holder: "a", Incarnation: "a-1", Answer: Answer{Voters: []ReplicaID{"a", "b", "c"}, Lease: 400 * time.Millisecond}}
	v.Voting = Voting{Evidence: Evidence{3, "a-1"}, Withheld: 3, Quiet: 410 * time.Millisecond}
	return v
}

// outvoted is what b sees when c and it have voted.
func outvoted() View {
	v := suspicious()
	for i, id := range []ReplicaID{"b", "c"} {
		v.Record.Votes = append(v.Record.Votes, Vote{Member: id, Epoch: 3, Incarnation: "a-1", Waited: 400 * time.Millisecond, Rev: int64(40 + i)})
	}
	return v
}

func TestVote(t *testing.T) {
	for _, tt := range []struct {
		name string
		view View
		edit func(*View)
		want Rule
	}{
		{"withholds first", suspicious(), func(v *View) { v.Voting.Withheld = 0 }, RuleVote},
		{"waits", suspicious(), func(v *View) { v.Voting.Quiet = 400 * time.Millisecond }, RuleStandBy},
		{"votes", suspicious(), func(*View) {}, RuleVote},
		{"votes while busy", suspicious(), func(v *View) { v.Busy = "seed" }, RuleVote},
		{"a witness votes", suspicious(), func(v *View) { v.Group.Replicas[1].AvailabilityMode = ConfigurationOnly }, RuleVote},
		{"has voted, alone", suspicious(), func(v *View) { v.Record.Votes = outvoted().Record.Votes[:1] }, RuleStandBy},
		{"no vote without quorum", suspicious(), func(v *View) { v.Quorum = false }, RuleAwaitQuorum},
		{"no vote before what was voted earlier is undone", suspicious(), func(v *View) { v.Voting.Fresh = true }, RuleAcknowledge},
		{"no vote with k of 0", suspicious(), func(v *View) { v.Record.State.K = 0 }, RuleAcknowledge},
		{"no vote against another incarnation", suspicious(), func(v *View) { v.Record.Lead.Incarnation = "a-2" }, RuleAcknowledge},
		{"no vote against who announced a restart", suspicious(), func(v *View) { v.Record.Lead.Restarting = true }, RuleAcknowledge},
		{"no vote against who declares no answer lease", suspicious(), func(v *View) { v.Record.Lead.Answer = Answer{} }, RuleAcknowledge},
		{"no vote among two", suspicious(), func(v *View) { v.Record.Lead.Answer.Voters = []ReplicaID{"a", "b"} }, RuleAcknowledge},
		{"no vote of who has none", suspicious(), func(v *View) { v.Record.Lead.Answer.Voters = []ReplicaID{"a", "c", "d"} }, RuleAcknowledge},
		{"the evidence ended", suspicious(), func(v *View) { v.Voting.Evidence = Evidence{} }, RuleAcknowledge},
		{"what was withheld in another epoch is over", suspicious(), func(v *View) { v.Voting = Voting{Withheld: 2} }, RuleStandBy},
		{"a majority", outvoted(), func(*View) {}, RuleClaim},
		{"a majority without this one", outvoted(), func(v *View) {
			v.Voting.Quiet, v.Record.Votes[0].Member = 0, "d"
			v.Record.Lead.Answer.Voters = []ReplicaID{"a", "b", "c", "d"}
		}, RuleStandBy},
		{"a vote of an older epoch", outvoted(), func(v *View) { v.Record.Votes[1].Epoch = 2 }, RuleStandBy},
		{"a vote against another incarnation", outvoted(), func(v *View) { v.Record.Votes[1].Incarnation = "a-0" }, RuleStandBy},
		{"a vote that waited for a shorter lease", outvoted(), func(v *View) { v.Record.Votes[1].Waited = 200 * time.Millisecond }, RuleStandBy},
		{"a vote of a stranger", outvoted(), func(v *View) { v.Record.Votes[1].Member = "d" }, RuleStandBy},
		{"a vote of the leader itself", outvoted(), func(v *View) { v.Record.Votes[1].Member = "a" }, RuleStandBy},
		{"a majority, but too few answer", outvoted(), func(v *View) { v.Reach = nil }, RuleStandBy},
		{"a majority, but this one has no evidence any more", outvoted(), func(v *View) { v.Voting.Evidence = Evidence{} }, RuleAcknowledge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := tt.view
			tt.edit(&v)
			p := Decide(v)
			if p.Rule != tt.want {
				t.Fatalf("Decide = %s (%s), want %s", p.Rule, p.Because, tt.want)
			}
			if c := p.Commit; c != nil && c.Guard.Epoch != v.Record.Revs.Epoch {
				t.Errorf("not guarded by /epoch: %+v", c.Guard)
			}
		})
	}
}

func TestClaimComparesVotes(t *testing.T) {
	v := outvoted()
	c := Decide(v).Commit
	if c.Guard != v.Record.Revs || !slices.Equal(c.Votes, v.Record.Votes) {
		t.Errorf("claim guarded by %+v and %+v", c.Guard, c.Votes)
	}
	v.Silence = time.Hour
	if c := Decide(v).Commit; c.Votes != nil {
		t.Errorf("silence needs no votes: %+v", c.Votes)
	}
}

func TestVoteSaysWhatItWaitedFor(t *testing.T) {
	c := Decide(suspicious()).Commit
	if x := c.Vote; x == nil || x.Member != "b" || x.Epoch != 3 || x.Incarnation != "a-1" || x.Waited != 400*time.Millisecond {
		t.Errorf("vote = %+v", c.Vote)
	}
	p := Decide(func() View { v := suspicious(); v.Voting.Evidence = Evidence{}; return v }())
	if p.Commit.Unvote != "b" || len(p.Actions) != 1 || p.Actions[0] != (Acknowledge{}) {
		t.Errorf("acknowledge = %+v: the vote must be gone first", p)
	}
}

func TestAnswerUntil(t *testing.T) {
	acked := map[ReplicaID]time.Duration{"b": 100, "c": 200, "d": 300, "e": 400}
	for _, tt := range []struct {
		name    string
		voters  []ReplicaID
		acked   map[ReplicaID]time.Duration
		until   time.Duration
		limited bool
		ok      bool
	}{
		{"none runs", nil, nil, 0, false, true},
		{"alone", []ReplicaID{"a"}, nil, 0, false, true},
		{"two need both", []ReplicaID{"a", "b"}, acked, 1100, true, true},
		{"three need the better of two", []ReplicaID{"a", "b", "c"}, acked, 1200, true, true},
		{"five need the second of four", []ReplicaID{"a", "b", "c", "d", "e"}, acked, 1300, true, true},
		{"without a vote of its own it needs one more", []ReplicaID{"b", "c", "d"}, acked, 1200, true, true},
		{"nobody answers", []ReplicaID{"a", "b", "c"}, nil, 0, true, false},
		{"one of five answers", []ReplicaID{"a", "b", "c", "d", "e"}, map[ReplicaID]time.Duration{"b": 100}, 0, true, false},
	} {
		until, limited, ok := Answer{Voters: tt.voters, Lease: 1000}.Until("a", tt.acked)
		if until != tt.until || limited != tt.limited || ok != tt.ok {
			t.Errorf("%s: %v %v %v, want %v %v %v", tt.name, until, limited, ok, tt.until, tt.limited, tt.ok)
		}
	}
}

func TestVoteWaitsLongerThanAnyClockLets(t *testing.T) {
	for name, p := range Profiles {
		wait := Answer{Lease: p.Answer}.VoteWait()
		if float64(wait)*(1-Rho) < float64(p.Answer)*(1+Rho) {
			t.Errorf("%s: %v of a fast clock may be less than %v of a slow one", name, wait, p.Answer)
		}
		if p.Beat*2 > p.Answer {
			t.Errorf("%s: one lost heartbeat of every %v would hold answers after %v", name, p.Beat, p.Answer)
		}
	}
}

// An external store of fewer than three members gives no fast takeover, and rests on no member of the group.
func TestExternalQuorumAndVotes(t *testing.T) {
	g := Group{External: 1, Replicas: []Replica{{ID: "a", Voter: true}, {ID: "b", Voter: true}, {ID: "c", Voter: true}}}
	p := Profiles["default"]
	if a := g.Answers(p); len(a.Voters) != 0 {
		t.Errorf("one member: %+v", a)
	}
	g.External = 3
	if a := g.Answers(p); len(a.Voters) != 3 {
		t.Errorf("three members: %+v", a)
	}
	if !g.Survives("a") || g.Voting() != 3 {
		t.Errorf("%t, %d votes", g.Survives("a"), g.Voting())
	}
	if g.External = 0; g.Survives("a") || g.Voting() != 0 {
		t.Errorf("embedded, no learner promoted yet: %t, %d votes", g.Survives("a"), g.Voting())
	}
}
