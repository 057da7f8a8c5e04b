package etcd

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/endorsement"
)

// replicaKeys are a replica's keys. They implement endorsement.Keys.
type replicaKeys struct {
	ca   *certs.CA
	node *certs.Node
}

func (k replicaKeys) CA() *certs.CA         { return k.ca }
func (k replicaKeys) Identity() *certs.Node { return k.node }
func (k replicaKeys) TrustedCAs() string    { return strings.Join(k.node.TrustedPins(), " ") }

// recorder is an endorser that a test looks through: it keeps the value that was read last.
type recorder struct {
	Endorser
	read []byte
}

func (r *recorder) Reading() func([]byte, int64) []byte {
	use := r.Endorser.Reading()
	return func(value []byte, rev int64) []byte {
		r.read = bytes.Clone(value)
		return use(value, rev)
	}
}

// endorsed opens the store of a replica of the group g, which asks its own member first.
func (c *cluster) endorsed(t *testing.T, id ag.ReplicaID, ca *certs.CA, g ag.Group) (*Store, *recorder) {
	t.Helper()
	dir := t.TempDir()
	ok(t, ca.Save(dir))
	node, err := certs.CreateNode(dir, ca, certs.Identity{Group: testGroup, Kind: certs.KindReplica, ID: id}, []string{"127.0.0.1"})
	ok(t, err)
	j, err := endorsement.NewJudge(replicaKeys{ca, node}, g, testLogger(t))
	ok(t, err)
	r := &recorder{Endorser: j}
	return openTest(t, StoreConfig{
		Group: testGroup, Dial: c.dial, Endpoints: []string{string(id), "n1", "n2", "w"}, Attempt: string(id) + "-1", CallTimeout: patience,
		Logger: testLogger(t), Endorser: r,
	}), r
}

// TestThiefOfAWitness writes into a real store of three members, by the member of the witness and with a program of the
// thief's. No replica uses a configuration that would let somebody read rows or run programs.
func TestThiefOfAWitness(t *testing.T) {
	c := newCluster(t, "n1", "n2", "w")
	ctx := testContext(t)
	ca, err := certs.NewCA(testGroup, "g")
	ok(t, err)
	first := firstGroup(testGroup)
	first.SignedOnly = true
	n1, seen1 := c.endorsed(t, "n1", ca, first)
	n2, _ := c.endorsed(t, "n2", ca, first)
	thief := c.store("w-1", "w")
	ok(t, n1.Bootstrap(ctx, first, firstEpoch, firstState))
	x, err := n1.Read(ctx)
	ok(t, err)
	old := seen1.read
	x.Group.HBA = "host all all 10.0.0.0/8 scram-sha-256"
	_, err = n1.UpdateGroup(ctx, x.GroupRev, x.Group)
	ok(t, err)
	x, err = n1.Read(ctx)
	ok(t, err)
	good := seen1.read
	_, err = n2.Read(ctx)
	ok(t, err)

	own, err := certs.NewCA(testGroup, "g")
	ok(t, err)
	for name, alter := range map[string]func(g *ag.Group){
		"a rule for anybody":   func(g *ag.Group) { g.HBA = "host all all 0.0.0.0/0 trust" },
		"a program":            func(g *ag.Group) { g.Parameters = map[string]string{"archive_command": "sh -c evil"} },
		"a program of a node":  func(g *ag.Group) { g.Replicas[0].Options.Parameters = map[string]string{"archive_command": "evil"} },
		"another superuser":    func(g *ag.Group) { g.Superuser = "eve" },
		"a key of its own":     func(g *ag.Group) { g.Replicas[0].KeyPin = "of the thief" },
		"itself as a replica":  func(g *ag.Group) { g.Replicas[len(g.Replicas)-1].AvailabilityMode = ag.AsynchronousCommit },
		"no signatures wanted": func(g *ag.Group) { g.SignedOnly, g.Serial = false, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			events := n2.Watch(t.Context())
			y, err := thief.Read(ctx)
			ok(t, err)
			alter(&y.Group)
			body, err := json.Marshal(y.Group)
			ok(t, err)
			sig, err := own.Endorse(certs.Configuration, body)
			ok(t, err)
			signed := fmt.Appendf(nil, `%s,"signature":%q}`, body[:len(body)-1], base64.StdEncoding.EncodeToString(sig))
			for _, value := range [][]byte{body, signed, old} {
				ok(t, thief.blind(ctx, put(thief.keys.config, value)))
				for e := range events {
					if e.Group {
						break
					}
				}
				for who, s := range map[string]*Store{"n1": n1, "n2": n2} {
					got, err := s.Read(ctx)
					ok(t, err)
					if same(got.Group, x.Group) != "" {
						t.Errorf("%s uses %+v", who, got.Group)
					}
				}
			}
			ok(t, n2.RestoreGroup(ctx, old, good))
			if z, err := thief.Read(ctx); err != nil || same(z.Group, x.Group) != "" {
				t.Errorf("the store holds %+v after it was restored: %v", z.Group, err)
			}
		})
	}

	t.Run("requests of operators", func(t *testing.T) {
		now, err := n2.Read(ctx)
		ok(t, err)
		op, err := json.Marshal(ag.Op{ID: "1", Kind: ag.OpForced, To: "n2", Epoch: now.Record.Epoch.Epoch})
		ok(t, err)
		if _, err := n1.PutOp(ctx, now.OpRev, now.Record.Revs.Epoch, op); err != nil {
			t.Fatal(err)
		}
		held := func(want string) {
			t.Helper()
			for who, s := range map[string]*Store{"n1": n1, "n2": n2} {
				got, err := s.Read(ctx)
				ok(t, err)
				var is ag.Op
				if got.Op != nil {
					ok(t, json.Unmarshal(got.Op, &is))
				}
				if is.ID != want || got.OpRev == 0 {
					t.Errorf("%s carries out %s, want %q", who, got.Op, want)
				}
			}
		}
		held("1")
		y, err := thief.Read(ctx)
		ok(t, err)
		signed := y.Op
		for _, value := range [][]byte{op, []byte("{"), bytes.Replace(signed, []byte(`"n2"`), []byte(`"n1"`), 1), signed, bytes.Repeat([]byte("x"), maxOpBytes+1)} {
			ok(t, thief.blind(ctx, put(thief.keys.op, value)))
			held("")
		}
		y, err = n1.Read(ctx)
		ok(t, err)
		next, err := json.Marshal(ag.Op{ID: "2", Kind: ag.OpPlanned, To: "n2", Epoch: y.Record.Epoch.Epoch})
		ok(t, err)
		if _, err := n1.PutOp(ctx, y.OpRev, y.Record.Revs.Epoch, next); err != nil {
			t.Errorf("a request over a refused one: %v", err)
		}
		held("2")
	})

	t.Run("a change over a refused value", func(t *testing.T) {
		ok(t, thief.blind(ctx, put(thief.keys.config, []byte("{"))))
		y, err := n2.Read(ctx)
		ok(t, err)
		y.Group.Profile = "wan"
		_, err = n2.UpdateGroup(ctx, y.GroupRev, y.Group)
		ok(t, err)
		for _, s := range []*Store{n1, n2, thief} {
			if z, err := s.Read(ctx); err != nil || z.Group.Profile != "wan" || z.Group.HBA != x.Group.HBA {
				t.Errorf("%+v, %v", z.Group, err)
			}
		}
		if err := n1.RestoreGroup(ctx, []byte("{"), good); err != nil {
			t.Error(err)
		}
		if z, err := n1.Read(ctx); err != nil || z.Group.Profile != "wan" {
			t.Errorf("a value that was replaced already is replaced again: %+v, %v", z.Group, err)
		}
	})

	// The thief cannot make a change of its own with the program of a witness either.
	j, err := endorsement.NewJudge(replicaKeys{nil, nil}, x.Group, testLogger(t))
	ok(t, err)
	if _, err := j.Sign(x.Group); err == nil || errors.Is(err, ErrConflict) {
		t.Errorf("a witness signs: %v", err)
	}
}

