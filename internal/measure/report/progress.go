package report

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress shows a waiting person the current step and the remaining time. On a terminal it rewrites one line;
// elsewhere it writes a line for each step. Its methods may be called by several goroutines; a nil Progress prints
// nothing.
type Progress struct {
	w        io.Writer
	terminal bool

	mu      sync.Mutex
	start   time.Time
	planned time.Duration // of all steps
	done    time.Duration // planned, of those that ended
	first   time.Time     // step
	at      time.Time     // of the step that runs
	step    time.Duration // planned
	share   float64       // of the current step, done so far; 0: unknown
	idle    time.Duration // between steps: loading, making a lab
	paused  time.Time     // since when; zero: a step runs
	label   string
}

// NewProgress begins at once.
func NewProgress(w io.Writer, terminal bool) *Progress {
	return &Progress{w: w, terminal: terminal, start: time.Now()}
}

// Plan adds to the planned time.
func (p *Progress) Plan(d time.Duration) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planned += d
}

// Step begins a step that was planned with so long a time; the one before has ended.
func (p *Progress) Step(d time.Duration, format string, a ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first.IsZero() {
		p.first = time.Now()
	} else if !p.paused.IsZero() {
		p.idle += time.Since(p.paused)
	}
	p.paused = time.Time{}
	p.done += p.step
	p.share = 0
	p.step, p.at, p.label = d, time.Now(), fmt.Sprintf(format, a...)
	p.show("")
	if !p.terminal {
		_, _ = fmt.Fprintln(p.w)
	}
}

// Live shows the present measurement of the step. It is not shown without a terminal.
func (p *Progress) Live(format string, a ...any) {
	if p == nil || !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(fmt.Sprintf(format, a...))
}

// Within sets the finished share of the running step, from 0 to 1. Steps of so much work take as long as they take, and
// the first of them can take hours.
func (p *Progress) Within(share float64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.share = min(max(share, 0), 1)
}

// Loading returns the function that a load calls with its progress. It prints every tenth of a load that takes longer
// than a few seconds, with the expected time of the rest. The rows that exist at the first call were made by an earlier
// load.
func (p *Progress) Loading(what string) func(done, total int64) {
	start, from, next := time.Now(), int64(-1), 0.1
	return func(done, total int64) {
		if from < 0 {
			if from = done; 100*done >= total && done < total {
				next += float64(done) / float64(total)
				p.Say("%s: going on where an earlier load was interrupted, at %d %%", what, 100*done/total)
			}
		}
		share := float64(done) / float64(max(total, 1))
		if share < next || done >= total || done <= from || time.Since(start) < 5*time.Second {
			return
		}
		next = share + 0.1
		left := time.Duration(float64(time.Since(start)) * float64(total-done) / float64(done-from))
		p.Say("%s: %.0f %%, about %v left", what, 100*share, left.Round(time.Second))
	}
}

// Say writes a line that stays, and ends the step that runs.
func (p *Progress) Say(format string, a ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += p.step
	p.step, p.share = 0, 0
	if p.paused.IsZero() {
		p.paused = time.Now()
	}
	if p.terminal {
		_, _ = fmt.Fprint(p.w, "\r\033[K")
	}
	_, _ = fmt.Fprintf(p.w, format+"\n", a...)
}

func (p *Progress) show(live string) {
	line := fmt.Sprintf("%5.0f s %s  %s  %s", time.Since(p.start).Seconds(), p.left(), p.label, live)
	if p.terminal {
		_, _ = fmt.Fprintf(p.w, "\r\033[K%.*s", 118, line)
		return
	}
	_, _ = fmt.Fprint(p.w, line)
}

// left estimates from how the steps so far kept their plan.
func (p *Progress) left() string {
	rest := p.planned - p.done
	if rest <= 0 {
		return ""
	}
	switch did := p.done + time.Duration(p.share*float64(p.step)); {
	case p.share > 0: // the planned steps are amounts of work
		rest = time.Duration(float64(p.planned-did) * float64(time.Since(p.first)-p.idle) / float64(did))
	case p.done > 0:
		rest = time.Duration(float64(rest)*max(0.5, float64(p.at.Sub(p.first)-p.idle)/float64(p.done))) - time.Since(p.at)
	default:
		rest -= time.Since(p.at)
	}
	return fmt.Sprintf("(about %v left)", max(rest, time.Second).Round(time.Second))
}
