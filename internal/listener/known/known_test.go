package known

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/listener/continuity"
)

// TestPauses holds that a session whose state changes again and again is asked ever more seldom, and one that gave no
// answer, or whose state was known for long, as often as at first.
func TestPauses(t *testing.T) {
	times := Times{Tick: Tick, Pause: PauseMin, Idle: Idle}
	var k State
	now := time.Now()
	if !k.Unknown(now, Tick) || !k.Next.Equal(now.Add(Tick)) {
		t.Error("a new session is asked before it is a second old, or is known")
	}
	pause := func(answered bool) time.Duration {
		now = k.Next
		k.Over(now, times, answered)
		return k.Next.Sub(now)
	}
	for _, want := range []time.Duration{PauseMin, 2 * PauseMin, 4 * PauseMin} {
		if got := pause(true); got != want {
			t.Errorf("it is asked again after %v, want %v", got, want)
		}
	}
	for range 10 {
		pause(true)
	}
	if got := pause(true); got != pauseMax {
		t.Errorf("it is asked again after %v, want %v at last", got, pauseMax)
	}
	if got := pause(false); got != PauseMin {
		t.Errorf("without an answer it is asked again after %v", got)
	}
	now = k.Next.Add(time.Hour)
	if k.Over(now, times, true); k.Next.Sub(now) != PauseMin {
		t.Errorf("after an hour it is asked again in %v", k.Next.Sub(now))
	}
}

// TestBusySession holds that a session which sends many texts is not followed any further, where it can be asked again
// once it is idle.
func TestBusySession(t *testing.T) {
	for _, brief := range []bool{true, false} {
		var k State
		k.Unchanged.Brief = brief
		k.Asked()
		k.Learn(&continuity.State{})
		for range maxFollowed {
			k.Message('Q', []byte("select 1\x00"), true, true)
		}
		if !k.Unchanged.Holds() {
			t.Fatal("it is not known already")
		}
		k.Message('Q', []byte("select 1\x00"), true, true)
		if k.Unchanged.Holds() == brief {
			t.Errorf("a session that is followed for a while only (%v) is known: %v", brief, k.Unchanged.Holds())
		}
	}
}

// TestIdleness holds that a session is asked once it has carried nothing for a while, and not before its time.
func TestIdleness(t *testing.T) {
	var k State
	now := time.Now()
	k.Next = now.Add(-time.Hour)
	if at := k.IdleUntil(now, 10, Idle); !at.Equal(now.Add(Idle)) {
		t.Errorf("it is asked after %v", at.Sub(now))
	}
	if at := k.IdleUntil(now.Add(time.Second), 10, Idle); !at.Equal(now.Add(Idle)) {
		t.Errorf("it was idle, and is asked after %v", at.Sub(now))
	}
	if at := k.IdleUntil(now.Add(time.Second), 11, Idle); !at.Equal(now.Add(time.Second + Idle)) {
		t.Errorf("it has carried something after a second, and is asked after %v", at.Sub(now))
	}
}

// TestIdlenessForgetsRequests holds that a session may send as many requests as before once it was idle.
func TestIdlenessForgetsRequests(t *testing.T) {
	var k State
	k.Unchanged.Brief = true
	k.Asked()
	k.Learn(&continuity.State{})
	now := time.Now()
	for turn := range 3 {
		for range maxFollowed {
			k.Message('Q', []byte("select 1\x00"), true, true)
		}
		if !k.Followed() {
			t.Fatalf("it is not followed in turn %d", turn)
		}
		k.IdleUntil(now, uint64(turn), Idle)
		now = now.Add(Idle)
		k.IdleUntil(now, uint64(turn), Idle)
	}
}
