package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestOtherPaths holds that requests as people know them from other programs are told what does that here.
func TestOtherPaths(t *testing.T) {
	t.Parallel()
	server := NewServer(&stated{st: Status{Node: "n1", Primary: "n1", WriteOpen: true, Replicas: []Replica{{Name: "n1", Role: ag.RolePrimary, Server: ag.ServerWritable}}}}, nil)
	for _, tt := range []struct {
		method, path string
		code         int
		says         string
	}{
		{"POST", "/switchover", 405, "coterie failover --to NAME"},
		{"POST", "/failover", 405, "coterie failover --to NAME"},
		{"POST", "/restart", 405, "coterie restart --postgres NAME"},
		{"POST", "/reload", 405, "coterie settings set"},
		{"POST", "/reinitialize", 405, "coterie replica seed NAME --full"},
		{"PATCH", "/config", 405, "coterie settings"},
		{"PUT", "/config", 405, "coterie settings"},
		{"DELETE", "/restart", 405, "coterie restart"},
		{"GET", "/config", 404, "coterie settings"},
		{"POST", "/primary", 405, "nothing on this port changes anything"},
		{"POST", "/api/v1/failover", 405, "coterie failover --to NAME"},
		{"POST", "/api/v1/sql", 405, "coterie sql"},
		{"GET", "/api/v1/sql", 404, "coterie sql"},
		{"GET", "/status", 404, "GET /api/v1/status"},
		{"GET", "/api/v1/", 404, "GET /api/v1/status"},
		{"GET", "/dashboard", 404, "docs/how-to/console.md"},
		{"GET", "/version", 404, "GET /patroni"},
		{"GET", "/nonsense", 404, "there is no such path"},
		{"GET", "/metrics/", 404, "docs/how-to/monitor.md"},
		{"HEAD", "/nonsense", 404, ""},
		{"GET", "/debug/pprof/", 404, "there is no such path"},
		{"GET", "/primary", 200, ""},
		{"OPTIONS", "/", 200, ""},
		{"GET", "/api/v1/status", 200, ""},
	} {
		w := httptest.NewRecorder()
		server.open().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil))
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.says) || strings.Contains(w.Body.String(), "nonsense") {
			t.Errorf("%s %s: %d %s, want %d %s", tt.method, tt.path, w.Code, w.Body, tt.code, tt.says)
		}
		if (w.Code == http.StatusMethodNotAllowed) != (w.Header().Get("Allow") != "") {
			t.Errorf("%s %s: Allow is %q", tt.method, tt.path, w.Header().Get("Allow"))
		}
	}
}