// same returns how two configurations differ; "": they do not.
func same(x, y ag.Group) string {
	a, _ := json.Marshal(x)
	b, _ := json.Marshal(y)
	if bytes.Equal(a, b) {
		return ""
	}
	return string(a) + " is not " + string(b)
}

// lying is a store of which one member is stolen: it says that every change was made, and that the store is far ahead.
type lying struct {
	*memoryView
	stolen string
	failed map[string]bool // members that do not answer
}

func (l *lying) txn(ctx context.Context, endpoint string, t txn) (txnResult, error) {
	if l.failed[endpoint] {
		return txnResult{}, notSentError{errUnreachable}
	}
	if endpoint != l.stolen {
		return l.memoryView.txn(ctx, endpoint, t)
	}
	if !slices.ContainsFunc(t.Then, func(o op) bool { return o.kind == opPut }) {
		res, err := l.memoryView.txn(ctx, endpoint, t)
		res.rev = 1 << 60
		return res, err
	}
	return txnResult{ok: true, rev: 1 << 60}, nil
}

// TestStolenMemberIsAskedLast: a renewal that a stolen witness acknowledges, and that nobody else knows of, is not
// asked of it while a replica's member answers, not even right after one of them has failed.
func TestStolenMemberIsAskedLast(t *testing.T) {
	m := NewMemory(testGroup)
	ctx := testContext(t)
	ok(t, m.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState))
	back := &lying{&memoryView{m.back}, "a", map[string]bool{}}
	s, err := openStore(StoreConfig{Group: testGroup, Endpoints: []string{"n1"}, Replica: "n1", Attempt: "n1-1"}, back)
	ok(t, err)
	t.Cleanup(func() { _ = s.Close() })
	s.SetEndpoints([]string{"n2", "n1"}, []string{"a"})
	for _, failed := range [][]string{nil, {"n2"}, {"n1"}, nil, {"n1", "n2"}, nil} {
		back.failed = map[string]bool{}
		for _, name := range failed {
			back.failed[name] = true
		}
		x, err := s.Read(ctx)
		ok(t, err)
		if stolen := len(failed) == 2; (x.From == "a") != stolen || stolen != (x.StoreRev == 1<<60) {
			t.Errorf("while %v fail, %s answers with revision %d", failed, x.From, x.StoreRev)
		}
		lead := ag.Lead{Epoch: x.Record.Epoch.Epoch, Holder: "n1", Progress: strings.Join(failed, " ")}
		_, err = s.Renew(ctx, x.Record.Revs.Epoch, lead)
		ok(t, err)
		if y, err := m.Read(ctx); err != nil || len(failed) < 2 && !y.Record.Lead.Same(lead) {
			t.Errorf("while %v fail, a renewal counts that is not in the store: %+v, %v", failed, y.Record.Lead, err)
		}
	}
}
