package endorsement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// withRecord returns a configuration of a group that uses signed records only.
func withRecord() ag.Group { return ag.Group{ID: testGroup, SignedOnly: true, SignedRecord: true} }

func signedPart(t *testing.T, j *Judge, part, placed string) []byte {
	t.Helper()
	sig, err := j.SignRecord(part, []byte(placed))
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

// TestForgedRecordsAreRefused: a part of the record is used only with the signature of a replica, for that part and at
// that place.
func TestForgedRecordsAreRefused(t *testing.T) {
	ca := newCA(t)
	n1, n2 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), withRecord()), newJudge(t, newKeys(t, ca, "n2", certs.KindReplica), withRecord())
	w := newJudge(t, newKeys(t, ca, "w", certs.KindWitness), withRecord())
	if _, err := w.SignRecord("state", []byte("1:x")); err == nil {
		t.Error("a witness signs a record")
	}
	good := signedPart(t, n1, "state", "1:x")
	configured, err := ca.Endorse(certs.Configuration, []byte("1:x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range []*Judge{n1, n2, w} {
		for _, x := range []struct {
			name, part, placed string
			signature          []byte
			want               error
		}{
			{"as signed", "state", "1:x", good, nil},
			{"at another place", "state", "2:x", good, certs.ErrNotEndorsed},
			{"another value", "state", "1:y", good, certs.ErrNotEndorsed},
			{"another part", "epoch", "1:x", good, certs.ErrNotEndorsed},
			{"for another purpose", "state", "3:x", configured, certs.ErrNotEndorsed},
			{"without a signature", "state", "4:x", nil, errUnsigned},
			{"as signed, again", "state", "1:x", good, nil},
			{"as signed, and the signature is lost", "state", "1:x", nil, nil},
		} {
			_, was := j.refusedRecord()
			for range 3 {
				if err := j.Record(x.part, x.signature, []byte(x.placed)); !errors.Is(err, x.want) || x.want == nil && err != nil {
					t.Errorf("%s: %v, want %v", x.name, err, x.want)
				}
			}
			if _, n := j.refusedRecord(); (n != was) != (x.want != nil) || n > was+1 {
				t.Errorf("%s: %d refusals more", x.name, n-was)
			}
			if x.want != nil && j.SignAgain(x.part, x.signature, []byte(x.placed)) != nil {
				t.Errorf("%s: it is signed", x.name)
			}
		}
		if got := string(j.Good("state")); got != "1:x" {
			t.Errorf("the last good one is %q", got)
		}
	}
	if err := n2.Record("epoch", signedPart(t, n1, "epoch", "first"), []byte("3:x"), []byte("first")); err != nil || string(n2.Good("epoch")) != "3:x" {
		t.Errorf("a value that created its key: %v", err)
	}
}

// TestRecordOfEarlierVersions: until the configuration says so, everything is used, and signed by the way.
func TestRecordOfEarlierVersions(t *testing.T) {
	ca := newCA(t)
	n1, n2 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), with("")), newJudge(t, newKeys(t, ca, "n2", certs.KindReplica), with(""))
	if err := n1.Record("state", nil, []byte("1:x")); err != nil {
		t.Fatal(err)
	}
	if signed, stale := n1.recordState(); signed || !stale {
		t.Errorf("signed %t, to be signed %t", signed, stale)
	}
	sig := n1.SignAgain("state", nil, []byte("1:x"))
	for _, j := range []*Judge{n1, n2} {
		if err := j.Record("state", sig, []byte("1:x")); err != nil {
			t.Fatal(err)
		}
		if signed, stale := j.recordState(); !signed || stale {
			t.Errorf("signed %t, to be signed %t", signed, stale)
		}
	}
	if err := n2.Record("state", sig, []byte("2:x")); err != nil { // by a member that is not updated
		t.Fatal(err)
	}
	reads(t, n2, signed(t, n1, withRecord()))
	if err := n2.Record("state", sig, []byte("2:x")); err == nil {
		t.Error("a value that was used before is used without a signature")
	}
	if n2.SignAgain("state", sig, []byte("2:x")) != nil {
		t.Error("a refused value is signed")
	}
	if err := n2.Record("state", sig, []byte("1:x")); err != nil {
		t.Error(err)
	}
}

