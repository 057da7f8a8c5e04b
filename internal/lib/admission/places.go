package admission

import (
	"sync"
	"time"
)

// Places are the places of callers that have proved nothing yet: a bounded number in all, and of each caller. Entering
// never waits. A newcomer that finds no place takes that of another caller, or is refused at once:
//
//   - A caller that holds as many places as one may have gives up its own oldest one, once that has lasted longer than
//     the grace.
//   - When all places are taken, the caller that holds the most gives up its oldest one. If it holds more than an equal
//     share, that happens at once, else after the grace.
type Places struct {
	most, each int
	grace      time.Duration

	mu      sync.Mutex
	live    map[*Place]struct{}
	held    map[string]int
	refused uint64
}

// Place is one place. Leave gives it back.
type Place struct {
	of    *Places
	key   string
	began time.Duration
	end   func()
}

// NewPlaces returns that many places, of which one caller may have each.
func NewPlaces(most, each int, grace time.Duration) *Places {
	return &Places{most: most, each: max(1, each), grace: grace, live: make(map[*Place]struct{}), held: make(map[string]int)}
}

// Enter takes a place, nil if there is none. end is called, with no lock held, if the place is given to another caller;
// it must not block. A place without end is never taken away. now is of a clock that does not go back.
func (p *Places) Enter(key string, now time.Duration, end func()) *Place {
	p.mu.Lock()
	victim, ok := p.room(key, now)
	if !ok {
		p.refused++
		p.mu.Unlock()
		return nil
	}
	if victim != nil {
		p.remove(victim)
	}
	n := &Place{of: p, key: key, began: now, end: end}
	p.live[n] = struct{}{}
	p.held[key]++
	p.mu.Unlock()
	if victim != nil {
		victim.end()
	}
	return n
}

// room reports whether the caller may have a place, and whose place it takes, nil for a free one; mu is held.
func (p *Places) room(key string, now time.Duration) (victim *Place, ok bool) {
	if unbounded {
		return nil, true
	}
	if p.held[key] >= p.each {
		victim = p.oldest(key)
		return victim, victim != nil && now-victim.began > p.grace
	}
	if len(p.live) < p.most {
		return nil, true
	}
	oldest, worst := make(map[string]*Place, len(p.held)), ""
	for n := range p.live {
		if o := oldest[n.key]; n.end == nil || o != nil && o.began <= n.began {
			continue
		}
		oldest[n.key] = n
	}
	for k, n := range oldest {
		if w := oldest[worst]; w == nil || p.held[k] > p.held[worst] || p.held[k] == p.held[worst] && n.began < w.began {
			worst = k
		}
	}
	if p.held[key] >= p.held[worst] {
		worst = key
	}
	if victim = oldest[worst]; victim == nil {
		return nil, false
	}
	callers := len(p.held)
	if p.held[key] == 0 {
		callers++ // the newcomer
	}
	over := p.held[worst] > 1 && p.held[worst]*callers > p.most
	return victim, worst != key && over || now-victim.began > p.grace
}

// oldest returns the caller's oldest place that can be taken away; mu is held.
func (p *Places) oldest(key string) (found *Place) {
	for n := range p.live {
		if n.key == key && n.end != nil && (found == nil || n.began < found.began) {
			found = n
		}
	}
	return found
}

func (p *Places) remove(n *Place) {
	if _, ok := p.live[n]; !ok {
		return
	}
	delete(p.live, n)
	if p.held[n.key]--; p.held[n.key] <= 0 {
		delete(p.held, n.key)
	}
}

// Leave gives the place back; a second call does nothing.
func (n *Place) Leave() {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	n.of.remove(n)
}

// Taken returns how many places are taken.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.live)
}

// Refused returns how many callers got no place.
func (p *Places) Refused() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}
