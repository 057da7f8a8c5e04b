package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestFailoverFromTheBrowser drives changes from a real browser: a planned failover from the page of the node that
// hands over, with the keyboard, to its end without a reload; the words for a viewer instead; suspend and resume; a
// forced failover up to the name that has to be typed; maintenance; a join token. COTERIE_SCREENSHOTS names a directory
// for pictures of all that.
func TestFailoverFromTheBrowser(t *testing.T) {
	b, g, s := browsed(t)
	viewer := g.consolePage(t, b, s, secondaries(s)[1], "vera")
	viewer.locked()
	operator := g.consolePage(t, b, s, *s.Primary, "olaf")
	operator.failOver(g, *s.Primary, secondaries(s)[0])
	operator.suspends(secondaries(s)[1])
	admin := g.consolePage(t, b, s, secondaries(s)[0], "anna")
	admin.forces(secondaries(s)[1])
	admin.maintains()
	admin.joins()
	admin.audited()
	for _, p := range []*consolePage{viewer, operator, admin} {
		p.clean("changes")
	}
	g.down(t)
}

// click clicks the button with that name.
func (p *consolePage) click(name string) {
	p.t.Helper()
	find := fmt.Sprintf("[...document.querySelectorAll('button')].find(b => (b.getAttribute('aria-label') ?? b.innerText).startsWith(%q))", name)
	p.Await(pageTime, find)
	p.Eval("{ const b = "+find+"; b.focus(); b.click(); }", nil)
}

// dismiss closes the dialog by the keyboard.
func (p *consolePage) dismiss() {
	p.t.Helper()
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('dialog')")
}

// screen opens a screen.
func (p *consolePage) screen(path string) {
	p.Eval(fmt.Sprintf("location.hash = '#/%s'", path), nil)
	p.Await(pageTime, "!document.querySelector('.skeleton')")
}

// shots makes pictures of what is open, light and dark, wide and narrow, and asks axe-core about it.
func (p *consolePage) shots(name string) {
	p.t.Helper()
	p.Eval("new Promise(done => setTimeout(done, 100))", nil)
	for _, width := range []int{1440, 390} {
		for _, dark := range []bool{false, true} {
			p.Show(width, 900, dark)
			p.Await(pageTime, fmt.Sprintf("innerWidth === %d && matchMedia('(prefers-color-scheme: dark)').matches === %t", width, dark))
			p.Eval("new Promise(done => requestAnimationFrame(() => setTimeout(done)))", nil)
			p.picture(fmt.Sprintf("%s-%d%s.png", name, width, map[bool]string{true: "-dark"}[dark]), 900)
			p.accessible(fmt.Sprintf("%s, %d wide, dark %t", name, width, dark))
		}
	}
	p.Show(1440, 900, false)
}

// locked looks at the page of a viewer: each button says which role it needs, and none does anything.
func (p *consolePage) locked() {
	p.screen("replicas")
	p.Await(pageTime, "document.querySelectorAll('.actions .act.locked').length > 4 && !document.querySelector('.actions .act:not(.locked)')")
	p.shots("viewer")
	p.click("Suspend")
	p.Await(pageTime, "document.querySelector('dialog[open]').innerText.includes('GRANT coterie_operator TO \"vera\"')")
	p.shots("viewer-dialog")
	p.dismiss()
	p.Await(pageTime, "!document.querySelector('dialog') && document.activeElement.classList.contains('locked')")
}

// failOver drives a planned failover by the keyboard.
func (p *consolePage) failOver(g *group, from, to string) {
	t := p.t
	staying, err := pgx.Connect(t.Context(), g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = staying.Close(context.WithoutCancel(t.Context())) }()
	if _, err := staying.Exec(t.Context(), "CREATE TEMP TABLE kept (a int)"); err != nil {
		t.Fatal(err)
	}
	p.Eval("window.sameLoad = true", nil)
	p.screen("")
	p.click("Fail over")
	p.Await(pageTime, fmt.Sprintf("document.querySelector('dialog[open] .outcome.good')?.innerText.includes('%s hands over to')", from))
	p.Eval(fmt.Sprintf("{ const s = document.querySelector('#target'); s.value = %q; s.dispatchEvent(new Event('change')); }", to), nil)
	p.Await(pageTime, fmt.Sprintf("document.querySelector('dialog[open] .outcome.good')?.innerText.includes('hands over to %s') && document.querySelector('.ending tbody tr')", to))
	p.shots("failover-asked")
	for i := range 12 { // the focus stays in the dialog
		p.Press("Tab", i%3 == 2)
		var inside bool
		if p.Eval("document.querySelector('dialog').contains(document.activeElement) || document.activeElement === document.body", &inside); !inside {
			t.Error("the focus has left the dialog")
		}
	}
	p.Eval("document.querySelector('dialog .main').focus()", nil)
	p.Press("Enter", false)
	p.Await(pageTime, "document.querySelector('dialog:modal .steps li.done')")
	p.picture("failover-steps.png", 900)
	took := p.Await(pageTime, fmt.Sprintf("document.querySelector('dialog:modal .outcome.good')?.innerText.includes('%s is the primary in epoch') && document.querySelectorAll('.steps li.done').length === 6", to))
	t.Logf("the page of %s saw the failover to %s end %v after its first step", from, to, took.Round(time.Millisecond))
	p.shots("failover-done")
	p.dismiss()
	p.Await(pageTime, fmt.Sprintf("!document.querySelector('dialog') && document.querySelector('.topology .node.primary')?.textContent.startsWith(%q)", to))
	var same bool
	if p.Eval("Boolean(window.sameLoad)", &same); !same {
		t.Error("the page was loaded again")
	}
	p.Await(pageTime, "!document.querySelector('.problems')")
	p.shots("failover-after")
}

