package continuity

import (
	"fmt"
	"testing"
	"time"
)

// An hour has the sums of its looks and the most frequent reasons; a week of hours is kept, and the clock may be set.
func TestHistory(t *testing.T) {
	t.Parallel()
	var h History
	kept, ends := Prospect{Fate: Kept}, func(why string) Prospect { return Prospect{Fate: Ends, Why: why} }
	now := time.Date(2026, 11, 23, 10, 5, 0, 0, time.FixedZone("x", 1800))
	groups := []Group{
		{Outlook{Failover: kept, Node: ends("a"), Server: kept, Transaction: ends("t")}, 3},
		{Outlook{Failover: Prospect{Fate: Likely, Why: "w"}, Node: ends("b"), Server: ends("s"), Transaction: kept}, 2},
	}
	h.Take(now, groups)
	h.Take(now.Add(time.Minute), append(groups, Group{Outlook{Failover: ends("f"), Node: ends("b"), Server: kept}, 5}))
	h.Take(now.Add(-3*time.Hour), nil)
	list := h.Hours()
	want := Hour{
		Begin: time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC), Looks: 3, Sessions: 15, Failover: Share{10, "f"}, Node: Share{0, "b"}, Server: Share{11, "s"},
		Open: 10, Replayed: Share{4, "t"},
	}
	if len(list) != 1 || list[0] != want {
		t.Errorf("%+v, want %+v", list, want)
	}
	for i := range 3 * maxHours {
		var many []Group
		for j := range 2 * maxReasons {
			many = append(many, Group{Outlook{Node: ends(fmt.Sprint("reason ", j))}, 1})
		}
		h.Take(now.Add(time.Duration(i+1)*time.Hour), many)
	}
	list = h.Hours()
	if len(list) != maxHours || len(h.why[1]) != maxReasons || list[0].Begin.After(list[1].Begin) || list[maxHours-1].Node.Why != "reason 0" {
		t.Errorf("%d hours, %d reasons, %+v", len(list), len(h.why[1]), list[maxHours-1])
	}
}
