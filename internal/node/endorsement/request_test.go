package endorsement

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

func forcedTo(id string, epoch ag.Epoch) ag.Op {
	return ag.Op{ID: id, Kind: ag.OpForced, To: "n2", Epoch: epoch}
}

// asked returns what a judge writes for a request.
func asked(t *testing.T, j *Judge, op ag.Op) []byte {
	t.Helper()
	b, err := json.Marshal(op)
	if err != nil {
		t.Fatal(err)
	}
	value, err := j.SignRequest(b)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// obeys reports which request a judge has carried out, by its id; "": none.
func obeys(t *testing.T, j *Judge, value []byte, rev int64, epoch ag.Epoch) string {
	t.Helper()
	use, _ := j.Request(value, rev, epoch)
	if use == nil {
		return ""
	}
	var op ag.Op
	if err := json.Unmarshal(use, &op); err != nil {
		t.Fatalf("%s: %v", use, err)
	}
	return op.ID
}

// TestForgedRequestsAreRefused writes what the thief of a witness could write as an operator's request. Each is refused
// and counted once.
func TestForgedRequestsAreRefused(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	n1, n2 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), with("")), newJudge(t, newKeys(t, ca, "n2", certs.KindReplica), with(""))
	w := newJudge(t, newKeys(t, ca, "w", certs.KindWitness), with(""))
	if b, err := w.SignRequest([]byte(`{"id":"1"}`)); err == nil {
		t.Errorf("a witness asks for %s", b)
	}
	body := func(op ag.Op, configuration uint64) []byte {
		b, err := json.Marshal(request{op, configuration})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	sign := func(ca *certs.CA, purpose string, body []byte) []byte {
		sig, err := ca.Endorse(purpose, body)
		if err != nil {
			t.Fatal(err)
		}
		return join(body, sig)
	}
	evil := forcedTo("evil", 5)
	good := asked(t, n1, ag.Op{ID: "good", Kind: ag.OpPlanned, To: "n2", Epoch: 5})
	text, sig := split(good)
	rev := int64(100)
	for name, value := range map[string][]byte{
		"no signature":                      body(evil, 0),
		"as an earlier program writes it":   []byte(`{"id":"evil","kind":"FORCED","to":"n2","epoch":5}`),
		"the signature of another":          join(body(evil, 0), sig),
		"planned made forced":               join(bytes.Replace(text, []byte(ag.OpPlanned), []byte(ag.OpForced), 1), sig),
		"to another":                        join(bytes.Replace(text, []byte("n2"), []byte("n3"), 1), sig),
		"signed by an authority of its own": sign(other, certs.OperatorRequest, body(evil, 0)),
		"signed for another purpose":        sign(ca, certs.Configuration, body(evil, 0)),
		"a member that is no number":        []byte(`{"id":"evil","kind":"FORCED","to":"n2","epoch":5,"configuration":"x"}`),
		"one more member":                   append(bytes.Clone(good[:len(good)-1]), `,"kind":"FORCED"}`...),
		"nothing":                           {},
		"no JSON":                           []byte("{"),
		"an epoch that is none":             []byte(`{"id":"evil","kind":"FORCED","to":"n2","epoch":"5"}`),
	} {
		for _, j := range []*Judge{n1, n2, w} {
			_, was := j.refusedRequests()
			rev++
			for range 3 {
				if got := obeys(t, j, value, rev, 5); got != "" {
					t.Errorf("%s: %q is carried out", name, got)
				}
			}
			if refused, n := j.refusedRequests(); n != was+1 || refused.why == nil {
				t.Errorf("%s: %d refusals more: %v", name, n-was, refused.why)
			}
		}
	}
	for _, j := range []*Judge{n1, n2, w} {
		if got := obeys(t, j, good, 500, 5); got != "good" {
			t.Errorf("after all that %q is carried out", got)
		}
	}
}

