// Package browser drives a headless Chromium for tests: pages, what they show, and what went wrong in them. Only tests
// import it.
//
// It owns the browser's process and its pipe, over which both speak the DevTools protocol; see
// https://chromedevtools.github.io/devtools-protocol. It knows nothing of the pages. Start reading at Start.
package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// answerTime is how long the browser may take to answer.
const answerTime = 2 * time.Minute

// names are the programs that are looked for.
var names = []string{"chromium", "chromium-browser", "google-chrome"}

// Browser is a running browser.
type Browser struct {
	t   *testing.T
	out io.Writer

	mu      sync.Mutex // guards the fields below
	next    int
	waiting map[int]chan reply
	pages   map[string]*Page // by their sessions
	gone    error
}

// reply is the answer to a command.
type reply struct {
	result json.RawMessage
	err    error
}

// incoming is a message of the browser: an answer, or an event of a page.
type incoming struct {
	ID      int             `json:"id"`
	Session string          `json:"sessionId"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Start starts a browser that ends with the test, which is skipped where there is none. It believes every certificate,
// and resolves no name of another host.
func Start(t *testing.T) *Browser {
	t.Helper()
	program := ""
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("NOT RUN: no chromium here, so no browser has opened the page; apt-get install chromium")
	}
	toBrowser, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromBrowser, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	profile, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	// The test's own context ends before its clean-up, and would kill the browser while its processes still write.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir="+profile,
		"--no-first-run", "--ignore-certificate-errors", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-background-networking", "--lang=en-GB", "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, out} // 3 and 4
	cmd.WaitDelay = time.Minute
	cmd.Env = append(os.Environ(), "TMPDIR="+profile) // for its own temporary directories
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toBrowser.Close(), out.Close()
	b := &Browser{t: t, out: in, waiting: map[int]chan reply{}, pages: map[string]*Page{}}
	read := make(chan struct{})
	go func() { defer close(read); b.read(fromBrowser) }()
	t.Cleanup(func() {
		_ = in.Close() // by which the browser ends
		killed := time.AfterFunc(answerTime, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		killed.Stop()
		<-read
		_ = fromBrowser.Close()
		for end := time.Now().Add(answerTime); os.RemoveAll(profile) != nil && time.Now().Before(end); { // its processes end a moment later
			time.Sleep(10 * time.Millisecond)
		}
	})
	return b
}

// read reads messages until the browser has ended.
func (b *Browser) read(from io.Reader) {
	in := bufio.NewReaderSize(from, 1<<20)
	for {
		text, err := in.ReadBytes(0)
		if err != nil {
			b.end(fmt.Errorf("the browser has ended: %w", err))
			return
		}
		var m incoming
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			b.end(err)
			return
		}
		b.mu.Lock()
		answer, page := b.waiting[m.ID], b.pages[m.Session]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		switch {
		case answer != nil && m.Error != nil:
			answer <- reply{err: errors.New(m.Error.Message)}
		case answer != nil:
			answer <- reply{result: m.Result}
		case page != nil:
			page.heard(m)
		}
	}
}

// end fails what waits for an answer.
func (b *Browser) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = err
	for id, w := range b.waiting {
		delete(b.waiting, id)
		w <- reply{err: err}
	}
}

// call sends a command, of a page or, with "", of the browser, and reads its result.
func (b *Browser) call(session, method string, params, into any) error {
	b.mu.Lock()
	if b.gone != nil {
		b.mu.Unlock()
		return b.gone
	}
	b.next++
	id, answer := b.next, make(chan reply, 1)
	b.waiting[id] = answer
	text, err := json.Marshal(map[string]any{"id": id, "sessionId": session, "method": method, "params": params})
	if session == "" {
		text, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err == nil {
		_, err = b.out.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case r := <-answer:
		if r.err != nil {
			return fmt.Errorf("%s: %w", method, r.err)
		}
		if into == nil {
			return nil
		}
		return json.Unmarshal(r.result, into)
	case <-time.After(answerTime):
		return fmt.Errorf("%s: no answer within %v", method, answerTime)
	}
}

// must is call, and ends the test if it fails.
func (b *Browser) must(session, method string, params, into any) {
	b.t.Helper()
	if err := b.call(session, method, params, into); err != nil {
		b.t.Fatal(err)
	}
}
