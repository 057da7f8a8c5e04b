package endorsement

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

const testGroup = "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab"

// keys are the keys of one node in a directory of its own.
type keys struct {
	dir  string
	node *certs.Node
	ca   *certs.CA
}

func (k *keys) CA() *certs.CA         { return k.ca }
func (k *keys) Identity() *certs.Node { return k.node }
func (k *keys) TrustedCAs() string    { return strings.Join(k.node.TrustedPins(), " ") }

// change changes the authorities of the node, as a rotation does.
func (k *keys) change(t *testing.T, change func(dir string) error) {
	t.Helper()
	if err := errors.Join(change(k.dir), k.node.Reload(k.dir)); err != nil {
		t.Fatal(err)
	}
	if k.ca != nil {
		ca, err := certs.LoadCA(k.dir)
		if err != nil {
			t.Fatal(err)
		}
		k.ca = ca
	}
}

func newCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(testGroup, "g")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newKeys(t *testing.T, ca *certs.CA, id ag.ReplicaID, kind string) *keys {
	t.Helper()
	k := &keys{dir: t.TempDir()}
	if kind == certs.KindReplica {
		if err := ca.Save(k.dir); err != nil {
			t.Fatal(err)
		}
		k.ca = ca
	}
	var err error
	if k.node, err = certs.CreateNode(k.dir, ca, certs.Identity{Group: testGroup, Kind: kind, ID: id}, []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	return k
}

func newJudge(t *testing.T, k Keys, g ag.Group) *Judge {
	t.Helper()
	j, err := NewJudge(k, g, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// signed returns what a judge writes for a configuration, and an error for what it does not write.
func signed(t *testing.T, j *Judge, g ag.Group) []byte {
	t.Helper()
	b, err := j.Sign(g)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reads has a judge read a value, and returns the rules of the configuration that is used.
func reads(t *testing.T, j *Judge, value []byte) (hba string) {
	t.Helper()
	return rules(t, j.Reading()(value, 1))
}

func rules(t *testing.T, body []byte) string {
	t.Helper()
	var g ag.Group
	if err := json.Unmarshal(body, &g); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return g.HBA
}

func refusals(j *Judge) uint64 { _, _, n := j.state(); return n }

// with returns a configuration of a group that uses signed ones only.
func with(hba string) ag.Group { return ag.Group{ID: testGroup, SignedOnly: true, HBA: hba} }

func unsigned(t *testing.T, g ag.Group) []byte {
	t.Helper()
	b, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestForgedValuesAreRefused writes what the thief of a witness could write. The last good configuration stays in use,
// and every different value counts once.
func TestForgedValuesAreRefused(t *testing.T) {
	ca := newCA(t)
	n1, n2 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), with("")), newJudge(t, newKeys(t, ca, "n2", certs.KindReplica), with(""))
	first := signed(t, n1, with("first"))
	n1.Wrote(first, 1)
	good := signed(t, n1, with("good"))
	n1.Wrote(good, 1)
	if got := reads(t, n2, first) + " " + reads(t, n2, good); got != "first good" {
		t.Fatal(got)
	}
	evil := with("trust")
	evil.Serial = 99
	other := newCA(t) // a thief's own, of the same group
	sign := func(ca *certs.CA, purpose string, body []byte) []byte {
		sig, err := ca.Endorse(purpose, body)
		if err != nil {
			t.Fatal(err)
		}
		return join(body, sig)
	}
	body, sig := split(good)
	altered := bytes.Replace(body, []byte("good"), []byte("evil"), 1)
	mixed := evil
	mixed.SignedOnly = false
	for name, value := range map[string][]byte{
		"no signature":                        unsigned(t, evil),
		"no signature, and as before signing": unsigned(t, mixed),
		"the signature of another":            join(unsigned(t, evil), sig),
		"the signature of another, altered":   join(altered, sig),
		"signed by an authority of its own":   sign(other, certs.Configuration, unsigned(t, evil)),
		"signed for another purpose":          sign(ca, certs.NextAuthority, unsigned(t, evil)),
		"signed, and as before signing":       sign(ca, certs.Configuration, unsigned(t, mixed)),
		"an older one":                        first,
		"nothing":                             nil,
		"no JSON":                             []byte("{"),
		"two objects":                         append(bytes.Clone(good), unsigned(t, evil)...),
		"one more member":                     append(bytes.Clone(good[:len(good)-1]), `,"hba":"trust"}`...),
		"a signature that is none":            []byte(strings.Replace(string(unsigned(t, evil)), "}", `,"signature":"e"}`, 1)),
		"a space":                             append(bytes.Clone(good), ' '),
	} {
		for _, j := range []*Judge{n1, n2} {
			was := refusals(j)
			for range 3 {
				if got := reads(t, j, value); got != "good" {
					t.Errorf("%s: %q is used", name, got)
				}
			}
			if got := refusals(j); got != was+1 {
				t.Errorf("%s: %d refusals more", name, got-was)
			}
			if got := reads(t, j, good); got != "good" || j.refused.stands {
				t.Errorf("after %s: %q", name, got)
			}
		}
	}
	next := signed(t, n2, with("next"))
	if got := reads(t, n1, next); got != "next" {
		t.Errorf("a change after all that: %q", got)
	}
}

// TestPutBackAfterARestart: a node remembers the number of the configuration in its own directory.
func TestPutBackAfterARestart(t *testing.T) {
	k := newKeys(t, newCA(t), "n1", certs.KindReplica)
	j := newJudge(t, k, with(""))
	old := signed(t, j, with("old"))
	j.Wrote(old, 1)
	var saved ag.Group
	latest := signed(t, j, with("latest"))
	if err := json.Unmarshal(j.Reading()(latest, 1), &saved); err != nil {
		t.Fatal(err)
	}
	j = newJudge(t, k, saved)
	if got := reads(t, j, old); got != "latest" || refusals(j) != 1 {
		t.Errorf("after the restart %q is used", got)
	}
	if got := reads(t, j, unsigned(t, with("evil"))); got != "latest" {
		t.Errorf("after the restart %q is used", got)
	}
	if got := reads(t, j, latest); got != "latest" || j.last.value == nil || refusals(j) != 2 {
		t.Errorf("the store's own value: %q", got)
	}
}

// TestConcurrentReads: a value that was read before another came into use is no value that was put back.
func TestConcurrentReads(t *testing.T) {
	j := newJudge(t, newKeys(t, newCA(t), "n1", certs.KindReplica), with(""))
	old := signed(t, j, with("old"))
	j.Wrote(old, 1)
	late := j.Reading()
	j.Wrote(signed(t, j, with("new")), 1)
	if got := rules(t, late(old, 1)); got != "new" || refusals(j) != 0 {
		t.Errorf("%q is used, %d refused", got, refusals(j))
	}
	if got := reads(t, j, old); got != "new" || refusals(j) != 1 {
		t.Errorf("%q is used, %d refused", got, refusals(j))
	}
}

// TestTwoSignAtOnce: the store takes one of two configurations with the same number. A thief who kept the other cannot
// make members go from one to the other and back.
func TestTwoSignAtOnce(t *testing.T) {
	ca := newCA(t)
	n1, n2 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), with("")), newJudge(t, newKeys(t, ca, "n2", certs.KindReplica), with(""))
	x, y := signed(t, n1, with("x")), signed(t, n2, with("y"))
	n1.Wrote(x, 1)
	n2.Wrote(y, 1)
	a, b := reads(t, n1, y), reads(t, n2, x)
	if a != b || refusals(n1)+refusals(n2) != 1 {
		t.Errorf("one uses %q, the other %q", a, b)
	}
}

// TestMixedVersions walks a group from a program that does not sign to signed configurations only.
func TestMixedVersions(t *testing.T) {
	ca := newCA(t)
	before := ag.Group{ID: testGroup}
	n1, n3 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), before), newJudge(t, newKeys(t, ca, "n3", certs.KindReplica), before)
	w := newJudge(t, newKeys(t, ca, "w", certs.KindWitness), before)
	plain := func(hba string) []byte { return unsigned(t, ag.Group{ID: testGroup, HBA: hba}) } // by an earlier program
	n1Only := func(hba string) []byte { return signed(t, n1, ag.Group{ID: testGroup, HBA: hba}) }
	var five []byte
	for _, step := range []struct {
		name  string
		value []byte
		want  string
	}{
		{"as the earlier program left it", plain("a"), "a"},
		{"signed by the first that is updated", n1Only("b"), "b"},
		{"by one that is not", plain("c"), "c"},
		{"by a witness", signed(t, w, ag.Group{ID: testGroup, HBA: "d"}), "d"},
		{"signed again", n1Only("e"), "e"},
	} {
		for _, j := range []*Judge{n1, n3, w} {
			if got := reads(t, j, step.value); got != step.want {
				t.Errorf("%s: %q is used", step.name, got)
			}
		}
		five = step.value
	}
	late := newJudge(t, newKeys(t, ca, "n4", certs.KindReplica), before) // has seen no number: it was down
	low := signed(t, late, ag.Group{ID: testGroup, HBA: "low"})
	if got := reads(t, n1, low); got != "low" {
		t.Errorf("numbers mean nothing yet, and %q is used", got)
	}
	_, sig := split(five)
	if got := reads(t, n1, join(plain("forged"), sig)); got != "low" {
		t.Errorf("a wrong signature, which no program writes: %q", got)
	}

	only := ag.Group{ID: testGroup, HBA: "only", SignedOnly: true}
	last := signed(t, n1, only)
	for name, j := range map[string]*Judge{"n1": n1, "n3": n3, "w": w, "n4": late} {
		if got := reads(t, j, last); got != "only" {
			t.Errorf("%s: %q", name, got)
		}
		for _, v := range [][]byte{plain("evil"), five, low} {
			if got := reads(t, j, v); got != "only" {
				t.Errorf("%s uses %q", name, got)
			}
		}
	}
	if _, err := w.Sign(only); err == nil {
		t.Error("a witness signs")
	}
	only.SignedOnly = false // by a mistake of a caller
	if got := reads(t, n3, signed(t, n1, only)); got != "only" || !n3.last.SignedOnly {
		t.Error("the group went back to configurations without a signature")
	}
}

