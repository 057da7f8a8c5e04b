package attempts

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestSet holds which attempts end with an epoch and with a replica's role, and that none begins under an epoch that is
// over.
func TestSet(t *testing.T) {
	var s Set
	ended := map[string]error{}
	begin := func(name string, id ag.ReplicaID, epoch ag.Epoch, intent ag.Intent) *Attempt {
		a := &Attempt{Replica: id, Epoch: epoch, Intent: intent, Cancel: func(why error) { ended[name] = why }}
		if !s.Begin(a) {
			t.Fatalf("%s does not begin", name)
		}
		return a
	}
	begin("old writer", "a", 1, ag.ReadWrite)
	begin("old reader", "a", 1, ag.ReadOnly)
	begin("writer", "a", 2, ag.ReadWrite)
	begin("elsewhere", "b", 2, ag.ReadOnly)
	s.CloseEpoch(2)
	if len(ended) != 1 || ended["old writer"] != ErrMoved { //nolint:errorlint // the very error
		t.Errorf("an epoch that is over has ended %v", ended)
	}
	if s.Begin(&Attempt{Replica: "a", Epoch: 1, Intent: ag.ReadWrite}) || !s.Outdated(ag.ReadWrite, 1) || s.Outdated(ag.ReadOnly, 1) || s.Outdated(ag.ReadWrite, 2) {
		t.Error("a writer may begin under an epoch that is over, or another one may not")
	}
	s.CloseEpoch(1) // late
	if !s.Outdated(ag.ReadWrite, 1) {
		t.Error("an older call has taken the epoch back")
	}
	s.CloseReplica("a", ag.ReadOnly)
	if len(ended) != 2 || ended["old reader"] != ErrMoved { //nolint:errorlint // the very error
		t.Errorf("the end of a role has ended %v", ended)
	}
	s.CloseReplica("b", "")
	if len(ended) != 3 || ended["elsewhere"] != ErrMoved { //nolint:errorlint // the very error
		t.Errorf("a replica's end has ended %v", ended)
	}
}

// TestFinish holds that an attempt succeeds once, and that one that was given up is canceled.
func TestFinish(t *testing.T) {
	var s Set
	canceled := 0
	a := &Attempt{Cancel: func(error) { canceled++ }}
	if s.Finish(a) || !s.Begin(a) || s.Len() != 1 || !s.Finish(a) || s.Finish(a) || s.Len() != 0 || canceled != 0 {
		t.Error("it is not finished exactly once")
	}
	if s.Abandon(a); canceled != 1 {
		t.Error("one that was given up goes on")
	}
}
