package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// stated is a Node with a status.
type stated struct {
	Node
	st      Status
	lineage Lineage
}

func (s *stated) Status() Status { return s.st }

func (s *stated) Lineage() Lineage { return s.lineage }

func (s *stated) Metrics() http.Handler { return http.NotFoundHandler() }

// TestHealthChecks asks every check in the ways that load balancers do.
func TestHealthChecks(t *testing.T) {
	t.Parallel()
	lag := int64(5 << 20)
	primary := Status{Node: "n1", Primary: "n1", WriteOpen: true, Replicas: []Replica{{Name: "n1", Role: ag.RolePrimary, Server: ag.ServerWritable, Sync: ag.Synchronized}}}
	behind := Status{Node: "n2", Primary: "n1", WriteOpen: true, Quorum: true, Replicas: []Replica{
		{Name: "n1", Role: ag.RolePrimary}, {Name: "n2", Role: ag.RoleSecondary, Server: ag.ServerRecovery, Sync: ag.Synchronizing, LagBytes: &lag, Local: &Process{Dir: "/secret"}},
	}}
	suspended := Status{Node: "n2", Primary: "n1", Replicas: []Replica{{Name: "n2", Role: ag.RoleSecondary, Server: ag.ServerRecovery, Suspended: true}}}
	maintained := behind
	maintained.Replicas = []Replica{behind.Replicas[0], behind.Replicas[1]}
	maintained.Replicas[1].Maintenance = &ag.Maintenance{}
	closed := behind
	closed.Replicas = []Replica{behind.Replicas[0], behind.Replicas[1]}
	closed.Replicas[1].Allow = ag.AllowNo
	shut := Status{Node: "n1", Primary: "n1", Replicas: primary.Replicas}
	synchronized := Status{Node: "n2", Primary: "n1", Quorum: true, Replicas: []Replica{{Name: "n2", Role: ag.RoleSecondary, Server: ag.ServerRecovery, Sync: ag.Synchronized, LagBytes: new(int64)}}}
	isolated, removed, doubted, still := synchronized, synchronized, synchronized, synchronized
	still.Replicas = []Replica{synchronized.Replicas[0]}
	still.Replicas[0].Sync = ag.NotSynchronizing
	isolated.Quorum = false
	removed.Availability.Removed = true
	doubted.Replicas = []Replica{synchronized.Replicas[0]}
	doubted.Replicas[0].Quarantine = "its storage lost a write"
	silent := synchronized
	silent.Replicas = []Replica{synchronized.Replicas[0]}
	silent.Replicas[0].Silent = true
	without := synchronized
	without.Replicas = []Replica{synchronized.Replicas[0]}
	without.Replicas[0].Offline = []string{"shop"}
	for _, tt := range []struct {
		st           Status
		method, path string
		want         int
	}{
		{primary, "GET", "/primary", 200},
		{primary, "OPTIONS", "/primary", 200},
		{primary, "HEAD", "/primary", 200},
		{primary, "OPTIONS", "/", 200},
		{primary, "GET", "/leader", 200},
		{primary, "GET", "/master", 200},
		{primary, "GET", "/replica", 503},
		{primary, "GET", "/read-only", 200},
		{primary, "GET", "/quorum", 503},
		{primary, "GET", "/read-only-sync", 200},
		{primary, "GET", "/read-only-quorum", 200},
		{primary, "GET", "/primary?lag=0", 200},
		{primary, "POST", "/primary", 405},
		{primary, "GET", "/nothing", 404},
		{shut, "GET", "/primary", 503},
		{behind, "GET", "/", 503},
		{behind, "GET", "/replica", 200},
		{behind, "OPTIONS", "/replica", 200},
		{behind, "GET", "/replica?lag=10MB", 200},
		{behind, "GET", "/replica?lag=1MB", 503},
		{behind, "GET", "/replica?lag=0", 503},
		{behind, "GET", "/replica?lag=soon", 400},
		{behind, "GET", "/sync", 503},
		{behind, "GET", "/async", 200},
		{behind, "GET", "/read-only?lag=6MiB", 200},
		{behind, "GET", "/health", 200},
		{silent, "GET", "/health", 503},
		{silent, "GET", "/replica", 503},
		{silent, "GET", "/read-only", 503},
		{silent, "GET", "/sync", 503},
		{silent, "GET", "/liveness", 200},
		{suspended, "GET", "/replica", 503},
		{without, "GET", "/replica", 503},
		{without, "GET", "/sync", 503},
		{without, "GET", "/health", 200},
		{maintained, "GET", "/replica", 503},
		{closed, "GET", "/replica", 503},
		{closed, "GET", "/read-only", 503},
		{closed, "GET", "/async", 200},
		{maintained, "GET", "/async", 503},
		{maintained, "GET", "/read-only", 503},
		{maintained, "GET", "/health", 200},
		{maintained, "GET", "/readiness", 200},
		{suspended, "GET", "/replica?lag=1GB", 503},
		{suspended, "GET", "/liveness", 200},
		{synchronized, "GET", "/sync", 200},
		{synchronized, "GET", "/quorum", 200},
		{synchronized, "GET", "/read-only-quorum", 200},
		{behind, "GET", "/read-only-sync", 503},
		{synchronized, "GET", "/replica?lag=0", 200},
		{primary, "GET", "/standby-leader", 503},
		{synchronized, "OPTIONS", "/standby_leader", 503},
		{primary, "GET", "/primary?replication_state=streaming&tag_site=a", 200},
		{primary, "GET", "/read-only?tag_site=a", 200},
		{synchronized, "GET", "/replica?replication_state=streaming", 200},
		{behind, "HEAD", "/replica?replication_state=streaming&lag=10MB", 200},
		{behind, "GET", "/replica?replication_state=streaming&lag=1MB", 503},
		{synchronized, "GET", "/replica?replication_state=in%20archive%20recovery", 503},
		{synchronized, "GET", "/replica?tag_site=a", 503},
		{synchronized, "GET", "/read-only?tag_site=", 503},
		{still, "GET", "/replica", 200},
		{still, "GET", "/replica?replication_state=streaming", 503},
		{isolated, "GET", "/replica?replication_state=streaming", 503},
		{isolated, "GET", "/sync", 503},
		{isolated, "GET", "/replica", 200},
		{isolated, "GET", "/replica?lag=16MB", 503},
		{isolated, "GET", "/read-only?lag=16MB", 503},
		{isolated, "GET", "/readiness", 200},
		{removed, "GET", "/replica", 503},
		{removed, "GET", "/readiness", 503},
		{removed, "GET", "/liveness", 200},
		{doubted, "GET", "/replica", 503},
		{doubted, "GET", "/sync", 503},
	} {
		mux := http.NewServeMux()
		NewServer(&stated{st: tt.st}, nil).healthChecks(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil))
		if w.Code != tt.want {
			t.Errorf("%s %s of %s: %d, want %d", tt.method, tt.path, tt.st.Node, w.Code, tt.want)
		}
		if strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s %s tells a directory of the host", tt.method, tt.path)
		}
	}
	if public(behind).Replicas[1].Local != nil || behind.Replicas[1].Local == nil {
		t.Error("the public status has a directory of the host, or the private one has none")
	}
}
