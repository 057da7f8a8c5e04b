package web

import (
	"fmt"
	"testing"
)

// set is charted, with settings that differ, that wait for a restart, that are secret, and that are named to run.
func set() *group {
	g := charted()
	all := rows{{"node", "name", "value", "source", "pending_restart"}}
	for i, node := range []string{"n1", "n2", "n3"} {
		all = append(all, []any{node, "fsync", "on", "command line", false})
		for k := range 30 {
			all = append(all, []any{node, fmt.Sprintf("setting_%02d", k), fmt.Sprint(k), "default", false})
		}
		all = append(all,
			[]any{node, "work_mem", "64MB", "configuration file", false}, []any{node, "max_connections", "200", "configuration file", i == 1},
			[]any{node, "log_min_duration_statement", []string{"1s", "1s", "250ms"}[i], "configuration file", false}, []any{node, "archive_command", "hidden:abcd0123", "configuration file", false},
			[]any{node, evil, evil, "session", false})
	}
	g.tables = map[string]rows{
		"coterie.settings": all,
		"coterie.parameters": {
			{"node", "name", "value", "of_replica", "in_force", "pending_restart"},
			{"n1", "work_mem", "64MB", false, "64MB", false},
			{"n2", "work_mem", "64MB", false, "64MB", false},
			{"n3", "work_mem", "1GB", true, "1GB", false},
			{"n1", "max_connections", "300", false, "300", false},
			{"n2", "max_connections", "300", false, "200", true},
			{"n3", "max_connections", "300", false, nil, nil},
			{"n1", "archive_command", nil, false, "hidden:abcd0123", false},
			{"n2", "archive_command", nil, false, nil, nil},
		},
	}
	return g
}

// TestSettingsInABrowser looks at the settings of a group, finds some of them, and reads what would change one.
func TestSettingsInABrowser(t *testing.T) {
	g := set()
	p, _ := openPage(t, g, "vera", "settings")
	p.Await(pageTime, "document.querySelectorAll('[aria-label=\"Settings of the servers\"] tbody tr').length === 5")
	p.says("once n2 is restarted", "on every replica", "n2 does not answer", "not shown: it may hold a secret", "n2: waits for a restart", "the same everywhere", evil)
	p.widths("settings")
	p.Eval("[...document.querySelectorAll('.chip')].find(b => b.innerText.startsWith('Differ')).click()", nil)
	p.Await(pageTime, "document.querySelectorAll('[aria-label=\"Settings of the servers\"] tbody tr').length === 1")
	p.says("n3 250ms", "n1 1s")
	p.Eval("[...document.querySelectorAll('.chip')].find(b => b.innerText.startsWith('All')).click()", nil)
	p.Type("#find-setting", "fsync")
	p.Await(pageTime, "document.body.innerText.includes('the agent, at the start') && !document.querySelector('[aria-label=\"Script that changes fsync\"]')")
	p.Type("#find-setting", "work")
	p.Await(pageTime, "document.querySelectorAll('[aria-label=\"Settings of the servers\"] tbody tr').length === 1")
	p.Eval("[...document.querySelectorAll('[aria-label=\"Script that changes work_mem\"]')].at(-1).click()", nil)
	p.Await(pageTime, "document.querySelector('dialog:modal #value')?.value === '64MB'")
	p.Type("#value", "it's a b")
	p.choose("to", "n2")
	p.Await(pageTime, `[...document.querySelectorAll('dialog .script')].map(s => s.innerText).join('|') === "coterie settings set work_mem='it'\\''s a b' --replica n2|ALTER AVAILABILITY GROUP g SET PARAMETER work_mem = 'it''s a b' FOR REPLICA N'n2';"`)
	p.widths("settings-script")
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('dialog')")
	g.mu.Lock()
	g.tables = map[string]rows{"coterie.settings": {{"node"}}, "coterie.parameters": {{"node"}}}
	g.mu.Unlock()
	p.Await(pageTime, "document.body.innerText.includes('No server answers') && document.body.innerText.includes('The group has none of its own')")
	p.picture("settings-none")
	p.clean("no settings")
}
