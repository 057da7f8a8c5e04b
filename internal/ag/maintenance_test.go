package ag

import (
	"testing"
	"time"
)

// TestDecideUnderMaintenance holds that no takeover begins while the group is under maintenance, that one which has
// begun ends, that operators' failovers happen, and that a primary comes back after a crash.
func TestDecideUnderMaintenance(t *testing.T) {
	dead := func(v *View) { v.Silence = v.Profile.Observer }
	work := func(v *View) { v.Group.Maintenance = &Maintenance{Reason: "new switches"} }
	of := func(i int) func(*View) {
		return func(v *View) { v.Group.Replicas[i].Options.Maintenance = &Maintenance{} }
	}
	tests := []struct {
		name string
		view View
		edit []func(*View)
		want Rule
	}{
		{"without maintenance a silent leader is replaced", following(), []func(*View){dead}, RuleClaim},
		{"a silent leader is waited for", following(), []func(*View){dead, work}, RuleStandBy},
		{"one that released, too", following(), []func(*View){func(v *View) { v.Record.Lead.Released = true }, work}, RuleStandBy},
		{"an ill primary is restarted where it is", leading(), []func(*View){sick, work}, RuleRestart},
		{"a crashed one is started where it is", leading(), []func(*View){func(v *View) { v.Local.Server = ServerDown }, work}, RuleStart},
		{"and leads again", leading(), []func(*View){func(v *View) { v.Local.Server, v.Lease.Valid = ServerRecovery, false }, work}, RuleRetake},
		{"the last leader that comes back is not outbid", following(), []func(*View){dead, work, func(v *View) { v.Record.Epoch.Phase = PhaseSeal }}, RuleStandBy},
		{"a takeover that has begun is brought to its end", following(), []func(*View){dead, work, func(v *View) {
			v.Record.Epoch.Phase, v.Record.Epoch.Leader = PhaseSeal, "c"
		}}, RuleOutbid},
		{"a planned failover happens", leading(), []func(*View){work, func(v *View) {
			v.Op, v.Ready = Op{ID: "1", Kind: OpPlanned, To: "b", Epoch: v.epoch()}, "1"
		}}, RuleHandOver},
		{"a forced failover happens", following(), []func(*View){dead, work, of(1), func(v *View) {
			v.Op = Op{ID: "1", Kind: OpForced, To: "b", Epoch: v.epoch()}
		}}, RuleForce},
		{"a replica under maintenance does not take over", following(), []func(*View){dead, of(1)}, RuleStandBy},
		{"another one does", following(), []func(*View){dead, of(2)}, RuleClaim},
		{"nor is it left the leadership", leading(), []func(*View){sick, of(1), of(2)}, RuleRestart},
	}
	for _, tt := range tests {
		v := tt.view
		for _, edit := range tt.edit {
			edit(&v)
		}
		if p := Decide(v); p.Rule != tt.want {
			t.Errorf("%s: %s (%s), want %s", tt.name, p.Rule, p.Because, tt.want)
		}
	}
}

// TestNoVotesUnderMaintenance holds that evidence against the leader is not acted on: a vote would stop its answers.
func TestNoVotesUnderMaintenance(t *testing.T) {
	v := following()
	v.Record.Lead.Answer = Answer{Voters: []ReplicaID{"a", "b", "c"}, Lease: time.Second}
	v.Record.Lead.Epoch, v.Record.Lead.Holder, v.Record.Lead.Incarnation = v.epoch(), v.Record.Epoch.Leader, "x"
	v.Voting.Evidence = Evidence{Epoch: v.epoch(), Incarnation: "x"}
	if p := Decide(v); p.Rule != RuleVote {
		t.Fatalf("without maintenance: %s (%s)", p.Rule, p.Because)
	}
	v.Group.Maintenance = &Maintenance{}
	if p := Decide(v); p.Rule != RuleStandBy && p.Rule != RuleFollow {
		t.Errorf("under maintenance: %s (%s)", p.Rule, p.Because)
	}
	v.Voting.Withheld = v.epoch()
	if p := Decide(v); p.Rule != RuleAcknowledge {
		t.Errorf("having voted before: %s (%s)", p.Rule, p.Because)
	}
}

// TestMaintenanceEnds holds that maintenance ends at its time and not before, each for itself.
func TestMaintenanceEnds(t *testing.T) {
	now := time.Date(2026, 11, 25, 6, 0, 0, 0, time.UTC)
	g := Group{Maintenance: &Maintenance{Until: now}, Replicas: []Replica{
		{ID: "a", Options: ReplicaOptions{Maintenance: &Maintenance{Until: now.Add(time.Hour)}}},
		{ID: "b", Options: ReplicaOptions{Maintenance: &Maintenance{}}},
	}}
	if over := g.MaintenanceOver(now.Add(-1)); len(over) != 0 {
		t.Errorf("over before its time: %v", over)
	}
	was := g
	g.EndMaintenance(now)
	if g.Maintenance != nil || g.Replicas[0].Options.Maintenance == nil || g.Replicas[1].Options.Maintenance == nil || was.Maintenance == nil {
		t.Errorf("%+v", g)
	}
	if over := g.MaintenanceOver(now.Add(24 * time.Hour)); len(over) != 1 || over[0] != "a" {
		t.Errorf("%v", over)
	}
	g.EndMaintenance(now.Add(24 * time.Hour))
	if g.Replicas[0].Options.Maintenance != nil || g.Replicas[1].Options.Maintenance == nil || was.Replicas[0].Options.Maintenance == nil {
		t.Errorf("%+v", g)
	}
	if s := (Maintenance{Until: now, Reason: "disk"}).String() + "; " + (Maintenance{}).String(); s != "until 2026-11-25T06:00:00Z: disk; with no end set" {
		t.Error(s)
	}
}
