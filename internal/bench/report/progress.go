package report

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress tells a waiting person what goes on and how long it will still take. On a terminal it rewrites one line; elsewhere it
// writes a line for each step. Its methods may be called by several goroutines; a nil Progress says nothing.
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
	idle    time.Duration // between steps: loading, making a lab
	paused  time.Time     // since when; zero: a step runs
	label   string
}

// NewProgress begins at once.
func NewProgress(w io.Writer, terminal bool) *Progress {
	return &Progress{w: w, terminal: terminal, start: time.Now()}
}

// Plan adds to what is to come.
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
	p.step, p.at, p.label = d, time.Now(), fmt.Sprintf(format, a...)
	p.show("")
	if !p.terminal {
		_, _ = fmt.Fprintln(p.w)
	}
}

// Live shows what the step measures right now. Where there is no terminal it is not shown.
func (p *Progress) Live(format string, a ...any) {
	if p == nil || !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(fmt.Sprintf(format, a...))
}

// Say writes a line that stays, and ends the step that runs.
func (p *Progress) Say(format string, a ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += p.step
	p.step = 0
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
	if p.done > 0 {
		rest = time.Duration(float64(rest) * max(0.5, float64(p.at.Sub(p.first)-p.idle)/float64(p.done)))
	}
	rest -= time.Since(p.at)
	return fmt.Sprintf("(about %v left)", max(rest, time.Second).Round(time.Second))
}
