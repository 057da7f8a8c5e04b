package web

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
)

// TestScreensInABrowser opens every screen of a group in order, and of one without a primary, at three widths, light
// and dark.
func TestScreensInABrowser(t *testing.T) {
	g := charted()
	p, _ := openPage(t, g, "vera", "")
	walk := func(state string) {
		for _, path := range []string{"", "replicas", "databases", "events", "members", "sql"} {
			p.Eval("location.hash = '#/"+path+"'", nil)
			p.Await(pageTime, "!document.querySelector('.skeleton') && location.hash === '#/"+path+"'")
			p.widths(state + "-" + path)
		}
	}
	p.Await(pageTime, "document.querySelector('.answers').innerText.includes('n2 was silent.')") // a name stays as it is
	walk("healthy")
	g.mu.Lock()
	g.st.Primary, g.st.WriteOpen, g.st.Quorum = "", false, false
	for i := range g.st.Replicas {
		g.st.Replicas[i].Role, g.st.Replicas[i].Sync, g.st.Replicas[i].Connected = ag.RoleResolving, ag.NotSynchronizing, "DISCONNECTED"
	}
	g.st.Availability = availability.Report{Level: availability.Down, Because: "no majority of the quorum answers", Automatic: "not ready: no majority of the quorum answers", Failures: []availability.Failure{}, Problems: []availability.Problem{}}
	g.mu.Unlock()
	p.Await(pageTime, "document.title.startsWith('✕')")
	walk("down")
}
