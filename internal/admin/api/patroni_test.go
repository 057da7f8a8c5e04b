package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// patroniGroup is a group of three with a witness, in which commits wait for any one of two, as a node sees it.
func patroniGroup(self ag.ReplicaID) Status {
	lag := int64(512)
	at := ag.Position{Timeline: 4, LSN: 0x3000060}
	return Status{
		Group: "orders", Version: "16.4 (Debian 16.4-1)", Node: self, Primary: "n1", WriteOpen: true, Quorum: true, SyncMembers: []ag.Member{{ID: "n2"}, {ID: "n3"}}, SyncCount: 1,
		Replicas: []Replica{
			{Name: "n1", Role: ag.RolePrimary, Server: ag.ServerWritable, Sync: ag.Synchronized, Position: at, Listener: "db1:5432", HTTP: "db1:8008", LagBytes: new(int64), Local: &Process{Dir: "/secret"}},
			{Name: "n2", Role: ag.RoleSecondary, Server: ag.ServerRecovery, Sync: ag.Synchronized, Position: at, Listener: "[::1]:5432", LagBytes: &lag, Local: &Process{Dir: "/secret"}},
			{Name: "n3", Role: ag.RoleResolving, Connected: "DISCONNECTED", Sync: ag.NotSynchronizing},
			{Name: "w", Mode: ag.ConfigurationOnly},
		},
	}
}

func getJSON(t *testing.T, n *stated, method, path string) string {
	t.Helper()
	mux := http.NewServeMux()
	NewServer(n, slog.New(slog.DiscardHandler)).readPaths(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	if w.Code != http.StatusOK || !json.Valid(w.Body.Bytes()) {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	var v map[string]any
	if json.Unmarshal(w.Body.Bytes(), &v) == nil {
		if p, ok := v["patroni"].(map[string]any); ok {
			delete(p, "version")
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return w.Body.String()
}

// TestPatroniDocuments holds that the documents have the names, states, lags and numbers that clients of Patroni read,
// and nothing of the host.
func TestPatroniDocuments(t *testing.T) {
	t.Parallel()
	from := Lineage{SystemID: "742", Changes: []Change{
		{Timeline: 1},
		{Timeline: 2, Parent: 1, Switch: 100},
		{Timeline: 4, Parent: 2, Switch: 250, Leader: "n1", Reason: "planned failover from n2", At: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600))},
	}}
	strict, closed, alone, paused, draft := patroniGroup("n2"), patroniGroup("n1"), patroniGroup("n2"), patroniGroup("w"), Status{Node: "n1"}
	strict.SyncCount = 2
	closed.WriteOpen = false
	alone.Quorum, alone.Primary, alone.WriteOpen = false, "", false
	paused.Maintenance = &ag.Maintenance{}
	for _, tt := range []struct {
		st         Status
		path, want string
	}{
		{patroniGroup("n1"), "/patroni", `{"database_system_identifier":"742","patroni":{"name":"n1","scope":"orders"},"replication":[{"application_name":"n2","state":"streaming","sync_state":"quorum"}],` +
			`"role":"primary","server_version":160004,"state":"running","timeline":4,"xlog":{"location":50331744}}`},
		{patroniGroup("n2"), "/patroni", `{"database_system_identifier":"742","patroni":{"name":"n2","scope":"orders"},"quorum_standby":true,"replication_state":"streaming",` +
			`"role":"replica","server_version":160004,"state":"running","timeline":4,"xlog":{"received_location":50331744}}`},
		{strict, "/patroni", `{"database_system_identifier":"742","patroni":{"name":"n2","scope":"orders"},"replication_state":"streaming",` +
			`"role":"replica","server_version":160004,"state":"running","sync_standby":true,"timeline":4,"xlog":{"received_location":50331744}}`},
		{alone, "/patroni", `{"cluster_unlocked":true,"database_system_identifier":"742","patroni":{"name":"n2","scope":"orders"},"replication_state":"streaming",` +
			`"role":"replica","server_version":160004,"state":"running","timeline":4,"xlog":{"received_location":50331744}}`},
		{paused, "/patroni", `{"database_system_identifier":"742","patroni":{"name":"w","scope":"orders"},"pause":true,"role":"witness","state":"running"}`},
		{draft, "/patroni", `{"cluster_unlocked":true,"database_system_identifier":"742","patroni":{"name":"n1","scope":""},"role":"replica","state":"stopped","xlog":{"received_location":0}}`},
		{patroniGroup("n1"), "/cluster", `{"members":[{"api_url":"http://db1:8008/patroni","host":"db1","name":"n1","port":5432,"role":"leader","state":"running","timeline":4},` +
			`{"host":"::1","lag":512,"name":"n2","port":5432,"role":"quorum_standby","state":"streaming","timeline":4},` +
			`{"lag":"unknown","name":"n3","role":"replica","state":"unreachable"}],"scope":"orders"}`},
		{closed, "/cluster", `{"members":[{"api_url":"http://db1:8008/patroni","host":"db1","name":"n1","port":5432,"role":"leader","state":"starting","timeline":4},` +
			`{"host":"::1","lag":512,"name":"n2","port":5432,"role":"quorum_standby","state":"streaming","timeline":4},` +
			`{"lag":"unknown","name":"n3","role":"replica","state":"unreachable"}],"scope":"orders"}`},
		{alone, "/cluster", `{"members":[{"api_url":"http://db1:8008/patroni","host":"db1","lag":"unknown","name":"n1","port":5432,"role":"replica","state":"running","timeline":4},` +
			`{"host":"::1","lag":"unknown","name":"n2","port":5432,"role":"replica","state":"streaming","timeline":4},` +
			`{"lag":"unknown","name":"n3","role":"replica","state":"unreachable"}],"scope":"orders"}`},
		{draft, "/cluster", `{"members":[],"scope":""}`},
		{draft, "/history", `[[1,100,""],[2,250,"planned failover from n2","2026-01-02T02:04:05.000006Z","n1"]]` + "\n"},
	} {
		if got := getJSON(t, &stated{st: tt.st, lineage: from}, http.MethodGet, tt.path); got != tt.want {
			t.Errorf("GET %s of %s:\n%s, want\n%s", tt.path, tt.st.Node, got, tt.want)
		}
		getJSON(t, &stated{st: tt.st, lineage: from}, http.MethodOptions, tt.path)
	}
	if got := getJSON(t, &stated{}, http.MethodGet, "/history"); got != "[]\n" {
		t.Errorf("the history of a group without one: %s", got)
	}
}

// TestPatroniHistoryIsBounded holds that a group with many failovers answers with the newest.
func TestPatroniHistoryIsBounded(t *testing.T) {
	t.Parallel()
	var l Lineage
	for i := range 3 * maxChanges {
		l.Changes = append(l.Changes, Change{Timeline: ag.Timeline(i + 2), Parent: ag.Timeline(i + 1)})
	}
	lines := historyOf(l)
	if len(lines) != maxChanges || lines[maxChanges-1][0] != ag.Timeline(3*maxChanges) {
		t.Errorf("%d lines, the last %v", len(lines), lines[len(lines)-1])
	}
}

func TestVersionNumber(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]int{"16.4": 160004, "16.4 (Debian 16.4-1)": 160004, "18": 180000, "18beta1": 0, "": 0, "17.10": 170010} {
		if got := versionNumber(version); got != want {
			t.Errorf("%q: %d, want %d", version, got, want)
		}
	}
}
