package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/test/browser"
)

// hostile is a name of a database that would run as a script where a page makes HTML of it.
const hostile = `<img src=x onerror="pwned=1"><script>pwned=1</script>'"&`

// pageTime is how long a state of a page may take.
const pageTime = 3 * time.Minute

// screens of the console in the browser, with a text that each shows once it has its data.
var screens = []struct{ path, name, shows string }{
	{"", "overview", "Is my data safe?"},
	{"replicas", "replicas", "completed"},
	{"databases", "databases", "<img src=x"},
	{"sessions", "sessions", "what an outage would end"},
	{"settings", "settings", "the same everywhere"},
	{"events", "events", "leadership"},
	{"charts", "charts", "WAL made durable on this node"},
	{"members", "members", "in 9 years"},
	{"sql", "sql", "coterie.replicas"},
}

// TestConsoleInABrowser opens the console of a live group in a real browser: each screen at three widths, light and
// dark, without an error, a fault that axe-core finds, a request to elsewhere or a name that runs as a script; then the
// test watches a failover on a secondary and on the node that dies. COTERIE_SCREENSHOTS names a directory for pictures
// of all that.
func TestConsoleInABrowser(t *testing.T) {
	b, g, s := browsed(t)
	onPrimary, onSecondary := g.consolePage(t, b, s, *s.Primary, "vera"), g.consolePage(t, b, s, secondaries(s)[0], "vera")
	onSecondary.pictures()
	t.Run("screens", func(*testing.T) { onSecondary.screens() })
	t.Run("a failover", func(*testing.T) { g.watchFailover(t, s, onPrimary, onSecondary) })
	g.down(t)
}

// browsed returns a browser, and a group that is ready, with hostileNames.
func browsed(t *testing.T) (*browser.Browser, *group, lab.Status) {
	t.Helper()
	long(t)
	b := browser.Start(t)
	g := raise(t, lab.Options{})
	s := g.ready(t)
	t.Cleanup(func() {
		if t.Failed() {
			g.showLogs(t)
		}
	})
	g.hostileNames(t)
	return b, g, s
}

// hostileNames makes a viewer, an operator and an administrator, and a database whose name is HTML.
func (g *group) hostileNames(t *testing.T) {
	t.Helper()
	g.execute(t,
		"CREATE ROLE vera LOGIN PASSWORD 'a pass\"word <b>'", "GRANT coterie_viewer TO vera", "CREATE ROLE olaf LOGIN PASSWORD 'a pass\"word <b>'", "GRANT coterie_operator TO olaf",
		"CREATE ROLE anna LOGIN PASSWORD 'a pass\"word <b>'", "GRANT coterie_admin TO anna", "CREATE DATABASE "+pgx.Identifier{hostile}.Sanitize())
}

