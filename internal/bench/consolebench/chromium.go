package consolebench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"time"
)

// programs are the browsers that are looked for.
var programs = []string{"chromium", "chromium-browser", "google-chrome"}

// showTime is how long the browser may take for one answer.
const showTime = time.Minute

// chromium is a browser without a window. It is driven by one goroutine, over its pipe, by the DevTools protocol.
type chromium struct {
	cmd  *exec.Cmd
	dir  string
	out  *os.File
	from *os.File
	in   *bufio.Reader
	next int
}

// startChromium starts a browser that believes every certificate. The caller closes it.
func startChromium(ctx context.Context) (*chromium, error) {
	program := ""
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		return nil, errors.New("no chromium is installed")
	}
	dir, err := os.MkdirTemp("", "coterie-bench-browser")
	if err != nil {
		return nil, err
	}
	toBrowser, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	from, fromBrowser, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, toBrowser.Close(), out.Close(), os.RemoveAll(dir))
	}
	// It ends with its pipe, or by close, and not with ctx: it must not die while its processes still write.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
		"--user-data-dir="+dir, "--no-first-run", "--ignore-certificate-errors", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-background-networking", "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // 3 and 4
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.WaitDelay = showTime
	c := &chromium{cmd: cmd, dir: dir, out: out, from: from, in: bufio.NewReaderSize(from, 1<<20)}
	err = cmd.Start()
	err = errors.Join(err, toBrowser.Close(), fromBrowser.Close())
	if err != nil {
		return nil, errors.Join(err, out.Close(), from.Close(), os.RemoveAll(dir))
	}
	return c, nil
}

// close ends the browser.
func (c *chromium) close() {
	if c == nil {
		return
	}
	_ = c.out.Close() // by which the browser ends
	killed := time.AfterFunc(showTime, func() { _ = c.cmd.Process.Kill() })
	_ = c.cmd.Wait()
	killed.Stop()
	_ = c.from.Close()
	for end := time.Now().Add(showTime); os.RemoveAll(c.dir) != nil && time.Now().Before(end); { // its processes end a moment later
		time.Sleep(10 * time.Millisecond)
	}
}

// call sends a command, of a page or, with "", of the browser, and reads its result. Events in between are passed over.
func (c *chromium) call(session, method string, params, into any) error {
	c.next++
	command := map[string]any{"id": c.next, "method": method, "params": params}
	if session != "" {
		command["sessionId"] = session
	}
	text, err := json.Marshal(command)
	if err != nil {
		return err
	}
	if err := errors.Join(c.from.SetReadDeadline(time.Now().Add(showTime)), c.out.SetWriteDeadline(time.Now().Add(showTime))); err != nil {
		return err
	}
	if _, err := c.out.Write(append(text, 0)); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	for {
		text, err := c.in.ReadBytes(0)
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		var m struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			return err
		}
		switch {
		case m.ID != c.next:
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case into == nil:
			return nil
		default:
			return json.Unmarshal(m.Result, into)
		}
	}
}

// page is a page with cookies and a cache of its own.
type page struct {
	c                *chromium
	context, session string
}

// whenShown makes a promise of the time, since the navigation, at which the overview has its answers and its views.
const whenShown = `window.coterieShown = new Promise((done) => {
	const look = () => document.querySelector('.answers .short') && document.querySelector('.lately') && !document.querySelector('.skeleton')
		? done(performance.now()) : requestAnimationFrame(look);
	look();
})`

// first opens the console with the cookies of a session and nothing else, and returns after how many milliseconds the
// first screen was complete.
func (c *chromium) first(base string, cookies []*http.Cookie) (p *page, took float64, err error) {
	p = &page{c: c}
	var at struct {
		Context string `json:"browserContextId"`
		Target  string `json:"targetId"`
		Session string `json:"sessionId"`
	}
	if err := c.call("", "Target.createBrowserContext", struct{}{}, &at); err != nil {
		return nil, 0, err
	}
	p.context = at.Context
	if err := c.call("", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": at.Context, "width": 1440, "height": 900}, &at); err != nil {
		return nil, 0, err
	}
	if err := c.call("", "Target.attachToTarget", map[string]any{"targetId": at.Target, "flatten": true}, &at); err != nil {
		return nil, 0, err
	}
	p.session = at.Session
	for _, k := range cookies {
		if err := c.call(p.session, "Network.setCookie", map[string]any{"name": k.Name, "value": k.Value, "url": base, "path": "/", "secure": true, "httpOnly": true}, nil); err != nil {
			return nil, 0, err
		}
	}
	if err := c.call(p.session, "Page.enable", struct{}{}, nil); err != nil {
		return nil, 0, err
	}
	if err := c.call(p.session, "Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": whenShown}, nil); err != nil {
		return nil, 0, err
	}
	if err := c.call(p.session, "Page.navigate", map[string]any{"url": base}, nil); err != nil {
		return nil, 0, err
	}
	err = p.eval("window.coterieShown", &took)
	return p, took, err
}

// eval runs an expression in the page, awaits it if it is a promise, and reads its value.
func (p *page) eval(expression string, into any) error {
	var out struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	if err := p.c.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out); err != nil {
		return err
	}
	if out.Exception != nil {
		return fmt.Errorf("in the page: %s", out.Exception.Text)
	}
	if into == nil || out.Result.Value == nil {
		return nil
	}
	return json.Unmarshal(out.Result.Value, into)
}

// watch has the page note when it shows each event of its list of the latest.
func (p *page) watch() error {
	return p.eval(`(() => {
		window.coterieTold = {};
		const look = (now) => document.querySelectorAll('.lately time').forEach((t) => { window.coterieTold[Date.parse(t.dateTime)] ??= now; });
		look(0);
		new MutationObserver(() => look(Date.now())).observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
	})()`, nil)
}

// told returns when the page showed each event, both in milliseconds since 1970. An event that was there before has 0.
func (p *page) told() (at map[int64]int64, err error) {
	if p == nil {
		return nil, nil
	}
	return at, p.eval("window.coterieTold", &at)
}

// close closes the page.
func (p *page) close() error {
	return p.c.call("", "Target.disposeBrowserContext", map[string]any{"browserContextId": p.context}, nil)
}
