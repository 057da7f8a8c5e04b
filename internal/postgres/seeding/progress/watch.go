package progress

import (
	"fmt"
	"math"
	"sync"
	"time"
)

const showEvery = 250 * time.Millisecond

// rateWindow is the period over which the displayed rate is measured; paceWindow is that of the rate behind the ETA.
// Existing data is settled in bursts, and an estimate that jumps with each burst is useless. But a copy that continues
// after an interruption comes to the end of its existing data. The pace up to there does not predict the rest: the
// share of existing data has changed, and the longer window begins anew.
const (
	rateWindow = 5 * time.Second
	paceWindow = 30 * time.Second
)

// Watcher collects the progress of every connection and reports it.
type Watcher struct {
	show  func(Progress)
	codec func() (use string, packed bool)
	began time.Time
	moved chan struct{} // to another phase, which is shown at once

	mu    sync.Mutex
	now   Progress
	past  []sample  // of the last paceWindow, without the time spent waiting
	seen  time.Time // when the last snapshot was made
	gone  string    // the reason why the source is lost
	asked int       // connections that wait for an answer
	heard time.Time // when a question or an answer last passed on any connection
}

// quiet is the time that a source may leave a question unanswered before it is shown as gone. A connection that is
// silently cut off shows only much later.
const quiet = 5 * time.Second

// sample is the number of bytes settled at an instant, and the number of them that existed before.
type sample struct {
	at         time.Time
	done, same int64
}

// NewWatcher returns a Watcher that reports to show. codec returns the codec in use and whether it compresses.
func NewWatcher(show func(Progress), codec func() (use string, packed bool)) *Watcher {
	return &Watcher{show: show, codec: codec, began: time.Now(), moved: make(chan struct{}, 1)}
}

// Run shows progress until the returned function is called, which shows it once more.
func (w *Watcher) Run() (stop func()) {
	if w.show == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(showEvery)
		defer t.Stop()
		for {
			select {
			case <-quit:
				w.show(w.Snapshot())
				return
			case <-t.C:
				w.show(w.Snapshot())
			case <-w.moved:
				w.show(w.Snapshot())
			}
		}
	}()
	return func() { close(quit); <-done }
}

// Snapshot returns the progress of now.
func (w *Watcher) Snapshot() Progress {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	p := w.now
	gone := w.gone
	if silent := now.Sub(w.heard); gone == "" && w.asked > 0 && silent > quiet {
		gone = fmt.Sprintf("nothing has come for %v", silent.Round(time.Second))
	}
	if gone != "" {
		p.Waiting = "waiting for a source: " + gone
	}
	if p.Waiting != "" { // a wait does not predict the later rate
		for i := range w.past {
			w.past[i].at = w.past[i].at.Add(now.Sub(w.seen))
		}
		p.Rate = 0
	} else {
		w.measure(now)
		p.Rate, p.Pace = w.now.Rate, w.now.Pace
	}
	w.seen = now
	p.Took = now.Sub(w.began)
	p.Codec, p.Packed = w.codec()
	return p
}

// measure records the recent rate; w.mu is held.
func (w *Watcher) measure(now time.Time) {
	w.past = append(w.past, sample{now, w.now.Done, w.now.Same})
	for len(w.past) > 2 && now.Sub(w.past[0].at) > paceWindow {
		w.past = w.past[1:]
	}
	recent := 0
	for recent < len(w.past)-2 && now.Sub(w.past[recent].at) > rateWindow {
		recent++
	}
	w.now.Rate = w.since(recent, now, w.now.Rate)
	if was, is := share(w.past[0], w.past[recent]), share(w.past[recent], w.past[len(w.past)-1]); math.Abs(was-is) > 0.5 { // NaN is not
		w.past = w.past[recent:]
	}
	w.now.Pace = w.since(0, now, w.now.Pace)
}

// share returns the part of the bytes settled between two samples that existed before; NaN if none were settled.
func share(from, to sample) float64 {
	return float64(to.same-from.same) / float64(to.done-from.done)
}

// since returns the rate from a sample until now, or was if the sample is too recent to tell.
func (w *Watcher) since(i int, now time.Time, was float64) float64 {
	first := w.past[i]
	if now.Sub(first.at) <= showEvery {
		return was
	}
	return max(0, float64(w.now.Done-first.done)/now.Sub(first.at).Seconds())
}

// OnDisk counts the time that a connection has spent on the disk since the given instant.
func (w *Watcher) OnDisk(since time.Time) {
	w.mu.Lock()
	w.now.DiskWait += time.Since(since)
	w.mu.Unlock()
}

// OnNet counts the time that a connection has waited for an answer since the given instant, at which Listens was
// called.
func (w *Watcher) OnNet(since time.Time) {
	w.mu.Lock()
	w.heard = time.Now()
	w.asked--
	w.now.NetWait += w.heard.Sub(since)
	w.mu.Unlock()
}

// Listens records that a connection waits for an answer from now on, until OnNet.
func (w *Watcher) Listens() (since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = time.Now()
	w.asked++
	return w.heard
}

// Done returns the number of bytes settled.
func (w *Watcher) Done() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now.Done
}

// Enter begins a phase, which is shown at once.
func (w *Watcher) Enter(phase string) {
	w.mu.Lock()
	w.now.Phase, w.now.Waiting = phase, ""
	w.mu.Unlock()
	select {
	case w.moved <- struct{}{}:
	default:
	}
}

// Again shows the reason why the copy begins anew, until something is settled.
func (w *Watcher) Again(why string) {
	w.mu.Lock()
	w.now.Phase, w.now.Waiting = PhaseCheckpoint, "one more backup window: "+why
	w.mu.Unlock()
}

// Lost shows the reason why the source is lost, until Found is called.
func (w *Watcher) Lost(why string) {
	w.mu.Lock()
	w.gone = why
	w.mu.Unlock()
}

// Found records that there is a source again.
func (w *Watcher) Found() { w.Lost("") }

// Cut counts a lost connection and shows the reason.
func (w *Watcher) Cut(why string) {
	w.mu.Lock()
	w.now.Cuts++
	w.gone = why
	w.mu.Unlock()
}

// Start begins a backup window whose list has that many bytes and files.
func (w *Watcher) Start(total int64, files int) {
	w.mu.Lock()
	w.now.Total, w.now.Files, w.now.Done, w.now.Same, w.past = total, files, 0, 0, nil
	w.now.Windows++
	w.mu.Unlock()
	w.Enter(PhaseCopy)
}

// Wire counts n bytes read from a connection.
func (w *Watcher) Wire(n int) {
	w.mu.Lock()
	w.now.Wire += int64(n)
	w.mu.Unlock()
}

// Settled counts n bytes of files as right from now on; same of them existed before.
func (w *Watcher) Settled(n, same int) {
	w.mu.Lock()
	w.now.Done += int64(n)
	w.now.Same += int64(same)
	w.now.Waiting, w.gone = "", ""
	w.mu.Unlock()
}
