package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/test/browser"
)

// TestGroupFromTheBrowser makes a group in the browser alone: nodes that have joined each other get it by the wizard, a
// member is added by the other wizard, and the group is failed over. The wizard's script makes the same group on other
// nodes. A viewer makes none.
func TestGroupFromTheBrowser(t *testing.T) {
	long(t)
	b := browser.Start(t)
	g := raise(t, lab.Options{NoGroup: true, Replicas: 2})
	s := g.ready(t)
	t.Cleanup(func() {
		if t.Failed() {
			g.showLogs(t)
		}
	})
	g.hostileNames(t)
	viewer := g.draftPage(t, b, s, "n2", "vera")
	viewer.refusedGroup()
	p := g.draftPage(t, b, s, "n1", "anna")
	p.Show(1200, 520, false)
	p.picture("founding.webp", 520)
	p.shots("founding-none")
	script := p.found()
	made := g.configuration(t, "n1")
	if made.Draft || made.Name != "Sales" || made.Profile != "wan" || len(made.Options.Databases) != 2 || len(made.Options.Listeners) != 1 {
		t.Errorf("made was %+v", made)
	}
	again := raise(t, lab.Options{NoGroup: true, Replicas: 2})
	again.ready(t)
	file := filepath.Join(t.TempDir(), "script.sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "sql", "--node", again.node("n1"), "-f", file)
	own := cmp.Options{ // of each node and each group
		cmpopts.IgnoreFields(ag.Group{}, "ID", "SystemID", "Serial", "SignedOnly", "SignedRecord"),
		cmpopts.IgnoreFields(ag.Replica{}, "Endpoint", "Listener", "ReadOnly", "HTTP", "KeyPin", "EtcdID"), cmpopts.EquateEmpty(),
		cmpopts.SortSlices(func(a, b ag.Replica) bool { return a.ID < b.ID }),
	}
	if diff := cmp.Diff(made, again.configuration(t, "n1"), own, everyField); diff != "" {
		t.Errorf("the wizard and its script make different groups (-wizard +script):\n%s", diff)
	}
	again.makesOnce(t, b)
	again.down(t)
	n9 := p.addsMember(newDesk(t, g, "n1"))
	p.failOver(g, "n1", "n2")
	p.clean("a group from the browser")
	n9.stop(t)
	g.down(t)
}

// makesOnce takes the group away and makes another one: the agent dies while the wizard is open, which keeps what was
// entered; and of two browsers that make a group at once, on two nodes, one does.
func (g *group) makesOnce(t *testing.T, b *browser.Browser) {
	t.Helper()
	must(t, "sql", "--node", g.node("n1"), "-c", "DROP AVAILABILITY GROUP [Sales]")
	g.execute(t, "CREATE ROLE anna LOGIN PASSWORD 'a pass\"word <b>'", "GRANT coterie_admin TO anna")
	s := g.ready(t)
	p := g.draftPage(t, b, s, "n1", "anna")
	p.click("New group")
	p.Await(pageTime, "document.querySelector('dialog:modal #group')")
	p.Type("#group", "After")
	for _, there := range []string{".ticks input", "#mode-n1", "#listener", ".findings li", ".script"} {
		p.next("document.querySelector('dialog " + there + "')")
	}
	g.kill(t, "n1")
	p.next("document.querySelector('dialog .error')?.innerText.includes('does not answer')")
	g.start(t, "n1")
	p.Await(pageTime, "document.querySelector('#user')") // the agent has forgotten the session
	p.Problems()                                         // the browser calls what was not answered an error
	p.Type("#user", "anna")
	p.Type("#password", `a pass"word <b>`)
	g.await(t, "n1 to take writes again", func(s lab.Status) bool { return s.Primary != nil && *s.Primary == "n1" && s.Draft })
	p.Eval("document.querySelector('form').requestSubmit()", nil)
	p.Await(pageTime, "document.querySelector('.begin button') && document.querySelector('.live.good')")
	p.click("New group")
	p.Await(pageTime, "document.querySelector('dialog:modal #group')?.value === 'After'")
	other := g.draftPage(t, b, g.ready(t), "n2", "anna")
	const create = `fetch('/api/v1/create', { method: 'POST', headers: { 'Content-Type': 'application/json', 'Idempotency-Key': 'k' }, body: JSON.stringify({ group: '%s', replicas: [{ replica: 'n1' }] }) }).then(r => r.json()).then(d => { window.made = d.number || d.state; })`
	p.Eval("void "+fmt.Sprintf(create, "One"), nil)
	other.Eval("void "+fmt.Sprintf(create, "Two"), nil)
	var ends []string
	for _, x := range []*consolePage{p, other} {
		var end string
		x.Await(pageTime, "window.made")
		x.Eval("String(window.made)", &end)
		ends = append(ends, end)
	}
	if slices.Sort(ends); !slices.Equal(ends, []string{"41042", "done"}) {
		t.Errorf("two browsers that make a group at once: %q", ends)
	}
	p.next("document.querySelector('dialog .error')?.innerText.includes('exists already')")
}

// draftPage logs a browser in to a node without a group.
func (g *group) draftPage(t *testing.T, b *browser.Browser, s lab.Status, node, user string) *consolePage {
	t.Helper()
	p := &consolePage{Page: b.Page(), t: t, node: node}
	r, _ := s.Replica(node)
	p.at = r.Console
	p.Show(1440, 900, false)
	p.Open(p.at)
	p.Await(pageTime, "document.querySelector('#user')")
	p.Type("#user", user)
	p.Type("#password", `a pass"word <b>`)
	p.Eval("document.querySelector('form').requestSubmit()", nil)
	p.Await(pageTime, "document.querySelector('.live.good') && document.querySelector('.begin')?.innerText.includes('No availability group yet')")
	return p
}

// refusedGroup holds that a viewer is told which role makes a group, and that the node itself refuses.
func (p *consolePage) refusedGroup() {
	p.click("New group: needs the role coterie_admin")
	p.Await(pageTime, "document.querySelector('dialog[open]').innerText.includes('GRANT coterie_admin TO \"vera\"')")
	p.dismiss()
	p.clean("a viewer without a group")
	var code int
	p.Eval(`fetch('/api/v1/create', { method: 'POST', headers: { 'Content-Type': 'application/json', 'Idempotency-Key': 'k' }, body: JSON.stringify({ group: 'Mine', replicas: [{ replica: 'n1' }] }) }).then(r => r.status)`, &code)
	if code != 403 {
		p.t.Errorf("a viewer's group: %d", code)
	}
}

// found makes the group of n1 and n2 by the wizard, and returns its script.
func (p *consolePage) found() (script string) {
	choose := func(id, value string) {
		p.Await(pageTime, "document.querySelector('#"+id+"')")
		p.Eval(fmt.Sprintf("{ const s = document.querySelector('#%s'); s.value = %q; s.dispatchEvent(new Event('change')); }", id, value), nil)
	}
	p.click("New group")
	p.Await(pageTime, "document.querySelector('dialog:modal #group')")
	p.Type("#group", "Sales")
	choose("profile", "WAN") // a busy machine may refuse the shorter ones
	p.shots("founding-options")
	p.next("document.querySelectorAll('dialog .ticks input').length > 1")
	p.Eval("[...document.querySelectorAll('dialog .ticks label')].find(l => l.innerText.startsWith('<img')).querySelector('input').click()", nil)
	p.Type("#created", "shop")
	p.shots("founding-databases")
	p.next("document.querySelector('#mode-n1')")
	choose("readers-n2", "ALL")
	choose("required", "0")
	p.shots("founding-replicas")
	p.next("document.querySelector('dialog #listener')")
	p.Type("#listener", "sales-l")
	p.shots("founding-listener")
	p.next("document.querySelectorAll('dialog .findings li').length > 3")
	p.shots("founding-checked")
	p.Show(1200, 760, false)
	p.picture("founding-checked.webp", 760)
	p.next("document.querySelector('dialog .script')")
	p.shots("founding-summary")
	p.Eval("document.querySelector('dialog .script').innerText", &script)
	p.next("document.querySelector('dialog .steps')")
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')?.innerText.includes('n1 is the primary of Sales')")
	p.shots("founding-done")
	return script
}

// addsMember goes on to the wizard that adds a member, and has n9 join by the command that it shows.
func (p *consolePage) addsMember(d *desk) *running {
	t := p.t
	p.next("document.querySelector('dialog #name')")
	p.Type("#name", "n9")
	p.next("document.querySelector('dialog .findings li')")
	p.next("document.querySelector('dialog .script')")
	p.next("document.querySelector('dialog .commands code')")
	var command string
	p.Eval("document.querySelector('dialog .commands code').innerText", &command)
	words := strings.Fields(command)
	if len(words) != 5 || words[0] != "coterie" || words[1] != "join" {
		t.Fatal("the command is not that of a join")
	}
	t.Cleanup(func() { reap(d.dir) })
	r := d.joins(t, words[1:])
	for began := time.Now(); ; {
		var joined bool
		if p.Eval("document.querySelectorAll('dialog .steps .done').length > 0", &joined); joined {
			break
		}
		select {
		case <-r.ended:
			if !strings.Contains(r.out.String(), "a host that is not as busy") || time.Since(began) > patience {
				t.Fatalf("n9 does not join: %s", r.out)
			}
			r = d.joins(t, words[1:]) // it is right to refuse, and not what the test is about
		case <-time.After(200 * time.Millisecond):
		}
	}
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')?.innerText.includes('n9 is a replica of the group')")
	p.shots("join-done")
	p.dismiss()
	return r
}

// joins starts the command by which n9 joins and runs.
func (d *desk) joins(t *testing.T, words []string) *running {
	t.Helper()
	r := &running{cmd: exec.Command(exe, slices.Concat(words, []string{"--node", d.node}, d.ports)...), out: &said{}, ended: make(chan struct{})}
	r.cmd.Dir, r.cmd.Stdout, r.cmd.Stderr, r.cmd.WaitDelay = "/", r.out, r.out, 5*time.Second
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // what it has said is looked at
	}()
	t.Cleanup(func() { r.stop(t) })
	return r
}

// configuration returns the group as a node has it, once the node knows of one.
func (g *group) configuration(t *testing.T, node string) (out ag.Group) {
	t.Helper()
	l, err := config.NewLayout(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	g.await(t, node+" to have a group whose replicas have joined", func(lab.Status) bool {
		var x ag.Group
		b, err := os.ReadFile(filepath.Join(l.State(), "group.json"))
		if err != nil || json.Unmarshal(b, &x) != nil {
			return false
		}
		out = x
		return !x.Draft && !slices.ContainsFunc(x.Replicas, func(r ag.Replica) bool { return r.Join != "" })
	})
	return out
}
