package health

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// keenly is watch, of a primary whose unusual hangs count and whose postmaster is stopped when it hangs, once it is
// known what is usual.
func keenly(t *testing.T, test func(f *fake, m *Monitor)) {
	t.Helper()
	watch(t, 3, func(f *fake, m *Monitor, target *running) {
		target.mu.Lock()
		target.t.Unusual = UnusualFloor
		target.mu.Unlock()
		time.Sleep(30 * time.Second)
		f.set(func(f *fake) { f.stopped = true })
		test(f, m)
	})
}

// slowly answers after that time.
func slowly(d time.Duration) func(context.Context) error {
	return func(context.Context) error {
		time.Sleep(d)
		return nil
	}
}

// A primary that answered at once and then hangs is ill within seconds, and the finding says what is unusual.
func TestUnusualSilenceIsAnIllness(t *testing.T) {
	keenly(t, func(f *fake, m *Monitor) {
		f.set(func(f *fake) { f.answer = hang })
		if took := becomes(t, m, 2, 20*time.Second); took < UnusualFloor || took > UnusualFloor+keen+2*glance {
			t.Errorf("after %v", took)
		}
		if r := m.Report(); !r.Restart || !strings.Contains(r.Because, "at most in the last day") {
			t.Errorf("%+v", r)
		}
		f.set(func(f *fake) { f.answer = fine })
		becomes(t, m, 0, 20*time.Second)
	})
}

// A server that has been slow is given three times as long, for a day.
func TestSlowAnswersAreUsual(t *testing.T) {
	keenly(t, func(f *fake, m *Monitor) {
		f.set(func(f *fake) { f.answer = slowly(1500 * time.Millisecond) })
		time.Sleep(10 * time.Second)
		for _, tt := range []struct{ after, least time.Duration }{{time.Minute, 4500 * time.Millisecond}, {23 * time.Hour, 4500 * time.Millisecond}, {25 * time.Hour, UnusualFloor}} {
			f.set(func(f *fake) { f.answer = fine })
			time.Sleep(tt.after)
			f.set(func(f *fake) { f.answer = hang })
			if took := becomes(t, m, 2, 20*time.Second); took < tt.least || took > tt.least+keen+2*glance {
				t.Errorf("%v later: after %v, want %v", tt.after, took, tt.least)
			}
			f.set(func(f *fake) { f.answer = fine })
			becomes(t, m, 0, 20*time.Second)
		}
	})
}

// Where little is known, on a secondary, and where the postmaster is not stopped, HEALTH_CHECK_TIMEOUT counts: a new
// process may wait for a lock.
func TestUnusualSilenceIsForgiven(t *testing.T) {
	for name, change := range map[string]func(m *Monitor){
		"unknown": nil,
		"a lock":  func(m *Monitor) { m.stopped = func(int) bool { return false } },
		"secondary": func(m *Monitor) {
			was := m.cfg.Target
			m.cfg.Target = func() Target {
				t := was()
				t.Writable = false
				return t
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{answer: fine, commit: fine}
				target := &running{t: Target{Data: true, Running: true, Writable: true, Wait: 10 * time.Second, Level: 3, Unusual: UnusualFloor}}
				m := newWatched(f, target)
				m.stopped = func(int) bool { return true }
				if change != nil {
					change(m)
				}
				defer m.runs(t)()
				if change != nil {
					time.Sleep(30 * time.Second)
				}
				f.set(func(f *fake) { f.answer = hang })
				time.Sleep(9 * time.Second)
				if r := m.Report(); r.Level != 0 {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// A disk that hangs while its counters stand still is dead; one without counters is given longer, and one that moves
// HEALTH_CHECK_TIMEOUT.
func TestUnusualHangOfAPlace(t *testing.T) {
	target := Target{Wait: 10 * time.Second, Writable: true, Unusual: UnusualFloor}
	file := filepath.Join(t.TempDir(), "stat")
	moves := func(n int) {
		if err := os.WriteFile(file, fmt.Appendf(nil, "1 0 8 0 %d 0 8 0", n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hanging := func(dev device, known bool) *place {
		p := testPlace(t, Place{Name: "the WAL directory", Dir: t.TempDir()})
		p.dev = dev
		if known {
			for range learned {
				p.usual.took(boottime.Now(), 5*time.Millisecond)
			}
		}
		return p
	}
	for _, tt := range []struct {
		name  string
		p     *place
		moves bool
		least time.Duration // 0: not before HEALTH_CHECK_TIMEOUT
	}{
		{"it stands still", hanging(device{path: file}, true), false, UnusualFloor},
		{"it moves", hanging(device{path: file}, true), true, 0},
		{"it has no counters", hanging(device{}, true), false, blindFloor},
		{"nothing is known", hanging(device{path: file}, false), false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			moves(0)
			began := boottime.Now()
			tt.p.due(began, 0)
			for after := time.Duration(0); after < 10*time.Second; after += glance {
				if tt.moves {
					moves(int(after/glance) + 1)
				}
				h := tt.p.judge(target, began+after)
				if ill := tt.least > 0 && after >= tt.least; (h.Level == levelCritical) != ill {
					t.Fatalf("after %v: %+v", after, h)
				}
			}
		})
	}
	if h := hanging(device{}, true).judge(Target{Wait: 10 * time.Second, Writable: true}, boottime.Now()+9*time.Second); h.Level != 0 {
		t.Errorf("STRICT: %+v", h)
	}
}