// TestRotationOfTheAuthority signs in each phase of a rotation as replicas do. Every member verifies each value, and
// the last one after the old authority is forgotten.
func TestRotationOfTheAuthority(t *testing.T) {
	old, next := newCA(t), newCA(t)
	k1, k2, kw := newKeys(t, old, "n1", certs.KindReplica), newKeys(t, old, "n2", certs.KindReplica), newKeys(t, old, "w", certs.KindWitness)
	n1, n2, w := newJudge(t, k1, with("")), newJudge(t, k2, with("")), newJudge(t, kw, with(""))
	everybody := func(by *Judge, hba string) []byte {
		t.Helper()
		value := signed(t, by, with(hba))
		for name, j := range map[string]*Judge{"n1": n1, "n2": n2, "w": w} {
			if got := reads(t, j, value); got != hba {
				t.Errorf("%s uses %q and not %q", name, got, hba)
			}
		}
		return value
	}
	everybody(n1, "before")
	for _, k := range []*keys{k1, k2, kw} {
		if k.ca != nil {
			k.change(t, func(dir string) error { return certs.SaveAuthorityKey(dir, next.KeyPEM()) })
		}
		k.change(t, func(dir string) error { return certs.TrustAuthority(dir, next.CertPEM) })
		everybody(n1, "trust "+k.dir)
	}
	prefer := func(dir string) error { return certs.PreferAuthority(dir, next.Pin()) }
	k2.change(t, prefer)
	everybody(n2, "by the new authority")
	byOld := everybody(n1, "by the old authority still")
	k1.change(t, prefer)
	kw.change(t, prefer)
	for _, k := range []*keys{k1, k2, kw} { // each has a certificate of the new authority before it forgets the old one
		r := certs.Renewer{Dir: k.dir, Node: k.node, Logger: slog.New(slog.DiscardHandler), Issue: func(_ context.Context, csr []byte) ([]byte, error) {
			return k1.ca.RenewFor(k.node.Identity, k.node.Pin, csr, []string{"127.0.0.1"})
		}}
		if err := r.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	last := everybody(n1, "by the new one again")
	for _, k := range []*keys{k1, k2, kw} {
		k.change(t, certs.ForgetAuthorities)
		everybody(n2, "forgotten by "+k.dir)
	}
	fresh := newJudge(t, kw, ag.Group{ID: testGroup})
	if got := reads(t, fresh, byOld); got != "" {
		t.Errorf("%q is used, which only the old authority signed", got)
	}
	if got := reads(t, fresh, last); got != "by the new one again" {
		t.Errorf("%q is used", got)
	}
}

// TestTrustChanges: a refused value is judged anew when the node trusts another authority.
func TestTrustChanges(t *testing.T) {
	old, next := newCA(t), newCA(t)
	k := newKeys(t, old, "w", certs.KindWitness)
	j, by := newJudge(t, k, with("")), newJudge(t, newKeys(t, next, "n1", certs.KindReplica), with(""))
	value := signed(t, by, with("new"))
	if got := reads(t, j, value); got != "" {
		t.Fatalf("%q is used", got)
	}
	k.change(t, func(dir string) error { return certs.TrustAuthority(dir, next.CertPEM) })
	if got := reads(t, j, value); got != "new" || j.refused.stands {
		t.Errorf("%q is used", got)
	}
}

// BenchmarkSteadyRead is what a read costs whose value has not changed: no signature is verified.
func BenchmarkSteadyRead(b *testing.B) {
	ca, err := certs.NewCA(testGroup, "g")
	if err != nil {
		b.Fatal(err)
	}
	k := &keys{dir: b.TempDir(), ca: ca}
	if err := ca.Save(k.dir); err != nil {
		b.Fatal(err)
	}
	if k.node, err = certs.CreateNode(k.dir, ca, certs.Identity{Group: testGroup, Kind: certs.KindReplica, ID: "n1"}, nil); err != nil {
		b.Fatal(err)
	}
	j, err := NewJudge(k, with(""), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	value, err := j.Sign(with(strings.Repeat("host all all 10.0.0.0/8 scram-sha-256\n", 100)))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		j.Reading()(value, 1)
	}
}
