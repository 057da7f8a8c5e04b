package main

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// TestSeedLine shows how far a copy is, and no time left while its source is gone.
func TestSeedLine(t *testing.T) {
	t.Parallel()
	p := seeding.Progress{Phase: seeding.PhaseCopy, Done: 50 << 20, Total: 100 << 20, Wire: 25 << 20, Rate: 10 << 20, Pace: 10 << 20}
	waits, early := p, seeding.Progress{Phase: seeding.PhaseCheckpoint, Waiting: "waiting for a source: connection refused"}
	waits.Waiting = early.Waiting
	const gone = "target n3 not seen since 2026-01-01 12:00:00; goes on when it is back"
	there := p
	there.Same, there.Wire = p.Done-1000, 12<<10
	for want, op := range map[string]seeding.Operation{
		"[############............]  50.0 %  50.0 MiB of 100.0 MiB  wire 25.0 MiB (2.0x)  10.0 MiB/s  5s left  copying from n1":          {Progress: p},
		"[############............]  50.0 %  50.0 MiB of 100.0 MiB  wire 25.0 MiB (2.0x)  " + waits.Waiting:                              {Progress: waits},
		"[############............]  50.0 %  50.0 MiB of 100.0 MiB  wire 12.0 KiB  there 50.0 MiB  10.0 MiB/s  5s left  copying from n1": {Progress: there},
		early.Waiting:            {Progress: early},
		"waiting for checkpoint": {Progress: seeding.Progress{Phase: seeding.PhaseCheckpoint}},
		"attempt 2: the disk is full; next at 12:00:00": {
			State: seeding.Retrying, Attempts: 2, Failure: &seeding.Failure{Text: "the disk is full"}, Next: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		},
		"[############............]  50.0 %  50.0 MiB of 100.0 MiB  wire 25.0 MiB (2.0x)  " + gone: {Progress: p, Absent: gone},
		"retrying: " + gone: {State: seeding.Retrying, Attempts: 2, Failure: &seeding.Failure{Text: "the disk is full"}, Absent: gone},
	} {
		if op.State == "" {
			op.State = seeding.Seeding
		}
		op.Source = "n1"
		if got := seedLine(op); strings.TrimSpace(got) != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

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
