package action

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
)

// everyField has configurations compared in what they keep of a later version, too.
var everyField = cmp.Exporter(func(reflect.Type) bool { return true })

// apart returns nodes that have joined each other and have no group: n1 with the data, n2, n3 and a witness.
func apart() ag.Group {
	g := lab(ag.Replica{ID: "n1"}, ag.Replica{ID: "n2"}, ag.Replica{ID: "n3"}, ag.Replica{ID: "w", AvailabilityMode: ag.ConfigurationOnly, FailoverMode: ag.Manual})
	g.Draft, g.Name = true, "coterie"
	for i := range g.Replicas[:3] {
		g.Replicas[i].Join, g.Replicas[i].Suspended = ag.Detached, i > 0
	}
	return g
}

const wholeGroup = `{"group":"Sales","options":{"LEASE_PROFILE":"FAST","REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT":"1"},"databases":["shop","o'neil] --"],
	"replicas":[{"replica":"n1","options":{"AVAILABILITY_MODE":"SYNCHRONOUS_COMMIT","FAILOVER_MODE":"AUTOMATIC"},"primary_role":{"READ_ONLY_ROUTING_LIST":"NONE"}},
	{"replica":"n2","options":{"AVAILABILITY_MODE":"SYNCHRONOUS_COMMIT"},"secondary_role":{"ALLOW_CONNECTIONS":"NO"}},{"replica":"w","options":{"AVAILABILITY_MODE":"CONFIGURATION_ONLY","FAILOVER_MODE":"MANUAL"}}],
	"listener":{"name":"sales-l","addresses":["10.0.0.9/24","fd00:1::9/64"],"port":1433}}`

// TestFounding holds what is found of groups that are to be made.
func TestFounding(t *testing.T) {
	t.Parallel()
	one := apart()
	one.Replicas = one.Replicas[:1]
	made := apart()
	made.Draft = false
	only := func(more string) string { return `{"group":"g","replicas":[{"replica":"n1"}]` + more + `}` }
	for _, x := range []struct {
		g           ag.Group
		primary     ag.ReplicaID
		body, finds string
	}{
		{apart(), "n1", wholeGroup, "OK n1 has the data, on PostgreSQL 17, and becomes the first primary"},
		{apart(), "n1", wholeGroup, "OK no part of the group: n3"},
		{apart(), "n1", wholeGroup, "OK the listener [sales-l]"},
		{one, "n1", only(""), "WARNING n1 is the only copy"},
		{apart(), "n1", `{"group":"g","replicas":[{"replica":"N1.example.com"},{"replica":"n2"}]}`, "OK commits wait for 1 of the secondaries"},
		{made, "n1", only(""), "PROBLEM the availability group coterie exists already"},
		{apart(), "", only(""), "PROBLEM no node takes writes now"},
		{apart(), "n1", `{"group":"g","replicas":[{"replica":"n2"}]}`, "PROBLEM Msg 35237: none of the replicas is n1"},
		{apart(), "n1", `{"group":"g","replicas":[{"replica":"n1"},{"replica":"n9"}]}`, "PROBLEM Msg 41167: no node N'n9' has joined"},
		{apart(), "n1", `{"group":"g","replicas":[{"replica":"n1"},{"replica":"N1"}]}`, "PROBLEM Msg 35282"},
		{apart(), "n1", `{"group":"","replicas":[{"replica":"n1"}]}`, "PROBLEM group is missing"},
		{apart(), "n1", `{"group":"g"}`, "PROBLEM replicas is missing"},
		{apart(), "n1", `{"group":"g","replicas":[{"replica":""}]}`, "PROBLEM replica is missing"},
		{apart(), "n1", `{"group":"` + strings.Repeat("x", 64) + `","replicas":[{"replica":"n1"}]}`, "PROBLEM Msg 103"},
		{apart(), "n1", `{"group":"a\u0000b","replicas":[{"replica":"n1"}]}`, "PROBLEM "},
		{apart(), "n1", only(`,"options":{"REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT":1}`), "PROBLEM 0 of the secondaries take part in commits"},
		{apart(), "n1", only(`,"options":{"work_mem":"64MB"}`), "PROBLEM N'work_mem' is not an option here"},
		{apart(), "n1", only(`,"options":{"DB_FAILOVER":"OFF) FOR DATABASE x --"}`), "PROBLEM "},
		{apart(), "n1", only(`,"databases":["template1"]`), "PROBLEM template1 is a template"},
		{apart(), "n1", only(`,"databases":["a","a"]`), "PROBLEM Msg 35280"},
		{apart(), "n1", only(`,"databases":["` + strings.Repeat(`x","`, 70) + `y"]`), "PROBLEM "},
		{apart(), "n1", only(`,"listener":{"name":"l","addresses":["10.0.0.9"]}`), "PROBLEM an address has the length of its prefix"},
		{apart(), "n1", only(`,"listener":{"name":"l","addresses":["fd00::9/48"]}`), "PROBLEM the prefix of an IPv6 address has 64 bits"},
		{apart(), "n1", only(`,"listener":{"name":"l","addresses":["::ffff:10.0.0.9/96"]}`), "PROBLEM an address has the length of its prefix"},
		{apart(), "n1", only(`,"listener":{"name":"l","addresses":["10.0.0.9/24","10.0.0.9/24"]}`), "PROBLEM address N'10.0.0.9' is given twice"},
		{apart(), "n1", only(`,"listener":{"name":"l","port":65536}`), "PROBLEM port is from 1 to 65535"},
		{apart(), "n1", only(`,"listener":{"name":""}`), "PROBLEM name is missing"},
	} {
		f, err := ParseFounding([]byte(x.body))
		if err != nil {
			t.Fatalf("%s: %v", x.body, err)
		}
		before, _ := json.Marshal(x.g)
		p := f.Plan(x.g, x.primary)
		var said strings.Builder
		for _, f := range p.Findings {
			said.WriteString(f.Level + " " + f.What + "\n")
		}
		if !strings.Contains(said.String(), x.finds) {
			t.Errorf("%.200s: found\n%s and not %q", x.body, said.String(), x.finds)
		}
		if _, made := p.Made(); p.failed() == made || p.failed() != (p.Statement == "") {
			t.Errorf("%.200s: made %t, the statement is %q, found was\n%s", x.body, made, p.Statement, said.String())
		}
		if after, _ := json.Marshal(x.g); string(after) != string(before) {
			t.Errorf("%.200s: the nodes were changed", x.body)
		}
	}
}

