package web

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lib/samples"
	chromium "github.com/coteriedb/coterie/internal/test/browser"
)

// pageTime is how long a state of a page may take.
const pageTime = 2 * time.Minute

// chartPage is the page of a node of which a test makes everything up.
type chartPage struct {
	*chromium.Page
	t     *testing.T
	at    string
	asked string // another address that the page may ask
	dead  bool   // nobody answers, which the browser calls errors
}

// openPage logs a browser in as a user of a group, at the screen with that path.
func openPage(t *testing.T, g *group, user, screen string) (*chartPage, *browser) {
	t.Helper()
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("opens the page in a browser; COTERIE_LONG=1 runs it")
	}
	b := serve(t, g)
	p := &chartPage{Page: chromium.Start(t).Page(), t: t, at: b.at}
	p.Show(1440, 900, false)
	p.Open(b.at + "/#/" + screen)
	p.Await(pageTime, "document.querySelector('#user')")
	p.Type("#user", user)
	p.Type("#password", "right")
	p.Eval("document.querySelector('form').requestSubmit()", nil)
	p.Await(pageTime, "document.querySelector('.live.good')")
	return p, b
}

// picture writes a picture where COTERIE_SCREENSHOTS names a directory.
func (p *chartPage) picture(name string) {
	if dir := os.Getenv("COTERIE_SCREENSHOTS"); dir != "" {
		p.Picture(filepath.Join(dir, name+".png"), 2600)
	}
}

// clean holds that nothing went wrong in the page, nothing was asked elsewhere, axe-core finds no fault, every control
// has a name, and nothing is wider than the window.
func (p *chartPage) clean(where string) {
	p.t.Helper()
	problems := p.Problems()
	if p.dead {
		problems = nil
	}
	if found := append(problems, p.Foreign(p.at, cmp.Or(p.asked, p.at))...); len(found) > 0 {
		p.t.Errorf("%s: %q", where, found)
	}
	var over int
	if p.Eval("document.documentElement.scrollWidth - innerWidth", &over); over > 0 {
		p.t.Errorf("%s is %d pixels wider than the window", where, over)
	}
	for _, f := range p.Violations() {
		p.t.Errorf("%s: %s", where, f)
	}
	var nameless []string
	p.Eval(`[...document.querySelectorAll('button, a, input, select, textarea, summary, [tabindex="0"]')].filter(e => !(e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length)).map(e => e.outerHTML.slice(0, 200))`, &nameless)
	if len(nameless) > 0 {
		p.t.Errorf("%s: controls without a name: %q", where, nameless)
	}
}

// charted is a group of three replicas, whose primary is n1, with a day of a load that comes in waves, an outage in
// which nothing is known, and two peaks of the lag of n3.
func charted() *group {
	g := newGroup()
	for i := range 3 {
		r := api.Replica{Name: ag.ReplicaID(fmt.Sprint("n", i+1)), Role: ag.RoleSecondary, Sync: ag.Synchronized, Mode: ag.SynchronousCommit, Connected: "CONNECTED", Voter: true}
		if i == 0 {
			r.Role = ag.RolePrimary
		}
		g.st.Replicas = append(g.st.Replicas[:i], r)
	}
	g.st.Availability.Level = availability.Healthy
	g.past = func(s samples.Span) History {
		return madeUp(s, map[time.Duration]int{samples.Hour.Step: 720, samples.Day.Step: 1440}[s.Step])
	}
	return g
}

// madeUp is a history of so many points.
func madeUp(s samples.Span, points int) History {
	h := History{Node: "n1", End: time.Now().UTC(), StepSeconds: s.Step.Seconds(), Points: points}
	add := func(name, replica, unit string, f func(x float64) float64) {
		x := Series{Name: name, Replica: replica, Metric: "coterie_x", Unit: unit, Mean: make(samples.Values, points), Highest: make(samples.Values, points)}
		for i := range points {
			at := float64(i) / float64(points)
			v := max(0, f(at)*(1+0.15*math.Sin(float64(i)*1.7)+0.1*math.Sin(float64(i)*0.31)))
			if at > 0.55 && at < 0.6 {
				v = math.NaN()
			}
			x.Mean[i], x.Highest[i] = float32(v), float32(v)
			if s == samples.Day {
				x.Highest[i] = float32(v * 1.4)
			}
		}
		h.Series = append(h.Series, x)
	}
	peak := func(at, x, wide float64) float64 { return math.Exp(-math.Pow((x-at)/wide, 2)) }
	add("write_bytes_per_second", "", "bytes per second", func(x float64) float64 { return 9e6 + 7e6*math.Sin(9*x) })
	add("commit_wait_seconds", "", "seconds", func(x float64) float64 { return 0.0011 + 0.0006*math.Sin(9*x) })
	add("commit_wait_p99_seconds", "", "seconds", func(x float64) float64 { return 0.0041 + 0.02*peak(0.8, x, 0.02) })
	for i, r := range []string{"n2", "n3"} {
		k := float64(i*4 + 1)
		add("lag_bytes", r, "bytes", func(x float64) float64 { return k * (20e3 + 4e6*peak(0.8, x, 0.03)) })
		add("send_queue_bytes", r, "bytes", func(x float64) float64 { return k * (8e3 + 2e6*peak(0.8, x, 0.03)) })
		add("redo_queue_bytes", r, "bytes", func(x float64) float64 { return k * (200e3 + 60e6*peak(0.3, x, 0.1)) })
		add("data_loss_seconds", r, "seconds", func(x float64) float64 { return k * 0.4 * peak(0.8, x, 0.03) })
		add("recovery_seconds", r, "seconds", func(x float64) float64 { return k * 4 * peak(0.3, x, 0.1) })
	}
	add("commits_waiting", "", "", func(x float64) float64 { return math.Floor(3 * peak(0.8, x, 0.05)) })
	add("sessions", "", "", func(x float64) float64 { return 140 + 60*math.Sin(7*x) })
	add("logins_per_second", "", "per second", func(x float64) float64 { return 2 + math.Sin(20*x) })
	return h
}

