package node

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
)

// TestBestSource chooses from whom a copy is made, and says why.
func TestBestSource(t *testing.T) {
	t.Parallel()
	priority := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		change func(*ag.View, map[ag.ReplicaID]agent.Status)
		want   ag.ReplicaID
		why    string
	}{
		"a secondary with a higher priority": {nil, "n3", "its BACKUP_PRIORITY 80 is above the primary's 50"},
		"none that is higher":                {func(v *ag.View, _ map[ag.ReplicaID]agent.Status) { v.Group.Replicas[2].Options.BackupPriority = nil }, "n1", "the primary: no healthy secondary has a higher BACKUP_PRIORITY than its 50"},
		"it does not stream": {func(_ *ag.View, said map[ag.ReplicaID]agent.Status) {
			said["n3"] = agent.Status{Server: ag.ServerRecovery}
		}, "n1", "no healthy"},
		"it is out of reach":       {func(v *ag.View, _ map[ag.ReplicaID]agent.Status) { v.Reach = []ag.ReplicaID{"n1"} }, "n1", "no healthy"},
		"it is suspended":          {func(v *ag.View, _ map[ag.ReplicaID]agent.Status) { v.Group.Replicas[2].Suspended = true }, "n1", "no healthy"},
		"the primary is preferred": {func(v *ag.View, _ map[ag.ReplicaID]agent.Status) { v.Group.Options.BackupPreference = ag.BackupPrimary }, "n1", "the primary: AUTOMATED_BACKUP_PREFERENCE is PRIMARY"},
	} {
		v := &ag.View{Reach: []ag.ReplicaID{"n1", "n2", "n3"}}
		v.Group.Replicas = []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}
		v.Group.Replicas[1].Options.BackupPriority = priority(99) // the one that is filled
		v.Group.Replicas[2].Options.BackupPriority = priority(80)
		said := map[ag.ReplicaID]agent.Status{"n3": {Stream: true, Server: ag.ServerRecovery}}
		if c.change != nil {
			c.change(v, said)
		}
		if got, why := bestSource(v, said, "n2", v.Group.Replicas[0]); got.ID != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s: from %s: %s", name, got.ID, why)
		}
	}
}

// A limited copy does not make writes wait that wait for it.
func TestSpreads(t *testing.T) {
	open, shut := &ag.Routes{Primary: "a", WriteOpen: true}, &ag.Routes{Primary: "a"}
	for _, tt := range []struct {
		limit int64
		r     *ag.Routes
		want  bool
	}{{0, open, false}, {1, open, true}, {1, shut, false}, {1, nil, false}} {
		if got := spreads(tt.limit, tt.r); got != tt.want {
			t.Errorf("limit %d, %+v: %v", tt.limit, tt.r, got)
		}
	}
}
