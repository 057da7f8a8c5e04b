package web

import (
	"math"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// copied is charted, with a copy to n3 that is under way, and others that have ended.
func copied(b *browser, g *group) {
	began := time.Now().UTC().Add(-7 * time.Minute).Truncate(time.Second)
	end, expected, total := began.Add(-50*time.Minute), time.Now().UTC().Add(4*time.Minute), int64(42e9)
	done := func(s float64) int64 { return int64(float64(total) * 0.62 * math.Pow(s/420, 1.2)) }
	b.s.seedings.note(began.Add(-time.Hour), []Seeding{{Replica: "n2", Source: "n1", State: "COMPLETED", Started: began.Add(-time.Hour), Ended: &end, Done: total, Total: total, Rate: 70e6}})
	b.s.seedings.note(began.Add(-time.Hour), []Seeding{{Replica: "n3", State: "FAILED", Started: began.Add(-30 * time.Minute), Ended: &end, Done: 9e9, Total: total, Failure: "no space is left on its disk " + evil}})
	for s := 4; s < 420; s += 2 {
		b.s.seedings.note(began.Add(time.Duration(s)*time.Second), []Seeding{{Replica: "n3", State: "SEEDING: copies", Started: began, Done: done(float64(s)), Total: total}})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tables = map[string]rows{
		"dm_hadr_physical_seeding_stats": {
			{"remote_machine_name", "role_desc", "internal_state_desc", "transfer_rate_bytes_per_second", "transferred_size_bytes", "database_size_bytes", "start_time_utc", "end_time_utc", "estimate_time_complete_utc", "failure_message"},
			{"n3", "Source", "SEEDING: copied 26 of 42 GB, compressed", int64(71e6), done(420), total, began, nil, expected, nil},
		},
		"coterie.certificates": {
			{"node", "certificate", "expires"},
			{"n1", "node", time.Now().UTC().AddDate(0, 0, 83).Format(time.RFC3339)},
			{"n1", "listener", time.Now().UTC().AddDate(0, 0, 83).Format(time.RFC3339)},
			{"n1", "authority", time.Now().UTC().AddDate(9, 1, 0).Format(time.RFC3339)},
			{"n2", "node", time.Now().UTC().AddDate(0, 0, 3).Format(time.RFC3339)},
			{"n2", "listener", time.Now().UTC().AddDate(0, 0, -1).Format(time.RFC3339)},
		},
	}
	g.st.Replicas[2].Sync = ag.Initializing
}

// TestCopiesInABrowser looks at the course of a copy, cancels it, and looks at the certificates of the members; a grid
// has the columns that were chosen.
func TestCopiesInABrowser(t *testing.T) {
	g := charted()
	p, b := openPage(t, g, "anna", "replicas")
	copied(b, g)
	p.Await(pageTime, "document.querySelector('.course .line')?.getAttribute('d').length > 1000 && document.querySelector('.progress').innerText.includes('62 %')")
	p.says("26 GB of 42 GB", "71 MB/s", "ready in about 4 min", "copied 26 of 42 GB, compressed", "no space is left on its disk "+evil)
	p.widths("copies")
	p.Eval("document.querySelector('[data-key=\"columns of replicas\"] summary').click(); [...document.querySelectorAll('[data-key=\"columns of replicas\"] input')].find(i => i.parentElement.innerText.startsWith('Failover ready')).click()", nil)
	p.Await(pageTime, "[...document.querySelectorAll('[aria-label=Replicas] thead th')].some(x => x.innerText === 'Failover ready')")
	p.Press("Escape", false)
	p.click("Cancel the copy to n3")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('dialog')")
	p.Eval("location.hash = '#/'", nil)
	p.Await(pageTime, "document.querySelector('.course .line') && document.querySelector('.answers')")
	p.picture("copies-overview")
	p.clean("a copy on the first screen")
	p.Eval("location.hash = '#/members'", nil)
	p.Await(pageTime, "document.querySelectorAll('[aria-label=Certificates] tbody tr').length === 3")
	p.says("in 83 d", "in 9 years", "in 3 d", "expired", "does not answer")
	p.widths("certificates")
}
