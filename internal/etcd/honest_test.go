package etcd

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/endorsement"
)

// memberKeys are the keys of a member in a directory of its own, which a rotation changes. They implement
// endorsement.Keys.
type memberKeys struct {
	dir  string
	node *certs.Node
	ca   *certs.CA
}

func (k *memberKeys) CA() *certs.CA         { return k.ca }
func (k *memberKeys) Identity() *certs.Node { return k.node }
func (k *memberKeys) TrustedCAs() string    { return strings.Join(k.node.TrustedPins(), " ") }

// honest is a group without a thief, whose calls fail, lose their answers and come late.
type honest struct {
	t      *testing.T
	ctx    context.Context
	random *rand.Rand
	store  *Memory
	keys   []*memberKeys // the last is a witness's
	stores []*Store
	judges []*endorsement.Judge
	read   []ag.Record // what each has read last
	seq    uint64
	rotate []func() // the steps of a rotation that are left
}

func newHonest(t *testing.T, seed uint64) *honest {
	t.Helper()
	h := &honest{t: t, ctx: testContext(t), random: rand.New(rand.NewPCG(seed, 1)), store: NewMemory(testGroup), seq: 1}
	ca, err := certs.NewCA(testGroup, "g")
	ok(t, err)
	for _, id := range []ag.ReplicaID{"n1", "n2", "w"} {
		k := &memberKeys{dir: t.TempDir()}
		kind := certs.KindWitness
		if id != "w" {
			ok(t, ca.Save(k.dir))
			k.ca, kind = ca, certs.KindReplica
		}
		k.node, err = certs.CreateNode(k.dir, ca, certs.Identity{Group: testGroup, Kind: kind, ID: id}, []string{"127.0.0.1"})
		ok(t, err)
		h.keys = append(h.keys, k)
		h.stores, h.judges, h.read = append(h.stores, nil), append(h.judges, nil), append(h.read, ag.Record{})
		h.start(len(h.keys) - 1)
	}
	ok(t, h.stores[0].Bootstrap(h.ctx, signedGroup(), firstEpoch, firstState))
	return h
}

// start starts a member anew: it knows no place and no good value.
func (h *honest) start(i int) {
	h.t.Helper()
	k := h.keys[i]
	j, err := endorsement.NewJudge(k, signedGroup(), testLogger(h.t))
	ok(h.t, err)
	h.stores[i], err = h.store.Open(StoreConfig{Group: testGroup, Replica: k.node.Identity.ID, Attempt: string(k.node.Identity.ID) + "-1", Endorser: j})
	ok(h.t, err)
	h.judges[i] = j
}

// change has a replica change the record over what it has read last, which may have been long ago.
func (h *honest) change(i int) {
	h.seq++
	was := h.read[i]
	e, st := was.Epoch, *state(h.seq, h.random.IntN(2) == 0)
	st.Epoch, st.Leader = e.Epoch, h.keys[i].node.Identity.ID
	c := Change{State: &st}
	switch h.random.IntN(4) {
	case 0: // a claim
		e.Epoch, e.Phase, e.Leader = e.Epoch+1, ag.PhaseSeal, st.Leader
		c = Change{Epoch: &e}
	case 1: // a leader begins
		e.Phase, e.Leader = ag.PhaseLead, st.Leader
		c.Epoch = &e
	}
	revs := was.Revs
	revs.Lead = -1
	_, err := h.stores[i].Commit(h.ctx, revs, c)
	h.may(err)
}

// may fails on an error that no failure of the store explains.
func (h *honest) may(err error) {
	h.t.Helper()
	if err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrNoQuorum) {
		h.t.Fatal(err)
	}
}

// begin prepares the steps of a rotation of the authority, member by member, as pki carries them out.
func (h *honest) begin() {
	next, err := certs.NewCA(testGroup, "g")
	ok(h.t, err)
	each := func(step func(i int, k *memberKeys) error) {
		for _, i := range h.random.Perm(len(h.keys)) {
			h.rotate = append(h.rotate, func() {
				k := h.keys[i]
				ok(h.t, step(i, k))
				if k.ca != nil {
					k.ca, err = certs.LoadCA(k.dir)
					ok(h.t, err)
				}
				ok(h.t, k.node.Reload(k.dir))
			})
		}
	}
	each(func(_ int, k *memberKeys) error {
		if k.ca != nil {
			ok(h.t, certs.SaveAuthorityKey(k.dir, next.KeyPEM()))
		}
		return certs.TrustAuthority(k.dir, next.CertPEM)
	})
	each(func(i int, k *memberKeys) error {
		ok(h.t, certs.PreferAuthority(k.dir, next.Pin()))
		if k.ca != nil {
			k.ca = next
		}
		ok(h.t, k.node.Reload(k.dir))
		for h.stores[i].SignRecordAgain(h.ctx) != nil { // before a replica reports, as endorsement.Service.Tell does
			h.store.Fail(0)
		}
		return (&certs.Renewer{Dir: k.dir, Node: k.node, Logger: slog.New(slog.DiscardHandler), Issue: func(_ context.Context, csr []byte) ([]byte, error) {
			return next.RenewFor(k.node.Identity, k.node.Pin, csr, []string{"127.0.0.1"})
		}}).Renew(h.ctx)
	})
	each(func(_ int, k *memberKeys) error { return certs.ForgetAuthorities(k.dir) })
}

// step lets one thing happen.
func (h *honest) step() {
	i := h.random.IntN(len(h.keys))
	replica := h.random.IntN(len(h.keys) - 1)
	switch h.random.IntN(12) {
	case 0:
		h.start(i)
	case 1:
		h.store.LoseAnswers(h.random.IntN(3))
	case 2:
		h.store.Hold(h.random.IntN(2))
	case 3:
		h.store.Deliver()
	case 4:
		h.store.Fail(h.random.IntN(3))
	case 5:
		h.may(h.stores[i].SignRecordAgain(h.ctx))
	case 6:
		for range 1 + h.random.IntN(9) {
			if len(h.rotate) == 0 {
				h.begin()
			}
			h.rotate[0]()
			h.rotate = h.rotate[1:]
		}
	default:
		h.change(replica)
	}
}

// believed fails unless every member reads the record, and has refused none. One that starts now does as well.
func (h *honest) believed(after int) {
	h.t.Helper()
	lose, hold, fail := h.store.back.lose, h.store.back.hold, h.store.back.fail
	h.store.LoseAnswers(0)
	h.store.Hold(0)
	h.store.Fail(0)
	for i := range h.stores {
		if h.random.IntN(8) == 0 {
			h.start(i)
		}
		x, err := h.stores[i].Read(h.ctx)
		if err != nil {
			h.t.Fatalf("after step %d %s does not read the record: %v", after, h.keys[i].node.Identity.ID, err)
		}
		if h.random.IntN(2) == 0 {
			h.read[i] = x.Record
		}
		if done, err := h.stores[i].RestoreRecord(h.ctx); done || err != nil {
			h.t.Fatalf("after step %d %s restores the record: %v", after, h.keys[i].node.Identity.ID, err)
		}
	}
	h.store.LoseAnswers(lose)
	h.store.Hold(hold)
	h.store.Fail(fail)
}

// TestHonestGroupIsBelieved: whatever becomes of calls, of members and of the authority, a group without a thief finds
// its record good at every moment.
func TestHonestGroupIsBelieved(t *testing.T) {
	for seed := range uint64(2) {
		h := newHonest(t, seed)
		for n := range 120 {
			h.believed(n)
			h.step()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}
