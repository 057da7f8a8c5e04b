package metrics

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// prometheusTime is how long Prometheus may take to start, and to have what is asked for.
const prometheusTime = 2 * time.Minute

// TestQueriesInPrometheus has Prometheus read a node of which everything is known, evaluate the rules, and answer every
// query of the rules and of the dashboard: each is understood, and each panel has something to show.
func TestQueriesInPrometheus(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("NOT RUN: prometheus is not installed: the queries of the dashboard are not asked; it is in the package prometheus")
	}
	var n atomic.Uint64
	node := httptest.NewServer(Handler(func() Facts { return growing(n.Add(1)) }, slog.New(slog.DiscardHandler)))
	t.Cleanup(node.Close)
	at := startPrometheus(t, program, strings.TrimPrefix(node.URL, "http://"))
	list, _ := queries(t)
	fill := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$group", "sales")
	end := time.Now().Add(prometheusTime)
	for _, q := range list {
		where, expr := q[0], q[1]
		if strings.HasPrefix(expr, "label_values(") {
			continue
		}
		panel := strings.HasPrefix(where, "panel ")
		for {
			series, err := ask(t, at, fill.Replace(expr))
			if err != nil {
				t.Errorf("%s: %v: %s", where, err, expr)
			}
			if err != nil || series > 0 || !panel {
				break
			}
			if time.Now().After(end) {
				t.Errorf("%s shows nothing: %s", where, expr)
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// growing returns everything, with counters of which a panel shows only what has been added.
func growing(n uint64) Facts {
	f := everything()
	for key := range f.Failovers.Count {
		f.Failovers.Count[key] += n
	}
	f.Server.Fences += n
	f.Server.Commits.Blocks += n
	f.Server.Commits.Waited += time.Duration(n) * time.Millisecond
	for state := range f.Clients.Refused {
		f.Clients.Refused[state] += n
	}
	return f
}

// startPrometheus starts Prometheus, with the rules and one node of a group, and returns its address.
func startPrometheus(t *testing.T, program, target string) string {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(filepath.Join(packaging, "prometheus", "coterie.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\nrule_files: [%q]\nscrape_configs: [{job_name: coterie, static_configs: [{targets: [%q], labels: {group: sales}}]}]\n", rules, target)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0")
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	listening := regexp.MustCompile(`[Ll]istening on.*address=(127\.0\.0\.1:[1-9]\d*)`)
	found, said := make(chan string, 1), ""
	go func() {
		defer close(found)
		for in := bufio.NewScanner(log); in.Scan(); {
			if m := listening.FindStringSubmatch(in.Text()); m != nil {
				found <- m[1]
			}
		}
	}()
	select {
	case said = <-found:
	case <-time.After(prometheusTime):
	}
	if said == "" {
		t.Fatal("Prometheus does not say where it listens")
	}
	return "http://" + said
}

// ask returns the number of series that a query has, as soon as Prometheus is ready.
func ask(t *testing.T, at, expr string) (int, error) {
	t.Helper()
	var doc struct {
		Error string
		Data  struct{ Result []json.RawMessage }
	}
	for end := time.Now().Add(prometheusTime); ; time.Sleep(100 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"/api/v1/query?query="+url.QueryEscape(expr), nil)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			err = json.NewDecoder(resp.Body).Decode(&doc)
			_ = resp.Body.Close()
		}
		if err == nil && doc.Error != "" {
			return 0, fmt.Errorf("%s", doc.Error)
		}
		if err == nil || time.Now().After(end) {
			return len(doc.Data.Result), err
		}
	}
}
