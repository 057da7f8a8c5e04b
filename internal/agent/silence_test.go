package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// listen lets the voters hear the primary long enough to know its rhythm.
func (l *lab) listen() { time.Sleep(10 * time.Second) }

// A node that is gone without a sign on the network is replaced once its silence is unusual, and no answer of it can be
// on its way.
func TestSilentPrimaryIsReplacedByVotes(t *testing.T) {
	for name, most := range map[string]time.Duration{"default": 2200 * time.Millisecond, "fast": 1100 * time.Millisecond, "wan": 7 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.Record.SetGroup(func(g *ag.Group) { g.Profile = name })
				l.listen()
				l.write("a")
				at, was := boottime.Now(), l.epoch()
				l.Isolate("a", true)
				l.wait("the epoch is claimed", most, func() bool { return l.epoch() > was })
				if g := l.agents["a"].Gate(); g > boottime.Now() {
					t.Errorf("the old primary answers until %v", g)
				}
				next := l.leader(5*time.Second, "a")
				if took := boottime.Now() - at; took > most {
					t.Errorf("%s took %v", next, took)
				}
				e := l.Record.Snapshot().Record.Epoch
				if e.Unheard.Silent == "" || !strings.Contains(e.Reason, "hear no more of a") {
					t.Errorf("the record does not say why: %+v", e)
				}
				l.write(next)
				l.Isolate("a", false)
				l.formed(next, time.Minute)
			})
		})
	}
}

// Pauses of the primary that are no longer than the floor, and a link that is away for a second, depose nobody.
func TestPausesDeposeNobody(t *testing.T) {
	for name, pause := range map[string]func(l *lab, on bool){
		"of the primary": func(l *lab, on bool) { l.Isolate("a", on) },
		"of its links":   func(l *lab, on bool) { l.Cut("a", "b", on); l.Cut("a", "c", on) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.listen()
				was := l.epoch()
				for i := range 60 {
					pause(l, true)
					time.Sleep(time.Duration(i%15+1) * 100 * time.Millisecond)
					pause(l, false)
					time.Sleep(time.Duration(i%7+5) * time.Second)
				}
				if r := l.Record.Snapshot().Record; r.Epoch.Epoch != was {
					t.Fatalf("deposed: %s", r.Epoch.Reason)
				}
				l.write("a")
			})
		})
	}
}

// A primary that one voter does not hear, or that renews although nobody hears it, is not deposed.
func TestSilenceToSomeChangesNothing(t *testing.T) {
	for name, cut := range map[string][]ag.ReplicaID{"to one voter": {"b"}, "to both, but not to the store": {"b", "c"}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.listen()
				was := l.epoch()
				for _, id := range cut {
					l.Cut("a", id, true)
				}
				time.Sleep(20 * time.Second)
				if r := l.Record.Snapshot().Record; r.Epoch.Epoch != was || len(r.Votes) > 0 {
					t.Fatalf("%+v", r)
				}
				for _, id := range cut {
					l.Cut("a", id, false)
				}
				l.formed("a", time.Minute)
				l.write("a")
			})
		})
	}
}

func TestSilenceIsNoEvidence(t *testing.T) {
	for name, set := range map[string]func(*ag.Group){
		"strict":        func(g *ag.Group) { g.Options.FailureDetection = ag.DetectStrict },
		"external":      func(g *ag.Group) { g.External = 3 },
		"too long":      func(g *ag.Group) { g.Options.FailureDetection, g.Options.SilenceFloor = ag.DetectAdaptive, time.Minute },
		"a later value": func(g *ag.Group) { g.Options.FailureDetection = "LATER" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				l.Record.SetGroup(set)
				l.listen()
				at := boottime.Now()
				l.Isolate("a", true)
				l.leader(20*time.Second, "a")
				if took := boottime.Now() - at; took < ag.Profiles["default"].Lease {
					t.Errorf("replaced after %v, within the lease", took)
				}
			})
		})
	}
}

// A primary that was deposed for its silence and lives makes everybody wait longer, and says so.
func TestFalseSuspicionRaisesTheFloor(t *testing.T) {
	inBubble(t, func(l *lab) {
		fail := func(from ag.ReplicaID) (took time.Duration) {
			at := boottime.Now()
			l.Isolate(from, true)
			l.wait("the epoch is claimed", 6*time.Second, func() bool { return l.Record.Snapshot().Record.Epoch.Leader != from })
			took = boottime.Now() - at
			l.Isolate(from, false)
			l.formed(l.leader(10*time.Second, from), time.Minute)
			return took
		}
		l.listen()
		first := fail("a")
		next := l.Record.Snapshot().Record.Epoch.Leader
		l.listen()
		for _, id := range []ag.ReplicaID{"b", "c"} { // a does not know for how long it was away
			if v := l.agents[id].View(); id != next && !strings.Contains(v.Voting.Heard, "was alive") {
				t.Errorf("%s does not say why it waits longer: %q", id, v.Voting.Heard)
			}
		}
		if second := fail(next); second < first+1400*time.Millisecond {
			t.Errorf("the second false suspicion came after %v, the first after %v", second, first)
		}
		time.Sleep(15 * time.Minute)
		if third := fail(l.Record.Snapshot().Record.Epoch.Leader); third > first+500*time.Millisecond {
			t.Errorf("after a quarter of an hour it takes %v, at first %v", third, first)
		}
	})
}

// A primary that comes back after its lease would have ended was as good as dead: nobody waits longer for the next one.
func TestLateReturnIsNoFalseSuspicion(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.listen()
		l.Isolate("a", true)
		next := l.leader(5*time.Second, "a")
		time.Sleep(10 * time.Second)
		l.Isolate("a", false)
		l.formed(next, time.Minute)
		l.listen()
		for _, id := range []ag.ReplicaID{"a", "b", "c"} {
			if v := l.agents[id].View(); strings.Contains(v.Voting.Heard, "was alive") {
				t.Errorf("%s waits longer: %q", id, v.Voting.Heard)
			}
		}
	})
}
