package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lab"
)

// The bounds to which the word of a group is held: until commits are acknowledged again after a failure that it said
// to survive, until none is after one that it said not to survive, and for how long none is then. The default profile
// takes a silent primary's place after 6.5 s.
const (
	survivedWithin = time.Minute
	stoppedWithin  = 30 * time.Second
	stoppedFor     = 10 * time.Second
)

// mishap is one way in which a member fails.
type mishap struct {
	name string
	do   func(*foretold, *testing.T, string)
}

// mishaps lists them. The heal ends each.
var mishaps = []mishap{
	{"SIGKILL", func(f *foretold, t *testing.T, node string) {
		if err := f.Kill(node, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}},
	{"SIGSTOP", func(f *foretold, t *testing.T, node string) {
		if err := f.Pause(node, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
	}},
	{"cut", func(f *foretold, t *testing.T, node string) {
		if _, err := f.Cut(t.Context(), node, lab.AllNodes, false, false); err != nil {
			t.Fatal(err)
		}
	}},
}

// foretold is a group that is held to what its nodes say of the next failure.
type foretold struct {
	*chaos
	counts map[availability.Outcome]int
}

// TestEndToEndForecast asks every node which failures the group survives now, has them happen one after the other until
// one is not survived, and holds the group to what its nodes said each time: commits are acknowledged again within a
// bound or they are not, and no acknowledged row is lost.
func TestEndToEndForecast(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: networks of their own need root")
	}
	for _, o := range []lab.Options{{Replicas: 2}, {Replicas: 2, Witness: true}, {Replicas: 3}, {Replicas: 5}} {
		name := fmt.Sprintf("%d replicas", o.Replicas)
		if o.Witness {
			name += " and a witness"
		}
		o.Net = lab.NetNamespaces
		t.Run(name, func(t *testing.T) {
			f := &foretold{chaos: &chaos{group: newGroup(t, o)}, counts: map[availability.Outcome]int{}}
			for i, m := range f.mishaps() {
				for turn := range min(3, len(f.Nodes())) {
					if !t.Run(fmt.Sprintf("%s %d", m.name, turn+1), func(t *testing.T) { f.round(t, i, turn) }) {
						return
					}
				}
			}
			if o.Replicas > 2 {
				t.Run("commits that wait for all", f.waitForAll)
			}
			t.Logf("held to its word: %v", f.counts)
			if f.counts[availability.Survived] == 0 {
				t.Error("no failure was said to be survived, so nothing was tested")
			}
			f.down(t)
		})
	}
}

// mishaps are those that the group can suffer. A cut between two nodes is none: it isolates neither more than the
// other, and the one with the vote goes on.
func (f *foretold) mishaps() []mishap {
	if len(f.Nodes()) == 2 {
		return mishaps[:2]
	}
	return mishaps
}

// waitForAll has each commit wait for every secondary: then none may fail, and the failure of any blocks commits.
func (f *foretold) waitForAll(t *testing.T) {
	s := f.whole(t)
	f.says(t, *s.Primary, fmt.Sprintf("ALTER AVAILABILITY GROUP [lab] SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = %d)", len(s.Replicas)-1))
	before := f.counts[availability.Blocked]
	for turn := range 2 {
		f.round(t, turn, turn)
	}
	if f.counts[availability.Blocked] == before {
		t.Error("no failure was said to block commits")
	}
	f.says(t, *f.whole(t).Primary, "ALTER AVAILABILITY GROUP [lab] SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 1)")
}

// round has the member of a turn fail, then others while the nodes that are left say that this is survived, and at last
// one whose failure is not. Then it heals the group.
func (f *foretold) round(t *testing.T, first, turn int) {
	s := f.whole(t)
	left := append([]string{*s.Primary}, secondaries(s)...)
	for _, w := range s.Witnesses {
		left = append(left, w.Name)
	}
	left = append(left[turn:], left[:turn]...) // the member of the turn comes first
	var gone []string
	for i := first; len(left) > 1; i++ {
		m, victim := f.mishaps()[i%len(f.mishaps())], left[0]
		survived := f.fails(t, m, victim, gone)
		gone, left = append(gone, victim), left[1:]
		if !survived {
			break
		}
		word := f.word(t, left)
		slices.SortStableFunc(left, func(a, b string) int { return rank(word[a]) - rank(word[b]) })
	}
	f.heal(t)
	f.judgeAndGoOn(t)
}

// rank orders the members that may fail next: those whose failure is survived come first.
func rank(x availability.Failure) int {
	if x.Outcome == availability.Survived {
		return 0
	}
	return 1
}

// word returns what the nodes say of the failure of each member. They must come to say the same.
func (f *foretold) word(t *testing.T, nodes []string) map[string]availability.Failure {
	t.Helper()
	var last string
	var same int
	for end := time.Now().Add(survivedWithin); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		said := map[string]map[string]availability.Failure{}
		for _, n := range nodes {
			if st, err := f.status(t, n); err == nil {
				said[n] = byMember(st)
			}
		}
		text := fmt.Sprint(said[nodes[0]])
		agreed := len(said) == len(nodes)
		for _, w := range said {
			agreed = agreed && outcomes(w) == outcomes(said[nodes[0]])
		}
		if now := outcomes(said[nodes[0]]); agreed && now == last {
			if same++; same == 4 { // it stands
				return said[nodes[0]]
			}
		} else {
			same, last = 0, outcomes(said[nodes[0]])
		}
		if time.Until(end) < time.Second {
			t.Logf("%s says %s", nodes[0], text)
			for n, w := range said {
				t.Logf("%s: %s", n, outcomes(w))
			}
		}
	}
	t.Fatalf("%v do not agree within %v on which failures the group survives", nodes, survivedWithin)
	return nil
}

