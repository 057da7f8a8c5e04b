package web

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// evil is a name that runs as a script where a page makes HTML of it.
const evil = `<img src=x onerror="pwned=1"><b>'"&`

// used is charted, with sessions of clients in it.
func used() *group {
	g := charted()
	now := time.Now().UTC()
	at := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339Nano) }
	sessions := rows{{"node", "session_id", "user_name", "database_name", "client", "tls", "tls_identity", "intent", "list_entry", "replica", "state", "since", "bytes_in", "bytes_out", "pid", "path", "backend", "failover", "failover_reason", "node_loss", "node_loss_reason", "server_loss", "open_transaction", "open_transaction_reason", "statement", "commit_in_doubt", "commit_in_doubt_reason"}}
	for i := range 120 {
		node, replica, intent, state, loss, why := fmt.Sprint("n", i%3+1), "n1", "READ_WRITE", []string{"active", "idle", "idle", "idle in transaction"}[i%4], "KEPT", any(nil)
		if i%5 < 2 {
			replica, intent = fmt.Sprint("n", i%5+2), "READ_ONLY"
		}
		if node == replica {
			loss, why = "ENDS", "it came through the listener of that node"
		}
		user, tx, doubt, doubtWhy := "shop", any(nil), any(nil), any(nil)
		if i%20 == 0 {
			user = evil
		}
		if i%4 == 3 {
			tx, doubt = "ENDS", "PROVED"
		}
		if i%24 == 3 {
			doubt, doubtWhy = "UNKNOWN", "not asked"
		}
		sessions = append(sessions, []any{node, int64(i), user, "orders", fmt.Sprintf("10.1.%d.%d:5%04d", i%7, i%250, i), "TLSv1.3", nil, intent, nil, replica, state, at(time.Duration(i*i) * time.Second), int64(i * 1000), int64(i * 9000), int64(4000 + i), []string{"kernel", "loop"}[i%2], "own", "LIKELY", "nothing known is against it", loss, why, "KEPT", tx, nil, nil, doubt, doubtWhy})
	}
	routed := rows{{"node", "at", "readers", "routed", "routed_pct"}}
	for i := range 50 {
		routed = append(routed, []any{fmt.Sprint("n", i%3+1), at(time.Duration(i) * time.Second), int64(i%9 + 1), int64(i % 9), 80.0})
	}
	g.tables = map[string]rows{
		"coterie.sessions": sessions, "coterie.routed": routed, "coterie.continuity_history": lastWeek(now),
		"coterie.continuity": {
			{"node", "replica", "application_name", "user_name", "sessions", "failover", "failover_reason", "node_loss", "node_loss_reason", "server_loss", "server_loss_reason", "open_transaction", "statement", "commit_in_doubt", "commit_in_doubt_reason"},
			{"n1", "n1", "checkout", "shop", int64(170), "LIKELY", "nothing known is against it", "ENDS", "it came through the listener of that node", "KEPT", nil, nil, nil, nil, nil},
			{"n2", "n1", "checkout", "shop", int64(60), "KEPT", nil, "KEPT", nil, "KEPT", nil, "KEPT", nil, "PROVED", nil},
			{"n2", "n1", evil, evil, int64(20), "ENDS", "it has temporary objects", "ENDS", "it has temporary objects", "ENDS", "it has temporary objects", nil, "CREATE TEMP TABLE", "UNKNOWN", "statement"},
			{"n3", "n3", "", "report", int64(40), "KEPT", nil, "KEPT", nil, "KEPT", nil, "ENDS", nil, "UNKNOWN", "not asked"},
			{"n3", "n1", nil, nil, int64(7), "KEPT", nil, "KEPT", nil, "ENDS", "its state is not known", nil, nil, nil, nil},
		},
		"coterie.routes": {
			{"node", "target", "is_primary", "healthy", "readable", "list_entry", "epoch", "fell_back", "lagged"},
			{"n1", "n1", true, true, false, nil, int64(7), int64(3), int64(0)},
			{"n1", "n2", false, true, true, int64(1), int64(7), int64(3), int64(0)},
			{"n1", "n3", false, true, false, int64(2), int64(7), int64(3), int64(0)},
			{"n2", "n1", true, false, false, nil, int64(7), int64(0), int64(9)},
			{"n2", "n2", false, true, true, int64(1), int64(7), int64(0), int64(9)},
		},
		"coterie.options": {
			{"replica", "place", "option", "value", "is_set", "verdict"},
			{"n1", "PRIMARY_ROLE", "READ_ONLY_ROUTING_LIST", "((N'n2', N'n3'), N'n1')", true, "in effect"},
			{"n2", "PRIMARY_ROLE", "READ_ONLY_ROUTING_LIST", "NONE", true, "in effect"},
			{"n3", "PRIMARY_ROLE", "READ_ONLY_ROUTING_LIST", "all others in turn, then the primary", false, "in effect"},
		},
	}
	return g
}

