package web

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// host returns where a browser reaches a served port.
func (b *browser) host() string { return strings.TrimPrefix(b.at, "https://") }

// beside serves a group as n2, and has the console of n1 know of it.
func (p *chartPage) beside(g *group, b *browser) *browser {
	p.t.Helper()
	other := serveAs(p.t, g, "n2")
	b.s.consoles.note(map[ag.ReplicaID]string{"n1": b.host(), "n2": other.host()}, ag.Group{Replicas: []ag.Replica{{ID: "n1"}, {ID: "n2"}}})
	return other
}

// member is a group whose configuration has n1 and n2, too.
func member() *group {
	g := charted()
	g.nodes = ag.Group{ID: "i", Name: "g", Replicas: []ag.Replica{{ID: "n1", AvailabilityMode: ag.SynchronousCommit}, {ID: "n2", AvailabilityMode: ag.SynchronousCommit}}}
	return g
}

// openBeside logs vera in at n1, whose page knows of the console of n2.
func openBeside(t *testing.T, screen string) (p *chartPage, own, other *browser) {
	t.Helper()
	g := member()
	p, own = openPage(t, g, "vera", screen)
	other = p.beside(member(), own)
	p.Eval("window.before = true; location.reload()", nil) // with the policy that names n2
	p.Await(pageTime, "!window.before && document.querySelector('.live.good') && !document.querySelector('.skeleton')")
	return p, own, other
}

// TestPageGoesOnElsewhere ends the node of a page. The page says so, finds the console of n2 by itself, and opens the
// same screen there; nobody else was asked anything before.
func TestPageGoesOnElsewhere(t *testing.T) {
	p, own, other := openBeside(t, "charts")
	if found := p.Foreign(own.at); len(found) > 0 {
		t.Errorf("while its node lived the page asked %q", found)
	}
	own.end()
	p.Await(pageTime, "document.querySelector('.banner.lost')?.innerText.includes('This page goes on at n2')")
	p.Problems() // the browser calls what its node does not answer an error
	p.Show(1440, 900, false)
	p.picture("elsewhere-leaves")
	p.Await(pageTime, fmt.Sprintf("location.host === %q && document.querySelector('#user')", other.host()))
	p.Await(pageTime, "document.activeElement.id === 'password' && document.querySelector('#user').value === 'vera' && location.hash === '#/charts'")
	p.at = other.at
	if found := p.Foreign(own.at, other.at); len(found) > 0 {
		t.Errorf("the page asked %q", found)
	}
	p.Problems()
	p.picture("elsewhere-door")
	p.Type("#password", "right")
	p.Eval("document.querySelector('form').requestSubmit()", nil)
	p.Await(pageTime, "document.querySelector('.live.good')?.innerText.includes('n2') && document.querySelectorAll('.chart').length === 9")
	p.Await(pageTime, "document.querySelector('[data-key=arrived]').innerText.includes('n1 did not answer')")
	p.asked = own.at
	p.widths("elsewhere-arrived")
	p.click("Close")
	p.Await(pageTime, "!document.querySelector('[data-key=arrived]')")
}

// TestCertificateTravels holds that somebody whose session began with a certificate is not asked for anything at the
// console at which the page goes on, and is where that console does not take the certificate.
func TestCertificateTravels(t *testing.T) {
	p, own, other := openBeside(t, "charts")
	logIn := other.s.c.LogIn
	other.s.c.LogIn = func(ctx context.Context, a Attempt) (Account, error) {
		if a.Password == "" && a.User == "vera" { // as by a certificate
			a.Password = "right"
		}
		return logIn(ctx, a)
	}
	at := fmt.Sprintf("location.assign('https://%s/#/charts?from=n1&as=%%s&by=certificate')", other.host())
	p.Eval(fmt.Sprintf(at, "nobody"), nil)
	p.Await(pageTime, fmt.Sprintf("location.host === %q && document.querySelector('#user')?.value === 'nobody'", other.host()))
	p.Problems() // the browser calls the refusal an error
	p.Eval(fmt.Sprintf("location.assign('%s/'); window.before = true", own.at), nil)
	p.Await(pageTime, "!window.before && document.querySelector('.live.good')?.innerText.includes('n1')")
	p.Eval(fmt.Sprintf(at, "vera"), nil)
	p.Await(pageTime, "document.querySelector('.live.good')?.innerText.includes('n2') && location.hash === '#/charts'")
}

