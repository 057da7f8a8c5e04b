package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/node/events"
)

// TestCommandsForEvents puts a command into hooks.d of two nodes: it is told of a statement on the one and, when the
// primary dies, of the takeover on the other. A command that never ends delays nothing.
func TestCommandsForEvents(t *testing.T) {
	long(t)
	g := raise(t, lab.Options{})
	s := g.ready(t)
	out, err := os.MkdirTemp(root, "hooks")
	if err == nil {
		err = os.Chmod(out, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.Replicas {
		dir := filepath.Join(g.node(r.Name), "hooks.d")
		mkdir(t, dir)
		for name, text := range map[string]string{"10-keep": "{ cat; echo; } >> " + filepath.Join(out, r.Name), "20-hangs": "exec sleep 1000"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		must(t, "restart", "--node", g.node(r.Name))
	}
	s = g.ready(t)
	told := func(node, kind, what string) {
		g.await(t, node+" to tell of "+what, func(lab.Status) bool {
			b, _ := os.ReadFile(filepath.Join(out, node))
			for line := range strings.Lines(string(b)) {
				var e events.Event
				if json.Unmarshal([]byte(line), &e) == nil && e.Kind == kind && e.Node == node && e.Group == "lab" && strings.Contains(e.What, what) {
					return true
				}
			}
			return false
		})
	}
	must(t, "sql", "--node", g.node(*s.Primary), "-c", "ALTER AVAILABILITY GROUP lab SET (DB_FAILOVER = OFF)")
	told(*s.Primary, "statement", "DB_FAILOVER = OFF")
	found := must(t, "check", "security", "--node", g.node(*s.Primary))
	if !strings.Contains(found.out, "10-keep, 20-hangs") {
		t.Errorf("coterie check security does not list the commands: %s", found.out)
	}
	g.kill(t, *s.Primary)
	now := g.newPrimary(t, s)
	told(*now.Primary, "leadership", "")
	g.down(t)
}

// TestWebhooksForEvents gives two nodes a receiver. A receiver that was down gets what happened
// meanwhile. When the primary is killed the survivor tells of the takeover. Another receiver that hangs delays nothing.
func TestWebhooksForEvents(t *testing.T) {
	long(t)
	g := raise(t, lab.Options{})
	s := g.ready(t)
	var mu sync.Mutex
	var got []events.Event
	var down atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e events.Event
		err := json.NewDecoder(r.Body).Decode(&e)
		if strings.HasSuffix(r.URL.Path, "hangs") {
			<-r.Context().Done()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil || down.Load() || !strings.HasPrefix(r.Header.Get("Webhook-Signature"), "v1,") {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		got = append(got, e)
	}))
	defer srv.Close()
	secret := filepath.Join(root, "webhook.secret")
	if err := os.WriteFile(secret, []byte("whsec_"+strings.Repeat("QUJD", 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, r := range s.Replicas {
		dir := g.node(r.Name)
		c, err := config.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"hangs", "good"} {
			c.Webhooks = append(c.Webhooks, config.Webhook{Name: name, URL: srv.URL + "/" + name, SecretFile: secret})
		}
		l, err := config.NewLayout(dir)
		if err == nil {
			err = errors.Join(c.Save(dir), os.Chown(filepath.Join(dir, config.File), l.Owner(), -1), os.Chown(secret, l.Owner(), -1))
		}
		if err != nil {
			t.Fatal(err)
		}
		must(t, "config", "check", "--node", dir)
		must(t, "restart", "--node", dir)
	}
	s = g.ready(t)
	told := func(node, kind, what string) {
		t.Helper()
		g.await(t, node+" to tell of "+what, func(lab.Status) bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.ContainsFunc(got, func(e events.Event) bool { return e.Node == node && e.Kind == kind && strings.Contains(e.What, what) })
		})
	}
	found := must(t, "check", "security", "--node", g.node(*s.Primary))
	if !strings.Contains(found.out, "the webhook good, "+srv.URL+", signed") {
		t.Errorf("coterie check security does not list the receivers: %s", found.out)
	}
	down.Store(true)
	must(t, "sql", "--node", g.node(*s.Primary), "-c", "ALTER AVAILABILITY GROUP lab SET (DB_FAILOVER = OFF)")
	down.Store(false)
	told(*s.Primary, "statement", "DB_FAILOVER = OFF")
	g.kill(t, *s.Primary)
	now := g.newPrimary(t, s)
	told(*now.Primary, "leadership", "")
	g.down(t)
}
