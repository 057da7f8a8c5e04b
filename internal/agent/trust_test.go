package agent_test

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// A store that was put back to an earlier record is not trusted by a member that has seen a later one. The primary
// serves no longer than its lease, and no member is promoted, not even after a restart.
func TestStoreThatGoesBackInTime(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		old := l.Record.Snapshot().Record
		l.Isolate("a", true)
		next := l.leader(15*time.Second, "a")
		l.Isolate("a", false)
		l.formed(next, time.Minute)
		l.write(next)
		time.Sleep(time.Second)
		l.Record.Restore(old)
		l.wait("nobody leads", 15*time.Second, func() bool {
			for _, id := range l.ids {
				if l.agents[id].Gate() > boottime.Now() && l.Node(id).State().Armed != 0 {
					return false
				}
			}
			return true
		})
		for _, id := range l.ids {
			l.stop(id)
			l.start(id)
		}
		time.Sleep(30 * time.Second)
		for _, id := range l.ids {
			if s := l.Node(id).State(); s.Running && !s.Recovery {
				t.Errorf("%s was promoted upon a store that has gone back in time", id)
			}
			if p := l.agents[id].Plan(); p == nil || p.Rule != ag.RuleAwaitQuorum {
				t.Errorf("%s: %+v", id, p)
			}
			if r := availability.Assess(l.agents[id].Known()); r.Untrusted == "" || r.Because != r.Untrusted || r.Writable {
				t.Errorf("%s does not say why nobody leads: %+v", id, r)
			}
		}
		if now := l.Record.Snapshot().Record; now.Epoch.Epoch != old.Epoch.Epoch {
			t.Errorf("epoch %d was begun", now.Epoch.Epoch)
		}
		l.Record.Restore(l.Record.Past()[len(l.Record.Past())-1]) // as it was
		l.write(l.leader(30 * time.Second))
	})
}

// A member that was away does not know that the record has advanced. If the store has gone back to the record that this
// member knows, and counts on its copy alone, the other members tell it: it is not promoted over commits that it lacks.
func TestStoreThatGoesBackBehindAMembersBack(t *testing.T) {
	inBubble(t, func(l *lab) {
		counted := func(id ag.ReplicaID) func() bool {
			return func() bool {
				st := l.Record.Snapshot().Record.State
				_, in := st.InV(id)
				return in && st.K == 1 && len(st.V) == 1
			}
		}
		l.Isolate("b", true)
		l.wait("only c is counted", time.Minute, counted("c"))
		old := l.Record.Snapshot().Record
		l.Isolate("c", true)
		l.Isolate("b", false)
		l.wait("only b is counted", time.Minute, counted("b"))
		l.write("a")
		l.stop("a")
		l.Record.Restore(old)
		l.Isolate("c", false)
		time.Sleep(time.Minute)
		if s := l.Node("c").State(); s.Running && !s.Recovery {
			t.Error("c was promoted, and lacks what b and the store's earlier self know of")
		}
		if p := l.agents["c"].Plan(); p == nil || p.Rule != ag.RuleAwaitQuorum {
			t.Errorf("%+v", p)
		}
	})
}

// Nothing is decided by a record that no replica has written. The primary goes on while its lease is renewed; when it
// dies nobody takes over, and the members say why, until the record is what it was.
func TestForgedRecordDecidesNothing(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Record.Forge(true)
		time.Sleep(20 * time.Second)
		l.write("a")
		was := l.epoch()
		l.stop("a")
		time.Sleep(30 * time.Second)
		for _, id := range []ag.ReplicaID{"b", "c"} {
			if p := l.agents[id].Plan(); p == nil || p.Rule != ag.RuleAwaitQuorum {
				t.Errorf("%s: %+v", id, p)
			}
			if s := l.Node(id).State(); s.Running && !s.Recovery {
				t.Errorf("%s was promoted", id)
			}
			if r := availability.Assess(l.agents[id].Known()); r.Untrusted == "" || r.Because != r.Untrusted || r.Writable {
				t.Errorf("%s does not say why nobody leads: %+v", id, r)
			}
		}
		if l.epoch() != was {
			t.Errorf("epoch %d was begun", l.epoch())
		}
		l.Record.Forge(false)
		l.write(l.leader(30*time.Second, "a"))
	})
}

func TestSeenMark(t *testing.T) {
	m := marks.Open(t.TempDir())
	if err := m.SetSeen(marks.Seen{Epoch: 3, Seq: 9}); err != nil {
		t.Fatal(err)
	}
	if s, err := m.Seen(); err != nil || s != (marks.Seen{Epoch: 3, Seq: 9}) {
		t.Errorf("%+v %v", s, err)
	}
}
