package lostblock

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

func m(typ byte, body string) string { return string(pgwire.AppendMessage(nil, typ, []byte(body))) }

func query(text string) string { return m('Q', text+"\x00") }

// extended is a statement without a name, as a driver sends it.
func extended(text string) string {
	return m('P', "\x00"+text+"\x00\x00\x00") + m('B', "\x00\x00\x00\x00\x00\x00\x00\x00") + m('D', "P\x00") + m('E', "\x00\x00\x00\x00\x00")
}

// types returns the types of the messages in b, each Z as its status.
func types(b []byte) string {
	var s strings.Builder
	for len(b) >= 5 {
		n := int(binary.BigEndian.Uint32(b[1:])) + 1
		if b[0] == 'Z' {
			s.WriteByte(b[5])
		} else {
			s.WriteString("(" + string(b[0]) + ")")
		}
		b = b[n:]
	}
	return s.String()
}

var sync = m('S', "")

func TestReply(t *testing.T) {
	for _, c := range []struct {
		name, sent string
		heard      string // types of the messages
		failed     bool
		forward    string
		closed     string
	}{
		{"a query", query("select 1"), "(E)E", true, "", ""},
		{"an empty query", query(""), "(E)E", true, "", ""},
		{"a COPY", query("copy t from stdin"), "(E)E", true, "", ""},
		{"a function call", m('F', "\x00\x00\x00\x01"), "(E)E", true, "", ""},
		{"COMMIT", query("commit"), "(E)I", false, "", ""},
		{"COMMIT AND CHAIN", query("commit and chain;"), "(E)I", false, "", ""},
		{"PREPARE TRANSACTION", query("prepare transaction 'x'"), "(E)I", false, "", ""},
		{"COMMIT and more", query("commit; select 1"), "(E)E", true, "", ""},
		{"ROLLBACK", query("rollback"), "", true, query("rollback"), ""},
		{"ROLLBACK AND CHAIN", query("rollback and chain"), "(E)E", true, "", ""},
		{"ROLLBACK TO", query("rollback to s"), "(E)E", true, "", ""},
		{"a long ROLLBACK", query("rollback /*" + strings.Repeat("x", maxKept) + "*/"), "(E)E", true, "", ""},
		{"a batch", extended("select 1") + sync, "(E)E", true, "", ""},
		{"a batch of two", extended("select 1") + extended("select 2") + sync, "(E)E", true, "", ""},
		{"a batch of COMMIT", extended("commit") + sync, "(E)I", false, "", ""},
		{"a batch of COMMIT with Flush", extended("commit") + m('H', "") + sync, "(E)I", false, "", ""},
		{"a batch of COMMIT and more", extended("commit") + extended("select 1") + sync, "(E)E", true, "", ""},
		{"a batch with COMMIT", extended("select 1") + extended("commit") + sync, "(E)E", true, "", ""},
		{"a batch of ROLLBACK", extended("rollback") + sync, "", true, extended("rollback") + sync, ""},
		{"a batch of ROLLBACK and more", extended("rollback") + extended("select 1") + sync, "(E)E", true, "", ""},
		{"a batch of ROLLBACK with Flush", extended("rollback") + m('H', "") + sync, "(E)E", true, "", ""},
		{"a ROLLBACK that is prepared", m('P', "\x00rollback\x00\x00\x00") + sync, "(E)E", true, "", ""},
		{"a ROLLBACK with a name", m('P', "x\x00rollback\x00\x00\x00") + sync, "(E)E", true, "", ""},
		{"a ROLLBACK of another portal", m('P', "\x00rollback\x00\x00\x00") + m('B', "p\x00\x00\x00\x00\x00\x00\x00\x00") + m('E', "p\x00\x00\x00\x00\x00") + sync, "(E)E", true, "", ""},
		{"a query within a batch", m('P', "\x00rollback\x00\x00\x00") + query("rollback"), "(E)E", true, "", ""},
		{"a skipped query", m('P', "\x00select 1\x00\x00\x00") + query("select 1") + sync, "(E)E", true, "", ""},
		{"a portal of before", m('E', "\x00\x00\x00\x00\x00") + sync, "(E)E", true, "", ""},
		{"a named COMMIT", named("commit") + sync, "(E)I", false, "", ""},
		{"a named ROLLBACK", named("undo") + sync, "", true, named("undo") + sync, ""},
		{"a named ROLLBACK that is described", m('D', "Sundo\x00") + named("undo") + sync, "(E)E", true, "", ""},
		{"a named ROLLBACK and more", named("undo") + named("one") + sync, "(E)E", true, "", ""},
		{"a named ROLLBACK that was closed", m('C', "Sundo\x00") + named("undo") + sync, "(3)(E)E", true, "", "undo"},
		{"a ROLLBACK that gets a name", m('P', "x\x00rollback\x00\x00\x00") + m('D', "Sx\x00") + named("x") + sync, "", true, m('P', "x\x00rollback\x00\x00\x00") + m('D', "Sx\x00") + named("x") + sync, ""},
		{"another statement than the ROLLBACK that gets a name", m('P', "x\x00rollback\x00\x00\x00") + named("one") + sync, "(E)E", true, "", ""},
		{"an unknown named statement", named("unknown") + sync, "(E)E", true, "", ""},
		{"Sync alone", sync + m('H', "") + query("commit"), "T(E)I", false, "", ""},
		{"rows of a COPY", m('d', "x") + m('c', "") + m('f', "\x00") + query("select 1"), "(E)E", true, "", ""},
		{"Close first", m('C', "Sone\x00") + m('C', "Pp\x00") + m('C', "S\x00") + extended("select 1") + m('C', "Stwo\x00") + sync, "(3)(3)(3)(E)E", true, "", "one"},
		{"Close alone", m('C', "Sone\x00") + sync + m('C', "Stwo\x00") + extended("rollback") + sync, "(3)T(3)", true, extended("rollback") + sync, "one two"},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			r := Reply{Statements: map[string]string{"one": "select 1", "two": "select 2", "undo": "rollback", "commit": "commit"}}
			before := slices.Sorted(maps.Keys(r.Statements))
			out, used := feed(t, &r, c.sent+"next", size)
			closed := slices.DeleteFunc(before, func(name string) bool { _, open := r.Statements[name]; return open })
			if used != len(c.sent) || types(out) != c.heard || r.Failed != c.failed || string(r.Forward) != c.forward || strings.Join(closed, " ") != c.closed || r.Terminated {
				t.Errorf("%s in pieces of %d: %d of %d bytes, heard %s, %+v", c.name, size, used, len(c.sent), types(out), r)
			}
		}
	}
}