// TestSignedRecordStays: a node that follows a recovery forgets the number of its configuration. One of before the
// record was signed is not used there either.
func TestSignedRecordStays(t *testing.T) {
	ca := newCA(t)
	n1 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), with(""))
	before := signed(t, n1, with("before"))
	n1.Wrote(before, 1)
	now := signed(t, n1, withRecord())
	follower := newJudge(t, newKeys(t, ca, "n2", certs.KindReplica), withRecord())
	reads(t, follower, before)
	if err := follower.Record("state", nil, []byte("1:x")); err == nil || refusals(follower) != 1 {
		t.Errorf("a record without a signature is used: %d refused", refusals(follower))
	}
	if reads(t, follower, now); refusals(follower) != 1 || follower.last.Serial != 2 {
		t.Errorf("configuration %d is used, %d refused", follower.last.Serial, refusals(follower))
	}
}

// TestRecordInARotation: the record is signed by the new authority before the old one is forgotten, and a node that
// starts afterwards finds it good.
func TestRecordInARotation(t *testing.T) {
	old, next := newCA(t), newCA(t)
	k1, kw := newKeys(t, old, "n1", certs.KindReplica), newKeys(t, old, "w", certs.KindWitness)
	n1, w := newJudge(t, k1, withRecord()), newJudge(t, kw, withRecord())
	const placed = "1:x"
	sig := signedPart(t, n1, "state", placed)
	read := func(j *Judge) {
		t.Helper()
		if err := j.Record("state", sig, []byte(placed)); err != nil {
			t.Error(err)
		}
	}
	read(n1)
	read(w)
	k1.change(t, func(dir string) error { return certs.SaveAuthorityKey(dir, next.KeyPEM()) })
	for _, k := range []*keys{k1, kw} {
		k.change(t, func(dir string) error { return certs.TrustAuthority(dir, next.CertPEM) })
	}
	if n1.SignAgain("state", sig, []byte(placed)) != nil {
		t.Error("it is signed again before the new authority signs")
	}
	k1.change(t, func(dir string) error { return certs.PreferAuthority(dir, next.Pin()) })
	read(n1)
	if _, stale := n1.recordState(); !stale {
		t.Error("it is not to be signed again")
	}
	if w.SignAgain("state", sig, []byte(placed)) != nil {
		t.Error("a witness signs it")
	}
	sig = n1.SignAgain("state", sig, []byte(placed))
	read(n1)
	read(w)
	if _, stale := n1.recordState(); stale {
		t.Error("it is to be signed once more")
	}
	r := certs.Renewer{Dir: k1.dir, Node: k1.node, Logger: slog.New(slog.DiscardHandler), Issue: func(_ context.Context, csr []byte) ([]byte, error) {
		return k1.ca.RenewFor(k1.node.Identity, k1.node.Pin, csr, []string{"127.0.0.1"})
	}}
	if err := r.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	k1.change(t, certs.ForgetAuthorities)
	read(n1)
	read(newJudge(t, k1, withRecord()))
}

// fakeRecord counts what a service asks of the store.
type fakeRecord struct{ signed, restored int }

func (f *fakeRecord) SignRecordAgain(context.Context) error { f.signed++; return nil }
func (f *fakeRecord) RestoreRecord(context.Context) (bool, error) {
	f.restored++
	return true, nil
}

// TestRequireSignedRecord: the configuration says that the record is signed once it is, and every member's program
// says that it signs records.
func TestRequireSignedRecord(t *testing.T) {
	x := newWorld(t)
	x.require(t)
	if r := x.n1.Report(); !r.SignedOnly || r.SignedRecord {
		t.Fatalf("%+v", r)
	}
	x.require(t)
	if x.n1.Report().SignedRecord {
		t.Error("the record is to be signed, and it is not")
	}
	if err := x.n1.Judge.Record("state", signedPart(t, x.n1.Judge, "state", "1:x"), []byte("1:x")); err != nil {
		t.Fatal(err)
	}
	x.records["n2"] = errors.New("unknown method")
	x.require(t)
	if r := x.n1.Report(); r.SignedRecord || len(r.WaitsFor) != 1 || r.WaitsFor[0] != "n2" {
		t.Errorf("with a replica of an earlier version: %+v", r)
	}
	delete(x.records, "n2")
	x.require(t)
	for _, b := range []*bed{x.n1, x.n2, x.w} {
		if r := b.Report(); !r.SignedRecord || r.Refused != 0 || len(r.WaitsFor) != 0 {
			t.Errorf("%s: %+v", b.Self, r)
		}
	}
}

