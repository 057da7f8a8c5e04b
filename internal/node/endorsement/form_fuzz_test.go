package endorsement

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

// FuzzSigned gives a replica arbitrary values in the places of signed ones. It uses none but those that were signed,
// and what it uses of them is what was signed, byte for byte.
func FuzzSigned(f *testing.F) {
	ca, err := certs.NewCA(testGroup, "g")
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	node, err := certs.CreateNode(dir, ca, certs.Identity{Group: testGroup, Kind: certs.KindReplica, ID: "n1"}, []string{"127.0.0.1"})
	if err != nil {
		f.Fatal(err)
	}
	j, err := NewJudge(&keys{dir: dir, node: node, ca: ca}, withRecord(), slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	configuration, err := j.Sign(withRecord())
	if err != nil {
		f.Fatal(err)
	}
	j.Wrote(configuration, 1)
	op, err := json.Marshal(forcedTo("1", 5))
	if err != nil {
		f.Fatal(err)
	}
	asked, err := j.SignRequest(op)
	if err != nil {
		f.Fatal(err)
	}
	state, err := j.SignRecord("state", []byte("12345678abcdefgh{}"))
	if err != nil {
		f.Fatal(err)
	}
	for _, value := range [][]byte{configuration, asked, state, op, nil, []byte(`{"signature":"` + `"}`), []byte(`{,"signature":"AA=="}`), []byte(`{"epoch":6,"signature":"AA=="}`)} {
		f.Add(value, int64(7))
	}
	good := j.last.body
	f.Fuzz(func(t *testing.T, value []byte, rev int64) {
		if use := j.Reading()(value, 1); !bytes.Equal(use, good) {
			t.Errorf("a configuration is used: %s", use)
		}
		use, _ := j.Request(value, rev, 5)
		if body, _ := split(asked); use != nil && (!bytes.Equal(value, asked) || !bytes.Equal(use, body)) {
			t.Errorf("a request is carried out: %s", use)
		}
		if j.Record("state", value, []byte("another place")) == nil || j.Record("epoch", state, value) == nil {
			t.Error("a record is used")
		}
		body, sig := split(value)
		if sig != nil && !bytes.Equal(join(body, sig), value) {
			t.Errorf("%s is not what %s and its signature make", value, body)
		}
		var v, w struct{ Epoch ag.Epoch }
		if sig != nil && json.Unmarshal(value, &v) == nil && json.Unmarshal(body, &w) == nil && v != w {
			t.Errorf("%s and what is signed of it are read differently", value)
		}
	})
}
