package e2e

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// thief writes the keys of a group by the quorum's member of its witness.
type thief struct {
	*group
	store  *clientv3.Client
	prefix string
}

// put writes keys in one transaction; a nil value deletes its key.
func (x thief) put(t *testing.T, values map[string][]byte) {
	t.Helper()
	var ops []clientv3.Op
	for key, v := range values {
		if v == nil {
			ops = append(ops, clientv3.OpDelete(x.prefix+key))
			continue
		}
		ops = append(ops, clientv3.OpPut(x.prefix+key, string(v)))
	}
	if _, err := x.store.Txn(t.Context()).Then(ops...).Commit(); err != nil {
		t.Fatal(err)
	}
}

// values returns keys as they are in the store.
func (x thief) values(t *testing.T, keys ...string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, key := range keys {
		out[key] = valueOf(t, x.store, x.prefix+key)
	}
	return out
}

// altered returns the value of a key with some members changed.
func (x thief) altered(t *testing.T, key string, members map[string]any) []byte {
	t.Helper()
	v := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(valueOf(t, x.store, x.prefix+key)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	for name, m := range members {
		v[name] = m
	}
	return x.coded(t, v)
}

func (x thief) coded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// refusal waits until a replica has refused one more of what count counts than before do.
func (x thief) refusal(t *testing.T, what string, count func(api.Status) uint64, do func()) {
	t.Helper()
	was := map[string]uint64{}
	for _, node := range []string{"n1", "n2"} {
		if s, err := x.status(t, node); err == nil {
			was[node] = count(s)
		}
	}
	do()
	x.await(t, what+" is refused", func(lab.Status) bool {
		for node, n := range was {
			if s, err := x.status(t, node); err == nil && count(s) > n {
				return true
			}
		}
		return false
	})
}

func countRequests(s api.Status) uint64 { return s.Requests.Refused }
func countRecords(s api.Status) uint64  { return s.Record.Refused }

// requests: forged requests of failovers, and one that the primary gave up and the thief puts back, begin nothing. A
// witness is not asked.
func (x thief) requests(t *testing.T) {
	was := x.ready(t)
	to := secondaries(was)[0]
	for _, kind := range []ag.OpKind{ag.OpForced, ag.OpPlanned} {
		op := x.coded(t, ag.Op{ID: "evil", Kind: kind, To: ag.ReplicaID(to), Epoch: was.Epoch, Now: true})
		x.refusal(t, "a forged request, "+string(kind), countRequests, func() { x.put(t, map[string][]byte{"op": op}) })
		x.acknowledged(t, 20)
	}
	for _, args := range [][]string{nil, {"--allow-data-loss", "--yes"}} {
		a := coterie(t, append([]string{"failover", "--to", to, "--node", x.node("w")}, args...)...)
		if a.code != exitRefused || !strings.Contains(a.err, "run this on a replica") {
			t.Errorf("%v on the witness: exit code %d: %s", args, a.code, a.err)
		}
	}

	c := x.open(t)
	said := make(chan answer, 1)
	go func() { said <- coterie(t, "failover", "--to", to, "--drain", "2s", "--node", x.node(to)) }()
	var asked []byte
	x.await(t, "the request is in the store", func(lab.Status) bool {
		r, err := x.store.Get(t.Context(), x.prefix+"op")
		if err == nil && len(r.Kvs) == 1 && bytes.Contains(r.Kvs[0].Value, []byte(`"signature":"`)) {
			asked = r.Kvs[0].Value
		}
		return asked != nil
	})
	if a := <-said; a.code != 3 || !strings.Contains(a.err, "1 transactions still run after 2s") {
		t.Errorf("exit code %d: %s", a.code, a.err)
	}
	if _, err := c.Exec(t.Context(), "COMMIT"); err != nil {
		t.Errorf("the transaction did not survive: %v", err)
	}
	x.refusal(t, "a request that is put back", countRequests, func() { x.put(t, map[string][]byte{"op": asked}) })
	x.acknowledged(t, 50)
	x.put(t, map[string][]byte{"op": []byte("{")})
	x.acknowledged(t, 50)
	x.same(t, was)
}

// records: a forged epoch or state makes nobody lead, and the last good one comes back.
func (x thief) records(t *testing.T) {
	was := x.ready(t)
	to := secondaries(was)[0]
	const evil = 1000
	for _, f := range []struct {
		name, key string
		members   map[string]any
	}{
		{"a state that no commit waits for", "state", map[string]any{"v": []any{}, "k": 0, "seq": evil}},
		{"a state in which another leads", "state", map[string]any{"leader": to, "k": 0, "seq": evil}},
		{"a forced promotion", "epoch", map[string]any{"epoch": evil, "phase": "PROMOTE", "leader": to, "tli": 90, "max_tli": 90, "forced": true}},
		{"a primary of a later epoch", "epoch", map[string]any{"epoch": evil, "leader": to}},
	} {
		forged := x.altered(t, f.key, f.members)
		x.refusal(t, f.name, countRecords, func() { x.put(t, map[string][]byte{f.key: forged}) })
		x.await(t, "the record is restored", func(lab.Status) bool { // written over twice, it would not be
			return !bytes.Equal(x.values(t, f.key)[f.key], forged)
		})
		s := x.ready(t)
		x.acknowledged(t, 50)
		if s.Epoch >= evil {
			t.Errorf("after %s the epoch is %d", f.name, s.Epoch)
		}
	}
	x.judgeAndGoOn(t)
	if a := coterie(t, "check", "security", "--node", x.node("n1")); !strings.Contains(a.out+a.err, "parts of the record in the quorum's store were refused") {
		t.Errorf("coterie check security: %s%s", a.out, a.err)
	}
}

// leads: a forged heartbeat may end a leadership early. No row is lost by that.
func (x thief) leads(t *testing.T) {
	for _, alter := range []map[string]any{{"released": true}, {"holder": "n9"}, {"epoch": 1000}, {"observer": 1, "answer": map[string]any{}}, nil} {
		for range 5 {
			var v []byte
			if alter != nil {
				v = x.altered(t, "lead", alter)
			}
			x.put(t, map[string][]byte{"lead": v})
			time.Sleep(100 * time.Millisecond) // so many times between two heartbeats of the leader
		}
		x.ready(t)
		x.acknowledged(t, 20)
	}
	x.judgeAndGoOn(t)
}

// earlierRecord: the primary has gone on alone when it dies. By the state of before, which the thief puts back with its
// signature, the other replica could lead without what was acknowledged since. It does not.
func (x thief) earlierRecord(t *testing.T) {
	was := x.ready(t)
	primary, other := *was.Primary, secondaries(was)[0]
	promising := x.values(t, "epoch", "state", "signature/epoch", "signature/state")
	since := time.Now()
	x.kill(t, other)
	x.unprotected(t, primary, since)
	x.acknowledged(t, 100)
	x.kill(t, primary)
	x.start(t, other)
	x.await(t, other+" reads the record", func(lab.Status) bool {
		s, err := x.status(t, other)
		return err == nil && s.Quorum && s.SyncCount == 0
	})
	for range 3 {
		x.refusal(t, "an earlier record", countRecords, func() { x.put(t, promising) })
		for range 20 {
			if s, err := x.status(t, other); err == nil && s.WriteOpen {
				t.Fatalf("%s leads epoch %d by an earlier record", other, s.Epoch)
			}
			time.Sleep(50 * time.Millisecond) // it would take that long to lead
		}
		x.await(t, "the record is restored", func(lab.Status) bool {
			s, err := x.status(t, other)
			return err == nil && s.Quorum
		})
	}
	x.start(t, primary)
	x.ready(t)
	x.acknowledged(t, 50)
}
