package web

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestWitnessChangesNothing holds that the port of a witness makes no change and no token, whatever the role, and says
// so; and that it tells a page to ask for no password.
func TestWitnessChangesNothing(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.s.c.LooksOnly = true
	if code, _, h := b.do("GET", "/api/v1/session", ""); code != 204 || h.Get("Coterie-Login") != "certificate" {
		t.Errorf("without a session: %d %v", code, h)
	}
	b.logIn("anna")
	_, text, _ := b.do("GET", "/api/v1/session", "")
	var me Login
	if err := json.Unmarshal(text, &me); err != nil || !me.LooksOnly {
		t.Errorf("%s: %v", text, err)
	}
	for _, x := range routes {
		if x.method != "POST" || x.path != "/api/v1/token" && examples[strings.TrimPrefix(x.path, "/api/v1/")].body == "" {
			continue
		}
		path, body := x.example()
		if code, text, _ := b.do("POST", path, body); code != 403 || !strings.Contains(string(text), "this is a witness") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if ran := g.statements(); len(ran) > 0 {
		t.Errorf("it ran %q", ran)
	}
	if code, text, _ := b.do("GET", "/api/v1/views/coterie.replicas", ""); code != 200 {
		t.Errorf("a view: %d %s", code, text)
	}
}

// TestStrangersAreBounded holds that an address without a session gets so many answers and handshakes and no more, that
// this keeps no other address out, and that a session is not one of them.
func TestStrangersAreBounded(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.logIn("vera")
	session := b.cookie
	b.cookie = nil
	refused := false
	for range 20 * int(eachStrangers.Burst) {
		if code, _, _ := b.do("GET", "/here", ""); code == http.StatusTooManyRequests {
			refused = true
			break
		}
	}
	if !refused {
		t.Error("a stranger is answered without an end")
	}
	b.cookie = session
	if code, text, _ := b.do("GET", "/api/v1/status", ""); code != 200 {
		t.Errorf("the session is refused with the strangers of its address: %d %s", code, text)
	}
	from := func(ip byte) net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, ip)} }
	greeted := 0
	for b.s.strangers.greets(from(1)) {
		if greeted++; greeted > 20*int(eachHandshakes.Burst) {
			t.Fatal("handshakes without an end")
		}
	}
	if greeted < int(eachHandshakes.Burst) || !b.s.strangers.greets(from(2)) {
		t.Errorf("%d handshakes of one address, and then none of another", greeted)
	}
	if b.s.Counts().Refused == 0 {
		t.Error("the handshakes that were refused are not counted")
	}
}

// TestHandshakesAreBounded holds that the port's handshakes spend that budget.
func TestHandshakesAreBounded(t *testing.T) {
	t.Parallel()
	p := serveCertified(t)
	client, server := net.Pipe()
	defer func() { _ = client.Close(); _ = server.Close() }()
	hello := &tls.ClientHelloInfo{Conn: server}
	for i := range 20 * int(eachHandshakes.Burst) {
		if _, err := p.s.tlsConfig().GetConfigForClient(hello); err != nil {
			if i < int(eachHandshakes.Burst) {
				t.Errorf("refused after %d", i)
			}
			return
		}
	}
	t.Error("none was refused")
}

// TestPageOfAWitness holds what the page of a witness says: at its door it asks for no password, and its buttons say
// where changes are made.
func TestPageOfAWitness(t *testing.T) {
	g := charted()
	p, b := openPage(t, g, "vera", "")
	b.s.c.LooksOnly = true
	p.Eval("window.before = true; location.reload()", nil)
	p.Await(pageTime, "!window.before && document.querySelector('.live.good') && !document.querySelector('.skeleton')")
	p.Eval("[...document.querySelectorAll('button.locked')][0].click()", nil)
	p.Await(pageTime, "document.querySelector('dialog')?.innerText.includes('is a witness, on which nothing is changed')")
	p.picture("witness-dialog")
	p.Eval("document.querySelector('dialog').close()", nil)
	p.click("Log out")
	p.Await(pageTime, "document.querySelector('#user') && !document.querySelector('#password') && document.querySelector('.door').innerText.includes('is a witness')")
	p.widths("witness-door")
}
