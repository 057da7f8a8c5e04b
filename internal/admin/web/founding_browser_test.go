package web

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

// hostileName is a name of a database that would run as a script where a page makes HTML of it.
const hostileName = `<img src=x onerror="pwned=1">'"]&`

// groupless is a node that has the data, n1, with two others that have joined it, and no group.
func groupless() *group {
	g := charted()
	g.nodes = apart()
	g.st.Draft, g.st.Profile, g.st.Version = true, "default", "17.5"
	for i := range g.st.Replicas {
		g.st.Replicas[i].Join = ag.Detached
	}
	g.tables = map[string]rows{"coterie.databases": {{"name"}, {"postgres"}, {"shop"}, {hostileName}, {"constructor"}}}
	return g
}

// TestFoundingInABrowser makes a group by the wizard: the first screen says that there is none; a number that is too
// low is found on its page, and the way back keeps what was entered; the statement that the page executes is the first
// of the script; a replica joins, and the steps follow it.
func TestFoundingInABrowser(t *testing.T) {
	g := groupless()
	p, _ := openPage(t, g, "anna", "")
	p.Await(pageTime, "document.querySelector('.begin')?.innerText.includes('No availability group yet')")
	p.widths("founding-none")
	p.click("New group")
	p.Await(pageTime, "document.querySelector('dialog:modal #group')")
	p.widths("founding-options")
	p.Type("#group", "Sales <b>")
	p.Eval("document.querySelector('.more summary').click()", nil)
	p.Type("#timeout", "5")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .error').innerText.includes('HEALTH_CHECK_TIMEOUT') && document.querySelector('#group')")
	p.widths("founding-refused")
	p.Type("#timeout", "10000")
	p.choose("profile", "FAST")
	p.click("")
	p.Await(pageTime, "document.querySelectorAll('dialog .ticks input').length === 4 && !document.querySelector('#db-3').checked && document.activeElement.id === 'dialog-title'")
	p.Eval("document.querySelector('#db-2').click()", nil)
	p.Type("#created", "orders")
	p.widths("founding-databases")
	p.click("")
	p.Await(pageTime, "document.querySelector('#mode-n1') && document.querySelector('#part-n3')")
	p.choose("failover-n1", "MANUAL")
	p.choose("routing-n1", "NONE")
	p.choose("required", "1")
	p.Eval("document.querySelector('#part-n3').click()", nil)
	p.Await(pageTime, "!document.querySelector('#mode-n3') && document.querySelectorAll('#required option').length === 3")
	p.widths("founding-replicas")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog #listener')")
	p.Type("#listener", "sales-l")
	p.Type("#addresses", "10.0.0.9")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .error').innerText.includes('length of its prefix')")
	p.Type("#addresses", "10.0.0.9/24")
	p.Type("#port", "1433")
	p.widths("founding-listener")
	p.click("")
	p.Await(pageTime, "document.querySelectorAll('dialog .findings li').length > 3")
	p.widths("founding-checked")
	p.kept()
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .script')")
	p.widths("founding-summary")
	p.makes(g)
}

// kept goes back to the first page and forward again, and holds that everything is as it was.
func (p *chartPage) kept() {
	for _, there := range []string{
		"document.querySelector('#port')?.value === '1433'",
		"document.querySelector('#failover-n1')?.value === 'MANUAL' && !document.querySelector('#part-n3').checked && document.querySelector('#required').value === '1'",
		"document.querySelector('#created')?.value === 'orders' && document.querySelector('#db-2').checked && !document.querySelector('#db-0').checked",
		"document.querySelector('#group')?.value === 'Sales <b>' && document.querySelector('#profile').value === 'FAST'",
	} {
		p.click("Back")
		p.Await(pageTime, there)
	}
	for _, there := range []string{"#created", "#mode-n1", "#port", ".findings li"} {
		p.click("")
		p.Await(pageTime, "document.querySelector('dialog "+there+"')")
	}
}

