package agent_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/agent"
)

// trouble is what happens to a member: killed, cut off from all others, or paused, so that its walreceiver hangs.
type trouble struct {
	kind string
	who  ag.ReplicaID
}

func (x trouble) String() string { return x.kind + " " + string(x.who) }

// forecastLab is a group under some troubles.
type forecastLab struct {
	*lab
	group ag.Group
	down  map[ag.ReplicaID]bool // killed or cut off
}

// strike lets a trouble happen. A quorum member's store answers as long as its member is on the side of a majority.
func (l *forecastLab) strike(x trouble) {
	switch x.kind {
	case "kill":
		l.down[x.who] = true
		l.kill(x.who)
	case "cut":
		l.down[x.who] = true
		l.Isolate(x.who, true)
	case "pause":
		l.Node(x.who).Silence(true)
	}
	up := 0
	for _, id := range l.ids {
		if !l.down[id] {
			up++
		}
	}
	for _, id := range l.ids {
		if !l.down[id] && up <= len(l.ids)/2 {
			l.Node(id).Store.Cut(true)
		}
	}
}

// writes reports whether a client's commit is acknowledged within a budget.
func (l *forecastLab) writes(budget time.Duration) bool {
	for end := time.Now().Add(budget); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, id := range l.ids {
			if !l.down[id] && l.ends[id] != nil && l.leads(id) && l.WriteWithin(id, 2*time.Second) == nil {
				return true
			}
		}
	}
	return false
}

// TestWordIsKept holds the judgement of a group to its word. Members are killed, cut off and paused, one or two of
// them. Every member that is left is asked, all must say the same, and then each failure is brought about: one that was
// called survivable must be survived, and one that was not must not be.
func TestWordIsKept(t *testing.T) {
	witness := group("a", "b", "w")
	witness.Replicas[2].AvailabilityMode, witness.Replicas[2].FailoverMode = ag.ConfigurationOnly, ag.Manual
	long := os.Getenv("COTERIE_LONG") != ""
	turn := 0
	for name, g := range map[string]ag.Group{"2 and a witness": witness, "3": group("a", "b", "c"), "5": group("a", "b", "c", "d", "e")} {
		for i := range g.Replicas {
			g.Replicas[i].EtcdID = uint64(i + 1)
		}
		for _, before := range combinations(g) {
			for _, next := range g.Replicas {
				if slices.ContainsFunc(before, func(x trouble) bool { return x.who == next.ID && x.kind != "pause" }) {
					continue
				}
				if turn++; !long && len(g.Replicas) > 3 && turn%19 != 0 || !long && len(before) > 1 && turn%3 != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s: %v, then kill %s", name, before, next.ID), func(t *testing.T) { holdToItsWord(t, g, before, next.ID) })
			}
		}
	}
}

// combinations returns no trouble, and every combination of troubles of one or two members.
func combinations(g ag.Group) [][]trouble {
	var one []trouble
	for i, r := range g.Replicas {
		one = append(one, trouble{"kill", r.ID}, trouble{"cut", r.ID})
		if i > 0 && r.HasData() {
			one = append(one, trouble{"pause", r.ID})
		}
	}
	out := [][]trouble{nil}
	for i, x := range one {
		out = append(out, []trouble{x})
		for _, y := range one[i+1:] {
			if y.who != x.who {
				out = append(out, []trouble{x, y})
			}
		}
	}
	return out
}

func holdToItsWord(t *testing.T, g ag.Group, before []trouble, next ag.ReplicaID) {
	inBubbleOf(t, g, func(l0 *lab) {
		l := &forecastLab{lab: l0, group: g, down: map[ag.ReplicaID]bool{}}
		for _, id := range l.ids {
			r, _ := g.Replica(id)
			l.wrap = func(c *agent.Config) {
				if !r.HasData() {
					c.Instance, c.Keeper, c.Upstream, c.Downstream, c.Seeder, c.Probes, c.Suspend = nil, nil, nil, nil, nil, nil, nil
				}
			}
			l.start(id)
		}
		data := slices.DeleteFunc(slices.Clone(g.Replicas), func(r ag.Replica) bool { return !r.HasData() })
		l.wait("all are synchronized", time.Minute, func() bool {
			s := l.Record.Snapshot().Record.State
			return l.leads("a") && len(s.V) == len(data)-1 && s.K >= 1
		})
		time.Sleep(10 * time.Second)
		for _, x := range before {
			l.strike(x)
			time.Sleep(30 * time.Second) // until the group has come to rest, and all have heard of it
		}
		said := l.ask(next)
		if said.Outcome == "" {
			return // nobody is left who could say anything of it
		}
		l.strike(trouble{"kill", next})
		time.Sleep(30 * time.Second)
		writes := l.writes(20 * time.Second)
		if want := said.Outcome == availability.Survived; writes != want {
			t.Errorf("after %v they said of the death of %s: %+v; then the group takes writes: %v; record %+v", before, next, said, writes, l.Record.Snapshot().Record.State)
		}
	})
}

// ask returns what the members that are left say of a member's death, which must be the same.
func (l *forecastLab) ask(next ag.ReplicaID) (said availability.Failure) {
	now := l.writes(10 * time.Second)
	for _, id := range l.ids {
		if l.down[id] || l.ends[id] == nil {
			continue
		}
		r := availability.Assess(l.agents[id].Known())
		if takes := r.Writable && !r.Blocked; takes != now {
			l.Errorf("%s says that commits are acknowledged: %v (%s), and they are: %v", id, takes, r.Because, now)
		}
		if (r.Level == availability.Healthy) != (len(r.Problems) == 0) || !now && r.Level != availability.Down {
			l.Errorf("%s is %s with the problems %+v", id, r.Level, r.Problems)
		}
		i := slices.IndexFunc(r.Failures, func(f availability.Failure) bool { return f.Member == next })
		f := r.Failures[i]
		if said.Outcome != "" && f.Outcome != said.Outcome {
			l.Errorf("%s says %+v, another one %+v", id, f, said)
		}
		if f.Outcome != availability.Survived && f.Because == "" || strings.Contains(f.Because, "%!") {
			l.Errorf("%s gives no reason: %+v", id, f)
		}
		said = f
	}
	return said
}