// TestChartsInABrowser opens the charts at three widths, light and dark, and uses them with a keyboard: the hour and
// the day, a point, the numbers behind a chart, a node that has recorded nothing, one that is no primary, and one that
// is not heard any more.
func TestChartsInABrowser(t *testing.T) {
	g := charted()
	p, b := openPage(t, g, "vera", "charts")
	p.Await(pageTime, "document.querySelectorAll('.chart svg').length === 9")
	p.widths("charts")
	p.Eval("[...document.querySelectorAll('.chip')].find(b => b.innerText === 'Day').click()", nil)
	p.Await(pageTime, "document.body.innerText.includes('every minute') && document.querySelectorAll('.line.high').length > 10")
	p.picture("charts-day")
	p.Eval("document.querySelector('[data-key=lag] .plot').focus()", nil)
	p.Press("ArrowLeft", false)
	p.Press("ArrowLeft", false)
	var said string
	p.Await(pageTime, "document.querySelector('[data-key=lag] .plot').getAttribute('aria-valuenow') === '1437' && document.querySelector('[data-key=lag] .pointer')")
	if p.Eval("document.querySelector('[data-key=lag] .plot').getAttribute('aria-valuetext')", &said); !strings.Contains(said, "n2 ") || !strings.Contains(said, "n3 ") || !strings.Contains(said, "kB") {
		t.Errorf("a reader of the screen hears %q", said)
	}
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('.pointer')")
	p.Eval("document.querySelector('[data-key=lag] summary').focus()", nil)
	p.Press("Enter", false)
	p.Await(pageTime, "document.querySelectorAll('[data-key=lag] details[open] tbody tr').length === 30")
	p.picture("charts-table")
	p.clean("a table")
	p.states(g)
	stop := make(chan struct{})
	go func() { defer close(stop); b.end() }()
	p.Await(pageTime, "document.querySelector('.live.bad') && document.body.innerText.includes('the node is not heard')")
	p.picture("charts-lost")
	<-stop
}

// widths makes pictures of a screen.
func (p *chartPage) widths(name string) {
	for _, width := range []int{1440, 820, 390} {
		for _, dark := range []bool{false, true} {
			p.Show(width, 900, dark)
			p.Await(pageTime, fmt.Sprintf("innerWidth === %d && matchMedia('(prefers-color-scheme: dark)').matches === %t", width, dark))
			p.Eval("new Promise(done => requestAnimationFrame(() => setTimeout(done)))", nil)
			at := fmt.Sprintf("%s-%d%s", name, width, map[bool]string{true: "-dark"}[dark])
			p.picture(at)
			p.clean(at)
		}
	}
	p.Show(1440, 900, false)
}

// states looks at a node that has recorded nothing, at one that is no primary, and at one that is not heard any more.
func (p *chartPage) states(g *group) {
	g.mu.Lock()
	g.past = func(s samples.Span) History {
		h := madeUp(s, 40)
		h.Node, h.Series = "n1", h.Series[3:6]
		return h
	}
	g.st.Primary = "n2"
	g.mu.Unlock()
	p.Eval("[...document.querySelectorAll('.chip')].find(b => b.innerText === 'Hour').click()", nil)
	p.Await(pageTime, "document.body.innerText.includes('open the console of n2') && document.body.innerText.includes('so far')")
	p.picture("charts-secondary")
	p.clean("a secondary")
	g.mu.Lock()
	g.past = func(s samples.Span) History {
		return History{Node: "n1", StepSeconds: 5, End: time.Now(), Series: []Series{}}
	}
	g.mu.Unlock()
	p.Eval("[...document.querySelectorAll('.chip')].find(b => b.innerText === 'Day').click()", nil)
	p.Await(pageTime, "document.body.innerText.includes('Nothing is recorded yet')")
	p.picture("charts-empty")
	p.clean("nothing recorded")
	g.mu.Lock()
	g.past = func(s samples.Span) History { return madeUp(s, 100) }
	g.mu.Unlock()
	p.Eval("[...document.querySelectorAll('.chip')].find(b => b.innerText === 'Hour').click()", nil)
	p.Await(pageTime, "document.querySelectorAll('.chart svg').length === 9")
}
