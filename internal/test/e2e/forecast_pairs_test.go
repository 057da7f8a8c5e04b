package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndForecastOfPairs has every pair of members of three groups fail, one after the other: the primary with
// each of the others, first or last, and each two of the others. Every node that is left says before each failure what
// it would lead to, and is held to its word. After the second one a failure happens that it says to be survived, if
// there is one. Each pair fails in one of the three ways, by turns; COTERIE_FORECAST=all has it fail in each.
func TestEndToEndForecastOfPairs(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: networks of their own need root")
	}
	for _, o := range []lab.Options{{Replicas: 2, Witness: true}, {Replicas: 3}, {Replicas: 5}} {
		name := fmt.Sprintf("%d replicas", o.Replicas)
		if o.Witness {
			name += " and a witness"
		}
		o.Net = lab.NetNamespaces
		t.Run(name, func(t *testing.T) {
			f := &foretold{chaos: &chaos{group: newGroup(t, o)}, counts: map[availability.Outcome]int{}}
			for turn, p := range pairs(len(f.Nodes())) {
				ways := mishaps[turn%len(mishaps):][:1]
				if os.Getenv("COTERIE_FORECAST") == "all" {
					ways = mishaps
				}
				for i, m := range ways {
					if (turn+i)%2 == 1 {
						p = [2]int{p[1], p[0]}
					}
					if !t.Run(fmt.Sprintf("%s of %d and %d", m.name, p[0], p[1]), func(t *testing.T) { f.bothFail(t, m, p) }) {
						return
					}
				}
			}
			t.Logf("held to its word: %v", f.counts)
			f.down(t)
		})
	}
}

// pairs returns the pairs of the numbers from 0 to n - 1.
func pairs(n int) (out [][2]int) {
	for a := range n {
		for b := a + 1; b < n; b++ {
			out = append(out, [2]int{a, b})
		}
	}
	return out
}

// bothFail has two members fail in the same way, and then a third one of which the others say that it is survived. The
// primary has the number 0, the secondaries follow, then the witness.
func (f *foretold) bothFail(t *testing.T, m mishap, pair [2]int) {
	began := time.Now()
	s := f.whole(t)
	left := append([]string{*s.Primary}, secondaries(s)...)
	for _, w := range s.Witnesses {
		left = append(left, w.Name)
	}
	var gone []string
	for _, victim := range []string{left[pair[0]], left[pair[1]]} {
		f.fails(t, m, victim, gone)
		gone = append(gone, victim)
	}
	left = slices.DeleteFunc(left, func(n string) bool { return slices.Contains(gone, n) })
	word := f.word(t, left)
	for _, third := range left {
		if word[third].Outcome == availability.Survived {
			f.fails(t, m, third, gone)
			break
		}
	}
	f.heal(t)
	f.judgeAndGoOn(t)
	t.Logf("%v", time.Since(began).Round(time.Second))
}
