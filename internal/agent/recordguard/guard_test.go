package recordguard

import (
	"errors"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/marks"
)

// A store is recognised by its identity and its revision too. One that was put back can hold the epoch and state that
// were seen last, and votes that were taken back since.
func TestAnotherStoreIsNotBelieved(t *testing.T) {
	snap := func(epoch ag.Epoch, seq, store uint64, rev int64) marks.Seen {
		return marks.Seen{Epoch: epoch, Seq: seq, Store: store, Rev: rev}
	}
	g := New(marks.Seen{Epoch: 3, Seq: 9}) // written before stores had an identity
	steps := []struct {
		name string
		snap marks.Seen
		ok   bool
	}{
		{"first seen", snap(3, 9, 7, 100), true},
		{"renewed", snap(3, 9, 7, 110), true},
		{"as it was before", snap(3, 9, 7, 109), false},
		{"another with a later record", snap(4, 10, 8, 500), false},
		{"an earlier state", snap(3, 8, 7, 120), false},
		{"the same again", snap(3, 9, 7, 110), true},
		{"later", snap(4, 10, 7, 130), true},
		{"an earlier epoch", snap(3, 11, 7, 140), false},
	}
	for _, s := range steps {
		if err := g.CheckMonotonic(s.snap, 0); (err == nil) != s.ok || err != nil && !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	if now := (marks.Seen{Epoch: 4, Seq: 10, Store: 7, Rev: 130}); g.Latest() != now {
		t.Errorf("%+v", g.Latest())
	}
}
