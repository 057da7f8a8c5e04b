package listener

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// standings are the positions of a test's replicas.
type standings struct {
	mu sync.Mutex
	at map[ag.ReplicaID]Progress // guarded by mu; absent: it does not say
}

func (s *standings) of(_ context.Context, id ag.ReplicaID) (Progress, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.at[id]
	if !ok {
		return x, errors.New("does not say")
	}
	return x, nil
}

func (s *standings) set(id ag.ReplicaID, x Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[id] = x
}

// A reader with coterie.max_lag gets a copy that is known to be near enough, else the next entry of the list.
func TestMaxLag(t *testing.T) {
	s := &standings{at: map[ag.ReplicaID]Progress{"a": {Epoch: 1, LSN: 1000}, "b": {Epoch: 1, LSN: 1000}, "c": {Epoch: 1, LSN: 900}}}
	g := newGroup(t, func(c *Config) { c.Rules, c.ConnectWait, c.Position = trustAll, 200*time.Millisecond, s.of })
	where := func(rest string) (string, error) {
		conn, err := g.dial(g.ro, "user=postgres "+rest)
		if err != nil {
			return "", err
		}
		defer func() { _ = conn.Close(context.Background()) }()
		return value[string](t, conn, "show cluster_name"), nil
	}
	want := func(rest, name string) {
		t.Helper()
		for range 2 { // b and c take turns
			if got, err := where(rest); err != nil || got != name {
				t.Errorf("%s: %s %v, want %s", rest, got, err, name)
			}
		}
	}
	want("coterie.max_lag=50ms", "b")
	want("options='-c coterie.max_lag=50'", "b")
	s.set("c", Progress{Epoch: 1, LSN: 1000})
	s.set("b", Progress{Epoch: 2, LSN: 5000}) // ahead, in another history
	want("coterie.max_lag=1min", "c")
	s.set("c", Progress{Epoch: 1, LSN: 10})
	want("coterie.max_lag=50ms", "a") // the last entry of the list
	if st := g.srv.Stats(); st.Lagged == 0 || st.FellBack == 0 {
		t.Errorf("passed over %d times, fell back %d times", st.Lagged, st.FellBack)
	}
	// Without the primary in the list no replica serves it, and its error has the reason.
	only := fullRoutes(1)
	only.ReadList = [][]ag.ReplicaID{{"b", "c"}}
	g.publish(only)
	if _, err := where("coterie.max_lag=50ms"); sqlstate(err) != "57P03" || !strings.Contains(err.Error(), "(982)") {
		t.Errorf("nobody is near enough: %v", err)
	}
	s.set("a", Progress{Epoch: 1, LSN: 5000})
	s.set("c", Progress{Epoch: 1, LSN: 1000})
	want("coterie.max_lag=1d", "c") // by an old sample
	if got := value[string](t, g.mustDial(g.rw, "user=postgres coterie.max_lag=1ms"), "show cluster_name"); got != "a" {
		t.Errorf("a writer went to %s", got)
	}
}

func TestMaxLagIsRefused(t *testing.T) {
	g := newGroup(t, trusting)
	if _, err := g.dial(g.ro, "user=postgres coterie.max_lag=soon"); sqlstate(err) != "22023" {
		t.Errorf("an unreadable time: %v", err)
	}
	if _, err := g.dial(g.ro, "user=postgres coterie.max_lag=1s"); sqlstate(err) != "0A000" {
		t.Errorf("a listener that cannot tell: %v", err)
	}
}
