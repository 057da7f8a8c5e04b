package web

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
)

// still holds that the topology moves, and that nothing does for a user who wants no motion.
func (p *chartPage) still() {
	const moving = "document.getAnimations().filter(a => a.playState === 'running').length"
	p.Await(pageTime, "document.querySelectorAll('.topology .flow').length === 2 && "+moving+" > 0")
	p.ReduceMotion()
	p.Await(pageTime, "matchMedia('(prefers-reduced-motion: reduce)').matches && "+moving+" === 0")
	p.Show(1440, 900, false)
}

// why unfolds an event by the keyboard.
func (p *chartPage) why() {
	p.Eval("location.hash = '#/events'", nil)
	p.Await(pageTime, "document.querySelector('.timeline summary') && !document.querySelector('.timeline details[open]')")
	p.Eval("document.querySelector('.timeline summary').focus()", nil)
	p.Press("Enter", false)
	p.Await(pageTime, "document.querySelector('.timeline details[open] dl')?.innerText.includes('n2 was silent')")
	p.clean("an event unfolded")
}

// TestScreensInABrowser opens every screen of a group in order, and of one without a primary, at three widths, light
// and dark; without motion, too, and with an event unfolded.
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
	p.still()
	walk("healthy")
	p.why()
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
