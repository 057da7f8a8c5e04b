package browser

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Page is a page with cookies and storage of its own.
type Page struct {
	b       *Browser
	session string

	mu       sync.Mutex // guards the fields below
	asked    []string
	problems []string
}

// Page opens an empty page.
func (b *Browser) Page() *Page {
	b.t.Helper()
	var context struct {
		ID string `json:"browserContextId"`
	}
	b.must("", "Target.createBrowserContext", struct{}{}, &context)
	var target struct {
		ID string `json:"targetId"`
	}
	b.must("", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": context.ID, "width": 1440, "height": 900}, &target)
	var attached struct {
		ID string `json:"sessionId"`
	}
	b.must("", "Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached)
	p := &Page{b: b, session: attached.ID}
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.must(p.session, domain+".enable", struct{}{}, nil)
	}
	return p
}

// heard keeps what a test asks for later.
func (p *Page) heard(m incoming) {
	var e struct {
		Type    string `json:"type"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
		Args []struct {
			Value       any    `json:"value"`
			Description string `json:"description"`
		} `json:"args"`
		Entry struct {
			Level  string `json:"level"`
			Source string `json:"source"`
			Text   string `json:"text"`
			URL    string `json:"url"`
		} `json:"entry"`
		Exception struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if json.Unmarshal(m.Params, &e) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m.Method {
	case "Network.requestWillBeSent":
		p.asked = append(p.asked, e.Request.URL)
	case "Runtime.exceptionThrown":
		p.problems = append(p.problems, "exception: "+e.Exception.Text+" "+e.Exception.Exception.Description)
	case "Runtime.consoleAPICalled":
		if e.Type == "error" || e.Type == "warning" {
			p.problems = append(p.problems, fmt.Sprintf("console.%s: %v", e.Type, e.Args))
		}
	case "Log.entryAdded":
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			p.problems = append(p.problems, e.Entry.Source+": "+e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// Problems returns the errors and warnings since it was called last: exceptions, the console, refused loads.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.problems
	p.problems = nil
	return found
}

// Foreign returns the addresses that the page asked and that do not begin with one of these.
func (p *Page) Foreign(own ...string) (found []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, url := range p.asked {
		mine := strings.HasPrefix(url, "data:") || strings.HasPrefix(url, "about:")
		for _, o := range own {
			mine = mine || strings.HasPrefix(url, o)
		}
		if !mine {
			found = append(found, url)
		}
	}
	return found
}

// Open goes to an address.
func (p *Page) Open(url string) {
	p.b.t.Helper()
	p.b.must(p.session, "Page.navigate", map[string]any{"url": url}, nil)
}

// Eval runs an expression in the page, awaits it if it is a promise, and reads its value.
func (p *Page) Eval(expression string, into any) {
	p.b.t.Helper()
	if err := p.try(expression, into); err != nil {
		p.b.t.Fatal(err)
	}
}

func (p *Page) try(expression string, into any) error {
	var out struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if err := p.b.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out); err != nil {
		return err
	}
	if e := out.Exception; e != nil {
		return fmt.Errorf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if into == nil || out.Result.Value == nil {
		return nil
	}
	return json.Unmarshal(out.Result.Value, into)
}

// Await waits until an expression is true, and returns how long that took.
func (p *Page) Await(limit time.Duration, expression string) time.Duration {
	p.b.t.Helper()
	began := time.Now()
	for {
		var is bool
		err := p.try("Boolean("+expression+")", &is)
		if is {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			p.b.t.Fatalf("not within %v: %s (%v); the page shows:\n%s\nproblems: %q", limit, expression, err, p.Text(), p.Problems())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Text returns what the page shows.
func (p *Page) Text() string {
	var text string
	_ = p.try("document.body.innerText", &text)
	return text
}

// Type puts a text into the field with that selector, as a keyboard does.
func (p *Page) Type(selector, text string) {
	p.b.t.Helper()
	p.Eval(fmt.Sprintf("(() => { const f = document.querySelector(%q); f.focus(); f.select(); })()", selector), nil)
	p.b.must(p.session, "Input.insertText", map[string]any{"text": text}, nil)
}

// Show gives the page a width and a height in pixels, and light or dark.
func (p *Page) Show(width, height int, dark bool) {
	p.b.t.Helper()
	p.b.must(p.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	p.b.must(p.session, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// ReduceMotion has the page know that its user wants no motion, until Show.
func (p *Page) ReduceMotion() {
	p.b.t.Helper()
	p.b.must(p.session, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-reduced-motion", "value": "reduce"}}}, nil)
}

// Picture writes the whole page, at most maxHeight pixels of it, as PNG or, to a file of that kind, as WebP.
func (p *Page) Picture(file string, maxHeight int) {
	p.b.t.Helper()
	var size [2]int
	p.Eval("[innerWidth, Math.max(innerHeight, document.documentElement.scrollHeight)]", &size)
	var out struct {
		Data string `json:"data"`
	}
	p.b.must(p.session, "Page.captureScreenshot", map[string]any{
		"format": strings.TrimPrefix(filepath.Ext(file), "."), "quality": 80, "captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": size[0], "height": min(size[1], maxHeight), "scale": 1},
	}, &out)
	b, err := base64.StdEncoding.DecodeString(out.Data)
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		p.b.t.Fatal(err)
	}
}

// keys are the codes of the keys that Press knows.
var keys = map[string]int{"Tab": 9, "Enter": 13, " ": 32, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}

// Press presses a key, one of keys. With shift the shift key is held.
func (p *Page) Press(key string, shift bool) {
	p.b.t.Helper()
	event := map[string]any{"key": key, "code": key, "windowsVirtualKeyCode": keys[key], "modifiers": 0}
	if shift {
		event["modifiers"] = 8
	}
	if key == "Enter" {
		event["text"] = "\r"
	}
	if key == " " {
		event["text"] = " "
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		event["type"] = kind
		p.b.must(p.session, "Input.dispatchKeyEvent", event, nil)
	}
}
