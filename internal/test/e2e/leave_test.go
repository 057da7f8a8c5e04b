package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// departure is what coterie leave --json says.
type departure struct {
	Data      string   `json:"data"`
	Last      bool     `json:"last"`
	Completed bool     `json:"completed"`
	Remaining []string `json:"remaining"`
}

// TestEndToEndLeave has a secondary leave a group of three replicas and a witness with its data, and the others too,
// one by one: a primary is refused, the group goes on, and the last one ends it. Each data directory starts by itself.
func TestEndToEndLeave(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Witness: true})
	was := g.ready(t)
	primary, first, second := *was.Primary, secondaries(was)[0], secondaries(was)[1]
	kept := filepath.Join(filepath.Dir(g.Dir()), "kept")
	if err := os.Mkdir(kept, 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, kept)
	sql(t, g.ReadWrite(), "CREATE TABLE kept AS SELECT n FROM generate_series(1, 5000) n")
	if a := coterie(t, "leave", "--node", g.node(primary)); a.code != 4 || !strings.Contains(a.err, "coterie failover --to") {
		t.Errorf("the primary leaves: exit code %d: %s", a.code, a.err)
	}
	g.await(t, first+" has every row", func(lab.Status) bool {
		st, err := g.status(t, primary)
		r := member(st, first)
		return err == nil && r.LagBytes != nil && *r.LagBytes < 64<<10
	})
	d := g.leave(t, first, "--keep-data", filepath.Join(kept, first))
	g.alone(t, d.Data, 5000)
	if again := g.leave(t, first); again.Data != d.Data {
		t.Errorf("told again: %+v, was %+v", again, d)
	}
	if a := coterie(t, "agent", "--node", g.node(first)); a.code == 0 {
		t.Error("an agent runs on the directory of a node that has left")
	}
	g.acknowledged(t, 50)
	g.goesOn(t, primary, 3)
	if a := coterie(t, "leave", "--node", g.node(second)); a.code != 4 || !strings.Contains(a.err, "coterie leave --node "+g.node(second)+" --leave-one-copy") {
		t.Errorf("the only other copy leaves: exit code %d: %s", a.code, a.err)
	}
	if d := g.leave(t, second, "--leave-one-copy"); d.Last || d.Data == "" {
		t.Errorf("%s: %+v", second, d)
	}
	g.remove(t, "w", primary)
	if d := g.leave(t, "w"); d.Last || d.Data != "" {
		t.Errorf("w: %+v", d)
	}
	g.alone(t, filepath.Join(g.node(second), "pgdata"), 5000)
	g.end()
	if d := g.leave(t, primary, "--keep-data", filepath.Join(kept, primary)); !d.Last {
		t.Errorf("the last member: %+v", d)
	}
	g.alone(t, filepath.Join(kept, primary), 5000)
}

// TestEndToEndLeaveOfTheOnlyVoter has the secondary of a group of two leave that votes alone, as after a failover. The
// words of its refusal can be followed: the primary gets the vote.
func TestEndToEndLeaveOfTheOnlyVoter(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Replicas: 2})
	was := g.ready(t)
	leaves, stays := *was.Primary, secondaries(was)[0]
	sql(t, g.ReadWrite(), "CREATE TABLE kept AS SELECT n FROM generate_series(1, 5000) n")
	g.failover(t, stays)
	g.ready(t)
	if st, err := g.status(t, stays); err != nil || !member(st, leaves).Voter || member(st, stays).Voter {
		t.Fatalf("another one votes than that which leaves: %+v, %v", st.Replicas, err)
	}
	if a := coterie(t, "leave", "--node", g.node(leaves)); a.code != 4 || !strings.Contains(a.err, "coterie leave --node "+g.node(leaves)+" --leave-one-copy") {
		t.Fatalf("exit code %d: %s", a.code, a.err)
	}
	d := g.leave(t, leaves, "--leave-one-copy")
	g.alone(t, d.Data, 5000)
	g.await(t, stays+" takes writes alone", func(lab.Status) bool {
		st, err := g.status(t, stays)
		return err == nil && st.Quorum && st.WriteOpen && len(st.Replicas) == 1 && member(st, stays).Voter
	})
	sql(t, g.ReadWrite(), "INSERT INTO kept VALUES (0)")
}

// remove runs coterie member remove on a node until it succeeds: the quorum may need a moment without the vote.
func (g *group) remove(t *testing.T, name, on string) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		a := coterie(t, "remove", "--yes", name, "--node", g.node(on))
		if a.code == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not removed: %s", name, a.err)
		}
		t.Logf("again: %s", a.err)
	}
}

// leave runs coterie leave, which must succeed.
func (g *group) leave(t *testing.T, node string, args ...string) (d departure) {
	t.Helper()
	a := must(t, append([]string{"leave", "--json", "--yes", "--node", g.node(node)}, args...)...)
	if err := json.Unmarshal([]byte(a.out), &d); err != nil || !d.Completed || len(d.Remaining) > 0 {
		t.Fatalf("%s leaves: %v: %s%s", node, err, a.out, a.err)
	}
	t.Logf("%s: %s", node, a.err)
	if _, err := config.Load(g.node(node)); err == nil {
		t.Errorf("%s is still a node", node)
	}
	return d
}

// goesOn waits until the group has so many members and is healthy.
func (g *group) goesOn(t *testing.T, primary string, members int) {
	t.Helper()
	g.await(t, fmt.Sprintf("a healthy group of %d", members), func(lab.Status) bool {
		st, err := g.status(t, primary)
		return err == nil && len(st.Replicas) == members && st.Availability.Level == availability.Healthy
	})
}

// alone starts PostgreSQL on a data directory by pg_ctl, without any setting but where it listens, and checks that it
// is a primary with its rows and without any mark of a group.
func (g *group) alone(t *testing.T, data string, rows int) {
	t.Helper()
	for _, pattern := range []string{"standby.signal", "recovery.signal", "coterie*", "pg_replslot/*"} {
		if found, err := filepath.Glob(filepath.Join(data, pattern)); err != nil || len(found) > 0 {
			t.Errorf("left behind: %v, %v", found, err)
		}
	}
	auto, err := os.ReadFile(filepath.Join(data, "postgresql.auto.conf"))
	if err != nil || strings.Contains(string(auto), "synchronous_standby_names") || strings.Contains(string(auto), "primary_") {
		t.Errorf("settings of the group: %v: %s", err, auto)
	}
	c := &cluster{server(t).BinDir, data}
	sockets, err := os.MkdirTemp(root, "s")
	if err != nil {
		t.Fatal(err)
	}
	own(t, sockets)
	port := freePorts(t)
	hba := filepath.Join(sockets, "hba.conf")
	if err := os.WriteFile(hba, []byte("local all all trust\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.run(t, "pg_ctl", "-w", "-D", data, "-l", filepath.Join(sockets, "log"), "-o", fmt.Sprintf("-p %d -k %s -c listen_addresses='' -c hba_file=%s", port, sockets, hba), "start")
	defer func() { c.run(t, "pg_ctl", "-w", "-D", data, "stop") }()
	uri := fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", sockets, port)
	if got := sql(t, uri, "SELECT count(*) FROM kept WHERE NOT pg_is_in_recovery()"); got != fmt.Sprint(rows) {
		t.Errorf("%s has %s of %d rows", data, got, rows)
	}
	sql(t, uri, "CREATE TABLE own (n int)")
}

// own gives a directory to the user that runs the servers.
func own(t *testing.T, dir string) {
	t.Helper()
	if id := serverUser(t); id != nil {
		if err := os.Chown(dir, int(id.Uid), int(id.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}
