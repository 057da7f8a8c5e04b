package seedjobs

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// TestBestSource holds which replica a copy is made from, and the reason that is shown.
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

// TestSpreadCheckpoint holds that a copy with a limit does not delay writes that wait for it.
func TestSpreadCheckpoint(t *testing.T) {
	t.Parallel()
	open, shut := &ag.Routes{Primary: "a", WriteOpen: true}, &ag.Routes{Primary: "a"}
	for _, tt := range []struct {
		limit int64
		r     *ag.Routes
		want  bool
	}{{0, open, false}, {1, open, true}, {1, shut, false}, {1, nil, false}} {
		if got := spreadCheckpoint(tt.limit, tt.r); got != tt.want {
			t.Errorf("limit %d, %+v: %v", tt.limit, tt.r, got)
		}
	}
}

// TestSeedFromASecondary makes two attempts: the first from the secondary with the higher BACKUP_PRIORITY and anchored
// at the primary, the one after its failure from the primary. The options in force are the replica's own.
func TestSeedFromASecondary(t *testing.T) {
	t.Parallel()
	n := secondary()
	high := 80
	n.view.Group.Replicas[1].Options.BackupPriority = &high
	n.view.Group.Replicas[2].Options.SeedMaxRate = 5
	n.snap.Statuses = map[ag.ReplicaID]agent.Status{"n2": {Stream: true, Server: ag.ServerRecovery}}
	c := n.open(t, t.TempDir())
	var dialled []ag.ReplicaID
	c.Dial = func(_ context.Context, to ag.Replica) (net.Conn, error) {
		dialled = append(dialled, to.ID)
		return nil, nil
	}
	c.Tablespaces = map[string]string{"/srv/a": "/srv/b"}
	forgotten := 0
	c.ForgetRewind = func() error { forgotten++; return nil }
	cut := errors.New("cut")
	fail := cut
	c.run = func(ctx context.Context, o seeding.Options) (seeding.Result, error) {
		_, _ = o.Dial(ctx)
		if o.Anchor != nil {
			_, _ = o.Anchor(ctx)
		}
		moved, err := o.TablespaceMap(1, "/srv/a")
		kept, keptErr := o.TablespaceMap(2, "/srv/c")
		if o.Member != "n3" || o.Epoch != 7 || o.Target != c.Data || o.MaxRate() != 5 || !o.Spread || moved != "/srv/b" || kept != "/srv/c" || err != nil || keptErr != nil {
			t.Errorf("options %+v; tablespaces at %s and %s", o, moved, kept)
		}
		o.Progress(progress.Progress{Phase: progress.PhaseCopy})
		return seeding.Result{Copy: "c2"}, fail
	}
	var lines []string
	note := func(line string) { lines = append(lines, line) }
	if _, err := c.Seed(t.Context(), agent.SeedJob{From: n.view.Group.Replicas[0], Epoch: 7, Begins: noted}, note); !errors.Is(err, cut) || forgotten != 0 {
		t.Errorf("the first: %v, %d marks removed", err, forgotten)
	}
	fail = nil
	if cp, err := c.Seed(t.Context(), agent.SeedJob{From: n.view.Group.Replicas[0], Epoch: 7, Begins: noted}, note); err != nil || cp != "c2" || forgotten != 1 {
		t.Errorf("the second: %q, %v, %d marks removed", cp, err, forgotten)
	}
	if got := strings.Join(lines, ","); got != "copying,copying" || len(dialled) != 3 || dialled[0] != "n2" || dialled[1] != "n1" || dialled[2] != "n1" {
		t.Errorf("progress %q, dialled %v", got, dialled)
	}
	if op, _ := c.journal.Last(); op.State != seeding.Completed || op.Attempts != 2 || op.Source != "n1" || op.Chosen != "the primary: the copy from n2 failed" {
		t.Errorf("the operation is %+v", op)
	}
}

// TestSeedingMode holds that a replica that denies seeding is not filled, and one with SEEDING_MODE = MANUAL only when
// an operator asks.
func TestSeedingMode(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		options ag.ReplicaOptions
		asked   bool
		allowed bool
	}{
		"automatic":             {ag.ReplicaOptions{}, false, true},
		"manual":                {ag.ReplicaOptions{ManualSeeding: true}, false, false},
		"manual, and asked for": {ag.ReplicaOptions{ManualSeeding: true}, true, true},
		"denied":                {ag.ReplicaOptions{NoSeeding: true}, true, false},
	} {
		n := secondary()
		c := n.open(t, t.TempDir())
		if tt.asked {
			if err := c.save(Request{Asked: true}); err != nil {
				t.Fatal(err)
			}
		}
		n.view.Group.Replicas[2].Options = tt.options
		ran := false
		c.run = func(context.Context, seeding.Options) (seeding.Result, error) {
			ran = true
			return seeding.Result{}, nil
		}
		_, err := c.Seed(t.Context(), agent.SeedJob{From: ag.Replica{ID: "n1"}, Epoch: 7, Begins: noted}, func(string) {})
		if ran != tt.allowed || errors.Is(err, seeding.ErrForbidden) == tt.allowed {
			t.Errorf("%s: ran %v, %v", name, ran, err)
		}
	}
}

