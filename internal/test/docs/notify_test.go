package docs

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/node/events"
	"github.com/coteriedb/coterie/internal/node/hooks"
	"github.com/coteriedb/coterie/internal/node/webhooks"
)

// receiver takes signed events, and refuses the first request.
type receiver struct {
	secret string

	mu    sync.Mutex // guards what follows
	asked int
	got   []events.Event
	bad   []string
}

func (x *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asked++; x.asked == 1 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(r.Body)
	mac := hmac.New(sha256.New, []byte(x.secret))
	mac.Write([]byte(r.Header.Get("Coterie-Time") + "." + string(body)))
	var e events.Event
	if err != nil || r.Header.Get("Coterie-Signature") != "sha256="+hex.EncodeToString(mac.Sum(nil)) || json.Unmarshal(body, &e) != nil {
		x.bad = append(x.bad, string(body))
		return
	}
	x.got = append(x.got, e)
}

// TestNotifyPage has the program of docs/how-to/notify.md run by the agent's own runner: a receiver that fails once
// gets the event once, with a signature that it can check, and none about links.
func TestNotifyPage(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("NOT RUN: the page's program needs python3")
	}
	m := regexp.MustCompile("(?s)```python hook\n(.*?)```").FindStringSubmatch(pages(t)["docs/how-to/notify.md"])
	if m == nil {
		t.Fatal("the page has no program")
	}
	x := &receiver{secret: "a secret of the test"}
	srv := httptest.NewServer(x)
	defer srv.Close()
	dir := filepath.Join(t.TempDir(), "hooks.d")
	secret := filepath.Join(t.TempDir(), "secret")
	program := strings.NewReplacer("https://alerts.example.com/coterie", srv.URL, "/etc/coterie/webhook.secret", secret).Replace(m[1])
	for _, err := range []error{os.Mkdir(dir, 0o700), os.WriteFile(secret, []byte(x.secret+"\n"), 0o600), os.WriteFile(filepath.Join(dir, "50-webhook"), []byte(program), 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	var happened atomic.Bool // the runner tells of what happens after it was made
	list := []events.Event{{Group: "orders", Node: "db2", At: now, Kind: "link", What: "link with db1"}, {Group: "orders", Node: "db2", At: now, Epoch: 8, Kind: "leadership", What: "took over", Because: "db1 was silent"}}
	r := hooks.New(dir, os.Getuid(), func() []events.Event {
		if happened.Load() {
			return list
		}
		return nil
	}, slog.New(slog.DiscardHandler))
	happened.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	defer func() { stop(); running.Wait() }()
	for end := time.Now().Add(2 * time.Minute); r.Counts().Done < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) || r.Counts().Failed > 0 {
			t.Fatalf("%+v", r.Counts())
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.got) != 1 || x.got[0].What != "took over" || !x.got[0].At.Equal(now) || len(x.bad) > 0 || x.asked != 2 {
		t.Errorf("after %d requests the receiver has %+v, and refused %q", x.asked, x.got, x.bad)
	}
}

// TestWebhookPage has the receiver of docs/how-to/notify.md take an event from the agent's own sender, by the section
// of coterie.yaml and the secret of that page, and refuse a request that is sent again much later, or by somebody else.
func TestWebhookPage(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("NOT RUN: the page's program needs python3")
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("NOT RUN: the page's secret needs openssl")
	}
	page, dir := pages(t)["docs/how-to/notify.md"], t.TempDir()
	block := func(pattern string) string {
		m := regexp.MustCompile("(?s)" + pattern).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("the page has no %q", pattern)
		}
		return m[1]
	}
	secret, program := filepath.Join(dir, "secret"), filepath.Join(dir, "receiver")
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(block(`\n(\(umask [^\n]*)`), "/etc/coterie/pager.secret", secret)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(program, []byte(block("```python receiver\n(.*?)```")), 0o600); err != nil {
		t.Fatal(err)
	}
	at := freeAddress(t)
	_, port, _ := net.SplitHostPort(at)
	run := exec.CommandContext(t.Context(), "python3", program, port, secret)
	out, err := run.StdoutPipe()
	if err == nil {
		err = run.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = run.Process.Kill(); _ = run.Wait() }()
	section := strings.NewReplacer("https://alerts.example.com", "http://"+at, "/etc/coterie/pager.secret", secret).Replace(block("```yaml webhooks\n(.*?)```"))
	c, err := config.Parse([]byte("node: db2\nkind: witness\ngroup: g\nendpoint:\n  listen: :5022\n" + section))
	if err != nil {
		t.Fatal(err)
	}
	var happened atomic.Bool
	s := webhooks.New(c.Webhooks, os.Getuid(), func() []events.Event {
		if happened.Load() {
			return []events.Event{{Node: "db2", Kind: "leadership", What: "took over"}}
		}
		return nil
	}, slog.New(slog.DiscardHandler))
	happened.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	defer func() { stop(); running.Wait() }()
	time.AfterFunc(2*time.Minute, func() { _ = out.Close() })
	line, err := bufio.NewReader(out).ReadString('\n')
	var e events.Event
	if json.Unmarshal([]byte(line), &e) != nil || e.What != "took over" || e.Node != "db2" {
		t.Fatalf("the receiver says %q: %v; %+v", line, err, s.Counts())
	}
	text, err := os.ReadFile(secret)
	if err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(string(text)), "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		key  []byte
		age  time.Duration
		want int
	}{"signed now": {key, 0, 204}, "signed an hour ago": {key, time.Hour, 401}, "signed by another key": {[]byte("x"), 0, 401}} {
		at := strconv.FormatInt(time.Now().Add(-x.age).Unix(), 10)
		mac := hmac.New(sha256.New, x.key)
		mac.Write([]byte("evt_1." + at + ".{}"))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.Webhooks[0].URL, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Webhook-Id": {"evt_1"}, "Webhook-Timestamp": {at}, "Webhook-Signature": {"v1,other v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))}}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != x.want {
			t.Errorf("%s: HTTP status %d", name, resp.StatusCode)
		}
	}
}

// freeAddress returns an address of this machine that nothing listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
