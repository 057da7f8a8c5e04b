package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

func TestStuck(t *testing.T) {
	halted := Observation{InRecovery: true, Streamed: true, Flushed: ag.Position{Timeline: 2, LSN: 300}, Replay: 200}
	with := func(change func(*Observation)) Observation {
		o := halted
		change(&o)
		return o
	}
	follows := UpstreamStatus{Source: "n1", Epoch: 3}
	for _, tc := range []struct {
		what string
		o    Observation
		up   UpstreamStatus
		want bool
	}{
		{"it reads no further and asks for nothing", halted, follows, true},
		{"a walreceiver streams: a query may hold up replay", halted, UpstreamStatus{Source: "n1", Connected: true}, false},
		{"a walreceiver waits for a source that does not answer", halted, UpstreamStatus{Source: "n1", Held: true}, false},
		{"it follows nobody", halted, UpstreamStatus{}, false},
		{"all that came is replayed", with(func(o *Observation) { o.Replay = 300 }), follows, false},
		{"it has not streamed since its start", with(func(o *Observation) { o.Streamed = false }), follows, false},
		{"replay was paused by hand, and its stream broke", with(func(o *Observation) { o.Paused = true }), follows, true},
		{"its settings are below the primary's", with(func(o *Observation) { o.Short, o.Paused = "max_connections is 100 here and 300 on the primary", true }), UpstreamStatus{Source: "n1", Connected: true}, true},
		{"a primary", with(func(o *Observation) { o.InRecovery = false }), follows, false},
	} {
		var s stuck
		var got string
		for now := time.Hour; now <= time.Hour+stuckAfter; now += time.Second {
			got = s.look(tc.o, tc.up, now)
		}
		if (got != "") != tc.want {
			t.Errorf("%s: %q", tc.what, got)
		}
	}
}

func TestStuckWaitsLonger(t *testing.T) {
	o := Observation{InRecovery: true, Streamed: true, Flushed: ag.Position{Timeline: 2, LSN: 300}, Replay: 200}
	up := UpstreamStatus{Source: "n1"}
	var s stuck
	now := time.Hour
	until := func(o Observation) time.Duration {
		began := now
		s.look(o, up, now)
		for s.look(o, up, now) == "" {
			now += time.Second
		}
		return now - began
	}
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		if got := until(o); got != want*time.Second {
			t.Errorf("start %d after %v, want %v s", i+1, got, want)
		}
		if why := s.look(o, up, now); i > 0 && !strings.Contains(why, "did not help") {
			t.Errorf("start %d because %q", i+1, why)
		}
		s.restarted()
		begins := o // as after every start: from the last checkpoint, nothing received yet
		begins.Streamed, begins.Replay, begins.Flushed.LSN = false, 100, 200
		s.look(begins, up, now)
	}
	o.Replay, o.Flushed.LSN = 250, 400 // it got on, and stops elsewhere
	if got := until(o); got != stuckAfter {
		t.Errorf("at another place after %v", got)
	}
}

// TestPausedStandbyIsStartedSoon holds that a standby which asks for no WAL because its replay is paused is started
// again after a second: after a failover a new primary may wait for it.
func TestPausedStandbyIsStartedSoon(t *testing.T) {
	var s stuck
	o := Observation{InRecovery: true, Streamed: true, Paused: true, Flushed: ag.Position{Timeline: 2, LSN: 300}, Replay: 200}
	for at, want := range []string{0: "", 1: "has its replay paused since its stream broke"} {
		if got := s.look(o, UpstreamStatus{Source: "n1"}, time.Hour+time.Duration(at)*pausedAfter); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("after %d s: %q", at, got)
		}
	}
}
