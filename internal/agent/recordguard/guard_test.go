package recordguard

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
		if err := g.CheckMonotonic(s.snap, nil, 0); (err == nil) != s.ok || err != nil && !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	if now := (marks.Seen{Epoch: 4, Seq: 10, Store: 7, Rev: 130}); g.Latest() != now {
		t.Errorf("%+v", g.Latest())
	}
}

// Only a replica's word, about this store and that epoch, tells of another leader; and its latest word.
func TestAnotherLeaderOfAnEpoch(t *testing.T) {
	b, w := ag.Replica{ID: "b", AvailabilityMode: ag.SynchronousCommit}, ag.Replica{ID: "w", AvailabilityMode: ag.ConfigurationOnly}
	for _, tt := range []struct {
		name string
		from ag.Replica
		said []marks.Seen
		want ag.ReplicaID
	}{
		{"itself", b, []marks.Seen{{Epoch: 3, Seq: 9, Store: 7, Leader: "b"}}, "b"},
		{"nobody yet", b, []marks.Seen{{Epoch: 3, Seq: 9, Store: 7}}, ""},
		{"nobody yet, then itself", b, []marks.Seen{{Epoch: 3, Seq: 9, Store: 7}, {Epoch: 3, Seq: 9, Store: 7, Leader: "b"}}, "b"},
		{"itself, and then this node", b, []marks.Seen{{Epoch: 3, Seq: 9, Store: 7, Leader: "b"}, {Epoch: 3, Seq: 9, Store: 7, Leader: "a"}}, ""},
		{"this node", b, []marks.Seen{{Epoch: 3, Seq: 9, Store: 7, Leader: "a"}}, ""},
		{"in an earlier epoch", b, []marks.Seen{{Epoch: 2, Seq: 9, Store: 7, Leader: "b"}}, ""},
		{"in another store", b, []marks.Seen{{Epoch: 3, Seq: 9, Store: 8, Leader: "b"}}, ""},
		{"a witness", w, []marks.Seen{{Epoch: 3, Seq: 9, Store: 7, Leader: "b"}}, ""},
	} {
		g := New(marks.Seen{Epoch: 3, Seq: 9, Store: 7, Leader: "a"})
		for _, s := range tt.said {
			g.Hear(tt.from, s)
		}
		if got := g.HeardLeader(3, "a"); got != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
		if g.Among(nil); g.HeardLeader(3, "a") != "" {
			t.Errorf("%s: a word outlasts its member", tt.name)
		}
	}
}

// The claims of a member are forgotten when it is removed. Only a replica's word tells of a later epoch.
func TestWhatAMemberClaims(t *testing.T) {
	b, w := ag.Replica{ID: "b", AvailabilityMode: ag.SynchronousCommit}, ag.Replica{ID: "w", AvailabilityMode: ag.ConfigurationOnly}
	now := marks.Seen{Epoch: 3, Seq: 9, Store: 7, Rev: 1}
	g := New(now)
	if g.Hear(w, marks.Seen{Epoch: math.MaxUint64, Seq: math.MaxUint64, Store: 7}) || g.HeardEpoch() != 0 {
		t.Errorf("the word of a witness is that of a replica: epoch %d", g.HeardEpoch())
	}
	if g.Hear(b, now) || g.HeardEpoch() != 3 {
		t.Errorf("epoch %d was heard of", g.HeardEpoch())
	}
	if err := g.CheckMonotonic(now, nil, math.MaxInt64); !errors.Is(err, ErrUntrusted) {
		t.Errorf("what the witness has seen does not count: %v", err)
	}
	g.Among([]ag.Replica{b})
	if err := g.CheckMonotonic(now, nil, math.MaxInt64); err != nil {
		t.Errorf("after it was removed: %v", err)
	}
	if g.Hear(b, marks.Seen{Epoch: 5, Seq: 1, Store: 8}) || g.HeardEpoch() != 0 {
		t.Errorf("epoch %d of another store was heard of", g.HeardEpoch())
	}
	if !g.Hear(b, marks.Seen{Epoch: 6, Seq: 1, Store: 7}) || g.HeardEpoch() != 6 {
		t.Errorf("epoch %d was heard of", g.HeardEpoch())
	}
	if err := g.CheckMonotonic(now, nil, math.MaxInt64); !errors.Is(err, ErrUntrusted) {
		t.Errorf("what a replica has seen does not count: %v", err)
	}
}

