package docs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/node/events"
	"github.com/coteriedb/coterie/internal/node/hooks"
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