// TestPageStaysWhereItIsUsed holds that a page does not go while somebody types in it, or wants it to stay; and that it
// goes at once when it is told to.
func TestPageStaysWhereItIsUsed(t *testing.T) {
	p, own, other := openBeside(t, "sql")
	p.Type("#sql", "SELECT 1")
	own.end()
	p.Await(pageTime, "document.querySelector('.banner.lost')?.innerText.includes('once you are through with this')")
	p.Problems()
	p.asked, p.dead = other.at, true
	p.widths("elsewhere-used")
	p.click("Stay here")
	p.Await(pageTime, "document.querySelector('.banner.lost').innerText.includes('This page stays')")
	p.Eval("document.activeElement.blur()", nil)
	p.Await(pageTime, "!document.querySelector('.banner.lost').innerText.includes(' in ')")
	p.Problems()
	p.picture("elsewhere-stays")
	p.click("Go to n2")
	p.Await(pageTime, fmt.Sprintf("location.host === %q && location.hash === '#/sql'", other.host()))
}

// TestPageFindsNobody holds what the page says where no other console answers.
func TestPageFindsNobody(t *testing.T) {
	p, own, other := openBeside(t, "")
	other.end()
	own.end()
	p.Await(pageTime, "document.querySelector('.banner.lost')?.innerText.includes('Neither it nor n2 can be reached')")
	p.Problems()
	p.asked, p.dead = other.at, true
	p.widths("elsewhere-nobody")
}

// TestConsolesOfOthers holds which addresses of other consoles a page is told of and may ask, and that it keeps that of
// a node which does not answer.
func TestConsolesOfOthers(t *testing.T) {
	t.Parallel()
	g := member()
	b := serve(t, g)
	look := func(list ...[]any) string {
		t.Helper()
		g.mu.Lock()
		g.tables = map[string]rows{"coalesce(console": append(rows{{"name", "console"}}, list...)}
		g.mu.Unlock()
		b.s.lookForConsoles(t.Context())
		_, _, h := b.do("GET", "/", "")
		return h.Get("Content-Security-Policy")
	}
	if got := look([]any{"n1", "db1:8443"}, []any{"n2", "db2:8443"}, []any{"n9", "evil:1"}); !strings.Contains(got, "connect-src 'self' https://db2:8443/here;") || strings.Contains(got, "db1") || strings.Contains(got, "evil") {
		t.Errorf("the policy is %q", got)
	}
	if got := look([]any{"n1", "db1:8443"}); !strings.Contains(got, "https://db2:8443/here;") {
		t.Errorf("n2 does not answer, and the policy is %q", got)
	}
	if got := string(b.s.statusDocument()); !strings.Contains(got, `"console":"db2:8443"`) || strings.Contains(got, "/secret") {
		t.Errorf("the status is %s", got)
	}
	for _, bad := range []string{"db2:8443; script-src *", "db2", "*:8443", "a b:1", "db2:8443/x", "user@db2:1", ""} {
		if got := look([]any{"n2", bad}); got != policy {
			t.Errorf("for %q the policy is %q", bad, got)
		}
	}
	if look([]any{"n2", "[2001:db8::1]:8443"}) != policy || b.s.consoles.at("n2") != "[2001:db8::1]:8443" {
		t.Errorf("an address that a policy cannot name is %q", b.s.consoles.at("n2"))
	}
	for _, path := range []string{"/app.js", "/api/v1/session"} {
		if _, _, h := b.do("GET", path, ""); h.Get("Content-Security-Policy") != policy {
			t.Errorf("the policy of %s is %q", path, h.Get("Content-Security-Policy"))
		}
	}
	code, body, h := b.do("GET", "/here", "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors")
	if code != 204 || len(body) != 0 || h.Get("Cross-Origin-Resource-Policy") != "cross-origin" || h.Get("Access-Control-Allow-Origin") != "" || h.Get("Set-Cookie") != "" {
		t.Errorf("/here: %d %q %v", code, body, h)
	}
	if _, _, h := b.do("GET", "/", ""); h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
		t.Errorf("the page may be embedded: %v", h)
	}
}
