package lone

import (
	"bytes"
	"slices"
	"testing"
)

// Only a request that is exactly one provable change is recognised.
func TestChanges(t *testing.T) {
	insert, describeStatement := parse("insert into t values ($1)"), m('D', "S\x00")
	for _, c := range []struct {
		name string
		sent [][]byte
		want bool
	}{
		{"of the unnamed statement", [][]byte{insert, bind(""), describe, execute, end}, true},
		{"with a description", [][]byte{insert, describeStatement, bind(""), execute, end}, true},
		{"by name", [][]byte{bind("w"), describe, execute, end}, true},
		{"a query", [][]byte{parse("select 1"), bind(""), execute, end}, false},
		{"a query by name", [][]byte{bind("r"), execute, end}, false},
		{"BEGIN by name", [][]byte{bind("b"), execute, end}, false},
		{"an unknown name", [][]byte{bind("x"), execute, end}, false},
		{"the unnamed statement of before", [][]byte{bind(""), execute, end}, false},
		{"another statement than the one that is parsed", [][]byte{insert, bind("w"), execute, end}, false},
		{"a name is parsed", [][]byte{m('P', "n\x00insert into t values (1)\x00\x00\x00"), bind("n"), execute, end}, false},
		{"a portal with a name", [][]byte{m('B', "p\x00w\x00\x00\x00\x00\x00\x00\x00"), m('E', "p\x00\x00\x00\x00\x00"), end}, false},
		{"some rows", [][]byte{bind("w"), m('E', "\x00\x00\x00\x00\x01"), end}, false},
		{"two", [][]byte{bind("w"), execute, bind("w"), execute, end}, false},
		{"executed twice", [][]byte{bind("w"), execute, execute, end}, false},
		{"not executed", [][]byte{bind("w"), end}, false},
		{"with a Flush", [][]byte{bind("w"), execute, flush, end}, false},
		{"more behind it", [][]byte{bind("w"), execute, end, bind("w")}, false},
		{"without its end", [][]byte{bind("w"), execute}, false},
		{"a Query", [][]byte{query("insert into t values (1)")}, true},
		{"a Query that locks rows", [][]byte{query("select x from t for update;")}, true},
		{"a Query that changes nothing", [][]byte{query("select 1")}, false},
		{"a Query of two statements", [][]byte{query("insert into t values (1); insert into t values (2)")}, false},
		{"a Query with a parameter", [][]byte{query("insert into t values ($1)")}, false},
		{"a Query and another one", [][]byte{query("insert into t values (1)"), query("select 1")}, false},
		{"a Query without its end", [][]byte{m('Q', "insert into t values (1)")}, false},
		{"a Query with more behind its end", [][]byte{m('Q', "insert into t values (1)\x00;\x00")}, false},
		{"a Query that must be alone", [][]byte{query("vacuum t")}, false},
		{"a Query of a procedure", [][]byte{query("call p()")}, false},
		{"a Query that commits", [][]byte{query("commit")}, false},
		{"a procedure", [][]byte{parse("call p()"), bind(""), execute, end}, false},
	} {
		all := slices.Concat(c.sent...)
		if got := Changes(all, text); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		for n := range all {
			if c.want && Changes(all[:n], text) {
				t.Errorf("%s: recognised by %d of %d bytes", c.name, n, len(all))
			}
		}
	}
	if got := NewWrite(false).Request(slices.Concat(bind("w"), execute, end)); !bytes.Equal(got, slices.Concat(bind("w"), execute, flush, end)) {
		t.Errorf("%q", got)
	}
	text := "delete from t"
	if got, want := NewWrite(true).Request(query(text)), slices.Concat(parse(text), bind(""), m('C', "S\x00"), describe, execute, flush, end); !bytes.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The answer to the question is swallowed, and that to the change is held until its end.
func TestTake(t *testing.T) {
	told := m('D', "\x00\x01\x00\x00\x00\x1f"+"741 000000020000000000000003")
	bad := m('E', "SERROR\x00VERROR\x00C42501\x00Mno\x00\x00")
	rows, none, cancel := m('T', "\x00\x00"), m('n', ""), m('E', "SERROR\x00VERROR\x00C57014\x00Mcanceled\x00\x00")
	fatal := m('E', "SFATAL\x00VFATAL\x00C57P01\x00Mover\x00\x00")
	debug, warning, news := m('N', "SDEBUG\x00VDEBUG\x00\x00"), m('N', "SWARNING\x00VWARNING\x00\x00"), m('A', "\x00\x00\x00\x01c\x00p\x00")
	parsed, bound, closed, tag, idle, row := m('1', ""), m('2', ""), m('3', ""), m('C', "INSERT 0 1\x00"), m('Z', "I"), m('D', "\x00\x01\x00\x00\x00\x011")
	question := [][]byte{parsed, bound, told, m('C', "SELECT 1\x00"), closed}
	long := m('D', string(make([]byte, maxAnswer)))
	for _, c := range []struct {
		name     string
		messages [][]byte
		heard    []byte
		asked    bool
		xid      uint64
		answer   []byte
		simple   bool
	}{
		{name: "nothing yet", asked: true},
		{"a part of the question", question[:3], nil, true, 741, nil, false},
		{"the question", question, nil, false, 741, nil, false},
		{"with notices", slices.Concat([][]byte{debug, warning, news}, question, [][]byte{warning}), slices.Concat(warning, news, warning), false, 741, nil, false},
		{"the beginning of the answer", slices.Concat(question, [][]byte{bound, row}), nil, false, 741, nil, false},
		{"the answer", slices.Concat(question, [][]byte{bound, row, tag}), nil, false, 741, slices.Concat(bound, row, tag, idle), false},
		{"and its end", slices.Concat(question, [][]byte{bound, row, tag, idle}), slices.Concat(bound, row, tag, idle), false, 741, nil, false},
		{"an error", slices.Concat(question, [][]byte{bound, bad}), nil, false, 741, nil, false},
		{"an error and its end", slices.Concat(question, [][]byte{bound, bad, idle}), slices.Concat(bound, bad, idle), false, 741, nil, false},
		{"a long answer", slices.Concat(question, [][]byte{bound, row, long, tag}), slices.Concat(bound, row, long, tag), false, 741, nil, false},
		{"the server ends", slices.Concat(question, [][]byte{bound, fatal}), slices.Concat(bound, fatal), false, 741, nil, false},
		{"the question fails", [][]byte{parsed, bad}, nil, false, 0, nil, false},
		{"the question fails, and that is answered", [][]byte{parsed, bad, idle, closed, idle, tag, idle}, slices.Concat(tag, idle), false, 0, nil, false},
		{"no number", [][]byte{parsed, bound, m('D', "\x00\x01\x00\x00\x00\x01x"), tag, closed}, nil, false, 0, nil, false},
		{"a Query", slices.Concat(question, [][]byte{parsed, bound, closed, rows, row, tag}), nil, false, 741, slices.Concat(rows, row, tag, idle), true},
		{"a Query and its end", slices.Concat(question, [][]byte{parsed, bound, closed, none, tag, idle}), slices.Concat(tag, idle), false, 741, nil, true},
		{"a long answer to a Query", slices.Concat(question, [][]byte{parsed, bound, closed, rows, long, tag, idle}), slices.Concat(rows, long, tag, idle), false, 741, nil, true},
		{"a Query fails as it commits", slices.Concat(question, [][]byte{parsed, bound, closed, none, tag, bad, idle}), slices.Concat(bad, idle), false, 741, nil, true},
		{"a long answer to a Query that fails as it commits", slices.Concat(question, [][]byte{parsed, bound, closed, rows, long, tag, bad, idle}), slices.Concat(rows, long, bad, idle), false, 741, nil, true},
		{"a Query fails", slices.Concat(question, [][]byte{bad, idle}), slices.Concat(bad, idle), false, 741, nil, true},
		{"a Query fails late", slices.Concat(question, [][]byte{parsed, bound, closed, rows, row, bad, idle}), slices.Concat(rows, row, bad, idle), false, 741, nil, true},
		{"the question is canceled", [][]byte{parsed, cancel, idle, closed, idle}, slices.Concat(cancel, idle), false, 0, nil, true},
		{"the question is canceled, and its Sync is not answered", [][]byte{parsed, cancel, idle, closed}, nil, false, 0, nil, false},
	} {
		w := NewWrite(c.simple)
		var heard []byte
		for _, b := range c.messages {
			before, swallow := w.Take(b[0], b)
			if heard = append(heard, before...); !swallow {
				heard = append(heard, b...)
			}
			_ = w.Synced() // as upstream does
		}
		if !bytes.Equal(heard, c.heard) || w.Asked() != c.asked || w.Xid != c.xid || !bytes.Equal(w.Answer(), c.answer) {
			t.Errorf("%s: heard %.100q, asked %v, %d, answer %q", c.name, heard, w.Asked(), w.Xid, w.Answer())
		}
		if w.Xid != 0 && w.Timeline != 2 {
			t.Errorf("%s: timeline %d", c.name, w.Timeline)
		}
	}
}

// Of a message that is too long to be held the client gets the beginning at once, and so all of it. If it is the error
// of the question, the change is not sent, here or at the next server.
func TestLongMessages(t *testing.T) {
	question := [][]byte{m('1', ""), m('2', ""), m('D', "\x00\x01\x00\x00\x00\x1f"+"741 000000020000000000000003"), m('C', "SELECT 1\x00"), m('3', "")}
	rows, none, tag, row, idle := m('T', "\x00\x00"), m('n', ""), m('C', "UPDATE 1\x00"), m('D', "\x00\x01\x00\x00\x00\x011"), m('Z', "I")
	for _, c := range []struct {
		name   string
		before [][]byte
		typ    byte
		after  [][]byte
		heard  []byte
		late   bool
		told   bool // the client has got a part of the answer
	}{
		{"an error before the first row", append(question, rows), 'E', [][]byte{idle}, idle, true, true},
		{"an error of a Query that sends rows as it finds them", append(question, rows), 'E', [][]byte{idle}, slices.Concat(rows, idle), false, true},
		{"an error behind rows", append(question, rows, row), 'E', [][]byte{idle}, slices.Concat(rows, row, idle), true, true},
		{"an error as it commits", append(question, none, tag), 'E', [][]byte{idle}, idle, false, true},
		{"a row", append(question, rows), 'D', [][]byte{tag, idle}, slices.Concat(rows, tag, idle), true, true},
		{"a notice", append(question, rows), 'N', [][]byte{row}, nil, true, false},
		{"a notice of the question", nil, 'N', question, nil, true, false},
		{"an error of the question", [][]byte{m('1', "")}, 'E', [][]byte{idle, m('3', ""), idle}, idle, true, true},
	} {
		var l Log
		w := l.Ask(new(Memory), query("update t set x = 1"))
		w.late = c.late
		var heard []byte
		takes := func(messages [][]byte) {
			for _, b := range messages {
				before, swallow := w.Take(b[0], b)
				if heard = append(heard, before...); !swallow {
					heard = append(heard, b...)
				}
			}
		}
		takes(c.before)
		heard = append(heard, w.Begins(c.typ)...)
		if w.Canceled() {
			if l.Fate(text) != Doubtful {
				t.Errorf("%s: the change goes to the next server, and the client has heard of an error", c.name)
			}
			if len(w.Request(query("update t set x = 1"))) != len(w.Synced()) {
				t.Errorf("%s: the change is sent", c.name)
			}
		}
		if takes(c.after); !bytes.Equal(heard, c.heard) || w.Untold() == c.told || w.Asked() {
			t.Errorf("%s: heard %q, want %q, untold %v, asked %v", c.name, heard, c.heard, w.Untold(), w.Asked())
		}
	}
}

// The answer to a Query is followed to its end, also if the request behind it is too long to be kept.
func TestAnswerOfAQueryIsFollowed(t *testing.T) {
	var l Log
	w := l.Ask(new(Memory), query("delete from t"))
	w.Xid = 741
	l.sends(query("delete from t"))
	l.Sent(make([]byte, maxSession), true, false)
	if l.On() || l.Write() != w || l.Fate(text) != Doubtful {
		t.Error("its answer is not followed")
	}
	if l.Answered('I'); l.Write() != nil {
		t.Error("the answer to the next request is taken for its own")
	}
}

// A change that was to be sent goes on, and one that was sent is in doubt.
func TestFateOfAChange(t *testing.T) {
	var l Log
	w := l.Ask(new(Memory), bind("w"))
	if l.Fate(text) != Repeated || l.Guarded() {
		t.Error("it was not sent, and does not go on")
	}
	w.Xid = 741
	request := slices.Concat(bind("w"), execute, end)
	l.sends(bind("w"), execute, end)
	if l.Fate(text) != InDoubt {
		t.Error("its status is not asked for")
	}
	if l.Unsent(len(request)); l.Fate(text) != Repeated || l.Guarded() || !bytes.Equal(l.Requests(Repeated), request) {
		t.Error("it has not reached the server, and does not go on")
	}
	l.Unsent(0)
	l.sends(bind("w"), execute, end)
	if l.Fate(text) != Doubtful {
		t.Error("another one behind it has reached the server")
	}
	l.Answered('I')
	if l.Fate(text) != Doubtful || l.Write() != nil {
		t.Error("the second has the number of the first")
	}
}

// BenchmarkLog is what it costs to keep a request.
func BenchmarkLog(b *testing.B) {
	var l Log
	memory := new(Memory)
	messages := [][]byte{bind("r"), describe, execute, end}
	b.ReportAllocs()
	for b.Loop() {
		l.Begin(memory)
		l.sends(messages...)
		l.Answering()
		l.Answered('I')
	}
}
