package continuity

import (
	"fmt"
	"testing"
)

func TestGroups(t *testing.T) {
	var list []Outlook
	for i := range 20 {
		for range i + 1 {
			o := Outlook{Replica: "a", Application: fmt.Sprintf("app%02d", i), User: "u", Failover: Prospect{Kept, ""}, Node: Prospect{Ends, fmt.Sprint("reason ", i)}, Server: Prospect{Kept, ""}}
			list = append(list, o)
		}
	}
	if all := Groups(list, 20); len(all) != 20 || all[0].Application != "app00" || all[19].Sessions != 20 {
		t.Errorf("%+v", all)
	}
	some := Groups(list, 3)
	if len(some) != 4 || some[0].Application != "app17" || some[3].Application != "" || !some[3].Others || some[3].Node != (Prospect{Ends, ""}) {
		t.Errorf("%+v", some)
	}
	n := 0
	for _, g := range some {
		n += g.Sessions
	}
	if n != len(list) {
		t.Errorf("%d sessions of %d", n, len(list))
	}
}
