package report

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestPageIsWhole: every chart exists and is well-formed, published figures are marked, and the page needs no network.
func TestPageIsWhole(t *testing.T) {
	r := sample()
	r.complete()
	text, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, want := range []string{
		"Over time", "Latency by percentile", "Ratios, with the interval", "Outage of each client", "n1 killed", "published, not measured",
		"How far to trust it: single run", "A report &amp; its &lt;parts&gt;", "no network namespaces here", "prefers-color-scheme: dark", "08007: 3",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, bad := range []string{"<script", "<img", "@import", "url(", "secret", "NaN", "Inf"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, link := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if !strings.HasPrefix(link[1], "#") && link[1] != "data:," {
			t.Errorf("a link outside: %s", link[0])
		}
	}
	charts := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1)
	if len(charts) != 4 {
		t.Errorf("%d charts, want 4", len(charts))
	}
	for _, c := range charts {
		d := xml.NewDecoder(strings.NewReader(c))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("a chart is no XML: %v\n%s", err, c)
				break
			}
		}
	}
}

// TestPageWithoutAnything: a report of nothing is still a page.
func TestPageWithoutAnything(t *testing.T) {
	r := &Report{Title: "nothing", Experiments: []Experiment{{
		Name: "x", Series: []Series{{Points: [][2]float64{{1, 0}}}}, Percentiles: []Percentiles{{}}, Comparisons: []Comparison{{}}, Bars: []Bars{{}, {Bars: []Bar{{"a", 0}}}},
	}}}
	r.complete()
	if _, err := r.HTML(); err != nil {
		t.Fatal(err)
	}
}

// TestPageInChromium renders the page in a browser whose every request would go to a proxy of ours, and checks what is
// drawn.
func TestPageInChromium(t *testing.T) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("NOT RUN: no chromium here, so no browser has opened the report; apt-get install chromium")
	}
	var asked atomic.Int64
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	requests := make(chan string, 100)
	go func() { // ends with the listener
		for {
			c, err := proxy.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 200)
			n, _ := c.Read(b)
			requests <- string(b[:n])
			asked.Add(1)
			_ = c.Close()
		}
	}()
	dir := t.TempDir()
	if err := sample().Save(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := func(more ...string) string {
		args := append([]string{
			"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + filepath.Join(dir, "profile"), "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions",
			"--proxy-server=http://" + proxy.Addr().String(), "--proxy-bypass-list=<-loopback>", "--window-size=1000,3000",
		}, more...)
		c := exec.CommandContext(ctx, browser, append(args, "file://"+filepath.Join(dir, "report.html"))...)
		c.Env = append(os.Environ(), "TMPDIR="+dir) // for its own temporary directories
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", browser, err, out)
		}
		return string(out)
	}
	dom := run("--dump-dom")
	if n := strings.Count(dom, "<svg"); n != 4 {
		t.Errorf("the browser shows %d charts, want 4", n)
	}
	if keep := os.Getenv("COTERIE_KEEP_REPORT"); keep != "" {
		run("--screenshot=" + filepath.Join(keep, "light.png"))
		run("--screenshot="+filepath.Join(keep, "dark.png"), "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
	}
	for len(requests) > 0 {
		// The browser's own business, where its switches do not stop it.
		if r := <-requests; !strings.Contains(r, "google") && !strings.Contains(r, "gvt1.com") {
			t.Errorf("the page made a request: %s", r)
		}
	}
}
