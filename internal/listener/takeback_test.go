package listener

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"net"
	"slices"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/giveback"
	"github.com/coteriedb/coterie/internal/listener/lone"
)

// A session that its node gives back while the number of a change is asked for comes back without that question, which
// is not of the client, and not at all if the question may have been forwarded.
func TestSessionThatIsAskedComesBack(t *testing.T) {
	change := pgwire.AppendMessage(nil, 'Q', []byte("update t set x = 1\x00"))
	told := pgwire.AppendMessage(nil, '3', nil)
	for _, c := range []struct {
		name    string
		asks    bool
		answers []byte // that came before
		rest    []byte // what the other node has not forwarded
		want    []byte
		fails   bool
	}{
		{"nothing is under way", false, nil, nil, nil, false},
		{"a request is not forwarded", false, nil, change, change, false},
		{"the question is not forwarded", true, nil, lone.Question(), nil, false},
		{"the question is forwarded, and its answer is lost", true, nil, nil, nil, true},
		{"the question is forwarded in part", true, nil, lone.Question()[7:], nil, true},
		{"the question is answered, and the change is not forwarded", true, told, change, change, false},
	} {
		near, far := net.Pipe()
		client := &heardBytes{}
		x := &session{srv: &Server{}, client: client, backend: near, in: bufio.NewReader(near), cut: make(chan struct{}), moving: newMoving(nil)}
		if c.asks {
			x.work.Rules = &x.srv.rules
			x.work.Change(change)
		}
		st := continuity.State{Statements: map[string]continuity.Statement{lone.OwnStatement: {}, "own": {Text: "select current_setting('my.x')"}}}
		var state bytes.Buffer
		if err := gob.NewEncoder(&state).Encode(st); err != nil {
			t.Fatal(err)
		}
		b := slices.Clone(c.answers)
		for _, body := range [][]byte{[]byte(giveback.Version), state.Bytes(), c.rest} {
			b = pgwire.AppendMessage(b, giveback.Message, body)
		}
		if kept, err := x.pass(b, 0); kept != 0 || err != nil || x.way.Given == nil || len(client.b) > 0 {
			t.Fatalf("%s: %d bytes are left, %v; the client hears %q", c.name, kept, err, client.b)
		}
		err := x.takeBack()
		if c.fails != (err != nil) || err == nil && !bytes.Equal(x.moving.rest.B, c.want) {
			t.Errorf("%s: %q is to be forwarded, %v", c.name, x.moving.rest.B, err)
		}
		if err == nil {
			if _, ours := x.moving.inquiry.State.Statements[lone.OwnStatement]; ours || len(x.moving.inquiry.State.Statements) != 1 {
				t.Errorf("%s: its statements are %v", c.name, x.moving.inquiry.State.Statements)
			}
		}
		_, _ = near.Close(), far.Close()
	}
}
