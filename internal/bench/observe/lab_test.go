package observe

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

func lab3(a *fakeAgent) *fakeLab {
	return &fakeLab{names: []string{"n1", "n2", "n3"}, agents: map[string]*fakeAgent{"n1": a}}
}

func TestPrimaryIsWhoTakesWritesByItsOwnWord(t *testing.T) {
	t.Parallel()
	s, err := Primary(t.Context(), lab3(&fakeAgent{status: group()}))
	if err != nil || s.Node != "n1" {
		t.Fatalf("%v, %v", s.Node, err)
	}
	for i, want := range []ag.ReplicaID{"n1", "n2", "n3"} {
		if s.Replicas[i].Name != want {
			t.Errorf("replica %d is %s: not in the order of names", i, s.Replicas[i].Name)
		}
	}
	closed := group()
	closed.WriteOpen = false
	if s, err := Primary(t.Context(), lab3(&fakeAgent{status: closed})); err == nil {
		t.Errorf("%s is closed and was taken for the primary", s.Node)
	}
}

// A node that was just started is, for a moment, still what it last said it was.
func TestSynchronizedTrustsNoOldWord(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*fakeAgent)
		want   bool
	}{
		{"all counted", func(*fakeAgent) {}, true},
		{"still said to be the primary", func(a *fakeAgent) { a.status.Replicas[0].Role = ag.RolePrimary }, false},
		{"streaming and not counted", func(a *fakeAgent) { a.status.SyncMembers = a.status.SyncMembers[:1] }, false},
		{"counted and catching up", func(a *fakeAgent) { a.status.Replicas[0].Sync = ag.Synchronizing }, false},
	} {
		a := &fakeAgent{status: group()}
		c.change(a)
		got, err := Synchronized(t.Context(), lab3(a), 3, "n3")
		if got != c.want || !got && err == nil {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

func TestTargetAvoidsTheNodeThatWasKilled(t *testing.T) {
	t.Parallel()
	s := group()
	if got := Target(s, "n3"); got != "n2" {
		t.Errorf("chose %s", got)
	}
	s.Replicas[2].Sync = ag.Synchronizing
	if got := Target(s, "n3"); got != "n3" {
		t.Errorf("chose %q although only n3 is synchronized", got)
	}
}

func TestAwaitNamesWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	err := Await(t.Context(), 20*time.Millisecond, "the tide", func(context.Context) (bool, error) { return false, errors.New("ebb") })
	if err == nil || !strings.Contains(err.Error(), "the tide") || !strings.Contains(err.Error(), "ebb") {
		t.Error(err)
	}
}