// TestRecordTurn: the record is signed and restored when there is a reason, and a thief who writes again and again does
// not have replicas write as often.
func TestRecordTurn(t *testing.T) {
	x := newWorld(t)
	x.require(t)
	x.store.value = signed(t, x.n1.Judge, withRecord())
	x.look(t)
	turn := func(b *bed, signed, restored int) {
		t.Helper()
		if err := b.recordTurn(t.Context()); err != nil {
			t.Error(err)
		}
		if r := *b.record; r.signed != signed || r.restored != restored {
			t.Errorf("%s: signed %d times, restored %d times, want %d and %d", b.Self, r.signed, r.restored, signed, restored)
		}
	}
	turn(x.n1, 0, 0)
	good := signedPart(t, x.n1.Judge, "state", "1:x")
	for _, b := range []*bed{x.n1, x.w} {
		if err := b.Judge.Record("state", good, []byte("1:x")); err != nil {
			t.Fatal(err)
		}
		turn(b, 0, 0)
		if err := b.Judge.Record("state", nil, []byte("1:x")); err != nil {
			t.Fatal(err)
		}
	}
	turn(x.n1, 1, 0)
	turn(x.w, 0, 0)
	for _, b := range []*bed{x.n1, x.w} {
		if err := b.Judge.Record("state", good, []byte("2:y")); err == nil {
			t.Fatal("a forged state is used")
		}
		if p := b.Problem(); p != "" || b.RefusedRecord().Refused != 1 {
			t.Errorf("while it is in the store: %q, %+v", p, b.RefusedRecord())
		}
		b.Judge.records.refused.at = time.Now().Add(-time.Minute)
		if p := b.Problem(); !strings.Contains(p, "the record in the quorum's store was refused") {
			t.Errorf("afterwards: %q", p)
		}
		b.Judge.records.refused.at = time.Now()
	}
	turn(x.w, 0, 0)
	for range 5 {
		turn(x.n1, x.n1.record.signed+1, 1)
	}
	x.n1.Service.record.tried = time.Now().Add(-2 * turnEvery)
	turn(x.n1, x.n1.record.signed+1, 2)
	if err := x.n1.Tell(t.Context(), ag.MemberStep{Pin: "p", Phase: ag.RotationIssue}); err == nil || x.n1.record.signed < 8 {
		t.Errorf("a step of a rotation that is none: %v; signed %d times", err, x.n1.record.signed)
	}
	if yes, err := x.w.Signs(t.Context(), certs.Identity{}, rpc.Nothing{}); !yes || err != nil {
		t.Error("this program signs")
	}
}

// lines counts the lines of a log.
type lines struct{ n int }

func (l *lines) Write(b []byte) (int, error) { l.n++; return len(b), nil }

// TestFloodIsQuiet: a thief who writes without an end fills no log, and the good values between are used.
func TestFloodIsQuiet(t *testing.T) {
	log := &lines{}
	j, err := NewJudge(newKeys(t, newCA(t), "n1", certs.KindReplica), withRecord(), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	good := signed(t, j, withRecord())
	j.Wrote(good, 1)
	sig := signedPart(t, j, "state", "good")
	const times = 300
	for i := range times {
		evil := fmt.Sprintf("%d", i)
		if err := j.Record("state", sig, []byte(evil)); err == nil {
			t.Fatal("a forged state is used")
		}
		if err := j.Record("state", sig, []byte("good")); err != nil {
			t.Fatal(err)
		}
		reads(t, j, unsigned(t, with(evil)))
		if reads(t, j, good) != "" {
			t.Fatal("a forged configuration is used")
		}
		if use, stale := j.Request([]byte(evil), int64(i), 1); use != nil || stale {
			t.Fatal("a forged request is carried out")
		}
	}
	_, records := j.refusedRecord()
	_, asked := j.refusedRequests()
	if refusals(j) != times || records != times || asked != times || log.n != 3 {
		t.Errorf("%d, %d and %d refused in %d lines", refusals(j), records, asked, log.n)
	}
}
