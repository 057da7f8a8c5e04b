package ag

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestWhyClaimOfTheLastLeader holds that the last leader itself is not told that somebody else of its own name leads.
func TestWhyClaimOfTheLastLeader(t *testing.T) {
	for self, want := range map[ReplicaID]string{"a": "LEAD of epoch 1 by a, which is this node itself", "b": "LEAD of epoch 1 by a"} {
		v := View{Self: self, Record: Record{Epoch: EpochRecord{Epoch: 1, Phase: PhaseLead, Leader: "a"}}}
		if c := v.WhyClaim()[1]; c.Seen != want || c.Holds != (self == "b") {
			t.Errorf("at %s: %+v", self, c)
		}
	}
}

// TestWhyClaimIsMayClaim holds the words and the rule together, on views made at random of what matters to either.
func TestWhyClaimIsMayClaim(t *testing.T) {
	claims := 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		v := following()
		change := []func(){
			func() { v.Silence = v.Profile.Observer + IllGrace },
			func() { v.Silence = v.Profile.Observer },
			func() { v.Record.Lead.Released = true },
			func() { v.Record.State.K = 0 },
			func() { v.Local.Copy = "B2" },
			func() { v.Record.State.V = []Member{{"c", "C"}} },
			func() { v.Local.Quarantine = "fsync" },
			func() { v.Local.Renew = "gone" },
			func() { v.Local.Data = DataEmpty },
			func() { v.Group.Replicas[1].FailoverMode = Manual },
			func() { v.Group.Replicas[1].Suspended = true },
			func() { v.Reach = nil },
			func() { v.Group.Maintenance = &Maintenance{Reason: "power"} },
			func() { v.Group.Replicas[1].Options.Maintenance = &Maintenance{} },
			func() { v.Record.Epoch.Phase = PhaseSeal },
			func() { v.Local.Health = Health{Level: 2, Because: "no answer"} },
			func() { v.Local.StoodDown = "just now" },
		}
		v.Silence = time.Duration(r.IntN(2)) * v.Profile.Observer
		for range r.IntN(4) {
			change[r.IntN(len(change))]()
		}
		all := true
		for _, c := range v.WhyClaim() {
			all = all && c.Holds
			if c.Condition == "" || c.Seen == "" {
				t.Fatalf("without words: %+v", c)
			}
		}
		if all != v.mayClaim() {
			t.Fatalf("seed %d: the words say %v, the rule %v: %+v", seed, all, v.mayClaim(), v.WhyClaim())
		}
		if all {
			claims++
		}
	}
	if claims < 1000 {
		t.Errorf("only %d of the views claim", claims)
	}
}

func TestWhyLead(t *testing.T) {
	v := leading()
	for _, c := range v.WhyLead() {
		if !c.Holds || c.Seen == "" {
			t.Errorf("%+v", c)
		}
	}
	sick(&v)
	if c := v.WhyLead(); c[4].Holds {
		t.Errorf("%+v", c[4])
	}
	v.Unfit = []ReplicaID{"b", "c"}
	v.Local.Health.Restart = false
	if c := v.WhyLead(); !c[4].Holds || c[4].Seen == "well" {
		t.Errorf("%+v", c[4])
	}
}

func TestEveryRuleHasAMeaning(t *testing.T) {
	for _, r := range Rules {
		if r.Meaning() == "" {
			t.Errorf("%s has none", r)
		}
	}
	if len(meanings) != len(Rules) {
		t.Errorf("%d meanings of %d rules", len(meanings), len(Rules))
	}
}

// TestCause holds that the cause of an epoch is known by the reason that the decision gives it, also once a copy was
// chosen.
func TestCause(t *testing.T) {
	for want, v := range map[Cause]View{
		CauseReleased: changed(following(), func(v *View) { v.Record.Lead.Released = true }),
		CauseSilent:   changed(following(), func(v *View) { v.Silence = time.Minute }),
		CauseDied:     outvoted(),
		CauseUnheard:  changed(outvoted(), func(v *View) { v.Record.Votes[0].Silent, v.Record.Votes[1].Silent = "for long", "for long" }),
		CauseOperator: changed(following(), func(v *View) { v.Op = Op{Kind: OpForced, To: "b", Epoch: 3} }),
		CauseStalled: changed(sealing(), func(v *View) {
			v.Record.Epoch.Leader, v.Silence = "c", time.Minute
		}),
		CauseRetaken: changed(following(), func(v *View) {
			v.Record.Epoch.Leader, v.Record.State.Leader, v.Record.State.Copy = v.Self, v.Self, v.Local.Copy
		}),
	} {
		p := Decide(v)
		if p.Commit == nil || p.Commit.Epoch == nil {
			t.Errorf("%s: no epoch begins: %s, %s", want, p.Rule, p.Because)
			continue
		}
		e := *p.Commit.Epoch
		if got := e.Cause(); got != want {
			t.Errorf("%q is %s, want %s", e.Reason, got, want)
		}
		e.Reason += ": the copy of c is promoted, sealed at 1/0/100, the furthest of 2"
		if got := e.Cause(); got != want {
			t.Errorf("%q is %s, want %s", e.Reason, got, want)
		}
	}
	interrupted := changed(promoting(), func(v *View) { v.Silence = time.Minute })
	if p := interrupted.promoteAgain(); p.Commit == nil || p.Commit.Epoch.Cause() != CauseInterrupted {
		t.Errorf("%+v", p)
	}
	if got := (EpochRecord{Reason: PlannedFrom("died")}).Cause(); got != CausePlanned {
		t.Errorf("a planned failover is %s", got)
	}
	if got := (EpochRecord{Reason: "the group was founded"}).Cause(); got != CauseOther {
		t.Errorf("a founding is %s", got)
	}
}

func changed(v View, change func(*View)) View {
	change(&v)
	return v
}
