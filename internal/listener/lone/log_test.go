package lone

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

func m(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }

func query(text string) []byte { return m('Q', text+"\x00") }

func parse(text string) []byte { return m('P', "\x00"+text+"\x00\x00\x00") }

func bind(name string) []byte { return m('B', "\x00"+name+"\x00\x00\x00\x00\x00\x00\x00") }

var (
	describe, execute, flush, end = m('D', "P\x00"), m('E', "\x00\x00\x00\x00\x00"), m('H', ""), m('S', "")
	statements                    = map[string]string{"r": "select $1", "w": "update t set x = $1", "b": "begin", "mode": "show Transaction_Read_Only"}
)

func text(name string) (string, bool) {
	s, is := statements[name]
	return s, is
}

// sends sends whole messages.
func (l *Log) sends(messages ...[]byte) {
	for _, b := range messages {
		l.Sent(b, true, true)
	}
}

// Only requests that change nothing are executed again.
func TestFate(t *testing.T) {
	for _, c := range []struct {
		name string
		sent [][]byte
		want Fate
	}{
		{"a query", [][]byte{query("select 1")}, Repeated},
		{"several", [][]byte{query("select 1"), query("table t")}, Doubtful},
		{"a change", [][]byte{query("insert into t values (1)")}, Doubtful},
		{"a query and a change", [][]byte{query("select 1"), query("delete from t")}, Doubtful},
		{"BEGIN", [][]byte{query("begin")}, Doubtful},
		{"extended", [][]byte{parse("select 1"), bind(""), describe, execute, end}, Repeated},
		{"extended, without its end", [][]byte{parse("select 1"), bind(""), describe, execute, flush}, Repeated},
		{"a pipeline up to its Sync", [][]byte{parse("select 1"), bind(""), execute, parse("select 2"), bind(""), execute, end}, Repeated},
		{"a pipeline with a change", [][]byte{parse("select 1"), bind(""), execute, parse("merge into t using s on true when matched then delete"), bind(""), execute, end}, Doubtful},
		{"by name", [][]byte{bind("r"), describe, execute, end}, Repeated},
		{"by name, several", [][]byte{bind("r"), execute, end, bind("r"), execute, end}, Doubtful},
		{"a change by name", [][]byte{bind("w"), execute, end}, Doubtful},
		{"BEGIN by name", [][]byte{bind("b"), execute, end}, Doubtful},
		{"by an unknown name", [][]byte{bind("x"), execute, end}, Doubtful},
		{"the unnamed statement of before", [][]byte{bind(""), execute, end}, Doubtful},
		{"the unnamed statement that a Query has ended", [][]byte{parse("select 1"), end, query("select 1"), bind(""), execute, end}, Doubtful},
		{"a new statement", [][]byte{m('P', "n\x00select 1\x00\x00\x00"), end}, Doubtful},
		{"a statement is closed", [][]byte{m('C', "Sr\x00"), end}, Doubtful},
		{"a portal is closed", [][]byte{bind("r"), execute, m('C', "P\x00"), end}, Repeated},
		{"a function call", [][]byte{m('F', "\x00\x00\x00\x01")}, Doubtful},
		{"COPY", [][]byte{query("copy t from stdin"), m('d', "1")}, Doubtful},
		{"the access mode", [][]byte{query("SHOW Transaction_Read_Only")}, Doubtful},
		{"the access mode by name", [][]byte{bind("mode"), execute, end}, Doubtful},
		{"nothing", nil, Doubtful},
	} {
		var l Log
		l.Begin(new(Memory))
		l.sends(c.sent...)
		if got := l.Fate(text); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		if got := l.Requests(Repeated); !bytes.Equal(got, slices.Concat(c.sent...)) {
			t.Errorf("%s: %q", c.name, got)
		}
		l.Answering()
		want := min(c.want, Failed)
		if want == Repeated {
			if want = Failed; len(l.ends) == 0 {
				want = Doubtful
			}
		}
		if got := l.Fate(text); got != want {
			t.Errorf("%s, being answered: %d, want %d", c.name, got, want)
		}
	}
}

// A message that has not reached the server whole was not executed, whatever it is. Wherever the bytes are cut, nothing
// else is executed again.
func TestUnsent(t *testing.T) {
	requests := [][]byte{slices.Concat(parse("select 1"), bind("")), query("delete from t"), query("table t")}
	all := slices.Concat(requests...)
	changed := len(requests[0]) + len(requests[1])
	for reached := range len(all) + 1 {
		var l Log
		l.Begin(new(Memory))
		l.sends(requests...)
		l.Unsent(len(all) - reached)
		want := Repeated
		if reached >= changed {
			want = Doubtful
		}
		if got := l.Fate(text); got != want {
			t.Errorf("%d bytes have reached it: %d", reached, got)
		}
		var part Log // the same of a message that is not whole here either
		part.Begin(new(Memory))
		for at, b := 0, requests; at < reached; b = b[1:] {
			n := min(len(b[0]), reached-at)
			part.Sent(b[0][:n], true, n == len(b[0]))
			at += n
		}
		if want == Repeated && reached == 0 {
			want = Doubtful // nothing is under way
		}
		if got := part.Fate(text); got != want || !bytes.Equal(part.Requests(Repeated), all[:reached]) {
			t.Errorf("%d bytes were sent: %d, %q", reached, got, part.Requests(Repeated))
		}
	}
}

