package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// Outage is an interruption as the writers saw it.
type Outage struct {
	Longest      time.Duration // from the last acknowledgement before to the first one after, of any writer
	Start, End   time.Time     // of that
	Ended        bool          // false: no acknowledgement came after; End is when writing stopped
	PerClientP50 time.Duration // each writer's own longest interruption
	PerClientP95 time.Duration
	PerClientMax time.Duration
	Reconnects   int              // connections made beyond each writer's first
	Errors       map[string]int64 // rows that were not acknowledged, by SQLSTATE or the session's word
	TimeTo90     time.Duration    // from Start to 90 % of the rate before it; negative: not reached
}

// OutageBetween returns the longest interruption of those that overlap the time from one instant to another: those of
// one fault among several in a run. It is zero if nothing was acknowledged.
func (l *Ledger) OutageBetween(from, to time.Time) Outage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage(l.epoch.boottime(from), l.epoch.boottime(to))
}

// gap is a time without an acknowledgement.
type gap struct {
	start, end time.Duration
	ended      bool
}

func (g gap) length() time.Duration { return g.end - g.start }

// series holds the times of acknowledgements of one or all writers during one Write, in order.
type series struct {
	acks  []time.Duration
	limit time.Duration // when that Write ended
}

// longest returns the longest gap that touches [from, to].
func (s series) longest(from, to time.Duration) gap {
	var worst gap
	for i, start := range s.acks {
		g := gap{start, s.limit, false}
		if i+1 < len(s.acks) {
			g.end, g.ended = s.acks[i+1], true
		}
		if g.start <= to && g.end >= from && g.length() > worst.length() {
			worst = g
		}
	}
	return worst
}

func (l *Ledger) outage(from, to time.Duration) Outage {
	o := Outage{Errors: map[string]int64{}}
	var worst gap
	var around series
	each := map[int]time.Duration{}
	for _, seg := range l.segments {
		all := series{limit: l.limit(seg)}
		for n, a := range l.clients {
			own := series{acks: a.acks(seg.start, all.limit), limit: all.limit}
			if g := own.longest(from, to); g.length() > each[n] {
				each[n] = g.length()
			}
			all.acks = append(all.acks, own.acks...)
			o.Reconnects += a.reconnects(seg.start, all.limit, from, to)
		}
		slices.Sort(all.acks)
		if g := all.longest(from, to); g.length() > worst.length() {
			worst, around = g, all
		}
	}
	for _, a := range l.clients {
		a.errors(from, to, o.Errors)
	}
	if worst.length() == 0 {
		return o
	}
	o.Longest, o.Ended = worst.length(), worst.ended
	o.Start, o.End = l.epoch.time(worst.start), l.epoch.time(worst.end)
	o.TimeTo90 = around.recovery(worst)
	lengths := slices.Collect(maps.Values(each)) // not empty: the longest gap is within one of the writer whose acknowledgement begins it
	o.PerClientP50, o.PerClientP95, o.PerClientMax = method.Nearest(lengths, 50), method.Nearest(lengths, 95), method.Nearest(lengths, 100)
	return o
}

// limit returns when seg ended: now, if it still runs; the last known event, if its process died.
func (l *Ledger) limit(seg segment) time.Duration {
	if seg.end != 0 {
		return seg.end
	}
	if l.writing && seg == l.segments[len(l.segments)-1] {
		return boottime.Now()
	}
	last := seg.start
	for _, a := range l.clients {
		if n := len(a.entries); n > 0 {
			last = max(last, a.entries[n-1].sent, a.entries[n-1].done)
		}
	}
	return last
}

// acks returns when the writer was acknowledged within a segment. One writer's are already in order.
func (a *account) acks(start, end time.Duration) []time.Duration {
	var at []time.Duration
	for _, e := range a.entries {
		if e.verdict() == session.OK && e.done >= start && e.done <= end {
			at = append(at, e.done)
		}
	}
	return at
}

// reconnects counts the connections within a segment and within [from, to] but for the segment's first.
func (a *account) reconnects(start, end, from, to time.Duration) int {
	n, first := 0, true
	for _, at := range a.connects {
		if at < start || at > end {
			continue
		}
		if !first && at >= from && at <= to {
			n++
		}
		first = false
	}
	return n
}

func (a *account) errors(from, to time.Duration, into map[string]int64) {
	for _, e := range a.entries {
		if e.concluded && e.outcome != session.OK && e.done >= from && e.done <= to {
			into[e.state]++
		}
	}
}

// recovery returns how long after g's start a second began in which the rate was 90 % of that in the five seconds
// before g.
func (s series) recovery(g gap) time.Duration {
	const before, window = 5 * time.Second, time.Second
	since := max(s.acks[0], g.start-before)
	span := g.start - since
	if span <= 0 || !g.ended {
		return -1
	}
	rate := float64(s.between(since, g.start)) / span.Seconds()
	first, _ := slices.BinarySearch(s.acks, g.end)
	for _, t := range s.acks[first:] {
		if t+window > s.limit {
			break
		}
		if float64(s.between(t, t+window)) >= 0.9*rate*window.Seconds() {
			return t - g.start
		}
	}
	return -1
}

// between counts the acknowledgements in [from, to).
func (s series) between(from, to time.Duration) int {
	lo, _ := slices.BinarySearch(s.acks, from)
	hi, _ := slices.BinarySearch(s.acks, to)
	return hi - lo
}
