package preset_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/preset"
)

// server is a PostgreSQL that takes a while for a setting.
type server struct {
	takes time.Duration
	fails error
	puts  atomic.Int64
	epoch ag.Epoch
	sync  ag.Sync
}

func (s *server) preset(t *testing.T) *preset.Preset {
	t.Helper()
	p := preset.New(preset.Server{
		Put: func(ctx context.Context, e ag.Epoch, set ag.Sync) error {
			s.puts.Add(1)
			select {
			case <-time.After(s.takes):
			case <-ctx.Done():
				return ctx.Err()
			}
			if s.fails == nil {
				s.epoch, s.sync = e, set
			}
			return s.fails
		},
		InForce: func(context.Context) (ag.Epoch, ag.Sync, error) { return s.epoch, s.sync, nil },
	}, slog.New(slog.DiscardHandler))
	t.Cleanup(p.Wait)
	return p
}

var one = ag.Sync{P: []ag.ReplicaID{"b", "c"}, N: 1}

// A promotion waits for the try that is under way, and takes what it has put there.
func TestExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 80 * time.Millisecond}
		p := s.preset(t)
		began := time.Now()
		p.Expect(7, one)
		p.Expect(7, one)
		p.Expect(6, one)
		if d := time.Since(began); d != 0 {
			t.Errorf("expecting took %v", d)
		}
		synctest.Wait()
		if !p.Is(t.Context(), 7, ag.Sync{P: []ag.ReplicaID{"c", "b"}, N: 1}) {
			t.Error("the setting was put there, and does not count")
		}
		if d := time.Since(began); d != s.takes {
			t.Errorf("it was in force after %v", d)
		}
		if n := s.puts.Load(); n != 1 {
			t.Errorf("put there %d times", n)
		}
		for what, is := range map[string]bool{
			"of another epoch":    p.Is(t.Context(), 8, one),
			"of other members":    p.Is(t.Context(), 7, ag.Sync{P: []ag.ReplicaID{"b", "d"}, N: 1}),
			"of fewer members":    p.Is(t.Context(), 7, ag.Sync{P: []ag.ReplicaID{"b"}, N: 1}),
			"for more of the two": p.Is(t.Context(), 7, ag.Sync{P: one.P, N: 2}),
		} {
			if is {
				t.Errorf("a setting %s counts as this one", what)
			}
		}
		s.sync = ag.Sync{}
		if p.Is(t.Context(), 7, one) {
			t.Error("a setting that another program has removed counts")
		}
	})
}

// The setting that a promotion puts before the server stays, however late an earlier try is carried out.
func TestLateTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 80 * time.Millisecond}
		p := s.preset(t)
		p.Expect(7, ag.Sync{P: []ag.ReplicaID{"d"}, N: 1}) // its goroutine has not run yet
		if p.Is(t.Context(), 7, one) {
			t.Error("another setting counts as the one that is needed")
		}
		if err := p.Put(t.Context(), 7, one); err != nil {
			t.Fatal(err)
		}
		p.Wait()
		if s.epoch != 7 || s.sync.N != 1 || len(s.sync.P) != 2 {
			t.Errorf("in force is %+v of epoch %d", s.sync, s.epoch)
		}
	})
}

// While another setting is put there nothing is begun, and the epoch is tried afterwards.
func TestExpectedWhileAnotherIsPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 80 * time.Millisecond}
		p := s.preset(t)
		p.Expect(7, one)
		p.Expect(8, one)
		p.Wait()
		if s.epoch != 7 {
			t.Errorf("in force is epoch %d", s.epoch)
		}
		p.Expect(8, one)
		if !p.Is(t.Context(), 8, one) {
			t.Error("the later epoch was not tried again")
		}
	})
}

// A try that fails, or that has no end, costs a promotion its time at most, and nothing counts as put there.
func TestExpectedInVain(t *testing.T) {
	for name, s := range map[string]*server{
		"refused": {fails: errors.New("no")},
		"hangs":   {takes: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := s.preset(t)
				began := time.Now()
				p.Expect(7, one)
				synctest.Wait()
				if p.Is(t.Context(), 7, one) {
					t.Error("it counts")
				}
				if d := time.Since(began); d > time.Second {
					t.Errorf("waited for %v", d)
				}
			})
		})
	}
}

// A caller that gives up does not wait for a try that has no end.
func TestCallersGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: time.Hour}
		p := s.preset(t)
		p.Expect(7, one)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if p.Is(ctx, 7, one) {
			t.Error("it counts")
		}
		if err := p.Put(ctx, 7, one); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("put: %v", err)
		}
	})
}
