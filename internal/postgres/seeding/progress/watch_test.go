package progress

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestEstimateWhileTheSourceIsGone holds that no remaining time is shown while the source is lost, and the right one
// after its return.
func TestEstimateWhileTheSourceIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWatcher(nil, func() (string, bool) { return "", false })
		w.Start(100<<20, 1)
		second := func() Progress { // of a copy that makes 1 MiB in each
			since := w.Listens()
			time.Sleep(time.Second)
			w.OnNet(since)
			w.Settled(1<<20, 0)
			return w.Snapshot()
		}
		for range 20 {
			second()
		}
		expect := func(p Progress, left time.Duration, waits string) {
			t.Helper()
			if d := p.ETA() - left; d > 5*time.Second || d < -5*time.Second || !strings.HasPrefix(p.Waiting, waits) || (p.Waiting == "") != (waits == "") {
				t.Errorf("%v left instead of %v, waiting %q", p.ETA(), left, p.Waiting)
			}
		}
		expect(w.Snapshot(), 80*time.Second, "")
		w.Cut("connection refused")
		for range 60 {
			time.Sleep(time.Second)
			expect(w.Snapshot(), 0, "waiting for a source: connection refused")
		}
		expect(second(), 79*time.Second, "")
		since := w.Listens() // and from here on without an answer
		time.Sleep(quiet)
		expect(w.Snapshot(), 95*time.Second, "") // a fifth more: as far as it can tell, nothing has moved for a fifth of the time
		for range 60 {
			time.Sleep(time.Second)
			expect(w.Snapshot(), 0, "waiting for a source: nothing has come for")
		}
		w.OnNet(since)
		expect(second(), 97*time.Second, "")
	})
}

// TestEstimateAfterWhatIsThere continues a copy of which half exists already. That half is found a hundred times as
// fast as the other half arrives. A few seconds later the estimate is that of the other half.
func TestEstimateAfterWhatIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWatcher(nil, func() (string, bool) { return "", false })
		w.Start(2000<<20, 1)
		for range 40 {
			time.Sleep(showEvery)
			w.Settled(25<<20, 25<<20)
			w.Snapshot()
		}
		for i := range 400 {
			time.Sleep(showEvery)
			w.Settled(1<<18, 0)
			left, told := 1000*time.Second-time.Duration(i)*showEvery, w.Snapshot().ETA()
			if i > 30 && (told < left*9/10 || told > left*11/10) {
				t.Fatalf("%v left, told %v", left, told)
			}
		}
	})
}
