package agent_test

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// profile changes the profile of a group in which only the end of a lease begins a takeover.
func (l *lab) profile(name string) {
	l.Record.SetGroup(func(g *ag.Group) { g.Profile, g.Options.FailureDetection = name, ag.DetectStrict })
}

// The profile is changed while the group runs: the takeover waits for what the old primary declared, and no answer of
// it leaves afterwards.
func TestChangeOfTheLeaseProfile(t *testing.T) {
	silence := func(l *lab) time.Duration {
		at := boottime.Now()
		l.Isolate("a", true)
		next := l.leader(time.Minute, "a")
		took := boottime.Now() - at
		if left := l.agents["a"].Gate() - boottime.Now(); left > 0 {
			t.Errorf("%s leads and the gate of the silent primary is open for %v more", next, left)
		}
		l.write(next)
		l.Isolate("a", false)
		l.formed(next, time.Minute)
		return took
	}
	t.Run("shorter", func(t *testing.T) {
		inBubble(t, func(l *lab) {
			l.profile("fast")
			time.Sleep(10 * time.Second)
			if took := silence(l); took < 2500*time.Millisecond || took > 4*time.Second {
				t.Errorf("took %v at fast", took)
			}
		})
	})
	t.Run("longer", func(t *testing.T) {
		inBubble(t, func(l *lab) {
			l.profile("wan")
			time.Sleep(10 * time.Second)
			if took := silence(l); took < 15*time.Second || took > 19*time.Second {
				t.Errorf("took %v at wan", took)
			}
		})
	})
	t.Run("shorter just before the silence", func(t *testing.T) {
		inBubble(t, func(l *lab) {
			l.profile("wan")
			time.Sleep(10 * time.Second)
			l.profile("fast")
			time.Sleep(1500 * time.Millisecond) // renewed, by the new profile, while a lease of 15 s is under way
			if took := silence(l); took < 12*time.Second || took > 19*time.Second {
				t.Errorf("took %v", took)
			}
		})
	})
}
