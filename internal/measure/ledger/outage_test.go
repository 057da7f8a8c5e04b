package ledger

import (
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

// steady lets a client be acknowledged every 10 ms from one time to another.
func steady(t *testing.T, l *Ledger, client int, from, to time.Duration, s server) {
	t.Helper()
	for at := from; at < to; at += 10 * ms {
		put(t, l, client, at-ms, at, opOK, s)
	}
}

func mark(t *testing.T, l *Ledger, records ...record) {
	t.Helper()
	for _, r := range records {
		if err := l.note(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOutage(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir())
	if o := l.Outage(); o.Longest != 0 || o.Ended {
		t.Errorf("nothing written: %+v", o)
	}
	base := l.epoch.boot
	old, now := server{1, 1}, server{2, 2}
	mark(t, l, record{op: opBegin, at: base},
		record{op: opConnect, at: base + ms, client: 0, host: "a"}, record{op: opConnect, at: base + ms, client: 1, host: "b"})
	// The server dies at 2 s: client 1 is heard last, at 1.998 s, and client 0 first, at 3 s. It is slow for a second
	// more.
	steady(t, l, 0, base+10*ms, base+2000*ms, old)
	steady(t, l, 1, base+18*ms, base+2000*ms, old)
	put(t, l, 1, base+2000*ms, base+2100*ms, opUnknown, server{})
	mark(t, l, record{op: opConnect, at: base + 2990*ms, client: 0, host: "b"}, record{op: opConnect, at: base + 2995*ms, client: 1, host: "b"})
	put(t, l, 0, base+2999*ms, base+3000*ms, opOK, now)
	put(t, l, 1, base+3400*ms, base+3498*ms, opOK, now)
	steady(t, l, 0, base+4000*ms, base+6000*ms, now)
	steady(t, l, 1, base+4000*ms, base+6000*ms, now)
	mark(t, l, record{op: opEnd, at: base + 6000*ms})
	// No writer runs for an hour, which is not an outage. A short outage follows.
	later := base + time.Hour
	mark(t, l, record{op: opBegin, at: later})
	steady(t, l, 0, later, later+1000*ms, now)
	steady(t, l, 0, later+1200*ms, later+3000*ms, now)
	mark(t, l, record{op: opEnd, at: later + 3000*ms})

	o := l.Outage()
	if o.Longest != 1002*ms || !o.Ended || o.End.Sub(o.Start) != o.Longest || !o.Start.Equal(l.epoch.time(base+1998*ms)) {
		t.Errorf("outage of %v from %v to %v, ended %t", o.Longest, o.Start, o.End, o.Ended)
	}
	// Client 0 was silent from 1.99 s to 3 s, client 1 from 1.998 s to 3.498 s.
	if o.PerClientP50 != 1010*ms || o.PerClientP95 != 1500*ms || o.PerClientMax != 1500*ms {
		t.Errorf("per client p50 %v, p95 %v, max %v", o.PerClientP50, o.PerClientP95, o.PerClientMax)
	}
	if o.Reconnects != 2 || o.Errors["eof"] != 1 {
		t.Errorf("%d reconnects, errors %v", o.Reconnects, o.Errors)
	}
	if o.TimeTo90 != 4000*ms-1998*ms {
		t.Errorf("90 %% after %v", o.TimeTo90)
	}

	second := l.OutageBetween(l.epoch.time(later+500*ms), l.epoch.time(later+1500*ms))
	if second.Longest != 210*ms || second.Reconnects != 0 || len(second.Errors) != 0 || second.TimeTo90 != 210*ms {
		t.Errorf("second outage: %+v", second)
	}
}

func TestOutageThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir())
	base := l.epoch.boot
	mark(t, l, record{op: opBegin, at: base})
	steady(t, l, 0, base+10*ms, base+1000*ms, server{1, 1})
	mark(t, l, record{op: opEnd, at: base + 9000*ms})
	if o := l.Outage(); o.Ended || o.Longest != 8010*ms || o.TimeTo90 >= 0 {
		t.Errorf("%+v", o)
	}
}

func TestTwoServers(t *testing.T) {
	t.Parallel()
	type ack struct {
		client     int
		sent, done time.Duration
		s          server
	}
	old, now, back := server{1, 100}, server{2, 200}, server{3, 300}
	twin := server{1, 150} // the same timeline on another machine
	for _, c := range []struct {
		name string
		acks []ack
		want bool
	}{
		{"one", []ack{{0, 1, 2, old}, {1, 1, 3, old}}, false},
		{"failover", []ack{{0, 1, 2, old}, {0, 3, 9, now}, {1, 1, 2, old}}, false},
		{"an answer that was long on its way", []ack{{0, 1, 20, old}, {1, 5, 9, now}}, false},
		{"there and back", []ack{{0, 1, 2, old}, {0, 3, 4, now}, {0, 5, 6, back}}, false},
		{"the old one answers on", []ack{{0, 1, 2, old}, {1, 3, 4, now}, {0, 5, 6, old}}, true},
		{"the old one answers late only", []ack{{1, 3, 4, now}, {0, 5, 6, old}}, true},
		{"taking turns on one timeline", []ack{{0, 1, 2, old}, {1, 3, 4, twin}, {0, 5, 6, old}}, true},
		{"restarted", []ack{{0, 1, 2, old}, {1, 3, 4, twin}, {0, 5, 6, twin}}, false},
		{"not recorded", []ack{{0, 1, 2, server{}}, {1, 3, 4, now}, {0, 5, 6, server{}}}, false},
	} {
		l := open(t, t.TempDir())
		for _, a := range c.acks {
			put(t, l, a.client, a.sent, a.done, opOK, a.s)
		}
		if got := twoServers(l.clients); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}

// Outage returns the longest interruption of all that was written. It is zero if nothing was acknowledged.
func (l *Ledger) Outage() Outage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage(0, math.MaxInt64)
}