// suspends suspends a replica and resumes it.
func (p *consolePage) suspends(name string) {
	p.screen("replicas")
	for _, verb := range []string{"Suspend", "Resume"} {
		p.click(verb + " " + name)
		p.Await(pageTime, "document.querySelector('dialog[open] .main')")
		if verb == "Suspend" {
			p.shots("suspend")
		}
		p.Eval("document.querySelector('dialog .main').click()", nil)
		p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
		p.Eval("document.querySelector('dialog .buttons .act').click()", nil)
		p.Await(pageTime, "!document.querySelector('dialog')")
	}
}

// forces opens a failover to a replica that is not synchronized, up to the name that has to be typed.
func (p *consolePage) forces(name string) {
	p.screen("replicas")
	p.click("Suspend " + name)
	p.Await(pageTime, "document.querySelector('dialog[open] .main')")
	p.Eval("document.querySelector('dialog .main').click()", nil)
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
	p.dismiss()
	p.click("Fail over to " + name)
	p.Await(pageTime, "document.querySelector('dialog .outcome.bad')?.innerText.includes('Msg 41142')")
	p.shots("failover-refused")
	p.Problems() // the browser calls the refusal an error
	p.click("Force it")
	p.Await(pageTime, "document.querySelector('dialog .warning') && document.querySelector('dialog .main.danger').disabled")
	p.Type("#typed", "n")
	p.Await(pageTime, "document.querySelector('dialog .main.danger').disabled")
	p.shots("failover-forced")
	p.Type("#typed", name)
	p.Await(pageTime, "!document.querySelector('dialog .main.danger').disabled")
	p.dismiss()
	p.click("Resume " + name)
	p.Await(pageTime, "document.querySelector('dialog[open] .main')")
	p.Eval("document.querySelector('dialog .main').click()", nil)
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
	p.dismiss()
}

// maintains switches the maintenance of the group on and off.
func (p *consolePage) maintains() {
	p.click("Maintenance of the group")
	p.Await(pageTime, "document.querySelector('#reason')")
	p.Type("#reason", "it's the <disk>")
	p.shots("maintenance")
	p.Eval("document.querySelector('dialog .main').click()", nil)
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
	p.dismiss()
	p.click("End maintenance of the group")
	p.Await(pageTime, "document.querySelector('dialog[open] .main')")
	p.Eval("document.querySelector('dialog .main').click()", nil)
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
	p.dismiss()
}

// joins goes through the pages of the wizard that adds a member, up to the command that is to be run.
func (p *consolePage) joins() {
	p.screen("members")
	p.click("Add a member")
	p.Await(pageTime, "document.querySelector('dialog[open] #kind')")
	p.Type("#name", "n4")
	p.shots("join-asked")
	p.next("document.querySelector('dialog .findings li')")
	p.shots("join-checked")
	p.next("document.querySelector('dialog .script')?.innerText.includes('coterie join TOKEN --name n4')")
	p.shots("join-script")
	p.Eval("document.querySelector('dialog .main').click()", nil)
	p.Await(pageTime, "document.querySelector('dialog .commands code')?.innerText.startsWith('coterie join ')")
	p.shots("join")
	p.dismiss()
}

// next goes to the next page of the wizard, which is there once the expression is true.
func (p *consolePage) next(there string) {
	p.Eval("document.querySelector('dialog .main').click()", nil)
	p.Await(pageTime, there)
}

// audited holds that the audit has the failover, with the role, the way and the address.
func (p *consolePage) audited() {
	var found string
	p.Eval("fetch('/api/v1/views/coterie.audit').then(r => r.json()).then(d => d.rows.map(r => r.join('|')).join('\\n'))", &found)
	for _, want := range []string{"|olaf|coterie_operator|API|127.0.0.1|ALTER AVAILABILITY GROUP [lab] FAILOVER TO N'", "|anna|coterie_admin|API|127.0.0.1|ALTER AVAILABILITY GROUP [lab] SET (MAINTENANCE = N'it''s the <disk>')|done|"} {
		if !strings.Contains(found, want) {
			p.t.Errorf("the audit has no %q:\n%s", want, found)
		}
	}
}

// accessible asks axe-core about what is open: names, roles, contrast.
func (p *consolePage) accessible(where string) {
	p.t.Helper()
	for _, f := range p.Violations() {
		p.t.Errorf("%s: %s", where, f)
	}
}
