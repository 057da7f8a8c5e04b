package operations

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd"
)

// TestMaintenanceEndsByItself holds that the leader ends maintenance at its time and not before, and that another node
// does so later, if the leader does not.
func TestMaintenanceEndsByItself(t *testing.T) {
	for leader, late := range map[ag.ReplicaID]time.Duration{"a": 0, "b": leaderFirst, "c": 3 * time.Hour} {
		b := newBed(t)
		synctest.Test(t, func(t *testing.T) {
			until := time.Now().Add(time.Hour)
			b.store.alter(func(x *etcd.Snapshot) {
				x.Group.Maintenance = &ag.Maintenance{Until: until}
				x.Group.Replicas[1].Options.Maintenance = &ag.Maintenance{Until: until.Add(time.Hour)}
				x.Group.Replicas[2].Options.Maintenance = &ag.Maintenance{}
				x.Record.Epoch.Leader = leader
			})
			b.agent.view.Reach = []ag.ReplicaID{"c", "w"} // not b, which led
			b.agent.view.Quorum, b.agent.view.Group, b.agent.view.Record = true, b.group(), b.store.x.Record
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- b.RunMaintenance(ctx) }()
			has := func() [3]bool {
				synctest.Wait()
				g := b.group()
				return [3]bool{g.Maintenance != nil, g.Replicas[1].Options.Maintenance != nil, g.Replicas[2].Options.Maintenance != nil}
			}
			time.Sleep(time.Hour + late - 2*maintenanceEvery)
			if got := has(); got != [3]bool{true, true, true} {
				t.Errorf("led by %s, before its time: %v", leader, got)
			}
			if leader == "c" { // it ends that by its own clock, which this one may be ahead of
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
				return
			}
			time.Sleep(4 * maintenanceEvery)
			if got := has(); got != [3]bool{false, true, true} {
				t.Errorf("led by %s, at its time: %v", leader, got)
			}
			time.Sleep(time.Hour)
			if got := has(); got != [3]bool{false, false, true} {
				t.Errorf("led by %s, at the replica's time: %v", leader, got)
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
