package observe

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// quiet is how long a screen that is not a terminal prints nothing before it prints the current step.
const quiet = 2 * time.Second

// Screen prints lines, and below them on a terminal one line that changes. It is never silent for three seconds. Its
// methods are safe for concurrent use.
type Screen struct {
	out    io.Writer
	live   bool
	paint  func(line string) string // how a line is shown; nil: as it is
	ending chan struct{}
	done   chan struct{}

	mu      sync.Mutex // guards the fields below, and paint
	doing   func() string
	drawn   bool
	spoken  time.Time
	started time.Time // start of the load, from which At counts
}

// NewScreen returns a screen on out; live is true for a terminal. Close ends it.
func NewScreen(out io.Writer, live bool) *Screen {
	s := &Screen{out: out, live: live, ending: make(chan struct{}), done: make(chan struct{}), spoken: time.Now(), started: time.Now()}
	go s.beat()
	return s
}

// NewScreenless returns a screen that shows nothing. It needs no Close.
func NewScreenless() *Screen { return &Screen{out: io.Discard, started: time.Now()} }

// Close ends the changing line.
func (s *Screen) Close() {
	close(s.ending)
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
}

func (s *Screen) beat() {
	defer close(s.done)
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-s.ending:
			return
		case <-t.C:
			s.refresh(time.Now())
		}
	}
}

func (s *Screen) refresh(now time.Time) {
	s.mu.Lock()
	doing, due := s.doing, s.live || now.Sub(s.spoken) >= quiet
	s.mu.Unlock()
	if doing == nil || !due {
		return
	}
	line := "      " + doing() // without the lock: it may look at the clock of this screen
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doing == nil {
		return
	}
	if s.live {
		_, _ = fmt.Fprint(s.out, "\r\x1b[K"+clip(line, width))
		s.drawn = true
		return
	}
	_, _ = fmt.Fprintln(s.out, line)
	s.spoken = now
}

// width keeps the changing line on one row of most terminals: one that wraps cannot be redrawn.
const width = 118

func clip(s string, n int) string {
	r := []rune(s)
	return string(r[:min(len(r), n)])
}

func (s *Screen) erase() {
	if s.drawn {
		_, _ = fmt.Fprint(s.out, "\r\x1b[K")
		s.drawn = false
	}
}

func (s *Screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	if s.paint != nil {
		text = s.paint(text)
	}
	_, _ = fmt.Fprintln(s.out, text)
	s.spoken = time.Now()
}

// Paint sets how every line but the changing one is shown, as in colours.
func (s *Screen) Paint(f func(line string) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paint = f
}

// Line prints a line at the margin. It begins a section of the output.
func (s *Screen) Line(format string, a ...any) { s.line(fmt.Sprintf(format, a...)) }

// Say prints an indented line, below one of Line.
func (s *Screen) Say(format string, a ...any) { s.line("      " + fmt.Sprintf(format, a...)) }

// At prints what happened at t, counted from the start of the load.
func (s *Screen) At(t time.Time, format string, a ...any) {
	s.mu.Lock()
	since := t.Sub(s.started)
	s.mu.Unlock()
	s.line("      " + Clock(since) + " " + fmt.Sprintf(format, a...))
}

// Begin makes now the time that At counts from.
func (s *Screen) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = time.Now()
}

// Since returns how long the load has run.
func (s *Screen) Since() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.started)
}

// Doing sets the text that is shown while no other line is printed. f must return at once.
func (s *Screen) Doing(f func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doing = f
	if f == nil {
		s.erase()
	}
}

// Busy is Doing with a text and the time since the call.
func (s *Screen) Busy(format string, a ...any) {
	text, since := fmt.Sprintf(format, a...), time.Now()
	s.Doing(func() string { return fmt.Sprintf("%s … %.0f s", text, time.Since(since).Seconds()) })
}

// Clock formats a duration as mm:ss.mmm.
func Clock(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	ms := d.Milliseconds()
	return fmt.Sprintf("%s%02d:%02d.%03d", sign, ms/60_000, ms/1000%60, ms%1000)
}

// Thousands formats a count with separators.
func Thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Millis formats the duration of an outage for people: 870 ms, 6.52 s.
func Millis(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
