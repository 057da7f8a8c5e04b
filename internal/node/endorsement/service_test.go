package endorsement

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/node/rpc/rpctest"
)

// store is a store with one value, which several nodes read and write.
type store struct {
	value []byte
	votes map[uint64]ag.ReplicaID
}

// bed is the service of one node on a store.
type bed struct {
	*Service
	store  *store
	snap   *agent.Snapshot
	record *fakeRecord
}

func (b *bed) read(t *testing.T) ag.Group {
	t.Helper()
	return b.group(b.Judge.Reading()(b.store.value, 1))
}

func (b *bed) group(body []byte) (g ag.Group) {
	if err := json.Unmarshal(body, &g); err != nil {
		panic(err)
	}
	return g
}

func (b *bed) update(_ context.Context, change func(*ag.Group) error) error {
	g := b.group(b.Judge.Reading()(b.store.value, 1))
	if err := change(&g); err != nil {
		return err
	}
	value, err := b.Judge.Sign(g)
	if err == nil {
		b.store.value = value
		b.Judge.Wrote(value, 1)
	}
	return err
}

func (b *bed) restore(_ context.Context, value, by []byte) error {
	if string(b.store.value) == string(value) {
		b.store.value = by
	}
	return nil
}

// look has the agent of the node read the store.
func (b *bed) look(t *testing.T) {
	t.Helper()
	g := b.read(t)
	b.Members.Set(g)
	b.snap = &agent.Snapshot{Group: g, Record: ag.Record{Epoch: ag.EpochRecord{Leader: "n1", Phase: ag.PhaseLead}}}
}

func newBed(t *testing.T, k Keys, st *store, calls rpctest.Calls) *bed {
	t.Helper()
	id := k.Identity().Identity.ID
	b := &bed{store: st, record: &fakeRecord{}}
	log := slog.New(slog.DiscardHandler)
	b.Service = New(Config{
		Self: id, Judge: newJudge(t, k, ag.Group{ID: testGroup}), Logger: log, Members: membership.New(id, config.Layout{}, log), Calls: calls,
		Snapshot: func() *agent.Snapshot { return b.snap }, Update: b.update, Restore: b.restore, Record: b.record,
		Votes: func(_ context.Context, id uint64, member ag.ReplicaID) (bool, error) {
			return st.votes[id] == member, nil
		},
	})
	return b
}

func members(hba string) ag.Group {
	return ag.Group{ID: testGroup, HBA: hba, Replicas: []ag.Replica{
		{ID: "n1", KeyPin: "p1", Voter: true, EtcdID: 1, AvailabilityMode: ag.SynchronousCommit},
		{ID: "n2", KeyPin: "p2", Voter: true, EtcdID: 2, AvailabilityMode: ag.SynchronousCommit},
		{ID: "w", KeyPin: "p3", Voter: true, AvailabilityMode: ag.ConfigurationOnly},
	}}
}

// world is two replicas and a witness. answers has what the others answer to the question whether they sign.
type world struct {
	store     *store
	n1, n2, w *bed
	answers   map[ag.ReplicaID]error
	records   map[ag.ReplicaID]error // the same, whether they sign the record
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ca := newCA(t)
	x := &world{store: &store{value: unsigned(t, members("plain")), votes: map[uint64]ag.ReplicaID{}}, answers: map[ag.ReplicaID]error{}, records: map[ag.ReplicaID]error{}}
	calls := rpctest.Calls{
		"signs":        func(_ context.Context, to ag.ReplicaID, _ any) (any, error) { return true, x.answers[to] },
		"signs-record": func(_ context.Context, to ag.ReplicaID, _ any) (any, error) { return true, x.records[to] },
		"tell": func(ctx context.Context, to ag.ReplicaID, in any) (any, error) {
			b := map[ag.ReplicaID]*bed{"n1": x.n1, "n2": x.n2}[to]
			step, _ := in.(ag.MemberStep)
			return b.WriteFor(ctx, certs.Identity{ID: "w", Kind: certs.KindWitness}, step)
		},
	}
	x.n1 = newBed(t, newKeys(t, ca, "n1", certs.KindReplica), x.store, calls)
	x.n2 = newBed(t, newKeys(t, ca, "n2", certs.KindReplica), x.store, calls)
	x.w = newBed(t, newKeys(t, ca, "w", certs.KindWitness), x.store, calls)
	x.look(t)
	return x
}

func (x *world) look(t *testing.T) {
	t.Helper()
	for _, b := range []*bed{x.n1, x.n2, x.w} {
		b.look(t)
	}
}

// require has the primary ask, and every node read.
func (x *world) require(t *testing.T) {
	t.Helper()
	x.n1.asked = time.Time{}
	if err := x.n1.requireTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.look(t)
}

// TestRequire: the configuration is to be signed once every member's program says that it signs, and the primary alone
// writes that.
func TestRequire(t *testing.T) {
	x := newWorld(t)
	x.answers["w"] = errors.New("unknown method")
	x.require(t)
	if r := x.n1.Report(); r.SignedOnly || len(r.WaitsFor) != 1 || r.WaitsFor[0] != "w" {
		t.Errorf("with a witness of an earlier version: %+v", r)
	}
	if x.store.value = unsigned(t, members("by the witness")); x.n2.read(t).HBA != "by the witness" {
		t.Error("a value of an earlier version is not used")
	}
	delete(x.answers, "w")
	x.n1.snap.Record.Epoch.Leader = "n2"
	x.n1.asked = time.Time{}
	if err := x.n1.requireTurn(t.Context()); err != nil || x.n1.Report().SignedOnly {
		t.Errorf("a secondary writes it: %v", err)
	}
	x.look(t)
	x.n1.snap.Group.Replicas[1].KeyPin = "of a node that went"
	x.n1.asked = time.Time{}
	if err := x.n1.requireTurn(t.Context()); err == nil || x.n1.Report().SignedOnly {
		t.Error("a member that was not asked counts as asked")
	}
	x.look(t)
	x.require(t)
	for _, b := range []*bed{x.n1, x.n2, x.w} {
		if r := b.Report(); !r.SignedOnly || r.Refused != 0 {
			t.Errorf("%s: %+v", b.Self, r)
		}
	}
	if g := x.w.read(t); g.HBA != "by the witness" || len(g.Replicas) != 3 {
		t.Errorf("%+v", g)
	}
}

