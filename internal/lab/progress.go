package lab

import (
	"sync"
	"time"
)

// silence is how long a lab says nothing before it says what it waits for.
const silence = 2 * time.Second

// progress tells one listener what goes on, one line at a time.
type progress struct {
	mu   sync.Mutex
	say  func(string)
	last time.Time
	now  string // what goes on, said again after a silence
}

func newProgress(say func(string)) *progress {
	if say == nil {
		say = func(string) {}
	}
	return &progress{say: say, last: time.Now()}
}

func (p *progress) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.say(s)
	p.now, p.last = s, time.Now()
}

// doing notes what goes on, for the next silence.
func (p *progress) doing(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = s
}

// keepTalking breaks every silence until the returned function is called.
func (p *progress) keepTalking() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				p.tick()
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func (p *progress) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) < silence {
		return
	}
	p.say("... " + p.now)
	p.last = time.Now()
}
