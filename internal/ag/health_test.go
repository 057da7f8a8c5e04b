package ag

import (
	"testing"
	"time"
)

// sick makes a server that has not answered for long enough.
func sick(v *View) { v.Local.Health = Health{Level: 2, Because: "no answer", Restart: true} }

func TestDecideOnHealth(t *testing.T) {
	tests := []struct {
		name string
		view View
		edit func(*View)
		want Rule
	}{
		{"an ill primary leaves the leadership to another", leading(), sick, RuleStepDown},
		{"busy with the bookkeeping as well", leading(), func(v *View) { sick(v); v.Busy = "sync" }, RuleStepDown},
		{"not in the middle of a planned failover", leading(), func(v *View) { sick(v); v.Busy = "hand-over" }, RuleBusy},
		{"not without quorum", leading(), func(v *View) { sick(v); v.Quorum = false }, RuleAwaitQuorum},
		{"released, it is fenced", leading(), func(v *View) { sick(v); v.Record.Lead.Released, v.Lease.Valid = true, false }, RuleFenceExpired},
		{"a level above the group's is none of its business", leading(), func(v *View) { sick(v); v.Group.Options.ConditionLevel = 1 }, RuleServe},
		{"a condition of level 4 at the default level", leading(), func(v *View) { v.Local.Health = Health{Level: 4, Because: "full"} }, RuleServe},
		{"a condition of level 4 at level 4", leading(), func(v *View) {
			v.Local.Health, v.Group.Options.ConditionLevel = Health{Level: 4, Because: "full"}, 4
		}, RuleStepDown},
		{"a database is not online", leading(), func(v *View) { v.Local.Health.Database = "gone" }, RuleStepDown},
		{"a database is not online, DB_FAILOVER = OFF", leading(), func(v *View) {
			v.Local.Health.Database, v.Group.Options.NoDBFailover = "gone", true
		}, RuleServe},
		{"nobody is synchronized: a new start may help", leading(), func(v *View) { sick(v); v.Record.State.K = 0 }, RuleRestart},
		{"nobody answers: a new start may help", leading(), func(v *View) { sick(v); v.Reach = nil }, RuleRestart},
		{"it has lately done so: a new start may help", leading(), func(v *View) { sick(v); v.Local.StoodDown = "just now" }, RuleRestart},
		{"the others are no better: a new start may help", leading(), func(v *View) { sick(v); v.Unfit = []ReplicaID{"b", "c"} }, RuleRestart},
		{"one of the others is better", leading(), func(v *View) { sick(v); v.Unfit = []ReplicaID{"b"} }, RuleStepDown},
		{"nobody can take over and no start helps", leading(), func(v *View) {
			v.Local.Health, v.Unfit = Health{Level: 3, Because: "the disk hangs"}, []ReplicaID{"b", "c"}
		}, RuleServe},
		{"a crash after another", leading(), func(v *View) { v.Local.Server, v.Local.StoodDown = ServerDown, "just now" }, RuleStart},
		{"a crash while the others are no better", leading(), func(v *View) { v.Local.Server, v.Unfit = ServerDown, []ReplicaID{"b", "c"} }, RuleStart},
		{"an ill candidate lets the others go first", following(), func(v *View) { sick(v); v.Silence = v.Profile.Observer }, RuleStandBy},
		{"an ill candidate is better than none", following(), func(v *View) { sick(v); v.Silence = v.Profile.Observer + IllGrace }, RuleClaim},
		{"an ill candidate lets the others go first after a release", following(), func(v *View) { sick(v); v.Record.Lead.Released = true }, RuleStandBy},
		{"who stood down lately lets the others go first after a release", following(), func(v *View) {
			v.Local.StoodDown, v.Record.Lead.Released = "just now", true
		}, RuleStandBy},
		{"who stood down lately claims from the dead", following(), func(v *View) {
			v.Local.StoodDown, v.Silence = "just now", v.Profile.Observer
		}, RuleClaim},
		{"an ill leader that released retakes late", leading(), func(v *View) {
			sick(v)
			v.Local.Server, v.Lease.Valid, v.Record.Lead.Released, v.Silence = ServerRecovery, false, true, ReleaseGrace
		}, RuleStandBy},
		{"a quarantined copy is no candidate", following(), func(v *View) { v.Local.Quarantine, v.Silence = "fsync", time.Hour }, RuleQuarantined},
		{"a quarantined copy is not started", following(), func(v *View) { v.Local.Quarantine, v.Local.Server = "fsync", ServerDown }, RuleQuarantined},
		{"a quarantined leader lets go", leading(), func(v *View) { v.Local.Quarantine, v.Local.Server = "fsync", ServerDown }, RuleRelease},
		{"a quarantined leader lets go again, if it must", leading(), func(v *View) {
			v.Local.Quarantine, v.Local.Server, v.Local.StoodDown = "fsync", ServerDown, "just now"
		}, RuleRelease},
		{"a quarantined leader that nobody can relieve stays down", leading(), func(v *View) {
			v.Local.Quarantine, v.Local.Server, v.Record.State.K = "fsync", ServerDown, 0
		}, RuleQuarantined},
		{"a quarantined leader that was restarted does not retake", leading(), func(v *View) {
			v.Local.Quarantine, v.Local.Server, v.Lease.Valid = "fsync", ServerRecovery, false
		}, RuleQuarantined},
		{"a quarantined primary that still runs serves on", leading(), func(v *View) { v.Local.Quarantine = "fsync" }, RuleServe},
		{"chosen, and quarantined since", promoting(), func(v *View) { v.Local.Quarantine = "fsync" }, RuleRelease},
		{"the WAL it needs is gone, and it is counted", following(), func(v *View) { v.Local.Renew = "the WAL is gone" }, RuleAwaitDrop},
		{"the WAL it needs is gone", following(), func(v *View) { v.Local.Renew, v.Record.State.V = "the WAL is gone", []Member{{"c", "C"}} }, RuleReseed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := tt.view
			tt.edit(&v)
			p := Decide(v)
			if p.Rule != tt.want {
				t.Fatalf("Decide = %s (%s), want %s", p.Rule, p.Because, tt.want)
			}
			if p.Rule == RuleStepDown && (p.Open || p.Commit == nil || !p.Commit.Lead.Released || len(p.Actions) > 0) {
				t.Errorf("a primary steps down by shutting its gate and releasing: %+v", p)
			}
		})
	}
}
