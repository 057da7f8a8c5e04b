package action

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

func lab(members ...ag.Replica) ag.Group {
	g := ag.Group{ID: "i", Name: "lab", CommitRule: ag.RuleQuorum}
	for i, r := range members {
		r.Endpoint, r.KeyPin, r.EtcdID, r.Voter, r.Major = string(r.ID), string(r.ID), uint64(i+1), i < 3, 17
		if r.AvailabilityMode == "" {
			r.AvailabilityMode, r.FailoverMode, r.Allow = ag.SynchronousCommit, ag.Automatic, ag.AllowReadOnly
		}
		g.Replicas = append(g.Replicas, r)
	}
	return g
}

// TestNewcomer holds what is found of members that are to join, and which statement gives them their options.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	three := lab(ag.Replica{ID: "n1"}, ag.Replica{ID: "n2"}, ag.Replica{ID: "n3"})
	full := three
	for _, name := range []ag.ReplicaID{"a", "b", "c", "d", "e", "f", "g"} {
		full.Replicas = append(full.Replicas, ag.Replica{ID: name, Endpoint: string(name), Major: 17})
	}
	draft := three
	draft.Draft = true
	awaiting := three
	awaiting.Awaited = []ag.Replica{{ID: "n4", AvailabilityMode: ag.ConfigurationOnly}}
	const async = `{"name":"n4","role":"replica","options":{"AVAILABILITY_MODE":"ASYNCHRONOUS_COMMIT","FAILOVER_MODE":"MANUAL"},"secondary_role":{"ALLOW_CONNECTIONS":"NO"}}`
	for _, x := range []struct {
		g         ag.Group
		body      string
		finds     string
		statement string
	}{
		{three, `{"name":"n4","role":"replica"}`, "OK the new machine needs PostgreSQL 17", ""},
		{three, `{"name":"n4","role":"replica"}`, "OK n4 does not vote: 3 members vote already", ""},
		{three, `{"name":"n4","role":"replica","options":{"AVAILABILITY_MODE":"SYNCHRONOUS_COMMIT","FAILOVER_MODE":"AUTOMATIC"}}`, "OK commits may wait for n4", ""},
		{three, async, "OK the name n4 is free, and the group has 3 of 10 members", "ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'n4' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL, SECONDARY_ROLE (ALLOW_CONNECTIONS = NO))"},
		{three, `{"name":"w","role":"witness"}`, "OK w does not vote", ""},
		{lab(ag.Replica{ID: "n1"}), `{"name":"n2","role":"replica"}`, "WARNING with two members only one votes", ""},
		{three, `{"name":"n2","role":"replica"}`, "PROBLEM the group already has a member n2", ""},
		{three, `{"name":"N 4","role":"replica"}`, "PROBLEM node name", ""},
		{three, `{"name":"","role":"replica"}`, "PROBLEM node name", ""},
		{three, `{"name":"n4'; DROP","role":"replica"}`, "PROBLEM node name", ""},
		{three, `{"name":"n4","role":"replica","options":{"AVAILABILITY_MODE":"ASYNCHRONOUS_COMMIT","FAILOVER_MODE":"AUTOMATIC"}}`, "PROBLEM ", ""},
		{three, `{"name":"n4","role":"replica","options":{"AVAILABILITY_MODE":"SOMETIMES"}}`, "PROBLEM ", ""},
		{three, `{"name":"n4","role":"replica","options":{"work_mem":"64MB"}}`, "PROBLEM ", ""},
		{full, `{"name":"n4","role":"replica"}`, "PROBLEM the group has its primary, eight secondaries", ""},
		{draft, `{"name":"n4","role":"replica"}`, "PROBLEM this node has no availability group yet", ""},
		{awaiting, `{"name":"n4","role":"replica"}`, "PROBLEM n4 is to be replaced by a witness", ""},
		{awaiting, `{"name":"n4","role":"witness"}`, "WARNING n4 takes the place of the witness", ""},
	} {
		n, err := ParseNewcomer([]byte(x.body))
		if err != nil {
			t.Fatalf("%s: %v", x.body, err)
		}
		members := len(x.g.Replicas)
		p := n.Plan(x.g, "n1")
		var said strings.Builder
		for _, f := range p.Findings {
			said.WriteString(f.Level + " " + f.What + "\n")
		}
		if !strings.Contains(said.String(), x.finds) || p.Statement != x.statement {
			t.Errorf("%s: found\n%sand the statement %q; want %q and %q", x.body, said.String(), p.Statement, x.finds, x.statement)
		}
		if p.failed() == (p.Script != "") || p.Statement != "" && !strings.HasSuffix(p.Script, "\n"+p.Statement+";\n") || strings.Contains(p.Script, "DROP") {
			t.Errorf("%s: the script is\n%s", x.body, p.Script)
		}
		if len(x.g.Replicas) != members {
			t.Errorf("%s: the group was changed", x.body)
		}
	}
}

// TestNewcomerDocuments holds which documents are refused.
func TestNewcomerDocuments(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, `{}`, `null`, `{"name":"n4"}`, `{"name":"n4","role":"primary"}`, `{"name":"n4","role":"replica"} {}`, `{"name":"n4","role":"replica","statement":"x"}`, `{"name":"w","role":"witness","options":{"FAILOVER_MODE":"MANUAL"}}`} {
		if _, err := ParseNewcomer([]byte(body)); err == nil {
			t.Errorf("%s was taken", body)
		}
	}
}