// A request is forgotten when it is answered. Those behind it stay, and one that opens a block ends the log.
func TestAnswered(t *testing.T) {
	first, second := slices.Concat(bind("r"), execute, end), query("select 2")
	var l Log
	l.Begin(new(Memory))
	if l.Answered('I'); l.On() {
		t.Fatal("an answer to nothing")
	}
	l.Begin(new(Memory))
	l.sends(bind("r"), execute, end, second)
	l.Answering()
	if got := l.Requests(Failed); l.Fate(text) != Doubtful || !bytes.Equal(got, second) {
		t.Fatalf("%q", got)
	}
	l.Unsent(len(second))
	if l.Fate(text) != Failed {
		t.Fatal("it is executed again, and the client has a part of its answer")
	}
	l.Unsent(0)
	l.Answered('I')
	if got := l.Requests(Repeated); !l.Awaits() || l.Fate(text) != Repeated || !bytes.Equal(got, second) {
		t.Fatalf("%q after the first answer", got)
	}
	l.Answered('I')
	l.Begin(new(Memory))
	l.sends(second, bind("r"), execute, end)
	l.Answered('I')
	if got := l.Requests(Repeated); l.Fate(text) != Repeated || !bytes.Equal(got, first) {
		t.Fatalf("%q after the second answer", got)
	}
	if l.Answered('I'); l.On() || l.sent != nil {
		t.Fatal("it is still on")
	}
	l.Begin(new(Memory))
	l.sends(second, second)
	if l.Answered('T'); l.On() {
		t.Fatal("it goes on in a block")
	}
}

// Requests are executed a second time, and not a third. One that the second server has not got is.
func TestAgain(t *testing.T) {
	var l Log
	l.Again(new(Memory))
	if !l.Fresh() || l.Fate(text) != Doubtful {
		t.Fatal("something is under way")
	}
	b := query("select 1")
	l.sends(b)
	if l.Fresh() || l.Fate(text) != Failed {
		t.Error("it is executed a third time")
	}
	if l.Unsent(len(b)); l.Fate(text) != Repeated {
		t.Error("it is not executed a second time")
	}
}

// Long requests are not kept, and neither are those of too many sessions.
func TestBounds(t *testing.T) {
	memory := new(Memory)
	long := query("select '" + strings.Repeat("x", maxSession-headerLength-11) + "'")
	var logs []*Log
	for {
		l := new(Log)
		l.Begin(memory)
		if l.sends(long); !l.On() {
			break
		}
		if l.Fate(text) != Repeated {
			t.Fatal("it is not executed again")
		}
		logs = append(logs, l)
	}
	if n := len(logs); n != maxAll/(maxSession-maxSpare) {
		t.Errorf("%d sessions keep their requests", n)
	}
	for _, l := range logs {
		l.Forget()
	}
	if n := memory.used.Load(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	var l Log
	l.Begin(memory)
	l.sends(long)
	if l.sends(query("select 1")); l.On() || memory.used.Load() != 0 {
		t.Error("too long, and it is on")
	}
}

// TestGuarding holds which messages the client gets of the answer to a request behind Guard: all of its own, but the
// ReadyForQuery inside the block of a Query, for which it gets that of the block's end.
func TestGuarding(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		first        byte
		answer, want string
	}{
		{'P', "12TDCZ" + "CZ", "12TDCZ" + "CZ"},
		{'Q', "TDCTDCz" + "CZ" + "CZ", "TDCTDC" + "Z" + "CZ"},
		{'Q', "TDEz" + "CZ" + "TCZ", "TDE" + "Z" + "TCZ"},
		{'Q', "TDCz" + "NEZ" + "TCZ", "TDC" + "NEZ" + "TCZ"},
	} {
		var g Guarding
		got := ""
		for g.Begin(tt.first); tt.answer != ""; tt.answer = tt.answer[1:] {
			typ := tt.answer[0]
			if typ == 'z' { // the one that it does not get
				typ = 'Z'
			}
			if !g.Takes(typ) {
				got += string(typ)
			}
		}
		if got != tt.want || g.On() {
			t.Errorf("%c: the client gets %s, want %s", tt.first, got, tt.want)
		}
	}
}
