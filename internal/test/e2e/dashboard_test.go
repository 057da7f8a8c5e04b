package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
)

// rare has the queries of the dashboard that answer nothing in a group in which nothing was fenced.
var rare = []string{"coterie_fences_total"}

// TestDashboard has a real Prometheus scrape a live group, through a failover, a refused login and readers, and holds
// that each query of the dashboard then returns series: no panel is empty.
func TestDashboard(t *testing.T) {
	long(t)
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("NOT RUN: apt-get install prometheus")
	}
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	at := startPrometheus(t, program, s)
	g.kill(t, *s.Primary)
	g.newPrimary(t, s)
	g.start(t, *s.Primary)
	g.ready(t)
	ask := dashboardQueries(t)
	empty := map[string]string{}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(2 * time.Second) {
		g.refusedAndRead(t)
		for _, q := range ask {
			if n, err := series(t, at, q[1]); err != nil {
				t.Fatalf("%s: %s: %v", q[0], q[1], err)
			} else if n > 0 {
				delete(empty, q[1])
			} else if empty[q[1]] == "" {
				empty[q[1]] = q[0]
			}
		}
		if len(empty) == 0 {
			break
		}
		if time.Now().After(end) {
			for q, panel := range empty {
				t.Errorf("the panel %q shows nothing: %s", panel, q)
			}
			break
		}
	}
	g.down(t)
}

// refusedAndRead has a login be refused, and a reader log in.
func (g *group) refusedAndRead(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := pgx.ParseConfig(g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	c.User, c.Password = "nobody", "wrong"
	if conn, err := pgx.ConnectConfig(ctx, c); err == nil {
		_ = conn.Close(ctx)
		t.Error("nobody is let in")
	}
	if conn, err := pgx.Connect(ctx, g.ReadOnly()); err == nil {
		_ = conn.Close(ctx)
	}
}

// dashboardQueries returns the queries of the dashboard, each with its panel, with the variables that it has here.
func dashboardQueries(t *testing.T) (out [][2]string) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile("../../../packaging/grafana/coterie.json")
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$job", "coterie", "$group", "lab", "$__rate_interval", "30s")
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			seldom := false
			for _, name := range rare {
				seldom = seldom || strings.Contains(q.Expr, name)
			}
			if !seldom {
				out = append(out, [2]string{p.Title, variables.Replace(q.Expr)})
			}
		}
	}
	if len(out) < 20 {
		t.Fatalf("only %d queries found", len(out))
	}
	return out
}

// startPrometheus runs a Prometheus that scrapes every node each second, until the end of the test.
func startPrometheus(t *testing.T, program string, s lab.Status) (at string) {
	t.Helper()
	dir := t.TempDir()
	var targets []string
	for _, r := range s.Replicas {
		targets = append(targets, fmt.Sprintf("%q", strings.TrimPrefix(r.HTTP, "http://")))
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("scrape_configs:\n- job_name: coterie\n  scrape_interval: 1s\n  static_configs:\n  - labels: {group: lab}\n    targets: [%s]\n", strings.Join(targets, ", "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at = l.Addr().String()
	_ = l.Close()
	var said strings.Builder
	cmd := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+at)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); t.Failed() {
			t.Log(said.String())
		}
	})
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if n, err := series(t, at, "count(up == 1) == "+fmt.Sprint(len(targets))); err == nil && n == 1 {
			return at
		}
		if time.Now().After(end) {
			t.Fatal("Prometheus does not scrape every node")
		}
	}
}

// series returns how many series a query returns.
func series(t *testing.T, at, query string) (int, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var doc struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return 0, err
	}
	if doc.Status != "success" {
		return 0, fmt.Errorf("%s: %s", doc.Status, doc.Error)
	}
	return len(doc.Data.Result), nil
}
