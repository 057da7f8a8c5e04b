package instead

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// TestUnsentBesideARefusedStatement holds that the request before a refused statement is not counted as unsent. Another
// statement goes in place of that one, and is longer; the server may die when it has got a part of it.
func TestUnsentBesideARefusedStatement(t *testing.T) {
	t.Parallel()
	const insert, alter, question = 40, 30, 400
	long := Message{Of: alter, Out: 300}
	short := Message{Of: 3000, Out: 300} // a long statement, of which only the name of the setting is told
	for _, tt := range []struct {
		end             Message
		before, n, want int // of the question; of what the server did not get; of the client's
	}{
		{long, 0, 0, 0},
		{long, 0, 1, 1},
		{long, 0, alter, alter},
		{long, 0, 299, alter},
		{long, 0, 300, alter},
		{long, 0, 310, alter + 10},
		{long, 0, 300 + insert, alter + insert},
		{long, question, 300 + insert + 5, alter + insert},
		{short, 0, 299, 299},
		{Message{}, 0, 7, 7},
	} {
		of := insert + tt.end.Of
		if got := min(of, tt.end.OfClient(tt.n)); got != tt.want {
			t.Errorf("goroutines: %+v: %d", tt, got)
		}
		var a Altered
		a.Goes(500, 500, Message{})
		a.Goes(of, tt.before+insert+tt.end.Out, tt.end)
		if got := a.OfClient(tt.n); got != tt.want {
			t.Errorf("loop: %+v: %d", tt, got)
		}
		a.Goes(100, 100, Message{})
		if got := a.OfClient(100 + tt.n); got != 100+tt.want {
			t.Errorf("loop, with more behind it: %+v: %d", tt, got)
		}
	}
	var a Altered
	a.Goes(insert, insert, Message{})
	a.Goes(alter, 300, long)
	a.Goes(alter, 300, long)
	if got := a.OfClient(600); got > 2*alter {
		t.Errorf("two that are refused: %d bytes of %d", got, 2*alter)
	}
}

// TestBehind holds that a message of the listener behind a chunk is not counted among the client's bytes that did not
// go, whichever part of it went.
func TestBehind(t *testing.T) {
	t.Parallel()
	const query, sync = "QUERY OF A CLIENT", "SYNC."
	var w Watch
	w.Begins()
	w.Behind([]byte(query), []byte(sync))
	last, out := w.Last, w.Replaced([]byte(query))
	if string(out) != query+sync || string(w.Replaced([]byte(query))) != query {
		t.Fatalf("%q goes", out)
	}
	for left := range len(out) + 1 {
		want := max(0, left-len(sync))
		if got := min(len(query), last.OfClient(left)); got != want {
			t.Errorf("goroutines: %d bytes did not go, of the client %d, want %d", left, got, want)
		}
		var a Altered
		a.Goes(len(query), len(out), last)
		if got := a.OfClient(left); got != want {
			t.Errorf("loop: %d bytes did not go, of the client %d, want %d", left, got, want)
		}
	}
}

// The statement is one message of the kind that it replaces, and nothing of the refusal ends a constant.
func TestRefusing(t *testing.T) {
	bad := &stmt.Refusal{Message: "it's $coterie$ \\' refused", Detail: "detail", Hint: "hint"}
	for typ, begin := range map[byte]string{'Q': "DO LANGUAGE", 'P': "name\x00DO LANGUAGE"} {
		b := Refusing(typ, []byte("name"), bad)
		text := string(b[5:])
		if b[0] != typ || int(binary.BigEndian.Uint32(b[1:]))+1 != len(b) {
			t.Errorf("%c: %q is not one message", typ, b)
		}
		if !strings.HasPrefix(text, begin) || !strings.Contains(text, "MESSAGE = 'it''s coterie '' refused', DETAIL = 'detail', HINT = 'hint'") {
			t.Errorf("%c: %q", typ, text)
		}
		if typ == 'P' != strings.HasSuffix(text, "\x00\x00\x00") {
			t.Errorf("%c: %q", typ, text)
		}
	}
}