func byMember(st api.Status) map[string]availability.Failure {
	out := map[string]availability.Failure{}
	for _, x := range st.Availability.Failures {
		out[string(x.Member)] = x
	}
	return out
}

// outcomes are the outcomes alone, in the order of the names.
func outcomes(w map[string]availability.Failure) string {
	var all []string
	for n, x := range w {
		all = append(all, n+" "+string(x.Outcome))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// fails has a member fail after others have, and holds the group to what the nodes that are left said before. It
// reports whether they said that it is survived.
func (f *foretold) fails(t *testing.T, m mishap, victim string, gone []string) (survived bool) {
	t.Helper()
	var left []string
	for _, n := range f.Nodes() {
		if !slices.Contains(gone, n.Name) {
			left = append(left, n.Name)
		}
	}
	word := f.word(t, left)[victim]
	left = slices.DeleteFunc(left, func(n string) bool { return n == victim })
	t.Logf("%s of %s, after %v: %s said (primary %s; %s)", m.name, victim, gone, word.Outcome, word.Primary, word.Because)
	f.counts[word.Outcome]++
	since := time.Now()
	before := f.ledger.Progress().Acknowledged
	m.do(f, t, victim)
	if word.Outcome == availability.Survived {
		f.survives(t, left, before)
		t.Logf("survived; writes stood still for %v", f.ledger.OutageBetween(since, time.Now()).Longest.Round(time.Millisecond))
	} else {
		f.stops(t, left, word.Outcome)
	}
	if m.name == "cut" { // it runs, and must not say that it leads or could
		f.awaitFor(t, stoppedWithin, victim+", which is cut off, says that it takes no writes", func(lab.Status) bool {
			st, err := f.status(t, victim)
			yes, _ := st.Availability.Survives()
			return err == nil && !st.Availability.Writable && len(yes) == 0
		})
	}
	return word.Outcome == availability.Survived
}

// survives waits until commits are acknowledged again, and every node that is left says so.
func (f *foretold) survives(t *testing.T, left []string, before int64) {
	t.Helper()
	time.Sleep(100 * time.Millisecond) // answers that were under way
	before = max(before, f.ledger.Progress().Acknowledged)
	f.awaitFor(t, survivedWithin, "commits are acknowledged again", func(lab.Status) bool { return f.ledger.Progress().Acknowledged > before+50 })
	f.awaitFor(t, survivedWithin, "every node that is left says that the group takes writes", func(lab.Status) bool {
		return !slices.ContainsFunc(left, func(n string) bool {
			st, err := f.status(t, n)
			return err != nil || !st.Availability.Writable || st.Availability.Blocked
		})
	})
}

// stops waits until no commit is acknowledged any more, for a while, and every node that is left says so and why.
func (f *foretold) stops(t *testing.T, left []string, outcome availability.Outcome) {
	t.Helper()
	last, since := f.ledger.Progress().Acknowledged, time.Now()
	for end := time.Now().Add(stoppedWithin + stoppedFor); time.Since(since) < stoppedFor; time.Sleep(100 * time.Millisecond) {
		if now := f.ledger.Progress().Acknowledged; now != last {
			last, since = now, time.Now()
		}
		if time.Now().After(end) {
			t.Errorf("commits are acknowledged %v after a failure that was said to end in %s", stoppedWithin+stoppedFor, outcome)
			return
		}
	}
	said := ""
	defer func() { t.Log(said) }()
	f.awaitFor(t, survivedWithin, "every node that is left says "+string(outcome)+" and why", func(lab.Status) bool {
		said = ""
		return !slices.ContainsFunc(left, func(n string) bool {
			st, err := f.status(t, n)
			a := st.Availability
			said += fmt.Sprintf("%s says %s, blocked %v: %s. ", n, a.Level, a.Blocked, a.Because)
			return err != nil || a.Level != availability.Down || a.Because == "" || (outcome == availability.Blocked) != a.Blocked
		})
	})
}

// heal ends all failures, and waits until the group is whole and every node says so.
func (f *foretold) heal(t *testing.T) {
	t.Helper()
	f.mend(t)
	for _, n := range f.Nodes() {
		_ = f.Resume(n.Name) // fails for one that does not run
		if err := f.Start(n.Name); err != nil {
			t.Fatal(err)
		}
	}
	f.whole(t)
	f.awaitFor(t, patience, "every node says that the group takes writes and every member is well", func(lab.Status) bool {
		for _, n := range f.Nodes() {
			st, err := f.status(t, n.Name)
			a := st.Availability
			ill := slices.ContainsFunc(a.Problems, func(p availability.Problem) bool { return p.Target != st.Group }) // the group may not want more
			if err != nil || !a.Writable || a.Blocked || ill {
				if m := member(st, n.Name); m.StoodDown != "" || m.Role == ag.RoleSecondary && m.Suspended {
					t.Fatalf("%s stays out: %+v", n.Name, m)
				}
				return false
			}
		}
		return true
	})
}
