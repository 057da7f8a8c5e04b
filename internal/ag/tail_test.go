package ag

import (
	"slices"
	"strings"
	"testing"
)

// manual is what b sees as the candidate of the fourth epoch when c has a longer log and is not to be promoted without
// a person.
func manual() View {
	v := sealing()
	v.Group.Replicas = slices.Clone(v.Group.Replicas)
	v.Group.Replicas[2].FailoverMode = Manual
	v.Seals[1].Position.LSN = 210
	return v
}

func TestFetchTail(t *testing.T) {
	fetched := func(v *View) { v.Local.Source, v.Local.SourceEp, v.Local.Position.LSN = "c", 4, 210 }
	for _, tt := range []struct {
		name string
		edit func(*View)
		want Rule
	}{
		{"the longest log is of a manual replica", func(*View) {}, RuleFetch},
		{"of a suspended one", func(v *View) { v.Group.Replicas[2].FailoverMode, v.Group.Replicas[2].Suspended = Automatic, true }, RuleFetch},
		{"of one that is not trusted", func(v *View) { v.Group.Replicas[2].FailoverMode, v.Seals[1].Promotable = Automatic, false }, RuleFetch},
		{"of one that does not answer any more", func(v *View) { v.Reach = nil }, RuleFetch},
		{"almost fetched", func(v *View) { fetched(v); v.Local.Position.LSN = 209 }, RuleFetch},
		{"fetched", fetched, RuleChoose},
		{"a position that is not of this epoch", func(v *View) { fetched(v); v.Local.SourceEp = 3 }, RuleFetch},
		{"fetched into another copy", func(v *View) { fetched(v); v.Local.Copy = "B2" }, RuleSeal},
		{"its own copy is not trusted", func(v *View) { v.Seals[0].Promotable = false }, RuleSeal},
		{"its own copy is not counted", func(v *View) { v.Record.State.V[0].Copy = "B2" }, RuleSeal},
		{"too few seals", func(v *View) { v.Seals = v.Seals[:1] }, RuleSeal},
		{"k is 0", func(v *View) { v.Record.State.K = 0 }, RuleSeal},
		{"its own copy left the history before", func(v *View) { v.Seals[0].Position, v.Local.Position = Position{1, 101}, Position{1, 101} }, RuleSeal},
		{"its own copy ends where a timeline ends", func(v *View) { v.Seals[0].Position, v.Local.Position = Position{1, 100}, Position{1, 100} }, RuleFetch},
		{"the longest log is on no timeline that is known", func(v *View) { v.Seals[1].Position = Position{6, 10} }, RuleSeal},
		{"the last leader answers and may be promoted", func(v *View) {
			v.Seals = append(v.Seals, SealReport{"a", "A", 4, Position{4, 210}, true, false})
		}, RuleChoose},
		{"as many as are needed are not as far", func(v *View) { v.Record.State.K = 2 }, RuleChoose},
		{"forced", func(v *View) { v.Op = Op{Kind: OpForced, To: "b", Epoch: 4} }, RuleForce},
		{"makes no progress, and another could", func(v *View) { v.Record.Epoch.Leader, v.Silence = "c", ProgressTimeout }, RuleOutbid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := manual()
			tt.edit(&v)
			p := Decide(v)
			if p.Rule != tt.want {
				t.Fatalf("Decide = %s (%s), want %s", p.Rule, p.Because, tt.want)
			}
			if tt.want == RuleChoose && p.Commit.Epoch.Leader == "c" {
				t.Error("a replica was chosen that is not to be promoted without a person")
			}
			if tt.want == RuleSeal && v.sealed().suffice && !strings.Contains(p.Because, "longest log") {
				t.Errorf("what it waits for is not said: %s", p.Because)
			}
		})
	}
}

// TestFetchTailActs: the candidate streams in the epoch that is being sealed, from who has the longest log, with its
// server running.
func TestFetchTailActs(t *testing.T) {
	v := manual()
	if got := Decide(v).Actions; !slices.Contains(got, Action(Follow{Leader: "c", Epoch: 4})) || slices.Contains(got, Action(Start{})) {
		t.Errorf("actions: %+v", got)
	}
	v.Local.Server = ServerDown
	if got := Decide(v).Actions; !slices.Contains(got, Action(Start{})) {
		t.Errorf("a server that is down receives nothing: %+v", got)
	}
	v.Local.Server, v.Local.Source, v.Local.SourceEp = ServerRecovery, "c", 4
	if got := Decide(v).Actions; len(got) != 1 {
		t.Errorf("while it streams: %+v", got)
	}
	v.Reach = nil
	if because := Decide(v).Because; !strings.Contains(because, "does not answer") {
		t.Errorf("the source is gone, and that is said: %s", because)
	}
}

func TestChosenAtTheEndOfTheTail(t *testing.T) {
	v := manual()
	v.Local.Source, v.Local.SourceEp, v.Local.Position.LSN = "c", 4, 210
	if e := Decide(v).Commit.Epoch; e.Leader != "b" || e.From != (Position{4, 210}) || e.Copy != "B" {
		t.Errorf("chosen: %+v", e)
	}
}

