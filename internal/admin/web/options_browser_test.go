package web

import (
	"slices"
	"strings"
	"testing"
)

// TestOptionsInABrowser changes an option of the group, one of a replica and a routing list in their dialogs: each is
// the statement that it would be if it were typed, and only what was changed is in it.
func TestOptionsInABrowser(t *testing.T) {
	g := charted()
	g.tables = map[string]rows{"coterie.options": {
		{"replica", "place", "option", "value", "is_set", "verdict"},
		{nil, "GROUP", "DB_FAILOVER", "ON", false, "in effect"},
		{nil, "GROUP", "HEALTH_CHECK_TIMEOUT", "10000", false, "in effect"},
		{nil, "GROUP", "COMMIT_RULE", "QUORUM", false, "in effect"},
		{nil, "GROUP", "FAILURE_DETECTION", "ADAPTIVE(700)", true, "in effect"},
		{"n2", "REPLICA", "BACKUP_PRIORITY", "50", false, "in effect"},
		{"n2", "REPLICA", "FAILOVER_MODE", "AUTOMATIC", true, "in effect"},
		{"n2", "SECONDARY_ROLE", "ALLOW_CONNECTIONS", "READ_ONLY", false, "in effect"},
		{"n1", "PRIMARY_ROLE", "READ_ONLY_ROUTING_LIST", "(N'n3', N'n2')", true, "in effect"},
	}}
	p, _ := openPage(t, g, "anna", "replicas")
	p.click("Options of the group")
	p.Await(pageTime, "document.querySelector('#o-GROUP-FAILURE_DETECTION')?.value === 'ADAPTIVE(700)' && document.querySelector('dialog .main').disabled")
	p.choose("o-GROUP-DB_FAILOVER", "OFF")
	p.Await(pageTime, "document.querySelector('dialog .preview').innerText.includes('DB_FAILOVER = OFF')")
	p.widths("options-group")
	p.done()
	p.click("Options of n2")
	p.Await(pageTime, "document.querySelector('#o-REPLICA-BACKUP_PRIORITY')?.value === '50'")
	p.Type("#o-REPLICA-BACKUP_PRIORITY", "10")
	p.choose("o-SECONDARY_ROLE-ALLOW_CONNECTIONS", "NO")
	p.Await(pageTime, "document.querySelector('dialog .preview').innerText.includes('BACKUP_PRIORITY = 10')")
	p.widths("options-replica")
	p.done()
	p.click("Routing while n1 is the primary")
	p.Await(pageTime, "document.querySelector('#way')?.value === 'list' && document.querySelector('#place-n3').value === '1' && document.querySelector('#place-n2').value === '2' && document.querySelector('#place-n1').value === ''")
	p.choose("place-n2", "1")
	p.choose("place-n1", "2")
	p.Await(pageTime, "document.querySelector('dialog .preview').innerText === 'First n2 and n3 in turn, then n1.'")
	p.widths("routing")
	p.done()
	g.mu.Lock()
	ran := slices.Clone(g.ran)
	g.mu.Unlock()
	const alter = "ALTER AVAILABILITY GROUP [g] "
	for i, want := range []string{
		alter + "SET (DB_FAILOVER = OFF) by", alter + "MODIFY REPLICA ON N'n2' WITH (BACKUP_PRIORITY = 10, SECONDARY_ROLE (ALLOW_CONNECTIONS = NO)) by",
		alter + "MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ((N'n2', N'n3'), N'n1'))) by",
	} {
		if i >= len(ran) || !strings.HasPrefix(ran[i], want) {
			t.Errorf("statement %d is not %q: %q", i, want, ran)
		}
	}
	p.click("Options of n3")
	p.Await(pageTime, "document.querySelector('#o-REPLICA-BACKUP_PRIORITY')")
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('dialog')")
	p.clean("the dialogs of options")
}

// done makes the change of a dialog, waits for its end and closes it.
func (p *chartPage) done() {
	p.t.Helper()
	p.click("")
	p.Await(pageTime, "document.querySelector('dialog .outcome.good')")
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('dialog')")
}