// TestSeedInterrupted holds that an end that the agent wanted is no failure to wait after, and that one an operator
// wanted is not called an interruption.
func TestSeedInterrupted(t *testing.T) {
	t.Parallel()
	c := secondary().open(t, t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	c.run = func(ctx context.Context, _ seeding.Options) (seeding.Result, error) {
		stop()
		return seeding.Result{}, ctx.Err()
	}
	if _, err := c.Seed(ctx, agent.SeedJob{From: ag.Replica{ID: "n1"}, Epoch: 7, Begins: noted}, func(string) {}); err == nil {
		t.Error("it was made")
	}
	if op, _ := c.journal.Last(); op.Failure == nil || op.Failure.State != "INTERRUPTED" || c.failures != 0 || c.BlockedReason(7) != "" {
		t.Errorf("%+v, %d failures, blocked: %q", op, c.failures, c.BlockedReason(7))
	}
	c.run = func(ctx context.Context, _ seeding.Options) (seeding.Result, error) {
		if _, err := c.Cancel(); err != nil {
			t.Error(err)
		}
		return seeding.Result{}, context.Cause(ctx)
	}
	if _, err := c.Seed(t.Context(), agent.SeedJob{From: ag.Replica{ID: "n1"}, Epoch: 7, Begins: noted}, func(string) {}); !errors.Is(err, seeding.ErrCancelled) {
		t.Errorf("cancelled: %v", err)
	}
	if op, _ := c.journal.Last(); op.State != seeding.Cancelled || op.Failure != nil && op.Failure.State == "INTERRUPTED" {
		t.Errorf("cancelled: %+v", op)
	}
}

// TestCancelledWhileTheServerStops holds that a request that is cancelled after the agent decided, and before the
// attempt begins, leaves the copy as it is; the next request is met.
func TestCancelledWhileTheServerStops(t *testing.T) {
	t.Parallel()
	n := secondary()
	n.view.Local.Data = ag.DataPresent
	c := n.open(t, t.TempDir())
	runs, marked := 0, 0
	c.run = func(context.Context, seeding.Options) (seeding.Result, error) {
		runs++
		return seeding.Result{Copy: "c2"}, nil
	}
	begins := func() error { marked++; return nil }
	if _, err := c.Ask(t.Context(), api.SeedRequest{Full: true}); err != nil {
		t.Fatal(err)
	}
	because := c.ReseedReason("c1") // the agent decides by it, and stops the server
	if _, err := c.Cancel(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Seed(t.Context(), agent.SeedJob{From: ag.Replica{ID: "n1"}, Epoch: 7, Because: because, Begins: begins}, func(string) {}); !errors.Is(err, seeding.ErrCancelled) || runs != 0 || marked != 0 {
		t.Errorf("after the cancel: %v, %d copies made, %d marks of a repair", err, runs, marked)
	}
	if op, _ := c.journal.Last(); op.State != seeding.Cancelled || op.Attempts != 0 || len(c.journal.List()) != 1 {
		t.Errorf("the operation is %+v of %d", op, len(c.journal.List()))
	}
	if _, err := c.Ask(t.Context(), api.SeedRequest{Full: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Seed(t.Context(), agent.SeedJob{From: ag.Replica{ID: "n1"}, Epoch: 7, Because: c.ReseedReason("c1"), Begins: begins}, func(string) {}); err != nil || runs != 1 || marked != 1 {
		t.Errorf("asked again: %v, %d copies made, %d marks of a repair", err, runs, marked)
	}
}

// noted stands for the mark of a repair on disk.
func noted() error { return nil }

// TestFollows holds when a secondary serves copies: while its own is sound and follows the primary of the epoch in
// force.
func TestFollows(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*ag.View)
		want   bool
	}{
		"it follows":              {nil, true},
		"its server does not run": {func(v *ag.View) { v.Local.Server = ag.ServerDown }, false},
		"its copy is not whole":   {func(v *ag.View) { v.Local.Data = ag.DataEmpty }, false},
		"its copy is suspect":     {func(v *ag.View) { v.Local.Quarantine = "diverged" }, false},
		"it follows another":      {func(v *ag.View) { v.Local.Source = "n2" }, false},
		"of an earlier epoch":     {func(v *ag.View) { v.Local.SourceEp = 6 }, false},
		"nobody leads yet":        {func(v *ag.View) { v.Record.Epoch.Phase = "" }, false},
	} {
		v := secondary().view
		v.Local.Server, v.Local.Data, v.Local.Source, v.Local.SourceEp = ag.ServerRecovery, ag.DataPresent, "n1", 7
		if tt.change != nil {
			tt.change(v)
		}
		if _, got := follows(v); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if _, got := follows(nil); got {
		t.Error("before the agent's first turn")
	}
}
