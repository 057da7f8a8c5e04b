package ag

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// suspicious is what b sees once it has evidence against a, and has acknowledged nothing for long enough.
func suspicious() View {
	v := following()
	v.Reach = []ReplicaID{"c"}
	v.Record.Lead = Lead{Epoch: 3, Holder: "a", Incarnation: "a-1", Answer: Answer{Voters: []ReplicaID{"a", "b", "c"}, Lease: 400 * time.Millisecond}}
	v.Voting = Voting{Evidence: Evidence{Epoch: 3, Incarnation: "a-1"}, Withheld: 3, Quiet: 410 * time.Millisecond}
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
		{"silence is evidence", suspicious(), func(v *View) { v.Voting.Evidence.Silent = "for long" }, RuleVote},
		{"silence is none with two copies", suspicious(), func(v *View) {
			v.Voting.Evidence.Silent, v.Group.Replicas[2].AvailabilityMode = "for long", ConfigurationOnly
		}, RuleAcknowledge},
		{"silence is none on an external quorum", suspicious(), func(v *View) { v.Voting.Evidence.Silent, v.Group.External = "for long", 3 }, RuleAcknowledge},
		{"silence is none with strict detection", suspicious(), func(v *View) {
			v.Voting.Evidence.Silent, v.Group.Options.FailureDetection = "for long", DetectStrict
		}, RuleAcknowledge},
		{"silence is evidence for who was told when", suspicious(), func(v *View) {
			v.Voting.Evidence.Silent, v.Group.Options.FailureDetection = "for long", DetectAdaptive
		}, RuleVote},
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

// A leader that was deposed for its silence alone is named in the record: it may have been alive.
func TestClaimBySilenceSaysSo(t *testing.T) {
	v := outvoted()
	if c := Decide(v).Commit; c.Epoch.Unheard != (Evidence{}) {
		t.Errorf("deposed for its silence: %+v", c.Epoch.Unheard)
	}
	v.Voting.Evidence.Silent, v.Record.Votes[1].Silent = "for long", "for long"
	p := Decide(v)
	if u := p.Commit.Epoch.Unheard; u != (Evidence{3, "a-1", "for long"}) || !strings.Contains(p.Because, "2 of 3 voters hear no more of a") {
		t.Errorf("%+v, %s", u, p.Because)
	}
	v.Record.Votes = nil
	if x := Decide(v).Commit.Vote; x.Silent != "for long" {
		t.Errorf("the vote does not say why: %+v", x)
	}
}

func TestSilenceFloor(t *testing.T) {
	adaptive := Group{Options: Options{FailureDetection: DetectAdaptive, SilenceFloor: 800 * time.Millisecond}}
	for _, tt := range []struct {
		g       Group
		profile string
		damped  bool
		want    time.Duration
	}{
		{Group{}, "default", false, 1500 * time.Millisecond},
		{Group{}, "default", true, 3 * time.Second},
		{Group{}, "fast", false, 600 * time.Millisecond},
		{Group{}, "wan", false, 4 * time.Second},
		{adaptive, "default", false, 800 * time.Millisecond},
		{adaptive, "default", true, 1600 * time.Millisecond},
		{Group{Options: Options{FailureDetection: DetectAdaptive}}, "fast", false, 600 * time.Millisecond},
		{Group{Options: Options{FailureDetection: DetectAdaptive, SilenceFloor: time.Minute}}, "default", false, 6500 * time.Millisecond},
		{Group{Options: Options{FailureDetection: DetectAdaptive, SilenceFloor: time.Millisecond}}, "default", false, 400 * time.Millisecond},
	} {
		if got := tt.g.SilenceFloor(Profiles[tt.profile], tt.damped); got != tt.want {
			t.Errorf("%+v at %s, damped %v: %v, want %v", tt.g.Options, tt.profile, tt.damped, got, tt.want)
		}
	}
}

// A value of a later version means the most careful one that this version knows.
func TestUnknownDetectionIsStrict(t *testing.T) {
	if d := (Options{FailureDetection: "CLAIRVOYANT"}).Detection(); d != DetectStrict {
		t.Error(d)
	}
}

// TestUnknownBarrierIsStrict checks that a barrier that a later version has written counts as the stronger one.
func TestUnknownBarrierIsStrict(t *testing.T) {
	g := Group{Replicas: []Replica{{ID: "a", Voter: true}, {ID: "b", Voter: true}, {ID: "c", Voter: true}}}
	if len(g.Answers(Profiles["default"]).Voters) != 3 {
		t.Fatal("a group without options rests on silence alone")
	}
	g.Options.CommitBarrier = "OATH"
	if !g.Options.Strict() || len(g.Answers(Profiles["default"]).Voters) != 0 {
		t.Errorf("strict: %v, answers %+v", g.Options.Strict(), g.Answers(Profiles["default"]))
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
