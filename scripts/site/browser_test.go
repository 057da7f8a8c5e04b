package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/test/browser"
)

// wait is how long a page may take on a machine that is busy.
const wait = time.Minute

// TestBrowser opens the site in a browser, from a disk and from a web server: nothing is loaded from elsewhere, the
// search finds what readers look for, the keyboard suffices, and no width from a phone's on cuts the page off.
func TestBrowser(t *testing.T) {
	out := made(t)
	server := httptest.NewServer(http.FileServer(http.Dir(out)))
	defer server.Close()
	b := browser.Start(t)
	for _, from := range []string{"file://" + out, server.URL} {
		page := b.Page()
		page.Show(1280, 800, false)
		page.Open(from + "/docs/operating.html")
		page.Await(wait, `document.readyState === "complete" && document.documentElement.classList.contains("js")`)
		finds(t, page)
		goes(page, from)
		if foreign, problems := page.Foreign(from), page.Problems(); len(foreign)+len(problems) > 0 {
			t.Errorf("%s: asked %q; problems: %q", from, foreign, problems)
		}
	}
	looks(t, b.Page(), server.URL)
}

// finds asks the search for what its readers would type: the page must be among the first five.
func finds(t *testing.T, page *browser.Page) {
	t.Helper()
	for question, want := range map[string]string{
		"suspended":               "docs/troubleshooting.html",
		"patronictl switchover":   "docs/tutorials/from-patroni.html",
		"quorum lost":             "docs/operating.html#when-the-quorum-is-lost",
		"restore deleted rows":    "docs/how-to/restore.html",
		"pgbackrest":              "docs/how-to/backup.html",
		"leave in place":          "docs/how-to/leave.html",
		"LEASE_PROFILE":           "docs/language.html",
		"dm_hadr_cluster_members": "docs/views.html",
	} {
		page.Type("#search", question)
		first := fmt.Sprintf(`[...document.querySelectorAll("#found a")].slice(0, 5).map((a) => a.href).some((h) => h.includes(%q))`, want)
		page.Await(wait, first)
	}
	page.Type("#search", "zebrafish")
	page.Await(wait, `document.querySelector("#found").innerText.includes("Nothing")`)
	page.Type("#search", "<b>*")
	page.Await(wait, `!document.querySelector("#found small b")`)
}

// goes finds a page by the keyboard alone: slash, words, an arrow, enter.
func goes(page *browser.Page, from string) {
	page.Eval(`document.activeElement.blur(); document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }))`, nil)
	page.Eval(`document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true }))`, nil)
	page.Await(wait, `document.activeElement.id === "search"`)
	page.Type("#search", "planned failover")
	page.Await(wait, `document.querySelectorAll("#found a").length > 2`)
	const press = `document.querySelector("#search").dispatchEvent(new KeyboardEvent("keydown", { key: %q, bubbles: true }))`
	page.Eval(fmt.Sprintf(press, "ArrowDown"), nil)
	page.Await(wait, `document.querySelector("#found-1").getAttribute("aria-selected") === "true"`)
	page.Eval(`window.to = document.querySelector("#found-1 a").href; sessionStorage.setItem("to", window.to)`, nil)
	page.Eval(fmt.Sprintf(press, "Enter"), nil)
	page.Await(wait, `location.href === sessionStorage.getItem("to") && location.href.startsWith("`+from+`")`)
	page.Await(wait, `document.readyState === "complete" && (!location.hash || document.getElementById(location.hash.slice(1)))`)
}

// looks shows pages in light and dark, from a phone's width to a wide screen's. COTERIE_PICTURES names a directory for
// pictures of them.
func looks(t *testing.T, page *browser.Page, from string) {
	t.Helper()
	seen := map[string]bool{}
	for _, view := range []struct {
		width int
		dark  bool
	}{{360, false}, {768, false}, {1280, false}, {1920, true}} {
		for _, name := range []string{"", "docs/", "docs/views.html", "docs/failures.html", "docs/reference/cli.html"} {
			page.Show(view.width, 800, view.dark)
			page.Open(from + "/" + name)
			page.Await(wait, `document.readyState === "complete" && location.pathname === "/`+name+`" && document.documentElement.classList.contains("js")`)
			var over int
			page.Eval("document.documentElement.scrollWidth - innerWidth", &over)
			if over > 0 {
				t.Errorf("%s at %d pixels is %d too wide", name, view.width, over)
			}
			if dir := os.Getenv("COTERIE_PICTURES"); dir != "" {
				page.Picture(filepath.Join(dir, fmt.Sprintf("%s-%d.png", filepath.Base("index/"+name), view.width)), 1600)
			}
		}
		var colour string
		page.Eval("getComputedStyle(document.documentElement).backgroundColor", &colour)
		seen[colour] = true
	}
	if len(seen) != 2 {
		t.Errorf("light and dark are the same: %v", seen)
	}
	var chosen string
	page.Eval(`document.querySelector("#theme").click(), getComputedStyle(document.documentElement).backgroundColor`, &chosen)
	if !seen[chosen] || chosen != "rgb(255, 255, 255)" {
		t.Errorf("the reader chose light on a dark system, and the page is %s", chosen)
	}
	page.Show(360, 800, false)
	page.Eval(`document.querySelector("#menu").click()`, nil)
	page.Await(wait, `getComputedStyle(document.querySelector("nav")).display === "block" && document.querySelector("#menu").getAttribute("aria-expanded") === "true"`)
	if problems := page.Problems(); len(problems) > 0 {
		t.Error(problems)
	}
}
