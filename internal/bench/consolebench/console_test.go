package consolebench

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/goals"
)

// TestAsThePageDoes holds that an open console asks for what the page asks for, as often.
func TestAsThePageDoes(t *testing.T) {
	t.Parallel()
	for file, wants := range map[string][]string{
		"app.js": {
			fmt.Sprintf("'': { label: 'Overview', draw: overview, views: ['%s'],", strings.Join(overviewViews, "', '")),
			fmt.Sprintf("const lookEvery = %d;", lookEvery.Milliseconds()),
		},
		"charts.js": {fmt.Sprintf("hour: ['Hour', %d, ", int(chartsEvery.Seconds()))},
		"api.js":    {"'history?span=' + span", "new EventSource('/api/v1/events')"},
	} {
		text, err := os.ReadFile("../../admin/web/page/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s has no %s: change this package with the page", file, want)
			}
		}
	}
}

// fakeConsole serves a page of three files, a session, views and a stream.
func fakeConsole(t *testing.T, events func(w http.ResponseWriter, r *http.Request)) (base string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	answers := map[string]string{
		"/": `<link href="/icon.svg"><script src="/app.js">`, "/icon.svg": "<svg/>", "/app.js": "import { a } from './late.js';", "/late.js": "1",
		"/api/v1/session": "{}", "/api/v1/views/coterie.replicas": "[]", "/api/v1/views/coterie.streams": "[]",
	}
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path == "/api/v1/events" {
			events(w, r)
			return
		}
		text, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(srv.Close)
	return srv.URL, asked
}

// TestFirst: the first screen is all files of the page, those that only a script names too, and the data.
func TestFirst(t *testing.T) {
	t.Parallel()
	stream := "retry: 1000\n\nevent: reset\ndata: {}\n\nevent: status\ndata: {}\n\n"
	base, asked := fakeConsole(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(stream))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	c, err := newClient(base, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	f, err := c.first(t.Context())
	files := len(`<link href="/icon.svg"><script src="/app.js">` + "<svg/>" + "import { a } from './late.js';" + "1")
	if err != nil || f.Requests != 8 || asked.Load() != 8 || f.Files != files || f.Bytes != files+len("{}[][]")+len(stream) || f.Wire <= int64(f.Bytes) || f.MS <= 0 {
		t.Errorf("%+v of %d requests, %v", f, asked.Load(), err)
	}
}

// TestOpen: an open console keeps the events since its stream began, and a status that names another primary, which has
// the views looked at again.
func TestOpen(t *testing.T) {
	t.Parallel()
	began := time.Now()
	base, asked := fakeConsole(t, func(w http.ResponseWriter, r *http.Request) {
		event := func(at time.Time) string {
			return fmt.Sprintf("id: 1\nevent: event\ndata: {\"at\": %q, \"kind\": \"leadership\", \"what\": \"leads\"}\n\n", at.Format(time.RFC3339Nano))
		}
		_, _ = w.Write([]byte(event(began.Add(-time.Hour)) + "event: status\ndata: {\"primary\": \"a\", \"write_open\": true}\n\n" + event(time.Now()) +
			"event: status\ndata: {\"primary\": \"b\"}\n\nevent: status\ndata: {\"primary\": \"b\", \"write_open\": true}\n\n"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	c, err := newClient(base, 4)
	if err != nil {
		t.Fatal(err)
	}
	o := &open{client: c, wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); o.run(ctx) }()
	for end := time.Now().Add(time.Minute); len(o.toldSince(began)) < 2 || asked.Load() < 5; {
		if time.Now().After(end) {
			t.Fatalf("%+v of %d requests", o.toldSince(began), asked.Load())
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	<-ended
	c.close()
	m := &measurement{all: []*open{o}}
	got := m.seen("failover", "b", began, nil)
	if len(got.Events) != 1 || got.Events[0].Kind != "leadership" || got.Events[0].Consoles != 1 || got.Events[0].LastMS < 0 || len(got.StatusMS) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestFigures: every figure has its goal, what was measured is judged, and the rest says why it was not.
func TestFigures(t *testing.T) {
	t.Parallel()
	s := &Samples{
		Consoles: 2, Missing: map[string]string{"browser": "no chromium is installed"},
		First:  []First{{Bytes: 100 << 10, Wire: 110 << 10, MS: 50}, {Bytes: 120 << 10, Wire: 130 << 10, MS: 70}},
		Rounds: []Round{{Usage{1, 40}, Usage{4, 60}}, {Usage{2, 50}, Usage{6, 70}}},
		Changes: []Change{{
			Kind: "failover", To: "b", Events: []Event{{Consoles: 2, MedianMS: 100, LastMS: 200}, {Consoles: 1, MedianMS: 300, LastMS: 400}}, StatusMS: []float64{5, 6},
		}},
	}
	s.judge("not asked for")
	got := map[string]goals.Figure{}
	for _, f := range s.Figures {
		got[f.Name] = f
	}
	for name, want := range map[string]float64{
		"console-first-size": 120, "console-first-time": 60, "console-event-p50": 200, "console-event-p95": 400, "console-event-untold": 1,
		"console-open-cpu": 3.5, "console-open-memory": 30, "console-none-cpu": 1.5,
	} {
		if f := got[name]; f.NotRun != "" || f.Measured != want {
			t.Errorf("%s: %+v, want %v", name, f, want)
		}
	}
	var out strings.Builder
	if err := s.Print(&out); err != nil || !strings.Contains(out.String(), "not run: no chromium is installed") || !strings.Contains(out.String(), "short of goal: console-event-p95, console-event-untold;") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	none := &Samples{}
	none.judge("an error ended the measurement")
	if err := none.Print(&out); err != nil {
		t.Error(err)
	}
}