// lastWeek is what two nodes recorded in the week before now: an hour in which few sessions would have been kept, and
// one in which there were none.
func lastWeek(now time.Time) rows {
	out := rows{{"node", "hour", "looks", "sessions", "failover_pct", "failover_reason", "node_loss_pct", "node_loss_reason", "server_loss_pct", "server_loss_reason", "open_transactions", "replayed_pct", "replayed_reason"}}
	for i := range 168 {
		at, kept, why := now.Truncate(time.Hour).Add(-time.Duration(i)*time.Hour).Format(time.RFC3339), 100.0, any(nil)
		if i == 20 {
			kept, why = 25.0, "it has temporary objects"
		}
		sessions := 40.0
		if i == 30 {
			sessions = 0
		}
		out = append(out, []any{"n1", at, int64(60), sessions, kept, why, 50.0, "it came through the listener of that node", 100.0, nil, 2.5, nil, nil},
			[]any{"n2", at, int64(60), sessions, 100.0, nil, 100.0, nil, 100.0, nil, 0.0, nil, nil})
	}
	return out
}

// TestSessionsInABrowser looks at the sessions of a group and at one without any: the kinds, the columns that the
// browser keeps, a name that would run as a script, and a view that cannot be read.
func TestSessionsInABrowser(t *testing.T) {
	g := used()
	p, _ := openPage(t, g, "anna", "sessions")
	p.Await(pageTime, "document.querySelector('.tile .number')?.innerText === '297' && document.querySelectorAll('.bars rect').length > 50 && !document.querySelector('.skeleton')")
	p.widths("sessions")
	p.says("n2 and n3 in turn, then n1", "the primary alone", "n3: no readers taken", "n1, which does not answer it", "CREATE TEMP TABLE", "The first 100 of 120 are shown", "Planned failover 99.7 % kept", "least 62.5 %", "it has temporary objects", "Its node dies 75 % kept", "PostgreSQL dies 100 % kept", "Open transactions none was open", "Of 297 sessions 120 are listed", evil)
	p.Eval("[...document.querySelectorAll('.chip')].find(b => b.innerText.startsWith('Idle in a transaction')).click()", nil)
	p.Await(pageTime, "[...document.querySelectorAll('[aria-label=Sessions] tbody tr')].length === 30")
	p.says("0 % not asked", "0 % statement", "COMMIT would get 08007 5")
	p.Type("#find", "img src")
	p.Await(pageTime, "document.querySelector('[aria-label=Sessions]') === null && document.body.innerText.includes('No session is of this kind')")
	p.Eval("[...document.querySelectorAll('.chip')].find(b => b.innerText.startsWith('All')).click()", nil)
	p.Await(pageTime, "document.querySelectorAll('[aria-label=Sessions] tbody tr').length === 6")
	p.chooses()
	g.mu.Lock()
	g.tables = map[string]rows{"coterie.sessions": {{"node"}}, "coterie.continuity": {{"node"}}, "coterie.continuity_history": {{"node"}}, "coterie.routed": {{"node"}}, "coterie.routes": {{"node"}}, "coterie.options": {{"replica"}}}
	g.mu.Unlock()
	p.Await(pageTime, "document.body.innerText.includes('There are no sessions of clients') && document.body.innerText.includes('No reader has logged in')")
	p.widths("sessions-none")
}

// says holds that the page shows these texts before long.
func (p *chartPage) says(texts ...string) {
	p.t.Helper()
	shown := p.Text()
	lacks := func() int {
		return slices.IndexFunc(texts, func(x string) bool { return !strings.Contains(shown, x) })
	}
	for deadline := time.Now().Add(pageTime); lacks() >= 0; shown = p.Text() { // views come one after the other
		if time.Now().After(deadline) {
			p.t.Errorf("the page does not say %q:\n%s", texts[lacks()], shown)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// chooses adds a column by the keyboard, finds it again in a page that is loaded anew, and takes the usual ones.
func (p *chartPage) chooses() {
	p.t.Helper()
	const heads = "[...document.querySelectorAll('[aria-label=Sessions] thead th')].map(x => x.innerText).join()"
	p.Eval("document.querySelector('.columns summary').focus()", nil)
	p.Press("Enter", false)
	p.Await(pageTime, "document.querySelector('.columns').open")
	p.picture("columns-menu")
	p.Eval("[...document.querySelectorAll('.menu input')].find(i => i.parentElement.innerText.startsWith('Process')).focus()", nil)
	p.Press(" ", false)
	p.Await(pageTime, heads+".endsWith('Process')")
	p.Press("Escape", false)
	p.Await(pageTime, "!document.querySelector('.columns').open && document.activeElement.matches('.columns summary')")
	p.Eval("window.before = true; location.reload()", nil)
	p.Await(pageTime, "!window.before && document.querySelector('.live.good') && "+heads+".endsWith('Process')")
	p.Eval("document.querySelector('.columns summary').click(); [...document.querySelectorAll('.menu button')][0].click()", nil)
	p.Await(pageTime, "!"+heads+".includes('Process') && ![...document.querySelectorAll('.menu input')].find(i => i.parentElement.innerText.startsWith('Process')).checked")
}
