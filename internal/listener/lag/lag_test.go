package lag

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// A bound is never too small: a thinned history only gives larger ones.
func TestMarksAreBounded(t *testing.T) {
	var m positions
	start := boottime.Now()
	for i := range 10 * maxSamples {
		m.add(1, sample{start - time.Hour + time.Duration(i)*time.Second, ag.LSN(100 * i)})
	}
	if len(m.list) > maxSamples {
		t.Fatalf("%d marks", len(m.list))
	}
	for i := range 10 * maxSamples {
		atLeast := boottime.Now() - (start - time.Hour + time.Duration(i)*time.Second)
		if d, known := m.behind(Progress{1, ag.LSN(100 * i)}); known && d < atLeast {
			t.Fatalf("at %d: %v, and it is at least %v", i, d, atLeast)
		}
	}
	m.add(2, sample{start, 5})
	if _, known := m.behind(Progress{1, 1 << 40}); known {
		t.Error("a position of an older epoch was compared")
	}
}

// A copy keeps its replayed WAL when the primary has died: its age counts from there.
func TestAgeOfACopy(t *testing.T) {
	at := map[ag.ReplicaID]Progress{"a": {1, 1000}, "b": {1, 900}}
	routes := &ag.Routes{Epoch: 1, Self: "b", Primary: "a", WriteOpen: true}
	s := New(Config{
		Routes: func() *ag.Routes { return routes }, Run: func(f func()) { go f() }, Log: slog.New(slog.DiscardHandler),
		Shelter: func(q func(context.Context) (Progress, error)) func(context.Context) (Progress, error) { return q },
		Position: func(_ context.Context, id ag.ReplicaID) (Progress, error) {
			x, ok := at[id]
			if !ok {
				return x, errors.New("does not say")
			}
			return x, nil
		},
	})
	s.Look(t.Context())
	if s.Age() != Unknown {
		t.Errorf("behind by nobody knows what: %v", s.Age())
	}
	marked := boottime.Now()
	at["a"] = Progress{1, 2000}
	at["b"] = Progress{1, 1000}
	s.Look(t.Context())
	if age := s.Age(); age == Unknown || age < boottime.Now()-marked {
		t.Errorf("it has what was there before the primary went on: %v", age)
	}
	was := s.current.Load()
	at["b"] = Progress{2, 5000}
	s.Look(t.Context())
	at = nil // no more answers
	s.Look(t.Context())
	if s.current.Load() != was {
		t.Error("silence or another history has changed what was known")
	}
	routes = &ag.Routes{Epoch: 2, Self: "b", Primary: "b", WriteOpen: true}
	s.Look(t.Context())
	if s.Age() > time.Minute || s.current.Load() <= was {
		t.Errorf("as the primary: %v", s.Age())
	}
}