// TestRestore: a refused value is replaced by the last good one, the later of two that replicas have.
func TestRestore(t *testing.T) {
	x := newWorld(t)
	x.require(t)
	twice := func(b *bed) {
		b.restored = time.Time{}
		if err := b.restoreTurn(t.Context()); err != nil {
			t.Error(err)
		}
	}
	good := x.store.value
	x.store.value = unsigned(t, members("evil"))
	x.look(t)
	if p := x.n2.Problem(); !strings.Contains(p, "is refused") {
		t.Errorf("problem: %q", p)
	}
	twice(x.w)
	if string(x.store.value) == string(good) {
		t.Error("a witness replaces it")
	}
	twice(x.n2)
	if string(x.store.value) != string(good) {
		t.Errorf("the store holds %s", x.store.value)
	}
	x.look(t)
	if r := x.n2.Report(); r.Stands || r.Refused != 1 || r.Why == "" || !strings.Contains(x.n2.Problem(), "was refused and replaced") {
		t.Errorf("%+v, %s", r, x.n2.Problem())
	}

	// n2 makes a change that n1 never reads.
	if err := x.n2.update(t.Context(), func(g *ag.Group) error { g.HBA = "later"; return nil }); err != nil {
		t.Fatal(err)
	}
	later := x.store.value
	x.store.value = unsigned(t, members("evil again"))
	x.look(t)
	twice(x.n1)
	if string(x.store.value) != string(good) {
		t.Fatal("n1 replaces it by what it knows")
	}
	x.look(t)
	twice(x.n2)
	if string(x.store.value) != string(later) {
		t.Error("n2 knows a later one")
	}
	x.look(t)
	if got := x.n1.read(t).HBA; got != "later" {
		t.Errorf("n1 uses %q", got)
	}
	twice(x.n1)
	if string(x.store.value) != string(later) {
		t.Error("they do not come to rest")
	}

	// Another replica knows the last good one from its directory only.
	fresh := newBed(t, x.n1.Judge.keys, x.store, nil)
	fresh.Judge = newJudge(t, x.n1.Judge.keys, x.n1.read(t))
	x.store.value = unsigned(t, members("evil once more"))
	fresh.look(t)
	twice(fresh)
	if x.look(t); x.n2.read(t).HBA != "later" || x.n2.Report().Stands {
		t.Errorf("%+v", x.n2.Report())
	}
}

// TestRestorePauses: a thief who writes again and again does not have replicas write as often.
func TestRestorePauses(t *testing.T) {
	x := newWorld(t)
	x.require(t)
	writes := 0
	x.n1.Restore = func(context.Context, []byte, []byte) error { writes++; return nil }
	x.store.value = unsigned(t, members("evil"))
	x.look(t)
	for range 10 {
		if err := x.n1.restoreTurn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if writes != 1 || x.n1.pause < turnEvery {
		t.Errorf("%d writes at once, the next after %v", writes, x.n1.pause)
	}
}

// TestTell: a witness has a replica write what it tells of itself, and nothing else.
func TestTell(t *testing.T) {
	x := newWorld(t)
	x.store.votes = map[uint64]ag.ReplicaID{1: "n1", 2: "n2", 3: "w", 4: "n3"}
	if err := x.w.Tell(t.Context(), ag.MemberStep{EtcdID: 9}); err != nil || x.w.read(t).Replicas[2].EtcdID != 9 {
		t.Fatalf("while members of an earlier version are left it writes itself: %v", err)
	}
	x.require(t)
	was := x.n1.read(t)
	for _, bad := range []ag.MemberStep{{EtcdID: 1}, {EtcdID: 4}, {EtcdID: 5}} {
		if err := x.w.Tell(t.Context(), bad); err == nil {
			t.Errorf("%+v is written", bad)
		}
	}
	if err := x.w.Tell(t.Context(), ag.MemberStep{EtcdID: 3}); err != nil {
		t.Fatal(err)
	}
	x.look(t)
	is := x.n2.read(t)
	if is.Replicas[2].EtcdID != 3 || is.Replicas[0].KeyPin != was.Replicas[0].KeyPin || is.HBA != was.HBA {
		t.Errorf("%+v", is)
	}
	for _, b := range []*bed{x.n1, x.n2, x.w} {
		if n := b.Report().Refused; n != 0 {
			t.Errorf("%s has refused %d", b.Self, n)
		}
	}
	if _, err := x.w.WriteFor(t.Context(), certs.Identity{ID: "n1"}, ag.MemberStep{CameBack: true}); err == nil {
		t.Error("a witness writes for another member")
	}
	if _, err := x.n1.WriteFor(t.Context(), certs.Identity{ID: "stranger"}, ag.MemberStep{CameBack: true}); err == nil {
		t.Error("a step of no member is written")
	}
	if yes, err := x.w.Signs(t.Context(), certs.Identity{}, rpc.Nothing{}); !yes || err != nil {
		t.Error("this program signs")
	}
}
