package counters

import (
	"maps"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/offload"
)

func TestRoutedPerSecond(t *testing.T) {
	var r seconds
	now := time.Unix(1_000_000, 300)
	for i := range 4 {
		r.add(now, i == 0)
	}
	r.add(now.Add(2*time.Second), true)
	got := r.list(now.Add(3 * time.Second))
	if len(got) != 2 || got[0].RoutedPct() != 75 || got[0].Readers != 4 || got[1].RoutedPct() != 0 {
		t.Errorf("%+v", got)
	}
	if got := r.list(now.Add(61 * time.Second)); len(got) != 1 {
		t.Errorf("a minute later: %+v", got)
	}
}

// A share of no readers is none.
func TestRoutedOfNobody(t *testing.T) {
	if got := (Second{}).RoutedPct(); got != 0 {
		t.Errorf("%v percent of no readers", got)
	}
}

// Each kind of event is counted under its own reasons, and what Stats returned does not change afterwards.
func TestReasons(t *testing.T) {
	var c Counters
	c.Reject("timeout")
	c.Refuse(pgwire.Fatal("rule", "28000", "no rule"))
	c.Refuse(pgwire.Fatal("rule", "28000", "no rule"))
	c.End("drain")
	c.NotMoved("it has temporary objects")
	c.NotReplayed("an answer differs")
	c.Doubt("committed")
	c.Unknown("cut")
	c.Carry(PathLoop)
	c.Carry(PathLoop)
	c.Carry(PathKernel)
	c.Route(RoutedKey{"b", ag.ReadOnly}, false)
	c.Route(RoutedKey{"a", ag.ReadOnly}, true)
	st := c.Stats()
	c.End("drain")
	for what, got := range map[string]map[string]uint64{
		"rejected": st.Rejected, "refused": st.Refused, "cut": st.Cut, "unmoved": st.Unmoved, "unreplayed": st.Unreplayed, "doubts": st.Doubts, "unknown": st.Unknown, "carried": st.Carried,
	} {
		want := map[string]map[string]uint64{
			"rejected": {"timeout": 1, "rule": 2}, "refused": {"28000": 2}, "cut": {"drain": 1}, "unmoved": {"it has temporary objects": 1},
			"unreplayed": {"an answer differs": 1}, "doubts": {"committed": 1}, "unknown": {"cut": 1}, "carried": {"loop": 2, "kernel": 1},
		}[what]
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	if st.FellBack != 1 || st.Routed[RoutedKey{"a", ag.ReadOnly}] != 1 || st.Routed[RoutedKey{"b", ag.ReadOnly}] != 1 {
		t.Errorf("%d fell back of %v", st.FellBack, st.Routed)
	}
}

// A session that came back for a reason that nobody has named yet is counted under the last one.
func TestReasonsOfReturn(t *testing.T) {
	var c Counters
	c.CameBack(offload.WhyCalled, 7)
	c.CameBack(offload.WhyCount+5, 3)
	st := c.Stats()
	if st.RelayedByKernel != 10 || len(st.KernelPath) != 2 || st.KernelPath[offload.WhyNames[offload.WhyCalled]] != 1 || st.KernelPath[offload.WhyNames[offload.WhyCount-1]] != 1 {
		t.Errorf("%d requests, by reason %v", st.RelayedByKernel, st.KernelPath)
	}
}
