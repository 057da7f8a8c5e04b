package operations

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// opOf returns a failover that was asked for in epoch e.
func opOf(t *testing.T, e ag.Epoch) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(ag.Op{ID: "other", Kind: ag.OpPlanned, To: "b", Epoch: e})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFailoverRefusals holds what is known before a failover begins, with the kind that a command is told and the SQLSTATE and number that a
// statement is told. Each names what to run instead in either language.
func TestFailoverRefusals(t *testing.T) {
	t.Parallel()
	const none, refused, unhealthy = fail.Ordinary, fail.Refused, fail.Unhealthy
	for _, tt := range []struct {
		name   string
		to     ag.ReplicaID
		force  bool
		change func(*etcd.Snapshot)
		kind   fail.Kind
		state  string
		number int
		target ag.ReplicaID
	}{
		{"to a synchronized one", "b", false, nil, none, "", 0, "b"},
		{"to the first synchronized one", "", false, nil, none, "", 0, "b"},
		{"to any, of which none is synchronized", "", false, func(x *etcd.Snapshot) { x.Record.State.V = nil }, unhealthy, "57P03", 0, ""},
		{"to any, by force, of which none is synchronized", "", true, func(x *etcd.Snapshot) { x.Record.State.V = nil }, unhealthy, "57P03", 0, ""},
		{"to the primary", "a", false, nil, refused, "55000", 41122, ""},
		{"to the primary, by force", "a", true, nil, refused, "55000", 41122, ""},
		{"to the one that led last, by force", "a", true, func(x *etcd.Snapshot) { x.Record.Epoch.Phase = ag.PhaseSeal }, none, "", 0, "a"},
		{"to one that is not synchronized", "c", false, nil, refused, "55000", 41142, ""},
		{"to one that is not synchronized, by force", "c", true, nil, none, "", 0, "c"},
		{"with nobody to wait for", "b", false, func(x *etcd.Snapshot) { x.Record.State.K = 0 }, refused, "55000", 41142, ""},
		{"to the witness", "w", true, nil, refused, "55000", 41121, ""},
		{"to nobody", "z", true, nil, refused, "42704", 41167, ""},
		{"to one that has not joined", "b", true, func(x *etcd.Snapshot) { x.Group.Replicas[1].Join = ag.NotJoined }, refused, "55000", 41142, ""},
		{"to a node without a part", "b", true, func(x *etcd.Snapshot) { x.Group.Replicas[1].Join = ag.Detached }, refused, "42704", 41167, ""},
		{"while one is under way", "b", false, func(x *etcd.Snapshot) { x.Op = opOf(t, 7) }, unhealthy, "55006", 41113, ""},
		{"while one is under way, by force", "c", true, func(x *etcd.Snapshot) { x.Op = opOf(t, 7) }, unhealthy, "55006", 41113, ""},
		{"after one of an earlier epoch", "b", false, func(x *etcd.Snapshot) { x.Op = opOf(t, 6) }, none, "", 0, "b"},
		{"after one that cannot be read", "b", false, func(x *etcd.Snapshot) { x.Op = json.RawMessage("{") }, none, "", 0, "b"},
		{"without a primary", "b", false, func(x *etcd.Snapshot) { x.Record.Epoch.Phase = ag.PhaseSeal }, unhealthy, "57P03", 0, ""},
		{"without a primary, by force", "b", true, func(x *etcd.Snapshot) { x.Record.Epoch.Phase = ag.PhaseSeal }, none, "", 0, "b"},
	} {
		x := newBed(t).store.x
		if tt.change != nil {
			tt.change(&x)
		}
		to, err := failoverTarget(x, tt.to, tt.force)
		if kind := fail.KindOf(err); kind != tt.kind || to != tt.target || (err == nil) != (tt.target != "") {
			t.Errorf("%s: to %q, %s: %v, want to %q, %s", tt.name, to, kind, err, tt.target, tt.kind)
		}
		if err == nil {
			continue
		}
		var told *console.Error
		if !errors.As(withSQLState(err), &told) || told.State != tt.state || told.Number != tt.number {
			t.Errorf("%s: a statement is told %+v, want %s, %d", tt.name, told, tt.state, tt.number)
			continue
		}
		var command fail.Error
		if !errors.As(err, &command) || command.Number != tt.number || command.Hint == "" || told.Hint == "" || command.Hint == told.Hint ||
			err.Error() != told.Message+" ("+command.Hint+")" {
			t.Errorf("%s: a command is told %q (%s), a statement %q (%s)", tt.name, err, command.Hint, told.Message, told.Hint)
		}
	}
}

// TestWithSQLState holds the number of the error that every statement may meet, and that others stay as they are.
func TestWithSQLState(t *testing.T) {
	t.Parallel()
	var told fail.Error
	if !errors.As(withSQLState(etcd.ErrNoQuorum), &told) || told.Number != 988 || told.Kind != fail.Unhealthy {
		t.Errorf("no quorum: %+v", told)
	}
	if err := withSQLState(etcd.ErrClosed); !errors.Is(err, etcd.ErrClosed) {
		t.Errorf("another: %v", err)
	}
}
