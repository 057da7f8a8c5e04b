package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// everyField has configurations compared in what they keep of a later version, too.
var everyField = cmp.Exporter(func(reflect.Type) bool { return true })

// TestScript runs the life of a group with psql, on nodes that have no group: it is made, joined, changed, failed over,
// forced, resumed, dropped and made again.
func TestScript(t *testing.T) {
	g := raise(t, lab.Options{NoGroup: true})
	if s := g.ready(t); !s.Draft || s.Primary == nil || *s.Primary != "n1" {
		t.Fatalf("nodes without a group: %+v", s)
	}
	got := g.psql(t, "testdata/group.sql")
	want, err := os.ReadFile("testdata/group.out")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("what psql printed is not testdata/group.out:\n%s", diff)
	}
	g.sameAsInit(t, "Second", "n1", "n3")
	if os.Getenv("COTERIE_LONG") != "" {
		g.commands(t)
	}
	g.down(t)
}

// port returns the port of a node's listener.
func port(t *testing.T, uri string) string {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	_, p, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// psql runs a script in the console of n1 and returns what it printed; the script knows the nodes' ports as n1, ro1 and
// so on.
func (g *group) psql(t *testing.T, script string) string {
	t.Helper()
	bin := filepath.Join(server(t).BinDir, "psql")
	if _, err := os.Stat(bin); err != nil {
		t.Skip("psql is not installed")
	}
	s, err := g.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, err := url.Parse(s.Replicas[0].Listener.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	first.Path = "/coterie"
	password, _ := first.User.Password()
	args := []string{"-X", "-q", "-w", "-f", script}
	for _, r := range s.Replicas {
		number := r.Name[1:]
		args = append(args, "-v", "n"+number+"="+port(t, r.Listener.ReadWrite), "-v", "ro"+number+"="+port(t, r.Listener.ReadOnly))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append(args, first.String())...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+password)
	cmd.WaitDelay = 5 * time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("psql: %v\n%s%s", err, out.String(), said.String())
	}
	t.Logf("psql said:\n%s", said.String())
	return out.String()
}

// commands are those that show and check the group: every form of an intent is tried through every node.
func (g *group) commands(t *testing.T) {
	t.Helper()
	var status struct {
		Health []struct {
			Replica string `json:"replica"`
			Ready   bool   `json:"no_data_loss"`
		} `json:"health"`
		Databases []struct{ Database, Replica string } `json:"databases"`
		Issues    []any                                `json:"issues"`
		Unknown   string                               `json:"views"`
	}
	if err := json.Unmarshal([]byte(must(t, "status", "--json", "--node", g.node("n1")).out), &status); err != nil {
		t.Fatal(err)
	}
	if status.Unknown != "" || len(status.Databases) < 4 || len(status.Issues) != 0 {
		t.Errorf("status: %+v", status)
	}
	for _, h := range status.Health {
		if part := h.Replica != "n2"; h.Ready != part { // n2 is a node without a part in the group
			t.Errorf("status: %s is ready %v", h.Replica, h.Ready)
		}
	}
	if a := must(t, "status", "--node", g.node("n3")); !strings.Contains(a.out, "no loss") {
		t.Errorf("status printed\n%s", a.out)
	}
	u, err := url.Parse(g.DSN("n1"))
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	t.Setenv("PGPASSWORD", password)
	a := coterie(t, "check", "routing", "--user", u.User.Username(), "--json", "--node", g.node("n1"))
	var logins []struct {
		Node, Carrier, Intent, Error string
		Answered                     string `json:"answered_by"`
		Entry                        int    `json:"list_entry"`
	}
	if err := json.Unmarshal([]byte(a.out), &logins); err != nil || a.code != 0 || len(logins) != 21 {
		t.Fatalf("check routing: exit code %d, %v: %s%s", a.code, err, a.out, a.err)
	}
	for _, l := range logins {
		want, entry := "n1", 1
		if l.Intent == "READ_WRITE" {
			want, entry = "n3", 0
		}
		if l.Error != "" || l.Answered != want || l.Entry != entry {
			t.Errorf("check routing: %+v", l)
		}
	}
	if a := coterie(t, "check", "routing", "--node", g.node("n1"), "--user", "nobody_of_that_name"); a.code == 0 || !strings.Contains(a.err, "login through") {
		t.Errorf("a role that is not there: exit code %d: %s", a.code, a.err)
	}
	first, second := coterie(t, "check", "backup-preferred", "--node", g.node("n1")), coterie(t, "check", "backup-preferred", "--node", g.node("n3"))
	if first.code != 0 || second.code != exitUnhealthy {
		t.Errorf("backups are preferred on the secondary: %d %s, %d %s", first.code, first.err, second.code, second.err)
	}
}

// sameAsInit compares the configuration that statements made with the one that coterie init and join make.
func (g *group) sameAsInit(t *testing.T, name string, replicas ...ag.ReplicaID) {
	t.Helper()
	l, err := config.NewLayout(g.node(string(replicas[0])))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(l.State(), "group.json"))
	if err != nil {
		t.Fatal(err)
	}
	var made ag.Group
	if err := json.Unmarshal(b, &made); err != nil {
		t.Fatal(err)
	}
	want := ag.Group{Name: name, CommitRule: ag.RuleQuorum, SessionTimeout: 10 * time.Second, Profile: "default", Superuser: "postgres"}
	var members []ag.Replica
	for _, r := range made.Replicas {
		if r.Part() {
			members = append(members, r)
		}
	}
	made.Replicas = members
	for _, id := range replicas {
		want.Replicas = append(want.Replicas, ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true, Allow: ag.AllowReadOnly})
	}
	own := cmp.Options{ // of each node and each group
		cmpopts.IgnoreFields(ag.Group{}, "ID", "SystemID", "Serial", "SignedOnly", "SignedRecord"),
		cmpopts.IgnoreFields(ag.Replica{}, "Endpoint", "Listener", "ReadOnly", "HTTP", "KeyPin", "EtcdID", "Major"),
	}
	if diff := cmp.Diff(want, made, own, everyField, cmpopts.EquateEmpty(), cmpopts.SortSlices(func(a, b ag.Replica) bool { return a.ID < b.ID })); diff != "" {
		t.Errorf("not as coterie init and coterie join would have made it (-want +got):\n%s", diff)
	}
}
