package web

import (
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

// click clicks the button with that name, or the main one of the dialog.
func (p *chartPage) click(name string) {
	p.t.Helper()
	find := "document.querySelector('dialog .main')"
	if name != "" {
		find = "[...document.querySelectorAll('button')].find(b => (b.getAttribute('aria-label') ?? b.innerText) === '" + name + "')"
	}
	p.Await(pageTime, find+" && !"+find+".disabled")
	p.Eval(find+".click()", nil)
}

// choose chooses a value of a select.
func (p *chartPage) choose(id, value string) {
	p.t.Helper()
	p.Await(pageTime, "document.querySelector('#"+id+"')")
	p.Eval("{ const s = document.querySelector('#"+id+"'); s.value = '"+value+"'; s.dispatchEvent(new Event('change')); }", nil)
}

// TestWizardInABrowser adds a replica by the wizard: a name that is taken, and the way back; the script; the token; the
// statement that the page executes once the replica has joined, which is that of the script; and its way until it is in
// step. Focus and names are held on every page.
func TestWizardInABrowser(t *testing.T) {
	g := charted()
	p, _ := openPage(t, g, "anna", "members")
	p.click("Add a member")
	p.Await(pageTime, "document.querySelector('dialog:modal #name')")
	p.Type("#name", "n1")
	p.choose("mode", "ASYNCHRONOUS_COMMIT")
	p.Await(pageTime, "!document.querySelector('#failover')")
	p.choose("readers", "NO")
	p.choose("routing", "NONE")
	p.widths("wizard-choose")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog').innerText.includes('already has a member n1') && !document.querySelector('dialog .main')")
	p.widths("wizard-problem")
	p.click("Back")
	p.Await(pageTime, "document.querySelector('#readers')?.value === 'NO' && document.querySelector('#mode').value === 'ASYNCHRONOUS_COMMIT' && document.querySelector('#routing').value === 'NONE'")
	p.Type("#name", "n4")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog').innerText.includes('the name n4 is free')")
	p.Await(pageTime, "document.activeElement.id === 'dialog-title'")
	p.widths("wizard-checked")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .script')")
	p.widths("wizard-summary")
	var script string
	p.Eval("document.querySelector('dialog .script').innerText", &script)
	const want = "ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'n4' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL, SECONDARY_ROLE (ALLOW_CONNECTIONS = NO), PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = NONE))"
	if !strings.Contains(script, "coterie join TOKEN --name n4") || !strings.HasSuffix(strings.TrimSpace(script), want+";") {
		t.Errorf("the script is\n%s", script)
	}
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .commands code')?.innerText === 'coterie join secret --name n4'")
	p.widths("wizard-token")
	p.follows(g, want)
}

// TestWizardOfWhatWasChecked holds that the member which was checked is the one that joins, if another name is typed
// before the node has answered.
func TestWizardOfWhatWasChecked(t *testing.T) {
	p, _ := openPage(t, charted(), "anna", "members")
	p.Eval("{ const real = window.fetch; window.fetch = async (...x) => { const answer = await real(...x); if (x[0].endsWith('/plan')) await new Promise((d) => { window.goOn = d; }); return answer; }; }", nil)
	p.click("Add a member")
	p.Await(pageTime, "document.querySelector('dialog:modal #name')")
	p.Type("#name", "n4")
	p.click("")
	p.Await(pageTime, "window.goOn")
	p.Type("#name", "n5")
	p.Eval("window.goOn()", nil)
	p.Await(pageTime, "document.querySelector('dialog').innerText.includes('the name n4 is free')")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .script')?.innerText.includes('--name n4')")
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .commands code')?.innerText.startsWith('coterie join secret --name ')")
	var command string
	if p.Eval("document.querySelector('dialog .commands code').innerText", &command); command != "coterie join secret --name n4" {
		t.Errorf("n4 was checked, and the command is %q", command)
	}
}

// follows has the replica join, and looks at what the wizard tells of it.
func (p *chartPage) follows(g *group, statement string) {
	joined := func(state ag.SyncState, progress string) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.st.Replicas = append(slices.Clone(g.st.Replicas[:3]), api.Replica{Name: "n4", Role: ag.RoleSecondary, Mode: ag.AsynchronousCommit, Sync: state, Connected: "CONNECTED", Progress: progress})
	}
	joined(ag.Initializing, "copied 3 of 10 GB")
	p.Await(pageTime, "document.querySelectorAll('dialog .steps .done').length === 3 && document.querySelector('dialog .steps .now').innerText.includes('copied 3 of 10 GB')")
	p.widths("wizard-copy")
	g.mu.Lock()
	ran := slices.Clone(g.ran)
	g.mu.Unlock()
	if len(ran) != 1 || !strings.HasPrefix(ran[0], statement+" by ") {
		p.t.Errorf("the page had %q executed, and the script has %q", ran, statement)
	}
	joined(ag.Synchronizing, "")
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')?.innerText.includes('n4 is a replica of the group')")
	p.picture("wizard-done")
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('dialog')")
	p.clean("the wizard")
}