// TestPutBackRequests: a request is carried out while it stands as it was written, in the epoch and the configuration
// for which it was made.
func TestPutBackRequests(t *testing.T) {
	ca := newCA(t)
	k := newKeys(t, ca, "n2", certs.KindReplica)
	n1, n2 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), with("")), newJudge(t, k, with(""))
	first := signed(t, n1, with("first"))
	n1.Wrote(first, 1)
	op := asked(t, n1, forcedTo("1", 5))
	hidden := asked(t, n1, forcedTo("2", 5))
	if got := obeys(t, n2, op, 10, 5); got != "" {
		t.Errorf("%q is carried out before its configuration is in use", got)
	}
	reads(t, n2, first)
	for _, rev := range []int64{10, 10} {
		if got := obeys(t, n2, op, rev, 5); got != "1" {
			t.Errorf("%q is carried out, want 1", got)
		}
	}
	if got := obeys(t, n2, op, 11, 5); got != "" || !errors.Is(n2.requests.refused.why, errPutBack) {
		t.Errorf("put back, %q is carried out: %v", got, n2.requests.refused.why)
	}
	if got := obeys(t, n2, op, 10, 5); got != "1" {
		t.Errorf("a read from before that: %q", got)
	}
	next := signed(t, n1, with("next"))
	n1.Wrote(next, 1)
	reads(t, n2, next)
	if got := obeys(t, n2, op, 10, 5); got != "1" {
		t.Errorf("another configuration comes while it is carried out: %q", got)
	}
	if got := obeys(t, n2, hidden, 12, 5); got != "" || !errors.As(n2.requests.refused.why, new(configurationError)) {
		t.Errorf("kept back until another configuration, %q is carried out: %v", got, n2.requests.refused.why)
	}
	_, was := n2.refusedRequests()
	if got := obeys(t, n2, op, 13, 6); got != "" {
		t.Errorf("in a later epoch %q is carried out", got)
	}
	if got := obeys(t, n2, op, 10, 5); got != "" {
		t.Errorf("in an epoch that is over %q is carried out", got)
	}
	if _, n := n2.refusedRequests(); n != was {
		t.Error("what a later epoch has made void counts as refused")
	}
	again := newJudge(t, k, ag.Group{ID: testGroup, SignedOnly: true, Serial: n2.last.Serial})
	if got := obeys(t, again, op, 14, 5); got != "" {
		t.Errorf("after a restart %q is carried out", got)
	}
}

// TestRequestBeforeAChange: a request that was written before the configuration changed is carried out, also by a node
// that reads both at once; one that was written after it may be asked again. One that was kept back for longer is void.
func TestRequestBeforeAChange(t *testing.T) {
	ca := newCA(t)
	n1 := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), with(""))
	change := func(hba string, rev int64) []byte {
		value := signed(t, n1, with(hba))
		n1.Wrote(value, rev)
		return value
	}
	change("first", 10)
	op := asked(t, n1, forcedTo("1", 5))
	second := change("second", 20)
	third := change("third", 30)
	for name, tt := range map[string]struct {
		reads [][]byte // at the revisions 20 and 30
		rev   int64
		obeys bool
		stale bool
	}{
		"before the change":                  {[][]byte{second}, 19, true, false},
		"after it":                           {[][]byte{second}, 21, false, true},
		"after it, and the change again":     {[][]byte{second, second}, 25, false, true},
		"before it, and two changes at once": {[][]byte{nil, third}, 19, false, true},
	} {
		j := newJudge(t, newKeys(t, ca, "n2", certs.KindReplica), with(""))
		for i, value := range tt.reads {
			if value != nil {
				j.Reading()(value, int64(20+10*i))
			}
		}
		use, stale := j.Request(op, tt.rev, 5)
		if (use != nil) != tt.obeys || stale != tt.stale {
			t.Errorf("%s: carried out %t, stale %t", name, use != nil, stale)
		}
	}
	if use, stale := n1.Request([]byte(`{"id":"x","epoch":5}`), 31, 5); use != nil || stale {
		t.Errorf("a forged one: %s, stale %t", use, stale)
	}
}

// TestRequestsOfEarlierVersions: until the group uses signed values only, every request is carried out as it is.
func TestRequestsOfEarlierVersions(t *testing.T) {
	ca := newCA(t)
	before := ag.Group{ID: testGroup}
	n1, w := newJudge(t, newKeys(t, ca, "n1", certs.KindReplica), before), newJudge(t, newKeys(t, ca, "w", certs.KindWitness), before)
	for name, value := range map[string][]byte{
		"of a witness": asked(t, w, forcedTo("x", 5)), "signed": asked(t, n1, forcedTo("x", 5)), "of an earlier program": []byte(`{"id":"x","epoch":5}`),
	} {
		for _, j := range []*Judge{n1, w} {
			if got := obeys(t, j, value, 3, 5); got != "x" {
				t.Errorf("%s: %q is carried out", name, got)
			}
		}
	}
}

// TestManyRequests: of very many requests in one epoch the latest are remembered.
func TestManyRequests(t *testing.T) {
	j := newJudge(t, newKeys(t, newCA(t), "n1", certs.KindReplica), with(""))
	var last []byte
	for i := range acceptedKept + 10 {
		last = asked(t, j, forcedTo(string(rune('a'+i)), 5))
		if got := obeys(t, j, last, int64(i+1), 5); got == "" {
			t.Fatalf("request %d is refused: %v", i, j.requests.refused.why)
		}
	}
	if n := len(j.requests.accepted); n != acceptedKept {
		t.Errorf("%d are remembered", n)
	}
	if got := obeys(t, j, last, 1<<20, 5); got != "" {
		t.Errorf("%q is carried out again", got)
	}
}
