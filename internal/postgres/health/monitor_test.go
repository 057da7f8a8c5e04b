package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// TestMain lets boottime follow time.Now, which is the bubble's clock inside a bubble and the real one outside.
func TestMain(m *testing.M) {
	boottime.SetForTest(func() time.Duration { return time.Duration(time.Now().UnixNano()) })
	os.Exit(m.Run())
}

// fake is a server whose answers a test chooses.
type fake struct {
	mu     sync.Mutex
	answer func(context.Context) error
	commit func(context.Context) error
	faults []DatabaseFault
	places []Place
	asked  int

	stopped bool // its postmaster
}

func idle() bool { return false }

func fine(context.Context) error { return nil }

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fake) get() fake {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fake{answer: f.answer, commit: f.commit, faults: f.faults, places: f.places, asked: f.asked, stopped: f.stopped}
}

func (f *fake) Answer(ctx context.Context) error {
	f.set(func(f *fake) { f.asked++ })
	return f.get().answer(ctx)
}
func (f *fake) Commit(ctx context.Context) error { return f.get().commit(ctx) }
func (f *fake) Databases(context.Context, []string) ([]DatabaseFault, error) {
	return f.get().faults, nil
}
func (f *fake) Places(context.Context) ([]Place, error) { return f.get().places, nil }

// running is a target that a test may change.
type running struct {
	mu sync.Mutex
	t  Target
}

func (r *running) get() Target {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.t
}

func (r *running) run(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.t.Running = on
}

// watch runs a monitor of a running primary in a bubble.
func watch(t *testing.T, level int, test func(f *fake, m *Monitor, target *running)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{answer: fine, commit: fine}
		target := &running{t: Target{Data: true, Running: true, Writable: true, Wait: 10 * time.Second, Level: level}}
		m := newWatched(f, target)
		defer m.runs(t)()
		time.Sleep(15 * time.Second)
		if r := m.Report(); r.Level != 0 || r.Database != "" {
			t.Fatalf("ill from the start: %+v", r)
		}
		test(f, m, target)
	})
}

// newWatched returns a monitor on an idle machine.
func newWatched(f *fake, target *running) *Monitor {
	m := New(Config{Server: f, Logger: slog.New(slog.DiscardHandler), Found: func() {}, Target: target.get})
	m.busy, m.stopped = idle, func(int) bool { return f.get().stopped }
	return m
}

// runs runs the monitor until the function that it returns is called.
func (m *Monitor) runs(t *testing.T) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// becomes waits for a level and returns after how long it was reached.
func becomes(t *testing.T, m *Monitor, level int, within time.Duration) time.Duration {
	t.Helper()
	for from := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if m.Report().Level == level {
			return time.Since(from)
		}
		if time.Since(from) > within {
			t.Fatalf("not level %d within %v: %+v", level, within, m.Report())
		}
	}
}

func TestSilenceIsAnIllnessAfterTheTimeout(t *testing.T) {
	watch(t, 3, func(f *fake, m *Monitor, _ *running) {
		f.set(func(f *fake) { f.answer = hang })
		if took := becomes(t, m, 2, 20*time.Second); took < 10*time.Second {
			t.Errorf("after %v", took)
		}
		if r := m.Report(); !r.Restart || !strings.Contains(r.Because, "has not answered") {
			t.Errorf("%+v", r)
		}
		f.set(func(f *fake) { f.answer = fine })
		becomes(t, m, 0, 20*time.Second)
	})
}