// makes makes the group, and looks at what the wizard tells of it.
func (p *chartPage) makes(g *group) {
	const create = `CREATE AVAILABILITY GROUP [Sales <b>]
    WITH (LEASE_PROFILE = FAST, REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 1)
    FOR DATABASE [` + `<img src=x onerror="pwned=1">'"]]&` + `], [orders]
    REPLICA ON
        N'n1' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL, PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = NONE)),
        N'n2' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC)
    LISTENER N'sales-l' (WITH IP ((N'10.0.0.9', N'255.255.255.0')), PORT = 1433)`
	const join = "ALTER AVAILABILITY GROUP [Sales <b>] JOIN REPLICA ON N'n2'"
	var script string
	p.Eval("document.querySelector('dialog .script').innerText", &script)
	if !strings.HasSuffix(strings.TrimSpace(script), create+";\n"+join+";") {
		p.t.Errorf("the script is\n%s", script)
	}
	g.mu.Lock()
	g.hold = make(chan struct{})
	g.mu.Unlock()
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .steps .now')?.innerText.includes('Sales <b> is made')")
	p.picture("founding-making")
	g.mu.Lock()
	g.nodes.Draft, g.nodes.Name, g.st.Draft, g.st.Group = false, "Sales <b>", false, "Sales <b>"
	g.st.Replicas = slices.Clone(g.st.Replicas)
	g.st.Replicas[0].Join, g.st.Replicas[1].Join, g.st.Replicas[1].Sync = "", ag.NotJoined, ag.Initializing
	close(g.hold)
	g.hold = nil
	g.mu.Unlock()
	p.Await(pageTime, "document.querySelectorAll('dialog .steps .done').length === 1")
	state := func(sync ag.SyncState, progress string) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.st.Replicas = slices.Clone(g.st.Replicas)
		g.st.Replicas[1] = api.Replica{Name: "n2", Role: ag.RoleSecondary, Mode: ag.SynchronousCommit, Sync: sync, Connected: "CONNECTED", Progress: progress}
	}
	state(ag.Initializing, "copied 3 of 10 GB")
	p.Await(pageTime, "document.querySelectorAll('dialog .steps .done').length === 2 && document.querySelector('dialog .steps .now').innerText.includes('copied 3 of 10 GB')")
	p.widths("founding-copy")
	state(ag.Synchronized, "")
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')?.innerText.includes('n1 is the primary of Sales <b>')")
	p.widths("founding-done")
	g.mu.Lock()
	ran := slices.Clone(g.ran)
	g.mu.Unlock()
	if want := []string{create + " by API anna 127.0.0.1", join + " by API anna 127.0.0.1"}; !slices.Equal(ran, want) {
		p.t.Errorf("the page had %q executed, and the script has %q", ran, want)
	}
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog #kind') && document.querySelector('dialog #name')")
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('dialog')")
	var pwned bool
	if p.Eval("Boolean(window.pwned || document.querySelector('#app img[onerror]'))", &pwned); pwned {
		p.t.Error("a name became HTML")
	}
	p.clean("the wizard")
}

// TestFoundingByKeyboard makes a group with the keyboard alone.
func TestFoundingByKeyboard(t *testing.T) {
	g := groupless()
	g.mu.Lock()
	g.st.Replicas, g.nodes.Replicas = g.st.Replicas[:1], g.nodes.Replicas[:1]
	g.mu.Unlock()
	p, _ := openPage(t, g, "anna", "")
	p.Await(pageTime, "document.querySelector('.begin button')")
	p.tabTo("document.activeElement.innerText === 'New group…'")
	p.Press("Enter", false)
	p.Await(pageTime, "document.querySelector('dialog:modal #group')")
	p.tabTo("document.activeElement.id === 'group'")
	p.Type("#group", "Sales")
	for i, there := range []string{"#created", "#mode-n1", "#port", ".findings li", ".script", ".outcome"} {
		p.tabTo("document.activeElement.classList.contains('main')")
		p.Press("Enter", false)
		p.Await(pageTime, fmt.Sprintf("document.querySelector('dialog %s')", there))
		var title bool
		if p.Await(pageTime, "document.activeElement.id === 'dialog-title'"); i == 5 {
			p.Eval("document.querySelector('dialog').contains(document.activeElement)", &title)
		}
	}
	g.mu.Lock()
	g.st.Draft = false
	g.mu.Unlock()
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
	p.clean("the keyboard")
}

// tabTo presses Tab until the expression is true of what has the focus.
func (p *chartPage) tabTo(there string) {
	p.t.Helper()
	for range 40 {
		var is bool
		if p.Eval(there, &is); is {
			return
		}
		p.Press("Tab", false)
	}
	p.t.Fatalf("Tab does not reach what this says: %s", there)
}

// TestFoundingOfAViewer holds that a viewer is told which role makes a group, and that a group which somebody else has
// made meanwhile is said, by the node's own words.
func TestFoundingOfAViewer(t *testing.T) {
	g := groupless()
	viewer, _ := openPage(t, g, "vera", "")
	viewer.click("New group: needs the role coterie_admin")
	viewer.Await(pageTime, "document.querySelector('dialog[open]').innerText.includes('GRANT coterie_admin TO \"vera\"')")
	viewer.clean("a viewer")
	p, _ := openPage(t, g, "anna", "members")
	p.click("New group")
	p.Await(pageTime, "document.querySelector('dialog:modal #group')")
	p.Type("#group", "Sales")
	g.mu.Lock()
	g.nodes.Draft, g.st.Draft, g.nodes.Name = false, false, "Other"
	g.mu.Unlock()
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .error').innerText.includes('the availability group Other exists already')")
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('dialog')")
	p.goesOn(g)
	p.clean("somebody else")
}

// goesOn has a replica join whose group was made by a wizard that was closed.
func (p *chartPage) goesOn(g *group) {
	g.mu.Lock()
	g.st.Group, g.st.Replicas = "Other", slices.Clone(g.st.Replicas)
	g.st.Replicas[0].Join, g.st.Replicas[1].Join = "", ag.NotJoined
	g.mu.Unlock()
	p.Eval("location.hash = '#/replicas'", nil)
	p.Await(pageTime, "document.querySelector('.actions')?.innerText.includes('a node without a part in the group')")
	p.widths("founding-goes-on")
	p.click("Join n2")
	p.Await(pageTime, "document.querySelector('dialog[open] .main')")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
	g.mu.Lock()
	defer g.mu.Unlock()
	if want := []string{"ALTER AVAILABILITY GROUP [Other] JOIN REPLICA ON N'n2' by API anna 127.0.0.1"}; !slices.Equal(g.ran, want) {
		p.t.Errorf("ran %q", g.ran)
	}
}