// feed feeds bytes in pieces until the request has ended.
func feed(t *testing.T, r *Reply, sent string, size int) (out []byte, used int) {
	t.Helper()
	for used < len(sent) {
		n, answer, done, err := r.Feed([]byte(sent[used:min(used+size, len(sent))]))
		if err != nil {
			t.Fatal(err)
		}
		used += n
		if out = append(out, answer...); done {
			return out, used
		}
	}
	t.Fatalf("%q has no end: %+v", sent, r)
	return nil, 0
}

// The error is sent with the first message that cannot be of a ROLLBACK: a client may wait for it before its Sync.
func TestErrorComesAtOnce(t *testing.T) {
	var r Reply
	_, out, done, err := r.Feed([]byte(m('P', "\x00select 1\x00\x00\x00") + m('D', "S\x00") + m('H', "")))
	if types(out) != "(E)" || done || err != nil {
		t.Errorf("%s %v %v", types(out), done, err)
	}
}

func TestEnds(t *testing.T) {
	var r Reply
	if _, out, done, err := r.Feed([]byte(m('X', "") + "more")); !r.Terminated || !done || out != nil || err != nil {
		t.Errorf("%s %v %v", out, done, err)
	}
	for _, bad := range []string{"Q\x00\x00\x00\x01", m('p', "secret"), m('Y', "")} {
		var r Reply
		if _, _, _, err := r.Feed([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if got := Error("why").Detail; !strings.HasSuffix(got, "why.") {
		t.Error(got)
	}
}

// named executes a prepared statement.
func named(name string) string {
	return m('B', "\x00"+name+"\x00\x00\x00\x00\x00\x00\x00") + m('E', "\x00\x00\x00\x00\x00")
}

// FuzzReply: whatever a client sends, the answer is the same in pieces, has at most one error, and ends with one
// ReadyForQuery after it, unless the request is forwarded.
func FuzzReply(f *testing.F) {
	f.Add([]byte(extended("commit")+sync), 3)
	f.Add([]byte(m('C', "Sone\x00")+sync+extended("rollback")+sync), 1)
	f.Add([]byte(query("select 1")), 100)
	f.Fuzz(func(t *testing.T, sent []byte, size int) {
		var whole, pieces Reply
		used, out, done, err := whole.Feed(sent)
		size = max(1, size&0xff)
		var out2 []byte
		used2, done2 := 0, false
		var err2 error
		for used2 < len(sent) && !done2 && err2 == nil {
			var n int
			var answer []byte
			n, answer, done2, err2 = pieces.Feed(sent[used2:min(used2+size, len(sent))])
			used2 += n
			out2 = append(out2, answer...)
		}
		if (err == nil) != (err2 == nil) || err == nil && (used != used2 || done != done2 || !bytes.Equal(out, out2)) {
			t.Fatalf("%d %v %v, in pieces %d %v %v", used, done, err, used2, done2, err2)
		}
		if err != nil {
			return
		}
		heard := types(out)
		failed := strings.Count(heard, "(E)")
		switch {
		case failed > 1, len(whole.Forward) > 0 && failed > 0, len(whole.message) > maxKept, len(whole.held) > maxKept:
			t.Fatalf("%s, %+v", heard, whole)
		case done && !whole.Terminated && len(whole.Forward) == 0 && !strings.HasSuffix(heard, "(E)E") && !strings.HasSuffix(heard, "(E)I"):
			t.Fatalf("it ends with %s", heard)
		case !done && failed == 1 && !strings.HasSuffix(heard, "(E)"):
			t.Fatalf("it goes on after %s", heard)
		}
	})
}
