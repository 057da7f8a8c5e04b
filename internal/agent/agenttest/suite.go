package agenttest

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
)

// StoreSuite is the contract of agent.Store, for the fake and for the real one. open returns two members' stores of one
// record whose three keys exist.
func StoreSuite(t *testing.T, open func(t *testing.T) (x, y agent.Store)) {
	t.Helper()
	for _, c := range []struct {
		name  string
		holds func(t *testing.T, x, y agent.Store)
	}{
		{"what one commits the other reads", commitIsRead},
		{"of two claims one wins", oneClaimWins},
		{"each guard counts and a negative one does not", guardsCount},
		{"a renewal is bound to the epoch's revision", renewalIsBound},
		{"a change is hinted at", changeIsHinted},
		{"statuses are read back", statusesAreRead},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, y := open(t)
			c.holds(t, x, y)
		})
	}
}

func mustRead(t *testing.T, s agent.Store) agent.Snapshot {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func commitIsRead(t *testing.T, x, y agent.Store) {
	t.Helper()
	r := mustRead(t, x).Record
	e, st := r.Epoch, r.State.Clone()
	e.Epoch, e.Phase, e.Leader = e.Epoch+1, ag.PhaseSeal, "y"
	st.V, st.K, st.Seq = []ag.Member{{ID: "x", Copy: "c"}}, 1, st.Seq+1
	if err := x.Commit(t.Context(), ag.Commit{Guard: r.Revs, Epoch: &e, State: &st}); err != nil {
		t.Fatal(err)
	}
	got := mustRead(t, y).Record
	if !reflect.DeepEqual(got.Epoch, e) || got.State.K != 1 || len(got.State.V) != 1 || got.State.Seq != st.Seq {
		t.Errorf("%+v", got)
	}
	if got.Revs.Epoch == r.Revs.Epoch || got.Revs.State == r.Revs.State || got.Revs.Lead != r.Revs.Lead {
		t.Errorf("revisions %+v after %+v", got.Revs, r.Revs)
	}
}

func oneClaimWins(t *testing.T, x, y agent.Store) {
	t.Helper()
	r := mustRead(t, x).Record
	for _, id := range []ag.ReplicaID{"x", "y"} {
		s, want := x, error(nil)
		if id == "y" {
			s, want = y, agent.ErrConflict
		}
		e := r.Epoch
		e.Epoch, e.Leader = e.Epoch+1, id
		if err := s.Commit(t.Context(), ag.Commit{Guard: r.Revs, Epoch: &e}); !errors.Is(err, want) {
			t.Errorf("%s: %v", id, err)
		}
	}
	if got := mustRead(t, y).Record.Epoch.Leader; got != "x" {
		t.Errorf("%s won", got)
	}
}

func guardsCount(t *testing.T, x, _ agent.Store) {
	t.Helper()
	for i, stale := range []func(*ag.Revisions){
		func(g *ag.Revisions) { g.Epoch += 1000 }, func(g *ag.Revisions) { g.State += 1000 }, func(g *ag.Revisions) { g.Lead += 1000 },
	} {
		r := mustRead(t, x).Record
		st := r.State.Clone()
		st.Seq++
		g := r.Revs
		stale(&g)
		if err := x.Commit(t.Context(), ag.Commit{Guard: g, State: &st}); !errors.Is(err, agent.ErrConflict) {
			t.Errorf("guard %d: %v", i, err)
		}
		if got := mustRead(t, x).Record.State.Seq; got != r.State.Seq {
			t.Errorf("guard %d: a refused commit had an effect", i)
		}
		free := r.Revs
		free.Lead = -1
		if err := x.Commit(t.Context(), ag.Commit{Guard: free, State: &st}); err != nil {
			t.Errorf("guard %d: %v", i, err)
		}
	}
}

func renewalIsBound(t *testing.T, x, y agent.Store) {
	t.Helper()
	r := mustRead(t, x).Record
	if err := x.Renew(t.Context(), r.Revs.Epoch, ag.Lead{Epoch: r.Epoch.Epoch, Holder: "x"}); err != nil {
		t.Fatal(err)
	}
	got := mustRead(t, y).Record
	if got.Lead.Holder != "x" || got.Revs.Lead == r.Revs.Lead || got.Revs.Epoch != r.Revs.Epoch {
		t.Errorf("%+v after %+v", got, r)
	}
	e := got.Epoch
	e.Epoch++
	if err := y.Commit(t.Context(), ag.Commit{Guard: got.Revs, Epoch: &e}); err != nil {
		t.Fatal(err)
	}
	if err := x.Renew(t.Context(), r.Revs.Epoch, ag.Lead{Epoch: r.Epoch.Epoch, Holder: "x"}); !errors.Is(err, agent.ErrConflict) {
		t.Errorf("renewed after the epoch moved on: %v", err)
	}
}

func changeIsHinted(t *testing.T, x, y agent.Store) {
	t.Helper()
	hints := y.Watch(t.Context())
	deadline := time.After(10 * time.Second)
	for again := true; again; {
		r := mustRead(t, x).Record
		st := r.State.Clone()
		st.Seq++
		if err := x.Commit(t.Context(), ag.Commit{Guard: r.Revs, State: &st}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
			again = false
		case <-time.After(100 * time.Millisecond): // the watch may not have begun
		case <-deadline:
			t.Fatal("no hint")
		}
	}
}

func statusesAreRead(t *testing.T, x, y agent.Store) {
	t.Helper()
	if err := x.PutStatus(t.Context(), "x", agent.Status{Epoch: 7, Open: true}); err != nil {
		t.Fatal(err)
	}
	if got := mustRead(t, y).Statuses["x"]; got.Epoch != 7 || !got.Open {
		t.Errorf("%+v", got)
	}
}