// Another store of the group is a rival if a replica leads this epoch or a later one in it, by a replica's word. A
// member that was not told of a recovery remembers an earlier epoch of the lost store, which ends nobody.
func TestRivalStore(t *testing.T) {
	b, w := ag.Replica{ID: "b", AvailabilityMode: ag.SynchronousCommit}, ag.Replica{ID: "w", AvailabilityMode: ag.ConfigurationOnly}
	now := marks.Seen{Epoch: 9, Seq: 18, Store: 7, Leader: "a"}
	for _, tt := range []struct {
		name  string
		from  ag.Replica
		said  marks.Seen
		rival bool
	}{
		{"another founder of the epoch", b, marks.Seen{Epoch: 9, Seq: 18, Store: 8, Leader: "b"}, true},
		{"one with an earlier state", b, marks.Seen{Epoch: 9, Seq: 3, Store: 8, Leader: "b"}, true},
		{"a later epoch there", b, marks.Seen{Epoch: 10, Seq: 18, Store: 8, Leader: "c"}, true},
		{"the lost store", b, marks.Seen{Epoch: 8, Seq: 17, Store: 5, Leader: "b"}, false},
		{"a store where none leads", b, marks.Seen{Epoch: 9, Seq: 18, Store: 8}, false},
		{"a store that was forgotten", b, marks.Seen{Epoch: 9, Seq: 18, Leader: "b"}, false},
		{"this store", b, marks.Seen{Epoch: 9, Seq: 18, Store: 7, Leader: "a"}, false},
		{"a witness", w, marks.Seen{Epoch: 9, Seq: 18, Store: 8, Leader: "b"}, false},
	} {
		g := New(now)
		g.Hear(tt.from, tt.said)
		if err := g.HeardRival(); (err != nil) != tt.rival || err != nil && !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err := g.CheckMonotonic(now, nil, 0); (err != nil) != tt.rival {
			t.Errorf("%s: the store is believed: %v", tt.name, err)
		}
		if g.Among(nil); g.HeardRival() != nil {
			t.Errorf("%s: a word outlasts its member", tt.name)
		}
	}
}