// TestFoundingScript holds that the script of a founding makes the group that was foreseen, that the change is its
// first statement, and that the replicas join in the order that is told.
func TestFoundingScript(t *testing.T) {
	t.Parallel()
	f, err := ParseFounding([]byte(wholeGroup))
	if err != nil {
		t.Fatal(err)
	}
	p := f.Plan(apart(), "n1")
	want := `-- On n1, which coterie init --no-group has made:  coterie sql -f THIS_FILE
CREATE AVAILABILITY GROUP [Sales]
    WITH (LEASE_PROFILE = FAST, REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 1)
    FOR DATABASE [shop], [o'neil]] --]
    REPLICA ON
        N'n1' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = NONE)),
        N'n2' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, SECONDARY_ROLE (ALLOW_CONNECTIONS = NO)),
        N'w' WITH (AVAILABILITY_MODE = CONFIGURATION_ONLY, FAILOVER_MODE = MANUAL)
    LISTENER N'sales-l' (WITH IP ((N'10.0.0.9', N'255.255.255.0'), (N'fd00:1::9')), PORT = 1433);
ALTER AVAILABILITY GROUP [Sales] JOIN REPLICA ON N'n2';
`
	if diff := cmp.Diff(want, p.Script); diff != "" {
		t.Errorf("the script (-want +got):\n%s", diff)
	}
	r, err := Parse("create", "coterie", []byte(wholeGroup))
	if err != nil || r.Statement.String() != p.Statement {
		t.Errorf("the change is %s, %v, and the plan has %s", r.Statement, err, p.Statement)
	}
	g, where := apart(), ddl.Context{Self: "n1", Primary: "n1"}
	for _, text := range strings.Split(strings.TrimSuffix(p.Script, ";\n"), ";\n") {
		st, err := ddl.Parse(text)
		if err == nil {
			g, _, err = st.Change(g, where)
		}
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	if made, _ := p.Made(); !cmp.Equal(made, g, everyField) {
		t.Errorf("foreseen was another group than the script makes:\n%s", cmp.Diff(made, g, everyField))
	}
	if len(p.Joins) != 1 || p.Joins[0] != "n2" {
		t.Errorf("%v join", p.Joins)
	}
}

// TestFoundingNames holds that a script is divided into the statements of which it is made, whatever names are in it,
// and that a listener's name, which clients resolve, is refused unless DNS may have it.
func TestFoundingNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a;b", "]", "]; DROP AVAILABILITY GROUP [g]; --", "'", "--x", "/*", "$(x)", "@x", "\\q", "ü🙂", "a b", "GO", `"`} {
		if p := founding(t, name, name).Plan(apart(), "n1"); name != "GO" && (p.Script != "" || !strings.Contains(fmt.Sprint(p.Findings), "a listener's name")) {
			t.Errorf("%q as a listener's name: %s%v", name, p.Script, p.Findings)
		}
		f := founding(t, name, "L")
		p := f.Plan(apart(), "n1")
		parts, err := batch.Split(p.Script)
		if err != nil || len(parts) != 2 {
			t.Errorf("%q: %d parts, %v:\n%s%v", name, len(parts), err, p.Script, p.Findings)
			continue
		}
		made, _ := p.Made()
		for i, want := range []string{p.Statement, ddl.Statement{Group: made.Name, Action: ddl.Join{Server: "n2"}}.String()} {
			if st, err := ddl.Parse(parts[i].Text); err != nil || st.String() != want {
				t.Errorf("%q: part %d is %s, %v", name, i, st, err)
			}
		}
	}
}

// founding asks for a group and a database of that name, with a listener.
func founding(t *testing.T, name, listener string) Founding {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"group": name, "databases": []string{name}, "listener": map[string]any{"name": listener}, "replicas": []any{map[string]any{"replica": "n1"}, map[string]any{"replica": "n2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := ParseFounding(body)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
