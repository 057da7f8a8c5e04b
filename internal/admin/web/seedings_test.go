package web

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

// TestCourseOfACopy holds what is kept of a copy: its course, thinned when it is long, its end, and no more than that.
func TestCourseOfACopy(t *testing.T) {
	t.Parallel()
	var k seedings
	began := time.Date(2026, 11, 27, 4, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	k.note(at(0), []Seeding{{Replica: "n3", State: "SEEDING: begins", Started: began}})
	if !k.underWay() || len(k.all()[0].Seconds) != 0 {
		t.Errorf("a copy whose size is not known is %+v", k.all())
	}
	for i := 2; i < 20000; i += 2 {
		k.note(at(i), []Seeding{{Replica: "n3", State: "SEEDING: copies", Started: began, Done: int64(i), Total: 20000, Rate: 1}})
	}
	end := at(20000)
	k.note(at(20001), []Seeding{{Replica: "n3", State: "COMPLETED", Started: began, Ended: &end, Done: 20000, Total: 20000}})
	k.note(at(20003), []Seeding{{Replica: "n3", State: "COMPLETED", Started: began, Ended: &end, Done: 20000, Total: 20000}})
	got := k.all()
	if n := len(got[0].Seconds); len(got) != 1 || n < maxPoints/3 || n > maxPoints+1 || n != len(got[0].Bytes) || got[0].Seconds[n-1] != 20000 || got[0].Bytes[n-1] != 20000 || k.underWay() {
		t.Fatalf("%d copies, of which the first has %d points: %+v", len(got), len(got[0].Seconds), got[0])
	}
	for i, x := range got[0].Seconds {
		if int64(x) != got[0].Bytes[i] || i > 0 && (x <= got[0].Seconds[i-1] || x-got[0].Seconds[i-1] > 400) {
			t.Fatalf("point %d is %v, %d after %v", i, x, got[0].Bytes[i], got[0].Seconds[max(0, i-1)])
		}
	}
	for i := range 3 * maxSeedings {
		k.note(at(30000+i), []Seeding{{Replica: "n2", Started: at(30000 + i), Ended: &end}})
	}
	if n := len(k.all()); n != maxSeedings {
		t.Errorf("%d copies are kept", n)
	}
}

// TestSeedingsOfTheAPI holds how the rows of the view become copies, seen from the source's side and from the target's.
func TestSeedingsOfTheAPI(t *testing.T) {
	t.Parallel()
	g := newGroup()
	began := time.Date(2026, 11, 27, 4, 0, 0, 0, time.UTC)
	head := []any{"remote_machine_name", "role_desc", "internal_state_desc", "transfer_rate_bytes_per_second", "transferred_size_bytes", "database_size_bytes", "start_time_utc", "end_time_utc", "estimate_time_complete_utc", "failure_message"}
	g.tables = map[string]rows{"dm_hadr_physical_seeding_stats": {
		head,
		{"n3", "Source", "SEEDING: 3 of 9", int64(2), int64(3), int64(9), began, nil, began.Add(time.Minute), nil},
		{"n2", "Destination", "FAILED", int64(0), int64(1), int64(9), began.Add(time.Second), began.Add(time.Minute), nil, "the disk is full"},
		{nil, "Source", "PENDING", nil, nil, nil, began, nil, nil, nil},
	}}
	b := serve(t, g)
	b.logIn("vera")
	code, body, _ := b.do("GET", "/api/v1/seedings", "")
	var got []Seeding
	if err := json.Unmarshal(body, &got); err != nil || code != 200 || len(got) != 2 {
		t.Fatalf("%d %s %v", code, body, err)
	}
	if x := got[1]; x.Replica != "n3" || x.Source != "" || x.Ended != nil || x.Done != 3 || x.Total != 9 || x.Rate != 2 || x.Expected == nil || len(x.Bytes) != 1 {
		t.Errorf("the first copy is %+v", x)
	}
	if x := got[0]; x.Replica != "n1" || x.Source != "n2" || x.Ended == nil || x.Failure != "the disk is full" {
		t.Errorf("the second copy is %+v", x)
	}
}

func (g *group) seeding() bool {
	return slices.ContainsFunc(g.status().Replicas, func(r api.Replica) bool { return r.Sync == ag.Initializing })
}
