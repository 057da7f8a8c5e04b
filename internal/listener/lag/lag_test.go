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

// A reader goes on at a copy only once that has what the session may have seen. The primary is asked for that once an
// epoch.
func TestReaches(t *testing.T) {
	at := map[ag.ReplicaID]Progress{"a": {1, 1000}, "b": {1, 900}}
	routes := &ag.Routes{Epoch: 1, Self: "b", Primary: "a"}
	asked := 0
	j := New(Config{
		Routes: func() *ag.Routes { return routes }, Run: func(f func()) { go f() }, Log: slog.New(slog.DiscardHandler),
		Shelter: func(q func(context.Context) (Progress, error)) func(context.Context) (Progress, error) {
			return func(ctx context.Context) (Progress, error) { asked++; return q(ctx) }
		},
		Position: func(_ context.Context, id ag.ReplicaID) (Progress, error) {
			if _, known := at[id]; !known {
				return Progress{}, errors.New("does not say")
			}
			return at[id], nil
		},
	})
	var seen Progress
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := j.Reaches(ctx, "b", &seen); !errors.Is(err, ErrBehind) || seen != at["a"] {
		t.Errorf("%v, seen %+v", err, seen)
	}
	at["a"], at["b"] = Progress{1, 2000}, Progress{1, 1000}
	if err := j.Reaches(t.Context(), "b", &seen); err != nil || asked != 1 {
		t.Errorf("%v, and the primary was asked %d times", err, asked)
	}
	at["a"], at["b"] = Progress{2, 10}, Progress{2, 20}
	if err := j.Reaches(t.Context(), "b", &seen); err != nil || asked != 2 || seen != at["a"] {
		t.Errorf("in the next epoch: %v, and the primary was asked %d times", err, asked)
	}
	if err := j.Reaches(t.Context(), "c", &seen); err == nil || errors.Is(err, ErrBehind) {
		t.Errorf("of a replica that does not say: %v", err)
	}
}