// An epoch has one leader, in the record and in the history that a later one gives: as long as this node knows which.
func TestEpochHasOneLeader(t *testing.T) {
	b := func(e ag.Epoch, seq uint64, chosen, by ag.ReplicaID, led ag.Epoch) marks.Seen {
		return marks.Seen{Epoch: e, Seq: seq, Store: 7, Chosen: chosen, Led: led, By: by}
	}
	history := func(leader ag.ReplicaID) []ag.TimelineEntry {
		return []ag.TimelineEntry{{TLI: 2, Epoch: 2, Leader: "a"}, {TLI: 3, Epoch: 3, Leader: leader}, {TLI: 4, Epoch: 4, Leader: "c"}}
	}
	led := b(3, 9, "b", "b", 3)
	for _, tt := range []struct {
		name     string
		was, now marks.Seen
		history  []ag.TimelineEntry
		ok       bool
	}{
		{"the same", led, b(3, 10, "b", "b", 3), history("b")[:2], true},
		{"another one leads", led, b(3, 10, "a", "a", 3), history("a")[:2], false},
		{"it is not told any more who leads", led, b(3, 10, "b", "", 3), nil, false},
		{"another one was chosen first", b(3, 9, "b", "a", 2), b(3, 9, "c", "a", 2), history("b")[:1], false},
		{"none is chosen any more", led, b(3, 9, "", "a", 2), nil, false},
		{"the chosen one comes to lead", b(3, 9, "b", "a", 2), led, nil, true},
		{"another one led, says a candidate", led, b(4, 10, "", "a", 3), nil, false},
		{"a candidate", led, b(4, 9, "", "b", 3), nil, true},
		{"a later leader", led, b(4, 10, "c", "c", 4), history("b"), true},
		{"a later leader, after another one", led, b(4, 10, "c", "c", 4), history("a"), false},
		{"a later leader, of a version that does not tell", led, b(4, 10, "c", "c", 4), history(""), true},
		{"a later leader, after a forced failover that dropped the epoch", led, b(5, 11, "c", "c", 5), history("b")[:1], true},
		{"the chosen one, of which no more is known, did not lead", b(3, 9, "b", "a", 2), b(4, 9, "", "a", 2), history("b")[:1], true},
		{"the chosen one led, says a candidate", b(3, 9, "b", "a", 2), b(4, 10, "", "b", 3), history("b")[:2], true},
		{"another one led than was chosen, says a candidate", b(3, 9, "b", "a", 2), b(4, 10, "", "a", 3), nil, false},
		{"a later leader, after another one than was chosen", b(3, 9, "b", "a", 2), b(4, 10, "c", "c", 4), history("a"), false},
		{"a later leader, after another one than led while the next one was decided on", b(4, 9, "", "b", 3), b(5, 10, "c", "c", 5), history("a"), false},
		{"the mark is of an earlier version", marks.Seen{Epoch: 3, Seq: 9, Store: 7, Leader: "b"}, b(3, 10, "a", "a", 3), nil, true},
		{"a recovery begins", led, b(9, 10, "a", "", 0), history("a"), false},
		{"a recovery begins, and this node was told", marks.Seen{Epoch: 3, Seq: 9}, b(9, 10, "a", "", 0), history("a"), true},
	} {
		if err := New(tt.was).CheckMonotonic(tt.now, tt.history, 0); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// A disk that was full gets what was seen when it has room again, also if nothing more happens. A crash later would
// have this node forget who came to lead.
func TestKeepTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(marks.Seen{Epoch: 3, Seq: 9})
		led := marks.Seen{Epoch: 3, Seq: 10, Chosen: "b", Leader: "b", Led: 3, By: "b"}
		var disk atomic.Pointer[marks.Seen]
		var full atomic.Bool
		full.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.Keep(ctx, func(s marks.Seen) error {
				if full.Load() {
					return errors.New("full")
				}
				disk.Store(&s)
				return nil
			}, slog.New(slog.DiscardHandler))
		}()
		if err := g.CheckMonotonic(led, nil, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		full.Store(false)
		time.Sleep(time.Minute)
		if s := disk.Load(); s == nil || *s != led {
			t.Errorf("the disk has %+v", s)
		}
		cancel()
		<-ended
	})
}

// The disk gets who leads before that one is followed, and gets it once. An error is an error.
func TestPin(t *testing.T) {
	var disk marks.Seen
	var full error
	writes := 0
	save := func(s marks.Seen) error {
		if full == nil {
			disk = s
			writes++
		}
		return full
	}
	g := New(marks.Seen{Epoch: 3, Seq: 9})
	if err := g.Pin(3, "b", save); err != nil || writes != 0 {
		t.Errorf("none is chosen: %v after %d writes", err, writes)
	}
	promoted := marks.Seen{Epoch: 4, Seq: 9, Chosen: "b"}
	if err := g.CheckMonotonic(promoted, nil, 0); err != nil {
		t.Fatal(err)
	}
	if full = errors.New("full"); !errors.Is(g.Pin(4, "b", save), full) {
		t.Error("a disk that is full counts as one that has it")
	}
	full = nil
	for range 2 {
		if err := g.Pin(4, "b", save); err != nil || writes != 1 || disk != promoted {
			t.Errorf("%v after %d writes of %+v", err, writes, disk)
		}
	}
	if err := g.CheckMonotonic(marks.Seen{Epoch: 4, Seq: 10, Chosen: "b", Leader: "b", Led: 4, By: "b"}, nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := g.Pin(4, "b", save); err != nil || writes != 1 {
		t.Errorf("it is written again, while it is waited for: %v, %d", err, writes)
	}
	if g.Pin(4, "c", save) == nil || g.Pin(3, "b", save) == nil || writes != 1 {
		t.Error("another leader, or one of an earlier epoch, may be followed")
	}
	after := New(marks.Seen{})
	after.Remember(disk)
	if err := after.Pin(4, "b", save); err != nil || writes != 1 {
		t.Errorf("after a restart: %v after %d writes", err, writes)
	}
}
