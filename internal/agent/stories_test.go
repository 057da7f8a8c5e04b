package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// story is what two tellings of the store have made of three replicas.
type story struct {
	epoch          ag.Epoch
	dead, follower ag.ReplicaID // the other leader of the epoch, and who has followed it
}

// twoStories has one of b and c follow the other in an epoch that a leads as well, by another story of the store. The
// commits of the other leader are on these two alone. Then that leader is down, and the follower is told of a.
func (l *lab) twoStories() story {
	l.Helper()
	l.write("a")
	l.Cut("a", "b", true)
	l.Cut("a", "c", true)
	l.Record.Fork("a")
	told := func() ag.Record { return l.Record.Snapshot().Record }
	l.wait("b or c leads", 30*time.Second, func() bool {
		e := told().Epoch
		return e.Phase == ag.PhaseLead && e.Leader != "a" && len(told().State.V) == 1 && l.leads(e.Leader)
	})
	s := story{told().Epoch.Epoch, told().Epoch.Leader, told().State.V[0].ID}
	l.write(s.dead)
	l.Node("a").Crash()
	l.wait("a leads the same epoch", 30*time.Second, func() bool {
		r := l.Record.Forked().Snapshot().Record.Epoch
		return r.Epoch == s.epoch && r.Leader == "a" && r.Phase == ag.PhaseLead
	})
	l.kill(s.dead)
	l.Cut("a", s.follower, false)
	return s
}

// The follower's copy is the only one left with what the other leader acknowledged. It is not rewound to the history of
// a, and a acknowledges nothing by it. The follower says why.
func TestFollowerOfAnEpochFollowsNoOtherLeader(t *testing.T) {
	for name, restarts := range map[string]bool{"told at once": false, "told after a restart": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(l *lab) {
				s := l.twoStories()
				if restarts {
					l.kill(s.follower)
				}
				l.Record.Mislead(s.follower)
				if restarts {
					l.start(s.follower)
				}
				before := len(l.Acked())
				err := l.WriteWithin("a", 20*time.Second)
				if lost := l.Lost(s.follower); err == nil || len(lost) > 0 || len(l.Acked()) != before {
					t.Errorf("%s lacks the acknowledged commits %v, and a acknowledges another: %v, %d and %d", s.follower, lost, err, before, len(l.Acked()))
				}
				if now := l.Record.Forked().Snapshot().Record.Epoch; now.Epoch != s.epoch || now.Leader != "a" {
					t.Fatalf("the test is of one epoch: %+v", now)
				}
				if v := l.agents[s.follower].View(); !strings.Contains(v.Untrusted, "two leaders") {
					t.Errorf("%s does not say why it follows nobody: %q", s.follower, v.Untrusted)
				}
			})
		})
	}
}

// While the disk does not have who leads the epoch, a member takes no WAL of it: a crash would have it forget that.
func TestNobodyIsFollowedBeforeTheDiskHasWhoLeads(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Record.SetGroup(func(g *ag.Group) { g.Replicas[2].FailoverMode = ag.Manual })
		time.Sleep(time.Second)
		path := filepath.Join(l.dirs["c"], "seen.json")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		l.kill("a")
		l.wait("b leads", time.Minute, func() bool {
			e := l.Record.Snapshot().Record.Epoch
			return e.Leader == "b" && e.Phase == ag.PhaseLead
		})
		time.Sleep(5 * time.Second)
		if s := l.Node("c").State(); s.Source != "" {
			t.Errorf("c follows %s", s.Source)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		l.wait("c follows b", 10*time.Second, func() bool { return l.Node("c").State().Source == "b" && l.counted("c") })
		l.write("b")
	})
}
