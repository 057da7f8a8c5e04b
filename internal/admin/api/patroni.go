package api

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
)

// Lineage is where the group's data come from.
type Lineage struct {
	SystemID string   // PostgreSQL's system identifier; "" while the group is not known
	Changes  []Change // the promotions of the record, the oldest first
}

// Change is a promotion: a timeline that left its parent. A field whose value is not remembered is zero.
type Change struct {
	Timeline, Parent ag.Timeline
	Switch           ag.LSN // where the timeline leaves its parent
	Leader           ag.ReplicaID
	Reason           string
	At               time.Time // when the answering node saw it, or of the present primary when it began to lead; zero: it is not known
}

// maxChanges is how many promotions /history has. A document of so many is about 20 KB.
const maxChanges = 100

// patroniNode is the document of /patroni, in Patroni's words.
type patroniNode struct {
	State            string         `json:"state"`
	Role             string         `json:"role"`
	ServerVersion    int            `json:"server_version,omitempty"`
	XLog             map[string]any `json:"xlog,omitempty"`
	Timeline         ag.Timeline    `json:"timeline,omitempty"`
	ReplicationState string         `json:"replication_state,omitempty"`
	SyncStandby      bool           `json:"sync_standby,omitempty"`
	QuorumStandby    bool           `json:"quorum_standby,omitempty"`
	Replication      []patroniSend  `json:"replication,omitempty"`
	Unlocked         bool           `json:"cluster_unlocked,omitempty"`
	Pause            bool           `json:"pause,omitempty"`
	SystemID         string         `json:"database_system_identifier,omitempty"`
	Patroni          patroniProgram `json:"patroni"`
}

// patroniSend is a secondary that streams, as its primary says.
type patroniSend struct {
	Name  ag.ReplicaID `json:"application_name"`
	State string       `json:"state"`
	Sync  string       `json:"sync_state"`
}

// patroniProgram names the program that answers: its version is Coterie's.
type patroniProgram struct {
	Version string       `json:"version"`
	Scope   string       `json:"scope"`
	Name    ag.ReplicaID `json:"name"`
}

// patroniCluster is the document of /cluster.
type patroniCluster struct {
	Members []patroniMember `json:"members"`
	Scope   string          `json:"scope"`
	Pause   bool            `json:"pause,omitempty"`
}

// patroniMember is a replica of the group. A witness has no PostgreSQL and is none.
type patroniMember struct {
	Name     ag.ReplicaID `json:"name"`
	Role     string       `json:"role"`
	State    string       `json:"state"`
	URL      string       `json:"api_url,omitempty"`
	Host     string       `json:"host,omitempty"`
	Port     int          `json:"port,omitempty"`
	Timeline ag.Timeline  `json:"timeline,omitempty"`
	Lag      any          `json:"lag,omitempty"` // bytes, or "unknown"; a leader has none
}

// patroniPaths serves the documents that the clients of Patroni read, by GET, HEAD and OPTIONS. Like the health checks
// they are answered from memory and with 200 whatever they say.
func (s *Server) patroniPaths(mux *http.ServeMux) {
	for path, document := range map[string]func() any{
		"/patroni": func() any { return patroniOf(s.m.Status(), s.m.Lineage()) },
		"/cluster": func() any { return clusterOf(s.m.Status()) },
		"/history": func() any { return historyOf(s.m.Lineage()) },
	} {
		answer := func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, document()) }
		mux.HandleFunc("GET "+path, answer)
		mux.HandleFunc("OPTIONS "+path, answer)
	}
}

func patroniOf(st Status, l Lineage) patroniNode {
	r := st.self()
	p := patroniNode{
		State: serverState(st, r), Role: "replica", ServerVersion: versionNumber(st.Version), Timeline: r.Position.Timeline,
		Unlocked: st.Primary == "", Pause: st.Maintenance != nil, SystemID: l.SystemID, Patroni: patroniProgram{buildinfo.Version, st.Group, st.Node},
	}
	if r.Mode == ag.ConfigurationOnly {
		p.Role, p.State, p.ServerVersion = "witness", "running", 0
		return p
	}
	if !leads(st, r) {
		p.XLog = map[string]any{"received_location": r.Position.LSN}
		if streams(r) {
			p.ReplicationState = "streaming"
		}
		p.SyncStandby, p.QuorumStandby = roleIn(st, r) == "sync_standby", roleIn(st, r) == "quorum_standby"
		return p
	}
	p.Role, p.XLog = "primary", map[string]any{"location": r.Position.LSN}
	kinds := map[string]string{"sync_standby": "sync", "quorum_standby": "quorum", "replica": "async"}
	for _, x := range st.Replicas {
		if x.Name != r.Name && streams(x) {
			p.Replication = append(p.Replication, patroniSend{x.Name, "streaming", kinds[roleIn(st, x)]})
		}
	}
	return p
}