func TestOneAnswerIsEnough(t *testing.T) {
	watch(t, 5, func(f *fake, m *Monitor, _ *running) {
		for range 20 { // slow, slower than a probe should be, and alive
			f.set(func(f *fake) { f.answer = hang })
			time.Sleep(9 * time.Second)
			f.set(func(f *fake) {
				f.answer = fine
			})
			time.Sleep(8 * time.Second)
			if r := m.Report(); r.Level != 0 {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func TestOverloadIsNotAnIllness(t *testing.T) {
	watch(t, 5, func(f *fake, m *Monitor, _ *running) {
		m.busy = func() bool { return true }
		f.set(func(f *fake) { f.answer, f.commit = hang, hang })
		time.Sleep(25 * time.Second)
		if r := m.Report(); r.Level != 0 {
			t.Fatalf("%+v", r)
		}
		becomes(t, m, 2, 20*time.Second) // but there is an end to patience
	})
}

func TestAStoppedPostmasterGetsNoPatience(t *testing.T) {
	watch(t, 3, func(f *fake, m *Monitor, _ *running) {
		m.busy, m.stopped = func() bool { return true }, func(int) bool { return true }
		f.set(func(f *fake) { f.answer = hang })
		becomes(t, m, 2, 15*time.Second)
	})
}

func TestAPauseOfThisProcessIsForgiven(t *testing.T) {
	p := &probe{}
	now := boottime.Now()
	p.due(now, time.Second)
	p.forgive(time.Hour)
	if lasts, _, _ := p.trouble(now); lasts > 0 {
		t.Errorf("%v", lasts)
	}
}

func TestAnotherServerBeginsAnew(t *testing.T) {
	watch(t, 3, func(f *fake, m *Monitor, target *running) {
		f.set(func(f *fake) { f.answer = hang })
		time.Sleep(9 * time.Second)
		target.run(false)
		time.Sleep(time.Second)
		target.run(true)
		time.Sleep(5 * time.Second)
		if r := m.Report(); r.Level != 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestNoConnectionLeftIsOfLevelFour(t *testing.T) {
	watch(t, 3, func(f *fake, m *Monitor, _ *running) {
		f.set(func(f *fake) { f.answer = func(context.Context) error { return fmt.Errorf("%w: sorry", ErrExhausted) } })
		becomes(t, m, 4, 20*time.Second)
	})
}

func TestCommitIsProbedAtLevelFiveOnly(t *testing.T) {
	for level, want := range map[int]int{3: 0, 5: 5} {
		watch(t, level, func(f *fake, m *Monitor, _ *running) {
			f.set(func(f *fake) { f.commit = hang })
			time.Sleep(30 * time.Second)
			if r := m.Report(); r.Level != want {
				t.Errorf("at level %d: %+v", level, r)
			}
		})
	}
}

func TestBlockedSessionsAreOfLevelFive(t *testing.T) {
	watch(t, 5, func(f *fake, m *Monitor, _ *running) {
		f.set(func(f *fake) {
			f.commit = func(context.Context) error { return fmt.Errorf("%w: 97 sessions", ErrBlocked) }
		})
		time.Sleep(5 * time.Second)
		if r := m.Report(); r.Level != 0 {
			t.Errorf("at once: %+v", r)
		}
		becomes(t, m, 5, 20*time.Second)
		if r := m.Report(); !strings.Contains(r.Because, "97 sessions") || r.Restart {
			t.Errorf("%+v", r)
		}
	})
}

func TestADatabaseThatIsNotOnline(t *testing.T) {
	watch(t, 3, func(f *fake, m *Monitor, _ *running) {
		f.set(func(f *fake) { f.faults = []DatabaseFault{{"shop", "its directory is gone"}} })
		time.Sleep(25 * time.Second)
		if r := m.Report(); !strings.Contains(r.Database, "shop") || r.Level != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestADatabaseOfASecondary: a secondary looks for its databases, too, and names those that are not online.
func TestADatabaseOfASecondary(t *testing.T) {
	watch(t, 3, func(f *fake, m *Monitor, target *running) {
		target.mu.Lock()
		target.t.Writable = false
		target.mu.Unlock()
		f.set(func(f *fake) {
			f.faults = []DatabaseFault{{"shop", "its directory is gone"}, {"crm", "its directory is gone"}}
		})
		time.Sleep(25 * time.Second)
		if r := m.Report(); !strings.Contains(r.Database, "shop") || !slices.Equal(r.Offline, []string{"shop", "crm"}) {
			t.Errorf("%+v", r)
		}
		target.run(false)
		time.Sleep(time.Second)
		target.run(true)
		time.Sleep(time.Second)
		if r := m.Report(); len(r.Offline) != 2 {
			t.Errorf("its server was started again: %+v", r)
		}
		f.set(func(f *fake) { f.faults = nil })
		time.Sleep(15 * time.Second)
		if r := m.Report(); r.Database != "" || len(r.Offline) > 0 {
			t.Errorf("they are back: %+v", r)
		}
	})
}

func TestAttemptsDoNotPileUp(t *testing.T) {
	watch(t, 3, func(f *fake, m *Monitor, _ *running) {
		before := f.get().asked
		release := make(chan struct{})
		f.set(func(f *fake) { f.answer = func(context.Context) error { <-release; return nil } }) // the kernel does not release it
		time.Sleep(time.Hour)
		if n := f.get().asked - before; n > 1 {
			t.Errorf("%d attempts at once", n)
		}
		if r := m.Report(); r.Level != 2 {
			t.Errorf("%+v", r)
		}
		close(release)
	})
}

// place under watch, not in a bubble: the files are real.
func testPlace(t *testing.T, w Place) *place {
	t.Helper()
	p := &place{}
	p.set(w)
	return p
}

func try(p *place, times int) (err error) {
	for i := range times {
		p.due(boottime.Now()+time.Duration(i)*time.Hour, 0)
		err = p.try(context.Background())
		p.ended(err)
	}
	return err
}

func TestPlace(t *testing.T) {
	dir := t.TempDir()
	w := Place{Name: "the WAL directory", Dir: dir, Has: "archive_status", Floor: 1, WAL: true}
	judged := func(p *place) int { return p.judge(Target{Wait: 10 * time.Second}, boottime.Now()).Level }
	p := testPlace(t, w)
	if err := try(p, 1); !errors.Is(err, os.ErrNotExist) || judged(p) != 0 {
		t.Errorf("an empty mount point: %v, level %d after one failure", err, judged(p))
	}
	if err := try(p, 1); err == nil || judged(p) != levelCritical {
		t.Errorf("level %d after two failures in a row", judged(p))
	}
	if _, err := os.Stat(filepath.Join(dir, probeFile)); err == nil {
		t.Error("a file was made in an empty mount point")
	}
	if err := os.Mkdir(filepath.Join(dir, "archive_status"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := try(p, 2); err != nil || judged(p) != 0 || p.space.Free == 0 {
		t.Errorf("well: %v, %+v", err, p.space)
	}
	w.Floor = 1 << 60
	p.set(w)
	if judged(p) != levelModerate {
		t.Errorf("full: level %d", judged(p))
	}
	p.ended(syscall.ENOSPC)
	p.ended(syscall.ENOSPC)
	if judged(p) != levelModerate {
		t.Errorf("no space for a write: level %d", judged(p))
	}
}

func TestAPlaceThatHangs(t *testing.T) {
	p := testPlace(t, Place{Name: "the WAL directory", Dir: t.TempDir()})
	now := boottime.Now()
	p.due(now-11*time.Second, 0)
	if h := p.judge(Target{Wait: 10 * time.Second}, now); h.Level != levelCritical || h.Restart {
		t.Errorf("%+v", h)
	}
	file := filepath.Join(t.TempDir(), "stat")
	counters := func(n int) {
		if err := os.WriteFile(file, []byte(fmt.Sprintf("1 0 8 0 %d 0 8 0", n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.dev = device{path: file}
	for i := range 3 { // the disk is slow, but it does complete something
		counters(i + 2)
		if h := p.judge(Target{Wait: 10 * time.Second}, now+time.Duration(i)*time.Second); h.Level != 0 {
			t.Errorf("%+v", h)
		}
	}
	if h := p.judge(Target{Wait: 10 * time.Second}, now+20*time.Second); h.Level != levelCritical {
		t.Errorf("it stands still: %+v", h)
	}
}

func TestReadingTheMachine(t *testing.T) {
	if got := pressure("some avg10=61.50 avg60=1.22 avg300=0.77 total=1\nfull avg10=0.26"); got != 61.5 {
		t.Errorf("%v", got)
	}
	if got := completed("10 1 2 3 20 5 6 7 0 1 2 3 4 5 6 30 1"); got != 60 {
		t.Errorf("%v", got)
	}
	if processStopped(os.Getpid()) || processStopped(0) {
		t.Error("this process is not stopped")
	}
}

// A lost write is forgotten at once, not with the next look. A look that began before does not bring it back. A lost
// write that a probe finds afterwards counts.
func TestForgetHoldsAtOnce(t *testing.T) {
	m := New(Config{Logger: slog.New(slog.DiscardHandler), Found: func() {}})
	lost := func() {
		why := "the WAL directory: the storage lost a write"
		p := &place{}
		p.lost.Store(&why)
		m.places["/wal"] = p
	}
	lost()
	m.publish(m.judge(Target{}, 0))
	if m.Report().Lost == "" {
		t.Fatal("the lost write is not reported")
	}
	begun := m.judge(Target{}, 0)
	m.Forget()
	if r := m.Report(); r.Lost != "" {
		t.Errorf("still reported: %s", r.Lost)
	}
	m.publish(begun)
	if r := m.Report(); r.Lost != "" {
		t.Errorf("brought back: %s", r.Lost)
	}
	m.publish(m.judge(Target{}, 0))
	if r := m.Report(); r.Lost != "" {
		t.Errorf("found again: %s", r.Lost)
	}
	lost()
	m.publish(m.judge(Target{}, 0))
	if m.Report().Lost == "" {
		t.Error("a later one is not reported")
	}
}

// Which errors of a probe mean that an earlier write may not be on the disk.
func TestLostWrite(t *testing.T) {
	for err, lost := range map[syscall.Errno]bool{syscall.EIO: true, syscall.EROFS: true, syscall.ENOSPC: false, syscall.EACCES: false, syscall.EMFILE: false} {
		if got := lostWrite(&os.PathError{Op: "write", Path: "x", Err: err}); errors.Is(got, errWriteLost) != lost || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