// TestACopyThatHasLongToReplay holds that a copy with little to replay is promoted where it has the end of the log, or
// can get it soon, and that no longer log is left aside.
func TestACopyThatHasLongToReplay(t *testing.T) {
	ahead := func(v *View) { v.Seals[1].Position.LSN, v.Seals[1].Late = 210, true }
	fetched := func(v *View) { v.Local.Source, v.Local.SourceEp, v.Local.Position.LSN = "c", 4, 210 }
	for _, tt := range []struct {
		name string
		edit func(*View)
		rule Rule
		lead ReplicaID
	}{
		{"the furthest copy is late", ahead, RuleFetch, ""},
		{"fetched", func(v *View) { ahead(v); fetched(v) }, RuleChoose, "b"},
		{"it does not come soon", func(v *View) { ahead(v); v.Sealed = tailPatience }, RuleChoose, "c"},
		{"it cannot be fetched from", func(v *View) { ahead(v); v.Reach = nil }, RuleChoose, "c"},
		{"it may not be promoted, and is not needed", func(v *View) {
			ahead(v)
			v.Seals[1].Promotable, v.Record.State.K = false, 2
		}, RuleChoose, "b"},
		{"this copy is late, too", func(v *View) { ahead(v); v.Seals[0].Late = true }, RuleChoose, "c"},
		{"this copy is no beginning of it", func(v *View) { ahead(v); v.Seals[0].Position, v.Local.Position = Position{1, 101}, Position{1, 101} }, RuleChoose, "c"},
		{"this server is down", func(v *View) { ahead(v); v.Local.Server = ServerDown }, RuleChoose, "c"},
		{"of two equal logs this one is late", func(v *View) { v.Seals[1].Position.LSN, v.Seals[0].Late = 200, true }, RuleChoose, "c"},
		{"of two equal logs the other one is late", func(v *View) { v.Seals[1].Position.LSN, v.Seals[1].Late = 200, true }, RuleChoose, "b"},
		{"both are late", func(v *View) { v.Seals[1].Position.LSN, v.Seals[0].Late, v.Seals[1].Late = 200, true, true }, RuleChoose, "b"},
		{"this log is late and the longest", func(v *View) { v.Seals[0].Late = true }, RuleChoose, "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := sealing()
			v.Record.State.Timelines = manual().Record.State.Timelines
			tt.edit(&v)
			p := Decide(v)
			if p.Rule != tt.rule || tt.lead != "" && p.Commit.Epoch.Leader != tt.lead {
				t.Errorf("%s: %s, %+v", p.Rule, p.Because, p.Commit)
			}
		})
	}
}

// TestOneThatHasLongToReplayYields holds that such a replica claims only where no other one is ready.
func TestOneThatHasLongToReplayYields(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*View)
		want bool
	}{
		{"another one is ready", func(*View) {}, true},
		{"for long", func(v *View) { v.Silence = v.Patience() + IllGrace }, false},
		{"it has little to replay", func(v *View) { v.Local.Late = false }, false},
		{"the other one is late, too", func(v *View) { v.Late = []ReplicaID{"c"} }, false},
		{"the other one is ill", func(v *View) { v.Unfit = []ReplicaID{"c"} }, false},
		{"the other one is out of reach", func(v *View) { v.Reach = []ReplicaID{"a"} }, false},
		{"only a person promotes the other one", func(v *View) { v.Group.Replicas[2].FailoverMode = Manual }, false},
		{"commits count on no other one", func(v *View) { v.Record.State.V = v.Record.State.V[:1] }, false},
	} {
		v := following()
		v.Reach, v.Silence, v.Local.Late = []ReplicaID{"c"}, v.Patience(), true
		tt.edit(&v)
		if reaches := v.reaches("c"); v.yields() != tt.want || reaches && v.mayClaim() == tt.want {
			t.Errorf("%s: yields %t, claims %t", tt.name, v.yields(), v.mayClaim())
		}
	}
}

func TestFeeds(t *testing.T) {
	sealed := following()
	sealed.Record.Epoch = EpochRecord{Epoch: 4, Phase: PhaseSeal, Leader: "c", MaxTLI: 4}
	sealed.Local.Promised, sealed.Local.Source, sealed.Local.SourceEp = 4, "", 0
	for _, tt := range []struct {
		name string
		edit func(*View)
		want bool
	}{
		{"sealed for the candidate", func(*View) {}, true},
		{"promised no more than the last epoch", func(v *View) { v.Local.Promised = 3 }, false},
		{"promised a later epoch", func(v *View) { v.Local.Promised = 5 }, false},
		{"still fed itself", func(v *View) { v.Local.Source = "a" }, false},
		{"its server is down", func(v *View) { v.Local.Server = ServerDown }, false},
		{"somebody was chosen", func(v *View) { v.Record.Epoch.Phase = PhasePromote }, false},
		{"somebody leads", func(v *View) { v.Record.Epoch.Phase = PhaseLead }, false},
		{"it is the candidate itself", func(v *View) { v.Record.Epoch.Leader = "b" }, false},
	} {
		v := sealed
		tt.edit(&v)
		if to, got := v.Feeds(); got != tt.want || got && to != "c" {
			t.Errorf("%s: feeds %s: %v", tt.name, to, got)
		}
	}
}

func TestBegins(t *testing.T) {
	s := State{Timelines: []TimelineEntry{{TLI: 1}, {TLI: 4, Parent: 1, Switch: 100}, {TLI: 5, Parent: 4, Switch: 150}}}
	for _, tt := range []struct {
		p, q Position
		want bool
	}{
		{Position{4, 120}, Position{4, 120}, true},
		{Position{4, 120}, Position{4, 119}, false},
		{Position{1, 100}, Position{4, 110}, true},
		{Position{1, 101}, Position{4, 110}, false},
		{Position{1, 100}, Position{5, 160}, true},
		{Position{4, 151}, Position{5, 160}, false},
		{Position{5, 160}, Position{4, 140}, false},
		{Position{3, 10}, Position{4, 110}, false},
		{Position{4, 10}, Position{6, 110}, false},
	} {
		if got := s.begins(tt.p, tt.q); got != tt.want {
			t.Errorf("%s begins %s: %v", tt.p, tt.q, got)
		}
	}
}
