package operations

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/rpc/rpctest"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// TestSeedResult holds that a statement names the operation, and that one that was refused does not.
func TestSeedResult(t *testing.T) {
	t.Parallel()
	s := ddl.Statement{Action: ddl.Seed{Server: "n3"}}
	op := seeding.Operation{ID: "7", Target: ag.ReplicaID("n3"), State: seeding.Pending}
	r, err := seedResult(s, op, nil)
	if err != nil || len(r.Notices) != 1 || r.Notices[0].Message != "n3: pending (operation 7); see sys.dm_hadr_physical_seeding_stats" {
		t.Errorf("%+v, %v", r, err)
	}
	refused := errors.New("refused")
	if r, err := seedResult(s, op, refused); !errors.Is(err, refused) || len(r.Notices) != 0 {
		t.Errorf("refused: %+v, %v", r, err)
	}
}

// TestResume holds which copies go on, and that a copy that nobody could replace is not taken for one that can.
func TestResume(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id     ag.ReplicaID
		change func(b *bed)
		text   string
	}{
		"suspended":        {"b", nil, ""},
		"not suspended":    {"c", nil, ""},
		"nobody":           {"z", nil, "the group has no member z"},
		"a witness":        {"c", func(b *bed) { b.store.x.Group.Replicas[2].AvailabilityMode = ag.ConfigurationOnly }, "c is a witness and holds no data"},
		"not a replica":    {"b", func(b *bed) { b.store.x.Group.Replicas[1].Join = ag.NotJoined }, "ALTER AVAILABILITY GROUP [DemoAG] JOIN"},
		"detached":         {"b", func(b *bed) { b.store.x.Group.Replicas[1].Join = ag.Detached }, "is no replica of the group"},
		"quarantined":      {"b", func(b *bed) { b.quarantine("b") }, ""},
		"led last":         {"b", func(b *bed) { b.quarantine("b"); b.store.x.Record.Epoch.Leader = "b" }, "no primary to make it anew from"},
		"led last, sound":  {"b", func(b *bed) { b.store.x.Record.Epoch.Leader = "b" }, ""},
		"before any turn":  {"b", func(b *bed) { b.agent.blind.Store(true) }, ""},
		"without a quorum": {"b", func(b *bed) { b.store.readErr = etcd.ErrNoQuorum }, etcd.ErrNoQuorum.Error()},
	} {
		b := newBed(t)
		b.store.x.Group.Replicas[1].Suspended, b.store.x.Group.Replicas[1].SuspendedBy = true, ag.SuspendPartner
		if tt.change != nil {
			tt.change(b)
		}
		err := b.Resume(t.Context(), tt.id)
		if (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", name, err)
		}
		want := fail.Refused
		switch {
		case tt.id == "z":
			want = fail.Usage
		case errors.Is(err, etcd.ErrNoQuorum):
			want = fail.Unhealthy
		}
		if err != nil && fail.KindOf(err) != want {
			t.Errorf("%s: %v is %s", name, err, fail.KindOf(err))
		}
		if r := b.store.x.Group.Replicas[1]; r.Suspended != (tt.text != "" || tt.id != "b") || r.Suspended == (r.SuspendedBy == "") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// quarantine has a member report that its copy is not trusted.
func (b *bed) quarantine(id ag.ReplicaID) {
	b.agent.statuses = map[ag.ReplicaID]agent.Status{id: {Wellness: agent.Wellness{Quarantine: "damage"}}}
}

// TestTrust holds who ends a quarantine: the node that has the copy.
func TestTrust(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.calls["trust"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) { return "of " + string(to), nil }
	for _, tt := range []struct {
		id        ag.ReplicaID
		was, text string
		here      int
	}{
		{"a", "damage", "", 1},
		{"b", "of b", "", 0},
		{"w", "", "is a witness and holds no data", 0},
		{"z", "", "the group has no member z (see coterie status)", 0},
	} {
		b.agent.trusted = 0
		was, err := b.Trust(t.Context(), tt.id)
		if was != tt.was || b.agent.trusted != tt.here || (err == nil) != (tt.text == "") || err != nil && (fail.KindOf(err) == fail.Ordinary || !strings.Contains(err.Error(), tt.text)) {
			t.Errorf("%s: %q, here %d, %v", tt.id, was, b.agent.trusted, err)
		}
	}
	delete(b.calls, "trust")
	if was, err := b.Trust(t.Context(), "b"); was != "" || !errors.Is(err, rpctest.ErrNoAnswer) || !strings.Contains(err.Error(), "tell b that its copy is trusted") {
		t.Errorf("a node that does not answer: %q, %v", was, err)
	}
}

// TestSuspendSelf holds that a node suspends itself and nobody else.
func TestSuspendSelf(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.store.overtaken = 1
	if err := b.SuspendSelf(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.group().Replicas {
		if r.Suspended != (r.ID == "a") || r.Suspended && r.SuspendedBy != ag.SuspendUser {
			t.Errorf("%+v", r)
		}
	}
	b.leaves("a")
	if err := b.SuspendSelf(t.Context()); fail.KindOf(err) != fail.Usage {
		t.Errorf("a node that is no longer a member: %v", err)
	}
}

// TestSeeds holds that requests for copies go to the node's client of them as they are.
func TestSeeds(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	req := api.SeedRequest{Replica: "b", Full: true}
	if op, err := b.Seed(t.Context(), req); err != nil || len(b.seeds.asked) != 1 || b.seeds.asked[0] != req {
		t.Errorf("%+v, %v", op, err)
	}
	if op, err := b.CancelSeeding(t.Context(), "b"); err != nil || len(b.seeds.cancelled) != 1 {
		t.Errorf("%+v, %v", op, err)
	}
	if ops, err := b.Seedings(t.Context(), "b"); err != nil || ops == nil {
		t.Errorf("%+v, %v", ops, err)
	}
}