// execute executes statements on the primary.
func (g *group) execute(t *testing.T, statements ...string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
	for _, sql := range statements {
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// consolePage is a page of a node's console.
type consolePage struct {
	*browser.Page
	t    *testing.T
	node string
	at   string
}

// consolePage logs a browser in to the console of a node, after an attempt with a wrong password.
func (g *group) consolePage(t *testing.T, b *browser.Browser, s lab.Status, node, user string) *consolePage {
	t.Helper()
	p := &consolePage{Page: b.Page(), t: t, node: node}
	for _, r := range s.Replicas {
		if r.Name == node {
			p.at = r.Console
		}
	}
	p.Show(1440, 900, false)
	p.Open(p.at)
	p.Await(pageTime, "document.querySelector('#user')")
	p.picture("login.png", 900)
	p.Type("#user", user)
	p.Type("#password", "wrong")
	p.Eval("document.querySelector('form').requestSubmit()", nil)
	p.Await(pageTime, "document.querySelector('.error').innerText.includes('password authentication failed')")
	p.Problems() // the browser calls the refusal an error
	p.Type("#password", `a pass"word <b>`)
	p.Eval("document.querySelector('form').requestSubmit()", nil)
	p.Await(pageTime, "document.querySelector('.live.good') && document.querySelector('.topology .node.primary')")
	return p
}

// picture writes a picture where COTERIE_SCREENSHOTS names a directory.
func (p *consolePage) picture(name string, maxHeight int) {
	if dir := os.Getenv("COTERIE_SCREENSHOTS"); dir != "" {
		p.Picture(filepath.Join(dir, "console-"+name), maxHeight)
	}
}

// pictures makes those of the documentation.
func (p *consolePage) pictures() {
	p.Await(pageTime, "!document.querySelector('.skeleton') && document.querySelector('.lately')")
	p.Show(1200, 760, false)
	p.picture("overview.webp", 760)
	p.Show(390, 760, true)
	p.picture("phone.webp", 900)
	p.Show(1440, 900, false)
}

// clean holds that nothing went wrong in the page, nothing was asked elsewhere, and no name ran.
func (p *consolePage) clean(where string) {
	p.t.Helper()
	if found := p.Problems(); len(found) > 0 {
		p.t.Errorf("%s of %s: %q", where, p.node, found)
	}
	if found := p.Foreign(p.at); len(found) > 0 {
		p.t.Errorf("%s of %s asked %q", where, p.node, found)
	}
	var pwned bool
	if p.Eval("Boolean(window.pwned || document.querySelector('#app img[onerror], #app script'))", &pwned); pwned {
		p.t.Errorf("%s of %s: a name became HTML", where, p.node)
	}
}

// screens opens each screen at three widths, light and dark.
func (p *consolePage) screens() {
	for _, s := range screens {
		p.Eval(fmt.Sprintf("location.hash = '#/%s'", s.path), nil)
		p.Await(pageTime, fmt.Sprintf("document.querySelector('#content').innerText.toLowerCase().includes(%q) && !document.querySelector('.skeleton')", strings.ToLower(s.shows)))
		if s.path == "sql" {
			p.query()
		}
		for _, width := range []int{1440, 820, 390} {
			for _, dark := range []bool{false, true} {
				p.Show(width, 900, dark)
				p.Await(pageTime, fmt.Sprintf("innerWidth === %d && matchMedia('(prefers-color-scheme: dark)').matches === %t", width, dark))
				p.Eval("new Promise(done => requestAnimationFrame(() => setTimeout(done)))", nil) // it is drawn for this width
				name := fmt.Sprintf("%s-%d%s", s.name, width, map[bool]string{true: "-dark"}[dark])
				p.picture(name+".png", 2400)
				var over int
				if p.Eval("document.documentElement.scrollWidth - innerWidth", &over); over > 0 {
					p.t.Errorf("%s is %d pixels wider than the window", name, over)
				}
				p.clean(name)
				p.accessible(name)
			}
		}
		p.Show(1440, 900, false)
	}
	for _, path := range []string{"constructor", "__proto__", "nothing"} {
		p.Eval(fmt.Sprintf("location.hash = '#/%s'", path), nil)
		p.Await(pageTime, "document.querySelector('#content').dataset.screen === 'Overview'")
	}
	p.clean("an address without a screen")
}

// query runs a query whose rows and columns have names that are HTML.
func (p *consolePage) query() {
	p.Type("#sql", `SELECT name, '<b>' AS "<i>" FROM coterie.databases`)
	p.Eval("[...document.querySelectorAll('button')].find(b => b.innerText === 'Run').click()", nil)
	p.Await(pageTime, "[...document.querySelectorAll('table.plain td')].some(d => d.innerText.startsWith('<img src=x'))")
}

// watchFailover kills the primary, and looks at the page of a secondary and at that of the node that died.
func (g *group) watchFailover(t *testing.T, s lab.Status, dying, other *consolePage) {
	primary := *s.Primary
	other.Eval("location.hash = '#/'", nil)
	began := time.Now()
	g.kill(t, primary)
	dying.Await(pageTime, "document.querySelector('.live.bad') && document.querySelector('.banner')")
	t.Logf("the page of %s says after %v that it is disconnected", primary, time.Since(began).Round(time.Millisecond))
	for _, text := range []string{primary + " does not answer", other.node, "Not known now"} {
		if banner := dying.Text(); !strings.Contains(banner, text) {
			t.Errorf("the page of the dead node does not say %q:\n%s", text, banner)
		}
	}
	dying.Await(pageTime, "document.querySelector('.banner').innerText.includes('This page goes on at')")
	dying.picture("dead.png", 900)
	dying.Await(pageTime, fmt.Sprintf("!%q.includes(location.host) && document.querySelector('#user')?.value === 'vera'", dying.at))
	dying.Type("#password", `a pass"word <b>`)
	dying.Eval("document.querySelector('form').requestSubmit()", nil)
	dying.Await(pageTime, fmt.Sprintf("document.querySelector('.live.good') && document.querySelector('.topology .node.primary') && !document.querySelector('.topology .node.primary').textContent.startsWith(%q)", primary))
	t.Logf("the page of %s is at another node after %v, and shows another primary", primary, time.Since(began).Round(time.Millisecond))
	other.Await(pageTime, fmt.Sprintf("document.querySelector('.topology .node.primary') && !document.querySelector('.topology .node.primary').textContent.startsWith(%q)", primary))
	t.Logf("the page of %s shows another primary after %v", other.node, time.Since(began).Round(time.Millisecond))
	other.Await(pageTime, "document.querySelector('.problems') && document.querySelector('tbody .role.primary')") // status and views
	other.picture("degraded.webp", 1000)
	other.picture("degraded.png", 1400)
	other.clean("a failover")
	g.start(t, primary)
	other.Await(pageTime, "!document.querySelector('.problems')")
	other.clean("the return of the node")
	var consoles []string
	for _, r := range s.Replicas {
		consoles = append(consoles, r.Console)
	}
	if found := dying.Foreign(consoles...); len(found) > 0 {
		t.Errorf("the page of the dead node asked %q", found)
	}
	var host string
	if dying.Eval("location.origin", &host); strings.HasPrefix(dying.at, host) {
		t.Errorf("the page of the dead node is still at %s", host)
	}
}
