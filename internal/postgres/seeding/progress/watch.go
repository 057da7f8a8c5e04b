package progress

import (
	"fmt"
	"math"
	"sync"
	"time"
)

const showEvery = 250 * time.Millisecond

// rateWindow is over how long the rate is measured that is shown, paceWindow that of which the ETA is made: what is there already is
// settled in bursts, and an estimate that jumps with each is none. But where what is there has ended, as in a copy that goes on after an
// interruption, its pace says nothing of what has to come: the share of it has changed, and the longer window begins anew.
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
	past  []sample  // of the last paceWindow, in which nothing was waited for
	seen  time.Time // when the last snapshot was made
	gone  string    // why there is no source
	asked int       // connections that wait for an answer
	heard time.Time // when a question or an answer was last on one
}

// quiet is how long a source that was asked may say nothing until it is said to be gone: a connection that is silently cut off shows much
// later.
const quiet = 5 * time.Second

// sample is how much was done at an instant, and how much of it had been there.
type sample struct {
	at         time.Time
	done, same int64
}

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
	if p.Waiting != "" { // which is no measure of how fast it will go on
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

// measure notes how fast it went lately; w.mu is held.
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

// share returns the part of the bytes settled between two samples that had been here before; NaN if none were settled.
func share(from, to sample) float64 {
	return float64(to.same-from.same) / float64(to.done-from.done)
}

// since is the rate from a sample until now; was, if that is too short ago to tell.
func (w *Watcher) since(i int, now time.Time, was float64) float64 {
	first := w.past[i]
	if now.Sub(first.at) <= showEvery {
		return was
	}
	return max(0, float64(w.now.Done-first.done)/now.Sub(first.at).Seconds())
}

// OnDisk and onNet count time that a connection has spent since.
func (w *Watcher) OnDisk(since time.Time) {
	w.mu.Lock()
	w.now.DiskWait += time.Since(since)
	w.mu.Unlock()
}

func (w *Watcher) OnNet(since time.Time) {
	w.mu.Lock()
	w.heard = time.Now()
	w.asked--
	w.now.NetWait += w.heard.Sub(since)
	w.mu.Unlock()
}

// Listens notes that a connection waits for an answer from now on, until onNet.
func (w *Watcher) Listens() (since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = time.Now()
	w.asked++
	return w.heard
}

// Done is how much has been settled.
func (w *Watcher) Done() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now.Done
}

func (w *Watcher) Enter(phase string) {
	w.mu.Lock()
	w.now.Phase, w.now.Waiting = phase, ""
	w.mu.Unlock()
	select {
	case w.moved <- struct{}{}:
	default:
	}
}

// Again says why all begins anew, until something is settled.
func (w *Watcher) Again(why string) {
	w.mu.Lock()
	w.now.Phase, w.now.Waiting = PhaseCheckpoint, "one more backup window: "+why
	w.mu.Unlock()
}

// Lost says why there is no source, until found is told that there is one.
func (w *Watcher) Lost(why string) {
	w.mu.Lock()
	w.gone = why
	w.mu.Unlock()
}

func (w *Watcher) Found() { w.Lost("") }

func (w *Watcher) Cut(why string) {
	w.mu.Lock()
	w.now.Cuts++
	w.gone = why
	w.mu.Unlock()
}

func (w *Watcher) Start(total int64, files int) {
	w.mu.Lock()
	w.now.Total, w.now.Files, w.now.Done, w.now.Same, w.past = total, files, 0, 0, nil
	w.now.Windows++
	w.mu.Unlock()
	w.Enter(PhaseCopy)
}

func (w *Watcher) Wire(n int) {
	w.mu.Lock()
	w.now.Wire += int64(n)
	w.mu.Unlock()
}

// Settled notes n bytes of files that are right now, of which same were there.
func (w *Watcher) Settled(n, same int) {
	w.mu.Lock()
	w.now.Done += int64(n)
	w.now.Same += int64(same)
	w.now.Waiting, w.gone = "", ""
	w.mu.Unlock()
}