func clusterOf(st Status) patroniCluster {
	c := patroniCluster{Members: []patroniMember{}, Scope: st.Group, Pause: st.Maintenance != nil}
	for _, r := range st.Replicas {
		if r.Mode == ag.ConfigurationOnly {
			continue
		}
		m := patroniMember{Name: r.Name, Role: roleIn(st, r), State: memberState(st, r), Timeline: r.Position.Timeline}
		if host, port, err := net.SplitHostPort(r.Listener); err == nil {
			m.Host = host
			m.Port, _ = strconv.Atoi(port)
		}
		if r.HTTP != "" {
			m.URL = "http://" + r.HTTP + "/patroni"
		}
		if m.Role != "leader" {
			m.Lag = "unknown"
			if r.LagBytes != nil && st.Quorum && st.Primary != "" {
				m.Lag = *r.LagBytes
			}
		}
		c.Members = append(c.Members, m)
	}
	return c
}

// historyOf returns a line for each promotion, as Patroni has it: the timeline that was left, where, why, when, and the
// new leader. The line of one that the node does not remember ends after the reason.
func historyOf(l Lineage) [][]any {
	lines := [][]any{}
	for _, c := range l.Changes {
		if c.Parent == 0 {
			continue // the timeline that the group began with
		}
		line := []any{c.Parent, c.Switch, c.Reason}
		if c.Leader != "" {
			line = append(line, when(c.At), c.Leader)
		}
		lines = append(lines, line)
	}
	return lines[max(0, len(lines)-maxChanges):]
}

// when returns a time as Patroni writes it; nil where it is not known.
func when(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UTC().Format(time.RFC3339Nano)
}

func leads(st Status, r Replica) bool { return r.Name == st.Primary && r.Role == ag.RolePrimary }

func streams(r Replica) bool { return r.Sync == ag.Synchronized || r.Sync == ag.Synchronizing }

// roleIn returns a member's role. The group waits for any k of its synchronized members, as Patroni does in the mode
// quorum; where it waits for every one of them, each is a synchronous standby.
func roleIn(st Status, r Replica) string {
	switch {
	case leads(st, r):
		return "leader"
	case !st.Quorum || r.Role != ag.RoleSecondary || r.Sync != ag.Synchronized:
		return "replica"
	case st.SyncCount < len(st.SyncMembers):
		return "quorum_standby"
	}
	return "sync_standby"
}

// memberState returns the state of a member. A leader is running only while writes are open: that is what its clients
// wait for.
func memberState(st Status, r Replica) string {
	switch state := serverState(st, r); {
	case r.Connected == "DISCONNECTED":
		return "unreachable"
	case state == "running" && r.Role == ag.RoleSecondary && streams(r):
		return "streaming"
	default:
		return state
	}
}

func serverState(st Status, r Replica) string {
	switch {
	case r.Busy == "seed" || r.Busy == "rewind":
		return "creating replica"
	case leads(st, r) && !st.WriteOpen, r.Server == ag.ServerStarting:
		return "starting"
	case r.Server == ag.ServerWritable, r.Server == ag.ServerRecovery:
		return "running"
	}
	return "stopped"
}

// versionNumber returns PostgreSQL's server_version_num of a version such as 16.4; 0 if it is none.
func versionNumber(version string) int {
	major, minor, _ := strings.Cut(version, ".")
	a, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	digits := strings.IndexFunc(minor, func(r rune) bool { return r < '0' || r > '9' })
	if digits >= 0 {
		minor = minor[:digits]
	}
	b, _ := strconv.Atoi(minor)
	return a*10_000 + b
}
