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
		{"a Query", [][]byte{query("insert into t values (1)")}, false},
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
	if got := Flushed(slices.Concat(bind("w"), execute, end)); !bytes.Equal(got, slices.Concat(bind("w"), execute, flush, end)) {
		t.Errorf("%q", got)
	}
}

// The answer to the question is swallowed, and that to the change is held until its end.
func TestTake(t *testing.T) {
	told := m('D', "\x00\x01\x00\x00\x00\x1f"+"741 000000020000000000000003")
	bad := m('E', "SERROR\x00VERROR\x00C42501\x00Mno\x00\x00")
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
	}{
		{"nothing yet", nil, nil, true, 0, nil},
		{"a part of the question", question[:3], nil, true, 741, nil},
		{"the question", question, nil, false, 741, nil},
		{"with notices", slices.Concat([][]byte{debug, warning, news}, question, [][]byte{warning}), slices.Concat(warning, news, warning), false, 741, nil},
		{"the beginning of the answer", slices.Concat(question, [][]byte{bound, row}), nil, false, 741, nil},
		{"the answer", slices.Concat(question, [][]byte{bound, row, tag}), nil, false, 741, slices.Concat(bound, row, tag, idle)},
		{"and its end", slices.Concat(question, [][]byte{bound, row, tag, idle}), slices.Concat(bound, row, tag, idle), false, 741, nil},
		{"an error", slices.Concat(question, [][]byte{bound, bad}), nil, false, 741, nil},
		{"an error and its end", slices.Concat(question, [][]byte{bound, bad, idle}), slices.Concat(bound, bad, idle), false, 741, nil},
		{"a long answer", slices.Concat(question, [][]byte{bound, row, long, tag}), slices.Concat(bound, row, long, tag), false, 741, nil},
		{"the server ends", slices.Concat(question, [][]byte{bound, fatal}), slices.Concat(bound, fatal), false, 741, nil},
		{"the question fails", [][]byte{parsed, bad}, nil, false, 0, nil},
		{"the question fails, and that is answered", [][]byte{parsed, bad, idle, closed, idle, tag, idle}, slices.Concat(tag, idle), false, 0, nil},
		{"no number", [][]byte{parsed, bound, m('D', "\x00\x01\x00\x00\x00\x01x"), tag, closed}, nil, false, 0, nil},
	} {
		w := NewWrite()
		var heard []byte
		for _, b := range c.messages {
			before, swallow := w.Take(b[0], b, false)
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

// A change that was to be sent goes on, and one that was sent is in doubt.
func TestFateOfAChange(t *testing.T) {
	var l Log
	w := l.Ask(new(Memory))
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
