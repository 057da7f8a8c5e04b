package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndThief writes into the quorum's store, by the member of a witness and under load, what its thief could:
// configurations that would let it in, requests of failovers, and a record by which rows would be lost. No replica acts
// on them, each tells of them, and what was good comes back.
func TestEndToEndThief(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{Replicas: 2, Witness: true})
	replicas := []string{"n1", "n2"}
	g.awaitSigned(t, "n1", "n2", "w")
	if a := coterie(t, "replica", "set", "n2", "failover_mode=manual", "--node", g.node("w")); a.code != exitRefused || !strings.Contains(a.err, "run this on a replica") {
		t.Errorf("a change on the witness: exit code %d: %s%s", a.code, a.out, a.err)
	}
	status, err := g.status(t, "n1")
	if err != nil {
		t.Fatal(err)
	}
	store, key := g.quorum(t, "w"), "/coterie/v1/"+string(status.GroupID)+"/config"
	earlier := valueOf(t, store, key)
	g.says(t, "n1", "ALTER AVAILABILITY GROUP lab SET PARAMETER work_mem = '8MB'")
	g.await(t, "the change", func(lab.Status) bool { return !bytes.Equal(valueOf(t, store, key), earlier) })
	good := valueOf(t, store, key)
	trace := filepath.Join(g.node("n1"), "evil")

	for name, alter := range map[string]func(group map[string]any){
		"a rule":      func(group map[string]any) { group["hba"] = "host all all 0.0.0.0/0 trust\nhost all all ::/0 trust" },
		"a superuser": func(group map[string]any) { group["superuser"] = "eve" },
		"a program": func(group map[string]any) {
			group["parameters"] = map[string]string{"work_mem": "9MB", "archive_command": "touch " + trace, "archive_mode": "on"}
		},
		"no signature":   func(group map[string]any) { delete(group, "signature"); delete(group, "signed_only") },
		"an earlier one": nil,
	} {
		was := g.refusals(t, replicas)
		value := earlier
		if alter != nil {
			group := map[string]any{}
			d := json.NewDecoder(bytes.NewReader(good))
			d.UseNumber()
			if err := d.Decode(&group); err != nil {
				t.Fatal(err)
			}
			alter(group)
			if value, err = json.Marshal(group); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := store.Put(t.Context(), key, string(value)); err != nil {
			t.Fatal(err)
		}
		g.await(t, name+" is refused and replaced", func(lab.Status) bool {
			refused := false
			for node, n := range g.refusals(t, replicas) { // a node that reads it after it was replaced refuses nothing
				refused = refused || n > was[node]
			}
			return refused && bytes.Equal(valueOf(t, store, key), good)
		})
		g.entersNobody(t, name)
	}
	r, err := g.answered(t, "n2", "SELECT string_agg(node || '=' || value, ' ') FROM (SELECT node, value FROM coterie.settings WHERE name = 'work_mem' ORDER BY node)")
	if err != nil || len(r.Rows) != 1 || r.Rows[0][0] != "n1=8MB n2=8MB" {
		t.Errorf("work_mem is %v: %v", r.Rows, err)
	}
	if _, err := os.Stat(trace); err == nil {
		t.Error("the thief's program ran")
	}
	if a := coterie(t, "check", "security", "--node", g.node("n1")); !strings.Contains(a.out+a.err, "were refused since the agent started") {
		t.Errorf("coterie check security: %s%s", a.out, a.err)
	}
	x := thief{group: g, store: store, prefix: strings.TrimSuffix(key, "config")}
	x.requests(t)
	x.records(t)
	x.leads(t)
	x.earlierRecord(t)
	g.judge(t)
	g.down(t)
}

// entersNobody fails if a client without the password is let in, by any replica.
func (g *group) entersNobody(t *testing.T, after string) {
	t.Helper()
	for _, node := range []string{"n1", "n2"} {
		u, err := url.Parse(g.DSN(node))
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword("postgres", "wrong")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		c, err := pgx.Connect(ctx, u.String())
		cancel()
		if err == nil {
			_ = c.Close(context.WithoutCancel(ctx))
			t.Errorf("after %s %s lets anybody in", after, node)
		}
	}
}

// awaitSigned waits until the nodes use signed configurations and records only, and checks that none of them has
// refused anything.
func (g *group) awaitSigned(t *testing.T, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		var last api.Status
		g.await(t, node+" uses signed configurations only", func(lab.Status) bool {
			s, err := g.status(t, node)
			last = s
			return err == nil && s.Configuration.SignedOnly && s.Configuration.SignedRecord
		})
		if c := last.Configuration; c.Refused+last.Requests.Refused+last.Record.Refused != 0 {
			t.Errorf("%s has refused %d configurations: %s; %+v; %+v", node, c.Refused, c.Why, last.Requests, last.Record)
		}
	}
}

// refusals counts the configurations that nodes have refused.
func (g *group) refusals(t *testing.T, nodes []string) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, node := range nodes {
		if s, err := g.status(t, node); err == nil {
			out[node] = s.Configuration.Refused
		}
	}
	return out
}

func valueOf(t *testing.T, store *clientv3.Client, key string) []byte {
	t.Helper()
	r, err := store.Get(t.Context(), key)
	if err != nil || len(r.Kvs) != 1 {
		t.Fatalf("read %s: %v", key, err)
	}
	return r.Kvs[0].Value
}
